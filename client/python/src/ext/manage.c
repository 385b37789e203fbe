/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that move no tensor bytes: stat, list, nodes, events, transports, touch, pin. Results are plain
 * tuples; tarn/_manage.py gives their fields names.
 *
 * libtarn calls back in the calling thread, without the GIL. The callbacks take it.
 */
#include "ext.h"

/* What a call gathers, or whom it tells. */
struct gather {
    struct client *client;
    struct tarn_key key;
    const char *match;
    PyObject *list;
    PyObject *fn;
};

/* Appends an object, or handles NULL with an exception. Checks for signals, since a list may be long. */
static int append(struct gather *g, PyObject *made)
{
    int rc = made ? PyList_Append(g->list, made) : -1;

    Py_XDECREF(made);
    return rc < 0 || PyErr_CheckSignals() < 0 ? EXT_RAISED : 0;
}

/* --- objects ------------------------------------------------------------------------------------ */

static PyObject *copies_of(const struct tarn_object *o)
{
    PyObject *copies = PyTuple_New(o->ncopies);

    for (uint32_t i = 0; copies && i < o->ncopies; i++) {
        const struct tarn_copy *c = &o->copies[i];
        PyObject *copy =
            Py_BuildValue("(sszKKI)", c->node, c->pool, c->transport, (unsigned long long)c->offset,
                          (unsigned long long)c->gen, (unsigned)c->slot);
        if (!copy)
            Py_CLEAR(copies);
        else
            PyTuple_SET_ITEM(copies, i, copy);
    }
    return copies;
}

static int on_object(void *arg, const struct tarn_object *o)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = Py_BuildValue("(y#NKKIN)", (const char *)o->key.data, (Py_ssize_t)o->key.bytes,
                                   info_new(&o->tensor), (unsigned long long)o->version,
                                   (unsigned long long)o->born_ms, (unsigned)o->ttl_ms, copies_of(o));
    int rc = append(arg, made);

    PyGILState_Release(gil);
    return rc;
}

static int ask_stat(void *arg, uint32_t ms)
{
    struct gather *g = arg;

    return tarn_stat(g->client->lib, &g->key, ms, on_object, g);
}

static int ask_list(void *arg, uint32_t ms)
{
    struct gather *g = arg;

    return tarn_list(g->client->lib, g->match, ms, on_object, g);
}

/* --- nodes -------------------------------------------------------------------------------------- */

static PyObject *pools_of(const struct tarn_node_info *n)
{
    PyObject *pools = PyTuple_New(n->npools);

    for (uint32_t i = 0; pools && i < n->npools; i++) {
        const struct tarn_pool_info *p = &n->pools[i];
        PyObject *pool =
            Py_BuildValue("(ssKKKz)", p->name, p->kind, (unsigned long long)p->bytes,
                          (unsigned long long)p->free_bytes, (unsigned long long)p->objects, p->transport);
        if (!pool)
            Py_CLEAR(pools);
        else
            PyTuple_SET_ITEM(pools, i, pool);
    }
    return pools;
}

static int on_node(void *arg, const struct tarn_node_info *n)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = Py_BuildValue("(zzzzzzKKON)", n->id, n->host, n->control, n->unix_path, n->version,
                                   n->state, (unsigned long long)n->epoch, (unsigned long long)n->started_ms,
                                   n->same_host ? Py_True : Py_False, pools_of(n));
    int rc = append(arg, made);

    PyGILState_Release(gil);
    return rc;
}

static int ask_nodes(void *arg, uint32_t ms)
{
    struct gather *g = arg;

    return tarn_nodes(g->client->lib, ms, on_node, g);
}

/* --- calling ------------------------------------------------------------------------------------ */

/* fn(g); the list, or NULL with an exception about key. */
static PyObject *gather(struct gather *g, plain_fn fn, PyObject *timeout, PyObject *key)
{
    uint32_t ms = 0;

    if (args_seconds(timeout, "timeout", &ms) < 0 || !(g->list = PyList_New(0)))
        return NULL;
    if (call_plain(g->client, fn, g, ms, key) < 0)
        Py_CLEAR(g->list);
    return g->list;
}

static struct args_spec stat_args = {
    .function = "stat", .required = 1, .positional = 2, .names = {"key", "timeout"}};

