/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reach: a lease of another client, to be read and written. It keeps its client; a submitted operation keeps
 * the reach and its values.
 */
#include "operation.h"

#include <structmember.h>

struct reach {
    PyObject_HEAD struct client *client;
    struct tarn_reach *lib;
};

/* --- asking the lender -------------------------------------------------------------------------- */

struct question {
    struct reach *reach; /* not reached yet */
    const char *text;
    uint32_t timeout_ms;
};

static int question_of(PyTypeObject *type, PyObject *args, PyObject *kwargs, struct question *q)
{
    static char *names[] = {"client", "descriptor", "timeout", NULL};
    PyObject *client, *descriptor, *timeout = NULL;

    *q = (struct question){.text = ""}; /* libtarn refuses it */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|O:Reach", names, &client_type, &client, &descriptor,
                                     &timeout) ||
        args_text(descriptor, "descriptor", &q->text) < 0 ||
        args_seconds(timeout, "timeout", &q->timeout_ms) < 0)
        return -1;
    q->reach = (struct reach *)type->tp_alloc(type, 0);
    if (!q->reach)
        return -1;
    Py_INCREF(client);
    q->reach->client = (struct client *)client;
    return 0;
}

static int ask(void *arg, uint32_t timeout_ms)
{
    const struct question *q = arg;

    return tarn_reach(q->reach->client->lib, q->text, timeout_ms, &q->reach->lib);
}

static PyObject *reach_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct question q;

    if (question_of(type, args, kwargs, &q) < 0)
        return NULL;
    if (call_plain(q.reach->client, ask, &q, q.timeout_ms, NULL) == 0)
        return (PyObject *)q.reach;
    Py_DECREF(q.reach);
    return NULL;
}

static int give_question(struct operation *o, const void *options)
{
    const struct question *q = options;

    return tarn_submit_reach(o->client->lib, q->text, q->timeout_ms, (uint64_t)(uintptr_t)&o->op,
                             &o->reach->lib, &o->op.id);
}

/* The operation keeps the arguments, and so the text. */
static PyObject *submit_new(PyObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *result = NULL;
    struct question q;

    if (question_of((PyTypeObject *)type, args, kwargs, &q) < 0)
        return NULL;
    struct operation *o = operation_new(q.reach->client, SUBMIT_REACH, false);
    if (o)
        o->reach = q.reach;
    if (o && batch_keep(&o->batch, (PyObject *)q.reach) == 0 && batch_keep(&o->batch, args) == 0 &&
        (!kwargs || batch_keep(&o->batch, kwargs) == 0))
        result = operation_submit(o, give_question, &q);
    else
        Py_XDECREF(o);
    Py_DECREF(q.reach);
    return result;
}

static void reach_dealloc(PyObject *self)
{
    struct reach *r = (struct reach *)self;

    tarn_reach_free(r->lib); /* memory only, also after the client's end */
    Py_DECREF(r->client);
    Py_TYPE(self)->tp_free(self);
}

/* --- moves -------------------------------------------------------------------------------------- */

/* The batch's n values, each with its move. */
static struct tarn_move *moves_new(struct batch *b, size_t n)
{
    return batch_values(b, n) < 0 ? NULL : arena_zalloc(&b->arena, (n ? n : 1) * sizeof(struct tarn_move));
}

static int set_move(struct batch *b, struct tarn_move *moves, size_t i, PyObject *offset, PyObject *value)
{
    struct value *v = &b->values[i];

    if (args_u64(offset, "offset", &moves[i].offset) < 0 || value_of(b, value, v) < 0)
        return -1;
    moves[i].pieces = v->pieces;
    moves[i].npieces = v->npieces;
    return 0;
}

static bool is_pair(PyObject *o)
{
    return PyTuple_Check(o) && PyTuple_GET_SIZE(o) == 2 && is_number(PyTuple_GET_ITEM(o, 0));
}

static struct tarn_move *moves_of_pairs(struct batch *b, PyObject *pairs)
{
    size_t n = (size_t)PyTuple_GET_SIZE(pairs);
    struct tarn_move *moves = batch_keep(b, pairs) == 0 ? moves_new(b, n) : NULL;

