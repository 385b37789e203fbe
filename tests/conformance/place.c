/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/place.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/content.h"
#include "tests/router.h"

void expect(bool ok, const char *fmt, ...)
{
    va_list ap;
    if (ok)
        return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fail();
}

uint8_t *made(size_t bytes, const char *key, uint64_t version)
{
    uint8_t *p = malloc(bytes + 1);
    assert_non_null(p);
    content_fill(p, bytes, key, version);
    return p;
}

uint64_t rnd(struct place *p, uint64_t below)
{
    p->seed = p->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (p->seed >> 33) % below;
}

bool forgivable(const struct place *p, int status)
{
    if (!p->way->faults)
        return false;
    return status == TARN_E_NODE_DOWN || status == TARN_E_TIMEOUT || status == TARN_E_STALE ||
           status == TARN_E_NOT_REACHABLE || status == TARN_E_AGAIN || status == TARN_E_FULL ||
           status == TARN_E_NOT_FOUND || status == TARN_E_BUSY || status == TARN_E_CANCELED;
}

/* --- open and close ----------------------------------------------------------------------------- */

struct tarn_client *client_by(const struct way *w, const char *redis)
{
    return client_open_faulty(
        redis, (struct tarn_options){.transports = w->transport, .timeout_ms = w->timeout_ms}, w->faults);
}

void place_open(struct place *p, const struct way *w, const char *redis, const char *lender)
{
    p->way = w;
    router_no_unix(w->afar);
    p->client = client_by(w, redis);
    p->leases = lender ? leases_open(p->client, lender) : NULL;
    p->device = w->device < 0 ? NULL : device_open(w->device);
}

struct harness_process *peer_start(struct place *p, const char *what)
{
    const struct fixture *fix = p->fix;
    char device[16];
    snprintf(device, sizeof device, "%d", p->way->device);
    const char *argv[] = {fix->self,
                          "--peer",
                          fix->redis->url,
                          p->way->transport,
                          device,
                          p->way->afar ? "afar" : "near",
                          what,
                          fix->lender,
                          NULL};
    return harness_spawn(fix->h, what, argv);
}

void place_close(struct place *p)
{
    leases_close(p->leases);
    tarn_close(p->client);
    device_close(p->device);
}

/* --- objects ------------------------------------------------------------------------------------ */

static int get_or_put(struct place *p, bool put, struct tarn_item *item, uint32_t flags)
{
    struct tarn_put_options to = {.size = sizeof to, .timeout_ms = p->way->timeout_ms, .flags = flags};
    struct tarn_get_options from = {.size = sizeof from, .timeout_ms = p->way->timeout_ms, .flags = flags};
    if (p->leases)
        return item->status = put ? leases_put(p->leases, item, p->way->timeout_ms)
                                  : leases_get(p->leases, item, p->way->timeout_ms);
    return put ? tarn_put(p->client, item, 1, &to) : tarn_get(p->client, item, 1, &from);
}

static int run_here(struct place *p, bool put, struct tarn_item *item, uint32_t flags)
{
    uint64_t start = harness_now_ms();
    int status = get_or_put(p, put, item, flags);
    expect(status == item->status, "the call says %d, its item %d", status, item->status);
    expect(harness_now_ms() - start < p->way->timeout_ms + SLACK_MS, "late: %u ms were given",
           p->way->timeout_ms);
    return status;
}

static int run_tries(struct place *p, bool put, struct tarn_item *item, uint32_t flags, int tries)
{
    const struct tarn_piece *own = item->pieces;
    struct twin twin;
    int status = TARN_E_TIMEOUT;
    if (p->device)
        twin_make(&twin, p->device, item);
    for (int i = 0; i < tries; i++) {
        status = run_here(p, put, item, flags);
        if (!forgivable(p, status))
            break;
    }
    if (p->device)
        twin_end(&twin, item, own);
    return status;
}

int run_once(struct place *p, bool put, struct tarn_item *item, uint32_t flags)
{
    return run_tries(p, put, item, flags, 1);
}