static PyObject *client_stat(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct gather g = {.client = (struct client *)self};
    PyObject *arg[2], *list = NULL;
    struct batch b;

    if (args_parse(&stat_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, g.client, false);
    if (batch_set_key(&b, 0, arg[0], &g.key) == 0)
        list = gather(&g, ask_stat, arg[1], arg[0]);
    batch_free(&b);
    return list;
}

static struct args_spec list_args = {.function = "list", .positional = 2, .names = {"match", "timeout"}};

static PyObject *client_list(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct gather g = {.client = (struct client *)self};
    PyObject *arg[2];

    if (args_parse(&list_args, args, nargs, kwnames, arg) < 0 || args_text(arg[0], "match", &g.match) < 0)
        return NULL;
    return gather(&g, ask_list, arg[1], NULL);
}

static struct args_spec nodes_args = {.function = "nodes", .positional = 1, .names = {"timeout"}};

static PyObject *client_nodes(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct gather g = {.client = (struct client *)self};
    PyObject *arg[1];

    if (args_parse(&nodes_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    return gather(&g, ask_nodes, arg[0], NULL);
}

/* --- transports --------------------------------------------------------------------------------- */

static int on_transport(void *arg, const char *name, const char *why)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    int rc = append(arg, Py_BuildValue("(sz)", name, why));

    PyGILState_Release(gil);
    return rc;
}

PyObject *transports(PyObject *module, PyObject *unused)
{
    struct gather g = {.list = PyList_New(0)};
    int rc;

    (void)module;
    (void)unused;
    if (!g.list)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_transports(on_transport, &g);
    Py_END_ALLOW_THREADS;
    if (rc != 0)
        Py_CLEAR(g.list);
    return g.list;
}

/* --- events ------------------------------------------------------------------------------------- */

static int on_event(void *arg, const char *what, const struct tarn_key *key, const char *node,
                    const char *pool, uint64_t bytes)
{
    struct gather *g = arg;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *go_on = PyObject_CallFunction(g->fn, "sy#ssK", what, (const char *)key->data,
                                            (Py_ssize_t)key->bytes, node, pool, (unsigned long long)bytes);
    int yes = go_on ? PyObject_IsTrue(go_on) : -1;

    Py_XDECREF(go_on);
    PyGILState_Release(gil);
    return yes < 0 ? EXT_RAISED : !yes;
}

static int ask_events(void *arg, uint32_t ms)
{
    struct gather *g = arg;
    int rc = tarn_events(g->client->lib, ms, on_event, g);

    return rc < 0 ? rc : 0; /* above 0: fn has ended it */
}

/* Calls fn for each event, for this many seconds or until fn returns something false. */
static PyObject *client_events(PyObject *self, PyObject *args)
{
    struct gather g = {.client = (struct client *)self};
    PyObject *timeout;
    uint32_t ms = 0;

    if (!PyArg_ParseTuple(args, "OO", &g.fn, &timeout) || args_seconds(timeout, "timeout", &ms) < 0 ||
        call_plain(g.client, ask_events, &g, ms, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- marks -------------------------------------------------------------------------------------- */

struct mark {
    struct client *client;
    struct tarn_key key, *keys;
    size_t n;
    uint32_t ttl_ms;
};

static int ask_pin(void *arg, uint32_t ms)
{
    const struct mark *m = arg;

    return tarn_pin(m->client->lib, &m->key, m->ttl_ms, ms);
}

static int ask_unpin(void *arg, uint32_t ms)
{
    const struct mark *m = arg;

    return tarn_unpin(m->client->lib, &m->key, ms);
}

static int ask_touch(void *arg, uint32_t ms)
{
    const struct mark *m = arg;

    (void)ms;
    return tarn_touch(m->client->lib, m->keys, m->n);
}

static PyObject *mark_one(struct mark *m, plain_fn fn, PyObject *key, PyObject *timeout)
{
    struct batch b;
    uint32_t ms = 0;
    int rc = -1;

    batch_init(&b, m->client, false);
    if (args_seconds(timeout, "timeout", &ms) == 0 && batch_set_key(&b, 0, key, &m->key) == 0)
        rc = call_plain(m->client, fn, m, ms, key);
    batch_free(&b);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static struct args_spec pin_args = {
    .function = "pin", .required = 1, .positional = 2, .names = {"key", "ttl", "timeout"}};

static PyObject *client_pin(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct mark m = {.client = (struct client *)self};
    PyObject *arg[3];

    if (args_parse(&pin_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[1], "ttl", &m.ttl_ms) < 0)
        return NULL;
    return mark_one(&m, ask_pin, arg[0], arg[2]);
}

static struct args_spec unpin_args = {
    .function = "unpin", .required = 1, .positional = 1, .names = {"key", "timeout"}};

static PyObject *client_unpin(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct mark m = {.client = (struct client *)self};
    PyObject *arg[2];

    if (args_parse(&unpin_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    return mark_one(&m, ask_unpin, arg[0], arg[1]);
}

static PyObject *client_touch(PyObject *self, PyObject *keys)
{
    struct mark m = {.client = (struct client *)self};
    struct batch b;
    int rc = -1;

    if (PyBytes_Check(keys) || PyUnicode_Check(keys)) {
        m.keys = &m.key;
        m.n = 1;
        return mark_one(&m, ask_touch, keys, NULL);
    }
    batch_init(&b, m.client, false);
    if (batch_keys(&b, keys, &m.keys, &m.n) == 0)
        rc = call_plain(m.client, ask_touch, &m, 0, NULL);
    batch_free(&b);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef manage_methods[] = {
    {"_stat", (PyCFunction)(void (*)(void))client_stat, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_list", (PyCFunction)(void (*)(void))client_list, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_nodes", (PyCFunction)(void (*)(void))client_nodes, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_events", client_events, METH_VARARGS, NULL},
    {"touch", client_touch, METH_O,
     "touch($self, keys, /)\n--\n\nMarks one object, or those of a list of keys, as used now. Unknown keys "
     "are ignored."},
    {"pin", (PyCFunction)(void (*)(void))client_pin, METH_FASTCALL | METH_KEYWORDS,
     "pin($self, key, ttl=None, *, timeout=None)\n--\n\n"
     "Keeps an object from eviction for `ttl` seconds; None: until unpin(). Raises NotFound."},
    {"unpin", (PyCFunction)(void (*)(void))client_unpin, METH_FASTCALL | METH_KEYWORDS,
     "unpin($self, key, *, timeout=None)\n--\n\nThe object may be evicted again. Raises NotFound."},
    {0},
};
