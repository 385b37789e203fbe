/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Table: objects that kernels of a GPU read by themselves (include/tarn/table.h).
 *
 * A table of libtarn's belongs to one thread at a time, so calls take turns: `busy` is set while one of them
 * is in libtarn without the GIL. The table ends with its client (client_is_over()), which frees it.
 *
 * gather() may be captured in a CUDA graph. So it records no events and waits for no streams: it is one
 * launch on the caller's stream, where the caller has ordered what the arrays need.
 */
#include "ext.h"

#include <structmember.h>

#include <tarn/table.h>

struct table {
    PyObject_HEAD struct client *client;
    struct tarn_table *lib; /* NULL: closed */
    uint32_t npages, device;
    bool busy;
    unsigned long owner; /* the thread whose turn it is */
};

/* --- turns -------------------------------------------------------------------------------------- */

static int take_turn(struct table *t)
{
    unsigned long self = PyThread_get_thread_ident();

    while (t->busy) {
        if (t->owner == self) /* in a handler of a signal */
            return raise_code(TARN_E_BUSY, NULL,
                              "table: this thread is in the middle of a call of it: try again after that");
        wait_left();
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
    t->busy = true;
    t->owner = self;
    return 0;
}

static void end_turn(struct table *t)
{
    t->busy = false;
    tell_left();
}

static void table_leave(struct table *t)
{
    end_turn(t);
    client_leave(t->client);
}

static int table_enter(struct table *t)
{
    if (client_enter(t->client) < 0)
        return -1;
    if (take_turn(t) < 0) {
        client_leave(t->client);
        return -1;
    }
    if (t->lib)
        return 0;
    table_leave(t);
    return raise_code(TARN_E_CLOSED, NULL, "table: it was closed: make another one");
}

/* --- objects ------------------------------------------------------------------------------------ */

/* A page's own failure is no failure of the call; the call returns the first of them. */
static bool set_failed_whole(int rc, const int32_t *statuses, size_t n)
{
    size_t i = 0;

    while (i < n && statuses[i] == 0)
        i++;
    return rc != 0 && (i == n || statuses[i] != rc);
}

/* A list of codes; NULL with an exception. */
static PyObject *set_pages(struct table *t, struct batch *b, uint32_t first, PyObject *keys, PyObject *hits,
                           uint32_t ms)
{
    const struct tarn_hits *h;
    PyObject *codes = NULL;
    struct tarn_key *k;
    size_t n;
    int rc;

    if (batch_keys(b, keys, &k, &n) < 0 || hits_of(hits, t->client, n, &h) < 0)
        return NULL;
    if (n > t->npages || first > t->npages - n) {
        raise_why(TARN_E_INVALID, NULL,
                  "table: %zu keys from page %u on: it has %u pages: give fewer, or make a larger table", n,
                  first, t->npages);
        return NULL;
    }
    int32_t *statuses = arena_zalloc(&b->arena, (n ? n : 1) * sizeof *statuses);
    if (!statuses || table_enter(t) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_table_set(t->lib, first, k, (uint32_t)n, h, ms, statuses);
    Py_END_ALLOW_THREADS;
    if (!PyErr_Occurred() && !set_failed_whole(rc, statuses, n))
        codes = codes_of(statuses, sizeof *statuses, n);
    else
        raise_call(rc, NULL);
    table_leave(t);
    return codes;
}

static struct args_spec set_args = {
    .function = "set", .required = 1, .positional = 2, .names = {"keys", "first", "hits", "timeout"}};

static PyObject *table_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[4], *codes = NULL;
    uint32_t first = 0, ms = 0;
    struct batch b;

    if (args_parse(&set_args, args, nargs, kwnames, arg) < 0 ||
        args_number(arg[1], "first", 0, TARN_TABLE_PAGES_MAX, &first) < 0 ||
        args_seconds(arg[3], "timeout", &ms) < 0)
        return NULL;
    batch_init(&b, ((struct table *)self)->client, false);
    codes = set_pages((struct table *)self, &b, first, arg[0], arg[2], ms);
    batch_free(&b);
    return codes;
}

/* --- gathers ------------------------------------------------------------------------------------ */

/* An array of the table's GPU whose last dimension has no gaps. */
static int take_array(const struct table *t, struct batch *b, PyObject *o, const char *name, int ndim,
                      struct array *a)
{
    if (array_of(b, o, a) < 0)
        return -1;
    if (a->device != (int)t->device)
        return raise_why(TARN_E_INVALID, NULL,
                         "gather: %s: lies on device %d (-1: the host): give an array on GPU %u, the table's",
                         name, a->device, (unsigned)t->device);
    if (a->ndim != ndim)
        return raise_why(TARN_E_INVALID, NULL, "gather: %s: has %d dimensions: give %d", name, a->ndim, ndim);
    if (a->shape[ndim - 1] > 1 && a->strides[ndim - 1] != tarn_dtype_bytes(a->dtype))
        return raise_why(TARN_E_INVALID, NULL,
                         "gather: %s: its elements lie %zd bytes apart: give a contiguous array", name,
                         a->strides[ndim - 1]);
    return 0;
}

static int take_rows(const struct table *t, struct batch *b, PyObject *o, struct tarn_gather *g)
{
    struct array a;

    b->writable = false;
    if (take_array(t, b, o, "rows", 1, &a) < 0)
        return -1;
    if (a.dtype != TARN_I32 && a.dtype != TARN_U32)
        return raise_why(TARN_E_INVALID, NULL, "gather: rows: of dtype %s: give int32 or uint32",
                         tarn_dtype_name(a.dtype));
    if (a.shape[0] > INT32_MAX)
        return raise_why(TARN_E_INVALID, NULL, "gather: rows: %zd of them: give at most %d", a.shape[0],
                         INT32_MAX);
    g->rows = (const uint32_t *)(void *)a.base;
    g->n = (uint32_t)a.shape[0];
    return 0;
}

/* row_bytes is 0, or what the caller wants of each row of `out`. */
static int take_out(const struct table *t, struct batch *b, PyObject *o, struct tarn_gather *g)
{
    struct array a;

    b->writable = true;
    if (take_array(t, b, o, "out", 2, &a) < 0)
        return -1;
    Py_ssize_t bytes = a.shape[1] * tarn_dtype_bytes(a.dtype);
    if (a.shape[0] != (Py_ssize_t)g->n)
        return raise_why(TARN_E_INVALID, NULL, "gather: out: %zd rows for %u numbers: give a row for each",
                         a.shape[0], (unsigned)g->n);
    if (bytes == 0 || bytes > UINT32_MAX || g->row_bytes > bytes)
        return raise_why(TARN_E_INVALID, NULL,
                         "gather: out: rows of %zd bytes for row_bytes=%u: give rows of 1 to 2^32 - 1 bytes, "
                         "at least row_bytes",
                         bytes, (unsigned)g->row_bytes);
    if (g->n > 1 && a.strides[0] < bytes)
        return raise_why(TARN_E_INVALID, NULL,
                         "gather: out: rows of %zd bytes lie %zd bytes apart: give an array whose rows do "
                         "not overlap",
                         bytes, a.strides[0]);
    g->row_bytes = g->row_bytes ? g->row_bytes : (uint32_t)bytes;
    g->stride = g->n > 1 ? (uint64_t)a.strides[0] : (uint64_t)bytes;
    g->to = a.base;
    return 0;
}

static int take_status(const struct table *t, struct batch *b, PyObject *o, struct tarn_gather *g)
{
    struct array a;

    b->writable = true;
    if (take_array(t, b, o, "status", 1, &a) < 0)
        return -1;
    if (a.dtype != TARN_I32)
        return raise_why(TARN_E_INVALID, NULL, "gather: status: of dtype %s: give int32",
                         tarn_dtype_name(a.dtype));
    if (a.shape[0] != (Py_ssize_t)g->n)
        return raise_why(TARN_E_INVALID, NULL, "gather: status: %zd elements for %u rows: give one for each",
                         a.shape[0], (unsigned)g->n);
    g->status = (int32_t *)(void *)a.base;
    return 0;
}

/* New reference: the caller's, or a tensor like `out`. */
static PyObject *status_or_new(PyObject *status, PyObject *out, uint32_t n)
{
    if (!status || status == Py_None)
        return torch_new_int32(out, n);
    Py_INCREF(status);
    return status;
}

/* 0, or -1 with an exception. */
static int launch(struct table *t, const struct tarn_gather *g, PyObject *stream_arg)
{
    void *stream = NULL; /* CUDA's default stream */
    int rc;

    if (((stream_arg && stream_arg != Py_None) || torch_is_loaded()) &&
        stream_of(stream_arg, (int)t->device, &stream) < 0)
        return -1;
    if (table_enter(t) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS; /* a full stream makes a launch wait */
    rc = tarn_table_gather(t->lib, g, stream);
    Py_END_ALLOW_THREADS;
    rc = raise_call(rc, NULL);
    table_leave(t);
    return rc;
}

/* arg: rows, out, offset, row_bytes, rows_per_page, status, stream. */
static PyObject *gather(struct table *t, struct batch *b, PyObject *const *arg)
{
    struct tarn_gather g = {.size = sizeof g};

    if (args_u64(arg[2], "offset", &g.offset) < 0 ||
        args_number(arg[3], "row_bytes", 1, UINT32_MAX, &g.row_bytes) < 0 ||
        args_number(arg[4], "rows_per_page", 1, UINT32_MAX, &g.rows_per_page) < 0 ||
        take_rows(t, b, arg[0], &g) < 0 || take_out(t, b, arg[1], &g) < 0)
        return NULL;
    PyObject *status = status_or_new(arg[5], arg[1], g.n);
    if (status && (take_status(t, b, status, &g) < 0 || launch(t, &g, arg[6]) < 0))
        Py_CLEAR(status);
    return status;
}

static struct args_spec gather_args = {
    .function = "gather",
    .required = 2,
    .positional = 2,
    .names = {"rows", "out", "offset", "row_bytes", "rows_per_page", "status", "stream"}};

static PyObject *table_gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct table *t = (struct table *)self;
    PyObject *arg[7], *status;
    struct batch b;

    if (args_parse(&gather_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, t->client, false);
    b.on_stream = true;
    status = gather(t, &b, arg);
    batch_free(&b);
    return status;
}

/* --- making and closing ------------------------------------------------------------------------- */

struct making {
    struct client *client;
    struct tarn_table_options options;
    struct tarn_table *lib;
};

static int make(void *arg, uint32_t timeout_ms)
{
    struct making *m = arg;

    m->options.timeout_ms = timeout_ms;
    return tarn_table_new(m->client->lib, &m->options, &m->lib);
}

static struct table *table_of(PyTypeObject *type, struct client *c, uint32_t npages, uint32_t device,
                              uint32_t ms)
{
    struct making m = {c, {.size = sizeof m.options, .device = (int32_t)device, .npages = npages}, NULL};
    struct table *t = (struct table *)type->tp_alloc(type, 0);

    if (!t)
        return NULL;
    Py_INCREF(c);
    t->client = c;
    t->npages = npages;
    t->device = device;
    int rc = call_plain(c, make, &m, ms, NULL);
    t->lib = m.lib;
    if (rc == 0)
        return t;
    Py_DECREF(t);
    return NULL;
}

static int take_hits(struct table *t, PyObject *hits, uint32_t ms)
{
    struct batch b;

    batch_init(&b, t->client, false);
    PyObject *codes = set_pages(t, &b, 0, ((struct hits *)hits)->keys, hits, ms);
    batch_free(&b);
    Py_XDECREF(codes);
    return codes ? 0 : -1;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"hits", "device", "timeout", NULL};
    PyObject *hits, *device_arg = NULL, *timeout = NULL;
    uint32_t device = 0, ms = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$O:Table", names, &hits, &device_arg, &timeout) ||
        args_number(device_arg, "device", 0, INT32_MAX, &device) < 0 ||
        args_seconds(timeout, "timeout", &ms) < 0)
        return NULL;
    if (!PyObject_TypeCheck(hits, &hits_type)) {
        raise_type("hits", hits, "the Hits of lookup() or match_prefix()");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(((struct hits *)hits)->keys);
    if (n > TARN_TABLE_PAGES_MAX) {
        raise_why(TARN_E_INVALID, NULL, "table: %zd hits: give at most %u", n, TARN_TABLE_PAGES_MAX);
        return NULL;
    }
    struct table *t = table_of(type, ((struct hits *)hits)->client, (uint32_t)n, device, ms);
    if (t && take_hits(t, hits, ms) < 0)
        Py_CLEAR(t);
    return (PyObject *)t;
}

static struct args_spec client_table_args = {
    .function = "table", .required = 1, .positional = 2, .names = {"npages", "device", "timeout"}};

static PyObject *client_table(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    uint32_t npages = 0, device = 0, ms = 0;
    PyObject *arg[3];

    if (args_parse(&client_table_args, args, nargs, kwnames, arg) < 0 ||
        args_number(arg[0], "npages", 1, TARN_TABLE_PAGES_MAX, &npages) < 0 ||
        args_number(arg[1], "device", 0, INT32_MAX, &device) < 0 || args_seconds(arg[2], "timeout", &ms) < 0)
        return NULL;
    return (PyObject *)table_of(&table_type, (struct client *)self, npages, device, ms);
}

/* Its turn is this thread's. */
static void end(struct table *t)
{
    struct tarn_table *lib = t->lib;

    t->lib = NULL;
    if (!lib || client_is_over(t->client))
        return;
    client_hold(t->client);
    Py_BEGIN_ALLOW_THREADS; /* waits for kernels */
    tarn_table_free(lib);
    Py_END_ALLOW_THREADS;
    client_unhold(t->client);
}

static PyObject *table_close(PyObject *self, PyObject *unused)
{
    struct table *t = (struct table *)self;

    (void)unused;
    if (client_is_over(t->client)) /* in a child process the turn may be that of a thread that is not there */
        Py_RETURN_NONE;
    if (take_turn(t) < 0)
        return NULL;
    end(t);
    end_turn(t);
    Py_RETURN_NONE;
}

static PyObject *table_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return table_close(self, NULL);
}

