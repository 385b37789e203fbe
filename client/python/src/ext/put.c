/* SPDX-License-Identifier: Apache-2.0 */
/* Puts. */
#include "ext.h"

enum { REPLACE, PIN, TTL, REPLICAS, PLACE, TIMEOUT, CHAIN };

static struct args_spec put_args = {.function = "put",
                                    .required = 1,
                                    .positional = 2,
                                    .names = {"key", "value", "dtype", "shape", PUT_OPTIONS}};
static struct args_spec put_many_args = {
    .function = "put_many", .required = 1, .positional = 1, .names = {"pairs", PUT_OPTIONS}};

/* True: a chain. A key: and the first item continues that one's object. */
static int put_chain(struct batch *b, PyObject *chain, struct tarn_put_options *o)
{
    if (!chain || (!PyBytes_Check(chain) && !PyUnicode_Check(chain)))
        return args_flag(chain, "chain", TARN_PUT_CHAIN, &o->flags);
    if (batch_key(b, chain, &b->continues) < 0)
        return -1;
    o->flags |= TARN_PUT_CHAIN;
    o->continues = &b->continues;
    return 0;
}

int put_options(struct batch *b, PyObject *const *arg, struct tarn_put_options *o)
{
    *o = (struct tarn_put_options){.size = sizeof *o};
    if (args_flag(arg[REPLACE], "replace", TARN_PUT_REPLACE, &o->flags) < 0 ||
        args_flag(arg[PIN], "pin", TARN_PUT_PIN, &o->flags) < 0 ||
        args_seconds(arg[TTL], "ttl", &o->ttl_ms) < 0 ||
        args_number(arg[REPLICAS], "replicas", 1, TARN_REPLICAS_MAX, &o->replicas) < 0 ||
        args_text(arg[PLACE], "place", &o->place) < 0 ||
        args_seconds(arg[TIMEOUT], "timeout", &o->timeout_ms) < 0)
        return -1;
    return put_chain(b, arg[CHAIN], o);
}

/* --- one ---------------------------------------------------------------------------------------- */

/* Puts the whole batch. The exception is of the first item that failed. */
static int put_now(struct client *c, struct batch *b, const struct tarn_put_options *o)
{
    size_t i = 0;

    if (client_enter(c) < 0)
        return -1;
    int rc = call_put(b, o);
    client_leave(c);
    if (rc == 0 || rc == EXT_RAISED)
        return rc == 0 ? 0 : -1;
    while (i + 1 < b->n && b->items[i].status == 0)
        i++;
    return raise_code(rc, b->n > 0 ? b->keys[i] : NULL, b->why);
}

static bool is_given(PyObject *o)
{
    return o && o != Py_None;
}

/* arg: key, value, dtype, shape. */
static int fill_one(struct batch *b, PyObject *const *arg)
{
    if (batch_reserve(b, 1) < 0 || batch_set(b, 0, arg[0], arg[1]) < 0 ||
        value_declare(&b->values[0], arg[2], arg[3]) < 0)
        return -1;
    b->items[0].tensor = b->values[0].tensor;
    return 0;
}

/* The same for put({key: value, ...}). */
static int fill_mapping(struct batch *b, PyObject *const *arg)
{
    if (!is_mapping(arg[0])) {
        PyErr_SetString(PyExc_TypeError, "put(): a key without a value: give both, or {key: value, ...}");
        return -1;
    }
    if (is_given(arg[2]) || is_given(arg[3]))
        return raise_why(TARN_E_INVALID, NULL, "put: dtype and shape are of one value: put these one by one");
    return put_fill(b, arg[0]);
}

