/* SPDX-License-Identifier: Apache-2.0 */
/* tarn rm, pin, unpin, touch and ttl: commands on keys, given by name or by glob. */
#include "client/cli/cli_keys.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_text.h"

#define BATCH 256

struct keys_config {
    struct cli_common common;
    char *glob;
    int64_t for_ms; /* pin */
};

#define AT(member_) offsetof(struct keys_config, member_)
#define KEYS_OPTIONS \
    CLI_COMMON_OPTIONS, \
        CLI_TEXT("glob", 'g', AT(glob), "GLOB", \
                 "All keys whose text matches, in the place of KEYs; `tarn ls GLOB` lists them.")

static const struct tarn_option options[] = {KEYS_OPTIONS};
static const struct tarn_option pin_options[] = {
    KEYS_OPTIONS,
    CLI_INT("for-ms", 0, AT(for_ms), "0", 0, UINT32_MAX, "MS",
            "End the pin after this time; 0: at `tarn unpin`."),
};

/* --- which keys --------------------------------------------------------------------------------- */

int cli_keys_add(struct cli_keys *k, const struct tarn_key *key)
{
    if (k->n == k->room) {
        size_t room = k->room ? 2 * k->room : 64;
        struct cli_key *all = reallocarray(k->all, room, sizeof *all);
        if (!all)
            return tarn_fail(TARN_E_NO_MEMORY, "no memory for %zu keys", room);
        k->all = all;
        k->room = room;
    }
    char *bytes = malloc(key->bytes + 1);
    struct cli_key *e = &k->all[k->n++];
    *e = (struct cli_key){
        .bytes = bytes, .key = {bytes, key->bytes}, .text = cli_key_text(key), .status = TARN_E_CANCELED};
    if (!bytes || !e->text)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for the keys");
    memcpy(bytes, key->data, key->bytes);
    bytes[key->bytes] = '\0';
    return 0;
}

static void key_free(struct cli_key *e)
{
    free(e->bytes);
    free(e->text);
    free(e->copies);
    json_decref(e->json);
}

void cli_keys_free(struct cli_keys *k)
{
    for (size_t i = 0; i < k->n; i++)
        key_free(&k->all[i]);
    free(k->all);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct cli_key *)a)->text, ((const struct cli_key *)b)->text);
}

void cli_keys_sort(struct cli_keys *k)
{
    size_t n = 0;

    if (k->n)
        qsort(k->all, k->n, sizeof *k->all, by_text);
    for (size_t i = 0; i < k->n; i++) {
        if (n && by_text(&k->all[i], &k->all[n - 1]) == 0)
            key_free(&k->all[i]);
        else
            k->all[n++] = k->all[i];
    }
    k->n = n;
}

static int add_listed(void *arg, const struct tarn_object *o)
{
    return cli_keys_add(arg, &o->key);
}

int cli_keys_list(struct cli *c, const char *glob, struct cli_keys *k)
{
    int rc = tarn_list(c->client, glob, cli_timeout(c, 0), add_listed, k);

    if (rc == 0)
        cli_keys_sort(k);
    return rc;
}

static int parse_keys(const struct cli *c, struct cli_keys *k)
{
    char bytes[TARN_KEY_MAX + 1];
    struct tarn_key key;
    int rc = cli_want_args(c, 1, INT32_MAX, "KEY");

    for (int i = 0; i < c->nargs && rc == 0; i++) {
        rc = cli_key_parse(c->args[i], bytes, &key);
        if (rc == 0)
            rc = cli_keys_add(k, &key);
    }
    return rc;
}

/* Connects and fills k with the keys that the command line gives. */
static int take_keys(struct cli *c, const struct keys_config *o, struct cli_keys *k)
{
    int rc = 0;

    if (o->glob && c->nargs)
        return tarn_fail(TARN_E_INVALID, "--glob %s and KEYs (\"%s\") do not go together: leave one out",
                         o->glob, c->args[0]);
    if (o->glob && !*o->glob)
        return tarn_fail(TARN_E_INVALID, "--glob is empty, which matches no key: '*' matches all");
    if (!o->glob)
        rc = parse_keys(c, k);
    if (rc == 0)
        rc = cli_connect(c);
    if (rc == 0 && o->glob)
        rc = cli_keys_list(c, o->glob, k);
    if (rc == 0 && k->n == 0)
        return tarn_fail(TARN_E_NOT_FOUND, "no key matches %s", o->glob);
    return rc;
}

/* --- running ------------------------------------------------------------------------------------ */

