/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of methods that must be quick. Keyword names are interned, so most are found by address. */
#include "ext.h"

#include <math.h>
#include <string.h>

static int intern(struct args_spec *spec)
{
    unsigned n = 0;

    for (; n < ARGS_MAX && spec->names[n]; n++)
        if (!spec->interned[n] && !(spec->interned[n] = PyUnicode_InternFromString(spec->names[n])))
            return -1;
    spec->count = n;
    return 0;
}

static int find_name(const struct args_spec *spec, PyObject *name)
{
    for (unsigned i = 0; i < spec->count; i++)
        if (spec->interned[i] == name)
            return (int)i;
    for (unsigned i = 0; i < spec->count; i++)
        if (PyUnicode_CompareWithASCIIString(name, spec->names[i]) == 0)
            return (int)i;
    return -1;
}

/* "key, value, dtype": new reference. */
static PyObject *all_names(const struct args_spec *spec)
{
    PyObject *text = PyUnicode_FromString(spec->names[0]);

    for (unsigned i = 1; text && i < spec->count; i++) {
        PyObject *longer = PyUnicode_FromFormat("%U, %s", text, spec->names[i]);
        Py_DECREF(text);
        text = longer;
    }
    return text;
}

static int unknown_name(const struct args_spec *spec, PyObject *name)
{
    PyObject *names = all_names(spec);

    if (names)
        PyErr_Format(PyExc_TypeError, "%s(): '%U' is no argument of it: use %U", spec->function, name, names);
    Py_XDECREF(names);
    return -1;
}

static int place_keyword(const struct args_spec *spec, PyObject *name, PyObject *value, PyObject **out)
{
    int i = find_name(spec, name);

    if (i < 0)
        return unknown_name(spec, name);
    if (out[i]) {
        PyErr_Format(PyExc_TypeError, "%s(): %U is given twice: give it once", spec->function, name);
        return -1;
    }
    out[i] = value;
    return 0;
}

int args_parse(struct args_spec *spec, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               PyObject **out)
{
    if (spec->count == 0 && intern(spec) < 0)
        return -1;
    if (nargs > (Py_ssize_t)spec->positional) {
        PyErr_Format(PyExc_TypeError,
                     "%s(): %zd arguments without a name: give at most %u so, name the others",
                     spec->function, nargs, spec->positional);
        return -1;
    }
    for (unsigned i = 0; i < spec->count; i++)
        out[i] = (Py_ssize_t)i < nargs ? args[i] : NULL;
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++)
        if (place_keyword(spec, PyTuple_GET_ITEM(kwnames, k), args[nargs + k], out) < 0)
            return -1;
    for (unsigned i = 0; i < spec->required; i++)
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s(): no %s: give it", spec->function, spec->names[i]);
            return -1;
        }
    return 0;
}

static bool absent(PyObject *o)
{
    return !o || o == Py_None;
}

int raise_type(const char *name, PyObject *o, const char *needed)
{
    PyErr_Format(PyExc_TypeError, "%s: of type %s: give %s", name, Py_TYPE(o)->tp_name, needed);
    return -1;
}

/* A number's conversion has raised. A TypeError gets a sentence with what is needed; an OverflowError
 * becomes `range`. */
static int refuse_number(PyObject *o, const char *name, const char *needed, const char *range)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return raise_type(name, o, needed);
    }
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    PyErr_Clear();
    return raise_why(TARN_E_INVALID, NULL, "%s: a number out of range: give %s", name, range);
}

#define SECONDS_MAX 4e6

int args_seconds(PyObject *o, const char *name, uint32_t *ms)
{
    if (absent(o))
        return 0;
    double s = PyFloat_AsDouble(o);
    if (s == -1.0 && PyErr_Occurred())
        return refuse_number(o, name, "a number of seconds, such as 5.0",
                             "more than 0 and at most 4e6 seconds");
    if (!(s > 0) || s > SECONDS_MAX)
        return raise_why(TARN_E_INVALID, NULL, "%s: %g seconds: give more than 0 and at most %g", name, s,
                         SECONDS_MAX);
    *ms = (uint32_t)ceil(s * 1e3);
    return 0;
}

