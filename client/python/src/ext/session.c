/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PutSession: room for objects that are written piece by piece and become readable at the commit.
 *
 *   open --commit() or the end of the with block--> ended      lib != NULL: open
 *     \--abort(), an exception in the block, nobody refers to it-^
 *
 * libtarn's session ends with its client, so `lib` is used inside the client only. It belongs to one thread
 * at a time: `busy` refuses a second one, and is guarded by the GIL.
 */
#include "ext.h"

#include <tarn/layout.h>

struct entry {
    uint64_t bytes, written;
    uint32_t dtype;
    int32_t status;
};

struct session {
    PyObject_HEAD struct client *client;
    struct tarn_put_session *lib;
    size_t n;
    struct entry *entries;
    PyObject *keys;  /* list, as given */
    PyObject *index; /* {key as bytes: number} */
    bool busy;
};

/* --- entering ----------------------------------------------------------------------------------- */

static int enter(struct session *s)
{
    if (client_enter(s->client) < 0)
        return -1;
    if (s->lib && !s->busy) {
        s->busy = true;
        return 0;
    }
    if (s->lib)
        raise_code(TARN_E_BUSY, NULL, "put session: another thread is using it: one at a time may");
    else
        raise_code(TARN_E_CLOSED, NULL, "put session: it has ended: begin another one");
    client_leave(s->client);
    return -1;
}

static void leave(struct session *s)
{
    s->busy = false;
    client_leave(s->client);
}

/* --- begin -------------------------------------------------------------------------------------- */

static int tensor_bytes(struct tarn_tensor *t)
{
    t->bytes = tarn_dtype_bytes(t->dtype);
    for (uint32_t d = 0; d < t->ndim; d++)
        if (__builtin_mul_overflow(t->bytes, t->shape[d], &t->bytes))
            return raise_code(TARN_E_TOO_LARGE, NULL,
                              "specs: a tensor of more than 2^64 bytes: give a smaller shape");
    return 0;
}

/* (dtype, shape), or a TensorInfo. */
static int set_tensor(PyObject *spec, struct tarn_tensor *t)
{
    if (!PyTuple_Check(spec) || (PyTuple_GET_SIZE(spec) != 2 && !Py_IS_TYPE(spec, &info_type)))
        return raise_type("specs: what a key is to be", spec, "(dtype, shape) or a TensorInfo");
    int dtype = dtype_of_object(PyTuple_GET_ITEM(spec, 0));
    if (dtype < 0)
        return -1;
    t->dtype = (uint32_t)dtype;
    return tensor_set_shape(t, PyTuple_GET_ITEM(spec, 1)) < 0 ? -1 : tensor_bytes(t);
}

static int set_entry(struct session *s, struct batch *b, size_t i, PyObject *pair)
{
    struct tarn_item *item = &b->items[i];

    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2)
        return raise_type("specs: an element", pair, "(key, (dtype, shape))");
    PyObject *key = PyTuple_GET_ITEM(pair, 0);
    if (batch_set_key(b, i, key, &item->key) < 0 ||
        set_tensor(PyTuple_GET_ITEM(pair, 1), &item->tensor) < 0 || PyList_Append(s->keys, key) < 0)
        return -1;
    s->entries[i] = (struct entry){.bytes = item->tensor.bytes, .dtype = item->tensor.dtype};
    PyObject *name = PyBytes_FromStringAndSize(item->key.data, (Py_ssize_t)item->key.bytes);
    PyObject *number = PyLong_FromSize_t(i);
    int rc = name && number ? PyDict_SetItem(s->index, name, number) : -1;
    Py_XDECREF(name);
    Py_XDECREF(number);
    return rc;
}

static int fill(struct session *s, struct batch *b, PyObject *specs)
{
    PyObject *pairs = is_mapping(specs)
                          ? PyMapping_Items(specs)
                          : args_list(specs, "specs", "a mapping, or an iterable of (key, (dtype, shape))");
    PyObject *all = pairs ? PySequence_Tuple(pairs) : NULL; /* our own, so nobody else changes it */
    int rc = -1;

    Py_XDECREF(pairs);
    if (!all)
        return -1;
    s->n = (size_t)PyTuple_GET_SIZE(all);
    s->entries = PyMem_Calloc(s->n ? s->n : 1, sizeof *s->entries);
    if (!s->entries)
        PyErr_NoMemory();
    else if (batch_keep(b, all) == 0 && batch_reserve(b, s->n) == 0)
        rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n; i++)
        rc = set_entry(s, b, i, PyTuple_GET_ITEM(all, (Py_ssize_t)i));
    Py_DECREF(all);
    return rc;
}

