/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operation: something that was submitted.
 *
 *   in flight --any thread drains its completion--> complete --with the GIL: settle()--> settled
 *
 * The client's list holds a reference to each operation in flight. So keys and buffers stay even if the
 * caller drops the operation. Settling makes the result, releases keys and buffers, and removes it from the
 * list. The GIL guards the list and settling.
 *
 * Draining takes completions of all operations. So whoever drains must settle all complete ones and notify
 * those who wait on the event fd (tarn/_aio.py). Therefore only Client._drain() drains; wait() takes only its
 * own completion.
 *
 * close() first cancels all operations in flight.
 */
#include "operation.h"

#include <structmember.h>

#define SIGNALS_MS 50

/* --- the client's list -------------------------------------------------------------------------- */

void operation_enlist(struct operation *o)
{
    struct client *c = o->client;

    Py_INCREF(o);
    o->next = c->operations;
    if (o->next)
        o->next->prev = o;
    c->operations = o;
    c->noperations++;
}

void operation_delist(struct operation *o)
{
    struct client *c = o->client;

    *(o->prev ? &o->prev->next : &c->operations) = o->next;
    if (o->next)
        o->next->prev = o->prev;
    o->prev = o->next = NULL;
    c->noperations--;
    Py_DECREF(o);
}

/* --- settling ----------------------------------------------------------------------------------- */

/* NULL without an exception: nobody has told them. */
static PyObject *sizes_of(const struct operation *o)
{
    const struct tarn_channel_item *items = o->message;

    if (o->op.done.status != 0 && (o->batch.n == 0 || items[0].bytes == UINT64_MAX))
        return NULL;
    if (!o->vector)
        return PyLong_FromUnsignedLongLong(items[0].bytes);
    PyObject *list = PyList_New((Py_ssize_t)o->batch.n);
    for (size_t i = 0; list && i < o->batch.n; i++) {
        PyObject *v = PyLong_FromUnsignedLongLong(items[i].bytes);
        if (!v)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, v);
    }
    return list;
}

static PyObject *new_reference(PyObject *o)
{
    Py_INCREF(o);
    return o;
}

/* NULL without an exception: it failed as a whole. */
static PyObject *make_result(struct operation *o)
{
    const struct tarn_completion *done = &o->op.done;
    int rc = done->status;

    switch (o->what) {
    case SUBMIT_LOOKUP:
        return done->hits ? hits_new(&o->batch, done->hits, o->stride) : NULL;
    case SUBMIT_REMOVE:
        return call_failed_whole(rc, o->statuses, sizeof *o->statuses, o->nkeys)
                   ? NULL
                   : codes_of(o->statuses, sizeof *o->statuses, o->nkeys);
    case SUBMIT_PUT:
        return get_failed_whole(&o->batch, rc) ? NULL : put_codes(&o->batch);
    case SUBMIT_READ:
    case SUBMIT_WRITE:
        return call_failed_whole(rc, &o->moves->status, sizeof *o->moves, o->batch.n)
                   ? NULL
                   : codes_of(&o->moves->status, sizeof *o->moves, o->batch.n);
    case SUBMIT_REACH:
        return rc == 0 ? new_reference((PyObject *)o->reach) : NULL;
    case SUBMIT_CONNECT:
        return rc == 0 ? channel_connected(o->channel) : NULL;
    case SUBMIT_EXPECT:
    case SUBMIT_SEND:
        return rc == 0 ? new_reference(Py_None) : NULL;
    case SUBMIT_RECV:
        return rc == 0 || rc == TARN_E_SIZE ? sizes_of(o) : NULL;
    case SUBMIT_GET:
        if (get_failed_whole(&o->batch, rc))
            return NULL;
        get_check(&o->batch);
        return get_outcomes(&o->batch);
    case SUBMIT_GET_INFO:
        get_check(&o->batch);
        return get_fetched(&o->batch);
    default:
        return get_failed_whole(&o->batch, rc) ? NULL : get_fetched(&o->batch);
    }
}

