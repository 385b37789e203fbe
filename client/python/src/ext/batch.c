/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values of one call as libtarn's items, with the references that keep them alive. */
#include "ext.h"

#define REFS 32

/* A chunk of references. */
struct ref {
    struct ref *next;
    unsigned count;
    PyObject *objects[REFS];
};

struct held {
    struct held *next;
    Py_buffer view;
};

void batch_init(struct batch *b, struct client *c, bool writable)
{
    arena_init(&b->arena);
    b->client = c;
    b->writable = writable;
    b->takes_pages = false;
    b->on_stream = false;
    b->n = 0;
    b->items = NULL;
    b->values = NULL;
    b->keys = NULL;
    b->refs = NULL;
    b->buffers = NULL;
    b->bytes = 0;
    b->nstreams = 0;
    b->asked = 0;
    b->event = NULL;
    b->seen_begin = b->seen_end = 0;
    b->no_gpus = false;
    b->seen_layout = NULL;
    b->why[0] = '\0';
}

int batch_reserve(struct batch *b, size_t n)
{
    if (n > (size_t)PY_SSIZE_T_MAX / 512) {
        PyErr_NoMemory();
        return -1;
    }
    b->items = arena_zalloc(&b->arena, n * sizeof *b->items);
    b->values = arena_alloc(&b->arena, n * sizeof *b->values);
    b->keys = arena_zalloc(&b->arena, n * sizeof(PyObject *));
    if (!b->items || !b->values || !b->keys)
        return -1;
    b->n = n;
    return 0;
}

int batch_values(struct batch *b, size_t n)
{
    b->values = arena_alloc(&b->arena, (n ? n : 1) * sizeof *b->values);
    b->n = n;
    return b->values ? 0 : -1;
}

int batch_keep(struct batch *b, PyObject *o)
{
    if (!b->refs || b->refs->count == REFS) {
        struct ref *r = arena_alloc(&b->arena, sizeof *r);
        if (!r)
            return -1;
        r->count = 0;
        r->next = b->refs;
        b->refs = r;
    }
    Py_INCREF(o);
    b->refs->objects[b->refs->count++] = o;
    return 0;
}

Py_buffer *batch_buffer(struct batch *b, PyObject *o, int flags)
{
    struct held *h = arena_alloc(&b->arena, sizeof *h);

    if (!h || PyObject_GetBuffer(o, &h->view, flags) < 0)
        return NULL;
    h->next = b->buffers;
    b->buffers = h;
    return &h->view;
}

int batch_bytes(struct batch *b, PyObject *o, const char *name, uint32_t most, const void **data,
                uint32_t *bytes)
{
    if (!PyObject_CheckBuffer(o))
        return raise_type(name, o, "bytes");
    const Py_buffer *view = batch_buffer(b, o, PyBUF_SIMPLE);
    if (!view)
        return -1;
    if (view->len > (Py_ssize_t)most)
        return raise_why(TARN_E_INVALID, NULL, "%s: %zd bytes: give at most %u", name, view->len,
                         (unsigned)most);
    *data = view->buf;
    *bytes = (uint32_t)view->len;
    return 0;
}

void batch_free(struct batch *b)
{
    cuda_forget(b);
    for (struct held *h = b->buffers; h; h = h->next)
        PyBuffer_Release(&h->view);
    for (struct ref *r = b->refs; r; r = r->next)
        for (unsigned i = 0; i < r->count; i++)
            Py_DECREF(r->objects[i]);
    arena_free(&b->arena);
}

/* --- keys --------------------------------------------------------------------------------------- */

static int key_of(PyObject *o, struct tarn_key *k)
{
    Py_ssize_t n;

    if (PyBytes_Check(o)) {
        k->data = PyBytes_AS_STRING(o);
        n = PyBytes_GET_SIZE(o);
    } else if (PyUnicode_Check(o)) {
        k->data = text_utf8(o, "key", &n);
        if (!k->data)
            return -1;
    } else {
        return raise_type("key", o, "bytes or a str");
    }
    k->bytes = (size_t)n;
    if (n < 1 || n > TARN_KEY_MAX)
        return raise_why(TARN_E_INVALID, o, "key: %zd bytes long: give it 1 to %d", n, TARN_KEY_MAX);
    return 0;
}

int batch_set_key(struct batch *b, size_t i, PyObject *key, struct tarn_key *k)
{
    if (key_of(key, k) < 0 || batch_keep(b, key) < 0)
        return -1;
    if (b->keys)
        b->keys[i] = key;
    return 0;
}

int batch_key(struct batch *b, PyObject *key, struct tarn_key *k)
{
    return key_of(key, k) < 0 ? -1 : batch_keep(b, key);
}

PyObject *keys_list(PyObject *keys)
{
    return args_list(keys, "keys", "a list of keys, each bytes or a str");
}

int batch_keys(struct batch *b, PyObject *keys, struct tarn_key **keys_p, size_t *n_p)
{
    PyObject *fast = keys_list(keys);
    int rc = -1;

    if (!fast)
        return -1;
    if (batch_keep(b, fast) < 0)
        goto drop;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(fast);
    struct tarn_key *k = arena_alloc(&b->arena, (n ? n : 1) * sizeof *k);
    b->keys = k ? arena_alloc(&b->arena, (n ? n : 1) * sizeof *b->keys) : NULL;
    for (size_t i = 0; b->keys && i < n; i++)
        if (batch_set_key(b, i, PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i), &k[i]) < 0)
            goto drop;
    if (b->keys) {
        *keys_p = k;
        *n_p = n;
        rc = 0;
    }
drop:
    Py_DECREF(fast);
    return rc;
}

/* --- items -------------------------------------------------------------------------------------- */

static void item_from_value(struct batch *b, size_t i)
{
    const struct value *v = &b->values[i];
    struct tarn_item *item = &b->items[i];

    item->pieces = v->pieces;
    item->npieces = v->npieces;
    item->layout = v->layout;
    item->pages = v->pages;
    if (!b->writable)
        item->tensor = v->tensor;
    b->bytes += v->tensor.bytes;
}

int batch_set(struct batch *b, size_t i, PyObject *key, PyObject *value)
{
    b->takes_pages = true;
    if (batch_set_key(b, i, key, &b->items[i].key) < 0 || value_of(b, value, &b->values[i]) < 0)
        return -1;
    item_from_value(b, i);
    return 0;
}

static int values_of_rows(struct batch *b, PyObject *values)
{
    struct array l;

    if (array_of(b, values, &l) < 0)
        return -1;
    if (l.ndim < 1 || (size_t)l.shape[0] != b->n)
        return raise_why(TARN_E_INVALID, NULL,
                         "values: one array with %zd rows for %zu keys: give a row for each key",
                         l.ndim > 0 ? l.shape[0] : 0, b->n);
    for (size_t i = 0; i < b->n; i++)
        if (array_pieces(b, &l, 1, (Py_ssize_t)i * l.strides[0], &b->values[i]) < 0)
            return -1;
    return 0;
}

int batch_set_rows(struct batch *b, PyObject *values)
{
    bool pages = PyObject_TypeCheck(values, &pages_type);

    if ((pages ? values_of_pages(b, values) : values_of_rows(b, values)) < 0)
        return -1;
    for (size_t i = 0; i < b->n; i++)
        item_from_value(b, i);
    return 0;
}
