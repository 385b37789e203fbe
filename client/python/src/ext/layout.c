/* SPDX-License-Identifier: Apache-2.0 */
/* Layout: paged buffers. Pages: some of a layout's pages, as a value. */
#include "ext.h"

#include <structmember.h>

#include <tarn/layout.h>

struct layout {
    PyObject_HEAD struct tarn_layout *lib;
    struct batch
        held;         /* keeps the arrays, and their buffers exported: a bytearray is not resized meanwhile */
    PyObject *arrays; /* a tuple */
    char *first;      /* where the first array lay */
    Py_ssize_t read_only; /* the first such array; -1: none */
    uint32_t nbases;
    uint64_t npages, page_bytes;
    struct tarn_tensor page; /* of one array */
};

struct pages {
    PyObject_HEAD struct layout *layout;
    uint32_t n, *numbers;
};

/* --- layouts ------------------------------------------------------------------------------------ */

/* How pages lie in an array. */
struct cut {
    uint64_t npages, page_bytes, stride;
    struct tarn_tensor page;
};

/* The bytes of the dimensions from `first` on, which must have no gaps. */
static int dense_bytes(const struct array *a, int first, const char *remedy, Py_ssize_t *bytes)
{
    *bytes = tarn_dtype_bytes(a->dtype);
    for (int d = a->ndim - 1; d >= first; d--) {
        if (a->shape[d] != 1 && a->strides[d] != *bytes)
            return raise_why(TARN_E_INVALID, NULL, "Layout: the bytes have gaps in dimension %d: %s", d,
                             remedy);
        *bytes *= a->shape[d];
    }
    return 0;
}

/* A page is an element of the first dimension. */
static int cut_by_dimension(const struct array *a, struct cut *c)
{
    struct tarn_tensor *t = &c->page;
    Py_ssize_t bytes;

    if (dense_bytes(a, 1, "give arrays whose pages are contiguous, or a view for each part", &bytes) < 0)
        return -1;
    *t = (struct tarn_tensor){.dtype = a->dtype, .ndim = (uint32_t)(a->ndim > 0 ? a->ndim - 1 : 0)};
    for (uint32_t d = 0; d < t->ndim; d++)
        t->shape[d] = (uint64_t)a->shape[d + 1];
    t->bytes = c->page_bytes = (uint64_t)bytes;
    c->npages = a->ndim > 0 ? (uint64_t)a->shape[0] : 0;
    if (c->npages > 1 && a->strides[0] < bytes)
        return raise_why(
            TARN_E_INVALID, NULL,
            "Layout: pages of %zd bytes lie %zd bytes apart: give arrays whose pages do not overlap", bytes,
            a->strides[0]);
    c->stride = c->npages > 1 ? (uint64_t)a->strides[0] : (uint64_t)bytes;
    return 0;
}

/* A contiguous array is cut in pages. */
static int cut_by_bytes(const struct array *a, uint64_t page_bytes, struct cut *c)
{
    Py_ssize_t bytes;

    if (dense_bytes(a, 0, "leave page_bytes out, or give a contiguous array", &bytes) < 0)
        return -1;
    if (page_bytes == 0 || (uint64_t)bytes % page_bytes != 0)
        return raise_why(TARN_E_INVALID, NULL,
                         "Layout: page_bytes=%llu does not divide the %zd bytes of an array",
                         (unsigned long long)page_bytes, bytes);
    *c = (struct cut){(uint64_t)bytes / page_bytes, page_bytes, page_bytes, tarn_bytes(page_bytes)};
    return 0;
}

static int cut(const struct array *a, PyObject *page_bytes, struct cut *c)
{
    uint64_t bytes = 0;

    if (page_bytes == Py_None)
        return cut_by_dimension(a, c);
    return args_u64(page_bytes, "page_bytes", &bytes) < 0 ? -1 : cut_by_bytes(a, bytes, c);
}

