/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lease: parts of a window that others may reach. It keeps its window.
 *
 *   running --recall(), the end of the with block, nobody refers to it--> ended      lib != NULL: running
 *     \--the window is closed, its client ends-------------------------^
 *
 * A lease whose time is over is running in this sense, until it is recalled. window.c has the rules of calls.
 */
#include "operation.h"
#include "window.h"

#include <structmember.h>

#define SLICE_MS 50 /* of a wait, between checks for signals and for recall() */

/* --- the window's list -------------------------------------------------------------------------- */

static void enlist(struct lease *l)
{
    l->next = l->window->leases;
    if (l->next)
        l->next->prev = l;
    l->window->leases = l;
}

static void delist(struct lease *l)
{
    if (l->prev)
        l->prev->next = l->next;
    else if (l->window->leases == l)
        l->window->leases = l->next;
    if (l->next)
        l->next->prev = l->prev;
    l->prev = l->next = NULL;
}

void leases_forget(struct window *w)
{
    while (w->leases) {
        w->leases->lib = NULL;
        delist(w->leases);
    }
}

/* --- runs --------------------------------------------------------------------------------------- */

struct run_list {
    const struct window *window;
    struct batch batch; /* keeps the views meanwhile */
    struct tarn_run *runs;
    uint32_t n, room;
};

static int add_run(struct run_list *list, const struct tarn_run *run)
{
    if (list->n == TARN_RUNS_MAX)
        return raise_why(TARN_E_INVALID, NULL, "items: more than %d runs: lease fewer at a time",
                         TARN_RUNS_MAX);
    if (list->n == list->room) {
        uint32_t room = list->room ? 2 * list->room : 16;
        struct tarn_run *more = PyMem_Realloc(list->runs, room * sizeof *more);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        list->runs = more;
        list->room = room;
    }
    list->runs[list->n++] = *run;
    return 0;
}

/* (offset, bytes) or (offset, bytes, stride, count). */
static int add_numbers(struct run_list *list, PyObject *item)
{
    static const char *const names[] = {"items: offset", "items: bytes", "items: stride", "items: count"};
    Py_ssize_t n = PyTuple_GET_SIZE(item);
    uint64_t number[4] = {0};

    if (n != 2 && n != 4)
        return raise_why(
            TARN_E_INVALID, NULL,
            "items: a run of %zd numbers: give (offset, bytes) or (offset, bytes, stride, count)", n);
    for (Py_ssize_t i = 0; i < n; i++)
        if (args_u64(PyTuple_GET_ITEM(item, i), names[i], &number[i]) < 0)
            return -1;
    return add_run(list, &(struct tarn_run){number[0], number[1], number[2], number[3]});
}

/* A view of the window's memory. */
static int add_view(struct run_list *list, PyObject *item)
{
    const struct window *w = list->window;
    struct value *v = arena_alloc(&list->batch.arena, sizeof *v);

    if (!v || value_of(&list->batch, item, v) < 0)
        return -1;
    for (uint32_t i = 0; i < v->npieces; i++) {
        const struct tarn_piece *p = &v->pieces[i];
        uintptr_t at = (uintptr_t)p->addr;
        if (at < w->base || at - w->base >= w->nbytes)
            return raise_code(TARN_E_INVALID, NULL,
                              "items: an element has other memory than the window: give a view of what was "
                              "lent, or (offset, bytes)");
        if (add_run(list, &(struct tarn_run){at - w->base, p->bytes, p->stride, p->count}) < 0)
            return -1;
    }
    return 0;
}

static int add_item(struct run_list *list, PyObject *item)
{
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) > 0 && is_number(PyTuple_GET_ITEM(item, 0)))
        return add_numbers(list, item);
    if (is_number(item))
        return raise_type("items: an element", item,
                          "a view of what was lent, (offset, bytes) or (offset, bytes, stride, count)");
    return add_view(list, item);
}

