/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/windows.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/window/reach.h"
#include "tests/conformance/lender.h"

/* --- leases of the lender ----------------------------------------------------------------------- */

struct granted {
    uint64_t id;
    struct tarn_reach *reach;
    char descriptor[TARN_DESCRIPTOR_MAX];
};

/* runs 0: a few. key NULL: the bytes are of no version. */
static struct granted grant(struct place *p, uint64_t bytes, uint32_t runs, const char *rights,
                            const char *key, uint64_t version)
{
    struct granted g = {0};
    char text[LENDER_TEXT], filled[64] = "";
    int at = 0;
    if (key)
        snprintf(filled, sizeof filled, " %s %" PRIu64, key, version);
    int rc =
        lender_ask(leases_path(p->leases), text, "LEASE %" PRIu64 " %u %s%s", bytes, runs, rights, filled);
    expect(rc == 0, "lease: %s", tarn_last_error());
    expect(sscanf(text, "%" SCNu64 " %n", &g.id, &at) == 1, "lease: \"%s\"", text);
    snprintf(g.descriptor, sizeof g.descriptor, "%s", text + at);
    rc = tarn_reach(p->client, g.descriptor, 0, &g.reach);
    expect(rc == 0, "reach: %s", tarn_last_error());
    return g;
}

static void recall(struct place *p, const struct granted *g)
{
    int rc = lender_ask(leases_path(p->leases), NULL, "RECALL %" PRIu64, g->id);
    expect(rc == 0, "recall: %s", tarn_last_error());
}

static void take_back(struct place *p, struct granted *g)
{
    recall(p, g);
    tarn_reach_free(g->reach);
}

static void expect_held(struct place *p, const struct granted *g, uint64_t bytes, const char *key,
                        uint64_t version)
{
    int rc = lender_ask(leases_path(p->leases), NULL, "HOLDS %" PRIu64 " 0 %" PRIu64 " %s %" PRIu64, g->id,
                        bytes, key, version);
    expect(rc == 0, "%s", tarn_last_error());
}

struct range {
    const struct tarn_piece *pieces;
    uint32_t npieces;
    uint64_t offset;
};

/* One read or write. */
static int move_once(struct place *p, struct tarn_reach *r, bool write, const struct range *range,
                     const struct tarn_notify *notify)
{
    struct tarn_move_options o = {.size = sizeof o, .timeout_ms = p->way->timeout_ms, .notify = notify};
    struct tarn_item item = {.pieces = range->pieces, .npieces = range->npieces};
    uint64_t begun = harness_now_ms();
    struct twin twin;
    if (p->device)
        twin_make(&twin, p->device, &item);
    struct tarn_move m = {.pieces = item.pieces, .npieces = item.npieces, .offset = range->offset};
    int rc = write ? tarn_write(r, &m, 1, &o) : tarn_read(r, &m, 1, &o);
    if (p->device)
        twin_end(&twin, &item, range->pieces);
    expect(harness_now_ms() - begun < p->way->timeout_ms + SLACK_MS, "late: %u ms were given",
           p->way->timeout_ms);
    return rc;
}

/* Until it is no injected fault. Not for bytes that another write will replace. */
static int move(struct place *p, struct tarn_reach *r, bool write, const struct range *range)
{
    int rc = TARN_E_TIMEOUT;
    for (int i = 0; i < TRIES; i++) {
        rc = move_once(p, r, write, range, NULL);
        if (!forgivable(p, rc))
            break;
    }
    return rc;
}

static int move_bytes(struct place *p, struct tarn_reach *r, bool write, void *data, uint64_t bytes,
                      uint64_t offset)
{
    const struct tarn_piece piece = {.addr = data, .bytes = bytes};
    return move(p, r, write, &(struct range){&piece, 1, offset});
}

/* --- runs and ranges ---------------------------------------------------------------------------- */

enum { PIECES = 24 };

/* Cuts [data, data + bytes) into pieces of random sizes, which are next to one another. */
static uint32_t cut(struct place *p, uint8_t *data, uint64_t bytes, struct tarn_piece pieces[PIECES])
{
    uint32_t n = 0;
    for (uint64_t at = 0; at < bytes; n++) {
        uint64_t size = n == PIECES - 1 ? bytes - at : 1 + rnd(p, 2 * bytes / PIECES + 1);
        size = size < bytes - at ? size : bytes - at;
        pieces[n] = (struct tarn_piece){.addr = data + at, .bytes = size};
        at += size;
    }
    return n;
}