/* All arrays must be cut alike. */
static int find_bases(struct batch *b, PyObject *arrays, PyObject *page_bytes, void **bases, struct cut *c)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arrays); i++) {
        struct array a;
        struct cut this;
        if (array_of(b, PyTuple_GET_ITEM(arrays, i), &a) < 0 || cut(&a, page_bytes, &this) < 0)
            return -1;
        if (i == 0)
            *c = this;
        if (this.npages != c->npages || this.stride != c->stride || !tensor_equal(&this.page, &c->page))
            return raise_why(TARN_E_INVALID, NULL,
                             "Layout: array %zd has other pages than array 0: give arrays that are alike", i);
        bases[i] = a.base;
    }
    return 0;
}

/* The first array that cannot be written to, or -1. */
static Py_ssize_t find_read_only(PyObject *arrays)
{
    Py_ssize_t i = 0, n = PyTuple_GET_SIZE(arrays);
    struct array a;
    struct batch b;

    batch_init(&b, NULL, true);
    while (i < n && array_of(&b, PyTuple_GET_ITEM(arrays, i), &a) == 0)
        i++;
    PyErr_Clear();
    batch_free(&b);
    return i < n ? i : -1;
}

static int fill(struct layout *l, PyObject *page_bytes)
{
    struct batch *b = &l->held;
    size_t n = (size_t)PyTuple_GET_SIZE(l->arrays);
    void **bases = arena_alloc(&b->arena, (n ? n : 1) * sizeof *bases);
    struct cut c = {0};
    int rc;

    if (!bases || find_bases(b, l->arrays, page_bytes, bases, &c) < 0)
        return -1;
    const struct tarn_layout_options o = {.size = sizeof o,
                                          .bases = bases,
                                          .nbases = (uint32_t)(n < UINT32_MAX ? n : UINT32_MAX),
                                          .page_bytes = c.page_bytes,
                                          .stride = c.stride,
                                          .npages = c.npages};
    Py_BEGIN_ALLOW_THREADS;
    rc = tarn_layout_new(&o, &l->lib);
    Py_END_ALLOW_THREADS;
    if (raise_call(rc, NULL) < 0)
        return -1;
    l->first = bases[0];
    l->read_only = find_read_only(l->arrays);
    l->nbases = o.nbases;
    l->npages = c.npages;
    l->page_bytes = c.page_bytes;
    l->page = c.page;
    return 0;
}

static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"arrays", "page_bytes", NULL};
    PyObject *arrays, *page_bytes = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Layout", names, &arrays, &page_bytes))
        return NULL;
    struct layout *l = (struct layout *)type->tp_alloc(type, 0);
    if (!l)
        return NULL;
    batch_init(&l->held, NULL, false);
    l->arrays =
        PyList_Check(arrays) || PyTuple_Check(arrays) ? PySequence_Tuple(arrays) : PyTuple_Pack(1, arrays);
    if (!l->arrays || fill(l, page_bytes) < 0)
        Py_CLEAR(l);
    return (PyObject *)l;
}

static void layout_dealloc(PyObject *self)
{
    struct layout *l = (struct layout *)self;

    tarn_layout_free(l->lib);
    batch_free(&l->held);
    Py_XDECREF(l->arrays);
    Py_TYPE(self)->tp_free(self);
}

/* --- pages -------------------------------------------------------------------------------------- */

static int64_t number_at(const struct array *a, Py_ssize_t i)
{
    const char *at = a->base + i * a->strides[0];

    return a->dtype == TARN_I64   ? *(const int64_t *)at
           : a->dtype == TARN_I32 ? *(const int32_t *)at
                                  : (int64_t) * (const uint32_t *)at;
}

static int wrong_number(const struct layout *l, Py_ssize_t i, long long number)
{
    return raise_why(TARN_E_INVALID, NULL, "pages: number %zd is %lld: the layout has pages 0 to %llu", i,
                     number, (unsigned long long)l->npages - 1);
}

static struct pages *pages_alloc(struct layout *l, Py_ssize_t n)
{
    struct pages *p = n <= (Py_ssize_t)UINT32_MAX ? PyObject_New(struct pages, &pages_type) : NULL;

