/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Python object as tensor and pieces. The kind of object depends only on its type and is remembered. An
 * array of any kind first becomes a struct array (array.c). A list is its elements, one after the other.
 */
#include "ext.h"

#include <string.h>

#define TYPES_MAX 32

enum kind {
    KIND_OTHER,
    KIND_LIST,
    KIND_PIECE,
    KIND_PAGES,
    KIND_NUMPY,
    KIND_MASKED,
    KIND_TORCH,
    KIND_BUFFER,
    KIND_CUDA_ARRAY,
    KIND_DLPACK
};

static struct type_info {
    PyTypeObject *type;
    enum kind kind;
    const struct dlpack_api *api; /* of KIND_TORCH and KIND_DLPACK; NULL: none */
} seen[TYPES_MAX];
static unsigned nseen;

static PyObject *dtype_attr;

/* --- kinds -------------------------------------------------------------------------------------- */

/* Is it a class of a loaded module? None is imported. */
static bool is_of(PyTypeObject *type, const char *module, const char *class)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *m = modules ? PyDict_GetItemString(modules, module) : NULL;
    PyObject *base = m ? PyObject_GetAttrString(m, class) : NULL;
    bool yes = base && PyType_Check(base) && PyType_IsSubtype(type, (PyTypeObject *)base);

    PyErr_Clear();
    Py_XDECREF(base);
    return yes;
}

static bool has(PyTypeObject *type, const char *name)
{
    return PyObject_HasAttrString((PyObject *)type, name);
}

static enum kind find_kind(PyTypeObject *type)
{
    if (PyType_IsSubtype(type, &piece_type))
        return KIND_PIECE;
    if (PyType_IsSubtype(type, &pages_type))
        return KIND_PAGES;
    if (PyType_IsSubtype(type, &PyList_Type) || PyType_IsSubtype(type, &PyTuple_Type))
        return KIND_LIST;
    if (is_of(type, "numpy.ma", "MaskedArray"))
        return KIND_MASKED;
    if (is_of(type, "numpy", "ndarray"))
        return KIND_NUMPY;
    if (has(type, "data_ptr") && has(type, "is_contiguous"))
        return KIND_TORCH;
    if (type->tp_as_buffer && type->tp_as_buffer->bf_getbuffer)
        return KIND_BUFFER;
    if (has(type, "__cuda_array_interface__"))
        return KIND_CUDA_ARRAY;
    if (has(type, "__dlpack__"))
        return KIND_DLPACK;
    return KIND_OTHER;
}

static struct type_info info_of(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);

    for (unsigned i = 0; i < nseen; i++)
        if (seen[i].type == type)
            return seen[i];
    struct type_info info = {type, find_kind(type), NULL};
    if (info.kind == KIND_TORCH || info.kind == KIND_DLPACK)
        info.api = dlpack_api_of(type);
    if (info.kind != KIND_OTHER && nseen < TYPES_MAX) {
        Py_INCREF(type);
        seen[nseen++] = info;
    }
    return info;
}

/* --- arrays ------------------------------------------------------------------------------------- */

static int array_from_view(const Py_buffer *view, int dtype, struct array *l)
{
    if (dtype < 0)
        return -1;
    if (view->ndim > TARN_DIMS_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "value: %d dimensions, %d are possible: reshape it",
                         view->ndim, TARN_DIMS_MAX);
    l->base = view->buf;
    l->device = HOST_MEMORY;
    l->dtype = (uint32_t)dtype;
    l->ndim = view->ndim;
    Py_ssize_t dense = view->itemsize;
    for (int d = view->ndim - 1; d >= 0; d--) {
        l->shape[d] = view->shape[d];
        l->strides[d] = view->strides ? view->strides[d] : dense; /* ctypes gives none */
        dense *= view->shape[d];
    }
    return 0;
}

/* Turns the exporter's message into the exception for a wrong request. */
static int refuse_buffer(const struct batch *b)
{
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError))
        return -1;
    PyObject *text = take_exception();
    const char *why = text ? PyUnicode_AsUTF8(text) : NULL;
    size_t length = why ? strlen(why) : 0;
    if (length > 0 && why[length - 1] == '.') /* the sentence continues */
        length--;
    raise_why(TARN_E_INVALID, NULL, "value: %.*s: give one %s", (int)length, why ? why : "",
              b->writable ? "that can be written to and is made of plain elements" : "of plain elements");
    Py_XDECREF(text);
    return -1;
}