    for (size_t i = 0; moves && i < n; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, (Py_ssize_t)i);
        if (!is_pair(pair)) {
            raise_type("value: an element", pair, "(offset, value), as the first one is");
            return NULL;
        }
        if (set_move(b, moves, i, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)) < 0)
            return NULL;
    }
    return moves;
}

/* A value at `offset`, or a list of (offset, value), which may be empty. NULL with an exception. */
static struct tarn_move *moves_of(struct batch *b, PyObject *value, PyObject *offset)
{
    bool list = PyList_Check(value) || PyTuple_Check(value);
    PyObject *all = list ? PySequence_Tuple(value) : NULL; /* our own, so nobody else changes it */
    struct tarn_move *moves;

    if (list && !all)
        return NULL;
    if (list && (PyTuple_GET_SIZE(all) == 0 || is_pair(PyTuple_GET_ITEM(all, 0)))) {
        moves = moves_of_pairs(b, all);
    } else {
        moves = moves_new(b, 1);
        if (moves && set_move(b, moves, 0, offset, list ? all : value) < 0)
            moves = NULL;
    }
    Py_XDECREF(all);
    return moves;
}

/* notify=(tag, data). The batch keeps the data. */
static int set_notify(struct batch *b, PyObject *o, struct tarn_move_options *options)
{
    if (!o || o == Py_None)
        return 0;
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2)
        return raise_type("notify", o, "(tag, data)");
    struct tarn_notify *notify = arena_zalloc(&b->arena, sizeof *notify);
    PyObject *data = PyTuple_GET_ITEM(o, 1);
    if (!notify || args_u64(PyTuple_GET_ITEM(o, 0), "notify: tag", &notify->tag) < 0)
        return -1;
    if (batch_bytes(b, data, "notify: data", TARN_NOTIFY_MAX, &notify->data, &notify->bytes) < 0)
        return -1;
    options->notify = notify;
    return 0;
}

/* --- blocking ----------------------------------------------------------------------------------- */

struct request {
    struct tarn_reach *lib;
    struct tarn_move *moves;
    size_t n;
    struct tarn_move_options options;
};

static int read_now(void *arg, uint32_t timeout_ms)
{
    struct request *r = arg;

    r->options.timeout_ms = timeout_ms;
    return tarn_read(r->lib, r->moves, r->n, &r->options);
}

static int write_now(void *arg, uint32_t timeout_ms)
{
    struct request *r = arg;

    r->options.timeout_ms = timeout_ms;
    return tarn_write(r->lib, r->moves, r->n, &r->options);
}

/* arg: value, offset, timeout, notify. */
static PyObject *move_now(struct reach *r, PyObject *const *arg, plain_fn fn)
{
    struct request q = {.lib = r->lib, .options = {.size = sizeof q.options}};
    uint32_t ms = 0;
    struct batch b;
    int rc = -1;

    batch_init(&b, r->client, fn == read_now);
    if (args_seconds(arg[2], "timeout", &ms) == 0 && (q.moves = moves_of(&b, arg[0], arg[1])) != NULL &&
        set_notify(&b, arg[3], &q.options) == 0 && cuda_after(&b, &q.options.after) == 0) {
        q.n = b.n;
        rc = call_plain(r->client, fn, &q, ms, NULL);
    }
    batch_free(&b);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static struct args_spec read_args = {
    .function = "read", .required = 1, .positional = 2, .names = {"value", "offset", "timeout"}};

static PyObject *reach_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[4] = {NULL};

    return args_parse(&read_args, args, nargs, kwnames, arg) < 0
               ? NULL
               : move_now((struct reach *)self, arg, read_now);
}

static struct args_spec write_args = {
    .function = "write", .required = 1, .positional = 2, .names = {"value", "offset", "timeout", "notify"}};

static PyObject *reach_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[4];

    return args_parse(&write_args, args, nargs, kwnames, arg) < 0
               ? NULL
               : move_now((struct reach *)self, arg, write_now);
}

/* --- submitted ---------------------------------------------------------------------------------- */

