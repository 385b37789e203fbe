/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .safetensors, Hugging Face's format for many named tensors:
 *
 *   header length (u64, little-endian)
 *   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
 *   the tensors' bytes; offsets count from the end of the header
 *
 * As in the reference implementation, tensors must cover the data exactly: no gap, no overlap, nothing
 * behind the last. So a header that lies about one tensor is found out before any byte is stored.
 *
 * The metadata is one more entry, of name __metadata__: u8, the text of its object as it stands in the
 * header. So it is stored under a key of its own, and comes back into the header of a file that is written.
 */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "client/cli/file.h"

#define LENGTH_BYTES 8
#define HEADER_MAX 100000000 /* as in the reference implementation */
#define ALIGNMENT 64
#define METADATA "__metadata__"
#define DTYPE_TEXT 16

/* The remedy for files left by a broken or interrupted writer. */
#define AGAIN ": write the file again, with the safetensors library"

/* A tensor's name, escaped and cut short because it comes from the file. */
struct shown_name {
    char text[128];
};

static struct shown_name show(const char *name)
{
    struct shown_name s = {"?"};
    struct tarn_key key = {name, strnlen(name, 40)};

    if (key.bytes && tarn_key_escape(&key, s.text, sizeof s.text) < 0)
        snprintf(s.text, sizeof s.text, "?");
    return s;
}

static int bad_tensor(const char *name, const char *what)
{
    return tarn_fail(TARN_E_FORMAT, "safetensors: tensor \"%s\": %s" AGAIN, show(name).text, what);
}

/* --- reading ------------------------------------------------------------------------------------ */

/* safetensors writes dtypes in upper case and has no c128. */
static int parse_dtype(const char *name, const json_t *value)
{
    const char *text = json_string_value(value);
    char lower[DTYPE_TEXT];
    size_t n = 0;

    if (!text)
        return bad_tensor(name, "\"dtype\" is missing or no string");
    for (; text[n] && n + 1 < sizeof lower; n++)
        lower[n] = (char)tolower((unsigned char)text[n]);
    lower[n] = '\0';
    int dtype = text[n] ? TARN_E_INVALID : tarn_dtype_parse(lower);
    if (dtype < 0 || dtype == TARN_C128)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "safetensors: tensor \"%s\": dtype %s is not known: convert it first",
                         show(name).text, show(text).text);
    return dtype;
}

/* A number of at least 0; false for anything else. */
static bool parse_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int parse_shape(const char *name, const json_t *value, struct tarn_tensor *t)
{
    if (!json_is_array(value))
        return bad_tensor(name, "\"shape\" is missing or no array");
    if (json_array_size(value) > TARN_DIMS_MAX)
        return tarn_fail(TARN_E_UNSUPPORTED,
                         "safetensors: tensor \"%s\": %zu dimensions, at most %d are possible",
                         show(name).text, json_array_size(value), TARN_DIMS_MAX);
    t->ndim = (uint32_t)json_array_size(value);
    for (uint32_t i = 0; i < t->ndim; i++) {
        if (!parse_number(json_array_get(value, i), &t->shape[i]))
            return bad_tensor(name, "\"shape\" has something that is no number from 0 up");
    }
    return 0;
}

/* Keeps offsets as in the file: from the end of the header. */
static int parse_offsets(const char *name, const json_t *value, uint64_t room, struct tarn_file_entry *e)
{
    uint64_t end = 0;

    if (json_array_size(value) != 2 || !parse_number(json_array_get(value, 0), &e->offset) ||
        !parse_number(json_array_get(value, 1), &end))
        return bad_tensor(name, "\"data_offsets\" are no two numbers from 0 up");
    if (e->offset > end)
        return bad_tensor(name, "it ends before it begins (data_offsets)");
    if (end > room)
        return tarn_fail(
            TARN_E_FORMAT,
            "safetensors: tensor \"%s\": reaches to byte %llu of the data, the file has %llu: truncated?",
            show(name).text, (unsigned long long)end, (unsigned long long)room);
    e->tensor.bytes = end - e->offset;
    return 0;
}