/* NumPy exports ml_dtypes' types without a buffer format, so the array is asked. Its memory stays while it
 * is referenced, so the buffer can be released at once. */
static int array_of_numpy(struct batch *b, PyObject *o, struct array *l)
{
    Py_buffer view;
    PyObject *dtype = PyObject_GetAttr(o, dtype_attr);

    if (!dtype)
        return -1;
    int code = dtype_of_object(dtype);
    Py_DECREF(dtype);
    if (code < 0)
        return -1;
    if (PyObject_GetBuffer(o, &view, b->writable ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES) < 0)
        return refuse_buffer(b);
    int rc = array_from_view(&view, code, l);
    PyBuffer_Release(&view);
    return rc < 0 ? -1 : batch_keep(b, o);
}

static int array_of_buffer(struct batch *b, PyObject *o, struct array *l)
{
    int flags = PyBUF_STRIDES | PyBUF_FORMAT | (b->writable ? PyBUF_WRITABLE : 0);
    Py_buffer *view = batch_buffer(b, o, flags);

    if (!view)
        return refuse_buffer(b);
    return array_from_view(view, dtype_of_format(view->format, view->itemsize), l);
}

/* If the fast path refuses an object, the other path may explain why, or accept it. */
static int array_of_tensor(struct batch *b, PyObject *o, const struct dlpack_api *api, struct array *l)
{
    if (api && array_of_dlpack_api(b, o, api, l) == 0)
        return torch_check_lazy(o, l->dtype);
    if (api)
        PyErr_Clear();
    return array_of_torch(b, o, l);
}

static int refuse_type(const struct batch *b, PyObject *o)
{
    if (b->writable)
        return raise_type("value", o,
                          "memory to write to, as a bytearray, an array, a tensor or a tarn.Piece");
    if (PyUnicode_Check(o))
        return raise_type("value", o, "its bytes, value.encode()");
    if (PyNumber_Check(o) && !PyObject_HasAttrString(o, "__array__"))
        return raise_type("value", o, "an array, as numpy.array(value)");
    if (is_mapping(o))
        return raise_type("value", o, "each of its values a key, by put_many(value)");
    return raise_type("value", o, "a buffer, an array, a tensor, a tarn.Piece or a list of these");
}

static int array_by(struct type_info info, struct batch *b, PyObject *o, struct array *l)
{
    switch (info.kind) {
    case KIND_NUMPY:
        return array_of_numpy(b, o, l);
    case KIND_BUFFER:
        return array_of_buffer(b, o, l);
    case KIND_TORCH:
        return array_of_tensor(b, o, info.api, l);
    case KIND_CUDA_ARRAY:
        return array_of_cuda_array(b, o, l);
    case KIND_DLPACK:
        return info.api ? array_of_dlpack_api(b, o, info.api, l) : array_of_dlpack(b, o, l);
    case KIND_MASKED:
        return raise_why(TARN_E_UNSUPPORTED, NULL, "value: a masked array: the store keeps no mask: give %s",
                         b->writable ? "value.data, and get the mask by a key of its own"
                                     : "value.filled(), and put value.mask under a key of its own");
    default:
        return refuse_type(b, o);
    }
}

int array_of(struct batch *b, PyObject *o, struct array *l)
{
    return array_by(info_of(o), b, o, l);
}

/* --- lists -------------------------------------------------------------------------------------- */

/* libtarn assumes that all pieces are like the first. */
static int check_devices(const struct value *parts, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (parts[i].device != parts[0].device)
            return raise_why(
                TARN_E_INVALID, NULL,
                "value: parts of a list lie on devices %d and %d (-1: the host): give parts that lie on one",
                parts[0].device, parts[i].device);
    return 0;
}