/* The operation is complete. This may release its last reference. */
static void settle(struct operation *o)
{
    o->settled = true;
    o->status = o->op.done.status;
    o->result = make_result(o);
    if (!o->result && PyErr_Occurred()) {
        PyErr_Clear();
        o->status = TARN_E_NO_MEMORY;
    }
    batch_free(&o->batch);
    batch_init(&o->batch, o->client, false);
    PyOS_snprintf(o->batch.why, sizeof o->batch.why, "%s", o->op.done.error);
    operation_delist(o);
}

/* The exception has the size of a message that was too long. */
static void raise_status(const struct operation *o)
{
    PyObject *type, *error, *trace;

    raise_code(o->status, NULL, o->batch.why);
    if (!o->result)
        return;
    PyErr_Fetch(&type, &error, &trace);
    if (error && PyObject_SetAttrString(error, "nbytes", o->result) < 0)
        PyErr_Clear();
    PyErr_Restore(type, error, trace);
}

static PyObject *result_of(const struct operation *o)
{
    if (o->result && (o->what != SUBMIT_RECV || o->status == 0))
        return new_reference(o->result);
    raise_status(o);
    return NULL;
}

/* --- draining ----------------------------------------------------------------------------------- */

static PyObject *drain(PyObject *self, PyObject *unused)
{
    struct client *c = (struct client *)self;
    PyObject *list = PyList_New(0);
    int n;

    (void)unused;
    if (!list || client_enter(c) < 0) {
        Py_XDECREF(list);
        return NULL;
    }
    do
        n = ops_take(c); /* keeps the GIL: the call never waits, and retaking the GIL may take longer */
    while (n == OPS_TAKE_MAX);
    for (struct operation *o = c->operations; list && o; o = o->next)
        if (op_complete(c, &o->op) && PyList_Append(list, (PyObject *)o) < 0)
            Py_CLEAR(list);
    for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++) {
        struct operation *o = (struct operation *)PyList_GET_ITEM(list, i);
        if (!o->settled) /* releasing what another one kept may let other threads run */
            settle(o);
    }
    client_leave(c);
    return list;
}

static PyObject *flying(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((struct client *)self)->noperations);
}

static PyObject *event_fd(PyObject *self, PyObject *unused)
{
    struct client *c = (struct client *)self;

    (void)unused;
    if (client_enter(c) < 0)
        return NULL;
    int fd = tarn_event_fd(c->lib);
    client_leave(c);
    return PyLong_FromLong(fd);
}

/* --- waiting ------------------------------------------------------------------------------------ */

/* Waits until it is complete or settled: 0; TARN_E_TIMEOUT; EXT_RAISED. Called between enter and leave. */
static int wait_until(struct operation *o, uint64_t until)
{
    for (;;) {
        uint64_t now = now_ms();
        uint32_t ms = until - now < SIGNALS_MS ? (uint32_t)(until - now) : SIGNALS_MS;
        int rc;
        Py_BEGIN_ALLOW_THREADS;
        rc = op_wait(o->client, &o->op, ms ? ms : 1);
        Py_END_ALLOW_THREADS;
        if (rc == 0 || o->settled)
            return 0;
        if (PyErr_CheckSignals() < 0)
            return EXT_RAISED;
        /* NOT_FOUND: another thread that waits for it, too, has just taken it. */
        if (rc != TARN_E_TIMEOUT && rc != TARN_E_NOT_FOUND)
            return rc;
        if (now_ms() >= until)
            return TARN_E_TIMEOUT;
    }
}

static int wait_and_settle(struct operation *o, uint64_t until)
{
    if (client_enter(o->client) < 0)
        return -1;
    int rc = wait_until(o, until);
    if (rc == 0 && !o->settled)
        settle(o);
    client_leave(o->client);
    if (rc == 0 || rc == EXT_RAISED)
        return rc == 0 ? 0 : -1;
    return raise_code(rc, NULL,
                      rc == TARN_E_TIMEOUT ? "wait: the operation is still running: wait longer or cancel it"
                                           : NULL);
}

static struct args_spec wait_args = {.function = "wait", .positional = 1, .names = {"timeout"}};

