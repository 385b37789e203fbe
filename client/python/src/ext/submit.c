/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting gets, puts, look-ups and removes, with the arguments of the blocking calls. */
#include "operation.h"

struct operation *operation_new(struct client *c, enum what what, bool writable)
{
    struct operation *o = (struct operation *)operation_type.tp_alloc(&operation_type, 0);

    if (!o)
        return NULL;
    Py_INCREF(c);
    o->client = c;
    o->what = what;
    o->device = HOST_MEMORY;
    batch_init(&o->batch, c, writable);
    return o;
}

/* Keeps the GIL: libtarn only queues, and the completion must find the operation in the list. */
PyObject *operation_submit(struct operation *o, int (*give)(struct operation *o, const void *options),
                           const void *options)
{
    struct client *c = o->client;

    if (client_enter(c) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    operation_enlist(o);
    int rc = give(o, options);
    if (rc != 0) {
        raise_call(rc, NULL);
        operation_delist(o);
        Py_CLEAR(o);
    }
    client_leave(c);
    return (PyObject *)o;
}

void operation_note_device(struct operation *o)
{
    for (size_t i = 0; i < o->batch.n && o->device == HOST_MEMORY; i++)
        o->device = o->batch.values[i].device;
}

static int give_get(struct operation *o, const void *options)
{
    operation_note_device(o);
    return tarn_submit_get(o->client->lib, o->batch.items, o->batch.n, options, (uint64_t)(uintptr_t)&o->op,
                           &o->op.id);
}

static int give_put(struct operation *o, const void *options)
{
    operation_note_device(o);
    return tarn_submit_put(o->client->lib, o->batch.items, o->batch.n, options, (uint64_t)(uintptr_t)&o->op,
                           &o->op.id);
}

static int give_lookup(struct operation *o, const void *options)
{
    return tarn_submit_lookup(o->client->lib, o->keys, o->nkeys, options, (uint64_t)(uintptr_t)&o->op,
                              &o->op.id);
}

static int give_remove(struct operation *o, const void *options)
{
    return tarn_submit_remove(o->client->lib, o->keys, o->nkeys, o->statuses, *(const uint32_t *)options,
                              (uint64_t)(uintptr_t)&o->op, &o->op.id);
}

static struct args_spec get_args = {
    .function = "get",
    .required = 2,
    .positional = 7,
    .names = {"keys", "values", "hits", "after", "timeout", "what", "offset"}};

/* The range of one item. */
static int set_offset(struct operation *o, PyObject *offset, struct tarn_get_options *options)
{
    if (!offset || offset == Py_None || o->batch.n == 0)
        return 0;
    o->batch.values[0].raw = true;
    options->flags |= TARN_GET_RANGE;
    return args_u64(offset, "offset", &o->batch.items[0].offset);
}

int operation_set_after(struct operation *o, PyObject *after, void **event)
{
    if (after_of(after, event) < 0)
        return -1;
    return *event ? batch_keep(&o->batch, after) : cuda_after(&o->batch, event);
}

static PyObject *submit_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct client *c = (struct client *)self;
    struct tarn_get_options options = {.size = sizeof options};
    uint32_t what = SUBMIT_GET;
    PyObject *arg[7];

    if (args_parse(&get_args, args, nargs, kwnames, arg) < 0 ||
        args_seconds(arg[4], "timeout", &options.timeout_ms) < 0 ||
        args_number(arg[5], "what", 0, SUBMIT_GET_INFO, &what) < 0)
        return NULL;
    struct operation *o = operation_new(c, (enum what)what, true);
    if (!o)
        return NULL;
    if (get_fill(&o->batch, arg[0], arg[1]) < 0 || set_offset(o, arg[6], &options) < 0 ||
        hits_of(arg[2], c, o->batch.n, &options.hits) < 0 ||
        (options.hits && batch_keep(&o->batch, arg[2]) < 0) ||
        operation_set_after(o, arg[3], &options.after) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    return operation_submit(o, give_get, &options);
}

static struct args_spec put_args = {.function = "put",
                                    .required = 1,
                                    .positional = 1,
                                    .names = {"pairs", PUT_OPTIONS, "after", "dtype", "shape"}};

/* Sets dtype and shape of the only item. */
static int declare(struct batch *b, PyObject *dtype, PyObject *shape)
{
    if (b->n != 1)
        return 0;
    int rc = value_declare(&b->values[0], dtype, shape);
    b->items[0].tensor = b->values[0].tensor;
    return rc;
}

static PyObject *submit_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct tarn_put_options options;
    PyObject *arg[11];

    if (args_parse(&put_args, args, nargs, kwnames, arg) < 0)
        return NULL;
    struct operation *o = operation_new((struct client *)self, SUBMIT_PUT, false);
    if (!o)
        return NULL;
    if (put_options(&o->batch, arg + 1, &options) < 0 || put_fill(&o->batch, arg[0]) < 0 ||
        declare(&o->batch, arg[9], arg[10]) < 0 || operation_set_after(o, arg[8], &options.after) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    return operation_submit(o, give_put, &options); /* libtarn copies `place` */
}

static struct args_spec lookup_args = {
    .function = "lookup", .required = 1, .positional = 3, .names = {"keys", "timeout", "stride"}};

static PyObject *submit_lookup(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct tarn_lookup_options options = {.size = sizeof options};
    PyObject *arg[3];

    if (args_parse(&lookup_args, args, nargs, kwnames, arg) < 0 ||
        args_seconds(arg[1], "timeout", &options.timeout_ms) < 0)
        return NULL;
    struct operation *o = operation_new((struct client *)self, SUBMIT_LOOKUP, false);
    if (!o)
        return NULL;
    if (args_number(arg[2], "stride", 1, UINT32_MAX, &o->stride) < 0 ||
        batch_keys(&o->batch, arg[0], &o->keys, &o->nkeys) < 0) {
        Py_DECREF(o);
        return NULL;
    }
    return operation_submit(o, give_lookup, &options);
}

static struct args_spec remove_args = {
    .function = "remove", .required = 1, .positional = 2, .names = {"keys", "timeout"}};

static PyObject *submit_remove(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *arg[2];
    uint32_t ms = 0;

    if (args_parse(&remove_args, args, nargs, kwnames, arg) < 0 || args_seconds(arg[1], "timeout", &ms) < 0)
        return NULL;
    struct operation *o = operation_new((struct client *)self, SUBMIT_REMOVE, false);
    if (!o)
        return NULL;
    if (batch_keys(&o->batch, arg[0], &o->keys, &o->nkeys) < 0 ||
        !(o->statuses = arena_zalloc(&o->batch.arena, (o->nkeys ? o->nkeys : 1) * sizeof *o->statuses))) {
        Py_DECREF(o);
        return NULL;
    }
    return operation_submit(o, give_remove, &ms);
}

PyMethodDef submit_methods[] = {
    {"_submit_get", (PyCFunction)(void (*)(void))submit_get, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_submit_put", (PyCFunction)(void (*)(void))submit_put, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_submit_lookup", (PyCFunction)(void (*)(void))submit_lookup, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_submit_remove", (PyCFunction)(void (*)(void))submit_remove, METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};