/* All pieces of the parts, in order, as bytes: together they have no shape. */
static int join(struct batch *b, const struct value *parts, size_t n, struct value *v)
{
    uint64_t bytes = 0;
    size_t npieces = 0, k = 0;

    for (size_t i = 0; i < n; i++) {
        bytes += parts[i].tensor.bytes;
        npieces += parts[i].npieces;
    }
    if (check_devices(parts, n) < 0)
        return -1;
    if (npieces > UINT32_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL,
                         "value: a list of %zu pieces: make its parts contiguous first", npieces);
    struct tarn_piece *pieces = arena_alloc(&b->arena, (npieces ? npieces : 1) * sizeof *pieces);
    if (!pieces)
        return -1;
    for (size_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < parts[i].npieces; p++)
            pieces[k++] = parts[i].pieces[p];
    v->tensor = tarn_bytes(bytes);
    v->pieces = pieces;
    v->npieces = (uint32_t)npieces;
    v->raw = true;
    v->device = n > 0 ? parts[0].device : HOST_MEMORY;
    return 0;
}

static int part_of(struct batch *b, PyObject *o, struct value *v)
{
    bool pages = b->takes_pages;

    b->takes_pages = false;
    int rc = value_of(b, o, v);
    b->takes_pages = pages;
    return rc;
}

static int value_of_list(struct batch *b, PyObject *o, struct value *v)
{
    PyObject *list = PySequence_Tuple(o); /* our own, since another thread may change a list */

    if (!list)
        return -1;
    int rc = batch_keep(b, list);
    Py_DECREF(list);
    if (rc < 0)
        return -1;
    size_t n = (size_t)PyTuple_GET_SIZE(list);
    struct value *parts = arena_alloc(&b->arena, (n ? n : 1) * sizeof *parts);
    if (!parts || Py_EnterRecursiveCall(" in a list of values"))
        return -1;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = part_of(b, PyTuple_GET_ITEM(list, (Py_ssize_t)i), &parts[i]);
    Py_LeaveRecursiveCall();
    return rc < 0 ? -1 : join(b, parts, n, v);
}

int value_of(struct batch *b, PyObject *o, struct value *v)
{
    struct array l;

    struct type_info info = info_of(o);
    v->layout = NULL;
    if (info.kind == KIND_PAGES)
        return value_of_pages(b, o, v);
    if (info.kind == KIND_LIST)
        return value_of_list(b, o, v);
    if (info.kind == KIND_PIECE)
        return value_of_piece(b, o, v);
    return array_by(info, b, o, &l) < 0 ? -1 : array_pieces(b, &l, 0, 0, v);
}

int value_setup(void)
{
    dtype_attr = PyUnicode_InternFromString("dtype");
    return dtype_attr ? 0 : -1;
}

/* --- tensors ------------------------------------------------------------------------------------ */

bool tensor_equal(const struct tarn_tensor *a, const struct tarn_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && a->bytes == b->bytes &&
           memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

int tensor_set_shape(struct tarn_tensor *t, PyObject *shape)
{
    static const char needed[] = "the length of each dimension, as (2, 3)";
    PyObject *dims = args_list(shape, "shape", needed);

    if (!dims)
        return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(dims);
    int rc = n <= TARN_DIMS_MAX ? 0
                                : raise_why(TARN_E_INVALID, NULL, "shape: %zd dimensions: give at most %d", n,
                                            TARN_DIMS_MAX);
    for (Py_ssize_t d = 0; rc == 0 && d < n; d++) {
        PyObject *length = PySequence_Fast_GET_ITEM(dims, d);
        rc = PyIndex_Check(length) ? args_u64(length, "shape", &t->shape[d])
                                   : raise_type("shape: a length", length, "a whole number");
    }
    t->ndim = (uint32_t)n;
    Py_DECREF(dims);
    return rc;
}

int value_declare(struct value *v, PyObject *dtype, PyObject *shape)
{
    struct tarn_tensor t = v->tensor;
    bool has_dtype = dtype && dtype != Py_None, has_shape = shape && shape != Py_None;

    if (!has_dtype && !has_shape)
        return 0;
    if (has_dtype) {
        int code = dtype_of_object(dtype);
        if (code < 0)
            return -1;
        t.dtype = (uint32_t)code;
    }
    if (has_shape && tensor_set_shape(&t, shape) < 0)
        return -1;
    if (!has_shape) {
        uint64_t before = tarn_dtype_bytes(v->tensor.dtype), now = tarn_dtype_bytes(t.dtype);
        if (t.ndim > 0)
            t.shape[t.ndim - 1] = t.shape[t.ndim - 1] * before / now;
    }
    if (raise_call(tarn_tensor_check(&t), NULL) < 0)
        return -1;
    v->tensor = t;
    return 0;
}
