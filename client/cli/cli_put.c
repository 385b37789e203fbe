/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn put: opens and checks all files before it stores a byte. Then it puts their tensors in batches.
 * Transports read straight from the mapped files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_keys.h"
#include "client/cli/cli_parts.h"
#include "client/cli/cli_text.h"
#include "client/cli/file.h"

/* Either limit ends a batch, so the progress line moves and timeouts stay small. */
#define BATCH_BYTES (64ull << 20)
#define BATCH_ITEMS 256

struct put_config {
    struct cli_common common;
    char *key, *prefix, *format, *dtype, *shape, *place;
    bool replace, pin;
    int64_t ttl_ms, replicas;
};

#define AT(member_) offsetof(struct put_config, member_)

#define DTYPES "u8 i8 bool f8_e4m3 f8_e5m2 u16 i16 f16 bf16 u32 i32 f32 u64 i64 f64 c64 c128"

static const struct tarn_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_TEXT("key", 'k', AT(key), "KEY",
             "Key of the tensor, when there is just one. Without it the key is the prefix and the tensor's "
             "name (.safetensors) or the file's name (without .npy)."),
    CLI_TEXT("prefix", 'p', AT(prefix), "TEXT", "What keys begin with."),
    CLI_TEXT("format", 'f', AT(format), "FORMAT",
             "npy, safetensors or raw. Without it the file's ending decides; a file without one, or with "
             ".raw, is raw."),
    CLI_TEXT("dtype", 0, AT(dtype), "DTYPE",
             "Element type of raw files (u8 without it), or of an .npy with void elements: " DTYPES "."),
    CLI_TEXT("shape", 0, AT(shape), "N,N,...", "Shape of raw files; one dimension without it."),
    CLI_FLAG("replace", 0, AT(replace),
             "Take the place of what is stored under the key; without it that is an error."),
    CLI_FLAG("pin", 0, AT(pin), "Never evict it."),
    CLI_INT("ttl-ms", 0, AT(ttl_ms), "0", 0, UINT32_MAX, "MS", "Delete it after this time; 0: never."),
    CLI_INT("replicas", 0, AT(replicas), "1", 1, TARN_REPLICAS_MAX, "N", "Copies, each on its own node."),
    CLI_TEXT("place", 0, AT(place), "PLACE",
             "Where: local (nodes on this host), NODE or NODE/POOL. Without it the key decides."),
};

/* One tensor to store; its key and status are in put.keys. */
struct job {
    const char *path;
    const struct tarn_file_entry *entry;
    const unsigned char *data;
};

struct put {
    struct cli *c;
    const struct put_config *config;
    struct tarn_file *files;
    size_t nfiles;
    struct job *jobs;
    struct cli_keys keys;
    size_t njobs;
    char prefix[TARN_KEY_MAX + 1];
    size_t prefix_bytes;
    uint64_t bytes, stored_bytes;
    size_t stored;
    double seconds;
};

/* --- files and keys ----------------------------------------------------------------------------- */

static int open_files(struct put *p)
{
    const struct put_config *o = p->config;
    struct tarn_file_hint hint = {.dtype = -1, .shape = o->shape};
    int format = o->format ? tarn_file_format_parse(o->format) : 0;

    if (format < 0)
        return format;
    if (o->dtype && (hint.dtype = tarn_dtype_parse(o->dtype)) < 0)
        return tarn_fail(hint.dtype, "--dtype %.40s: no such element type: use one of " DTYPES, o->dtype);
    p->files = calloc((size_t)p->c->nargs, sizeof *p->files);
    if (!p->files)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    for (int i = 0; i < p->c->nargs; i++) {
        const char *path = p->c->args[i];
        int f = o->format ? format : tarn_file_format_of(path);
        if (f < 0)
            return f;
        if (o->shape && f != TARN_FILE_RAW)
            return tarn_fail(TARN_E_INVALID, "%s: --shape is for raw files only: this one says it itself",
                             path);
        if (o->dtype && f == TARN_FILE_SAFETENSORS)
            return tarn_fail(TARN_E_INVALID, "%s: --dtype is not for .safetensors: it says it itself", path);
        int rc = tarn_file_open(path, (enum tarn_file_format)f, &hint, &p->files[i]);
        if (rc != 0)
            return rc;
        p->nfiles++;
        p->njobs += p->files[i].n;
    }
    return 0;
}

