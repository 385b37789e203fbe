/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of other libraries, by the two protocols they share: __cuda_array_interface__ (Numba, CuPy) and
 * DLPack.
 *
 *   https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
 *   https://dmlc.github.io/dlpack/latest/python_spec.html
 *
 * Order on GPUs: the first names a stream, or says that there is nothing to wait for. By DLPack the producer
 * is told which stream is ours, and makes it wait for what it does: the legacy default stream, on which
 * nothing else of us is.
 */
#include "ext.h"

#include <string.h>

static PyObject *str_cai, *str_dlpack, *str_dlpack_device, *str_stream, *names_stream;

int foreign_setup(void)
{
    str_cai = PyUnicode_InternFromString("__cuda_array_interface__");
    str_dlpack = PyUnicode_InternFromString("__dlpack__");
    str_dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
    str_stream = PyUnicode_InternFromString("stream");
    names_stream = str_stream ? PyTuple_Pack(1, str_stream) : NULL;
    return str_cai && str_dlpack && str_dlpack_device && names_stream ? 0 : -1;
}

/* --- __cuda_array_interface__ ------------------------------------------------------------------- */

/* "<f4": byte order, kind, size. */
static int dtype_of_typestr(PyObject *typestr)
{
    static const struct {
        const char *text;
        int dtype;
    } types[] = {
        {"u1", TARN_U8},  {"u2", TARN_U16}, {"u4", TARN_U32}, {"u8", TARN_U64},   {"i1", TARN_I8},
        {"i2", TARN_I16}, {"i4", TARN_I32}, {"i8", TARN_I64}, {"b1", TARN_BOOL},  {"f2", TARN_F16},
        {"f4", TARN_F32}, {"f8", TARN_F64}, {"c8", TARN_C64}, {"c16", TARN_C128},
    };
    const char *text = typestr && PyUnicode_Check(typestr) ? PyUnicode_AsUTF8(typestr) : NULL;

    for (size_t i = 0; text && i < sizeof types / sizeof types[0]; i++)
        if ((text[0] == '<' || text[0] == '|' || text[0] == '=') && strcmp(text + 1, types[i].text) == 0)
            return types[i].dtype;
    return raise_why(
        TARN_E_UNSUPPORTED, NULL,
        "__cuda_array_interface__: typestr '%s': the store has no such type: give the bytes, as '|u1'",
        text ? text : "?");
}

static int cai_data(struct batch *b, PyObject *data, struct layout *l)
{
    if (!data || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__: data: (address, read-only) is needed");
        return -1;
    }
    l->base = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
    int readonly = PyErr_Occurred() ? -1 : PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (readonly > 0 && b->writable)
        return raise_why(TARN_E_INVALID, NULL,
                         "__cuda_array_interface__: read-only: give one that can be written to");
    return readonly < 0 ? -1 : 0;
}

/* Here strides are bytes. */
static int cai_dims(struct layout *l, PyObject *shape, PyObject *strides)
{
    if (!shape) {
        PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__: no shape");
        return -1;
    }
    if (layout_dims(l, shape, strides) < 0)
        return -1;
    Py_ssize_t itemsize = tarn_dtype_bytes(l->dtype);
    for (int d = 0; strides && strides != Py_None && d < l->ndim; d++)
        l->strides[d] /= itemsize;
    return 0;
}

static int cai_stream(struct batch *b, PyObject *stream, const struct layout *l)
{
    if (!stream || stream == Py_None || l->device == HOST_MEMORY)
        return 0;
    void *handle = PyLong_AsVoidPtr(stream); /* 1 and 2 are CUDA's own names of default streams */
    return PyErr_Occurred() ? -1 : cuda_use(b, l->device, handle);
}

static int from_interface(struct batch *b, PyObject *cai, struct layout *l)
{
    PyObject *mask = PyDict_GetItemString(cai, "mask");
    int dtype = dtype_of_typestr(PyDict_GetItemString(cai, "typestr"));

    if (dtype < 0)
        return -1;
    if (mask && mask != Py_None)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "__cuda_array_interface__: a mask: fill the array first");
    l->dtype = (uint32_t)dtype;
    if (cai_data(b, PyDict_GetItemString(cai, "data"), l) < 0 ||
        cai_dims(l, PyDict_GetItemString(cai, "shape"), PyDict_GetItemString(cai, "strides")) < 0)
        return -1;
    l->device = cuda_device_of(l->base);
    return cai_stream(b, PyDict_GetItemString(cai, "stream"), l);
}

int layout_of_cuda_array(struct batch *b, PyObject *o, struct layout *l)
{
    PyObject *cai = PyObject_GetAttr(o, str_cai);

    if (!cai)
        return -1;
    int rc = -1;
    if (PyDict_Check(cai))
        rc = from_interface(b, cai, l);
    else
        PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__: a dict is needed");
    Py_DECREF(cai);
    return rc < 0 ? -1 : batch_keep(b, o);
}

