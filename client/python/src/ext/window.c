/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Window: memory of the caller's that other clients read and write.
 *
 *   lent --close(), the end of the with block, nobody refers to it--> closed      lib != NULL: lent
 *     \--its client ends-------------------------------------------> over         see client_is_over()
 *
 * The batch keeps the memory until no peer can reach it any more. If that cannot be had when the object is
 * deallocated, the memory is never released.
 *
 * libtarn frees a window's leases with it, and a lease must not be used while it is freed. So calls are
 * counted under the GIL: of the window and all its leases in window.calls, of one lease in lease.calls, too.
 * close() sets `closing`, which refuses new calls and ends those that wait within a slice, and
 * continues when none is left; recall() does the same for its lease by `recalling`. Receives (channel.c) are
 * leases of libtarn's own in the window: close() cancels them, and lets none begin.
 */
#include "window.h"

#include "operation.h"

#include <poll.h>
#include <structmember.h>

#define SLICE_MS 50 /* of a wait, between checks for signals and for close() */

/* --- entering ----------------------------------------------------------------------------------- */

int window_check_open(const struct window *w)
{
    if (w->lib && !w->closing && !w->client->closed)
        return 0;
    return raise_code(TARN_E_CLOSED, NULL, "window: it was closed: open another one");
}

int window_enter(struct window *w)
{
    if (client_enter(w->client) < 0)
        return -1;
    if (window_check_open(w) < 0) {
        client_leave(w->client);
        return -1;
    }
    w->calls++;
    return 0;
}

void window_leave(struct window *w)
{
    w->calls--;
    if (w->closing)
        tell_left();
    client_leave(w->client);
}

uint64_t window_until(const struct window *w, uint32_t timeout_ms)
{
    return now_ms() + (timeout_ms ? timeout_ms : w->client->timeout_ms);
}

uint32_t window_left(uint64_t until_ms, uint32_t most)
{
    uint64_t now = now_ms();

    if (now >= until_ms)
        return 1;
    return until_ms - now < most ? (uint32_t)(until_ms - now) : most;
}

int window_await_calls(const unsigned *calls, uint64_t until_ms, const char *what)
{
    while (*calls > 0) {
        if (now_ms() >= until_ms) {
            raise_why(TARN_E_BUSY, NULL, "%s: calls of other threads have not ended in time: try again",
                      what);
            return TARN_E_BUSY;
        }
        wait_left();
        if (PyErr_CheckSignals() < 0)
            return EXT_RAISED;
    }
    return 0;
}

/* --- the client's list -------------------------------------------------------------------------- */

static void enlist(struct window *w)
{
    w->next = w->client->windows;
    if (w->next)
        w->next->prev = w;
    w->client->windows = w;
}

static void delist(struct window *w)
{
    *(w->prev ? &w->prev->next : &w->client->windows) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = w->next = NULL;
}

int windows_check_receive(const struct operation *o)
{
    for (const struct window *w = o->client->windows; w; w = w->next)
        if (w->closing && receives_into(o, w->base, w->nbytes))
            return raise_code(TARN_E_CLOSED, NULL,
                              "recv: the window over this memory is being closed: open another one");
    return 0;
}

/* --- lending ------------------------------------------------------------------------------------ */

/* The one run of bytes that a value is. */
static int set_memory(struct window *w, const struct value *v)
{
    const struct tarn_piece *p = v->pieces;
    bool one_run = v->npieces == 0 || (v->npieces == 1 && (p->count <= 1 || p->stride == p->bytes));

    if (!one_run)
        return raise_why(TARN_E_UNSUPPORTED, NULL,
                         "value: its strides make more than one run: make it contiguous first");
    w->base = v->npieces > 0 ? (uintptr_t)p->addr : 0;
    w->nbytes = v->tensor.bytes;
    return 0;
}

static int lend(void *arg, uint32_t unused)
{
    struct window *w = arg;

    (void)unused;
    return tarn_window_new(w->client->lib, (void *)w->base, w->nbytes, &w->lib);
}

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", "value", NULL};
    PyObject *client, *value;
    struct value v;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Window", names, &client_type, &client, &value))
        return NULL;
    struct window *w = (struct window *)type->tp_alloc(type, 0);
    if (!w)
        return NULL;
    Py_INCREF(client);
    w->client = (struct client *)client;
    batch_init(&w->batch, w->client, true);
    if (value_of(&w->batch, value, &v) == 0 && set_memory(w, &v) == 0 &&
        call_plain(w->client, lend, w, 0, NULL) == 0) {
        enlist(w);
        return (PyObject *)w;
    }
    Py_DECREF(w);
    return NULL;
}

