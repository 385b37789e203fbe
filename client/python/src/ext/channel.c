/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channel: messages to and from another client. It keeps its client; a submitted send or receive keeps the
 * channel and its values.
 *
 * All sends and receives are submitted, with the GIL held. So close() needs to know of none: libtarn has
 * those under way, and ends them, and no other begins.
 */
#include "operation.h"
#include "window.h"

#include <structmember.h>

#define SLICE_MS 50

struct channel {
    PyObject_HEAD struct client *client;
    struct tarn_channel *lib; /* NULL: closed */
    PyObject *peer;           /* (address, id, hello) */
};

/* --- coming and going --------------------------------------------------------------------------- */

struct call {
    struct channel *channel;
    const char *address;
    const void *hello;
    uint32_t hello_bytes;
};

static int connect_now(void *arg, uint32_t timeout_ms)
{
    const struct call *k = arg;

    return tarn_channel_connect(k->channel->client->lib, k->address, k->hello, k->hello_bytes, timeout_ms,
                                &k->channel->lib);
}

static int accept_now(void *arg, uint32_t timeout_ms)
{
    const struct call *k = arg;

    return tarn_channel_accept(k->channel->client->lib, timeout_ms, &k->channel->lib);
}

static PyObject *peer_of(const struct tarn_channel *lib)
{
    struct tarn_channel_peer p;

    if (raise_call(tarn_channel_peer(lib, &p), NULL) < 0)
        return NULL;
    return Py_BuildValue("(sKy#)", p.address, (unsigned long long)p.id, p.hello, (Py_ssize_t)p.hello_bytes);
}

static struct channel *channel_alloc(PyTypeObject *type, PyObject *client)
{
    struct channel *ch = (struct channel *)type->tp_alloc(type, 0);

    if (ch) {
        Py_INCREF(client);
        ch->client = (struct client *)client;
    }
    return ch;
}

PyObject *channel_connected(struct channel *ch)
{
    ch->peer = peer_of(ch->lib);
    if (!ch->peer)
        return NULL;
    Py_INCREF(ch);
    return (PyObject *)ch;
}

/* Has `fn` make the channel. Takes the reference to it. */
static PyObject *begin(struct channel *ch, plain_fn fn, struct call *k, uint32_t timeout_ms)
{
    PyObject *result = NULL;

    k->channel = ch;
    if (call_plain(ch->client, fn, k, timeout_ms, NULL) == 0)
        result = channel_connected(ch);
    Py_DECREF(ch);
    return result;
}

/* Arguments of a connect. The batch keeps what the call has of them. */
static int call_of(PyObject *args, PyObject *kwargs, struct batch *b, PyObject **client, struct call *k,
                   uint32_t *timeout_ms)
{
    static char *names[] = {"client", "address", "hello", "timeout", NULL};
    PyObject *address, *hello = NULL, *timeout = NULL;

    *k = (struct call){.address = ""}; /* libtarn refuses it */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OO:Channel", names, &client_type, client, &address,
                                     &hello, &timeout) ||
        args_text(address, "address", &k->address) < 0 || args_seconds(timeout, "timeout", timeout_ms) < 0 ||
        batch_keep(b, address) < 0)
        return -1;
    return hello ? batch_bytes(b, hello, "hello", TARN_HELLO_MAX, &k->hello, &k->hello_bytes) : 0;
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *client, *result = NULL;
    struct channel *ch;
    struct batch b;
    struct call k;
    uint32_t ms = 0;

    batch_init(&b, NULL, false);
    if (call_of(args, kwargs, &b, &client, &k, &ms) == 0 && (ch = channel_alloc(type, client)) != NULL)
        result = begin(ch, connect_now, &k, ms);
    batch_free(&b);
    return result;
}

struct submitted_call {
    struct call call;
    uint32_t timeout_ms;
};

/* libtarn copies the arguments. */
static int give_connect(struct operation *o, const void *options)
{
    const struct submitted_call *s = options;

    return tarn_submit_connect(o->client->lib, s->call.address, s->call.hello, s->call.hello_bytes,
                               s->timeout_ms, (uint64_t)(uintptr_t)&o->op, &o->channel->lib, &o->op.id);
}

static struct operation *connect_operation(struct channel *ch)
{
    struct operation *o = operation_new(ch->client, SUBMIT_CONNECT, false);