/* Works on a batch of keys and sets their statuses. */
typedef int (*keys_fn)(struct cli *c, const struct keys_config *o, const struct tarn_key *keys, size_t n,
                       int32_t *statuses);

static int run_batch(struct cli *c, const struct keys_config *o, keys_fn fn, struct cli_key *e, size_t n)
{
    struct tarn_key keys[BATCH] = {0};
    int32_t statuses[BATCH];
    struct tarn_reason batch;

    for (size_t i = 0; i < n; i++) {
        keys[i] = e[i].key;
        statuses[i] = TARN_E_CANCELED;
    }
    tarn_reason_keep(&batch, fn(c, o, keys, n, statuses));
    for (size_t i = 0; i < n; i++) {
        e[i].status = statuses[i];
        if (statuses[i] != 0)
            cli_item_error(c, statuses[i], &keys[i], &batch, "");
    }
    return batch.code;
}

static int report(const struct cli *c, const struct cli_keys *k, const char *done)
{
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++)
        n += k->all[i].status == 0;
    if (c->common->json) {
        json_t *keys = json_array();
        for (size_t i = 0; i < k->n; i++)
            json_array_append_new(keys, json_pack("{s:s, s:s}", "key", k->all[i].text, "status",
                                                  cli_status_name(k->all[i].status)));
        return cli_print_json(json_pack("{s:o, s:I}", "keys", keys, done, (json_int_t)n), false);
    }
    if (!c->common->quiet)
        printf("%zu of %zu %s\n", n, k->n, done);
    return 0;
}

/* `batch`: keys for each call of fn. Ends early if Redis or a node does not answer, or after a fatal
 * error. */
static int run(struct cli *c, const struct keys_config *o, keys_fn fn, size_t batch, const char *done)
{
    struct cli_keys k = {0};
    int rc = take_keys(c, o, &k);

    if (rc == 0) {
        enum tarn_error_class class = TARN_CLASS_NONE;
        for (size_t i = 0; i < k.n && class != TARN_CLASS_RECONNECT && class != TARN_CLASS_FATAL;
             i += batch) {
            int one = run_batch(c, o, fn, k.all + i, k.n - i < batch ? k.n - i : batch);
            class = tarn_error_class(one);
            rc = rc ? rc : one;
        }
        int printed = report(c, &k, done);
        rc = rc ? rc : printed;
    }
    cli_keys_free(&k);
    return rc;
}

/* --- rm ----------------------------------------------------------------------------------------- */

static int remove_keys(struct cli *c, const struct keys_config *o, const struct tarn_key *keys, size_t n,
                       int32_t *statuses)
{
    (void)o;
    return tarn_remove(c->client, keys, n, statuses, cli_timeout(c, 0));
}

static int run_rm(struct cli *c, const void *config)
{
    return run(c, config, remove_keys, BATCH, "removed");
}

