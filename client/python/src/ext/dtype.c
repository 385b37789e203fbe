/* SPDX-License-Identifier: Apache-2.0 */
/* Maps element types of NumPy, ml_dtypes, torch and the buffer protocol to the store's. */
#include "ext.h"

#include <string.h>

#define KNOWN_MAX 32

/* NumPy, ml_dtypes and torch use the same names. */
static const struct {
    const char *name;
    enum tarn_dtype dtype;
} framework_names[] = {
    {"float32", TARN_F32},
    {"float16", TARN_F16},
    {"bfloat16", TARN_BF16},
    {"uint8", TARN_U8},
    {"int8", TARN_I8},
    {"bool", TARN_BOOL},
    {"float8_e4m3fn", TARN_F8_E4M3},
    {"float8_e5m2", TARN_F8_E5M2},
    {"uint16", TARN_U16},
    {"int16", TARN_I16},
    {"uint32", TARN_U32},
    {"int32", TARN_I32},
    {"uint64", TARN_U64},
    {"int64", TARN_I64},
    {"float64", TARN_F64},
    {"complex64", TARN_C64},
    {"complex128", TARN_C128},
};

/* dtype objects seen before; they live as long as their framework. */
static struct {
    PyObject *object;
    int dtype;
} known[KNOWN_MAX];
static unsigned nknown;

int dtype_of_framework(const char *name)
{
    for (size_t i = 0; i < sizeof framework_names / sizeof framework_names[0]; i++)
        if (strcmp(name, framework_names[i].name) == 0)
            return (int)framework_names[i].dtype;
    return -1;
}

/* Remedies for element types that the store does not have, by the beginning of the dtype's name. A
 * framework's last entry is for all its other types. */
static const struct {
    const char *begins, *remedy;
} remedies[] = {
    {"torch.q", "give value.int_repr(), and keep its scale and zero point beside it"},
    {"torch.complex32", "convert it, as value.to(torch.complex64)"},
    {"torch.", "give its bytes, value.view(torch.uint8)"},
    {"object", "its elements are Python objects: convert them to numbers, as value.astype('f4')"},
    {"datetime64", "give value.view('i8')"},
    {"timedelta64", "give value.view('i8')"},
    {"float", "convert it, as value.astype('f8'), or give its bytes, value.view('u1')"},
    {"complex", "convert it, as value.astype('c16')"},
    {"void", "give each field a key of its own, or all its bytes, value.view('u1')"},
    {"", "give its bytes, value.view('u1')"},
};

static int refuse_elements(const char *name)
{
    for (size_t i = 0;; i++)
        if (strncmp(name, remedies[i].begins, strlen(remedies[i].begins)) == 0)
            return raise_why(TARN_E_UNSUPPORTED, NULL, "dtype %.80s: the store has no such element type: %s",
                             name, remedies[i].remedy);
}

/* Text of a dtype object: NumPy's has .name, torch's str() is "torch.bfloat16". */
static PyObject *dtype_text(PyObject *o)
{
    PyObject *name = PyObject_GetAttrString(o, "name");

    if (name || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return name;
    PyErr_Clear();
    if ((name = PyObject_GetAttrString(o, "__name__")) != NULL) /* numpy.float32 */
        return name;
    PyErr_Clear();
    return PyObject_Str(o);
}

/* Refuses an unknown dtype object of a framework, or something else taken for a dtype. */
static int refuse(PyObject *what)
{
    static const char needed[] = "one of tarn.dtypes, such as 'f32', or a dtype of NumPy or torch";
    bool of_framework = PyObject_HasAttrString(what, "itemsize") && !PyObject_HasAttrString(what, "tolist");

    if (!of_framework && !PyUnicode_Check(what) && !PyType_Check(what))
        return raise_type("dtype", what, needed);
    PyObject *text = dtype_text(what);
    const char *name = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    if (of_framework && name)
        refuse_elements(name);
    else if (name)
        raise_why(TARN_E_UNSUPPORTED, NULL, "dtype '%.80s': no element type of the store: give %s", name,
                  needed);
    Py_XDECREF(text);
    return -1;
}

static int from_text(PyObject *name, PyObject *o)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;

    if (!text)
        return PyErr_Occurred() ? -1 : refuse(o);
    if (strncmp(text, "torch.", 6) == 0)
        text += 6;
    int dtype = dtype_of_framework(text);
    return dtype >= 0 ? dtype : refuse(o);
}