    if (o && batch_keep(&o->batch, (PyObject *)ch) < 0)
        Py_CLEAR(o);
    if (o)
        o->channel = ch;
    return o;
}

static PyObject *submit_connect(PyObject *type, PyObject *args, PyObject *kwargs)
{
    struct submitted_call s = {.timeout_ms = 0};
    struct operation *o = NULL;
    struct channel *ch = NULL;
    PyObject *client, *result = NULL;
    struct batch b;

    batch_init(&b, NULL, false);
    if (call_of(args, kwargs, &b, &client, &s.call, &s.timeout_ms) == 0 &&
        (ch = channel_alloc((PyTypeObject *)type, client)) != NULL && (o = connect_operation(ch)) != NULL)
        result = operation_submit(o, give_connect, &s);
    Py_XDECREF(ch);
    batch_free(&b);
    return result;
}

/* In slices, so that the client's close() ends it early. */
static PyObject *channel_accept(PyObject *type, PyObject *args)
{
    PyObject *client, *timeout = NULL;
    struct call k = {0};
    uint32_t ms = 0;

    if (!PyArg_ParseTuple(args, "O!|O:accept", &client_type, &client, &timeout) ||
        args_seconds(timeout, "timeout", &ms) < 0)
        return NULL;
    uint64_t until = now_ms() + (ms ? ms : ((struct client *)client)->timeout_ms);
    for (;;) {
        struct channel *made = channel_alloc((PyTypeObject *)type, client);
        PyObject *ch = made ? begin(made, accept_now, &k, window_left(until, SLICE_MS)) : NULL;
        if (ch || now_ms() >= until || !PyErr_ExceptionMatches(PyExc_TimeoutError))
            return ch;
        PyErr_Clear();
    }
}

static void end(struct channel *ch)
{
    struct tarn_channel *lib = ch->lib;
    struct client *c = ch->client;

    ch->lib = NULL;
    if (!lib || client_is_over(c))
        return;
    client_hold(c);
    Py_BEGIN_ALLOW_THREADS
    tarn_channel_close(lib);
    Py_END_ALLOW_THREADS
    client_unhold(c);
}

static PyObject *channel_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    end((struct channel *)self);
    Py_RETURN_NONE;
}

static void channel_dealloc(PyObject *self)
{
    struct channel *ch = (struct channel *)self;
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    end(ch);
    PyErr_Restore(type, value, trace);
    Py_XDECREF(ch->peer);
    Py_DECREF(ch->client);
    Py_TYPE(self)->tp_free(self);
}

/* --- messages ----------------------------------------------------------------------------------- */

/* A value, or a list of values, which may be empty. */
static int set_message(struct operation *o, PyObject *value)
{
    struct batch *b = &o->batch;

    o->vector = PyList_Check(value) || PyTuple_Check(value);
    PyObject *all =
        o->vector ? PySequence_Tuple(value) : PyTuple_Pack(1, value); /* ours: nobody changes it */
    if (!all || batch_keep(b, all) < 0) {
        Py_XDECREF(all);
        return -1;
    }
    Py_DECREF(all);
    size_t n = (size_t)PyTuple_GET_SIZE(all);
    o->message = arena_zalloc(&b->arena, (n ? n : 1) * sizeof *o->message);
    if (!o->message || batch_values(b, n) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct value *v = &b->values[i];
        if (value_of(b, PyTuple_GET_ITEM(all, (Py_ssize_t)i), v) < 0)
            return -1;
        o->message[i] = (struct tarn_channel_item){
            .pieces = v->pieces, .npieces = v->npieces, .bytes = UINT64_MAX /* unknown */};
        b->bytes += v->tensor.bytes;
    }
    return 0;
}

struct envelope {
    struct tarn_channel *lib;
    uint64_t tag;
    struct tarn_channel_options options;
};

static int give_send(struct operation *o, const void *options)
{
    const struct envelope *e = options;

    return tarn_submit_sendv(e->lib, e->tag, o->message, o->batch.n, &e->options, (uint64_t)(uintptr_t)&o->op,
                             &o->op.id);
}

static int give_recv(struct operation *o, const void *options)
{
    const struct envelope *e = options;

    if (windows_check_receive(o) < 0)
        return EXT_RAISED;
    return tarn_submit_recvv(e->lib, e->tag, o->message, o->batch.n, &e->options, (uint64_t)(uintptr_t)&o->op,
                             &o->op.id);
}