static const struct tarn_program rm_program = {
    .name = "tarn rm",
    .arguments = "[KEY...]",
    .brief = "remove tensors, all their copies",
    .description = "Readers that hold a view of a tensor keep it until they release it.",
    .examples = "tarn rm kv/1 kv/2\n"
                "tarn rm --glob 'kv/*'\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_rm = {&rm_program, sizeof(struct keys_config), run_rm};

/* --- pin, unpin --------------------------------------------------------------------------------- */

static int pin_key(struct cli *c, const struct keys_config *o, const struct tarn_key *keys, size_t n,
                   int32_t *statuses)
{
    (void)n;
    return statuses[0] = tarn_pin(c->client, keys, (uint32_t)o->for_ms, cli_timeout(c, 0));
}

static int run_pin(struct cli *c, const void *config)
{
    return run(c, config, pin_key, 1, "pinned");
}

static const struct tarn_program pin_program = {
    .name = "tarn pin",
    .arguments = "[KEY...]",
    .brief = "keep tensors from eviction",
    .description =
        "What is pinned stays until it is unpinned, removed or replaced, or its ttl has passed. The "
        "longest of several pins counts.",
    .examples = "tarn pin model/layer0.weight\n"
                "tarn pin --glob 'model/*' --for-ms 3600000\n",
    CLI_OPTIONS(pin_options),
};

const struct cli_command cli_pin = {&pin_program, sizeof(struct keys_config), run_pin};

static int unpin_key(struct cli *c, const struct keys_config *o, const struct tarn_key *keys, size_t n,
                     int32_t *statuses)
{
    (void)o, (void)n;
    return statuses[0] = tarn_unpin(c->client, keys, cli_timeout(c, 0));
}

static int run_unpin(struct cli *c, const void *config)
{
    return run(c, config, unpin_key, 1, "unpinned");
}

static const struct tarn_program unpin_program = {
    .name = "tarn unpin",
    .arguments = "[KEY...]",
    .brief = "let tensors be evicted again",
    .description = "Ends all pins of a tensor, also one that `tarn put --pin` made.",
    .examples = "tarn unpin --glob 'model/*'\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_unpin = {&unpin_program, sizeof(struct keys_config), run_unpin};

/* --- touch -------------------------------------------------------------------------------------- */

/* The library ignores unknown keys. The command reports them. */
static int touch_key(struct cli *c, const struct keys_config *o, const struct tarn_key *keys, size_t n,
                     int32_t *statuses)
{
    struct tarn_lookup_options look = {.size = sizeof look, .timeout_ms = cli_timeout(c, 0)};
    struct tarn_hits *hits = NULL;
    int rc = tarn_lookup(c->client, keys, 1, &look, &hits);

    (void)o, (void)n;
    if (rc == 0 && tarn_hits_state(hits, 0) == TARN_STATE_NODE_DOWN)
        rc = tarn_fail(TARN_E_NODE_DOWN, "no node that holds it answers: see `tarn info`");
    else if (rc == 0 && tarn_hits_state(hits, 0) != TARN_STATE_HIT)
        rc = tarn_fail(TARN_E_NOT_FOUND, "no such key");
    tarn_hits_free(hits);
    return statuses[0] = rc ? rc : tarn_touch(c->client, keys, 1);
}

static int run_touch(struct cli *c, const void *config)
{
    return run(c, config, touch_key, 1, "touched");
}

static const struct tarn_program touch_program = {
    .name = "tarn touch",
    .arguments = "[KEY...]",
    .brief = "mark tensors as used now, so that others are evicted first",
    .description = "A get does the same.",
    .examples = "tarn touch kv/1 kv/2\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_touch = {&touch_program, sizeof(struct keys_config), run_touch};

/* --- ttl ---------------------------------------------------------------------------------------- */

struct ttl_sink {
    struct cli_table *table;
    json_t *json;
};

static int add_ttl(void *arg, const struct tarn_object *o)
{
    struct ttl_sink *s = arg;
    uint64_t now = tarn_unix_ms(), end = o->born_ms + o->ttl_ms, left = end > now ? end - now : 0;
    char *text = cli_key_text(&o->key), age[16];

    if (!text)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    cli_age_format(left, age);
    cli_row(s->table, text, o->ttl_ms ? age : "never", NULL);
    json_array_append_new(s->json, json_pack("{s:s, s:o, s:o}", "key", text, "ttl_ms",
                                             o->ttl_ms ? json_integer(o->ttl_ms) : json_null(), "left_ms",
                                             o->ttl_ms ? json_integer((json_int_t)left) : json_null()));
    free(text);
    return 0;
}

static int run_ttl(struct cli *c, const void *config)
{
    struct cli_table table = {.align = "lr"};
    struct ttl_sink sink = {.table = &table};
    struct cli_keys k = {0};
    int rc = take_keys(c, config, &k), printed = 0;

    if (rc != 0)
        goto free_keys;
    sink.json = json_array();
    cli_row(&table, "KEY", "LEFT", NULL);
    for (size_t i = 0; rc == 0 && i < k.n; i++) {
        int one = tarn_stat(c->client, &k.all[i].key, cli_timeout(c, 0), add_ttl, &sink);
        const char *text = k.all[i].text;
        bool number = i > 0 && text[strspn(text, "0123456789")] == '\0';
        if (one == TARN_E_NOT_FOUND)
            cli_error(c, one, "%s: no such key%s", text,
                      number ? ": a ttl is set when a tensor is put, `tarn put --ttl-ms MS --replace`" : "");
        else if (one != 0)
            rc = cli_error(c, one, "%s", tarn_last_error());
    }
    printed = cli_print_either(c, &table, json_pack("{s:o}", "keys", sink.json));
free_keys:
    cli_keys_free(&k);
    return rc ? rc : printed;
}

static const struct tarn_program ttl_program = {
    .name = "tarn ttl",
    .arguments = "[KEY...]",
    .brief = "show how much longer tensors live",
    .description = "The time to live is set by `tarn put --ttl-ms` and starts at the put. To change it, put "
                   "the tensor again with --replace.",
    .examples = "tarn ttl stream\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_ttl = {&ttl_program, sizeof(struct keys_config), run_ttl};
