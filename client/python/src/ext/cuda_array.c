/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of other libraries (Numba, CuPy) by __cuda_array_interface__, which also names the stream in use, or
 * says that no wait is needed.
 *
 * https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
 */
#include "ext.h"

#include <stdio.h>

/* "<f4": byte order, kind, size. */
static int dtype_of_typestr(PyObject *typestr)
{
    const char *text = typestr && PyUnicode_Check(typestr) ? PyUnicode_AsUTF8(typestr) : NULL;
    unsigned bytes;
    int end = 0, dtype = -1;
    char kind;

    if (text && sscanf(text, "%*1[<|=]%c%2u%n", &kind, &bytes, &end) == 2 && !text[end])
        dtype = dtype_of_kind(kind, bytes);
    if (dtype >= 0)
        return dtype;
    return raise_why(
        TARN_E_UNSUPPORTED, NULL,
        "__cuda_array_interface__: typestr '%s': the store has no such type: give the bytes, as '|u1'",
        text ? text : "?");
}

static int cai_data(struct batch *b, PyObject *data, struct array *l)
{
    if (!data || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2)
        return raise_type("__cuda_array_interface__: data", data ? data : Py_None, "(address, read-only)");
    l->base = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
    int readonly = PyErr_Occurred() ? -1 : PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (readonly > 0 && b->writable)
        return raise_why(TARN_E_INVALID, NULL,
                         "__cuda_array_interface__: read-only: give one that can be written to");
    return readonly < 0 ? -1 : 0;
}

/* Its strides are in bytes. */
static int cai_dims(struct array *l, PyObject *shape, PyObject *strides)
{
    if (!shape)
        return raise_type("__cuda_array_interface__: shape", Py_None, "a tuple");
    if (array_dims(l, shape, strides) < 0)
        return -1;
    Py_ssize_t itemsize = tarn_dtype_bytes(l->dtype);
    for (int d = 0; strides && strides != Py_None && d < l->ndim; d++)
        l->strides[d] /= itemsize;
    return 0;
}

static int cai_stream(struct batch *b, PyObject *stream, const struct array *l)
{
    if (!stream || stream == Py_None || l->device == HOST_MEMORY)
        return 0;
    void *handle = PyLong_AsVoidPtr(stream); /* 1 and 2 are CUDA's own names of default streams */
    return PyErr_Occurred() ? -1 : cuda_use(b, l->device, handle);
}

static int from_interface(struct batch *b, PyObject *cai, struct array *l)
{
    PyObject *mask = PyDict_GetItemString(cai, "mask");
    int dtype = dtype_of_typestr(PyDict_GetItemString(cai, "typestr"));

    if (dtype < 0)
        return -1;
    if (mask && mask != Py_None)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "__cuda_array_interface__: a masked array: fill it first");
    l->dtype = (uint32_t)dtype;
    if (cai_data(b, PyDict_GetItemString(cai, "data"), l) < 0 ||
        cai_dims(l, PyDict_GetItemString(cai, "shape"), PyDict_GetItemString(cai, "strides")) < 0)
        return -1;
    l->device = cuda_device_of(b, l->base);
    return cai_stream(b, PyDict_GetItemString(cai, "stream"), l);
}

int array_of_cuda_array(struct batch *b, PyObject *o, struct array *l)
{
    PyObject *cai = PyObject_GetAttrString(o, "__cuda_array_interface__");

    if (!cai)
        return -1;
    int rc = -1;
    if (PyDict_Check(cai))
        rc = from_interface(b, cai, l);
    else
        raise_type("__cuda_array_interface__", cai, "a dict");
    Py_DECREF(cai);
    return rc < 0 ? -1 : batch_keep(b, o);
}