static void table_dealloc(PyObject *self)
{
    struct table *t = (struct table *)self;

    end(t);
    Py_DECREF(t->client);
    Py_TYPE(self)->tp_free(self);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_closed(PyObject *self, void *unused)
{
    const struct table *t = (struct table *)self;

    (void)unused;
    return PyBool_FromLong(!t->lib || t->client->closed || client_is_over(t->client));
}

static PyMethodDef methods[] = {
    {"set", (PyCFunction)(void (*)(void))table_set, METH_FASTCALL | METH_KEYWORDS,
     "set($self, keys, first=0, *, hits=None, timeout=None)\n--\n\n"
     "Makes pages first, first + 1, ... these objects. Returns 0 or a negative code for each: NotFound,\n"
     "NotReachable (no pool that the GPU reaches: use get_into()), TooLarge, NodeDown, Stale.\n\n"
     "`hits`: of lookup(keys), to spare the directory.\n\n"
     "Raises Invalid, DirectoryError, Timeout, Unavailable (the GPU failed)."},
    {"gather", (PyCFunction)(void (*)(void))table_gather, METH_FASTCALL | METH_KEYWORDS,
     "gather($self, rows, out, *, offset=0, row_bytes=None, rows_per_page=1, status=None, stream=None)\n"
     "--\n\n"
     "Launches a kernel that gets rows into `out`; returns their statuses, without waiting.\n\n"
     "`rows`    numbers, a one-dimensional array of int32 or uint32: row r is bytes [offset +\n"
     "          r % rows_per_page * row_bytes, + row_bytes) of page r // rows_per_page\n"
     "`out`     a two-dimensional array with a row for each; row_bytes are the bytes of one unless given\n"
     "`status`  an array of int32; None: a new torch tensor, if `out` is one. 0: the row's bytes are the\n"
     "          object's. A negative code: they mean nothing, and a later gather may find the object\n"
     "`stream`  a torch.cuda.Stream or a cudaStream_t as int; None: torch's current one on the GPU, or\n"
     "          CUDA's default stream without torch\n\n"
     "All arrays lie on the table's GPU. What has to be done before belongs on the stream, as for any\n"
     "kernel. It may be captured in a CUDA graph, which must not be launched after close().\n\n"
     "Raises Invalid, Unavailable."},
    {"close", table_close, METH_NOARGS,
     "close($self)\n--\n\n"
     "Frees the table, after waiting for the GPU's kernels. No graph may use it any more."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", table_exit, METH_VARARGS, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"npages", T_UINT, offsetof(struct table, npages), READONLY, "pages, one for each object"},
    {"device", T_UINT, offsetof(struct table, device), READONLY, "the GPU"},
    {0},
};

static PyGetSetDef properties[] = {
    {"closed", get_closed, NULL, "Has it, or its client, been closed?", NULL},
    {0},
};

PyTypeObject table_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Table",
    .tp_doc =
        "Table(hits, device=0, *, timeout=None)\n--\n\n"
        "Objects that kernels of a GPU read by themselves, checked, chosen on the GPU, inside CUDA graphs: "
        "page i\nis the object of hit i, as lookup() found it. Client.table() makes one of any size, "
        "without objects.\n\n"
        "A context manager. Any number of threads may use it; their calls take turns.\n\n"
        "Raises Invalid, Unavailable (no GPU, or it failed), NoMemory, Timeout.",
    .tp_basicsize = sizeof(struct table),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = table_new,
    .tp_dealloc = table_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};

PyMethodDef table_methods[] = {
    {"table", (PyCFunction)(void (*)(void))client_table, METH_FASTCALL | METH_KEYWORDS,
     "table($self, npages, device=0, *, timeout=None)\n--\n\n"
     "A Table of so many pages, which are of no object until Table.set().\n\n"
     "Raises Invalid, Unavailable (no GPU, or it failed), NoMemory, Timeout."},
    {0},
};
