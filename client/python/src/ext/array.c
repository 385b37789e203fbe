/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of any strides as pieces, in C order, without a copy.
 *
 * Trailing dimensions without gaps form one run of bytes. Dimensions before them with an even step form
 * one strided piece. Each index of the remaining dimensions gives another piece. So a KV cache of [blocks,
 * 2, tokens, heads, width] with a block picked from every layer is a handful of pieces, whatever the
 * number of elements.
 */
#include "ext.h"

#define PIECES_MAX (1u << 22)

int array_dim(struct array *l, int d, Py_ssize_t length, Py_ssize_t stride, bool dense, Py_ssize_t *step)
{
    Py_ssize_t itemsize = tarn_dtype_bytes(l->dtype);

    l->shape[d] = length;
    l->strides[d] = *step;
    if (length < 0 || (!dense && __builtin_mul_overflow(itemsize, stride, &l->strides[d])) ||
        (length > 0 && __builtin_mul_overflow(*step, length, step)))
        return raise_why(
            TARN_E_INVALID, NULL,
            "value: dimension %d has length %zd and stride %zd: give an array that memory can hold", d,
            length, stride);
    return 0;
}

int array_dims(struct array *l, PyObject *shape, PyObject *strides)
{
    bool dense = !strides || strides == Py_None;

    if (!PyTuple_Check(shape) ||
        (!dense && (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(shape))))
        return raise_type("value: its shape and strides", shape, "two tuples of one length");
    if (PyTuple_GET_SIZE(shape) > TARN_DIMS_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "value: %zd dimensions, %d are possible: reshape it",
                         PyTuple_GET_SIZE(shape), TARN_DIMS_MAX);
    l->ndim = (int)PyTuple_GET_SIZE(shape);
    Py_ssize_t step = tarn_dtype_bytes(l->dtype);
    for (int d = l->ndim - 1; d >= 0; d--) {
        /* Too large a number becomes the largest one, which is refused. */
        Py_ssize_t length = PyNumber_AsSsize_t(PyTuple_GET_ITEM(shape, d), NULL);
        Py_ssize_t stride = dense ? 0 : PyNumber_AsSsize_t(PyTuple_GET_ITEM(strides, d), NULL);
        if (PyErr_Occurred() || array_dim(l, d, length, stride, dense, &step) < 0)
            return -1;
    }
    return 0;
}

/* The part of an array that is not gathered yet. */
struct walk {
    int ndim; /* dimensions left */
    const Py_ssize_t *shape, *strides;
    Py_ssize_t run;           /* bytes without gap */
    Py_ssize_t count, stride; /* of the strided piece */
};

/* Takes trailing dimensions into the run. */
static void take_run(struct walk *w)
{
    for (; w->ndim > 0; w->ndim--) {
        int d = w->ndim - 1;
        if (w->shape[d] != 1 && w->strides[d] != w->run)
            return;
        w->run *= w->shape[d];
    }
}

/* Takes dimensions before it with an even step, forwards and without overlap. */
static void take_steps(struct walk *w)
{
    w->count = 1;
    w->stride = w->run;
    if (w->ndim == 0 || w->strides[w->ndim - 1] < w->run)
        return;
    w->stride = w->strides[w->ndim - 1];
    for (; w->ndim > 0; w->ndim--) {
        int d = w->ndim - 1;
        if (w->shape[d] != 1 && w->strides[d] != w->count * w->stride)
            return;
        w->count *= w->shape[d];
    }
}

static size_t pieces_count(const struct walk *w)
{
    size_t n = 1;

    for (int d = 0; d < w->ndim; d++) {
        n *= (size_t)w->shape[d];
        if (n > PIECES_MAX)
            return n;
    }
    return n;
}

/* One piece for every index of the dimensions left, the last one changing first. */
static void list_pieces(const struct walk *w, char *base, struct tarn_piece *pieces, size_t n)
{
    Py_ssize_t index[TARN_DIMS_MAX] = {0};
    char *at = base;

    for (size_t i = 0; i < n; i++) {
        pieces[i] = (struct tarn_piece){at, (uint64_t)w->run, (uint64_t)w->stride, (uint64_t)w->count};
        for (int d = w->ndim - 1; d >= 0; d--) {
            at += w->strides[d];
            if (++index[d] < w->shape[d])
                break;
            at -= w->shape[d] * w->strides[d];
            index[d] = 0;
        }
    }
}

/* Two elements must not share a place if bytes are written: the last writer would win. */
static int check_overlap(const struct array *l, int skip)
{
    for (int d = skip; d < l->ndim; d++)
        if (l->strides[d] == 0 && l->shape[d] > 1)
            return raise_why(
                TARN_E_INVALID, NULL,
                "value: dimension %d has stride 0, its elements share memory: give an array of its own, "
                "as numpy.empty(shape) makes",
                d);
    return 0;
}

static void set_tensor(const struct array *l, int skip, struct value *v)
{
    struct tarn_tensor *t = &v->tensor;
    uint64_t bytes = tarn_dtype_bytes(l->dtype);

    t->dtype = l->dtype;
    t->ndim = (uint32_t)(l->ndim - skip);
    for (int d = skip; d < l->ndim; d++) {
        t->shape[d - skip] = (uint64_t)l->shape[d];
        bytes *= (uint64_t)l->shape[d];
    }
    t->bytes = bytes;
    v->raw = l->dtype == TARN_U8 && t->ndim == 1;
}

int array_pieces(struct batch *b, const struct array *l, int skip, Py_ssize_t offset, struct value *v)
{
    set_tensor(l, skip, v);
    v->pieces = &v->one;
    v->npieces = 0;
    v->layout = NULL;
    v->device = l->device;
    if (v->tensor.bytes == 0)
        return 0;
    if (!l->base)
        return raise_why(
            TARN_E_INVALID, NULL,
            "value: it has no memory (freed, resized or fake): give one that has it until the call ends");

    struct walk w = {.ndim = l->ndim - skip, .shape = l->shape + skip, .strides = l->strides + skip};
    w.run = tarn_dtype_bytes(l->dtype);
    take_run(&w);
    take_steps(&w);
    if (w.ndim == 0) {
        v->one =
            (struct tarn_piece){l->base + offset, (uint64_t)w.run, (uint64_t)w.stride, (uint64_t)w.count};
        v->npieces = 1;
        return 0;
    }
    size_t n = pieces_count(&w);
    if (n > PIECES_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL,
                         "value: its strides make more than %u pieces: make it contiguous first", PIECES_MAX);
    if (b->writable && check_overlap(l, skip) < 0)
        return -1;
    struct tarn_piece *pieces = arena_alloc(&b->arena, n * sizeof *pieces);
    if (!pieces)
        return -1;
    list_pieces(&w, l->base + offset, pieces, n);
    v->pieces = pieces;
    v->npieces = (uint32_t)n;
    return 0;
}