static void random_ranges(struct place *p, struct granted *g, uint8_t *want, uint64_t total, uint32_t runs)
{
    enum { RANGES = 30, RANGE = 100000 };
    uint8_t *got = malloc(RANGE);
    struct tarn_piece pieces[PIECES];
    for (int i = 0; i < RANGES; i++) {
        uint64_t bytes = rnd(p, RANGE), offset = rnd(p, total - bytes + 1);
        bool write = rnd(p, 2);
        uint8_t *own = write ? want + offset : got;
        if (write)
            for (uint64_t b = 0; b < bytes; b++)
                own[b] = (uint8_t)rnd(p, 256);
        struct range range = {pieces, cut(p, own, bytes, pieces), offset};
        int rc = move_once(p, g->reach, write, &range, NULL);
        if (write && forgivable(p, rc)) { /* the next bytes must not meet those of this try */
            take_back(p, g);
            *g = grant(p, total, runs, "rw", NULL, 0);
            rc = move_bytes(p, g->reach, true, want, total, 0);
        } else if (!write) {
            rc = forgivable(p, rc) ? move(p, g->reach, false, &range) : rc;
            expect(memcmp(got, want + offset, bytes) == 0, "other bytes than were written");
        }
        expect(rc == 0, "%s: %s", write ? "write" : "read", tarn_last_error());
    }
    free(got);
}

/* The lender's runs and the pieces here have no boundary in common. */
void runs_there_and_pieces_here(struct place *p)
{
    enum { TOTAL = MIB + 4321 };
    static const uint32_t runs[] = {1, 2, 16384};
    struct tarn_piece pieces[PIECES];
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct granted g = grant(p, TOTAL, runs[i], "rw", "runs", i);
        uint8_t *want = made(TOTAL, "runs", i);
        random_ranges(p, &g, want, TOTAL, runs[i]);
        take_back(p, &g);
        g = grant(p, TOTAL, runs[i], "rw", NULL, 0);
        uint8_t *last = made(TOTAL, "last", i);
        struct range all = {pieces, cut(p, last, TOTAL, pieces), 0};
        assert_int_equal(move(p, g.reach, true, &all), 0);
        expect_held(p, &g, TOTAL, "last", i);
        take_back(p, &g);
        free(want), free(last);
    }
}

/* Every fifth move lies outside of the lease. */
void moves_of_a_batch_have_a_status_each(struct place *p)
{
    enum { N = 200, BYTES = 5000 };
    static struct tarn_move moves[N];
    static struct tarn_piece pieces[N];
    struct granted g = grant(p, (uint64_t)N * BYTES, 0, "r", "batch", 1);
    uint8_t *want = made((size_t)N * BYTES, "batch", 1), *data = device_alloc(p->device, (size_t)N * BYTES);
    for (int i = 0; i < N; i++) {
        pieces[i] = (struct tarn_piece){.addr = data + (size_t)i * BYTES, .bytes = BYTES};
        moves[i] = (struct tarn_move){
            .pieces = &pieces[i], .npieces = 1, .offset = (uint64_t)(i % 5 ? i : N) * BYTES};
    }
    struct tarn_move_options o = {.size = sizeof o, .timeout_ms = p->way->timeout_ms};
    assert_int_not_equal(tarn_read(g.reach, moves, N, &o), 0);
    uint8_t got[BYTES];
    for (int i = 0; i < N; i++) {
        device_read(p->device, got, pieces[i].addr, BYTES);
        if (i % 5 == 0)
            assert_int_equal(moves[i].status, TARN_E_SIZE);
        else if (moves[i].status == 0)
            assert_memory_equal(got, want + (size_t)i * BYTES, BYTES);
        else
            assert_true(forgivable(p, moves[i].status));
    }
    device_drop(p->device, data);
    free(want);
    take_back(p, &g);
}

