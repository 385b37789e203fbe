/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups: the Hits type, match_prefix, exists; and remove. */
#include "ext.h"

#include <structmember.h>

/* --- Hits --------------------------------------------------------------------------------------- */

static void hits_dealloc(PyObject *self)
{
    struct hits *h = (struct hits *)self;

    /* In a forked child they belong to the parent. */
    if (h->lib && h->client->generation == fork_generation())
        tarn_hits_free(h->lib);
    Py_CLEAR(h->client);
    Py_CLEAR(h->keys);
    Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t hits_len(PyObject *self)
{
    return (Py_ssize_t)tarn_hits_count(((struct hits *)self)->lib);
}

static bool is_index(PyObject *self, Py_ssize_t i)
{
    if (i >= 0 && i < hits_len(self))
        return true;
    PyErr_Format(PyExc_IndexError, "hits: %zd is no index of %zd hits: count from 0", i, hits_len(self));
    return false;
}

static PyObject *hits_item(PyObject *self, Py_ssize_t i)
{
    struct hits *h = (struct hits *)self;

    if (!is_index(self, i) || client_enter(h->client) < 0)
        return NULL;
    enum tarn_state state = tarn_hits_state(h->lib, (size_t)i);
    client_leave(h->client);
    return PyLong_FromLong((long)state);
}

static PyObject *hits_states(PyObject *self, void *unused)
{
    struct hits *h = (struct hits *)self;

    (void)unused;
    if (client_enter(h->client) < 0)
        return NULL;
    Py_ssize_t n = hits_len(self);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++)
        PyList_SET_ITEM(list, i, PyLong_FromLong((long)tarn_hits_state(h->lib, (size_t)i))); /* a small int */
    client_leave(h->client);
    return list;
}

static PyObject *hits_tensor(PyObject *self, PyObject *index)
{
    struct hits *h = (struct hits *)self;
    struct tarn_tensor t;
    if (!PyIndex_Check(index)) {
        raise_type("index", index, "a whole number");
        return NULL;
    }
    Py_ssize_t i = PyNumber_AsSsize_t(index, NULL); /* too large a number becomes the largest one */
    if (!is_index(self, i) || client_enter(h->client) < 0)
        return NULL;
    int rc = tarn_hits_tensor(h->lib, (size_t)i, &t);
    client_leave(h->client);
    if (rc != 0)
        Py_RETURN_NONE;
    return info_new(&t);
}

static PyMethodDef hits_methods[] = {
    {"tensor", hits_tensor, METH_O,
     "tensor($self, i, /)\n--\n\nTensorInfo of hit i; None when it is no hit."},
    {0},
};

static PyMemberDef hits_members[] = {
    {"pages", T_PYSSIZET, offsetof(struct hits, pages), READONLY,
     "Leading pages (of `stride` keys) that can be read."},
    {"keys", T_OBJECT, offsetof(struct hits, keys), READONLY, "The keys that were looked up, a tuple."},
    {0},
};

static PyGetSetDef hits_properties[] = {
    {"states", hits_states, NULL, "MISS, HIT or NODE_DOWN of each key.", NULL},
    {0},
};

static PySequenceMethods hits_sequence = {.sq_length = hits_len, .sq_item = hits_item};

PyTypeObject hits_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Hits",
    .tp_doc =
        "What a look-up found: the objects' descriptors. Give it to gets as hits=, to spare the directory.",
    .tp_basicsize = sizeof(struct hits),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = hits_dealloc,
    .tp_as_sequence = &hits_sequence,
    .tp_methods = hits_methods,
    .tp_members = hits_members,
    .tp_getset = hits_properties,
};

int hits_of(PyObject *o, struct client *c, size_t n, const struct tarn_hits **hits)
{
    *hits = NULL;
    if (!o || o == Py_None)
        return 0;
    if (!PyObject_TypeCheck(o, &hits_type))
        return raise_type("hits", o, "the Hits of lookup() or match_prefix()");
    struct hits *h = (struct hits *)o;
    if (h->client != c)
        return raise_code(TARN_E_INVALID, NULL, "hits: of another client: look up with this one");
    if (tarn_hits_count(h->lib) < n)
        return raise_why(TARN_E_INVALID, NULL, "hits: %zu for %zu keys: look up all of them",
                         tarn_hits_count(h->lib), n);
    *hits = h->lib;
    return 0;
}

