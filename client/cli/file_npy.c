/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npy, NumPy's format for one array:
 *
 *   \x93NUMPY  major  minor  header length (u16 in version 1, u32 in 2 and 3, little-endian)
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   padded with spaces, then a newline
 *   the elements
 *
 * The header is a Python literal. `descr` is byte order ('<', '>', '=', '|'), kind and bytes an
 * element. NumPy has no bf16 and no 8-bit floats; libraries that add them write void elements: |V2
 * and |V1. tarn does the same, reads |V2 as bf16, and asks which of the two 8-bit types |V1 is.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "client/cli/file.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define ALIGNMENT 64

static const struct {
    char kind;
    uint8_t bytes;
    uint8_t dtype;
} kinds[] = {
    {'b', 1, TARN_BOOL},    {'u', 1, TARN_U8},  {'i', 1, TARN_I8},    {'u', 2, TARN_U16},
    {'i', 2, TARN_I16},     {'f', 2, TARN_F16}, {'V', 2, TARN_BF16},  {'u', 4, TARN_U32},
    {'i', 4, TARN_I32},     {'f', 4, TARN_F32}, {'u', 8, TARN_U64},   {'i', 8, TARN_I64},
    {'f', 8, TARN_F64},     {'c', 8, TARN_C64}, {'c', 16, TARN_C128}, {'V', 1, TARN_F8_E4M3},
    {'V', 1, TARN_F8_E5M2},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* --- the Python literal ------------------------------------------------------------------------- */

struct cursor {
    const char *at, *end;
};

struct header {
    const char *descr;
    size_t descr_bytes;
    bool fortran, has_fortran, has_shape;
    struct tarn_tensor tensor;
};

static int malformed(const char *what)
{
    return tarn_fail(TARN_E_FORMAT, "npy header: %s: write the file again with numpy.save", what);
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
}

static bool take(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t n = strlen(word);

    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* A string without escapes; NULL when there is none. */
static const char *take_string(struct cursor *c, size_t *n)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return NULL;
    const char *start = c->at + 1;
    const char *stop = memchr(start, *c->at, (size_t)(c->end - start));
    if (!stop || memchr(start, '\\', (size_t)(stop - start)))
        return NULL;
    c->at = stop + 1;
    *n = (size_t)(stop - start);
    return start;
}

static int take_dimension(struct cursor *c, struct tarn_tensor *t)
{
    skip_space(c);
    const char *start = c->at;
    while (c->at < c->end && isdigit((unsigned char)*c->at))
        c->at++;
    if (t->ndim == TARN_DIMS_MAX)
        return tarn_fail(TARN_E_UNSUPPORTED, "npy header: more than %d dimensions: reshape the array",
                         TARN_DIMS_MAX);
    if (tarn_u64_parse(start, (size_t)(c->at - start), 10, UINT64_MAX, &t->shape[t->ndim]) != 0)
        return malformed("a dimension is no number of 64 bits");
    t->ndim++;
    /* Python 2 wrote long integers as 3L. */
    if (c->at < c->end && *c->at == 'L')
        c->at++;
    return 0;
}

static int take_shape(struct cursor *c, struct header *h)
{
    if (h->has_shape || !take(c, '('))
        return malformed("'shape' is no tuple, or there are two");
    h->has_shape = true;
    while (!take(c, ')')) {
        int rc = take_dimension(c, &h->tensor);
        if (rc != 0)
            return rc;
        if (!take(c, ',')) {
            if (!take(c, ')'))
                return malformed("'shape' has something that is no number");
            break;
        }
    }
    return 0;
}

static int take_descr(struct cursor *c, struct header *h)
{
    if (take(c, '['))
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "npy: a structured array: save each of its fields as an array of its own");
    if (h->descr || !(h->descr = take_string(c, &h->descr_bytes)))
        return malformed("'descr' is no string, or there are two");
    return 0;
}