void ranges_at_and_past_the_end(struct place *p)
{
    enum { TOTAL = 100000 };
    static const uint64_t past[][2] = {
        {TOTAL - 1, 2},  {TOTAL, 1},      {TOTAL + 1, 0},         {0, TOTAL + 1},
        {UINT64_MAX, 1}, {UINT64_MAX, 0}, {UINT64_MAX - 49, 100}, {UINT64_MAX - TOTAL + 1, TOTAL}};
    struct granted g = grant(p, TOTAL, 0, "rw", "end", 1);
    uint8_t *want = made(TOTAL, "end", 1), *data = malloc(TOTAL + 1);
    memset(data, 0xee, TOTAL + 1);
    for (size_t i = 0; i < sizeof past / sizeof *past; i++)
        for (int write = 0; write < 2; write++)
            assert_int_equal(move_bytes(p, g.reach, write, data, past[i][1], past[i][0]), TARN_E_SIZE);
    for (size_t i = 0; i <= TOTAL; i++)
        assert_int_equal(data[i], 0xee);
    expect_held(p, &g, TOTAL, "end", 1);
    assert_int_equal(move_bytes(p, g.reach, false, data, 1, TOTAL - 1), 0);
    assert_int_equal(data[0], want[TOTAL - 1]);
    assert_int_equal(move_bytes(p, g.reach, false, data, 0, TOTAL), 0);
    assert_int_equal(move_bytes(p, g.reach, true, data, 0, TOTAL), 0);
    assert_int_equal(move_bytes(p, g.reach, true, want + TOTAL - 1, 1, TOTAL - 1), 0);
    expect_held(p, &g, TOTAL, "end", 1);
    free(want), free(data);
    take_back(p, &g);
}

/* --- rights and generations --------------------------------------------------------------------- */

static bool refused(struct place *p, int rc, int want)
{
    return rc == want || (rc != 0 && forgivable(p, rc));
}

/* A client that has been told only how to read has another lease of the window, which may be written. */
static void token_for_reading(struct place *p, const struct range *all)
{
    struct place reader = {.seed = p->seed, .fix = p->fix};
    place_open(&reader, p->way, p->fix->redis->url, p->fix->lender);
    struct granted shown = grant(&reader, 1000, 0, "r", "shown", 1);
    struct granted theirs = grant(p, 50000, 0, "rw", "theirs", 1);
    struct tarn_descriptor forged, own;
    struct tarn_reach *r;
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_descriptor_parse(theirs.descriptor, &forged), 0);
    assert_int_equal(tarn_descriptor_parse(shown.descriptor, &own), 0);
    memcpy(forged.token, own.token, sizeof forged.token);
    assert_int_equal(tarn_descriptor_format(&forged, text), 0);
    assert_int_equal(tarn_reach(reader.client, text, 0, &r), 0);
    r->write = true;
    assert_int_not_equal(move_once(&reader, r, true, all, NULL), 0);
    expect_held(p, &theirs, 50000, "theirs", 1);
    tarn_reach_free(r);
    take_back(p, &theirs), take_back(&reader, &shown);
    place_close(&reader);
}

/* Neither by a writer that asks, nor by one that claims that it may. */
void lease_for_reading_is_not_written(struct place *p)
{
    enum { TOTAL = 50000 };
    struct granted g = grant(p, TOTAL, 0, "r", "read-only", 1);
    uint8_t *other = made(TOTAL, "read-only", 2);
    const struct tarn_piece piece = {.addr = other, .bytes = TOTAL};
    const struct range all = {&piece, 1, 0};
    const struct tarn_notify tell = {.tag = 1};
    assert_int_equal(move_once(p, g.reach, true, &all, NULL), TARN_E_AUTH);
    g.reach->write = true;
    assert_int_not_equal(move_once(p, g.reach, true, &all, NULL), 0);
    assert_int_not_equal(move_once(p, g.reach, true, &all, &tell), 0);
    assert_true(refused(p, move_once(p, g.reach, true, &(struct range){0}, &tell), TARN_E_AUTH));
    g.reach->write = false;
    expect_held(p, &g, TOTAL, "read-only", 1);
    token_for_reading(p, &all);
    free(other);
    take_back(p, &g);
}

