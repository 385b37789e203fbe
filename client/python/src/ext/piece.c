/* SPDX-License-Identifier: Apache-2.0 */
/* Piece: raw memory by its address. */
#include "ext.h"

#include <structmember.h>

struct piece {
    PyObject_HEAD uint64_t addr, nbytes, stride, count;
    PyObject *device, *stream, *keep;
};

static bool is_host(PyObject *device)
{
    int overflow = 0;

    return PyLong_Check(device) && PyLong_AsLongAndOverflow(device, &overflow) == HOST_MEMORY && !overflow;
}

static int piece_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"addr", "nbytes", "stride", "count", "device", "stream", "keep", NULL};
    struct piece *p = (struct piece *)self;
    PyObject *device = Py_None, *stream = Py_None, *keep = Py_None, *number[4] = {NULL};
    uint64_t *out[] = {&p->addr, &p->nbytes, &p->stride, &p->count}, handle;
    uint32_t unused;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OO$OOO:Piece", names, &number[0], &number[1],
                                     &number[2], &number[3], &device, &stream, &keep))
        return -1;
    p->count = 1;
    for (int i = 0; i < 4; i++)
        if (args_u64(number[i], names[i], out[i]) < 0)
            return -1;
    if ((!is_host(device) && args_number(device, "device", 0, INT32_MAX, &unused) < 0) ||
        args_u64(stream, "stream", &handle) < 0)
        return -1;
    if (p->count < 1 || (p->stride != 0 && p->stride < p->nbytes) ||
        (p->nbytes > 0 && p->count > (1ull << 62) / p->nbytes))
        return raise_why(TARN_E_INVALID, NULL,
                         "Piece: %llu runs of %llu bytes, %llu apart: give at least one, and their length or "
                         "more as stride",
                         (unsigned long long)p->count, (unsigned long long)p->nbytes,
                         (unsigned long long)p->stride);
    Py_INCREF(device);
    Py_XSETREF(p->device, device);
    Py_INCREF(stream);
    Py_XSETREF(p->stream, stream);
    Py_INCREF(keep);
    Py_XSETREF(p->keep, keep);
    return 0;
}

static int piece_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct piece *p = (struct piece *)self;

    Py_VISIT(p->device);
    Py_VISIT(p->stream);
    Py_VISIT(p->keep);
    return 0;
}

static int piece_clear(PyObject *self)
{
    struct piece *p = (struct piece *)self;

    Py_CLEAR(p->device);
    Py_CLEAR(p->stream);
    Py_CLEAR(p->keep);
    return 0;
}

static void piece_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    piece_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef members[] = {
    {"addr", T_ULONGLONG, offsetof(struct piece, addr), READONLY, "address of the first run"},
    {"nbytes", T_ULONGLONG, offsetof(struct piece, nbytes), READONLY, "bytes of a run"},
    {"stride", T_ULONGLONG, offsetof(struct piece, stride), READONLY,
     "bytes from a run to the next; 0: nbytes"},
    {"count", T_ULONGLONG, offsetof(struct piece, count), READONLY, "how many runs"},
    {"device", T_OBJECT, offsetof(struct piece, device), READONLY,
     "GPU, an int; -1: the host; None: CUDA is asked"},
    {"stream", T_OBJECT, offsetof(struct piece, stream), READONLY,
     "cudaStream_t, an int, to wait for; None: none"},
    {"keep", T_OBJECT, offsetof(struct piece, keep), READONLY, "an object kept alive as long as the piece"},
    {0},
};

PyTypeObject piece_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Piece",
    .tp_doc = "Piece(addr, nbytes, stride=0, count=1, *, device=None, stream=None, keep=None)\n--\n\n"
              "Raw memory: `count` runs of `nbytes` bytes, `stride` bytes apart, from address `addr`; of the "
              "host or\n"
              "of a GPU. Nothing checks the address: memory that is not there ends the process.",
    .tp_basicsize = sizeof(struct piece),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = piece_init,
    .tp_dealloc = piece_dealloc,
    .tp_traverse = piece_traverse,
    .tp_clear = piece_clear,
    .tp_members = members,
};

static int device_of(struct batch *b, const struct piece *p, int *device)
{
    if (p->device && p->device != Py_None) {
        *device = (int)PyLong_AsLong(p->device);
        return *device == HOST_MEMORY || cuda_is_used()
                   ? 0
                   : raise_why(TARN_E_INVALID, NULL,
                               "Piece: device %d: this process uses no GPU: give device=None for the "
                               "host's memory",
                               *device);
    }
    *device = cuda_device_of(b, (const void *)(uintptr_t)p->addr);
    return 0;
}

int value_of_piece(struct batch *b, PyObject *o, struct value *v)
{
    const struct piece *p = (const struct piece *)o;

    if (device_of(b, p, &v->device) < 0)
        return -1;
    v->tensor = tarn_bytes(p->nbytes * p->count);
    v->one = (struct tarn_piece){(void *)(uintptr_t)p->addr, p->nbytes, p->stride, p->count};
    v->pieces = &v->one;
    v->npieces = v->tensor.bytes > 0;
    v->raw = true;
    if (v->npieces && !p->addr)
        return raise_why(TARN_E_INVALID, NULL,
                         "Piece: address 0 is no memory: give the address of the first byte");
    if (p->stream && p->stream != Py_None && v->device != HOST_MEMORY) {
        void *stream = PyLong_AsVoidPtr(p->stream);
        if (PyErr_Occurred() || cuda_use(b, v->device, stream) < 0)
            return -1;
    }
    return batch_keep(b, o);
}
