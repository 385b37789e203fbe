/* SPDX-License-Identifier: Apache-2.0 */
/* tarn ls and stat: what the directory says about objects, and what nodes say about their pins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_keys.h"
#include "client/cli/cli_text.h"
#include "client/cli/cli_windows.h"

#define BATCH 256 /* keys in one request to nodes */

/* --- objects as JSON and text ------------------------------------------------------------------- */

static json_t *copy_json(const struct tarn_copy *c)
{
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:s?}", "node", c->node, "pool", c->pool, "offset",
                     cli_json_u64(c->offset), "slot", (json_int_t)c->slot, "gen", cli_json_hex(c->gen),
                     "transport", c->transport);
}

/* Versions are random and nearly always above 2^53, so all are written as text. */
static json_t *version_json(uint64_t version)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)version);
    return json_string(text);
}

static json_t *object_json(const char *text, const struct tarn_object *object)
{
    json_t *o = json_object(), *copies = json_array();

    json_object_set_new(o, "key", json_string(text));
    cli_json_tensor(o, &object->tensor);
    json_object_set_new(o, "version", version_json(object->version));
    json_object_set_new(o, "born_ms", cli_json_u64(object->born_ms));
    json_object_set_new(o, "ttl_ms", json_integer(object->ttl_ms));
    for (uint32_t i = 0; i < object->ncopies; i++)
        json_array_append_new(copies, copy_json(&object->copies[i]));
    json_object_set_new(o, "copies", copies);
    return o;
}

/* --- pins, which only the nodes know ------------------------------------------------------------ */

/* For a result of tarn_pinned(): "-", "yes", the time left, or "?" if no node could be asked. */
static void pin_format(int64_t ms, char out[16])
{
    if (ms > 0 && ms != TARN_PINNED_FOREVER)
        cli_age_format((uint64_t)ms, out);
    else
        snprintf(out, 16, "%s", ms < 0 ? "?" : ms ? "yes" : "-");
}

/* pinned is null if no node could be asked; pin_left_ms is null if the pin has no end. */
static void pin_json(json_t *object, int64_t ms)
{
    bool ends = ms >= 0 && ms != TARN_PINNED_FOREVER;

    json_object_set_new(object, "pinned", ms < 0 ? json_null() : json_boolean(ms > 0));
    json_object_set_new(object, "pin_left_ms", ends ? json_integer((json_int_t)ms) : json_null());
}

static void format_age(uint64_t born_ms, char out[16])
{
    uint64_t now = tarn_unix_ms();

    cli_age_format(now > born_ms ? now - born_ms : 0, out);
}

/* --- ls ----------------------------------------------------------------------------------------- */

struct ls_config {
    struct cli_common common;
    bool details, windows;
};

static const struct tarn_option ls_options[] = {
    CLI_COMMON_OPTIONS,
    CLI_FLAG("long", 'l', offsetof(struct ls_config, details),
             "Show size, type, age, pin and place as well; of windows what their entries tell."),
    CLI_FLAG("windows", 'w', offsetof(struct ls_config, windows),
             "List the names of leases that clients lend, instead of keys."),
};

struct listing {
    bool details, json;
    struct cli_keys keys;
};

static char *copies_text(const struct tarn_object *o)
{
    struct tarn_buf b = {0};

    for (uint32_t i = 0; i < o->ncopies; i++)
        tarn_buf_printf(&b, "%s%s/%s", i ? "," : "", o->copies[i].node, o->copies[i].pool);
    if (o->ncopies == 0)
        tarn_buf_printf(&b, "-");
    if (b.failed)
        tarn_buf_free(&b);
    return b.data;
}

static int add_row(void *arg, const struct tarn_object *o)
{
    struct listing *l = arg;
    int rc = cli_keys_add(&l->keys, &o->key);

    if (rc != 0)
        return rc;
    struct cli_key *k = &l->keys.all[l->keys.n - 1];
    k->tensor = o->tensor;
    k->born_ms = o->born_ms;
    if (l->json)
        k->json = object_json(k->text, o);
    if (l->details)
        k->copies = copies_text(o);
    if ((l->json && !k->json) || (l->details && !k->copies))
        return tarn_fail(TARN_E_NO_MEMORY, "no memory for the keys");
    return 0;
}

