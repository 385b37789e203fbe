/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as text, both ways. Parsers check every number, name and text for its whole length; a record with
 * any fault is FORMAT, never half a record.
 */
#include "metadata/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static bool is(struct tarn_text t, const char *name)
{
    return tarn_text_is(t.data, t.bytes, name);
}

/* Foreign bytes for a message: short, one line, nothing that a terminal obeys. */
static const char *show(struct tarn_text t, char out[64])
{
    size_t n = t.bytes < 63 ? t.bytes : 63;
    for (size_t i = 0; i < n; i++)
        out[i] = t.data[i] >= 0x20 && t.data[i] < 0x7f && t.data[i] != '"' ? t.data[i] : '?';
    out[n] = '\0';
    return out;
}

static int bad(const char *record, struct tarn_text field, struct tarn_text value, const char *expected)
{
    char f[64], v[64];
    return tarn_fail(TARN_E_FORMAT, "%s record: field %s is '%s': expected %s", record, show(field, f),
                     show(value, v), expected);
}

bool tarn_name_valid(const char *text, size_t bytes, size_t max)
{
    if (bytes == 0 || bytes > max)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && c != '.' && c != '_' && c != '-')
            return false;
    }
    return true;
}

/* Copies a name of at most `max` bytes, for which there is room. */
static bool copy_name(struct tarn_text t, size_t max, char *out)
{
    if (!tarn_name_valid(t.data, t.bytes, max))
        return false;
    memcpy(out, t.data, t.bytes);
    out[t.bytes] = '\0';
    return true;
}

/* Copies text for people and addresses: printable and short enough. */
static bool copy_text(struct tarn_text t, char *out, size_t out_bytes)
{
    if (t.bytes >= out_bytes)
        return false;
    for (size_t i = 0; i < t.bytes; i++)
        if ((unsigned char)t.data[i] < 0x20 || t.data[i] == 0x7f)
            return false;
    memcpy(out, t.data, t.bytes);
    out[t.bytes] = '\0';
    return true;
}

static bool number(struct tarn_text t, int base, uint64_t max, uint64_t *out)
{
    return tarn_u64_parse(t.data, t.bytes, base, max, out) == 0;
}

/* The part of *rest before the next `end` byte (all of it when there is none); *rest becomes what follows. */
static struct tarn_text cut(struct tarn_text *rest, char end)
{
    const char *p = rest->bytes ? memchr(rest->data, end, rest->bytes) : NULL;
    struct tarn_text part = {rest->data, p ? (size_t)(p - rest->data) : rest->bytes};
    size_t used = part.bytes + (p != NULL);
    rest->data += used;
    rest->bytes -= used;
    return part;
}

/* --- objects ------------------------------------------------------------------------------------ */

void tarn_tensor_format(const struct tarn_tensor *t, char out[TARN_TENSOR_TEXT])
{
    char shape[TARN_SHAPE_TEXT];
    const char *dtype = tarn_dtype_name(t->dtype);
    tarn_shape_format(t, shape);
    stpcpy(stpcpy(stpcpy(stpcpy(out, dtype ? dtype : "?"), "["), shape), "]");
}

/* "bf16[2,16,8]"; bytes follow from it. */
static int parse_tensor(struct tarn_text value, struct tarn_tensor *t)
{
    if (value.bytes == 0 || value.data[value.bytes - 1] != ']')
        return TARN_E_FORMAT;
    struct tarn_text shape = {value.data, value.bytes - 1};
    struct tarn_text dtype = cut(&shape, '[');
    int d = tarn_dtype_parse_n(dtype.data, dtype.bytes);
    if (d < 0 || tarn_shape_parse(shape.data, shape.bytes, t))
        return TARN_E_FORMAT;
    t->dtype = (uint32_t)d;
    return tarn_tensor_bytes(t, &t->bytes) ? 0 : TARN_E_FORMAT;
}