/* None gives no runs, which libtarn takes for the whole window. */
static int add_items(struct run_list *list, PyObject *items)
{
    if (!items || items == Py_None)
        return 0;
    int rc = 0;
    if (PyList_Check(items) || PyTuple_Check(items)) {
        PyObject *all = PySequence_Tuple(items); /* our own, so nobody else changes it */
        if (!all || batch_keep(&list->batch, all) < 0) {
            Py_XDECREF(all);
            return -1;
        }
        Py_DECREF(all);
        for (Py_ssize_t i = 0; rc == 0 && i < PyTuple_GET_SIZE(all); i++)
            rc = add_item(list, PyTuple_GET_ITEM(all, i));
    } else {
        rc = add_view(list, items);
    }
    if (rc < 0 || list->n > 0)
        return rc;
    return raise_code(TARN_E_INVALID, NULL,
                      "items: they have no bytes: give at least one, or None for the whole window");
}

/* --- leasing ------------------------------------------------------------------------------------ */

static struct lease *lease_new(struct window *w)
{
    struct lease *l = (struct lease *)lease_type.tp_alloc(&lease_type, 0);

    if (l) {
        Py_INCREF(w);
        l->window = w;
    }
    return l;
}

/* Keeps the GIL: libtarn does not wait, and take() in window.c relies on it. */
static PyObject *begin(struct window *w, const struct run_list *list, const struct tarn_lease_options *o)
{
    struct lease *l = lease_new(w);

    if (!l || window_enter(w) < 0) {
        Py_XDECREF(l);
        return NULL;
    }
    if (raise_call(tarn_lease(w->lib, list->runs, list->n, o, &l->lib), NULL) == 0)
        enlist(l);
    window_leave(w);
    if (l->lib)
        return (PyObject *)l;
    Py_DECREF(l);
    return NULL;
}

static struct args_spec lease_args = {
    .function = "lease", .positional = 3, .names = {"items", "write", "ttl"}};

PyObject *window_lease(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct window *w = (struct window *)self;
    struct tarn_lease_options o = {.size = sizeof o};
    struct run_list list = {.window = w};
    PyObject *arg[3], *result = NULL;

    if (args_parse(&lease_args, args, nargs, kwnames, arg) < 0 ||
        args_flag(arg[1], "write", TARN_LEASE_WRITE, &o.flags) < 0 ||
        args_seconds(arg[2], "ttl", &o.ttl_ms) < 0)
        return NULL;
    batch_init(&list.batch, w->client, o.flags & TARN_LEASE_WRITE);
    if (add_items(&list, arg[0]) == 0)
        result = begin(w, &list, &o);
    batch_free(&list.batch);
    PyMem_Free(list.runs);
    return result;
}

/* --- calls -------------------------------------------------------------------------------------- */

static int check_running(const struct lease *l)
{
    if (l->lib && !l->recalling)
        return 0;
    return raise_code(TARN_E_STALE, NULL, "lease: it was recalled: make another one");
}

static int enter(struct lease *l)
{
    if (window_enter(l->window) < 0)
        return -1;
    if (check_running(l) < 0) {
        window_leave(l->window);
        return -1;
    }
    l->calls++;
    return 0;
}

static void leave(struct lease *l)
{
    l->calls--;
    if (l->recalling)
        tell_left();
    window_leave(l->window);
}

PyObject *lease_text(const struct tarn_lease *lib)
{
    char text[TARN_DESCRIPTOR_MAX];

    return raise_call(tarn_lease_descriptor(lib, text), NULL) < 0 ? NULL : PyUnicode_FromString(text);
}

static PyObject *get_descriptor(PyObject *self, void *unused)
{
    struct lease *l = (struct lease *)self;

    (void)unused;
    if (enter(l) < 0)
        return NULL;
    PyObject *text = lease_text(l->lib);
    leave(l);
    return text;
}

struct publication {
    struct tarn_lease *lib;
    const char *name;
    uint32_t ttl_ms;
};

static int publish(void *arg, uint32_t timeout_ms)
{
    const struct publication *p = arg;

    return tarn_lease_publish(p->lib, p->name, p->ttl_ms, timeout_ms);
}

static struct args_spec publish_args = {
    .function = "publish", .required = 1, .positional = 3, .names = {"name", "ttl", "timeout"}};