/* The store has no types in another byte order. */
static int check_order(PyObject *o)
{
    PyObject *native = PyObject_GetAttrString(o, "isnative");

    if (!native) {
        PyErr_Clear();
        return 0;
    }
    int yes = PyObject_IsTrue(native);
    Py_DECREF(native);
    if (yes == 0)
        return raise_why(TARN_E_UNSUPPORTED, NULL,
                         "dtype: not in this machine's byte order: convert it, as "
                         "value.astype(value.dtype.newbyteorder('='))");
    return yes < 0 ? -1 : 0;
}

int dtype_of_object(PyObject *o)
{
    for (unsigned i = 0; i < nknown; i++)
        if (known[i].object == o)
            return known[i].dtype;

    if (PyUnicode_Check(o)) {
        Py_ssize_t n;
        const char *text = text_utf8(o, "dtype", &n);
        if (!text)
            return -1;
        int dtype = tarn_dtype_parse(text);
        return dtype >= 0 ? dtype : from_text(o, o);
    }
    PyObject *name = dtype_text(o);
    if (!name)
        return -1;
    int dtype = check_order(o) < 0 ? -1 : from_text(name, o);
    Py_DECREF(name);
    if (dtype >= 0 && nknown < KNOWN_MAX) {
        Py_INCREF(o);
        known[nknown].object = o;
        known[nknown++].dtype = dtype;
    }
    return dtype;
}

int dtype_of_kind(char kind, Py_ssize_t bytes)
{
    static const struct {
        char kind;
        uint8_t bytes;
        enum tarn_dtype dtype;
    } kinds[] = {
        {'u', 1, TARN_U8},  {'u', 2, TARN_U16}, {'u', 4, TARN_U32}, {'u', 8, TARN_U64},   {'i', 1, TARN_I8},
        {'i', 2, TARN_I16}, {'i', 4, TARN_I32}, {'i', 8, TARN_I64}, {'b', 1, TARN_BOOL},  {'f', 2, TARN_F16},
        {'f', 4, TARN_F32}, {'f', 8, TARN_F64}, {'c', 8, TARN_C64}, {'c', 16, TARN_C128},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].kind == kind && kinds[i].bytes == bytes)
            return (int)kinds[i].dtype;
    return -1;
}

/* For the struct module's letters; itemsize tells an integer's size. */
static int of_letter(char letter, Py_ssize_t itemsize)
{
    if (strchr("BHILQNc", letter))
        return dtype_of_kind('u', itemsize);
    if (strchr("bhilqn", letter))
        return dtype_of_kind('i', itemsize);
    return letter == '?'   ? TARN_BOOL
           : letter == 'e' ? TARN_F16
           : letter == 'f' ? TARN_F32
           : letter == 'd' ? TARN_F64
                           : -1;
}

int dtype_of_format(const char *format, Py_ssize_t itemsize)
{
    const char *f = format ? format : "B";
    int dtype = -1;

    if (*f == '@' || *f == '=' || *f == '<') /* little-endian, like all machines that tarn runs on */
        f++;
    if (f[0] && !f[1])
        dtype = of_letter(f[0], itemsize);
    else if (f[0] == 'Z' && f[1] && !f[2])
        dtype = f[1] == 'f' ? TARN_C64 : f[1] == 'd' ? TARN_C128 : -1;
    if (dtype >= 0 && (Py_ssize_t)tarn_dtype_bytes((uint32_t)dtype) == itemsize)
        return dtype;
    return raise_why(TARN_E_UNSUPPORTED, NULL,
                     "value: elements of format '%s': the store has no such type: give the bytes, as "
                     "memoryview(value).cast('B')",
                     format);
}
