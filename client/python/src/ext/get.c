/* SPDX-License-Identifier: Apache-2.0 */
/* Gets into the caller's memory. */
#include "ext.h"

/* Checks items after the call: the objects must match the values, unless bytes were asked for. */
void get_check(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        struct tarn_item *item = &b->items[i];
        const struct value *v = &b->values[i];
        bool got = item->status == 0;
        if ((got || item->status == TARN_E_SIZE) && !v->raw && !tensor_equal(&v->tensor, &item->tensor))
            item->status = got || v->tensor.bytes != item->tensor.bytes ? EXT_E_TENSOR_MISMATCH : TARN_E_SIZE;
    }
}

static const char *text_of(const struct tarn_tensor *t, char out[160])
{
    int n = PyOS_snprintf(out, 160, "%s [", tarn_dtype_name(t->dtype) ? tarn_dtype_name(t->dtype) : "?");

    for (uint32_t d = 0; d < t->ndim && n < 140; d++)
        n +=
            PyOS_snprintf(out + n, (size_t)(160 - n), d ? ", %llu" : "%llu", (unsigned long long)t->shape[d]);
    PyOS_snprintf(out + n, (size_t)(160 - n), "]");
    return out;
}

int raise_mismatch(PyObject *key, const struct tarn_tensor *stored, const struct tarn_tensor *given)
{
    char a[160], b[160];

    return raise_why(
        EXT_E_TENSOR_MISMATCH, key,
        "get: the object is %s, the buffer %s: give one of that dtype and shape, or one-dimensional u8 "
        "for the bytes",
        text_of(stored, a), text_of(given, b));
}

/* --- one ---------------------------------------------------------------------------------------- */

static struct args_spec get_into_args = {
    .function = "get_into", .required = 2, .positional = 2, .names = {"key", "value", "offset", "timeout"}};

static PyObject *get_one(struct client *c, struct batch *b, PyObject *key, struct tarn_get_options *o)
{
    if (client_enter(c) < 0)
        return NULL;
    int rc = call_get(b, o);
    client_leave(c);
    if (rc == EXT_RAISED)
        return NULL;
    if (rc == 0 || rc == TARN_E_SIZE) {
        get_check(b);
        if (b->items[0].status == EXT_E_TENSOR_MISMATCH) {
            raise_mismatch(key, &b->items[0].tensor, &b->values[0].tensor);
            return NULL;
        }
    }
    if (rc != 0) {
        raise_code(rc, key, b->why);
        return NULL;
    }
    return info_new(&b->items[0].tensor);
}

static int offset_of(PyObject *o, struct batch *b, struct tarn_get_options *options)
{
    if (!o || o == Py_None)
        return 0;
    if (args_u64(o, "offset", &b->items[0].offset) < 0)
        return -1;
    options->flags |= TARN_GET_RANGE;
    b->values[0].raw = true; /* a part has no shape of its own */
    return 0;
}

static PyObject *get_into(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    struct tarn_get_options o = {.size = sizeof o};
    PyObject *arg[4], *result = NULL;
    struct batch b;

    if (args_parse(&get_into_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    batch_init(&b, c, true);
    if (batch_reserve(&b, 1) == 0 && batch_set(&b, 0, arg[0], arg[1]) == 0 &&
        offset_of(arg[2], &b, &o) == 0 && args_seconds(arg[3], "timeout", &o.timeout_ms) == 0)
        result = get_one(c, &b, arg[0], &o);
    batch_free(&b);
    return result;
}

/* --- many --------------------------------------------------------------------------------------- */

static struct args_spec get_into_many_args = {.function = "get_into_many",
                                              .required = 2,
                                              .positional = 2,
                                              .names = {"keys", "values", "hits", "timeout"}};
static struct args_spec fetch_many_args = {.function = "_fetch_many",
                                           .required = 2,
                                           .positional = 2,
                                           .names = {"keys", "values", "hits", "timeout"}};

/* keys and values: two sequences of equal length, or values is one array of rows. */
int get_fill(struct batch *b, PyObject *keys, PyObject *values)
{
    PyObject *fast = keys_list(keys);
    int rc = -1;

    if (!fast)
        return -1;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(fast);
    if (batch_keep(b, fast) < 0 || batch_reserve(b, n) < 0)
        goto drop;
    if (PyList_Check(values) || PyTuple_Check(values)) {
        rc = (size_t)PySequence_Fast_GET_SIZE(values) == n
                 ? 0
                 : raise_why(TARN_E_INVALID, NULL, "values: %zd for %zu keys: give as many",
                             PySequence_Fast_GET_SIZE(values), n);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            /* Python code that ran for an item may have changed either list. */
            if ((size_t)PySequence_Fast_GET_SIZE(values) != n || (size_t)PySequence_Fast_GET_SIZE(fast) != n)
                rc = raise_why(TARN_E_INVALID, NULL,
                               "keys, values: changed meanwhile by another thread: give lists of your own");
            else
                rc = batch_set(b, i, PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i),
                               PySequence_Fast_GET_ITEM(values, (Py_ssize_t)i));
        }
    } else {
        rc = 0;
        for (size_t i = 0; rc == 0 && i < n; i++)
            rc = batch_set_key(b, i, PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i), &b->items[i].key);
        if (rc == 0)
            rc = batch_set_rows(b, values);
    }
