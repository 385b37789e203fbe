/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn get: looks all keys up, lays out the output (header and a place for each tensor), and lets
 * transports write straight into it. The output is the mapping of the output file, or memory that is then
 * written to standard output. An object may be replaced between lookup and read. If its type or size
 * changed, the header would be wrong, so everything is done again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "client/cli/cli.h"
#include "client/cli/cli_keys.h"
#include "client/cli/cli_parts.h"
#include "client/cli/cli_text.h"
#include "client/cli/file.h"

#define BATCH_BYTES (64ull << 20)
#define BATCH_ITEMS 256
#define TRIES 5

struct get_config {
    struct cli_common common;
    char *output, *format, *range, *prefix;
};

#define AT(member_) offsetof(struct get_config, member_)

static const struct tarn_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_TEXT("output", 'o', AT(output), "FILE",
             "Where to; without it or with - standard output. A directory gets one file a key, .npy unless "
             "--format says raw. A file is replaced, a device or pipe is written to."),
    CLI_TEXT("format", 'f', AT(format), "FORMAT",
             "npy, safetensors or raw. Without it the output's ending decides; a file without one, or with "
             ".raw, and a pipe are raw. Several keys fit into one safetensors file; with --format raw, or to "
             "standard output, they come one behind another."),
    CLI_TEXT("prefix", 'p', AT(prefix), "TEXT",
             "Put before each KEY, and removed from names in files. Without any KEY it means all "
             "keys that begin so."),
    CLI_TEXT("range", 0, AT(range), "OFFSET:BYTES",
             "Only these bytes of the tensor, such as 4K:64K; raw, one key. Without BYTES to the end."),
};

struct get {
    struct cli *c;
    const struct get_config *config;
    enum tarn_file_format format;
    bool to_stdout, to_directory;
    int stream; /* standard output, or the device or pipe named by --output; else -1 */
    char prefix[TARN_KEY_MAX + 1];
    size_t prefix_bytes;
    struct cli_keys keys;
    struct tarn_hits *hits;
    uint64_t range_offset, range_bytes; /* range_bytes UINT64_MAX: to the end */
    uint64_t bytes;
    struct cli_progress progress;
};

/* --- which keys --------------------------------------------------------------------------------- */

static int want(struct get *g, const void *data, size_t bytes)
{
    if (bytes == 0 || bytes > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID, "a key of %zu bytes: 1 to %d are possible", bytes, TARN_KEY_MAX);
    return cli_keys_add(&g->keys, &(struct tarn_key){data, bytes});
}

