/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: an object's bytes where they lie, in a pool on this host or on a GPU of it. A View keeps the pin,
 * and the open C client, also after close(). Arrays over it keep it:
 *
 *   host   by the buffer protocol, which says that the bytes are read-only
 *   GPU    by a DLPack capsule of its bytes; also for torch of the host's memory. DLPack's struct of
 * before 1.0 cannot say read-only, and torch would not mind.
 */
#include "dlpack.h"
#include "ext.h"

struct view {
    PyObject_HEAD struct client *client; /* held */
    struct tarn_view lib;
};

/* --- life --------------------------------------------------------------------------------------- */

struct request {
    struct client *client;
    struct tarn_key key;
    struct tarn_view *view;
};

static int ask(void *arg, uint32_t ms)
{
    struct request *r = arg;

    return tarn_view(r->client->lib, &r->key, ms, r->view);
}

static struct args_spec view_args = {
    .function = "view", .required = 1, .positional = 1, .names = {"key", "timeout"}};

static int open_view(struct client *c, PyObject *key, uint32_t ms, struct tarn_view *view)
{
    struct request r = {.client = c, .view = view};
    struct batch b;
    int rc = -1;

    batch_init(&b, c, false);
    if (batch_set_key(&b, 0, key, &r.key) == 0)
        rc = call_plain(c, ask, &r, ms, key);
    batch_free(&b);
    return rc;
}

static PyObject *view_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    PyObject *arg[2];
    uint32_t ms = 0;

    if (args_parse(&view_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[1], "timeout", &ms) < 0)
        return NULL;
    struct view *v = (struct view *)view_type.tp_alloc(&view_type, 0);
    if (!v)
        return NULL;
    client_hold(c); /* before it exists, so that the client cannot end in between */
    v->client = c;
    if (open_view(c, arg[0], ms, &v->lib) == 0)
        return (PyObject *)v;
    Py_DECREF(v);
    return NULL;
}

static void view_dealloc(PyObject *self)
{
    struct view *v = (struct view *)self;

    if (v->lib.opaque[0] && v->client->generation == fork_generation())
        tarn_release(v->client->lib, &v->lib); /* takes no lock, does not wait */
    client_unhold(v->client);
    Py_TYPE(self)->tp_free(self);
}

/* --- as a buffer -------------------------------------------------------------------------------- */

static int on_gpu(const struct view *v)
{
    return v->lib.kind == TARN_MEMORY_CUDA;
}

static int get_buffer(PyObject *self, Py_buffer *out, int flags)
{
    struct view *v = (struct view *)self;

    if (on_gpu(v)) {
        PyErr_Format(
            PyExc_BufferError,
            "view: the object is in memory of GPU %d, which the CPU cannot read: view it with out='torch'",
            (int)v->lib.device);
        return -1;
    }
    void *addr = v->lib.addr ? (void *)(uintptr_t)v->lib.addr : "";
    return PyBuffer_FillInfo(out, self, addr, (Py_ssize_t)v->lib.tensor.bytes, 1, flags);
}

/* --- by DLPack ---------------------------------------------------------------------------------- */

struct managed {
    struct dl_managed dl;
    int64_t bytes;
};

static bool interpreter_is_there(void)
{
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsInitialized() && !Py_IsFinalizing();
#else
    return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

/* Any thread may call this, with or without the GIL. At the process's end the pin ends, too. */
static void give_back(struct dl_managed *m)
{
    if (interpreter_is_there()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)m->context);
        PyGILState_Release(state);
    }
    free(m);
}

/* The capsule was not consumed. */
static void capsule_gone(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor"))
        give_back(PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *as_dlpack(PyObject *self, PyObject *unused)
{
    struct view *v = (struct view *)self;
    struct managed *m = calloc(1, sizeof *m);

    (void)unused;
    if (!m)
        return PyErr_NoMemory();
    m->bytes = (int64_t)v->lib.tensor.bytes;
    m->dl = (struct dl_managed){
        .tensor = {.data = (void *)(uintptr_t)v->lib.addr,
                   .device_type = on_gpu(v) ? DL_CUDA : DL_CPU,
                   .device_id = on_gpu(v) ? v->lib.device : 0,
                   .ndim = 1,
                   .code = DL_UINT,
                   .bits = 8,
                   .lanes = 1,
                   .shape = &m->bytes},
        .context = self,
        .deleter = give_back,
    };
    PyObject *capsule = PyCapsule_New(&m->dl, "dltensor", capsule_gone);
    if (capsule)
        Py_INCREF(self);
    else
        free(m);
    return capsule;
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_info(PyObject *self, void *unused)
{
    (void)unused;
    return info_new(&((struct view *)self)->lib.tensor);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    struct view *v = (struct view *)self;

    (void)unused;
    if (on_gpu(v))
        return PyLong_FromLong(v->lib.device);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"dlpack", as_dlpack, METH_NOARGS, "A DLPack capsule of its bytes, which keeps it."},
    {0},
};

static PyGetSetDef properties[] = {
    {"info", get_info, NULL, "TensorInfo of the object.", NULL},
    {"device", get_device, NULL, "The GPU that it lies on, None for the host's memory.", NULL},
    {0},
};

static PyBufferProcs as_buffer = {.bf_getbuffer = get_buffer};

PyTypeObject view_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.View",
    .tp_doc = "An object's bytes where they lie; pinned as long as this lives.",
    .tp_basicsize = sizeof(struct view),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = view_dealloc,
    .tp_as_buffer = &as_buffer,
    .tp_methods = methods,
    .tp_getset = properties,
};

PyMethodDef view_methods[] = {
    {"_view", (PyCFunction)(void (*)(void))view_new, METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};