/* If a node does not answer, the pins of its objects are unknown. */
static void ask_pins(const struct cli *c, struct cli_key *k, size_t n)
{
    struct tarn_key keys[BATCH] = {0};
    int64_t ms[BATCH] = {0};

    for (size_t i = 0; i < n; i++)
        keys[i] = k[i].key;
    tarn_pinned(c->client, keys, n, ms, cli_timeout(c, 0));
    for (size_t i = 0; i < n; i++) {
        k[i].pinned_ms = ms[i];
        if (k[i].json)
            pin_json(k[i].json, ms[i]);
    }
}

static int print_details(const struct listing *l)
{
    struct cli_table t = {.align = "lrlrrl"};
    struct tarn_buf out = {0};
    uint64_t bytes = 0;
    char size[16], age[16], pin[16], tensor[TARN_SHAPE_TEXT + 16];

    cli_row(&t, "KEY", "SIZE", "TENSOR", "AGE", "PIN", "COPIES", NULL);
    for (size_t i = 0; i < l->keys.n; i++) {
        const struct cli_key *k = &l->keys.all[i];
        tarn_size_format(k->tensor.bytes, size);
        cli_tensor_format(&k->tensor, tensor);
        format_age(k->born_ms, age);
        pin_format(k->pinned_ms, pin);
        cli_row(&t, k->text, size, tensor, age, pin, k->copies, NULL);
        bytes += k->tensor.bytes;
    }
    cli_table_print(&t, cli_coloured(), &out);
    tarn_size_format(bytes, size);
    tarn_buf_printf(&out, "%zu object%s, %s\n", l->keys.n, CLI_S(l->keys.n), size);
    return cli_print(&out);
}

static int print_listing(struct listing *l)
{
    struct tarn_buf out = {0};

    if (l->json) {
        json_t *objects = json_array();
        for (size_t i = 0; i < l->keys.n; i++)
            json_array_append(objects, l->keys.all[i].json);
        return cli_print_json(json_pack("{s:o}", "objects", objects), false);
    }
    if (l->details)
        return print_details(l);
    for (size_t i = 0; i < l->keys.n; i++)
        tarn_buf_printf(&out, "%s\n", l->keys.all[i].text);
    return cli_print(&out);
}

static int list_keys(struct cli *c, const char *glob, bool details)
{
    struct listing l = {.details = details, .json = c->common->json};
    int rc = tarn_list(c->client, glob, cli_timeout(c, 0), add_row, &l);

    if (rc == 0) {
        cli_keys_sort(&l.keys);
        for (size_t i = 0; (l.details || l.json) && i < l.keys.n; i += BATCH)
            ask_pins(c, l.keys.all + i, l.keys.n - i < BATCH ? l.keys.n - i : BATCH);
        rc = print_listing(&l);
    }
    cli_keys_free(&l.keys);
    return rc;
}

static int run_ls(struct cli *c, const void *config)
{
    const struct ls_config *o = config;
    const char *glob = c->nargs ? c->args[0] : NULL;
    int rc = cli_want_args(c, 0, 1, "GLOB");

    if (rc == 0)
        rc = cli_connect(c);
    if (rc != 0)
        return rc;
    return o->windows ? cli_windows_list(c, glob, o->details) : list_keys(c, glob, o->details);
}

static const struct tarn_program ls_program = {
    .name = "tarn ls",
    .arguments = "[GLOB]",
    .brief = "list the keys of stored tensors, or the names of windows",
    .description =
        "Lists all keys, or those whose text matches the glob (* ? [a-z], \\ before one of them means the "
        "character itself). PIN: yes, the time after which it ends, - when there is none, ? when no node "
        "could be asked. With --windows: names of leases as they are in Redis. No lender is asked, so a "
        "lease "
        "may have ended. TTL: the name expires then unless its node refreshes it. ? stands for what the "
        "entry "
        "does not tell.",
    .examples = "tarn ls\n"
                "tarn ls 'model/*.weight' -l\n"
                "tarn ls --windows -l\n",
    CLI_OPTIONS(ls_options),
};

const struct cli_command cli_ls = {&ls_program, sizeof(struct ls_config), run_ls};

/* --- stat --------------------------------------------------------------------------------------- */

static const struct tarn_option common_options[] = {CLI_COMMON_OPTIONS};