static PyObject *operation_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct operation *o = (struct operation *)self;
    PyObject *arg[1];
    uint32_t ms = UINT32_MAX;

    if (args_parse(&wait_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[0], "timeout", &ms) < 0 ||
        (!o->settled && wait_and_settle(o, now_ms() + ms) < 0))
        return NULL;
    return result_of(o);
}

/* Cancels it. Called between enter and leave, with a reference to it. */
static void end_early(struct operation *o)
{
    struct client *c = o->client;

    Py_BEGIN_ALLOW_THREADS;
    tarn_cancel(c->lib, o->op.id); /* returns when its completion is there */
    Py_END_ALLOW_THREADS;
    while (!o->settled && !op_complete(c, &o->op)) {
        Py_BEGIN_ALLOW_THREADS;
        op_wait(c, &o->op, SIGNALS_MS);
        Py_END_ALLOW_THREADS;
    }
    if (!o->settled)
        settle(o);
}

/* Notifies who awaits it. An exception is ignored. */
static void tell(struct operation *o)
{
    PyObject *none = PyObject_CallMethod((PyObject *)o->client, "_tell", "O", (PyObject *)o);

    if (!none)
        PyErr_Clear();
    Py_XDECREF(none);
}

static PyObject *operation_cancel(PyObject *self, PyObject *unused)
{
    struct operation *o = (struct operation *)self;
    struct client *c = o->client;

    (void)unused;
    if (!o->settled && c->generation != fork_generation() && client_enter(c) < 0)
        return NULL;
    if (!o->settled) {
        c->calls++; /* also after close() has begun: the client stays open while an operation is in flight */
        end_early(o);
        client_leave(c);
    }
    return PyBool_FromLong(o->status == TARN_E_CANCELED);
}

void operations_cancel(struct client *c)
{
    if (!c->lib || c->generation != fork_generation())
        return;
    c->calls++; /* like client_enter(), which already refuses */
    while (c->operations) {
        struct operation *o = c->operations;
        Py_INCREF(o);
        end_early(o);
        Py_DECREF(o);
    }
    c->calls--;
}

bool receives_into(const struct operation *o, uintptr_t base, uint64_t nbytes)
{
    const struct batch *b = &o->batch;

    if (o->what != SUBMIT_RECV || o->settled || b->bytes <= TARN_SMALL_MAX)
        return false;
    for (size_t i = 0; i < b->n; i++)
        for (uint32_t k = 0; k < b->values[i].npieces; k++) {
            const struct tarn_piece *p = &b->values[i].pieces[k];
            uintptr_t at = (uintptr_t)p->addr;
            uint64_t span = (p->count > 1 ? (p->count - 1) * p->stride : 0) + p->bytes;
            if (at < base + nbytes && base < at + span)
                return true;
        }
    return false;
}

void receives_cancel(struct client *c, uintptr_t base, uint64_t nbytes)
{
    struct operation *o = c->operations;

    while (o) {
        if (!receives_into(o, base, nbytes)) {
            o = o->next;
            continue;
        }
        Py_INCREF(o);
        end_early(o);
        tell(o);
        Py_DECREF(o);
        o = c->operations; /* others may have gone meanwhile */
    }
}

/* --- streams ------------------------------------------------------------------------------------ */