static PyObject *put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    struct tarn_put_options o;
    PyObject *arg[11];
    struct batch b;
    int rc;

    if (args_parse(&put_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, c, false);
    rc = put_options(&b, arg + 4, &o);
    if (rc == 0)
        rc = arg[1] ? fill_one(&b, arg) : fill_mapping(&b, arg);
    if (rc == 0)
        rc = put_now(c, &b, &o);
    batch_free(&b);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- many --------------------------------------------------------------------------------------- */

/* A mapping's items, or the iterable itself, as a list or tuple; new reference. */
static PyObject *pairs_of(PyObject *pairs)
{
    return is_mapping(pairs) ? PyMapping_Items(pairs)
                             : args_list(pairs, "pairs", "a mapping, or an iterable of (key, value)");
}

static int set_pair(struct batch *b, size_t i, PyObject *pair)
{
    if (PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2)
        return batch_set(b, i, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    PyObject *list = args_list(pair, "pairs: an element", "(key, value)");
    PyObject *two = list ? PySequence_Tuple(list) : NULL; /* our own, so nobody else changes it */
    Py_XDECREF(list);
    if (!two)
        return -1;
    int rc = PyTuple_GET_SIZE(two) == 2
                 ? batch_set(b, i, PyTuple_GET_ITEM(two, 0), PyTuple_GET_ITEM(two, 1))
                 : raise_why(TARN_E_INVALID, NULL, "pairs: element %zu has %zd parts: give (key, value)", i,
                             PyTuple_GET_SIZE(two));
    Py_DECREF(two);
    return rc;
}

int put_fill(struct batch *b, PyObject *pairs)
{
    PyObject *all = pairs_of(pairs);
    int rc = -1;

    if (!all)
        return -1;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(all);
    if (batch_keep(b, all) == 0 && batch_reserve(b, n) == 0)
        rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = (size_t)PySequence_Fast_GET_SIZE(all) == n
                 ? set_pair(b, i, PySequence_Fast_GET_ITEM(all, (Py_ssize_t)i))
                 : raise_why(TARN_E_INVALID, NULL,
                             "pairs: changed meanwhile by another thread: give a list of your own");
    Py_DECREF(all);
    return rc;
}

PyObject *put_codes(const struct batch *b)
{
    return codes_of(&b->items->status, sizeof *b->items, b->n);
}

static PyObject *run_many(struct client *c, struct batch *b, const struct tarn_put_options *o)
{
    if (client_enter(c) < 0)
        return NULL;
    int rc = call_put(b, o);
    client_leave(c);
    if (rc == EXT_RAISED)
        return NULL;
    if (!get_failed_whole(b, rc))
        return put_codes(b);
    raise_code(rc, NULL, b->why);
    return NULL;
}

static PyObject *put_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    struct tarn_put_options o;
    PyObject *arg[8], *result = NULL;
    struct batch b;

    if (args_parse(&put_many_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, c, false);
    if (put_options(&b, arg + 1, &o) == 0 && put_fill(&b, arg[0]) == 0)
        result = run_many(c, &b, &o);
    batch_free(&b);
    return result;
}

PyMethodDef put_methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL | METH_KEYWORDS,
     "put($self, key, value, *, dtype=None, shape=None, replace=False, pin=False, ttl=None, replicas=1, "
     "place=None,\n"
     "    timeout=None, chain=False)\n--\n\n"
     "Stores `value` under `key` (bytes or str, 1 to 1024 bytes). It can be read when this returns.\n"
     "put({key: value, ...}) stores all of a mapping, and raises for the first that failed.\n\n"
     "`dtype` and `shape` say what the bytes are, where the value does not. `ttl` and `timeout` in seconds.\n"
     "`replace`: an object that is there gives way; `pin`: it is never evicted; `replicas`: copies on so "
     "many nodes;\n"
     "`place`: \"local\", \"NODE\" or \"NODE/POOL\"; None: tarn chooses;\n"
     "`chain`: each object continues the one before it, as the blocks of a prompt do, and the first one "
     "continues\n"
     "that of the key given here, if it is not just True: a chain is evicted from its end.\n"
     "After Timeout, NodeDown or KeyboardInterrupt the object may be there or not.\n\n"
     "Raises Exists, Full, TooLarge, Invalid (dtype, shape and bytes do not agree; freed memory), "
     "Unsupported (a dtype or\n"
     "device that tarn does not know), NodeDown, Busy, Timeout. As tarn_put() in include/tarn/tarn.h."},
    {"put_many", (PyCFunction)(void (*)(void))put_many, METH_FASTCALL | METH_KEYWORDS,
     "put_many($self, pairs, *, replace=False, pin=False, ttl=None, replicas=1, place=None, "
     "timeout=None, chain=False)\n--\n\n"
     "Stores all of a mapping, or of an iterable of (key, value); returns 0 or a negative code for each, "
     "see\n"
     "error_of(). Options as put(). Raises Invalid and Unsupported, before anything is put, for values that "
     "put()\n"
     "refuses so."},
    {0},
};