struct stat_sink {
    const struct cli *c;
    json_t *json;
    struct tarn_buf *out;
};

static void print_object(const char *text, const struct tarn_object *o, int64_t pinned_ms,
                         struct tarn_buf *out)
{
    struct cli_table t = {.align = "llrrll"};
    char size[16], age[16], pin[16], shape[TARN_SHAPE_TEXT], when[40] = "?";
    const char *dtype = tarn_dtype_name(o->tensor.dtype);
    time_t born = (time_t)(o->born_ms / 1000);
    struct tm tm;

    tarn_size_format(o->tensor.bytes, size);
    tarn_shape_format(&o->tensor, shape);
    format_age(o->born_ms, age);
    if (localtime_r(&born, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    tarn_buf_printf(out, "key      %s\nbytes    %llu (%s)\ndtype    %s\nshape    %s\nversion  %llu\n", text,
                    (unsigned long long)o->tensor.bytes, size, dtype ? dtype : "?",
                    o->tensor.ndim ? shape : "scalar", (unsigned long long)o->version);
    tarn_buf_printf(out, "stored   %s (%s ago)\n", when, age);
    if (o->ttl_ms)
        tarn_buf_printf(out, "ttl      %u ms\n", o->ttl_ms);
    pin_format(pinned_ms, pin);
    tarn_buf_printf(out, "pin      %s\n", pin);
    cli_row(&t, "NODE", "POOL", "OFFSET", "SLOT", "GEN", "VIA", NULL);
    for (uint32_t i = 0; i < o->ncopies; i++) {
        const struct tarn_copy *copy = &o->copies[i];
        cli_row(&t, copy->node, copy->pool, NULL);
        cli_cell(&t, "%llu", (unsigned long long)copy->offset);
        cli_cell(&t, "%u", copy->slot);
        cli_cell(&t, "%016llx", (unsigned long long)copy->gen);
        cli_cell_in(&t, copy->transport ? CLI_GREEN : CLI_RED, "%s",
                    copy->transport ? copy->transport : "not reachable");
    }
    cli_table_print(&t, cli_coloured(), out);
}

static int add_object(void *arg, const struct tarn_object *o)
{
    struct stat_sink *s = arg;
    char *text = cli_key_text(&o->key);
    int64_t pinned_ms = 0;

    if (!text)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    tarn_pinned(s->c->client, &o->key, 1, &pinned_ms, cli_timeout(s->c, 0));
    if (s->json) {
        json_t *object = object_json(text, o);
        pin_json(object, pinned_ms);
        json_array_append_new(s->json, object);
    } else {
        if (s->out->bytes)
            tarn_buf_printf(s->out, "\n");
        print_object(text, o, pinned_ms, s->out);
    }
    free(text);
    return 0;
}

static int run_stat(struct cli *c, const void *config)
{
    (void)config;
    struct tarn_buf out = {0};
    struct stat_sink sink = {.c = c, .json = c->common->json ? json_array() : NULL, .out = &out};
    struct tarn_key key;
    struct tarn_reason why;
    char bytes[TARN_KEY_MAX + 1];
    int rc = cli_want_args(c, 1, INT32_MAX, "KEY");

    if (rc == 0)
        rc = cli_connect(c);
    if (rc != 0) {
        json_decref(sink.json);
        return rc;
    }
    for (int i = 0; rc == 0 && i < c->nargs; i++) {
        int one = cli_key_parse(c->args[i], bytes, &key);
        if (one != 0)
            cli_error(c, one, "%s", tarn_last_error());
        else if ((one = tarn_stat(c->client, &key, cli_timeout(c, 0), add_object, &sink)) != 0)
            cli_item_error(c, tarn_reason_keep(&why, one), &key, &why, "");
        if (one != 0 && one != TARN_E_NOT_FOUND)
            rc = one;
    }
    int printed =
        sink.json ? cli_print_json(json_pack("{s:o}", "objects", sink.json), false) : cli_print(&out);
    return rc ? rc : printed;
}

static const struct tarn_program stat_program = {
    .name = "tarn stat",
    .arguments = "KEY...",
    .brief = "show what a tensor is and where its copies are",
    .description = "VIA is the transport that a get from here would use.",
    CLI_OPTIONS(common_options),
};

const struct cli_command cli_stat = {&stat_program, sizeof(struct cli_common), run_stat};