/* The number of leading pages all of whose keys hit. */
static size_t leading_pages(const struct tarn_hits *h, size_t stride)
{
    size_t n = tarn_hits_count(h), i = 0;

    while (i < n && tarn_hits_state(h, i) == TARN_STATE_HIT)
        i++;
    return i / stride;
}

PyObject *hits_new(const struct batch *b, struct tarn_hits *lib, uint32_t stride)
{
    struct hits *h = (struct hits *)hits_type.tp_alloc(&hits_type, 0);
    Py_ssize_t n = (Py_ssize_t)tarn_hits_count(lib);

    if (!h) {
        tarn_hits_free(lib);
        return NULL;
    }
    Py_INCREF(b->client);
    h->client = b->client;
    h->lib = lib;
    h->keys = PyTuple_New(n);
    if (!h->keys) {
        Py_DECREF(h);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_INCREF(b->keys[i]);
        PyTuple_SET_ITEM(h->keys, i, b->keys[i]);
    }
    h->pages = leading_pages(lib, stride ? stride : 1);
    return (PyObject *)h;
}

/* --- look-ups ----------------------------------------------------------------------------------- */

static struct args_spec lookup_args = {
    .function = "lookup", .required = 1, .positional = 1, .names = {"keys", "timeout"}};
static struct args_spec match_args = {
    .function = "match_prefix", .required = 1, .positional = 1, .names = {"keys", "timeout", "stride"}};
static struct args_spec exists_args = {
    .function = "exists", .required = 1, .positional = 1, .names = {"keys", "timeout"}};
static struct args_spec remove_args = {
    .function = "remove", .required = 1, .positional = 1, .names = {"keys", "timeout"}};

/* Looks keys[0..n) up; an exception on failure. Use the hits before client_leave(). */
static int look_up(struct client *c, const struct tarn_key *keys, size_t n, PyObject *timeout,
                   struct tarn_hits **hits)
{
    struct tarn_lookup_options o = {.size = sizeof o};
    int rc;

