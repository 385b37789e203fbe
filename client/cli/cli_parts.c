/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts or gets a large tensor in parts, so that the progress line moves. It is still one object. A put is
 * a session, so the object becomes readable in one step. A get asks the directory for the version before
 * its first part and after its last. If both are the same, no other version was visible in between, so all
 * parts are of that version.
 */
#include "client/cli/cli_parts.h"

#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_text.h"
#include "client/cli/file.h"

#define PART_BYTES (64ull << 20)

bool cli_parts_wanted(const struct cli_progress *p, uint64_t bytes)
{
    return p->on && bytes > PART_BYTES;
}

static uint64_t part_bytes(uint64_t total, uint64_t offset)
{
    return total - offset < PART_BYTES ? total - offset : PART_BYTES;
}

int cli_put_parts(struct cli *c, struct tarn_item *item, const struct tarn_put_options *o,
                  struct cli_progress *p)
{
    struct tarn_put_session *s;
    uint64_t total = item->tensor.bytes, bytes;
    int rc = tarn_put_begin(c->client, item, 1, o, &s);

    if (rc != 0)
        return rc;
    for (uint64_t at = 0; rc == 0 && at < total; at += bytes) {
        bytes = part_bytes(total, at);
        struct tarn_piece part = {.addr = (char *)item->pieces->addr + at, .bytes = bytes};
        rc = tarn_put_write(s, 0, at, &part, 1, cli_timeout(c, bytes * (o->replicas ? o->replicas : 1)));
        if (rc == 0)
            cli_progress_add(p, bytes);
    }
    if (rc == 0)
        return tarn_put_commit(s, &item->status, cli_timeout(c, 0));
    struct tarn_reason why;
    item->status = tarn_reason_keep(&why, rc);
    tarn_put_abort(s);
    return tarn_reason_fail(&why);
}

static int keep_version(void *arg, const struct tarn_object *o)
{
    *(uint64_t *)arg = o->version;
    return 0;
}

static int get_part(struct cli *c, struct tarn_item *item, struct tarn_hits *hits, uint64_t at,
                    uint64_t bytes)
{
    struct tarn_piece part = {.addr = (char *)item->pieces->addr + at, .bytes = bytes};
    struct tarn_item one = {.key = item->key, .pieces = &part, .npieces = 1, .offset = at};
    struct tarn_get_options o = {
        .size = sizeof o, .timeout_ms = cli_timeout(c, bytes), .flags = TARN_GET_RANGE, .hits = hits};

    tarn_file_prefault(part.addr, bytes);
    int rc = tarn_get(c->client, &one, 1, &o);
    item->tensor = one.tensor;
    return rc;
}

int cli_get_parts(struct cli *c, struct tarn_item *item, struct cli_progress *p)
{
    struct tarn_lookup_options look = {.size = sizeof look, .timeout_ms = cli_timeout(c, 0)};
    struct tarn_hits *hits = NULL;
    uint64_t total = item->pieces->bytes, bytes, before = 0, after = 0;
    int rc = tarn_stat(c->client, &item->key, cli_timeout(c, 0), keep_version, &before);

    /* Read after the version, so the hits are not older than it. */
    if (rc == 0)
        rc = tarn_lookup(c->client, &item->key, 1, &look, &hits);
    for (uint64_t at = 0; rc == 0 && at < total; at += bytes) {
        bytes = part_bytes(total, at);
        rc = get_part(c, item, hits, at, bytes);
        if (rc == 0)
            cli_progress_add(p, bytes);
    }
    tarn_hits_free(hits);
    if (rc == 0)
        rc = tarn_stat(c->client, &item->key, cli_timeout(c, 0), keep_version, &after);
    if (rc == 0 && before != after)
        rc = tarn_fail(TARN_E_SIZE, "was replaced while it was read");
    return item->status = rc;
}