    if (!p)
        return NULL;
    p->numbers = PyMem_Malloc((size_t)(n ? n : 1) * sizeof *p->numbers);
    p->n = (uint32_t)n;
    Py_INCREF(l);
    p->layout = l;
    if (!p->numbers) {
        PyErr_NoMemory();
        Py_DECREF(p);
        return NULL;
    }
    return p;
}

static struct pages *pages_of_array(struct layout *l, struct batch *b, PyObject *numbers)
{
    struct array a;

    if (array_of(b, numbers, &a) < 0)
        return NULL;
    if (a.ndim != 1 || (a.dtype != TARN_I64 && a.dtype != TARN_I32 && a.dtype != TARN_U32)) {
        raise_why(
            TARN_E_INVALID, NULL,
            "pages: %d dimensions of %s: give one of int32, uint32 or int64, or a list of whole numbers",
            a.ndim, tarn_dtype_name(a.dtype));
        return NULL;
    }
    if (a.device != HOST_MEMORY) {
        raise_why(TARN_E_INVALID, NULL, "pages: the numbers are in memory of GPU %d: give numbers.cpu()",
                  a.device);
        return NULL;
    }
    struct pages *p = pages_alloc(l, a.shape[0]);
    for (Py_ssize_t i = 0; p && i < a.shape[0]; i++) {
        int64_t number = number_at(&a, i);
        if (number < 0 || (uint64_t)number >= l->npages) {
            wrong_number(l, i, number);
            Py_CLEAR(p);
            break;
        }
        p->numbers[i] = (uint32_t)number;
    }
    return p;
}

static struct pages *pages_of_list(struct layout *l, PyObject *numbers)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(numbers);
    struct pages *p = pages_alloc(l, n);

    for (Py_ssize_t i = 0; p && i < n; i++) {
        int overflow = 0;
        PyObject *o = PyNumber_Index(PySequence_Fast_GET_ITEM(numbers, i));
        long long number = o ? PyLong_AsLongLongAndOverflow(o, &overflow) : -1;
        Py_XDECREF(o);
        if (!o || overflow || number < 0 || (uint64_t)number >= l->npages) {
            if (!PyErr_Occurred())
                wrong_number(l, i, overflow ? (overflow > 0 ? INT64_MAX : INT64_MIN) : number);
            Py_CLEAR(p);
            break;
        }
        p->numbers[i] = (uint32_t)number;
    }
    return p;
}

static PyObject *layout_pages(PyObject *self, PyObject *numbers)
{
    struct layout *l = (struct layout *)self;
    struct pages *p;

    if (PyList_Check(numbers) || PyTuple_Check(numbers) || PyRange_Check(numbers)) {
        PyObject *list = PySequence_Fast(numbers, "pages");
        p = list ? pages_of_list(l, list) : NULL;
        Py_XDECREF(list);
        return (PyObject *)p;
    }
    struct batch b;
    batch_init(&b, NULL, false);
    p = pages_of_array(l, &b, numbers);
    batch_free(&b);
    return (PyObject *)p;
}

static void pages_dealloc(PyObject *self)
{
    struct pages *p = (struct pages *)self;

    PyMem_Free(p->numbers);
    Py_XDECREF(p->layout);
    PyObject_Free(self);
}

static Py_ssize_t pages_length(PyObject *self)
{
    return ((struct pages *)self)->n;
}

/* Waits for the arrays' stream, as for the first one given as a value. */
static int use_arrays(struct batch *b, const struct layout *l, struct value *v)
{
    struct array a;

    v->device = b->seen_layout_device;
    if (b->seen_layout == l)
        return 0;
    if (b->writable && l->read_only >= 0)
        return raise_why(TARN_E_INVALID, NULL,
                         "value: array %zd of its layout is read-only: give one that can be "
                         "written to",
                         l->read_only);
    if (array_of(b, PyTuple_GET_ITEM(l->arrays, 0), &a) < 0)
        return -1;
    v->device = b->seen_layout_device = a.device;
    b->seen_layout = l;
    if (a.base == l->first)
        return 0;
    return raise_why(TARN_E_INVALID, NULL,
                     "value: the arrays of its layout have moved: make a new Layout of them");
}

