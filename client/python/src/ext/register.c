/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration: memory made known to transports that need it. It references the memory's owner, which must
 * outlive it.
 */
#include "ext.h"

#include <structmember.h>

struct registration {
    PyObject_HEAD struct client *client;
    struct tarn_mr *mr; /* NULL: ended */
    struct batch batch; /* keeps the value */
    uint64_t addr, nbytes;
};

/* From a value's first byte to its last. */
static void span(const struct value *v, uint64_t *addr, uint64_t *nbytes)
{
    uint64_t first = UINT64_MAX, end = 0;

    for (uint32_t i = 0; i < v->npieces; i++) {
        const struct tarn_piece *p = &v->pieces[i];
        uint64_t at = (uint64_t)(uintptr_t)p->addr, stride = p->stride ? p->stride : p->bytes;
        uint64_t last = at + (p->count > 1 ? (p->count - 1) * stride : 0) + p->bytes;
        first = at < first ? at : first;
        end = last > end ? last : end;
    }
    *addr = v->npieces ? first : 0;
    *nbytes = v->npieces ? end - first : 0;
}

static int announce(struct registration *r, uint32_t kind)
{
    struct client *c = r->client;
    int rc;

    if (client_enter(c) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_register(c->lib, (void *)(uintptr_t)r->addr, r->nbytes, kind, &r->mr);
    Py_END_ALLOW_THREADS;
    rc = raise_call(rc, NULL);
    client_leave(c);
    return rc;
}

static struct args_spec register_args = {
    .function = "_register", .required = 1, .positional = 1, .names = {"value"}};

static PyObject *client_register(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[1];
    struct value v;

    if (args_parse(&register_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    struct registration *r = (struct registration *)registration_type.tp_alloc(&registration_type, 0);
    if (!r)
        return NULL;
    Py_INCREF(self);
    r->client = (struct client *)self;
    batch_init(&r->batch, r->client, false);
    if (value_of(&r->batch, arg[0], &v) == 0) {
        span(&v, &r->addr, &r->nbytes);
        if (announce(r, v.device == HOST_MEMORY ? TARN_MEMORY_HOST : TARN_MEMORY_CUDA) == 0)
            return (PyObject *)r;
    }
    Py_DECREF(r);
    return NULL;
}

/* Returns libtarn's code, with an exception. TARN_E_BUSY changes nothing. Does nothing if it ended with its
 * client. */
static int withdraw(struct registration *r)
{
    struct client *c = r->client;
    struct tarn_mr *mr = r->mr;
    int rc;

    if (!mr || !c->lib || c->generation != fork_generation())
        return 0;
    r->mr = NULL;
    client_hold(c);
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_deregister(c->lib, mr);
    Py_END_ALLOW_THREADS;
    raise_call(rc, NULL);
    client_unhold(c);
    if (rc == TARN_E_BUSY)
        r->mr = mr;
    return rc;
}

static PyObject *registration_close(PyObject *self, PyObject *unused)
{
    struct registration *r = (struct registration *)self;

    (void)unused;
    if (withdraw(r) != 0)
        return NULL;
    r->mr = NULL;
    batch_free(&r->batch);
    batch_init(&r->batch, r->client, false);
    Py_RETURN_NONE;
}

static PyObject *registration_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return registration_close(self, NULL);
}

static void registration_dealloc(PyObject *self)
{
    struct registration *r = (struct registration *)self;
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    /* Devices may use memory as long as it is registered, so in that case it is never released. */
    if (withdraw(r) != TARN_E_BUSY)
        batch_free(&r->batch);
    PyErr_Restore(type, value, trace);
    Py_DECREF(r->client);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"close", registration_close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Ends it. Raises Busy, and it stays, while a submitted operation uses the memory; let blocking calls of "
     "other\n"
     "threads return first."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", registration_exit, METH_VARARGS, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"addr", T_ULONGLONG, offsetof(struct registration, addr), READONLY, "address of the first byte"},
    {"nbytes", T_ULONGLONG, offsetof(struct registration, nbytes), READONLY, "bytes"},
    {0},
};

PyTypeObject registration_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Registration",
    .tp_doc = "Memory announced by Client.register(). A context manager. Keeps the memory's owner.",
    .tp_basicsize = sizeof(struct registration),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = registration_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};

PyMethodDef register_methods[] = {
    {"_register", (PyCFunction)(void (*)(void))client_register, METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};