/* A peer that has one lease uses its generation for another. */
void generation_of_another_lease(struct place *p)
{
    enum { TOTAL = 50000 };
    struct granted mine = grant(p, TOTAL, 0, "rw", "mine", 1), other = grant(p, TOTAL, 0, "rw", "other", 1);
    struct granted forged = grant(p, TOTAL, 0, "rw", "forged", 1);
    uint8_t *data = made(TOTAL, "mine", 2);
    const struct tarn_piece piece = {.addr = data, .bytes = TOTAL};
    const struct tarn_notify tell = {.tag = 1};
    uint32_t slot = forged.reach->slot;
    assert_int_equal(move_bytes(p, mine.reach, true, data, TOTAL, 0), 0); /* it has entered the window */
    forged.reach->slot = other.reach->slot;
    forged.reach->gen += forged.reach->gen == other.reach->gen ? 2 : 0;
    for (int write = 0; write < 2; write++)
        assert_true(
            refused(p, move_once(p, forged.reach, write, &(struct range){&piece, 1, 0}, write ? &tell : NULL),
                    TARN_E_STALE));
    assert_true(refused(p, move_once(p, forged.reach, true, &(struct range){0}, &tell), TARN_E_STALE));
    forged.reach->slot = slot;
    expect_held(p, &other, TOTAL, "other", 1);
    expect_held(p, &forged, TOTAL, "forged", 1);
    free(data);
    take_back(p, &forged), take_back(p, &other), take_back(p, &mine);
}

/* --- recalls ------------------------------------------------------------------------------------ */

void nothing_goes_after_a_recall(struct place *p)
{
    enum { TOTAL = 50000 };
    struct granted g = grant(p, TOTAL, 0, "rw", "ended", 1);
    uint8_t *data = made(TOTAL, "ended", 1);
    const struct tarn_piece piece = {.addr = data, .bytes = TOTAL};
    const struct tarn_notify tell = {.tag = 1};
    const struct range all = {&piece, 1, 0}, none = {0};
    assert_int_equal(move(p, g.reach, false, &all), 0);
    assert_int_equal(move(p, g.reach, true, &all), 0);
    recall(p, &g);
    /* Another has the memory, and perhaps the slot. */
    struct granted next = grant(p, TOTAL, 0, "rw", "next", 1);
    for (int write = 0; write < 2; write++) {
        assert_true(refused(p, move_once(p, g.reach, write, &all, NULL), TARN_E_STALE));
        assert_true(refused(p, move_once(p, g.reach, write, &none, NULL), TARN_E_STALE));
    }
    assert_true(refused(p, move_once(p, g.reach, true, &all, &tell), TARN_E_STALE));
    assert_true(refused(p, move_once(p, g.reach, true, &none, &tell), TARN_E_STALE));
    int rc = lender_ask(leases_path(p->leases), NULL, "NEXT 0 1");
    expect(rc == TARN_E_TIMEOUT, "a notification has come: %s", tarn_last_error());
    expect_held(p, &next, TOTAL, "next", 1);
    tarn_reach_free(g.reach);
    free(data);
    take_back(p, &next);
}

/* What the threads of a round share. */
struct round {
    struct granted g;
    uint64_t bytes;
    bool write;
    _Atomic uint64_t version; /* that the lease has; written: the last of which the writer knows */
    atomic_int begun, stale;  /* transfers */
    atomic_bool over;         /* the lease was recalled */
};

static int move_all(struct thread *t, struct round *r, uint8_t *data)
{
    const struct tarn_piece piece = {.addr = data, .bytes = r->bytes};
    atomic_fetch_add(&r->begun, 1);
    int rc = move_once(&t->place, r->g.reach, r->write, &(struct range){&piece, 1, 0}, NULL);
    atomic_fetch_add(&r->stale, rc == TARN_E_STALE);
    expect(rc == 0 || rc == TARN_E_STALE || forgivable(&t->place, rc), "transfer: %s", tarn_last_error());
    t->hits += rc == 0;
    return rc;
}

/* Reads all of the lease until it was recalled, and then once more. */
static void read_on(struct thread *t, struct round *r)
{
    uint8_t *want = made(r->bytes, "round", atomic_load(&r->version)), *got = malloc(r->bytes);
    for (bool over = false; !over;) {
        over = atomic_load(&r->over);
        memset(got, 0, r->bytes);
        int rc = move_all(t, r, got);
        expect(rc != 0 || memcmp(got, want, r->bytes) == 0, "a read has brought other bytes");
        expect(rc != 0 || !over, "a read has ended well after the recall");
    }
    free(want), free(got);
}