/* The part of the key that comes from the file. */
static int own_name(const struct job *job, struct tarn_key *name)
{
    const char *slash = strrchr(job->path, '/');
    const char *base = slash ? slash + 1 : job->path;

    if (job->entry->name) {
        *name = (struct tarn_key){job->entry->name, strlen(job->entry->name)};
        return 0;
    }
    if (strcmp(job->path, "-") == 0)
        return tarn_fail(TARN_E_INVALID, "standard input has no name: give it a --key");
    *name = (struct tarn_key){base, strlen(base)};
    if (tarn_file_format_of(base) == TARN_FILE_NPY)
        name->bytes -= strlen(".npy");
    return 0;
}

static int make_key(struct put *p, const struct job *job)
{
    struct tarn_key name = {0};
    char given[TARN_KEY_MAX + 1], key[TARN_KEY_MAX];
    size_t prefix_bytes = p->prefix_bytes;
    int rc;

    if (p->config->key) {
        rc = cli_key_parse(p->config->key, given, &name);
        prefix_bytes = 0;
    } else {
        rc = own_name(job, &name);
    }
    if (rc != 0)
        return rc;
    size_t bytes = prefix_bytes + name.bytes;
    if (bytes == 0 || bytes > TARN_KEY_MAX)
        return tarn_fail(TARN_E_INVALID,
                         "%s: a key of %zu bytes, 1 to %d are possible: give another --prefix or --key",
                         job->path, bytes, TARN_KEY_MAX);
    memcpy(key, p->prefix, prefix_bytes);
    memcpy(key + prefix_bytes, name.data, name.bytes);
    return cli_keys_add(&p->keys, &(struct tarn_key){key, bytes});
}

/* Files with the same prefix may have the same metadata (the parts of a model do). It is stored once. */
static bool said_before(const struct put *p, size_t file, const struct tarn_file_entry *e)
{
    for (size_t f = 0; f < file; f++) {
        const struct tarn_file_entry *other = p->files[f].entries;
        if (p->files[f].n > 0 && tarn_safetensors_is_metadata(other) &&
            other->tensor.bytes == e->tensor.bytes &&
            memcmp(p->files[f].data + other->offset, p->files[file].data + e->offset, e->tensor.bytes) == 0)
            return true;
    }
    return false;
}

/* --key names one tensor, so metadata has no key. */
static void leave_metadata(struct put *p)
{
    for (size_t f = 0; f < p->nfiles; f++) {
        struct tarn_file *file = &p->files[f];
        if (file->n == 0 || !tarn_safetensors_is_metadata(file->entries) ||
            (!p->config->key && !said_before(p, f, file->entries)))
            continue;
        free(file->entries[0].name);
        memmove(file->entries, file->entries + 1, --file->n * sizeof *file->entries);
        p->njobs--;
    }
}

static int make_jobs(struct put *p)
{
    size_t n = 0;

    if (p->config->key && p->njobs != 1)
        return tarn_fail(TARN_E_INVALID, "--key names one tensor, here are %zu: use --prefix", p->njobs);
    p->jobs = calloc(p->njobs + 1, sizeof *p->jobs);
    if (!p->jobs)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    for (size_t f = 0; f < p->nfiles; f++) {
        for (size_t i = 0; i < p->files[f].n; i++) {
            struct job *job = &p->jobs[n++];
            job->path = p->c->args[f];
            job->entry = &p->files[f].entries[i];
            /* an empty file has no mapping */
            job->data = p->files[f].data ? p->files[f].data + job->entry->offset : (const unsigned char *)"";
            p->bytes += job->entry->tensor.bytes;
            int rc = make_key(p, job);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(struct cli_key *const *)a)->text, (*(struct cli_key *const *)b)->text);
}

/* No two tensors may have the same key: with --replace the second would silently replace the first. */
static int check_keys(const struct put *p)
{
    const struct cli_key *all = p->keys.all, **sorted = calloc(p->njobs + 1, sizeof *sorted);
    int rc = 0;

    if (!sorted)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for %zu keys", p->njobs);
    for (size_t i = 0; i < p->njobs; i++)
        sorted[i] = &all[i];
    qsort(sorted, p->njobs, sizeof *sorted, by_key);
    for (size_t i = 1; i < p->njobs && rc == 0; i++) {
        if (by_key(&sorted[i - 1], &sorted[i]) == 0)
            rc = tarn_fail(TARN_E_INVALID, "%s: key %s is given twice, by %s too: store them one by one",
                           p->jobs[sorted[i] - all].path, sorted[i]->text, p->jobs[sorted[i - 1] - all].path);
    }
    free(sorted);
    return rc;
}

