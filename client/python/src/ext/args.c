/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of methods that must be quick: keyword names are interned, so most are found by their address. */
#include "ext.h"

#include <math.h>
#include <string.h>

static int intern(struct args_spec *spec)
{
    for (unsigned i = 0; i < spec->count; i++)
        if (!spec->interned[i] && !(spec->interned[i] = PyUnicode_InternFromString(spec->names[i])))
            return -1;
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

static int place_keyword(const struct args_spec *spec, PyObject *name, PyObject *value, PyObject **out)
{
    int i = find_name(spec, name);

    if (i < 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", spec->function, name);
        return -1;
    }
    if (out[i]) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", spec->function, name);
        return -1;
    }
    out[i] = value;
    return 0;
}

int args_parse(struct args_spec *spec, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               PyObject **out)
{
    if (!spec->interned[spec->count - 1] && intern(spec) < 0)
        return -1;
    if (nargs > (Py_ssize_t)spec->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %u positional arguments (%zd given)",
                     spec->function, spec->positional, nargs);
        return -1;
    }
    for (unsigned i = 0; i < spec->count; i++)
        out[i] = (Py_ssize_t)i < nargs ? args[i] : NULL;
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++)
        if (place_keyword(spec, PyTuple_GET_ITEM(kwnames, k), args[nargs + k], out) < 0)
            return -1;
    for (unsigned i = 0; i < spec->required; i++)
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", spec->function,
                         spec->names[i]);
            return -1;
        }
    return 0;
}

static bool absent(PyObject *o)
{
    return !o || o == Py_None;
}

int args_seconds(PyObject *o, const char *name, uint32_t *ms)
{
    if (absent(o))
        return 0;
    double s = PyFloat_AsDouble(o);
    if (s == -1.0 && PyErr_Occurred())
        return -1;
    if (!(s > 0) || s > 4e6)
        return raise_why(TARN_E_INVALID, NULL, "%s: %g seconds: more than 0 and at most 4e6 can be given",
                         name, s);
    *ms = (uint32_t)ceil(s * 1e3);
    return 0;
}

int args_u32(PyObject *o, const char *name, uint32_t *out)
{
    if (absent(o))
        return 0;
    long v = PyLong_AsLong(o);
    if (v == -1 && PyErr_Occurred())
        return -1;
    if (v < 0 || v > (long)UINT32_MAX)
        return raise_why(TARN_E_INVALID, NULL, "%s: %ld: 0 to 4294967295 can be given", name, v);
    *out = (uint32_t)v;
    return 0;
}

int args_text(PyObject *o, const char *name, const char **out)
{
    Py_ssize_t n;

    if (absent(o))
        return 0;
    if (!PyUnicode_Check(o)) {
        PyErr_Format(PyExc_TypeError, "%s: a str is needed, not %s", name, Py_TYPE(o)->tp_name);
        return -1;
    }
    const char *text = PyUnicode_AsUTF8AndSize(o, &n);
    if (!text)
        return -1;
    if ((size_t)n != strlen(text))
        return raise_why(TARN_E_INVALID, NULL, "%s: holds a NUL character", name);
    *out = text;
    return 0;
}

int args_flag(PyObject *o, uint32_t flag, uint32_t *flags)
{
    if (absent(o))
        return 0;
    int yes = PyObject_IsTrue(o);
    if (yes > 0)
        *flags |= flag;
    return yes < 0 ? -1 : 0;
}
