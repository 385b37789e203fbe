/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's tensors, by their methods: torch is neither needed for building nor imported. Tensors on a GPU are
 * used in the order of torch's current stream there.
 *
 * requires_grad is ignored: bytes are moved without telling autograd (like .data).
 */
#include "ext.h"

static PyObject *str_dtype, *str_data_ptr, *str_shape, *str_stride, *str_is_contiguous, *str_is_cpu,
    *str_device, *str_get_device, *str_is_conj, *str_is_neg;

int torch_setup(void)
{
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&str_dtype, "dtype"},   {&str_data_ptr, "data_ptr"},           {&str_shape, "shape"},
        {&str_stride, "stride"}, {&str_is_contiguous, "is_contiguous"}, {&str_is_cpu, "is_cpu"},
        {&str_device, "device"}, {&str_get_device, "get_device"},       {&str_is_conj, "is_conj"},
        {&str_is_neg, "is_neg"},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text)))
            return -1;
    return 0;
}

/* The truth of a method's result or an attribute; -1 with an exception. Takes the reference. */
static int truth(PyObject *o)
{
    int yes = o ? PyObject_IsTrue(o) : -1;

    Py_XDECREF(o);
    return yes;
}

/* torch raises this if a tensor has no memory of its own (sparse, fake, meta). */
static int refuse_kind(PyObject *o)
{
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
        return -1;
    PyObject *text = take_exception();
    const char *why = text ? PyUnicode_AsUTF8(text) : NULL;
    raise_why(TARN_E_UNSUPPORTED, NULL,
              "value: a tensor without memory of its own (%.200s): give a dense one",
              why ? why : Py_TYPE(o)->tp_name);
    Py_XDECREF(text);
    return -1;
}

static int dtype_of_tensor(PyObject *o)
{
    PyObject *dtype = PyObject_GetAttr(o, str_dtype);
    int code = dtype ? dtype_of_object(dtype) : -1;

    Py_XDECREF(dtype);
    return code;
}

/* torch may defer a conjugation or sign; then memory holds other values. And DLPack represents its types
 * below 8 bits as 8-bit ones. */
int torch_check_lazy(PyObject *o, uint32_t dtype)
{
    static const uint32_t may =
        1u << TARN_F16 | 1u << TARN_F32 | 1u << TARN_F64 | 1u << TARN_C64 | 1u << TARN_C128;
    bool is_complex = dtype == TARN_C64 || dtype == TARN_C128;

    if (dtype == TARN_I8 || dtype == TARN_U8)
        return dtype_of_tensor(o) < 0 ? -1 : 0;
    if (!(may & 1u << dtype))
        return 0;
    int conj = is_complex ? truth(PyObject_CallMethodNoArgs(o, str_is_conj)) : 0;
    int neg = conj < 0 ? -1 : truth(PyObject_CallMethodNoArgs(o, str_is_neg));
    if (conj < 0 || neg < 0)
        return -1;
    if (conj || neg)
        return raise_why(
            TARN_E_UNSUPPORTED, NULL,
            "value: a conjugated or negated view of a tensor: give what .resolve_conj().resolve_neg() "
            "returns");
    return 0;
}

/* --- on a GPU ----------------------------------------------------------------------------------- */

/* Borrowed; NULL: it is not loaded. */
static PyObject *torch_module(void)
{
    PyObject *modules = PyImport_GetModuleDict();

    return modules ? PyDict_GetItemString(modules, "torch") : NULL;
}

bool torch_is_loaded(void)
{
    return torch_module() != NULL;
}

/* torch's current stream of a device, as an int; new reference: by a function of its C part, else the public
 * way. */
