/* SPDX-License-Identifier: Apache-2.0 */
/* TensorInfo: what is stored under a key, as a named tuple (dtype, shape, nbytes). */
#include "ext.h"

static PyStructSequence_Field fields[] = {
    {"dtype", "element type, the store's name: \"bf16\""},
    {"shape", "tuple of int, elements"},
    {"nbytes", "size in bytes"},
    {NULL, NULL},
};

static PyStructSequence_Desc desc = {
    .name = "tarn.TensorInfo",
    .doc = "dtype, shape and size of a stored tensor.",
    .fields = fields,
    .n_in_sequence = 3,
};

PyTypeObject info_type;
static PyObject *names[TARN_DTYPE_COUNT];

int info_setup(void)
{
    return PyStructSequence_InitType2(&info_type, &desc);
}

PyObject *dtype_name(uint32_t dtype)
{
    if (dtype >= TARN_DTYPE_COUNT)
        return PyUnicode_FromFormat("dtype %u", dtype);
    if (!names[dtype] && !(names[dtype] = PyUnicode_InternFromString(tarn_dtype_name(dtype))))
        return NULL;
    Py_INCREF(names[dtype]);
    return names[dtype];
}

static PyObject *shape_tuple(const struct tarn_tensor *t)
{
    uint32_t ndim = t->ndim <= TARN_DIMS_MAX ? t->ndim : TARN_DIMS_MAX;
    PyObject *shape = PyTuple_New(ndim);

    for (uint32_t d = 0; shape && d < ndim; d++) {
        PyObject *n = PyLong_FromUnsignedLongLong(t->shape[d]);
        if (!n)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, d, n);
    }
    return shape;
}

PyObject *info_new(const struct tarn_tensor *t)
{
    PyObject *info = PyStructSequence_New(&info_type);
    PyObject *name = dtype_name(t->dtype), *shape = shape_tuple(t);
    PyObject *bytes = PyLong_FromUnsignedLongLong(t->bytes);

    if (!info || !name || !shape || !bytes) {
        Py_XDECREF(info);
        Py_XDECREF(name);
        Py_XDECREF(shape);
        Py_XDECREF(bytes);
        return NULL;
    }
    PyStructSequence_SET_ITEM(info, 0, name);
    PyStructSequence_SET_ITEM(info, 1, shape);
    PyStructSequence_SET_ITEM(info, 2, bytes);
    return info;
}
