/* SPDX-License-Identifier: Apache-2.0 */
/* libtarn's codes as Python exceptions. The classes are in Python (tarn/_errors.py), which registers its
 * maker here. */
#include "ext.h"

#include <stdarg.h>
#include <stdio.h>

static PyObject *maker;

PyObject *error_set_maker(PyObject *module, PyObject *callable)
{
    (void)module;
    Py_INCREF(callable);
    Py_XSETREF(maker, callable);
    Py_RETURN_NONE;
}

int raise_code(int code, PyObject *key, const char *why)
{
    if (!maker) {
        PyErr_Format(PyExc_RuntimeError, "tarn: error %d: %s", code, why ? why : tarn_strerror(code));
        return -1;
    }
    PyObject *text = why ? PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace") : NULL;
    if (why && !text)
        return -1;
    PyObject *e = PyObject_CallFunction(maker, "iOO", code, key ? key : Py_None, text ? text : Py_None);
    Py_XDECREF(text);
    if (!e)
        return -1;
    PyErr_SetObject((PyObject *)Py_TYPE(e), e);
    Py_DECREF(e);
    return -1;
}

int raise_call(int rc, PyObject *key)
{
    if (PyErr_Occurred())
        return -1;
    return rc == 0 ? 0 : raise_code(rc, key, tarn_last_error());
}

PyObject *take_exception(void)
{
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return text;
}

int raise_why(int code, PyObject *key, const char *fmt, ...)
{
    char why[WHY_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return raise_code(code, key, why);
}