/* --- DLPack ------------------------------------------------------------------------------------- */

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* elements; NULL: contiguous */
    uint64_t byte_offset;
};

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { LEGACY_STREAM = 1 };

static int dtype_of_dlpack(const struct dl_tensor *t)
{
    static const struct {
        uint8_t code, bits;
        int dtype;
    } types[] = {
        {0, 8, TARN_I8},       {0, 16, TARN_I16},   {0, 32, TARN_I32}, {0, 64, TARN_I64},
        {1, 8, TARN_U8},       {1, 16, TARN_U16},   {1, 32, TARN_U32}, {1, 64, TARN_U64},
        {2, 16, TARN_F16},     {2, 32, TARN_F32},   {2, 64, TARN_F64}, {4, 16, TARN_BF16},
        {5, 64, TARN_C64},     {5, 128, TARN_C128}, {6, 8, TARN_BOOL}, {10, 8, TARN_F8_E4M3},
        {12, 8, TARN_F8_E5M2},
    };

    for (size_t i = 0; t->lanes == 1 && i < sizeof types / sizeof types[0]; i++)
        if (types[i].code == t->code && types[i].bits == t->bits)
            return types[i].dtype;
    return raise_why(
        TARN_E_UNSUPPORTED, NULL,
        "DLPack: elements of type %u, %u bits, %u lanes: the store has no such type: give the bytes", t->code,
        t->bits, t->lanes);
}

static int dlpack_dims(const struct dl_tensor *t, struct layout *l)
{
    if (t->ndim > TARN_DIMS_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "value: %d dimensions: at most %d: reshape it", t->ndim,
                         TARN_DIMS_MAX);
    l->ndim = t->ndim;
    Py_ssize_t itemsize = tarn_dtype_bytes(l->dtype), step = itemsize;
    for (int d = l->ndim - 1; d >= 0; d--) {
        l->shape[d] = (Py_ssize_t)t->shape[d];
        l->strides[d] = t->strides ? itemsize * (Py_ssize_t)t->strides[d] : step;
        step *= l->shape[d];
    }
    return 0;
}

/* (type, id) of the object's device. */
static int dlpack_device(PyObject *o, int *type, int *id)
{
    PyObject *device = PyObject_CallMethodNoArgs(o, str_dlpack_device);

    if (!device)
        return -1;
    int rc = -1;
    if (PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2) {
        *type = (int)PyLong_AsLong(PyTuple_GET_ITEM(device, 0));
        *id = (int)PyLong_AsLong(PyTuple_GET_ITEM(device, 1));
        rc = PyErr_Occurred() ? -1 : 0;
    } else {
        PyErr_SetString(PyExc_TypeError, "__dlpack_device__(): (type, id) is needed");
    }
    Py_DECREF(device);
    if (rc == 0 && *type != DL_CPU && *type != DL_CUDA && *type != DL_CUDA_HOST && *type != DL_CUDA_MANAGED)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "DLPack: device type %d: move it to the CPU or a CUDA GPU",
                         *type);
    return rc;
}

static PyObject *dlpack_capsule(PyObject *o, bool on_gpu)
{
    if (!on_gpu)
        return PyObject_CallMethodNoArgs(o, str_dlpack);
    PyObject *stream = PyLong_FromLong(LEGACY_STREAM);
    if (!stream)
        return NULL;
    PyObject *args[] = {o, stream};
    PyObject *capsule = PyObject_VectorcallMethod(str_dlpack, args, 1, names_stream);
    Py_DECREF(stream);
    return capsule;
}

/* The capsule is looked into and kept, not consumed: it gives its tensor back when it goes with the batch. */
int layout_of_dlpack(struct batch *b, PyObject *o, struct layout *l)
{
    int type, id;

    if (dlpack_device(o, &type, &id) < 0)
        return -1;
    bool on_gpu = type == DL_CUDA || type == DL_CUDA_MANAGED;
    PyObject *capsule = dlpack_capsule(o, on_gpu);
    if (!capsule)
        return -1;
    int rc = batch_keep(b, capsule);
    const struct dl_tensor *t = rc < 0 ? NULL : PyCapsule_GetPointer(capsule, "dltensor");
    Py_DECREF(capsule);
    int dtype = t ? dtype_of_dlpack(t) : -1;
    if (dtype < 0)
        return -1;
    l->dtype = (uint32_t)dtype;
    l->base = t->data ? (char *)t->data + t->byte_offset : NULL;
    l->device = type == DL_CUDA ? id : HOST_MEMORY;
    if (dlpack_dims(t, l) < 0 || batch_keep(b, o) < 0)
        return -1;
    return on_gpu ? cuda_use(b, id, (void *)(uintptr_t)LEGACY_STREAM) : 0;
}