static PyObject *lease_publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct lease *l = (struct lease *)self;
    struct publication p = {.name = ""}; /* libtarn refuses it */
    PyObject *arg[3];
    uint32_t ms = 0;

    if (args_parse(&publish_args, args, nargs, kwnames, arg) < 0 || args_text(arg[0], "name", &p.name) < 0 ||
        args_seconds(arg[1], "ttl", &p.ttl_ms) < 0 || args_seconds(arg[2], "timeout", &ms) < 0 ||
        enter(l) < 0)
        return NULL;
    p.lib = l->lib;
    int rc = call_plain(l->window->client, publish, &p, ms, NULL);
    leave(l);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Called between enter and leave. In slices, so that recall(), close() and signals end it early. */
static int expect(struct lease *l, uint64_t tag, uint32_t n, uint64_t until)
{
    for (;;) {
        uint32_t ms = window_left(until, SLICE_MS);
        int rc;
        Py_BEGIN_ALLOW_THREADS
        rc = tarn_expect(l->lib, tag, n, ms);
        Py_END_ALLOW_THREADS
        if (rc != TARN_E_TIMEOUT || now_ms() >= until)
            return raise_call(rc, NULL);
        if (PyErr_CheckSignals() < 0 || check_running(l) < 0 || window_check_open(l->window) < 0)
            return -1;
    }
}

static struct args_spec expect_args = {
    .function = "expect", .required = 1, .positional = 3, .names = {"tag", "n", "timeout"}};

struct expectation {
    struct tarn_lease *lib;
    uint64_t tag;
    uint32_t n, timeout_ms;
};

static int expectation_of(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, struct expectation *e)
{
    PyObject *arg[3];

    *e = (struct expectation){.n = 1};
    if (args_parse(&expect_args, args, nargs, kwnames, arg) < 0 || args_u64(arg[0], "tag", &e->tag) < 0 ||
        args_number(arg[1], "n", 1, UINT32_MAX, &e->n) < 0)
        return -1;
    return args_seconds(arg[2], "timeout", &e->timeout_ms);
}