PyObject *args_checked_seconds(PyObject *module, PyObject *args)
{
    const char *name;
    uint32_t ms = 0;
    PyObject *o;

    (void)module;
    if (!PyArg_ParseTuple(args, "sO", &name, &o) || args_seconds(o, name, &ms) < 0)
        return NULL;
    if (absent(o))
        Py_RETURN_NONE;
    return PyFloat_FromDouble(ms / 1e3);
}

int args_number(PyObject *o, const char *name, uint32_t least, uint32_t most, uint32_t *out)
{
    char range[64];

    if (absent(o))
        return 0;
    PyOS_snprintf(range, sizeof range, "%u to %u", (unsigned)least, (unsigned)most);
    long v = PyLong_AsLong(o);
    if (v == -1 && PyErr_Occurred())
        return refuse_number(o, name, "a whole number", range);
    if (v < (long)least || v > (long)most)
        return raise_why(TARN_E_INVALID, NULL, "%s: %ld: give %s", name, v, range);
    *out = (uint32_t)v;
    return 0;
}

int args_u64(PyObject *o, const char *name, uint64_t *out)
{
    if (absent(o))
        return 0;
    PyObject *index = PyNumber_Index(o);
    uint64_t v = index ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    if (PyErr_Occurred())
        return refuse_number(o, name, "a whole number", "one from 0 to 2^64 - 1");
    *out = v;
    return 0;
}

int args_handle(PyObject *o, const char *name, const char *attribute, const char *needed, void **out)
{
    PyObject *handle = PyLong_Check(o) ? o : PyObject_GetAttrString(o, attribute);
    uint64_t address = 0;

    if (!handle) {
        PyErr_Clear();
        return raise_type(name, o, needed);
    }
    int rc = args_u64(handle, name, &address);
    if (handle != o)
        Py_DECREF(handle);
    *out = (void *)(uintptr_t)address;
    return rc;
}

PyObject *args_list(PyObject *o, const char *name, const char *needed)
{
    bool text = PyUnicode_Check(o) || PyBytes_Check(o); /* text is never meant as a truth value */

    if (!text && (Py_TYPE(o)->tp_iter || PySequence_Check(o)))
        return PySequence_Fast(o, name);
    raise_type(name, o, needed);
    return NULL;
}

bool is_mapping(PyObject *o)
{
    return PyDict_Check(o) || (PyMapping_Check(o) && PyObject_HasAttrString(o, "items"));
}

bool is_number(PyObject *o)
{
    const PyTypeObject *type = Py_TYPE(o);
    bool sized = (type->tp_as_mapping && type->tp_as_mapping->mp_length) ||
                 (type->tp_as_sequence && type->tp_as_sequence->sq_length);

    return PyIndex_Check(o) && !sized;
}

const char *text_utf8(PyObject *o, const char *name, Py_ssize_t *n)
{
    const char *text = PyUnicode_AsUTF8AndSize(o, n);

    if (text || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return text;
    PyErr_Clear();
    raise_why(TARN_E_INVALID, NULL, "%s: its surrogates are no characters of UTF-8: give text without them",
              name);
    return NULL;
}

int args_text(PyObject *o, const char *name, const char **out)
{
    Py_ssize_t n;

    if (absent(o))
        return 0;
    if (!PyUnicode_Check(o))
        return raise_type(name, o, "a str");
    const char *text = text_utf8(o, name, &n);
    if (!text)
        return -1;
    if ((size_t)n != strlen(text))
        return raise_why(TARN_E_INVALID, NULL, "%s: holds a NUL character: give text without it", name);
    *out = text;
    return 0;
}

int args_flag(PyObject *o, const char *name, uint32_t flag, uint32_t *flags)
{
    if (absent(o))
        return 0;
    /* "no" would be true. */
    if (!PyLong_Check(o) && strncmp(Py_TYPE(o)->tp_name, "numpy.bool", strlen("numpy.bool")) != 0)
        return raise_type(name, o, "True or False");
    int yes = PyObject_IsTrue(o);
    if (yes > 0)
        *flags |= flag;
    return yes < 0 ? -1 : 0;
}
