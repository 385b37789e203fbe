/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of other libraries by DLPack, in two ways:
 *   __dlpack__()      a capsule. On a GPU the producer is told which stream is ours, and makes it wait for
 *                     what it does: the legacy default stream, on which nothing else of us is; none
 *                     if the values are used on a stream of the caller's.
 *   the exchange API  a table of C functions that a type may have, which fill in the same struct without a
 *                     Python object. It tells the framework's current stream.
 *
 *   https://dmlc.github.io/dlpack/latest/python_spec.html
 */
#include "dlpack.h"
#include "ext.h"

static PyObject *str_dlpack, *str_dlpack_device, *names_stream;

int dlpack_setup(void)
{
    str_dlpack = PyUnicode_InternFromString("__dlpack__");
    str_dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
    names_stream = Py_BuildValue("(s)", "stream");
    return str_dlpack && str_dlpack_device && names_stream ? 0 : -1;
}

enum { LEGACY_STREAM = 1, NO_STREAM = -1 };

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
    return raise_why(TARN_E_UNSUPPORTED, NULL,
                     "DLPack: elements of type %u, %u bits, %u lanes: the store has no such type: give the "
                     "bytes, as an array of uint8",
                     t->code, t->bits, t->lanes);
}

static int dlpack_dims(const struct dl_tensor *t, struct array *l)
{
    if (t->ndim > TARN_DIMS_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "value: %d dimensions, %d are possible: reshape it",
                         t->ndim, TARN_DIMS_MAX);
    l->ndim = t->ndim;
    Py_ssize_t step = tarn_dtype_bytes(l->dtype);
    int rc = 0;
    for (int d = l->ndim - 1; d >= 0 && rc == 0; d--)
        rc = array_dim(l, d, (Py_ssize_t)t->shape[d], t->strides ? (Py_ssize_t)t->strides[d] : 0, !t->strides,
                       &step);
    return rc;
}

static int array_from_dlpack(const struct dl_tensor *t, struct array *l)
{
    if (t->device_type != DL_CPU && t->device_type != DL_CUDA && t->device_type != DL_CUDA_HOST &&
        t->device_type != DL_CUDA_MANAGED)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "DLPack: device type %d: move it to the CPU or a CUDA GPU",
                         t->device_type);
    int dtype = dtype_of_dlpack(t);
    if (dtype < 0)
        return -1;
    l->dtype = (uint32_t)dtype;
    l->base = t->data ? (char *)t->data + t->byte_offset : NULL;
    l->device = t->device_type == DL_CUDA ? t->device_id : HOST_MEMORY;
    return dlpack_dims(t, l);
}

/* --- __dlpack__() ------------------------------------------------------------------------------- */

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
        raise_type("__dlpack_device__()", device, "(type, id)");
    }
    Py_DECREF(device);
    return rc;
}

static PyObject *dlpack_capsule(const struct batch *b, PyObject *o, bool on_gpu)
{
    if (!on_gpu)
        return PyObject_CallMethodNoArgs(o, str_dlpack);
    PyObject *stream = PyLong_FromLong(b->on_stream ? NO_STREAM : LEGACY_STREAM);
    if (!stream)
        return NULL;
    PyObject *args[] = {o, stream};
    PyObject *capsule = PyObject_VectorcallMethod(str_dlpack, args, 1, names_stream);
    Py_DECREF(stream);
    return capsule;
}

/* The capsule is inspected and kept, not consumed. It releases its tensor when the batch is freed. */
int array_of_dlpack(struct batch *b, PyObject *o, struct array *l)
{
    int type = DL_CPU, id = 0;

    if (dlpack_device(o, &type, &id) < 0)
        return -1;
    bool on_gpu = type == DL_CUDA || type == DL_CUDA_MANAGED;
    PyObject *capsule = dlpack_capsule(b, o, on_gpu);
    if (!capsule)
        return -1;
    int rc = PyCapsule_IsValid(capsule, "dltensor")
                 ? batch_keep(b, capsule)
                 : raise_type("__dlpack__()", capsule, "a capsule of name dltensor");
    const struct dl_tensor *t = rc < 0 ? NULL : PyCapsule_GetPointer(capsule, "dltensor");
    Py_DECREF(capsule);
    if (!t || array_from_dlpack(t, l) < 0 || batch_keep(b, o) < 0)
        return -1;
    return on_gpu ? cuda_use(b, id, (void *)(uintptr_t)LEGACY_STREAM) : 0;
}

/* --- the exchange API --------------------------------------------------------------------------- */

struct dlpack_api {
    uint32_t major, minor;
    struct dlpack_api *older;
    int (*allocate)(void);
    int (*managed_of_object)(void);
    int (*object_of_managed)(void);
    int (*tensor_of_object)(void *object, struct dl_tensor *out); /* may be NULL */
    int (*current_stream)(int device_type, int32_t device_id, void **stream);
};

enum { API_MAJOR = 1 };

const struct dlpack_api *dlpack_api_of(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const struct dlpack_api *api = NULL;

    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule); /* the table lives as long as the process */
    while (api && api->major > API_MAJOR)
        api = api->older;
    return api && api->major == API_MAJOR && api->tensor_of_object && api->current_stream ? api : NULL;
}

/* A batch is nearly always of one device, so its stream is asked for once. */
static int use_current_stream(struct batch *b, const struct dlpack_api *api, int device)
{
    void *stream;

    if (cuda_asked(b, device))
        return 0;
    return api->current_stream(DL_CUDA, device, &stream) != 0 ? -1 : cuda_use(b, device, stream);
}

int array_of_dlpack_api(struct batch *b, PyObject *o, const struct dlpack_api *api, struct array *l)
{
    struct dl_tensor t;

    if (api->tensor_of_object(o, &t) != 0 || array_from_dlpack(&t, l) < 0)
        return -1;
    if (t.device_type == DL_CUDA && use_current_stream(b, api, t.device_id) < 0)
        return -1;
    return batch_keep(b, o);
}