static PyObject *lease_expect(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct lease *l = (struct lease *)self;
    struct expectation e;

    if (expectation_of(args, nargs, kwnames, &e) < 0 || enter(l) < 0)
        return NULL;
    int rc = expect(l, e.tag, e.n, window_until(l->window, e.timeout_ms));
    leave(l);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int give_expect(struct operation *o, const void *options)
{
    const struct expectation *e = options;

    return tarn_submit_expect(e->lib, e->tag, e->n, e->timeout_ms, (uint64_t)(uintptr_t)&o->op, &o->op.id);
}

/* libtarn's lease stays until the operation has ended: recall() waits for that. */
static PyObject *submit_expect(struct lease *l, const struct expectation *e)
{
    struct operation *o = operation_new(l->window->client, SUBMIT_EXPECT, false);

    if (o && batch_keep(&o->batch, (PyObject *)l) == 0)
        return operation_submit(o, give_expect, e);
    Py_XDECREF(o);
    return NULL;
}

/* A coroutine. */
static PyObject *lease_aexpect(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct lease *l = (struct lease *)self;
    struct expectation e;

    if (expectation_of(args, nargs, kwnames, &e) < 0 || enter(l) < 0)
        return NULL;
    e.lib = l->lib;
    PyObject *o = submit_expect(l, &e);
    leave(l);
    PyObject *result = o ? PyObject_CallMethod((PyObject *)l->window->client, "_finish", "O", o) : NULL;
    Py_XDECREF(o);
    return result;
}

/* --- recalling ---------------------------------------------------------------------------------- */

/* Between hold and unhold, while no other call uses the lease. */
static int recall_lib(struct lease *l, uint64_t until)
{
    uint32_t ms = window_left(until, UINT32_MAX);
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_recall(l->lib, ms);
    Py_END_ALLOW_THREADS
    if (rc == 0)
        l->lib = NULL;
    return raise_call(rc, NULL);
}

/* The lease is running, its window is not being closed. 0, or -1 with an exception. */
static int withdraw(struct lease *l, uint64_t until)
{
    struct window *w = l->window;
    struct client *c = w->client;

    l->recalling = true;
    w->calls++; /* like window_enter(), also after the client's close() has begun */
    client_hold(c);
    int rc = window_await_calls(&l->calls, until, "lease");
    if (rc == 0)
        rc = recall_lib(l, until);
    client_unhold(c);
    w->calls--;
    if (w->closing)
        tell_left();
    l->recalling = false;
    return rc == 0 ? 0 : -1;
}

static int end(PyObject *self, uint32_t timeout_ms)
{
    struct lease *l = (struct lease *)self;
    struct window *w = l->window;

    if (!l->lib)
        return 0;
    if (client_is_over(w->client)) {
        client_await_end(w->client);
        return 0;
    }
    if (l->recalling || w->closing)
        return raise_code(TARN_E_BUSY, NULL, "lease: another thread is recalling it: wait for that");
    if (withdraw(l, window_until(w, timeout_ms)) < 0)
        return -1;
    delist(l);
    return 0;
}

static struct args_spec recall_args = {.function = "recall", .positional = 1, .names = {"timeout"}};

static PyObject *lease_recall(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[1];
    uint32_t ms = 0;

    if (args_parse(&recall_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[0], "timeout", &ms) < 0 ||
        end(self, ms) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *lease_leave_block(PyObject *self, PyObject *args)
{
    return window_exit(self, args, end);
}

/* What cannot be recalled here ends with the window. */
static void lease_dealloc(PyObject *self)
{
    struct lease *l = (struct lease *)self;
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    delist(l); /* first, so that no notification gets a reference to it */
    if (end(self, 0) < 0)
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
    Py_DECREF(l->window);
    Py_TYPE(self)->tp_free(self);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"publish", (PyCFunction)(void (*)(void))lease_publish, METH_FASTCALL | METH_KEYWORDS,
     "publish($self, name, ttl=None, timeout=None)\n--\n\n"
     "Gives the lease a name, which peers may give to Client.reach() in place of the descriptor. A node "
     "keeps "
     "it while\n"
     "this client lives, for `ttl` seconds at most.\n\n"
     "Raises Exists (another lease has the name), Invalid (1 to 63 of A-Z a-z 0-9 . _ -), NodeDown, Stale."},
    {"expect", (PyCFunction)(void (*)(void))lease_expect, METH_FASTCALL | METH_KEYWORDS,
     "expect($self, tag, n=1, timeout=None)\n--\n\n"
     "Waits for n notifications of this lease with that tag, and takes them.\n\n"
     "Raises NodeDown (a writer that had reached the lease is gone without closing its client; the sentence "
     "names it),\n"
     "Timeout (those that have come stay), Stale (the lease has ended), Closed."},
    {"aexpect", (PyCFunction)(void (*)(void))lease_aexpect, METH_FASTCALL | METH_KEYWORDS,
     "aexpect($self, tag, n=1, timeout=None)\n--\n\n"
     "As expect(), for asyncio. It waits from the call on, not from the await on. A canceled one has taken "
     "none, unless "
     "they\n"
     "were all there by then."},
    {"recall", (PyCFunction)(void (*)(void))lease_recall, METH_FASTCALL | METH_KEYWORDS,
     "recall($self, timeout=None)\n--\n\n"
     "Ends the lease. When this returns no peer can read or write its parts any more; peers get Stale.\n\n"
     "Raises Busy when a peer's process has not ended a transfer in time, and names it: no transfer begins "
     "any more;\n"
     "call it again."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", lease_leave_block, METH_VARARGS, NULL},
    {0},
};

static PyGetSetDef properties[] = {
    {"descriptor", get_descriptor, NULL,
     "A line of text for Client.reach(): whoever has it may use the lease. It does not keep the lease.",
     NULL},
    {0},
};

PyTypeObject lease_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Lease",
    .tp_doc =
        "Parts of a window that others may reach: see Window.lease(). A context manager, which recalls it. "
        "It also\n"
        "ends when nobody refers to it.",
    .tp_basicsize = sizeof(struct lease),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = lease_dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};