void tarn_location_field(const struct tarn_location *l, char out[TARN_LOCATION_FIELD])
{
    stpcpy(stpcpy(stpcpy(stpcpy(out, "@"), l->node), "/"), l->pool);
}

void tarn_location_value(const struct tarn_location *l, char out[TARN_LOCATION_VALUE])
{
    out = stpcpy(tarn_u64_format(l->offset, out), ":");
    out = stpcpy(tarn_u64_format(l->slot, out), ":");
    tarn_gen_format(l->gen, out);
}

/* "slot:gen" */
static bool parse_slot(struct tarn_text text, struct tarn_location *l)
{
    struct tarn_text gen = text, slot = cut(&gen, ':');
    uint64_t slot_number;
    if (!number(slot, 10, UINT32_MAX, &slot_number) || gen.bytes != 16 ||
        !number(gen, 16, UINT64_MAX, &l->gen) || l->gen % 2)
        return false;
    l->slot = (uint32_t)slot_number;
    return true;
}

int tarn_location_parse(struct tarn_text field, struct tarn_text value, struct tarn_location *l)
{
    struct tarn_text pool = {field.data + 1, field.bytes ? field.bytes - 1 : 0};
    struct tarn_text node = cut(&pool, '/');
    if (field.bytes == 0 || field.data[0] != '@' || !copy_name(node, TARN_NODE_ID_MAX, l->node) ||
        !copy_name(pool, TARN_POOL_NAME_MAX, l->pool))
        return bad("object", field, value, "@<node>/<pool> as its name");

    struct tarn_text rest = value, offset = cut(&rest, ':');
    if (!number(offset, 10, UINT64_MAX, &l->offset) || !parse_slot(rest, l))
        return bad("object", field, value, "<offset>:<slot>:<even generation of 16 hex digits>");
    return 0;
}

int tarn_member_parse(struct tarn_text member, struct tarn_location *l)
{
    struct tarn_text rest = member, pool = cut(&rest, ':');
    if (!copy_name(pool, TARN_POOL_NAME_MAX, l->pool) || !parse_slot(rest, l))
        return bad("recheck", member, (struct tarn_text){"", 0}, "<pool>:<slot>:<even generation>");
    return 0;
}

void tarn_displaced_field(const struct tarn_location *l, char out[TARN_DISPLACED_FIELD])
{
    snprintf(out, TARN_DISPLACED_FIELD, "-%s/%s:%" PRIu32 ":%016" PRIx64, l->node, l->pool, l->slot, l->gen);
}

int tarn_displaced_parse(struct tarn_text field, struct tarn_text value, struct tarn_location *l)
{
    struct tarn_text member = {field.data + 1, field.bytes ? field.bytes - 1 : 0};
    struct tarn_text node = cut(&member, '/');
    if (field.bytes == 0 || field.data[0] != '-' || !copy_name(node, TARN_NODE_ID_MAX, l->node) ||
        tarn_member_parse(member, l) || !number(value, 10, UINT64_MAX, &l->offset))
        return bad("object", field, value, "-<node>/<pool>:<slot>:<generation> and an offset");
    return 0;
}

void tarn_copy_format(const struct tarn_location *l, char out[TARN_COPY_TEXT])
{
    char field[TARN_LOCATION_FIELD], value[TARN_LOCATION_VALUE];
    tarn_location_field(l, field);
    tarn_location_value(l, value);
    snprintf(out, TARN_COPY_TEXT, "%s=%s", field, value);
}

int tarn_copy_parse(struct tarn_text text, struct tarn_location *l)
{
    struct tarn_text value = text, field = cut(&value, '=');
    return tarn_location_parse(field, value, l);
}

/* More copies than there is room for are no damage: the first ones count. */
static int parse_location(struct tarn_text field, struct tarn_text value, struct tarn_record *r)
{
    struct tarn_location extra;
    bool room = r->nlocations < TARN_REPLICAS_MAX;
    int rc = tarn_location_parse(field, value, room ? &r->locations[r->nlocations] : &extra);
    if (!rc && room)
        r->nlocations++;
    return rc;
}