static int take_fortran(struct cursor *c, struct header *h)
{
    bool yes = take_word(c, "True");

    if (h->has_fortran || (!yes && !take_word(c, "False")))
        return malformed("'fortran_order' is neither True nor False, or there are two");
    h->has_fortran = true;
    h->fortran = yes;
    return 0;
}

static bool is_name(const char *name, size_t n, const char *wanted)
{
    return n == strlen(wanted) && memcmp(name, wanted, n) == 0;
}

static int take_member(struct cursor *c, struct header *h)
{
    size_t n = 0;
    const char *name = take_string(c, &n);

    if (!name || !take(c, ':'))
        return malformed("no dictionary of names and values");
    if (is_name(name, n, "descr"))
        return take_descr(c, h);
    if (is_name(name, n, "fortran_order"))
        return take_fortran(c, h);
    if (is_name(name, n, "shape"))
        return take_shape(c, h);
    return malformed("an unknown name: only descr, fortran_order and shape are known");
}

static int parse_dictionary(const char *text, size_t bytes, struct header *h)
{
    struct cursor c = {text, text + bytes};

    if (!take(&c, '{'))
        return malformed("does not begin with {");
    while (!take(&c, '}')) {
        int rc = take_member(&c, h);
        if (rc != 0)
            return rc;
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return malformed("no end of the dictionary");
            break;
        }
    }
    skip_space(&c);
    if (c.at != c.end)
        return malformed("something follows the dictionary");
    if (!h->descr || !h->has_fortran || !h->has_shape)
        return malformed("descr, fortran_order or shape is missing");
    return 0;
}

/* --- element types ------------------------------------------------------------------------------ */

/* The type of elements that do not say it: void, and 'f1', which some extension types use. */
static int opaque_dtype(unsigned bytes, int told)
{
    if (told >= 0 && tarn_dtype_bytes((uint32_t)told) == bytes)
        return told;
    if (told < 0 && bytes == 2)
        return TARN_BF16;
    if (told >= 0)
        return tarn_fail(TARN_E_INVALID, "npy: its elements have %u bytes, %s has %u: give another --dtype",
                         bytes, tarn_dtype_name((uint32_t)told), tarn_dtype_bytes((uint32_t)told));
    return tarn_fail(TARN_E_UNSUPPORTED,
                     "npy: void elements of %u bytes: say what they are, e.g. --dtype f8_e4m3", bytes);
}

static int known_dtype(char kind, unsigned bytes)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].kind == kind && kinds[i].bytes == bytes)
            return kinds[i].dtype;
    }
    return tarn_fail(TARN_E_UNSUPPORTED,
                     "npy: elements of kind '%c' with %u bytes: convert them to numbers first",
                     isalnum((unsigned char)kind) ? kind : '?', bytes);
}

static int parse_descr(const struct header *h, int told)
{
    const char *d = h->descr;
    uint64_t bytes = 0;

    if (h->descr_bytes < 3 || !memchr("<>=|", d[0], 4) ||
        tarn_u64_parse(d + 2, h->descr_bytes - 2, 10, 65536, &bytes) != 0)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "npy: 'descr' is no plain type such as <f4: convert the array to numbers first");
    if (d[0] == '>' && bytes > 1)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "npy: big-endian elements: convert with a.astype(a.dtype.newbyteorder('<'))");
    if (d[1] == 'V' || (d[1] == 'f' && bytes == 1))
        return opaque_dtype((unsigned)bytes, told);
    int dtype = known_dtype(d[1], (unsigned)bytes);
    if (dtype >= 0 && told >= 0 && told != dtype)
        return tarn_fail(TARN_E_INVALID, "npy: the file has %s elements: omit --dtype %s",
                         tarn_dtype_name((uint32_t)dtype), tarn_dtype_name((uint32_t)told));
    return dtype;
}

/* --- reading ------------------------------------------------------------------------------------ */