static int make_prefix(struct put *p)
{
    struct tarn_key key = {0};

    if (!p->config->prefix || !*p->config->prefix)
        return 0;
    if (p->config->key)
        return tarn_fail(TARN_E_INVALID, "--key and --prefix do not go together: leave one out");
    int rc = cli_key_parse(p->config->prefix, p->prefix, &key);
    p->prefix_bytes = key.bytes;
    return rc;
}

/* --- storing ------------------------------------------------------------------------------------ */

static const char *remedy(int32_t status)
{
    return status == TARN_E_EXISTS      ? ": use --replace to put another"
           : status == TARN_E_TOO_LARGE ? ": start a node with a larger --pool"
                                        : "";
}

/* Is this metadata that an earlier file with the same prefix has stored? */
static bool is_there_already(const struct put *p, const struct job *job, const struct cli_key *k)
{
    uint64_t bytes = job->entry->tensor.bytes;
    char *stored =
        k->status == TARN_E_EXISTS && tarn_safetensors_is_metadata(job->entry) ? malloc(bytes) : NULL;
    struct tarn_piece piece = {.addr = stored, .bytes = bytes};
    struct tarn_item item = {.key = k->key, .pieces = &piece, .npieces = 1};
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = cli_timeout(p->c, bytes)};
    bool same = stored && tarn_get(p->c->client, &item, 1, &o) == 0 && memcmp(stored, job->data, bytes) == 0;

    free(stored);
    return same;
}

/* Reports a batch's failures. Returns the batch's code, or 0 if none of its failures is left to report. */
static int take_statuses(struct put *p, size_t first, const struct tarn_item *items, size_t n, int batch_rc)
{
    struct tarn_reason batch;
    size_t failed = 0;

    tarn_reason_keep(&batch, batch_rc);
    for (size_t i = 0; i < n; i++) {
        const struct job *job = &p->jobs[first + i];
        struct cli_key *k = &p->keys.all[first + i];
        k->status = items[i].status;
        if (k->status == 0 || is_there_already(p, job, k)) {
            k->status = 0;
            p->stored++;
            p->stored_bytes += job->entry->tensor.bytes;
            continue;
        }
        failed++;
        cli_item_error(p->c, k->status, &k->key, &batch, remedy(k->status));
    }
    return failed > 0 ? batch_rc : 0;
}

static int put_batch(struct put *p, size_t first, size_t end, uint64_t bytes, struct cli_progress *progress)
{
    const struct put_config *o = p->config;
    struct tarn_put_options options_ = {
        .size = sizeof options_,
        .timeout_ms = cli_timeout(p->c, bytes * (uint64_t)o->replicas),
        .flags = (o->replace ? TARN_PUT_REPLACE : 0u) | (o->pin ? TARN_PUT_PIN : 0u),
        .ttl_ms = (uint32_t)o->ttl_ms,
        .replicas = (uint32_t)o->replicas,
        .place = o->place,
    };
    struct tarn_item items[BATCH_ITEMS];
    struct tarn_piece pieces[BATCH_ITEMS];

    for (size_t i = 0; i < end - first; i++) {
        const struct job *job = &p->jobs[first + i];
        pieces[i] = (struct tarn_piece){.addr = (void *)job->data, .bytes = job->entry->tensor.bytes};
        items[i] = (struct tarn_item){
            .key = p->keys.all[first + i].key,
            .pieces = &pieces[i],
            .npieces = 1,
            .status = TARN_E_CANCELED,
            .tensor = job->entry->tensor,
        };
    }
    bool parts = cli_parts_wanted(progress, bytes) && end - first == 1;
    int rc = parts ? cli_put_parts(p->c, items, &options_, progress)
                   : tarn_put(p->c->client, items, end - first, &options_);
    if (!parts)
        cli_progress_add(progress, bytes);
    return take_statuses(p, first, items, end - first, rc);
}