static int check_open(const struct channel *ch)
{
    if (ch->lib && !ch->client->closed)
        return 0;
    return raise_code(TARN_E_CLOSED, NULL, "channel: it was closed: connect again");
}

static struct args_spec message_args = {
    .function = "message", .required = 1, .positional = 3, .names = {"value", "tag", "timeout"}};

/* Values in memory of GPUs are sent once the work of their streams is done: libtarn waits for no event. */
static PyObject *submit(struct channel *ch, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                        enum what what)
{
    struct envelope e = {.options = {.size = sizeof e.options}};
    PyObject *arg[3];

    if (args_parse(&message_args, args, nargs, kwnames, arg) < 0 || args_u64(arg[1], "tag", &e.tag) < 0 ||
        args_seconds(arg[2], "timeout", &e.options.timeout_ms) < 0)
        return NULL;
    struct operation *o = operation_new(ch->client, what, what == SUBMIT_RECV);
    if (!o)
        return NULL;
    if (batch_keep(&o->batch, (PyObject *)ch) < 0 || set_message(o, arg[0]) < 0 ||
        after_wait(&o->batch, NULL, e.options.timeout_ms) < 0 || check_open(ch) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    e.lib = ch->lib;
    return operation_submit(o, what == SUBMIT_SEND ? give_send : give_recv, &e);
}

static PyObject *submit_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return submit((struct channel *)self, args, nargs, kwnames, SUBMIT_SEND);
}

static PyObject *submit_recv(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return submit((struct channel *)self, args, nargs, kwnames, SUBMIT_RECV);
}

/* --- listening: methods of Client --------------------------------------------------------------- */

static int listen_now(void *arg, uint32_t unused)
{
    (void)unused;
    return tarn_channel_listen(((struct client *)arg)->lib);
}

/* (address, path of the Unix socket) */
static PyObject *client_listen(PyObject *self, PyObject *unused)
{
    char address[TARN_CHANNEL_ADDRESS_MAX], path[TARN_CHANNEL_ADDRESS_MAX];
    struct client *c = (struct client *)self;

    (void)unused;
    if (call_plain(c, listen_now, c, 0, NULL) < 0 || client_enter(c) < 0)
        return NULL;
    int rc = raise_call(tarn_channel_address(c->lib, address, path), NULL);
    client_leave(c);
    return rc < 0 ? NULL : Py_BuildValue("(ss)", address, path);
}

static PyObject *client_accept_fd(PyObject *self, PyObject *unused)
{
    struct client *c = (struct client *)self;

    (void)unused;
    if (client_enter(c) < 0)
        return NULL;
    int fd = tarn_channel_accept_fd(c->lib);
    client_leave(c);
    return PyLong_FromLong(fd);
}

PyMethodDef channel_methods[] = {
    {"_listen", client_listen, METH_NOARGS, NULL},
    {"_accept_fd", client_accept_fd, METH_NOARGS, NULL},
    {0},
};

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_closed(PyObject *self, void *unused)
{
    const struct channel *ch = (struct channel *)self;

    (void)unused;
    return PyBool_FromLong(!ch->lib || ch->client->closed);
}

static PyMethodDef methods[] = {
    {"_submit", (PyCFunction)(void (*)(void))submit_connect, METH_VARARGS | METH_KEYWORDS | METH_CLASS, NULL},
    {"_accept", channel_accept, METH_VARARGS | METH_CLASS, NULL},
    {"_submit_send", (PyCFunction)(void (*)(void))submit_send, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_submit_recv", (PyCFunction)(void (*)(void))submit_recv, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"close", channel_close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Ends it, at the peer, too. Sends and receives under way, of any thread, raise Closed."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", channel_close, METH_VARARGS, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"_client", T_OBJECT, offsetof(struct channel, client), READONLY, NULL},
    {"_peer", T_OBJECT, offsetof(struct channel, peer), READONLY, NULL},
    {0},
};

static PyGetSetDef properties[] = {
    {"closed", get_closed, NULL, "True from the beginning of close(), or of the client's, on.", NULL},
    {0},
};

PyTypeObject channel_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Channel",
    .tp_doc = "The C part of tarn.Channel.",
    .tp_basicsize = sizeof(struct channel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = channel_new,
    .tp_dealloc = channel_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};