static PyObject *first_failed_key(const struct session *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->entries[i].status != 0)
            return PyList_GET_ITEM(s->keys, (Py_ssize_t)i);
    return NULL;
}

static int begin(struct session *s, struct batch *b, const struct tarn_put_options *o)
{
    int rc;

    if (client_enter(s->client) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_put_begin(s->client->lib, b->items, b->n, o, &s->lib);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < s->n; i++)
        s->entries[i].status = b->items[i].status;
    /* If there is a session, rc is that of some items only: codes says which. */
    rc = raise_call(s->lib ? 0 : rc, first_failed_key(s));
    client_leave(s->client);
    return rc;
}

static struct args_spec session_args = {
    .function = "put_session", .required = 1, .positional = 1, .names = {"specs", PUT_OPTIONS}};

static PyObject *put_session(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct tarn_put_options o;
    PyObject *arg[8];
    struct batch b;

    if (args_parse(&session_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    struct session *s = (struct session *)session_type.tp_alloc(&session_type, 0);
    if (!s)
        return NULL;
    Py_INCREF(self);
    s->client = (struct client *)self;
    batch_init(&b, s->client, false);
    if (put_options(&b, arg + 1, &o) < 0 || !(s->keys = PyList_New(0)) || !(s->index = PyDict_New()) ||
        fill(s, &b, arg[0]) < 0 || begin(s, &b, &o) < 0)
        Py_CLEAR(s);
    batch_free(&b); /* libtarn copied the keys */
    return (PyObject *)s;
}

/* --- write -------------------------------------------------------------------------------------- */

/* The index of a key, or an index itself. */
static int find(struct session *s, struct batch *b, PyObject *which, size_t *i)
{
    struct tarn_key k;

    if (PyLong_Check(which)) {
        *i = PyLong_AsSize_t(which);
        if (*i < s->n)
            return 0;
        PyErr_Clear(); /* from a number that is no size_t */
        PyErr_Format(PyExc_IndexError, "put session: %S is no index of %zu objects: count from 0", which,
                     s->n);
        return -1;
    }
    PyObject *name =
        batch_set_key(b, 0, which, &k) < 0 ? NULL : PyBytes_FromStringAndSize(k.data, (Py_ssize_t)k.bytes);
    PyObject *number = name ? PyDict_GetItemWithError(s->index, name) : NULL;
    Py_XDECREF(name);
    if (number)
        *i = PyLong_AsSize_t(number);
    else if (!PyErr_Occurred())
        raise_why(TARN_E_NOT_FOUND, which, "put session: no object of it has this key: give one of specs");
    return number ? 0 : -1;
}

static int check_write(struct session *s, size_t i, const struct value *v)
{
    PyObject *key = PyList_GET_ITEM(s->keys, (Py_ssize_t)i);
    const struct entry *e = &s->entries[i];

    if (s->lib && e->status != 0)
        return raise_code(e->status, key, NULL);
    if (!v->raw && v->tensor.dtype != e->dtype)
        return raise_why(EXT_E_TENSOR_MISMATCH, key,
                         "put session: the object is %s, the value %s: convert it", tarn_dtype_name(e->dtype),
                         tarn_dtype_name(v->tensor.dtype));
    return 0;
}

static int write_value(struct session *s, size_t i, uint64_t offset, const struct value *v, uint32_t ms)
{
    int rc;

    if (enter(s) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    rc = v->layout ? tarn_put_write_pages(s->lib, i, offset, v->layout, v->pages, v->npieces, ms)
                   : tarn_put_write(s->lib, i, offset, v->pieces, v->npieces, ms);
    Py_END_ALLOW_THREADS;
    rc = raise_call(rc, PyList_GET_ITEM(s->keys, (Py_ssize_t)i));
    if (rc == 0)
        s->entries[i].written += v->tensor.bytes;
    leave(s);
    return rc;
}

static struct args_spec write_args = {.function = "write",
                                      .required = 2,
                                      .positional = 3,
                                      .names = {"key", "value", "offset", "after", "timeout"}};

static PyObject *session_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct session *s = (struct session *)self;
    PyObject *arg[5];
    struct value v;
    struct batch b;
    uint64_t offset = 0;
    uint32_t ms = 0;
    void *after = NULL;
    size_t i;
    int rc = -1;

    if (args_parse(&write_args, args, nargs, kwnames, arg) < 0 || args_u64(arg[2], "offset", &offset) < 0 ||
        after_of(arg[3], &after) < 0 || args_seconds(arg[4], "timeout", &ms) < 0)
        return NULL;
    batch_init(&b, s->client, false);
    b.takes_pages = true;
    if (find(s, &b, arg[0], &i) == 0 && value_of(&b, arg[1], &v) == 0 && check_write(s, i, &v) == 0 &&
        after_wait(&b, after, ms) == 0)
        rc = write_value(s, i, offset, &v, ms);
    batch_free(&b);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- end ---------------------------------------------------------------------------------------- */

static PyObject *codes(const struct session *s)
{
    return codes_of(&s->entries->status, sizeof *s->entries, s->n);
}

/* Called between enter and leave. */
static void abort_it(struct session *s)
{
    struct tarn_put_session *lib = s->lib;

    s->lib = NULL;
    Py_BEGIN_ALLOW_THREADS;
    tarn_put_abort(lib);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < s->n; i++)
        if (s->entries[i].status == 0)
            s->entries[i].status = TARN_E_CANCELED;
}

/* The first object with too few bytes written: old bytes of the pool would be published. */
static const struct entry *unwritten(const struct session *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->entries[i].status == 0 && s->entries[i].written < s->entries[i].bytes)
            return &s->entries[i];
    return NULL;
}

static int refuse_unwritten(struct session *s, const struct entry *e)
{
    return raise_why(
        TARN_E_INVALID, PyList_GET_ITEM(s->keys, e - s->entries),
        "put session: %llu of its %llu bytes were written: nothing of the session is committed: write "
        "all of each object",
        (unsigned long long)e->written, (unsigned long long)e->bytes);
}

/* Called between enter and leave. */
static int commit_it(struct session *s, int32_t *statuses, uint32_t ms)
{
    const struct entry *e = unwritten(s);
    struct tarn_put_session *lib = s->lib;
    int rc;

    if (e) {
        abort_it(s);
        return PyErr_Occurred() ? -1 : refuse_unwritten(s, e);
    }
    s->lib = NULL;
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_put_commit(lib, statuses, ms);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < s->n; i++)
        s->entries[i].status = statuses[i];
    return raise_call(rc, first_failed_key(s));
}