static int give_read(struct operation *o, const void *options)
{
    operation_note_device(o);
    return tarn_submit_read(o->reach->lib, o->moves, o->batch.n, options, (uint64_t)(uintptr_t)&o->op,
                            &o->op.id);
}

static int give_write(struct operation *o, const void *options)
{
    operation_note_device(o);
    return tarn_submit_write(o->reach->lib, o->moves, o->batch.n, options, (uint64_t)(uintptr_t)&o->op,
                             &o->op.id);
}

/* arg: value, offset, timeout, after, notify. */
static PyObject *submit(struct reach *r, PyObject *const *arg, bool write)
{
    struct tarn_move_options options = {.size = sizeof options};

    if (args_seconds(arg[2], "timeout", &options.timeout_ms) < 0)
        return NULL;
    struct operation *o = operation_new(r->client, write ? SUBMIT_WRITE : SUBMIT_READ, !write);
    if (!o)
        return NULL;
    o->reach = r;
    if (batch_keep(&o->batch, (PyObject *)r) < 0 || !(o->moves = moves_of(&o->batch, arg[0], arg[1])) ||
        set_notify(&o->batch, arg[4], &options) < 0 || operation_set_after(o, arg[3], &options.after) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    return operation_submit(o, write ? give_write : give_read, &options);
}

static struct args_spec submit_read_args = {.function = "submit_read",
                                            .required = 1,
                                            .positional = 2,
                                            .names = {"value", "offset", "timeout", "after"}};

static PyObject *submit_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[5] = {NULL};

    return args_parse(&submit_read_args, args, nargs, kwnames, arg) < 0
               ? NULL
               : submit((struct reach *)self, arg, false);
}

static struct args_spec submit_write_args = {.function = "submit_write",
                                             .required = 1,
                                             .positional = 2,
                                             .names = {"value", "offset", "timeout", "after", "notify"}};

static PyObject *submit_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[5];

    return args_parse(&submit_write_args, args, nargs, kwnames, arg) < 0
               ? NULL
               : submit((struct reach *)self, arg, true);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(tarn_reach_bytes(((struct reach *)self)->lib));
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))reach_read, METH_FASTCALL | METH_KEYWORDS,
     "read($self, value, offset=0, *, timeout=None)\n--\n\n"
     "Reads the lease's bytes from `offset` on into `value`, memory of the caller's, as long as it is.\n\n"
     "`value` may also be a list of (offset, value). Its content is undefined after an exception, which is "
     "about the\n"
     "first that failed.\n\n"
     "Raises Stale (the lease has ended), SizeMismatch (outside of the lease), NodeDown (the lender is "
     "gone), "
     "Invalid,\n"
     "Unsupported, NotReachable, Timeout."},
    {"write", (PyCFunction)(void (*)(void))reach_write, METH_FASTCALL | METH_KEYWORDS,
     "write($self, value, offset=0, *, timeout=None, notify=None)\n--\n\n"
     "Writes `value` to the lease's bytes from `offset` on. Arguments and exceptions as read().\n\n"
     "`notify`: (tag, data), at most 256 bytes, which the lender sees once all bytes are in place; not if "
     "the "
     "write\n"
     "fails. A write of [] only notifies. Also raises AuthError (the lease is for reading), and Again (the "
     "lender's\n"
     "queue is full; the bytes are in place)."},
    {"_submit", (PyCFunction)(void (*)(void))submit_new, METH_VARARGS | METH_KEYWORDS | METH_CLASS, NULL},
    {"_submit_read", (PyCFunction)(void (*)(void))submit_read, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_submit_write", (PyCFunction)(void (*)(void))submit_write, METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"_client", T_OBJECT, offsetof(struct reach, client), READONLY, NULL},
    {0},
};

static PyGetSetDef properties[] = {
    {"nbytes", get_nbytes, NULL, "The lease's bytes.", NULL},
    {0},
};

PyTypeObject reach_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Reach",
    .tp_doc = "The C part of tarn.Reach.",
    .tp_basicsize = sizeof(struct reach),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = reach_new,
    .tp_dealloc = reach_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};