static int parse_tensor(const char *name, const json_t *value, uint64_t room, struct tarn_file_entry *e)
{
    if (!json_is_object(value))
        return bad_tensor(name, "no object of dtype, shape and data_offsets");
    int rc = parse_dtype(name, json_object_get(value, "dtype"));
    if (rc < 0)
        return rc;
    e->tensor.dtype = (uint32_t)rc;
    rc = parse_shape(name, json_object_get(value, "shape"), &e->tensor);
    if (rc == 0)
        rc = parse_offsets(name, json_object_get(value, "data_offsets"), room, e);
    if (rc != 0)
        return rc;
    if (tarn_tensor_check(&e->tensor) != 0) {
        char shape[TARN_SHAPE_TEXT];
        tarn_shape_format(&e->tensor, shape);
        return tarn_fail(
            TARN_E_FORMAT, "safetensors: tensor \"%s\": %llu bytes are not those of %s (%s)" AGAIN,
            show(name).text, (unsigned long long)e->tensor.bytes, tarn_dtype_name(e->tensor.dtype), shape);
    }
    e->name = strdup(name);
    return e->name ? 0 : tarn_fail(TARN_E_NO_MEMORY, "safetensors: no memory for a name");
}

/* The '"' that ends the string beginning at `at`, in JSON that has been parsed. */
static size_t string_end(const char *text, size_t at)
{
    for (at++; text[at] != '"'; at++)
        at += text[at] == '\\';
    return at;
}

/*
 * Finds the metadata's object in a header that has been parsed. Its name is the only such string in the
 * outermost object; the other strings there are the tensors' names.
 */
static bool find_metadata(const char *text, size_t bytes, size_t *at, size_t *length)
{
    static const char name[] = "\"" METADATA "\"";
    bool found = false;
    size_t depth = 0;

    *at = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"') {
            size_t end = string_end(text, i);
            found =
                found || (depth == 1 && end - i + 2 == sizeof name && memcmp(text + i, name, end - i) == 0);
            i = end;
        } else if (text[i] == '{' || text[i] == '[') {
            if (found && *at == 0)
                *at = i;
            depth++;
        } else if ((text[i] == '}' || text[i] == ']') && --depth == 1 && *at > 0) {
            *length = i + 1 - *at;
            return true;
        }
    }
    return false;
}

/* Inserts it before the n entries; there is room for it. */
static int add_metadata(const char *header, size_t bytes, struct tarn_file_entry *entries, size_t n)
{
    struct tarn_file_entry e = {.name = strdup(METADATA)};
    size_t at, length;

    if (!e.name)
        return tarn_fail(TARN_E_NO_MEMORY, "safetensors: no memory for a name");
    if (!find_metadata(header, bytes, &at, &length)) {
        free(e.name);
        return tarn_fail(TARN_E_FORMAT, "safetensors: the name " METADATA " is written with escapes" AGAIN);
    }
    e.tensor = tarn_bytes(length);
    e.offset = LENGTH_BYTES + at;
    memmove(entries + 1, entries, n * sizeof *entries);
    entries[0] = e;
    return 0;
}

bool tarn_safetensors_is_metadata(const struct tarn_file_entry *e)
{
    return e->name && strcmp(e->name, METADATA) == 0;
}