static int commit(struct session *s, uint32_t ms)
{
    int32_t *statuses = PyMem_Calloc(s->n ? s->n : 1, sizeof *statuses);
    int rc = -1;

    if (!statuses)
        PyErr_NoMemory();
    else if (enter(s) == 0) {
        rc = commit_it(s, statuses, ms);
        leave(s);
    }
    PyMem_Free(statuses);
    return rc;
}

static struct args_spec commit_args = {.function = "commit", .names = {"timeout"}};

static PyObject *session_commit(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct session *s = (struct session *)self;
    PyObject *arg[1];
    uint32_t ms = 0;

    if (args_parse(&commit_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[0], "timeout", &ms) < 0 ||
        commit(s, ms) < 0)
        return NULL;
    return codes(s);
}

/* Does nothing if it has ended, also with its client. */
static PyObject *session_abort(PyObject *self, PyObject *unused)
{
    struct session *s = (struct session *)self;

    (void)unused;
    if (!s->lib || s->client->closed)
        Py_RETURN_NONE;
    if (enter(s) < 0)
        return NULL;
    abort_it(s);
    leave(s);
    Py_RETURN_NONE;
}

static PyObject *session_exit(PyObject *self, PyObject *args)
{
    struct session *s = (struct session *)self;
    bool raised = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;

    if (!s->lib)
        Py_RETURN_FALSE;
    if (!raised && commit(s, 0) < 0)
        return NULL;
    if (raised) {
        PyObject *none = session_abort(self, NULL);
        if (!none)
            PyErr_Clear(); /* the block's own exception has precedence */
        Py_XDECREF(none);
    }
    Py_RETURN_FALSE;
}