static PyObject *current_stream(int device)
{
    PyObject *torch = torch_module();

    if (!torch) {
        PyErr_SetString(PyExc_RuntimeError, "tarn: a CUDA tensor without a loaded module torch");
        return NULL;
    }
    PyObject *c = PyObject_GetAttrString(torch, "_C");
    PyObject *raw = c ? PyObject_CallMethod(c, "_cuda_getCurrentRawStream", "i", device) : NULL;
    Py_XDECREF(c);
    if (raw || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return raw;
    PyErr_Clear();
    PyObject *cuda = PyObject_GetAttrString(torch, "cuda");
    PyObject *stream = cuda ? PyObject_CallMethod(cuda, "current_stream", "i", device) : NULL;
    PyObject *handle = stream ? PyObject_GetAttrString(stream, "cuda_stream") : NULL;
    Py_XDECREF(cuda);
    Py_XDECREF(stream);
    return handle;
}

int stream_of(PyObject *o, int device, void **stream)
{
    static const char needed[] = "a torch.cuda.Stream, or a cudaStream_t as int";

    if (o && o != Py_None)
        return args_handle(o, "stream", "cuda_stream", needed, stream);
    PyObject *handle = current_stream(device);
    int rc = handle ? args_handle(handle, "stream", "cuda_stream", needed, stream) : -1;
    Py_XDECREF(handle);
    return rc;
}

static int use_current_stream(struct batch *b, int device)
{
    void *stream;

    if (cuda_asked(b, device))
        return 0;
    return stream_of(NULL, device, &stream) < 0 ? -1 : cuda_use(b, device, stream);
}

PyObject *torch_new_int32(PyObject *like, uint32_t n)
{
    PyObject *torch = torch_module(), *method, *made = NULL;

    if (!torch || !PyObject_HasAttrString(like, "new_empty")) {
        raise_code(TARN_E_INVALID, NULL,
                   "gather: status: none, and out is no torch tensor: give an array of int32");
        return NULL;
    }
    PyObject *dtype = PyObject_GetAttrString(torch, "int32");
    PyObject *args = Py_BuildValue("((k))", (unsigned long)n);
    PyObject *kwargs = dtype ? Py_BuildValue("{sO}", "dtype", dtype) : NULL;
    method = kwargs && args ? PyObject_GetAttrString(like, "new_empty") : NULL;
    if (method)
        made = PyObject_Call(method, args, kwargs);
    Py_XDECREF(method);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(dtype);
    return made;
}

/* For memory off the host: CUDA's, else refused. */
static int device_of(struct batch *b, PyObject *o, struct array *l)
{
    PyObject *device = PyObject_GetAttr(o, str_device);
    PyObject *type = device ? PyObject_GetAttrString(device, "type") : NULL;
    const char *text = type ? PyUnicode_AsUTF8(type) : NULL;
    PyObject *index = NULL;
    int rc = -1;

    if (!text)
        goto out;
    if (strcmp(text, "cuda") != 0) {
        raise_why(TARN_E_UNSUPPORTED, NULL,
                  "value: a tensor on device '%s': move it to the CPU or a CUDA GPU first", text);
        goto out;
    }
    if (!(index = PyObject_CallMethodNoArgs(o, str_get_device)))
        goto out;
    l->device = (int)PyLong_AsLong(index);
    rc = PyErr_Occurred() ? -1 : use_current_stream(b, l->device);
out:
    Py_XDECREF(index);
    Py_XDECREF(type);
    Py_XDECREF(device);
    return rc;
}

/* --- all ---------------------------------------------------------------------------------------- */

static int dims_of_tensor(PyObject *o, struct array *l)
{
    PyObject *shape = PyObject_GetAttr(o, str_shape), *strides = NULL;
    int dense = shape ? truth(PyObject_CallMethodNoArgs(o, str_is_contiguous)) : -1;

    if (dense == 0 && !(strides = PyObject_CallMethodNoArgs(o, str_stride)))
        dense = -1;
    int rc = dense < 0 ? -1 : array_dims(l, shape, strides);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return rc;
}

int array_of_torch(struct batch *b, PyObject *o, struct array *l)
{
    int dtype = dtype_of_tensor(o);

    if (dtype < 0)
        return -1;
    l->dtype = (uint32_t)dtype;
    l->device = HOST_MEMORY;
    int host = truth(PyObject_GetAttr(o, str_is_cpu));
    if (host < 0 || (!host && device_of(b, o, l) < 0) || torch_check_lazy(o, l->dtype) < 0)
        return -1;
    PyObject *at = dims_of_tensor(o, l) < 0 ? NULL : PyObject_CallMethodNoArgs(o, str_data_ptr);
    if (!at)
        return refuse_kind(o);
    l->base = PyLong_AsVoidPtr(at);
    Py_DECREF(at);
    return PyErr_Occurred() ? -1 : batch_keep(b, o);
}