/* Goes on after errors of single tensors; stops if a node or Redis is gone or the error is fatal. */
static int put_all(struct put *p)
{
    struct cli_progress progress;
    int rc = 0;

    cli_progress_start(&progress, p->c, "put", p->bytes);
    for (size_t first = 0, end = 0; first < p->njobs; first = end) {
        uint64_t bytes = p->jobs[end++].entry->tensor.bytes;
        while (end < p->njobs && end - first < BATCH_ITEMS &&
               bytes + p->jobs[end].entry->tensor.bytes <= BATCH_BYTES)
            bytes += p->jobs[end++].entry->tensor.bytes;
        int batch_rc = put_batch(p, first, end, bytes, &progress);
        rc = rc ? rc : batch_rc;
        enum tarn_error_class class = tarn_error_class(batch_rc);
        if (class == TARN_CLASS_RECONNECT || class == TARN_CLASS_FATAL)
            break;
    }
    p->seconds = cli_progress_end(&progress);
    return rc;
}

/* --- output ------------------------------------------------------------------------------------- */

static int print_json(const struct put *p)
{
    json_t *tensors = json_array();

    for (size_t i = 0; i < p->njobs; i++) {
        const struct job *job = &p->jobs[i];
        json_t *o = json_object();
        json_object_set_new(o, "key", json_string(p->keys.all[i].text));
        json_object_set_new(o, "file", cli_json_text(job->path));
        json_object_set_new(o, "status", json_string(cli_status_name(p->keys.all[i].status)));
        cli_json_tensor(o, &job->entry->tensor);
        json_array_append_new(tensors, o);
    }
    return cli_print_json(json_pack("{s:o, s:I, s:I, s:f}", "tensors", tensors, "stored",
                                    (json_int_t)p->stored, "stored_bytes", (json_int_t)p->stored_bytes,
                                    "seconds", p->seconds),
                          false);
}

static int print_table(const struct put *p)
{
    struct cli_table t = {.align = "lrl"};
    struct tarn_buf out = {0};
    char size[16], tensor[TARN_SHAPE_TEXT + 16];

    cli_row(&t, "KEY", "SIZE", "TENSOR", NULL);
    for (size_t i = 0; i < p->njobs; i++) {
        if (p->keys.all[i].status != 0)
            continue;
        tarn_size_format(p->jobs[i].entry->tensor.bytes, size);
        cli_tensor_format(&p->jobs[i].entry->tensor, tensor);
        cli_row(&t, p->keys.all[i].text, size, tensor, NULL);
    }
    cli_table_print(&t, cli_coloured(), &out);
    tarn_size_format(p->stored_bytes, size);
    tarn_buf_printf(&out, "%zu of %zu stored", p->stored, p->njobs);
    if (p->stored)
        tarn_buf_printf(&out, ", %s in %.3f s (%.2f GB/s)", size, p->seconds,
                        (double)p->stored_bytes / p->seconds / 1e9);
    tarn_buf_printf(&out, "\n");
    return cli_print(&out);
}

static void free_put(struct put *p)
{
    cli_keys_free(&p->keys);
    free(p->jobs);
    for (size_t i = 0; i < p->nfiles; i++)
        tarn_file_close(&p->files[i]);
    free(p->files);
}

static int run(struct cli *c, const void *config)
{
    struct put p = {.c = c, .config = config};
    int rc = cli_want_args(c, 1, INT32_MAX, "FILE");

    if (rc == 0)
        rc = make_prefix(&p);
    if (rc == 0)
        rc = open_files(&p);
    if (rc == 0)
        leave_metadata(&p);
    if (rc == 0)
        rc = make_jobs(&p);
    if (rc == 0)
        rc = check_keys(&p);
    if (rc == 0)
        rc = cli_connect(c);
    if (rc == 0) {
        rc = put_all(&p);
        int printed = c->common->json ? print_json(&p) : c->common->quiet ? 0 : print_table(&p);
        rc = rc ? rc : printed;
    }
    /* Close the client first: its connections may still use the files' mappings. */
    tarn_close(c->client);
    c->client = NULL;
    free_put(&p);
    return rc;
}

static const struct tarn_program program = {
    .name = "tarn put",
    .arguments = "FILE...",
    .brief = "store tensors from files",
    .description =
        "Stores the tensors of .npy, .safetensors and raw files; - is standard input. Each tensor of a "
        ".safetensors is stored under its own key, and its metadata, as text, under __metadata__. All files "
        "are checked before the first byte is stored; a tensor becomes readable in one step, when it is "
        "complete.",
    .examples = "tarn put weights.safetensors --prefix model/\n"
                "tarn put block.raw --key kv/1 --dtype f16 --shape 2,16,8,128\n"
                "produce | tarn put - --key stream --ttl-ms 60000\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_put = {&program, sizeof(struct put_config), run};