static int check_metadata(json_t *metadata)
{
    const char *name;
    json_t *value;

    if (metadata && !json_is_object(metadata))
        return tarn_fail(TARN_E_FORMAT, "safetensors: " METADATA " is no object" AGAIN);
    json_object_foreach(metadata, name, value)
    {
        if (!json_is_string(value))
            return tarn_fail(TARN_E_FORMAT, "safetensors: " METADATA ": \"%s\" is no string" AGAIN,
                             show(name).text);
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tarn_file_entry *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    /* An empty tensor comes before the one at the same offset. */
    return x->tensor.bytes < y->tensor.bytes ? -1 : x->tensor.bytes > y->tensor.bytes;
}

static int check_cover(const struct tarn_file_entry *entries, size_t n, uint64_t room)
{
    uint64_t at = 0;

    for (size_t i = 0; i < n; i++) {
        if (entries[i].offset != at)
            return tarn_fail(TARN_E_FORMAT,
                             "safetensors: tensor \"%s\": begins at byte %llu of the data, %s" AGAIN,
                             show(entries[i].name).text, (unsigned long long)entries[i].offset,
                             entries[i].offset < at ? "within the one before it" : "behind a gap");
        at += entries[i].tensor.bytes;
    }
    if (at != room)
        return tarn_fail(TARN_E_FORMAT, "safetensors: %llu bytes follow the last tensor" AGAIN,
                         (unsigned long long)(room - at));
    return 0;
}

static int parse_tensors(json_t *root, uint64_t room, struct tarn_file_entry *entries, size_t *n_p)
{
    const char *name;
    json_t *value;

    json_object_foreach(root, name, value)
    {
        if (strcmp(name, METADATA) == 0)
            continue;
        int rc = parse_tensor(name, value, room, &entries[*n_p]);
        if (rc != 0)
            return rc;
        (*n_p)++;
    }
    qsort(entries, *n_p, sizeof *entries, by_offset);
    return check_cover(entries, *n_p, room);
}

/* The JSON parser's message may quote the file. */
static const char *printable(char *text)
{
    for (char *c = text; *c; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    return text;
}

static int load_header(const unsigned char *d, size_t bytes, json_t **root_p, size_t *length_p)
{
    uint64_t length = 0;
    json_error_t why;

    if (bytes < LENGTH_BYTES)
        return tarn_fail(TARN_E_FORMAT, "safetensors: %zu bytes are too few for a header: truncated?", bytes);
    for (int i = LENGTH_BYTES; i-- > 0;)
        length = length << 8 | d[i];
    if (length > HEADER_MAX)
        return tarn_fail(TARN_E_FORMAT,
                         "safetensors: a header of %llu bytes, at most %d are allowed: not such a file?",
                         (unsigned long long)length, HEADER_MAX);
    if (length > bytes - LENGTH_BYTES)
        return tarn_fail(TARN_E_FORMAT,
                         "safetensors: ends after %zu bytes, its header needs %llu: truncated?", bytes,
                         (unsigned long long)length + LENGTH_BYTES);
    *root_p = json_loadb((const char *)d + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!*root_p)
        return tarn_fail(TARN_E_FORMAT, "safetensors: the header is malformed at its byte %d: %s" AGAIN,
                         why.position, printable(why.text));
    *length_p = (size_t)length;
    return 0;
}

int tarn_safetensors_parse(const void *data, size_t bytes, struct tarn_file_entry **entries_p, size_t *n_p)
{
    struct tarn_file_entry *entries = NULL;
    json_t *root = NULL;
    size_t length = 0, n = 0;
    int rc = load_header(data, bytes, &root, &length);

    if (rc != 0)
        return rc;
    if (!json_is_object(root)) {
        rc = tarn_fail(TARN_E_FORMAT, "safetensors: the header is no JSON object" AGAIN);
        goto free_root;
    }
    rc = check_metadata(json_object_get(root, METADATA));
    if (rc != 0)
        goto free_root;
    entries = calloc(json_object_size(root) + 2, sizeof *entries);
    if (!entries) {
        rc = tarn_fail(TARN_E_NO_MEMORY, "safetensors: no memory for %zu tensors", json_object_size(root));
        goto free_root;
    }
    rc = parse_tensors(root, bytes - LENGTH_BYTES - length, entries, &n);
    for (size_t i = 0; i < n; i++)
        entries[i].offset += LENGTH_BYTES + length;
    if (rc == 0 && json_object_get(root, METADATA)) {
        rc = add_metadata((const char *)data + LENGTH_BYTES, length, entries, n);
        n += rc == 0;
    }
    if (rc != 0) {
        tarn_file_entries_free(entries, n);
        goto free_root;
    }
    *entries_p = entries;
    *n_p = n;
free_root:
    json_decref(root);
    return rc;
}

void tarn_file_entries_free(struct tarn_file_entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(entries[i].name);
    free(entries);
}

/* --- writing ------------------------------------------------------------------------------------ */

static json_t *describe(const struct tarn_file_entry *e)
{
    char upper[DTYPE_TEXT] = "";
    const char *dtype = tarn_dtype_name(e->tensor.dtype);

    for (size_t i = 0; dtype && dtype[i] && i + 1 < sizeof upper; i++)
        upper[i] = (char)toupper((unsigned char)dtype[i]);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < e->tensor.ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)e->tensor.shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", upper, "shape", shape, "data_offsets",
                     (json_int_t)e->offset, (json_int_t)(e->offset + e->tensor.bytes));
}