    if (args_seconds(timeout, "timeout", &o.timeout_ms) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_lookup(c->lib, keys, n, &o, hits);
    Py_END_ALLOW_THREADS
    if (rc == 0 && PyErr_Occurred())
        tarn_hits_free(*hits);
    return raise_call(rc, NULL);
}

static PyObject *look_up_all(struct client *c, PyObject *keys, PyObject *timeout, uint32_t stride)
{
    PyObject *result = NULL;
    struct tarn_hits *hits;
    struct tarn_key *k;
    struct batch b;
    size_t n;

    batch_init(&b, c, false);
    if (batch_keys(&b, keys, &k, &n) == 0 && client_enter(c) == 0) {
        if (look_up(c, k, n, timeout, &hits) == 0)
            result = hits_new(&b, hits, stride);
        client_leave(c);
    }
    batch_free(&b);
    return result;
}

static PyObject *lookup(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[2];

    if (args_parse(&lookup_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    return look_up_all((struct client *)self, arg[0], arg[1], 1);
}

static PyObject *match_prefix(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[3];
    uint32_t stride = 1;

    if (args_parse(&match_args, args, nargs, kwnames, arg) < 0 ||
        args_number(arg[2], "stride", 1, UINT32_MAX, &stride) < 0)
        return NULL;
    return look_up_all((struct client *)self, arg[0], arg[1], stride);
}

static bool is_one_key(PyObject *o)
{
    return PyBytes_Check(o) || PyUnicode_Check(o);
}

static PyObject *bools(const struct tarn_hits *hits, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);

    for (size_t i = 0; list && i < n; i++)
        PyList_SET_ITEM(list, (Py_ssize_t)i, PyBool_FromLong(tarn_hits_state(hits, i) == TARN_STATE_HIT));
    return list;
}

static PyObject *exists(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    struct tarn_key one, *k = &one;
    struct tarn_hits *hits;
    PyObject *arg[2], *result = NULL;
    struct batch b;
    size_t n = 1;

    if (args_parse(&exists_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, c, false);
    bool single = is_one_key(arg[0]);
    int rc = single ? batch_set_key(&b, 0, arg[0], &one) : batch_keys(&b, arg[0], &k, &n);
    if (rc == 0 && client_enter(c) == 0) {
        if (look_up(c, k, n, arg[1], &hits) == 0) {
            result = single ? PyBool_FromLong(tarn_hits_state(hits, 0) == TARN_STATE_HIT) : bools(hits, n);
            tarn_hits_free(hits);
        }
        client_leave(c);
    }
    batch_free(&b);
    return result;
}

/* --- remove ------------------------------------------------------------------------------------- */

static PyObject *remove_all(struct client *c, struct batch *b, const struct tarn_key *k, size_t n,
                            uint32_t ms)
{
    int32_t *statuses = arena_zalloc(&b->arena, (n ? n : 1) * sizeof *statuses);

    if (!statuses || client_enter(c) < 0)
        return NULL;
    int rc = call_remove(b, k, n, statuses, ms);
    client_leave(c);
    if (rc == EXT_RAISED)
        return NULL;
    if (!call_failed_whole(rc, statuses, sizeof *statuses, n))
        return codes_of(statuses, sizeof *statuses, n);
    raise_code(rc, NULL, b->why);
    return NULL;
}

/* True: removed. False: there was none. */
static PyObject *remove_one(struct client *c, struct batch *b, PyObject *key, const struct tarn_key *k,
                            uint32_t ms)
{
    int32_t status = 0;

    if (client_enter(c) < 0)
        return NULL;
    int rc = call_remove(b, k, 1, &status, ms);
    client_leave(c);
    if (rc == 0 || rc == TARN_E_NOT_FOUND)
        return PyBool_FromLong(rc == 0);
    if (rc != EXT_RAISED)
        raise_code(rc, key, b->why);
    return NULL;
}

static PyObject *remove_(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    PyObject *arg[2], *result = NULL;
    struct tarn_key one, *k;
    struct batch b;
    uint32_t ms = 0;
    size_t n;

    if (args_parse(&remove_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[1], "timeout", &ms) < 0)
        return NULL;
    batch_init(&b, c, false);
    if (is_one_key(arg[0])) {
        if (batch_set_key(&b, 0, arg[0], &one) == 0)
            result = remove_one(c, &b, arg[0], &one, ms);
    } else if (batch_keys(&b, arg[0], &k, &n) == 0) {
        result = remove_all(c, &b, k, n, ms);
    }
    batch_free(&b);
    return result;
}

PyMethodDef lookup_methods[] = {
    {"lookup", (PyCFunction)(void (*)(void))lookup, METH_FASTCALL | METH_KEYWORDS,
     "lookup($self, keys, *, timeout=None)\n--\n\n"
     "Looks all keys up in one round trip to the directory; returns Hits. A missing key is a state, no "
     "exception.\n\n"
     "Raises DirectoryError, Timeout. As tarn_lookup() in include/tarn/tarn.h."},
    {"match_prefix", (PyCFunction)(void (*)(void))match_prefix, METH_FASTCALL | METH_KEYWORDS,
     "match_prefix($self, keys, *, stride=1, timeout=None)\n--\n\n"
     "As lookup(), for a chain of keys: .pages are the leading pages of `stride` keys that can be read.\n"
     "Raises as lookup()."},
    {"exists", (PyCFunction)(void (*)(void))exists, METH_FASTCALL | METH_KEYWORDS,
     "exists($self, keys, *, timeout=None)\n--\n\n"
     "Can the object be read? A bool for one key, a list of bool for a list of keys. Raises as lookup()."},
    {"remove", (PyCFunction)(void (*)(void))remove_, METH_FASTCALL | METH_KEYWORDS,
     "remove($self, keys, *, timeout=None)\n--\n\n"
     "Removes one key: True, or False when there was none. Of a list of keys: 0 or a negative code for "
     "each.\n\n"
     "Raises, for one key, NodeDown, DirectoryError, Timeout. As tarn_remove() in include/tarn/tarn.h."},
    {0},
};