static int want_args(struct get *g)
{
    char key[2 * TARN_KEY_MAX + 1];

    memcpy(key, g->prefix, g->prefix_bytes);
    for (int i = 0; i < g->c->nargs; i++) {
        struct tarn_key rest = {0};
        char bytes[TARN_KEY_MAX + 1];
        int rc = cli_key_parse(g->c->args[i], bytes, &rest);
        if (rc != 0)
            return rc;
        memcpy(key + g->prefix_bytes, rest.data, rest.bytes);
        rc = want(g, key, g->prefix_bytes + rest.bytes);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int want_prefix(struct get *g)
{
    struct tarn_buf glob = {0};

    for (const char *s = g->config->prefix; *s; s++)
        tarn_buf_printf(&glob, "%s%c", strchr("*?[]\\", *s) ? "\\" : "", *s);
    tarn_buf_printf(&glob, "?*"); /* leave out the prefix's own key: it has no name below the prefix */
    if (glob.failed) {
        tarn_buf_free(&glob);
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    }
    int rc = cli_keys_list(g->c, glob.data, &g->keys);
    tarn_buf_free(&glob);
    if (rc == 0 && g->keys.n == 0)
        return tarn_fail(TARN_E_NOT_FOUND, "no key begins with %s", g->config->prefix);
    return rc;
}

/* --- what they are ------------------------------------------------------------------------------ */

static int miss(struct get *g, const struct cli_key *w, enum tarn_state state)
{
    if (state == TARN_STATE_NODE_DOWN)
        return cli_error(g->c, TARN_E_NODE_DOWN, "%s: no node that holds it answers: see `tarn info`",
                         w->text);
    return cli_error(g->c, TARN_E_NOT_FOUND, "%s: no such key", w->text);
}

static int look_up(struct get *g)
{
    struct tarn_lookup_options o = {.size = sizeof o, .timeout_ms = cli_timeout(g->c, 0)};
    struct tarn_key *keys = calloc(g->keys.n, sizeof *keys);
    int rc = keys ? 0 : tarn_fail(TARN_E_NO_MEMORY, "no memory");

    for (size_t i = 0; keys && i < g->keys.n; i++)
        keys[i] = g->keys.all[i].key;
    tarn_hits_free(g->hits);
    g->hits = NULL;
    if (rc == 0)
        rc = tarn_lookup(g->c->client, keys, g->keys.n, &o, &g->hits);
    free(keys);
    if (rc != 0)
        return rc;
    g->bytes = 0;
    for (size_t i = 0; i < g->keys.n; i++) {
        struct cli_key *w = &g->keys.all[i];
        enum tarn_state state = tarn_hits_state(g->hits, i);
        int missed = state == TARN_STATE_HIT ? tarn_hits_tensor(g->hits, i, &w->tensor) : miss(g, w, state);
        rc = rc ? rc : missed;
        g->bytes += w->tensor.bytes;
    }
    return rc;
}

/* --- the output --------------------------------------------------------------------------------- */

/* The layout of one output: keys [first, first + n) at the entries' offsets, after the header. */
struct image {
    size_t first, n;
    struct tarn_file_entry *entries;
    struct tarn_buf header;
    uint64_t bytes;
    unsigned char *data;
};

/* The name in a safetensors file: the key without the prefix. */
static int name_entry(const struct get *g, const struct cli_key *w, struct tarn_file_entry *e)
{
    if (strlen(w->bytes) < w->key.bytes)
        return tarn_fail(TARN_E_INVALID, "safetensors: names have no zero bytes, %s has: write raw files",
                         w->text);
    e->name = strdup(w->bytes + g->prefix_bytes);
    return e->name ? 0 : tarn_fail(TARN_E_NO_MEMORY, "no memory");
}

static int lay_out_raw(const struct get *g, struct image *im)
{
    uint64_t at = 0;

    for (size_t i = 0; i < im->n; i++) {
        struct tarn_tensor *t = &im->entries[i].tensor;
        im->entries[i].offset = at;
        if (g->config->range) {
            if (g->range_offset > t->bytes ||
                (g->range_bytes != UINT64_MAX && g->range_bytes > t->bytes - g->range_offset))
                return tarn_fail(TARN_E_SIZE, "--range %s: reaches behind the end, %s has %llu bytes",
                                 g->config->range, g->keys.all[im->first + i].text,
                                 (unsigned long long)t->bytes);
            *t = tarn_bytes(g->range_bytes == UINT64_MAX ? t->bytes - g->range_offset : g->range_bytes);
        }
        at += t->bytes;
    }
    return 0;
}

static int lay_out(const struct get *g, struct image *im)
{
    int rc = 0;

    im->entries = calloc(im->n, sizeof *im->entries);
    if (!im->entries)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    for (size_t i = 0; i < im->n && rc == 0; i++) {
        im->entries[i].tensor = g->keys.all[im->first + i].tensor;
        if (g->format == TARN_FILE_SAFETENSORS)
            rc = name_entry(g, &g->keys.all[im->first + i], &im->entries[i]);
    }
    if (rc != 0)
        return rc;
    if (g->format == TARN_FILE_SAFETENSORS) {
        rc = tarn_safetensors_header(im->entries, im->n, &im->header);
    } else if (g->format == TARN_FILE_NPY) {
        rc = tarn_npy_header(&im->entries->tensor, &im->header);
        im->entries->offset = im->header.bytes;
    } else {
        rc = lay_out_raw(g, im);
    }
    /* metadata lies within the header */
    im->bytes = im->header.bytes;
    for (size_t i = 0; i < im->n; i++)
        if (im->entries[i].offset >= im->header.bytes)
            im->bytes += im->entries[i].tensor.bytes;
    return rc;
}

/* The objects got must match the header. */
static int check_tensors(const struct get *g, const struct image *im, size_t at,
                         const struct tarn_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct cli_key *w = &g->keys.all[im->first + at + i];
        if (items[i].status == TARN_E_SIZE ||
            (items[i].status == 0 && !tarn_tensor_equal(&items[i].tensor, &w->tensor)))
            return tarn_fail(TARN_E_SIZE, "%s: was replaced while it was read: try again", w->text);
    }
    return 0;
}

static int report_items(struct get *g, const struct tarn_item *items, size_t n, int batch_rc)
{
    struct tarn_reason batch;

    tarn_reason_keep(&batch, batch_rc);
    for (size_t i = 0; i < n; i++) {
        if (items[i].status != 0)
            cli_item_error(g->c, items[i].status, &items[i].key, &batch, "");
    }
    return batch_rc;
}

static int get_batch(struct get *g, const struct image *im, size_t at, size_t end, uint64_t bytes)
{
    struct tarn_get_options o = {
        .size = sizeof o,
        .timeout_ms = cli_timeout(g->c, bytes),
        .flags = g->config->range ? TARN_GET_RANGE : 0,
        .hits = g->hits,
        .hits_first = im->first + at,
    };
    struct tarn_item items[BATCH_ITEMS];
    struct tarn_piece pieces[BATCH_ITEMS];
    bool parts = cli_parts_wanted(&g->progress, bytes) && end - at == 1 && !g->config->range;

    for (size_t i = 0; i < end - at; i++) {
        const struct cli_key *w = &g->keys.all[im->first + at + i];
        const struct tarn_file_entry *e = &im->entries[at + i];
        pieces[i] = (struct tarn_piece){.addr = im->data + e->offset, .bytes = e->tensor.bytes};
        if (!parts)
            tarn_file_prefault(im->data + e->offset, e->tensor.bytes);
        items[i] = (struct tarn_item){
            .key = w->key,
            .pieces = &pieces[i],
            .npieces = 1,
            .offset = g->range_offset,
        };
    }
    int rc = parts ? cli_get_parts(g->c, items, &g->progress) : tarn_get(g->c->client, items, end - at, &o);
    if (rc == 0 && !parts)
        cli_progress_add(&g->progress, bytes);
    if (rc != 0 && rc != TARN_E_SIZE)
        return report_items(g, items, end - at, rc);
    return check_tensors(g, im, at, items, end - at);
}

/* The metadata in the header is what somebody put under its key, so it may be wrong. */
static int check_header(const struct image *im)
{
    struct tarn_file_entry *entries;
    size_t n;

    if (tarn_safetensors_parse(im->data, im->bytes, &entries, &n) != 0)
        return tarn_fail(
            TARN_E_FORMAT,
            "the key that ends with __metadata__ holds no metadata of a .safetensors: give other keys, "
            "or get to a directory");
    tarn_file_entries_free(entries, n);
    return 0;
}

static int fill(struct get *g, const struct image *im)
{
    if (im->header.bytes)
        memcpy(im->data, im->header.data, im->header.bytes);
    for (size_t at = 0, end = 0; at < im->n; at = end) {
        uint64_t bytes = im->entries[end++].tensor.bytes;
        while (end < im->n && end - at < BATCH_ITEMS && bytes + im->entries[end].tensor.bytes <= BATCH_BYTES)
            bytes += im->entries[end++].tensor.bytes;
        int rc = get_batch(g, im, at, end, bytes);
        if (rc != 0)
            return rc;
    }
    return g->format == TARN_FILE_SAFETENSORS ? check_header(im) : 0;
}

static int write_stream(const struct get *g, const unsigned char *data, uint64_t bytes)
{
    while (bytes) {
        ssize_t n = write(g->stream, data, bytes);
        if (n < 0 && errno != EINTR)
            return tarn_fail(TARN_E_SYSTEM, "%s: %m", g->to_stdout ? "standard output" : g->config->output);
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static int output_stream(struct get *g, struct image *im)
{
    im->data = malloc(im->bytes + 1);
    if (!im->data)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for %llu bytes: give an --output file",
                         (unsigned long long)im->bytes);
    int rc = fill(g, im);
    if (rc == 0)
        rc = write_stream(g, im->data, im->bytes);
    free(im->data);
    return rc;
}

static int output_file(struct get *g, struct image *im, const char *path)
{
    struct tarn_file_out out;
    unsigned char nothing[1];
    int rc = tarn_file_create(path, im->bytes, &out);

    if (rc != 0)
        return rc;
    im->data = out.map ? out.map : nothing;
    rc = fill(g, im);
    if (rc == 0)
        return tarn_file_commit(&out);
    tarn_file_discard(&out);
    return rc;
}

static int output(struct get *g, size_t first, size_t n, const char *path)
{
    struct image im = {.first = first, .n = n};
    int rc = lay_out(g, &im);

    if (rc == 0)
        rc = path ? output_file(g, &im, path) : output_stream(g, &im);
    tarn_file_entries_free(im.entries, im.entries ? im.n : 0);
    tarn_buf_free(&im.header);
    return rc;
}

/* DIRECTORY/KEY.npy. The key is written as text with / as %2F, which no key's text contains. */
static int output_in_directory(struct get *g, size_t i)
{
    struct tarn_buf path = {0};
    int rc;

    tarn_buf_printf(&path, "%s/", g->config->output);
    for (const char *s = g->keys.all[i].text; *s; s++)
        tarn_buf_printf(&path, *s == '/' ? "%%2F" : "%c", *s);
    tarn_buf_printf(&path, "%s", g->format == TARN_FILE_NPY ? ".npy" : "");
    rc = path.failed ? tarn_fail(TARN_E_NO_MEMORY, "no memory") : output(g, i, 1, path.data);
    tarn_buf_free(&path);
    return rc;
}

static int output_all(struct get *g)
{
    int rc = look_up(g);

    if (rc != 0)
        return rc;
    cli_progress_start(&g->progress, g->c, "get", g->bytes);
    if (!g->to_directory)
        return output(g, 0, g->keys.n, g->stream >= 0 ? NULL : g->config->output);
    for (size_t i = 0; i < g->keys.n && rc == 0; i++)
        rc = output_in_directory(g, i);
    return rc;
}

/* --- options ------------------------------------------------------------------------------------ */

static int parse_range(struct get *g)
{
    char text[64];
    const char *range = g->config->range;
    const char *colon = range ? strchr(range, ':') : NULL;

    g->range_bytes = UINT64_MAX;
    if (!range)
        return 0;
    if (!colon || (size_t)(colon - range) >= sizeof text)
        return tarn_fail(TARN_E_INVALID, "--range %s: write OFFSET:BYTES, such as 4K:64K", range);
    snprintf(text, sizeof text, "%.*s", (int)(colon - range), range);
    int rc = tarn_size_parse(text, &g->range_offset);
    if (rc == 0 && colon[1])
        rc = tarn_size_parse(colon + 1, &g->range_bytes);
    if (rc != 0)
        return tarn_fail(rc, "--range %s: %s", range, tarn_last_error());
    if (g->c->nargs != 1)
        return tarn_fail(TARN_E_INVALID, "--range needs exactly one KEY");
    return rc;
}

/*
 * Decides where the output goes: standard output under any of its names (/dev/stdout), a directory, or a
 * device or pipe, which is written to. Any other path is a file, which is replaced.
 */
static int choose_place(struct get *g, const char *path)
{
    struct stat st, standard;

    if (path && !*path)
        return tarn_fail(TARN_E_INVALID, "--output is empty: name a file, or - for standard output");
    g->to_stdout = !path || strcmp(path, "-") == 0;
    if (!g->to_stdout && stat(path, &st) == 0) {
        g->to_stdout = fstat(STDOUT_FILENO, &standard) == 0 && st.st_dev == standard.st_dev &&
                       st.st_ino == standard.st_ino;
        g->to_directory = S_ISDIR(st.st_mode);
        if (!g->to_stdout && !g->to_directory && !S_ISREG(st.st_mode)) {
            g->stream = open(path, O_WRONLY | O_CLOEXEC);
            if (g->stream < 0)
                return tarn_fail(TARN_E_INVALID, "%s: cannot open: %m", path);
        }
    }
    if (g->to_stdout)
        g->stream = STDOUT_FILENO;
    return 0;
}

static int choose_output(struct get *g)
{
    const struct get_config *o = g->config;
    int format, rc = choose_place(g, o->output);

    if (rc != 0)
        return rc;
    if (o->format)
        format = tarn_file_format_parse(o->format);
    else if (g->to_directory)
        format = TARN_FILE_NPY;
    else
        format = g->stream >= 0 ? TARN_FILE_RAW : tarn_file_format_of(o->output);
    if (format < 0)
        return format;
    g->format = (enum tarn_file_format)format;
    if (g->to_directory && format == TARN_FILE_SAFETENSORS)
        return tarn_fail(TARN_E_INVALID, "%s: is a directory: a safetensors file takes all keys, name it",
                         o->output);
    if (o->range && format != TARN_FILE_RAW)
        return tarn_fail(TARN_E_INVALID, "--range gives raw bytes: use --format raw");
    if (g->to_stdout && g->c->common->json)
        return tarn_fail(TARN_E_INVALID,
                         "--json and the tensor cannot both go to standard output: give an --output");
    if (g->to_stdout && isatty(STDOUT_FILENO))
        return tarn_fail(TARN_E_INVALID, "standard output is a terminal: give an --output, or a pipe");
    return 0;
}

static int check_arguments(struct get *g)
{
    struct tarn_key prefix = {0};
    bool has_prefix = g->config->prefix && *g->config->prefix;
    int rc = has_prefix ? cli_key_parse(g->config->prefix, g->prefix, &prefix)
                        : cli_want_args(g->c, 1, INT32_MAX, "KEY");

    g->prefix_bytes = prefix.bytes;
    if (rc == 0)
        rc = choose_output(g);
    if (rc == 0)
        rc = parse_range(g);
    return rc;
}

/* --- the command -------------------------------------------------------------------------------- */

static int print_result(const struct get *g, double seconds)
{
    struct tarn_buf out = {0};
    char size[16];

    if (g->to_stdout || (g->c->common->quiet && !g->c->common->json))
        return 0;
    if (g->c->common->json) {
        json_t *tensors = json_array();
        for (size_t i = 0; i < g->keys.n; i++) {
            json_t *o = json_object();
            json_object_set_new(o, "key", json_string(g->keys.all[i].text));
            cli_json_tensor(o, &g->keys.all[i].tensor);
            json_array_append_new(tensors, o);
        }
        return cli_print_json(json_pack("{s:o, s:o, s:I, s:f}", "tensors", tensors, "output",
                                        cli_json_text(g->config->output), "bytes",
                                        (json_int_t)g->progress.done, "seconds", seconds),
                              false);
    }
    tarn_size_format(g->progress.done, size);
    tarn_buf_printf(&out, "%zu got, %s in %.3f s (%.2f GB/s)\n", g->keys.n, size, seconds,
                    (double)g->progress.done / seconds / 1e9);
    return cli_print(&out);
}

static void free_get(struct get *g)
{
    tarn_hits_free(g->hits);
    if (g->stream >= 0 && !g->to_stdout)
        close(g->stream);
    cli_keys_free(&g->keys);
}

/* Several keys fit in one file only if its format names them or the caller says they may be joined. */
static int check_count(const struct get *g)
{
    if (g->keys.n < 2 || g->to_directory || g->format == TARN_FILE_SAFETENSORS)
        return 0;
    if (g->format == TARN_FILE_NPY)
        return tarn_fail(TARN_E_INVALID,
                         "an .npy has one array, here are %zu keys: write .safetensors or to a directory",
                         g->keys.n);
    if (g->to_stdout || g->config->format)
        return 0;
    return tarn_fail(TARN_E_INVALID,
                     "%s: is one file, here are %zu keys: write .safetensors or to a directory; --format raw "
                     "puts them one behind another",
                     g->config->output, g->keys.n);
}

static int run(struct cli *c, const void *config)
{
    struct get g = {.c = c, .config = config, .stream = -1};
    int rc = check_arguments(&g);

    if (rc == 0)
        rc = cli_connect(c);
    if (rc == 0)
        rc = c->nargs ? want_args(&g) : want_prefix(&g);
    if (rc == 0)
        rc = check_count(&g);
    if (rc == 0) {
        for (int i = 0; i < TRIES; i++) {
            rc = output_all(&g);
            double seconds = g.progress.started_ns ? cli_progress_end(&g.progress) : 0;
            if (rc == 0)
                rc = print_result(&g, seconds);
            if (rc != TARN_E_SIZE || g.config->range)
                break;
        }
    }
    free_get(&g);
    return rc;
}

static const struct tarn_program program = {
    .name = "tarn get",
    .arguments = "[KEY...]",
    .brief = "read tensors into files",
    .description =
        "Reads tensors into .npy, .safetensors or raw files, or to standard output. A file appears under its "
        "name in one step, when it is complete. A key __metadata__ behind the prefix becomes a .safetensors' "
        "metadata. bf16 and the 8-bit floats, which NumPy does not have, become void elements (|V2, |V1) in "
        ".npy files.",
    .examples = "tarn get model/layer0.weight -o layer0.npy\n"
                "tarn get --prefix model/ -o weights.safetensors\n"
                "tarn get kv/1 --range 0:4K | xxd | head\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_get = {&program, sizeof(struct get_config), run};