static int parse_object_field(struct tarn_text field, struct tarn_text value, struct tarn_record *r,
                              bool *tensor)
{
    uint64_t ttl;
    if (field.bytes && field.data[0] == '@')
        return parse_location(field, value, r);
    if (is(field, "tensor")) {
        *tensor = true;
        return parse_tensor(value, &r->tensor) ? bad("object", field, value, "a tensor like bf16[2,16,128]")
                                               : 0;
    }
    if (is(field, "ver")) {
        bool ok = number(value, 10, INT64_MAX, &r->version) && r->version;
        return ok ? 0 : bad("object", field, value, "a number from 1 to 2^63 - 1");
    }
    if (is(field, "born")) {
        bool ok = number(value, 10, INT64_MAX, &r->born_ms) && r->born_ms;
        return ok ? 0 : bad("object", field, value, "milliseconds since 1970");
    }
    if (is(field, "ttl")) {
        if (!number(value, 10, UINT32_MAX, &ttl))
            return bad("object", field, value, "milliseconds");
        r->ttl_ms = (uint32_t)ttl;
    }
    return 0;
}

/* Displaced copies, at least one, and nothing else. */
static bool is_tombstone(const struct tarn_text *fields, size_t n)
{
    for (size_t i = 0; i < n; i += 2)
        if (fields[i].bytes == 0 || fields[i].data[0] != '-')
            return false;
    return n > 0;
}

int tarn_record_parse(const struct tarn_text *fields, size_t n, struct tarn_record *r)
{
    bool tensor = false;
    r->version = r->born_ms = 0;
    r->ttl_ms = r->nlocations = 0;
    if (n % 2)
        return tarn_fail(TARN_E_FORMAT, "object record: %zu texts are no list of fields and values", n);
    for (size_t i = 0; i < n; i += 2) {
        int rc = parse_object_field(fields[i], fields[i + 1], r, &tensor);
        if (rc)
            return rc;
    }
    if (!tensor && is_tombstone(fields, n))
        return TARN_E_NOT_FOUND;
    const char *missing = !tensor ? "tensor" : !r->version ? "ver" : !r->born_ms ? "born" : NULL;
    if (missing)
        return tarn_fail(TARN_E_FORMAT, "object record: field %s is missing", missing);
    if (!r->nlocations)
        return tarn_fail(TARN_E_FORMAT, "object record: field @<node>/<pool> is missing: no copy is known");
    return 0;
}

/* --- nodes and pools ---------------------------------------------------------------------------- */

void tarn_epoch_format(uint64_t epoch, char out[TARN_EPOCH_TEXT])
{
    snprintf(out, TARN_EPOCH_TEXT, "%016" PRIx64, epoch);
}