/* Writes version after version until it was recalled, or a write is in doubt, and then once more. */
static void write_on(struct thread *t, struct round *r)
{
    int rc = 0;
    while (rc == 0) {
        uint64_t next = atomic_load(&r->version) + 1;
        uint8_t *own = made(r->bytes, "round", next);
        rc = move_all(t, r, own);
        if (rc == 0)
            atomic_store(&r->version, next);
        free(own);
    }
    while (!atomic_load(&r->over)) {
        atomic_fetch_add(&r->begun, 1);
        harness_pause();
    }
    uint8_t *late = made(r->bytes, "late", 0);
    expect(move_all(t, r, late) != 0, "a write has ended well after the recall");
    free(late);
}

static void *recall_soon(struct thread *t, struct round *r)
{
    int after = 1 + (int)rnd(&t->place, 8);
    while (atomic_load(&r->begun) < after)
        harness_pause();
    int rc = lender_ask(leases_path(t->place.leases), NULL, "END %" PRIu64, r->g.id);
    expect(rc == 0, "recall: %s", tarn_last_error());
    atomic_store(&r->over, true);
    return NULL;
}

static void *mover_or_lender(void *arg)
{
    struct thread *t = arg;
    struct round *r = t->arg;
    if (t->number == 0)
        return recall_soon(t, r);
    if (r->write)
        write_on(t, r);
    else
        read_on(t, r);
    return NULL;
}

/* What was written under the lease, and no more, is there after its end: a write that has ended well as a
 * whole, one that has failed in part. */
static void recalled_under(struct place *p, bool write)
{
    enum { ROUNDS = 8, READERS = 2 };
    int well = 0, stale = 0;
    for (uint64_t i = 0; i < ROUNDS || stale == 0 || well == 0; i++) {
        struct round r = {.version = i << 20, .bytes = 2 * MIB + rnd(p, MIB), .write = write};
        r.g = grant(p, r.bytes, 0, "rw", "round", r.version);
        well += in_threads(p, 1 + (write ? 1 : READERS), mover_or_lender, &r);
        stale += atomic_load(&r.stale);
        int rc = lender_ask(leases_path(p->leases), NULL, "SHOWS %" PRIu64 " round %" PRIu64, r.g.id,
                            atomic_load(&r.version));
        expect(rc == 0, "%s", tarn_last_error());
        take_back(p, &r.g);
    }
}

void recalled_under_readers(struct place *p)
{
    recalled_under(p, false);
}

void recalled_under_writers(struct place *p)
{
    recalled_under(p, true);
}

/* --- notifications ------------------------------------------------------------------------------ */

/* Waits for a notification in the lender, which looks at its bytes at once. */
struct watch {
    const char *path;
    pthread_t id;
    uint64_t round;
    int status;
    char answer[LENDER_TEXT];
};

static void *wait_for_one(void *arg)
{
    struct watch *w = arg;
    w->status = lender_ask(w->path, w->answer, "NEXT %" PRIu64 " %d", w->round, HARNESS_TIMEOUT_MS);
    return NULL;
}

/* The range that the lender is to look at goes with the notification. */
static struct tarn_notify telling(uint64_t tag, uint64_t offset, uint64_t bytes, char data[64])
{
    int n = snprintf(data, 64, "%" PRIu64 " %" PRIu64, offset, bytes);
    return (struct tarn_notify){.tag = tag, .data = data, .bytes = (uint32_t)n};
}

/* Writes in three moves, and tells. */
static int write_and_tell(struct place *p, struct tarn_reach *r, uint8_t *there, uint64_t bytes, uint64_t tag)
{
    enum { MOVES = 3 };
    struct tarn_piece pieces[MOVES];
    struct tarn_move moves[MOVES];
    char data[64];
    const struct tarn_notify tell = telling(tag, 0, bytes, data);
    const struct tarn_move_options o = {.size = sizeof o, .timeout_ms = p->way->timeout_ms, .notify = &tell};
    for (uint64_t i = 0; i < MOVES; i++) {
        uint64_t from = bytes * i / MOVES, to = bytes * (i + 1) / MOVES;
        pieces[i] = (struct tarn_piece){.addr = there + from, .bytes = to - from};
        moves[i] = (struct tarn_move){.pieces = &pieces[i], .npieces = 1, .offset = from};
    }
    return tarn_write(r, moves, MOVES, &o);
}