/* --- closing ------------------------------------------------------------------------------------ */

/* Without the GIL, between hold and unhold. Returns libtarn's code, with an exception. */
static int close_lib(struct window *w, uint64_t until)
{
    uint32_t ms = window_left(until, UINT32_MAX);
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_window_close(w->lib, ms);
    Py_END_ALLOW_THREADS
    raise_call(rc, NULL);
    return rc;
}

/* Returns libtarn's code or EXT_RAISED, with an exception: then it is lent as before. */
static int withdraw(struct window *w, uint32_t timeout_ms)
{
    struct client *c = w->client;
    uint64_t until = window_until(w, timeout_ms);
    int rc = 0;

    if (!w->lib)
        return 0;
    if (w->closing) {
        raise_code(TARN_E_BUSY, NULL, "window: another thread is closing it: wait for that");
        return TARN_E_BUSY;
    }
    if (client_is_over(c)) {
        client_await_end(c);
    } else {
        w->closing = true;
        client_hold(c);
        receives_cancel(c, w->base, w->nbytes);
        rc = window_await_calls(&w->calls, until, "window");
        if (rc == 0)
            rc = close_lib(w, until);
        client_unhold(c);
        w->closing = false;
    }
    if (rc != 0)
        return rc;
    w->lib = NULL;
    delist(w);
    leases_forget(w);
    return 0;
}

static int end(PyObject *self, uint32_t timeout_ms)
{
    struct window *w = (struct window *)self;

    if (withdraw(w, timeout_ms) != 0)
        return -1;
    batch_free(&w->batch);
    batch_init(&w->batch, w->client, true);
    return 0;
}

static struct args_spec close_args = {.function = "close", .positional = 1, .names = {"timeout"}};