/* n pages of the layout; v->device is set already. */
static void set_pages(const struct layout *l, const uint32_t *numbers, uint32_t n, struct value *v)
{
    struct tarn_tensor *t = &v->tensor;

    *t = tarn_bytes((uint64_t)n * l->nbases * l->page_bytes);
    if (l->page.ndim + 2 <= TARN_DIMS_MAX) {
        t->dtype = l->page.dtype;
        t->ndim = l->page.ndim + 2;
        t->shape[0] = l->nbases;
        t->shape[1] = n;
        for (uint32_t d = 0; d < l->page.ndim; d++)
            t->shape[d + 2] = l->page.shape[d];
    }
    v->pieces = NULL;
    v->npieces = n;
    v->layout = l->lib;
    v->pages = numbers;
    v->raw = true;
}

int value_of_pages(struct batch *b, PyObject *o, struct value *v)
{
    const struct pages *p = (const struct pages *)o;

    if (!b->takes_pages)
        return raise_type("value", o, "an array: pages are for get_into() and puts");
    if (use_arrays(b, p->layout, v) < 0)
        return -1;
    set_pages(p->layout, p->numbers, p->n, v);
    return batch_keep(b, o);
}

int values_of_pages(struct batch *b, PyObject *o)
{
    const struct pages *p = (const struct pages *)o;
    size_t n = b->n;
    struct value first = {0};

    if (n == 0 ? p->n > 0 : p->n == 0 || p->n % n > 0)
        return raise_why(TARN_E_INVALID, NULL,
                         "values: %u pages for %zu keys: give as many pages for each key", (unsigned)p->n, n);
    if (n == 0)
        return 0;
    if (use_arrays(b, p->layout, &first) < 0)
        return -1;
    uint32_t each = p->n / (uint32_t)n;
    set_pages(p->layout, p->numbers, each, &first);
    for (size_t i = 0; i < n; i++) {
        b->values[i] = first;
        b->values[i].pages = p->numbers + i * each;
    }
    return batch_keep(b, o);
}

/* --- types -------------------------------------------------------------------------------------- */

static PyMemberDef layout_members[] = {
    {"arrays", T_OBJECT, offsetof(struct layout, arrays), READONLY, "the arrays, a tuple"},
    {"npages", T_ULONGLONG, offsetof(struct layout, npages), READONLY, "pages of each array"},
    {"page_bytes", T_ULONGLONG, offsetof(struct layout, page_bytes), READONLY,
     "bytes of a page of one array"},
    {0},
};

static PyMethodDef layout_methods[] = {
    {"pages", layout_pages, METH_O,
     "pages(numbers, /)\n--\n\nThe pages with these numbers, of all arrays, as a value for get_into() and "
     "puts: "
     "array after array,\nand within an array in this order. get_into_many() also takes pages in place of "
     "the "
     "list of\nvalues: as many for each key, in order. numbers: a list, or an array of int32 or int64 of the "
     "host."},
    {0},
};

PyTypeObject layout_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Layout",
    .tp_doc =
        "Layout(arrays, page_bytes=None)\n--\n\n"
        "A paged buffer, such as the KV cache of an engine: arrays of pages, all alike, say one for each "
        "layer.\nA page is an element of an array's first dimension, or `page_bytes` bytes of a contiguous "
        "array. Values\nthat name pages by number (pages()) cost less than the arrays' parts: a GPU computes "
        "their addresses.",
    .tp_basicsize = sizeof(struct layout),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = layout_new,
    .tp_dealloc = layout_dealloc,
    .tp_members = layout_members,
    .tp_methods = layout_methods,
};

static PySequenceMethods pages_sequence = {.sq_length = pages_length};

PyTypeObject pages_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Pages",
    .tp_doc = "Pages of a layout, as Layout.pages() makes them.",
    .tp_basicsize = sizeof(struct pages),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = pages_dealloc,
    .tp_as_sequence = &pages_sequence,
};