drop:
    Py_DECREF(fast);
    return rc;
}

/* Bytes or code of each item. */
PyObject *get_outcomes(const struct batch *b)
{
    PyObject *list = PyList_New((Py_ssize_t)b->n);

    for (size_t i = 0; list && i < b->n; i++) {
        int status = b->items[i].status;
        PyObject *v =
            status == 0 ? PyLong_FromUnsignedLongLong(b->values[i].tensor.bytes) : PyLong_FromLong(status);
        if (!v)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, v);
    }
    return list;
}

bool get_failed_whole(const struct batch *b, int rc)
{
    return call_failed_whole(rc, &b->items->status, sizeof *b->items, b->n);
}

/* Makes the call. 0, or -1 with an exception if it failed as a whole. */
static int run_many(struct client *c, struct batch *b, PyObject *hits, struct tarn_get_options *o)
{
    if (hits_of(hits, c, b->n, &o->hits) < 0 || client_enter(c) < 0)
        return -1;
    int rc = call_get(b, o);
    client_leave(c);
    if (rc == EXT_RAISED)
        return -1;
    return get_failed_whole(b, rc) ? raise_code(rc, NULL, b->why) : 0;
}

/* arg: keys, values, hits, timeout. */
static PyObject *get_many(PyObject *self, PyObject *const *arg, PyObject *(*result_of)(struct batch *b))
{
    struct client *c = (struct client *)self;
    struct tarn_get_options o = {.size = sizeof o};
    PyObject *result = NULL;
    struct batch b;

    batch_init(&b, c, true);
    if (get_fill(&b, arg[0], arg[1]) == 0 && args_seconds(arg[3], "timeout", &o.timeout_ms) == 0 &&
        run_many(c, &b, arg[2], &o) == 0)
        result = result_of(&b);
    batch_free(&b);
    return result;
}

static PyObject *checked_outcomes(struct batch *b)
{
    get_check(b);
    return get_outcomes(b);
}

static PyObject *get_into_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[4];

    return args_parse(&get_into_many_args, args, nargs, kwnames, arg) < 0
               ? NULL
               : get_many(self, arg, checked_outcomes);
}

/* --- bytes first, then what they are ------------------------------------------------------------ */

/* (status, TensorInfo or None) of each item; also the info of objects that did not fit. */
PyObject *get_fetched(const struct batch *b)
{
    PyObject *list = PyList_New((Py_ssize_t)b->n);

    for (size_t i = 0; list && i < b->n; i++) {
        int status = b->items[i].status;
        PyObject *info;
        if (status == 0 || status == TARN_E_SIZE) {
            info = info_new(&b->items[i].tensor);
        } else {
            info = Py_None;
            Py_INCREF(info);
        }
        PyObject *pair = info ? Py_BuildValue("(iN)", status, info) : NULL;
        if (!pair)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, pair);
    }
    return list;
}

/* The sentence is the first failed item's. */
static PyObject *fetched_and_why(struct batch *b)
{
    return Py_BuildValue("(NN)", get_fetched(b),
                         PyUnicode_DecodeUTF8(b->why, (Py_ssize_t)strlen(b->why), "replace"));
}

/* For get(), whose buffers have a guessed size: returns what there is. ([(status, TensorInfo)], sentence). */
static PyObject *fetch_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[4];

    return args_parse(&fetch_many_args, args, nargs, kwnames, arg) < 0 ? NULL
                                                                       : get_many(self, arg, fetched_and_why);
}

PyMethodDef get_methods[] = {
    {"get_into", (PyCFunction)(void (*)(void))get_into, METH_FASTCALL | METH_KEYWORDS,
     "get_into($self, key, value, *, offset=None, timeout=None)\n--\n\n"
     "Gets the object into `value`, memory of the caller's; returns its TensorInfo.\n\n"
     "`value` has the object's dtype and shape (else TensorMismatch), or is one-dimensional u8, a Piece or a "
     "list of\n"
     "buffers, which take any object's bytes. With `offset` (bytes) it takes the part of the object that "
     "begins\n"
     "there. Its content is undefined after an exception.\n\n"
     "Raises NotFound, TensorMismatch, SizeMismatch (bytes of another length, or a part beyond the end), "
     "Invalid (memory\n"
     "that is read-only, freed, or its own twice), Unsupported (a dtype or device that tarn does not know), "
     "NodeDown,\n"
     "NotReachable, Timeout. As tarn_get() in include/tarn/tarn.h."},
    {"get_into_many", (PyCFunction)(void (*)(void))get_into_many, METH_FASTCALL | METH_KEYWORDS,
     "get_into_many($self, keys, values, *, hits=None, timeout=None)\n--\n\n"
     "Gets many objects; returns for each its bytes (0 or more) or a negative code, see error_of().\n\n"
     "`values` is a list alike, or one array of shape (keys, ...) whose row i is for key i. `hits` of "
     "lookup() save\n"
     "asking the directory.\n\n"
     "Raises Invalid for another number of values than of keys; a wrong dtype or shape, or a miss, is a "
     "code."},
    {"_fetch_many", (PyCFunction)(void (*)(void))fetch_many, METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};