int run(struct place *p, bool put, struct tarn_item *item, uint32_t flags)
{
    return run_tries(p, put, item, flags, TRIES);
}

int put_bytes(struct place *p, const char *key, const void *data, size_t bytes, uint32_t flags)
{
    struct tarn_piece piece = {.addr = (void *)data, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    int status = run(p, true, &item, flags);
    /* Under faults an earlier try may have been published although its answer was lost. */
    return status == TARN_E_EXISTS && p->way->faults ? 0 : status;
}

int get_bytes(struct place *p, const char *key, void *data, size_t bytes)
{
    struct tarn_piece piece = {.addr = data, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1};
    return run(p, false, &item, 0);
}

void put_these(struct place *p, const char *key, const uint8_t *data, size_t bytes)
{
    int status = put_bytes(p, key, data, bytes, TARN_PUT_REPLACE);
    expect(status == 0, "put %s: %s: %s", key, tarn_error_name(status), tarn_last_error());
}

void put_made(struct place *p, const char *key, size_t bytes, uint64_t version)
{
    uint8_t *data = made(bytes, key, version);
    put_these(p, key, data, bytes);
    free(data);
}

void expect_bytes(const char *key, const uint8_t *got, const uint8_t *want, size_t bytes)
{
    size_t first = 0, wrong = 0, last = 0, zero = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (got[i] == want[i])
            continue;
        first = wrong++ ? first : i;
        last = i;
        zero += got[i] == 0;
    }
    expect(wrong == 0,
           "get %s: other bytes than were put: %zu of %zu, between byte %zu and byte %zu, %zu of them zero",
           key, wrong, bytes, first, last, zero);
}

void expect_made(struct place *p, const char *key, size_t bytes, uint64_t version)
{
    uint8_t *want = made(bytes, key, version), *got = calloc(1, bytes + 1);
    assert_non_null(got);
    int status = get_bytes(p, key, got, bytes);
    expect(status == 0, "get %s: %s: %s", key, tarn_error_name(status), tarn_last_error());
    expect_bytes(key, got, want, bytes);
    free(want);
    free(got);
}

void expect_status(struct place *p, const char *key, size_t bytes, int want)
{
    uint8_t *got = calloc(1, bytes + 1);
    assert_non_null(got);
    int status = get_bytes(p, key, got, bytes);
    expect(status == want, "get %s: %s, not %s: %s", key, tarn_error_name(status), tarn_error_name(want),
           tarn_last_error());
    free(got);
}

void remove_key(struct place *p, const char *key)
{
    struct tarn_key k = key_of(key);
    if (p->leases)
        leases_remove(p->leases, key);
    else
        tarn_remove(p->client, &k, 1, NULL, 0);
}

uint64_t stale_reads(struct place *p)
{
    struct tarn_stats s = {.size = sizeof s};
    if (p->leases)
        return leases_stale(p->leases);
    expect(tarn_client_stats(p->client, &s) == 0, "stats: %s", tarn_last_error());
    return s.stale;
}

int submit_get(struct place *p, struct ask *a, uint64_t cookie, tarn_op *op_p)
{
    if (p->leases)
        return leases_submit_get(p->leases, &a->item, &a->move, cookie, op_p);
    return tarn_submit_get(p->client, &a->item, 1, NULL, cookie, op_p);
}

int ask_status(const struct place *p, const struct ask *a)
{
    return p->leases ? a->move.status : a->item.status;
}

/* --- threads ------------------------------------------------------------------------------------ */

int in_threads(struct place *p, int n, void *(*fn)(void *), void *arg)
{
    struct thread threads[THREADS_MAX];
    int hits = 0;
    for (int i = 0; i < n; i++) {
        threads[i] = (struct thread){.place = *p, .arg = arg, .number = i};
        threads[i].place.seed += (uint64_t)i;
        assert_int_equal(pthread_create(&threads[i].id, NULL, fn, &threads[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i].id, NULL);
        hits += threads[i].hits;
    }
    return hits;
}