static int parse_node_field(struct tarn_text field, struct tarn_text value, struct tarn_node_record *node,
                            char pools[TARN_POOL_LIST])
{
    const struct {
        const char *name;
        char *out;
        size_t bytes;
    } texts[] = {
        {"host", node->host, sizeof node->host},          {"hostid", node->host_id, sizeof node->host_id},
        {"control", node->control, sizeof node->control}, {"unix", node->unix_path, sizeof node->unix_path},
        {"version", node->version, sizeof node->version}, {"state", node->state, sizeof node->state},
        {"secret", node->secret, sizeof node->secret},    {"pools", pools, TARN_POOL_LIST},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (is(field, texts[i].name))
            return copy_text(value, texts[i].out, texts[i].bytes) ? 0
                                                                  : bad("node", field, value, "a short text");

    uint64_t pid = node->pid;
    bool ok = true;
    if (is(field, "restoring"))
        node->restoring = is(value, "1");
    else if (is(field, "when_cut_off"))
        node->refuses = is(value, "refuse");
    else if (is(field, "epoch"))
        ok = number(value, 16, UINT64_MAX, &node->epoch);
    else if (is(field, "started"))
        ok = number(value, 10, INT64_MAX, &node->started_ms);
    else if (is(field, "pid"))
        ok = number(value, 10, UINT32_MAX, &pid);
    node->pid = (uint32_t)pid;
    return ok ? 0 : bad("node", field, value, "a number");
}

int tarn_node_parse(const struct tarn_text *fields, size_t n, struct tarn_node_record *node,
                    char pools[TARN_POOL_LIST])
{
    pools[0] = '\0';
    if (n % 2)
        return tarn_fail(TARN_E_FORMAT, "node record: %zu texts are no list of fields and values", n);
    for (size_t i = 0; i < n; i += 2) {
        int rc = parse_node_field(fields[i], fields[i + 1], node, pools);
        if (rc)
            return rc;
    }
    return node->epoch ? 0 : tarn_fail(TARN_E_FORMAT, "node record: field epoch is missing");
}

static int parse_pool_field(struct tarn_text field, struct tarn_text value, struct tarn_pool_record *p,
                            uint64_t *epoch)
{
    uint64_t index = p->index;
    const struct {
        const char *name;
        uint64_t *out, max;
        int base;
    } numbers[] = {
        {"epoch", epoch, UINT64_MAX, 16},        {"index", &index, TARN_POOLS_MAX - 1, 10},
        {"bytes", &p->bytes, INT64_MAX, 10},     {"free", &p->free_bytes, INT64_MAX, 10},
        {"objects", &p->objects, INT64_MAX, 10}, {"slots", &p->slots, UINT32_MAX, 10},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!is(field, numbers[i].name))
            continue;
        if (!number(value, numbers[i].base, numbers[i].max, numbers[i].out))
            return bad("pool", field, value, "a number");
        p->index = (uint32_t)index;
        return 0;
    }
    if (is(field, "device"))
        return copy_text(value, p->device, sizeof p->device) ? 0 : bad("pool", field, value, "a uuid");
    if (is(field, "kind"))
        return copy_text(value, p->kind, sizeof p->kind) ? 0 : bad("pool", field, value, "cpu or gpu");
    return 0;
}

static const struct tarn_text *find(const struct tarn_text *fields, size_t n, struct tarn_text name)
{
    for (size_t i = 0; i < n; i += 2)
        if (fields[i].bytes == name.bytes && !memcmp(fields[i].data, name.data, name.bytes))
            return &fields[i + 1];
    return NULL;
}

static int parse_transports(const struct tarn_text *fields, size_t n, struct tarn_pool_record *p)
{
    const size_t max = sizeof p->fields / sizeof *p->fields;
    const struct tarn_text *list = find(fields, n, (struct tarn_text){"transports", 10});
    struct tarn_text rest = list ? *list : (struct tarn_text){"", 0};
    size_t used = 0;
    for (size_t i = 0; rest.bytes && i < max;) {
        struct tarn_text name = cut(&rest, ',');
        const struct tarn_text *value = find(fields, n, name);
        if (!tarn_name_valid(name.data, name.bytes, sizeof p->transports) || !value)
            continue;
        if (used + name.bytes + 2 > sizeof p->transports || !copy_text(*value, p->fields[i], TARN_FIELD_MAX))
            return bad("pool", name, *value, "a short text");
        used += (size_t)snprintf(p->transports + used, sizeof p->transports - used, "%s%.*s", i ? "," : "",
                                 (int)name.bytes, name.data);
        i++;
    }
    return 0;
}

int tarn_pool_parse(const struct tarn_text *fields, size_t n, struct tarn_pool_record *p, uint64_t *epoch)
{
    *epoch = 0;
    p->transports[0] = '\0';
    if (n % 2)
        return tarn_fail(TARN_E_FORMAT, "pool record: %zu texts are no list of fields and values", n);
    for (size_t i = 0; i < n; i += 2) {
        int rc = parse_pool_field(fields[i], fields[i + 1], p, epoch);
        if (rc)
            return rc;
    }
    return parse_transports(fields, n, p);
}