static int let_wait(struct operation *o, void *stream)
{
    struct client *c = o->client;
    int rc;

    if (client_enter(c) < 0)
        return -1;
    if (cuda_enter(o->device) < 0) {
        client_leave(c);
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_stream_wait(c->lib, o->op.id, stream);
    Py_END_ALLOW_THREADS;
    cuda_leave();
    if (rc == TARN_E_NOT_FOUND && (o->settled || op_complete(c, &o->op)))
        rc = 0; /* complete: nothing to wait for */
    rc = raise_call(rc, NULL);
    client_leave(c);
    return rc;
}

static struct args_spec stream_args = {.function = "stream_wait", .positional = 1, .names = {"stream"}};

static PyObject *operation_stream_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                       PyObject *kwnames)
{
    struct operation *o = (struct operation *)self;
    void *stream = NULL;
    PyObject *arg[1];

    if (args_parse(&stream_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    if (o->device == HOST_MEMORY) {
        raise_code(TARN_E_INVALID, NULL,
                   "stream_wait: no value of the operation lies on a GPU: wait() for it");
        return NULL;
    }
    if (stream_of(arg[0], o->device, &stream) < 0 || (!o->settled && let_wait(o, stream) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* --- the type ----------------------------------------------------------------------------------- */

static void operation_dealloc(PyObject *self)
{
    struct operation *o = (struct operation *)self;

    batch_free(&o->batch); /* it is not in flight: otherwise the list would hold a reference */
    Py_XDECREF(o->result);
    Py_DECREF(o->client);
    Py_TYPE(self)->tp_free(self);
}

/* The drainer notifies the others, as Client._deliver() does. */
static PyObject *get_done(PyObject *self, void *unused)
{
    struct operation *o = (struct operation *)self;

    (void)unused;
    if (!o->settled) {
        PyObject *none = PyObject_CallMethod((PyObject *)o->client, "_deliver", NULL);
        if (!none)
            return NULL;
        Py_DECREF(none);
    }
    return PyBool_FromLong(o->settled);
}

static PyObject *get_why(PyObject *self, void *unused)
{
    const struct operation *o = (struct operation *)self;

    (void)unused;
    return PyUnicode_DecodeUTF8(o->batch.why, (Py_ssize_t)strlen(o->batch.why), "replace");
}

static PyObject *get_kind(PyObject *self, void *unused)
{
    static const char *const names[] = {"get",   "get",   "get",     "put",    "lookup", "remove", "read",
                                        "write", "reach", "connect", "expect", "send",   "recv"};

    (void)unused;
    return PyUnicode_InternFromString(names[((struct operation *)self)->what]);
}

static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))operation_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait($self, timeout=None)\n--\n\n"
     "Waits until it is complete; returns what the blocking call returns, any number of times.\n\n"
     "Raises Timeout when it is not complete within `timeout` seconds (None: as long as it takes, which is "
     "at most\n"
     "its own deadline); then it goes on. Raises what the operation failed with as a whole; failures of "
     "single\n"
     "objects are negative codes in the list."},
    {"cancel", operation_cancel, METH_NOARGS,
     "cancel($self)\n--\n\n"
     "Ends it early. When this returns nothing touches the buffers any more. True when it was canceled, "
     "False when\n"
     "it had ended before."},
    {"stream_wait", (PyCFunction)(void (*)(void))operation_stream_wait, METH_FASTCALL | METH_KEYWORDS,
     "stream_wait($self, stream=None)\n--\n\n"
     "What is given to a CUDA stream from now on runs when the buffers have been filled; the host need not "
     "wait.\n\n"
     "`stream`: a torch.cuda.Stream or a cudaStream_t as int; None: torch's current one on the buffers' GPU. "
     "Whether\n"
     "the bytes are the objects' is known by wait() only: look there before using what kernels have made of "
     "them."},
    {0},
};

static PyMemberDef members[] = {
    {"_settled", T_BOOL, offsetof(struct operation, settled), READONLY, NULL},
    {"_id", T_ULONGLONG, offsetof(struct operation, op.id), READONLY, "Number of it among the client's."},
    {0},
};

static PyGetSetDef properties[] = {
    {"done", get_done, NULL, "Is it complete? Does not wait.", NULL},
    {"_kind", get_kind, NULL, "get, put, lookup, remove, read, write, reach, connect, expect, send or recv.",
     NULL},
    {"_why", get_why, NULL, "The sentence of its first failure.", NULL},
    {0},
};

PyTypeObject operation_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Operation",
    .tp_doc =
        "Something that was submitted. It keeps its keys and buffers until it is complete, also when it is\n"
        "dropped; then it goes on. Any thread may use it.",
    .tp_basicsize = sizeof(struct operation),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = operation_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};

PyMethodDef operation_methods[] = {
    {"_drain", drain, METH_NOARGS, "Operations that have become complete and that nobody has waited for."},
    {"_flying", flying, METH_NOARGS, "Operations that have been submitted and not drained."},
    {"_event_fd", event_fd, METH_NOARGS,
     "Readable while there is something to drain. Never read or close it."},
    {0},
};
