/* SPDX-License-Identifier: Apache-2.0 */
/* WindowMemory: memory that peers of this host reach by mapping it, as a buffer. */
#include "ext.h"

#include <structmember.h>

struct window_memory {
    PyObject_HEAD void *addr;
    Py_ssize_t nbytes;
    unsigned generation; /* value of fork_generation() when it was made */
};

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nbytes", "huge", NULL};
    PyObject *count, *huge = NULL;
    uint64_t nbytes = 0;
    uint32_t flags = 0;
    int rc;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:WindowMemory", names, &count, &huge) ||
        args_u64(count, "nbytes", &nbytes) < 0 || args_flag(huge, "huge", TARN_WINDOW_HUGE, &flags) < 0)
        return NULL;
    struct window_memory *m = (struct window_memory *)type->tp_alloc(type, 0);
    if (!m)
        return NULL;
    m->generation = fork_generation();
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_window_alloc(nbytes, flags, &m->addr);
    Py_END_ALLOW_THREADS
    if (raise_call(rc, NULL) < 0) {
        Py_DECREF(m);
        return NULL;
    }
    m->nbytes = (Py_ssize_t)nbytes;
    return (PyObject *)m;
}

/* A child process leaves it to the parent. */
static void memory_dealloc(PyObject *self)
{
    struct window_memory *m = (struct window_memory *)self;

    if (m->generation == fork_generation()) {
        Py_BEGIN_ALLOW_THREADS
        tarn_window_free(m->addr); /* many pages take a while */
        Py_END_ALLOW_THREADS
    }
    Py_TYPE(self)->tp_free(self);
}

static int get_buffer(PyObject *self, Py_buffer *out, int flags)
{
    struct window_memory *m = (struct window_memory *)self;

    return PyBuffer_FillInfo(out, self, m->addr, m->nbytes, 0, flags);
}

static Py_ssize_t memory_len(PyObject *self)
{
    return ((struct window_memory *)self)->nbytes;
}

static PyMemberDef members[] = {
    {"nbytes", T_PYSSIZET, offsetof(struct window_memory, nbytes), READONLY, "bytes"},
    {0},
};

static PyBufferProcs as_buffer = {.bf_getbuffer = get_buffer};

static PySequenceMethods as_sequence = {.sq_length = memory_len};

PyTypeObject window_memory_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.WindowMemory",
    .tp_doc =
        "WindowMemory(nbytes, *, huge=False)\n--\n\n"
        "Zeroed memory for windows that peers of this host reach by mapping it; they read and write other "
        "host\n"
        "memory by tcp. It is a buffer: numpy.frombuffer(memory, dtype) and torch.frombuffer() make arrays "
        "over it,\n"
        "which keep it. `huge`: in huge pages of 2 MiB, which the system must have reserved.\n\n"
        "Raises Invalid, SystemFailure, NoMemory.",
    .tp_basicsize = sizeof(struct window_memory),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = memory_new,
    .tp_dealloc = memory_dealloc,
    .tp_as_buffer = &as_buffer,
    .tp_as_sequence = &as_sequence,
    .tp_members = members,
};