static PyObject *window_close(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[1];
    uint32_t ms = 0;

    if (args_parse(&close_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[0], "timeout", &ms) < 0 ||
        end(self, ms) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *window_exit(PyObject *self, PyObject *args, int (*end_it)(PyObject *self, uint32_t timeout_ms))
{
    bool raised = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;

    if (end_it(self, 0) < 0) {
        if (!raised)
            return NULL;
        PyErr_Clear();
    }
    Py_RETURN_FALSE;
}

static PyObject *window_leave_block(PyObject *self, PyObject *args)
{
    return window_exit(self, args, end);
}

static void window_dealloc(PyObject *self)
{
    struct window *w = (struct window *)self;
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    if (withdraw(w, 0) == 0) /* else peers may still reach the memory */
        batch_free(&w->batch);
    else
        delist(w);
    PyErr_Restore(type, value, trace);
    Py_XDECREF(w->descriptor);
    Py_DECREF(w->client);
    Py_TYPE(self)->tp_free(self);
}

/* --- notifications ------------------------------------------------------------------------------ */

/* New reference; NULL: its lease is being deallocated. */
static PyObject *lease_of(const struct window *w, const struct tarn_lease *lib)
{
    for (struct lease *l = w->leases; l; l = l->next)
        if (l->lib == lib) {
            Py_INCREF(l);
            return (PyObject *)l;
        }
    return NULL;
}

/*
 * Takes a notification if there is one: 1, 0, or -1 with an exception. Keeps the GIL, so that its lease can
 * be found: no other lease can be made at the same address meanwhile. libtarn waits only if another thread
 * has just taken the notification, for 1 ms.
 */
static int take(struct window *w, PyObject **out)
{
    struct pollfd fd = {.fd = tarn_notification_fd(w->lib), .events = POLLIN};
    struct tarn_notification n;

    if (poll(&fd, 1, 0) <= 0)
        return 0;
    int rc = tarn_notification_next(w->lib, 1, &n);
    if (rc == TARN_E_TIMEOUT && !PyErr_Occurred())
        return 0;
    if (raise_call(rc, NULL) < 0)
        return -1;
    PyObject *lease = lease_of(w, n.lease);
    if (!lease)
        return 0;
    PyObject *peer = PyUnicode_DecodeUTF8(n.peer, (Py_ssize_t)strlen(n.peer), "replace");
    PyObject *data = PyBytes_FromStringAndSize(n.data, (Py_ssize_t)n.bytes);
    *out = peer && data ? Py_BuildValue("(KOOO)", (unsigned long long)n.tag, data, peer, lease) : NULL;
    Py_XDECREF(peer);
    Py_XDECREF(data);
    Py_DECREF(lease);
    return *out ? 1 : -1;
}

static void await_fd(const struct window *w, uint32_t ms)
{
    struct pollfd fd = {.fd = tarn_notification_fd(w->lib), .events = POLLIN};

    Py_BEGIN_ALLOW_THREADS
    poll(&fd, 1, (int)ms);
    Py_END_ALLOW_THREADS
}

/* Called between enter and leave. */
static PyObject *await_notification(struct window *w, uint64_t until)
{
    PyObject *n = NULL;

    for (;;) {
        int rc = take(w, &n);
        if (rc != 0)
            return rc > 0 ? n : NULL;
        if (PyErr_CheckSignals() < 0 || window_check_open(w) < 0)
            return NULL;
        if (now_ms() >= until) {
            raise_code(TARN_E_TIMEOUT, NULL, "notification: none has come in time: wait longer");
            return NULL;
        }
        await_fd(w, window_left(until, SLICE_MS));
    }
}

static struct args_spec notification_args = {
    .function = "notification", .positional = 1, .names = {"timeout"}};

static PyObject *window_notification(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                     PyObject *kwnames)
{
    struct window *w = (struct window *)self;
    PyObject *arg[1];
    uint32_t ms = 0;

    if (args_parse(&notification_args, args, nargs, kwnames, arg) < 0 ||
        args_seconds(arg[0], "timeout", &ms) < 0 || window_enter(w) < 0)
        return NULL;
    PyObject *n = await_notification(w, window_until(w, ms));
    window_leave(w);
    return n;
}

static PyObject *get_fd(PyObject *self, void *unused)
{
    struct window *w = (struct window *)self;

    (void)unused;
    if (window_enter(w) < 0)
        return NULL;
    int fd = tarn_notification_fd(w->lib);
    window_leave(w);
    return PyLong_FromLong(fd);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *lease_all(const struct window *w)
{
    const struct tarn_lease_options o = {.size = sizeof o};
    struct tarn_lease *lib;

    return raise_call(tarn_lease(w->lib, NULL, 0, &o, &lib), NULL) < 0 ? NULL : lease_text(lib);
}

static PyObject *get_descriptor(PyObject *self, void *unused)
{
    struct window *w = (struct window *)self;

    (void)unused;
    if (window_enter(w) < 0)
        return NULL;
    if (!w->descriptor)
        w->descriptor = lease_all(w);
    window_leave(w);
    Py_XINCREF(w->descriptor);
    return w->descriptor;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    const struct window *w = (struct window *)self;

    (void)unused;
    return PyBool_FromLong(!w->lib || w->closing || w->client->closed);
}

static PyMethodDef methods[] = {
    {"lease", (PyCFunction)(void (*)(void))window_lease, METH_FASTCALL | METH_KEYWORDS,
     "lease($self, items=None, write=False, ttl=None)\n--\n\n"
     "Lets others read, or read and write, parts of the window; returns a Lease. Keep it: it ends when "
     "nothing "
     "refers\n"
     "to it.\n\n"
     "`items`: a view of what was lent, such as pages[3]; or a list of views, of (offset, bytes) and of "
     "(offset, bytes,\n"
     "stride, count), which together, in order, are the lease's bytes. None: the whole window. `ttl`: "
     "seconds until it\n"
     "ends by itself; None: never.\n\n"
     "Raises Invalid (outside of the window), Busy (too many leases), Closed."},
    {"_notification", (PyCFunction)(void (*)(void))window_notification, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"close", (PyCFunction)(void (*)(void))window_close, METH_FASTCALL | METH_KEYWORDS,
     "close($self, timeout=None)\n--\n\n"
     "Recalls all leases, cancels receives into the memory, and releases it: no peer can reach it any "
     "more.\n\n"
     "Raises Busy when a peer's process has not ended a transfer in time: then the window is as before, but "
     "for the\n"
     "leases that were recalled."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", window_leave_block, METH_VARARGS, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"nbytes", T_ULONGLONG, offsetof(struct window, nbytes), READONLY, "bytes"},
    {0},
};

static PyGetSetDef properties[] = {
    {"descriptor", get_descriptor, NULL,
     "Descriptor of a lease for reading the whole window, which ends with the window. It is made at the "
     "first "
     "use.",
     NULL},
    {"notification_fd", get_fd, NULL, "Readable while notifications wait: poll it, never read or close it.",
     NULL},
    {"closed", get_closed, NULL, "True from the beginning of close(), or of the client's, on.", NULL},
    {0},
};

PyTypeObject window_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Window",
    .tp_doc = "The C part of tarn.Window.",
    .tp_basicsize = sizeof(struct window),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = window_new,
    .tp_dealloc = window_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};