static void session_dealloc(PyObject *self)
{
    struct session *s = (struct session *)self;
    struct client *c = s->client;
    PyObject *type, *value, *trace;

    /* Also after close(), while views keep the client open, to release the room. */
    if (s->lib && c->lib && c->generation == fork_generation()) {
        PyErr_Fetch(&type, &value, &trace);
        client_hold(c);
        abort_it(s);
        client_unhold(c);
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(c);
    Py_XDECREF(s->keys);
    Py_XDECREF(s->index);
    PyMem_Free(s->entries);
    Py_TYPE(self)->tp_free(self);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_codes(PyObject *self, void *unused)
{
    (void)unused;
    return codes((struct session *)self);
}

static Py_ssize_t session_len(PyObject *self)
{
    return (Py_ssize_t)((struct session *)self)->n;
}

static PyMethodDef methods[] = {
    {"write", (PyCFunction)(void (*)(void))session_write, METH_FASTCALL | METH_KEYWORDS,
     "write($self, key, value, offset=0, *, after=None, timeout=None)\n--\n\n"
     "Writes the value's bytes to `offset` (bytes) of the object with that key, or that index in specs.\n\n"
     "The value has the object's dtype, or is bytes; it may have any shape and strides. Values on a GPU are "
     "read\n"
     "when what torch's current stream was given so far is done, or behind `after`, a torch.cuda.Event: "
     "give\n"
     "one to write a layer while the next ones compute. It is written when this returns; the GIL is "
     "released\n"
     "meanwhile. One thread at a time.\n\n"
     "Raises IndexError, KeyError, the code with which the object could not be reserved, TensorMismatch,\n"
     "SizeMismatch (beyond the object's end), Closed, NodeDown, Timeout."},
    {"commit", (PyCFunction)(void (*)(void))session_commit, METH_FASTCALL | METH_KEYWORDS,
     "commit($self, *, timeout=None)\n--\n\n"
     "Makes each object readable and ends the session; returns codes. Invalid, and nothing is, when an "
     "object\n"
     "has not been written to all of its length. Raises the first failure of an object that was reserved."},
    {"abort", session_abort, METH_NOARGS,
     "abort($self)\n--\n\nGives the room back and ends the session; nothing becomes readable."},
    {"__enter__", return_self, METH_NOARGS, NULL},
    {"__exit__", session_exit, METH_VARARGS, NULL},
    {0},
};

static PyGetSetDef properties[] = {
    {"codes", get_codes, NULL,
     "Of each object: 0, or the negative code with which it could not be reserved, or committed.", NULL},
    {0},
};

static PySequenceMethods as_sequence = {.sq_length = session_len};

PyTypeObject session_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.PutSession",
    .tp_doc = "Objects that are written part by part: see Client.put_session(). As a context manager it "
              "commits at\n"
              "the block's end, and aborts when that raises.",
    .tp_basicsize = sizeof(struct session),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = session_dealloc,
    .tp_as_sequence = &as_sequence,
    .tp_methods = methods,
    .tp_getset = properties,
};

PyMethodDef session_methods[] = {
    {"put_session", (PyCFunction)(void (*)(void))put_session, METH_FASTCALL | METH_KEYWORDS,
     "put_session($self, specs, *, replace=False, pin=False, ttl=None, replicas=1, place=None, "
     "timeout=None, chain=False)\n--\n\n"
     "Reserves room for objects that are written part by part (layer by layer), and become readable "
     "together.\n\n"
     "`specs`: a mapping, or an iterable of pairs, from key to (dtype, shape) or a TensorInfo. Options as "
     "put().\n"
     "Returns a PutSession, a context manager: commits at the block's end, aborts when the block raises.\n"
     "Where only some could be reserved (a key exists, no room), its `codes` says which; raises when none "
     "could."},
    {0},
};