static int add_entry(json_t *root, const struct tarn_file_entry *e)
{
    if (e->tensor.dtype == TARN_C128 || !tarn_dtype_name(e->tensor.dtype))
        return tarn_fail(TARN_E_UNSUPPORTED, "safetensors: \"%s\": the format has no c128: write an .npy",
                         show(e->name).text);
    if (json_object_get(root, e->name))
        return tarn_fail(TARN_E_INVALID, "safetensors: the name \"%s\" is given twice: give each once",
                         show(e->name).text);
    for (uint32_t i = 0; i < e->tensor.ndim; i++) {
        if (e->tensor.shape[i] > INT64_MAX)
            return tarn_fail(TARN_E_UNSUPPORTED, "safetensors: \"%s\": a dimension above 2^63: write an .npy",
                             show(e->name).text);
    }
    if (json_object_set_new(root, e->name, describe(e)) != 0)
        return tarn_fail(TARN_E_INVALID, "safetensors: the name \"%s\" is not UTF-8: write raw files instead",
                         show(e->name).text);
    return 0;
}

/* Finds the metadata among the entries, or sets NULL. An entry of that name must be valid metadata. */
static int take_metadata(struct tarn_file_entry *entries, size_t n, struct tarn_file_entry **metadata_p)
{
    *metadata_p = NULL;
    for (size_t i = 0; i < n; i++) {
        struct tarn_file_entry *e = &entries[i];
        if (!tarn_safetensors_is_metadata(e))
            continue;
        if (*metadata_p || e->tensor.dtype != TARN_U8 || e->tensor.ndim != 1 || e->tensor.bytes > HEADER_MAX)
            return tarn_fail(TARN_E_INVALID,
                             "safetensors: the name \"" METADATA
                             "\" is there %s: it is reserved for the text of the metadata, leave it out",
                             *metadata_p ? "twice" : "for something else");
        *metadata_p = e;
    }
    return 0;
}

/* Gives the entries their places, largest elements first, and fills the JSON object in that order. */
static int lay_out(json_t *root, struct tarn_file_entry *entries, size_t n)
{
    uint64_t at = 0;

    for (uint32_t element = 16; element; element /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (tarn_dtype_bytes(entries[i].tensor.dtype) != element ||
                tarn_safetensors_is_metadata(&entries[i]))
                continue;
            entries[i].offset = at;
            at += entries[i].tensor.bytes;
            int rc = add_entry(root, &entries[i]);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* Writes the header. The metadata's place is left blank for the caller to fill. */
static void add_header(json_t *root, const char *tensors, struct tarn_file_entry *metadata,
                       struct tarn_buf *out)
{
    static const char before[] = "{\"" METADATA "\":";
    struct tarn_buf first = {0};
    unsigned char length[LENGTH_BYTES];

    if (metadata) {
        tarn_buf_printf(&first, "%s%*s%s", before, (int)metadata->tensor.bytes, "",
                        json_object_size(root) > 0 ? "," : "");
        metadata->offset = out->bytes + LENGTH_BYTES + strlen(before);
        tensors++; /* skip its brace: one has been written */
    }
    size_t filled = LENGTH_BYTES + first.bytes + strlen(tensors);
    size_t padding = (ALIGNMENT - filled % ALIGNMENT) % ALIGNMENT;
    uint64_t bytes = filled + padding - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (unsigned char)(bytes >> (8 * i));
    tarn_buf_add(out, length, sizeof length);
    tarn_buf_add(out, first.data, first.bytes);
    tarn_buf_printf(out, "%s%*s", tensors, (int)padding, "");
    out->failed = out->failed || first.failed;
    tarn_buf_free(&first);
}

int tarn_safetensors_header(struct tarn_file_entry *entries, size_t n, struct tarn_buf *out)
{
    struct tarn_file_entry *metadata = NULL;
    char *text = NULL;
    json_t *root = json_object();
    int rc =
        root ? take_metadata(entries, n, &metadata) : tarn_fail(TARN_E_NO_MEMORY, "safetensors: no memory");

    if (rc == 0)
        rc = lay_out(root, entries, n);
    if (rc != 0)
        goto free_root;
    text = json_dumps(root, JSON_COMPACT);
    if (text)
        add_header(root, text, metadata, out);
    if (!text || out->failed)
        rc = tarn_fail(TARN_E_NO_MEMORY, "safetensors: no memory for the header");
    for (size_t i = 0; i < n; i++)
        if (&entries[i] != metadata)
            entries[i].offset += out->bytes;
    free(text);
free_root:
    json_decref(root);
    return rc;
}