/* A notification is seen with all bytes of its write. It is seen when the write ends with 0, and may be when
 * it fails. */
void notification_has_its_bytes(struct place *p)
{
    enum { ROUNDS = 25, TOTAL = MIB + 77 };
    uint8_t *data = device_alloc(p->device, TOTAL);
    int well = 0;
    for (uint64_t tag = 1; tag <= ROUNDS || well == 0; tag++) {
        struct granted g = grant(p, TOTAL, 0, "rw", NULL, 0);
        uint8_t *own = made(TOTAL, "told", tag);
        struct watch w = {.path = leases_path(p->leases), .round = tag};
        char number[24];
        device_write(p->device, data, own, TOTAL);
        assert_int_equal(pthread_create(&w.id, NULL, wait_for_one, &w), 0);
        int rc = write_and_tell(p, g.reach, data, TOTAL, tag);
        assert_true(rc == 0 || forgivable(p, rc));
        well += rc == 0;
        if (rc)
            lender_ask(w.path, NULL, "ENOUGH %" PRIu64, tag);
        pthread_join(w.id, NULL);
        expect(w.status == 0 || (rc && w.status == TARN_E_TIMEOUT), "told by a write that ended with %d: %s",
               rc, w.answer);
        snprintf(number, sizeof number, "%" PRIu64, tag);
        if (w.status == 0)
            assert_string_equal(w.answer, number);
        free(own);
        take_back(p, &g);
    }
    device_drop(p->device, data);
}

enum { SLOTS = 192, SLOT = 65536 };

/* Writes slot after slot of the lease that a key means, and tells of each. */
void tell_until_killed(struct place *p)
{
    char text[LENDER_TEXT], data[64];
    struct tarn_reach *r;
    uint64_t id, bytes;
    int at = 0;
    expect(lender_ask(leases_path(p->leases), text, "LOOK to-tell") == 0, "%s", tarn_last_error());
    expect(sscanf(text, "%" SCNu64 " %" SCNu64 " %n", &id, &bytes, &at) == 2, "LOOK: \"%s\"", text);
    expect(tarn_reach(p->client, text + at, 0, &r) == 0, "reach: %s", tarn_last_error());
    uint8_t *there = device_alloc(p->device, SLOT);
    for (uint64_t i = 0; i < SLOTS; i++) {
        uint8_t *own = made(SLOT, "told", i);
        const struct tarn_notify tell = telling(i, i * SLOT, SLOT, data);
        const struct tarn_piece piece = {.addr = there, .bytes = SLOT};
        device_write(p->device, there, own, SLOT);
        struct tarn_move m = {.pieces = &piece, .npieces = 1, .offset = i * SLOT};
        const struct tarn_move_options o = {.size = sizeof o, .notify = &tell};
        int rc = tarn_write(r, &m, 1, &o);
        expect(rc == 0, "write and tell: %s", tarn_last_error());
        free(own);
    }
    pause();
}

/* The writer is killed somewhere on its way from the bytes to the notification. */
void notifications_of_a_killed_writer(struct place *p)
{
    enum { ROUNDS = 3 };
    const char *path = leases_path(p->leases);
    for (int round = 0; round < ROUNDS; round++) {
        struct granted g = grant(p, (uint64_t)SLOTS * SLOT, 0, "rw", NULL, 0);
        uint64_t seen = 0, kill_at = 1 + rnd(p, SLOTS - 1);
        int rc = lender_ask(path, NULL, "NAME %" PRIu64 " to-tell", g.id);
        expect(rc == 0, "%s", tarn_last_error());
        struct harness_process *writer = peer_start(p, "tell");
        while (rc == 0) {
            char text[LENDER_TEXT], want[24];
            rc = lender_ask(path, text, "NEXT 0 %d", seen < kill_at ? HARNESS_TIMEOUT_MS : 1);
            expect(rc == 0 || (rc == TARN_E_TIMEOUT && seen >= kill_at), "notification %" PRIu64 ": %s", seen,
                   tarn_last_error());
            snprintf(want, sizeof want, "%" PRIu64, seen);
            if (rc == 0)
                assert_string_equal(text, want);
            seen += rc == 0;
            if (seen == kill_at)
                harness_kill(writer);
        }
        take_back(p, &g);
    }
}