/* Finds the header's text. */
static int find_header(const unsigned char *d, size_t bytes, size_t *start, size_t *length)
{
    if (bytes < MAGIC_BYTES + 2 || memcmp(d, MAGIC, MAGIC_BYTES) != 0)
        return tarn_fail(TARN_E_FORMAT,
                         "npy: does not begin like an .npy file: use --format raw for other files");
    if (d[6] < 1 || d[6] > 3 || d[7] != 0)
        return tarn_fail(
            TARN_E_UNSUPPORTED,
            "npy: version %u.%u: 1.0, 2.0 and 3.0 are known: write the file again with numpy.save", d[6],
            d[7]);
    *start = d[6] == 1 ? 10 : 12;
    if (bytes < *start)
        return tarn_fail(TARN_E_FORMAT, "npy: ends after %zu bytes, within its header: truncated?", bytes);
    *length = d[8] | (size_t)d[9] << 8;
    if (d[6] > 1)
        *length |= (size_t)d[10] << 16 | (size_t)d[11] << 24;
    if (*length > bytes - *start)
        return tarn_fail(TARN_E_FORMAT, "npy: ends after %zu bytes, its header needs %zu: truncated?", bytes,
                         *start + *length);
    return 0;
}

int tarn_npy_parse(const void *data, size_t bytes, int dtype, struct tarn_file_entry *e)
{
    struct header h = {0};
    size_t start = 0, length = 0;
    int rc = find_header(data, bytes, &start, &length);

    if (rc == 0)
        rc = parse_dictionary((const char *)data + start, length, &h);
    if (rc == 0)
        rc = parse_descr(&h, dtype);
    if (rc < 0)
        return rc;
    h.tensor.dtype = (uint32_t)rc;
    if (h.fortran && h.tensor.ndim > 1)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "npy: Fortran order: save numpy.ascontiguousarray(a) instead of a");
    h.tensor.bytes = bytes - start - length;
    if (tarn_tensor_check(&h.tensor) != 0) {
        char shape[TARN_SHAPE_TEXT];
        tarn_shape_format(&h.tensor, shape);
        return tarn_fail(TARN_E_FORMAT,
                         "npy: %llu bytes of data are not those of a %s array (%s): truncated, or something "
                         "follows it",
                         (unsigned long long)h.tensor.bytes, tarn_dtype_name(h.tensor.dtype), shape);
    }
    *e = (struct tarn_file_entry){.tensor = h.tensor, .offset = start + length};
    return 0;
}

/* --- writing ------------------------------------------------------------------------------------ */

static int format_descr(uint32_t dtype, char out[8])
{
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].dtype == dtype) {
            bool ordered = kinds[i].kind != 'V' && kinds[i].bytes > 1;
            snprintf(out, 8, "%c%c%u", ordered ? '<' : '|', kinds[i].kind, kinds[i].bytes);
            return 0;
        }
    }
    return tarn_fail(TARN_E_UNSUPPORTED, "npy: no element type %u", dtype);
}

int tarn_npy_header(const struct tarn_tensor *t, struct tarn_buf *out)
{
    struct tarn_buf text = {0};
    char descr[8];
    int rc = format_descr(t->dtype, descr);

    if (rc != 0)
        return rc;
    tarn_buf_printf(&text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (uint32_t i = 0; i < t->ndim; i++)
        tarn_buf_printf(&text, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
    tarn_buf_printf(&text, "%s), }", t->ndim == 1 ? "," : "");
    /* Magic, version and length take 10 bytes, the newline one. */
    size_t filled = 10 + text.bytes + 1;
    size_t padding = (ALIGNMENT - filled % ALIGNMENT) % ALIGNMENT;
    tarn_buf_printf(&text, "%*s\n", (int)padding, "");
    const unsigned char length[2] = {text.bytes & 0xff, text.bytes >> 8 & 0xff};
    tarn_buf_add(out, MAGIC "\x01\x00", MAGIC_BYTES + 2);
    tarn_buf_add(out, length, sizeof length);
    tarn_buf_add(out, text.data, text.bytes);
    bool failed = text.failed || out->failed;
    tarn_buf_free(&text);
    return failed ? tarn_fail(TARN_E_NO_MEMORY, "npy: no memory for the header") : 0;
}
