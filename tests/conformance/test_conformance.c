/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: the same cases over every usable transport, alone and under injected faults, between
 * the node, this process and a second client process, and with every kind of memory that the transport
 * supports at the node and here. Transports that lend windows run them over those, too: leases of a lender's
 * process in the place of a node's objects. A transport is complete when it passes.
 *
 * Every case follows two rules. An operation ends within its deadline (plus slack for a busy machine). A
 * status of 0 means that the bytes are right. Without faults the status must be 0. Under faults, any error
 * that a broken transport may cause is allowed; the case then retries until it succeeds, so that it always
 * runs completely.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/conformance/lender.h"
#include "tests/conformance/windows.h"

#define VERSION_MS 10       /* how long a version lives when a fault delays its readers by 3 ms */
#define VERSION_PUTS 3      /* how long a version lives otherwise, in times of a put: readers meet several */
#define VERSION_MAX_MS 1000 /* also after a put that took long: readers must meet the next */

static struct fixture fixtures[2][2]; /* [window][gpu_pool] */
static const char *self;
static int ran, passed; /* numbers of cases; if they differ at the end, the logs are printed */

/* --- the second process ------------------------------------------------------------------------- */

static void replace_always(struct place *p, bool slowly)
{
    uint8_t *data[2] = {made(2 * MIB, "contested", 0), made(2 * MIB, "contested", 1)};
    for (uint64_t v = 1;; v++) {
        uint64_t begun_ns = tarn_now_ns();
        put_these(p, "contested", data[v % 2], 2 * MIB);
        uint64_t pause_ms = VERSION_PUTS * (tarn_now_ns() - begun_ns) / TARN_NS_PER_MS + 1;
        if (v == 1)
            dprintf(STDOUT_FILENO, "ready\n");
        poll(NULL, 0, slowly ? VERSION_MS : pause_ms < VERSION_MAX_MS ? (int)pause_ms : VERSION_MAX_MS);
    }
}

static void churn(struct place *p)
{
    for (uint64_t v = 0;; v++) {
        char key[32];
        snprintf(key, sizeof key, "churn-%d", (int)rnd(p, 400));
        put_made(p, key, 16384 + strlen(key), 0);
        if (v == 400)
            dprintf(STDOUT_FILENO, "ready\n");
    }
}

/* Writes the first half of an object of 1 MiB, of a node or of a lease that has no name so far. */
static void put_half(struct place *p)
{
    struct tarn_item item = {.key = key_of("half-put"), .tensor = tarn_bytes(MIB)};
    struct tarn_put_session *s;
    struct tarn_piece piece = {.addr = device_alloc(p->device, MIB / 2), .bytes = MIB / 2};
    int rc =
        p->leases ? leases_put_part(p->leases, MIB, &piece) : tarn_put_begin(p->client, &item, 1, NULL, &s);
    if (!rc && !p->leases)
        rc = tarn_put_write(s, 0, 0, &piece, 1, 0);
    expect(rc == 0, "half of a put: %s", tarn_last_error());
    dprintf(STDOUT_FILENO, "ready\n");
    pause();
}

/*
 * test_conformance --peer REDIS TRANSPORT DEVICE afar|near WHAT [LENDER]: acts as the second process in a
 * case. Prints "ready" once it has begun. Works until it is killed or done. Its deadlines are long: a loaded
 * host must not end it.
 */
static int peer_main(char **argv)
{
    struct way w = {.transport = argv[3],
                    .timeout_ms = HARNESS_TIMEOUT_MS,
                    .device = atoi(argv[4]),
                    .afar = strcmp(argv[5], "afar") == 0};
    struct place p = {.seed = 1};
    const char *what = argv[6];
    place_open(&p, &w, argv[2], argv[7]);
    if (strcmp(what, "put") == 0)
        put_made(&p, "from-peer", 3 * MIB + 5, 1);
    else if (strcmp(what, "replace") == 0)
        replace_always(&p, false);
    else if (strcmp(what, "replace-slowly") == 0)
        replace_always(&p, true);
    else if (strcmp(what, "churn") == 0)
        churn(&p);
    else if (strcmp(what, "half-put") == 0)
        put_half(&p);
    else if (strcmp(what, "tell") == 0)
        tell_until_killed(&p);
    dprintf(STDOUT_FILENO, "done\n");
    place_close(&p);
    return 0;
}

/* --- cases -------------------------------------------------------------------------------------- */

static void sizes_from_none_to_megabytes(struct place *p)
{
    static const size_t sizes[] = {0,    1,          63,      64,  65,      4095,       4096,
                                   4097, 65536 + 17, MIB - 1, MIB, MIB + 1, 5 * MIB + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char key[32];
        snprintf(key, sizeof key, "size-%zu", sizes[i]);
        put_made(p, key, sizes[i], i);
        expect_made(p, key, sizes[i], i);
    }
}

static void tensor_comes_back_with_shape(struct place *p)
{
    float data[6] = {1, 2, 3, 4, 5, 6}, back[6] = {0};
    struct tarn_piece in = {.addr = data, .bytes = sizeof data}, out = {.addr = back, .bytes = sizeof back};
    struct tarn_item item = {.key = key_of("shaped"),
                             .pieces = &in,
                             .npieces = 1,
                             .tensor = {.bytes = 24, .dtype = TARN_F32, .ndim = 2, .shape = {2, 3}}};
    assert_int_equal(run(p, true, &item, TARN_PUT_REPLACE), 0);
    struct tarn_item got = {.key = key_of("shaped"), .pieces = &out, .npieces = 1};
    assert_int_equal(run(p, false, &got, 0), 0);
    assert_memory_equal(back, data, sizeof data);
    assert_int_equal(got.tensor.dtype, TARN_F32);
    assert_int_equal(got.tensor.ndim, 2);
    assert_int_equal(got.tensor.shape[0], 2);
    assert_int_equal(got.tensor.shape[1], 3);
}

/* Puts from scattered memory, gets into differently scattered memory, twenty random cuts. */
static void pieces_on_both_sides(struct place *p)
{
    enum { TOTAL = 300000 };
    for (int round = 0; round < 20; round++) {
        uint8_t *want = made(TOTAL, "pieces", (uint64_t)round), *got = calloc(1, TOTAL * 2);
        struct tarn_piece in[64], out[2] = {{.addr = got, .bytes = 100, .stride = 171, .count = 1000}};
        uint32_t n = 0;
        for (size_t at = 0; at < TOTAL; n++) {
            size_t bytes = n == 63 ? TOTAL - at : 1 + rnd(p, 9000);
            bytes = bytes > TOTAL - at ? TOTAL - at : bytes;
            in[n] = (struct tarn_piece){.addr = want + at, .bytes = bytes};
            at += bytes;
        }
        out[1] = (struct tarn_piece){.addr = got + 200000, .bytes = TOTAL - 100000};
        struct tarn_item put = {
            .key = key_of("pieces"), .pieces = in, .npieces = n, .tensor = tarn_bytes(TOTAL)};
        assert_int_equal(run(p, true, &put, TARN_PUT_REPLACE), 0);
        struct tarn_item get = {.key = key_of("pieces"), .pieces = out, .npieces = 2};
        assert_int_equal(run(p, false, &get, 0), 0);
        for (size_t i = 0; i < 1000; i++)
            assert_memory_equal(got + 171 * i, want + 100 * i, 100);
        assert_memory_equal(got + 200000, want + 100000, TOTAL - 100000);
        /* The gaps between the runs belong to the caller. */
        for (size_t i = 0; i < 999; i++)
            assert_int_equal(got[171 * i + 100], 0);
        free(want);
        free(got);
    }
}

static void runs_that_share_memory(struct place *p)
{
    enum { RUN = 100, STRIDE = 37, RUNS = 2000 };
    uint8_t *in = made(RUNS * STRIDE + RUN, "", 0), *got = malloc(RUN * RUNS);
    struct tarn_piece runs = {.addr = in, .bytes = RUN, .stride = STRIDE, .count = RUNS};
    struct tarn_item put = {
        .key = key_of("shared"), .pieces = &runs, .npieces = 1, .tensor = tarn_bytes(RUN * RUNS)};
    assert_int_equal(run(p, true, &put, TARN_PUT_REPLACE), 0);
    assert_int_equal(get_bytes(p, "shared", got, RUN * RUNS), 0);
    for (size_t i = 0; i < RUNS; i++)
        assert_memory_equal(got + i * RUN, in + i * STRIDE, RUN);
    free(in), free(got);
}

static void ranges_lie_inside_the_object(struct place *p)
{
    enum { TOTAL = 100000 };
    put_made(p, "ranged", TOTAL, 0);
    uint8_t *want = made(TOTAL, "ranged", 0), *got = malloc(TOTAL);
    for (int i = 0; i < 50; i++) {
        uint64_t from = rnd(p, TOTAL), bytes = rnd(p, TOTAL - from + 1);
        struct tarn_piece piece = {.addr = got, .bytes = bytes};
        struct tarn_item item = {.key = key_of("ranged"), .pieces = &piece, .npieces = 1, .offset = from};
        assert_int_equal(run(p, false, &item, TARN_GET_RANGE), 0);
        assert_memory_equal(got, want + from, bytes);
    }
    struct tarn_piece beyond = {.addr = got, .bytes = 2};
    struct tarn_item item = {.key = key_of("ranged"), .pieces = &beyond, .npieces = 1, .offset = TOTAL - 1};
    assert_int_equal(run(p, false, &item, TARN_GET_RANGE), TARN_E_SIZE);
    item.offset = UINT64_MAX;
    assert_int_equal(run(p, false, &item, TARN_GET_RANGE), TARN_E_SIZE);
    free(want);
    free(got);
}

/* A buffer of the wrong size is an error that names the size. The buffer is never filled in part. */
static void other_size_is_refused(struct place *p)
{
    put_made(p, "sized", 1000, 0);
    uint8_t buffer[1001];
    memset(buffer, 0xee, sizeof buffer);
    for (size_t bytes = 999; bytes <= 1001; bytes += 2) {
        struct tarn_piece piece = {.addr = buffer, .bytes = bytes};
        struct tarn_item item = {.key = key_of("sized"), .pieces = &piece, .npieces = 1};
        assert_int_equal(run(p, false, &item, 0), TARN_E_SIZE);
        assert_int_equal(item.tensor.bytes, 1000);
        assert_int_equal(buffer[0], 0xee);
    }
}

static void batch_has_a_status_for_each(struct place *p)
{
    enum { N = 200, BYTES = 5000 };
    static char keys[N][24];
    struct tarn_item items[N];
    struct tarn_piece pieces[N];
    uint8_t *data = device_alloc(p->device, (size_t)N * BYTES), got[BYTES];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "batch-%d", i);
        if (i % 5)
            put_made(p, keys[i], BYTES, 9);
        pieces[i] = (struct tarn_piece){.addr = data + (size_t)i * BYTES, .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1};
    }
    struct tarn_get_options o = {.size = sizeof o, .timeout_ms = p->way->timeout_ms};
    uint64_t start = harness_now_ms();
    int status = tarn_get(p->client, items, N, &o);
    assert_true(harness_now_ms() - start < p->way->timeout_ms + SLACK_MS);
    assert_true(status == TARN_E_NOT_FOUND || forgivable(p, status));
    for (int i = 0; i < N; i++) {
        if (i % 5 == 0) {
            assert_int_equal(items[i].status, TARN_E_NOT_FOUND);
        } else if (items[i].status == 0) {
            uint8_t *want = made(BYTES, keys[i], 9);
            device_read(p->device, got, pieces[i].addr, BYTES);
            assert_memory_equal(got, want, BYTES);
            free(want);
        } else {
            assert_true(forgivable(p, items[i].status));
        }
    }
    device_drop(p->device, data);
}

static void second_put_is_refused_and_replace_is_seen(struct place *p)
{
    uint8_t a[100], b[100], got[100];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    struct tarn_key k = key_of("twice");
    remove_key(p, "twice");
    assert_int_equal(put_bytes(p, "twice", a, sizeof a, 0), 0);
    struct tarn_piece piece = {.addr = b, .bytes = sizeof b};
    struct tarn_item item = {.key = k, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(sizeof b)};
    assert_int_equal(run(p, true, &item, 0), TARN_E_EXISTS);
    assert_int_equal(get_bytes(p, "twice", got, sizeof got), 0);
    assert_memory_equal(got, a, sizeof a);
    assert_int_equal(put_bytes(p, "twice", b, sizeof b, TARN_PUT_REPLACE), 0);
    assert_int_equal(get_bytes(p, "twice", got, sizeof got), 0);
    assert_memory_equal(got, b, sizeof b);
}

/* A cached descriptor names a removed object. Others have taken its slot and extent. The get must be a
 * miss. */
static void cached_descriptor_never_gives_foreign_bytes(struct place *p)
{
    put_made(p, "gone", 40000, 0);
    expect_made(p, "gone", 40000, 0);
    struct way clean = {.transport = p->way->transport, .timeout_ms = WAY_TIMEOUT_MS, .device = -1};
    struct place other = {.seed = p->seed};
    place_open(&other, &clean, p->fix->redis->url, p->fix->lender);
    remove_key(&other, "gone");
    for (int i = 0; i < 20; i++) {
        char key[32];
        snprintf(key, sizeof key, "taker-%d", i);
        put_made(&other, key, 40000, 1);
    }
    expect_status(p, "gone", 40000, TARN_E_NOT_FOUND);
    place_close(&other);
}

static void what_another_process_put_is_here(struct place *p)
{
    struct harness_process *q = peer_start(p, "put");
    assert_non_null(harness_wait_line(q, "done", HARNESS_TIMEOUT_MS));
    assert_int_equal(harness_wait(q, HARNESS_TIMEOUT_MS), 0);
    expect_made(p, "from-peer", 3 * MIB + 5, 1);
}

/* Counts as a hit each get that returns another version than the previous one. */
static void *read_contested(void *arg)
{
    enum { GETS = 38, STALE_ENOUGH = 500 };
    struct thread *t = arg;
    struct place *p = &t->place;
    int before = 0;
    uint64_t enough = stale_reads(p) + STALE_ENOUGH;
    uint8_t *want[2] = {made(2 * MIB, "contested", 0), made(2 * MIB, "contested", 1)}, *got = malloc(2 * MIB);
    for (int i = 0; i < GETS && stale_reads(p) < enough; i++) {
        memset(got, 0, 2 * MIB);
        int status = get_bytes(p, "contested", got, 2 * MIB);
        expect(status == 0, "get contested: %s: %s", tarn_error_name(status), tarn_last_error());
        int version = memcmp(got, want[1], 64) == 0;
        t->hits += i > 0 && version != before;
        before = version;
        expect(memcmp(got, want[version], 2 * MIB) == 0, "contested: bytes of no version");
    }
    free(want[0]);
    free(want[1]);
    free(got);
    return NULL;
}

/* Another process replaces one key continuously. Every get has the bytes of one version, and none is
 * refused. */
static void replaced_under_readers(struct place *p)
{
    bool delayed = p->way->faults && strstr(p->way->faults, "delay");
    struct harness_process *q = peer_start(p, delayed ? "replace-slowly" : "replace");
    assert_non_null(harness_wait_line(q, "ready", HARNESS_TIMEOUT_MS));
    uint64_t until = harness_now_ms() + HARNESS_TIMEOUT_MS;
    for (int met = 0; !met || !stale_reads(p); met += in_threads(p, 4, read_contested, NULL))
        expect(harness_now_ms() < until, "the writer was not met: %d versions, %lu stale", met,
               stale_reads(p));
    harness_kill(q);
}

static void *read_churn(void *arg)
{
    enum { GETS = 94 };
    struct thread *t = arg;
    struct place *p = &t->place;
    for (int i = 0; i < GETS; i++) {
        char key[32];
        snprintf(key, sizeof key, "churn-%d", (int)rnd(p, 400));
        size_t bytes = 16384 + strlen(key);
        uint8_t *want = made(bytes, key, 0), *got = calloc(1, bytes);
        struct tarn_piece piece = {.addr = got, .bytes = bytes};
        struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1};
        int status = run_once(p, false, &item, 0);
        expect(status == 0 || status == TARN_E_NOT_FOUND || forgivable(p, status), "get %s: %s", key,
               tarn_last_error());
        if (status == 0)
            expect_bytes(key, got, want, bytes);
        t->hits += status == 0;
        free(want);
        free(got);
    }
    return NULL;
}

/* Another process evicts and puts objects. Each get has the right bytes or is a miss. */
static void evicted_under_readers(struct place *p)
{
    struct harness_process *q = peer_start(p, "churn");
    assert_non_null(harness_wait_line(q, "ready", 3 * HARNESS_TIMEOUT_MS)); /* 400 puts, maybe in a VM */
    assert_true(in_threads(p, THREADS_MAX, read_churn, NULL) > 0);
    harness_kill(q);
}

static void writer_killed_before_commit_leaves_nothing(struct place *p)
{
    remove_key(p, "half-put");
    struct harness_process *q = peer_start(p, "half-put");
    assert_non_null(harness_wait_line(q, "ready", HARNESS_TIMEOUT_MS));
    harness_kill(q);
    expect_status(p, "half-put", MIB, TARN_E_NOT_FOUND);
    put_made(p, "half-put", MIB, 3);
    expect_made(p, "half-put", MIB, 3);
}

/* Layers are written last to first. They become readable together, and can be read one by one. */
static void layers_of_a_put_session(struct place *p)
{
    enum { LAYERS = 8, LAYER = 30000 };
    struct tarn_key k = key_of("layered");
    remove_key(p, "layered");
    uint8_t *want = made(LAYERS * LAYER, "layered", 0), got[LAYER];
    uint8_t *layers = device_alloc(p->device, LAYERS * LAYER);
    device_write(p->device, layers, want, LAYERS * LAYER);
    for (int attempt = 0, done = 0; !done; attempt++) {
        assert_true(attempt < TRIES);
        struct tarn_item item = {.key = k, .tensor = tarn_bytes(LAYERS * LAYER)};
        struct tarn_put_options o = {.size = sizeof o, .flags = TARN_PUT_REPLACE};
        struct tarn_put_session *s;
        int status = tarn_put_begin(p->client, &item, 1, &o, &s);
        if (forgivable(p, status))
            continue;
        assert_int_equal(status, 0);
        for (int i = LAYERS - 1; i >= 0 && status == 0; i--) {
            struct tarn_piece piece = {.addr = layers + i * LAYER, .bytes = LAYER};
            status = tarn_put_write(s, 0, (uint64_t)i * LAYER, &piece, 1, p->way->timeout_ms);
        }
        if (status) {
            assert_true(forgivable(p, status));
            tarn_put_abort(s);
            continue;
        }
        int32_t committed = -1;
        status = tarn_put_commit(s, &committed, 0);
        assert_int_equal(status, committed);
        done = status == 0;
        assert_true(done || forgivable(p, status));
    }
    for (uint64_t i = 0; i < LAYERS; i++) {
        struct tarn_piece piece = {.addr = got, .bytes = LAYER};
        struct tarn_item item = {.key = k, .pieces = &piece, .npieces = 1, .offset = i * LAYER};
        assert_int_equal(run(p, false, &item, TARN_GET_RANGE), 0);
        assert_memory_equal(got, want + i * LAYER, LAYER);
    }
    device_drop(p->device, layers);
    free(want);
}

static void aborted_session_leaves_nothing(struct place *p)
{
    struct tarn_item item = {.key = key_of("aborted"), .tensor = tarn_bytes(1000)};
    struct tarn_put_session *s;
    assert_int_equal(tarn_put_begin(p->client, &item, 1, NULL, &s), 0);
    tarn_put_abort(s);
    expect_status(p, "aborted", 1000, TARN_E_NOT_FOUND);
}

static void submitted_gets_complete_once(struct place *p)
{
    enum { N = 64, BYTES = 10000 };
    static char keys[N][24];
    static struct ask asks[N];
    static struct tarn_piece pieces[N];
    bool seen[N] = {false};
    uint8_t *data = device_alloc(p->device, N * BYTES), bytes[BYTES];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "async-%d", i);
        put_made(p, keys[i], BYTES, 5);
        pieces[i] = (struct tarn_piece){.addr = data + (size_t)i * BYTES, .bytes = BYTES};
        asks[i].item = (struct tarn_item){.key = key_of(keys[i]), .pieces = &pieces[i], .npieces = 1};
        tarn_op op;
        assert_int_equal(submit_get(p, &asks[i], (uint64_t)i, &op), 0);
    }
    for (int n = 0; n < N;) {
        struct tarn_completion done[16];
        int got = tarn_drain(p->client, done, 16);
        for (int i = 0; i < got; i++) {
            uint64_t at = done[i].cookie;
            assert_true(at < N && !seen[at]);
            seen[at] = true;
            assert_int_equal(done[i].status, ask_status(p, &asks[at]));
            if (done[i].status == 0) {
                uint8_t *want = made(BYTES, keys[at], 5);
                device_read(p->device, bytes, pieces[at].addr, BYTES);
                assert_memory_equal(bytes, want, BYTES);
                free(want);
            } else {
                assert_true(forgivable(p, done[i].status));
            }
        }
        n += got;
        if (got == 0)
            harness_pause();
    }
    struct tarn_completion none;
    assert_int_equal(tarn_drain(p->client, &none, 1), 0);
    device_drop(p->device, data);
}

/* Cancels right after submit. From then on the buffer is the test's again, and nothing may write to it. */
static void canceled_operation_lets_go_of_its_memory(struct place *p)
{
    put_made(p, "canceled", 4 * MIB, 0);
    uint8_t *got = malloc(4 * MIB);
    for (int i = 0; i < 20; i++) {
        struct tarn_piece piece = {.addr = device_alloc(p->device, 4 * MIB), .bytes = 4 * MIB};
        struct ask ask = {.item = {.key = key_of("canceled"), .pieces = &piece, .npieces = 1}};
        tarn_op op;
        assert_int_equal(submit_get(p, &ask, 7, &op), 0);
        tarn_cancel(p->client, op);
        device_set(p->device, piece.addr, 0x55, 4 * MIB);
        struct tarn_completion done;
        assert_int_equal(tarn_wait(p->client, op, p->way->timeout_ms + SLACK_MS, &done), 0);
        device_read(p->device, got, piece.addr, 4 * MIB);
        for (size_t b = 0; b < 4 * MIB; b += 4093)
            assert_int_equal(got[b], 0x55);
        device_drop(p->device, piece.addr);
    }
    free(got);
}

static void *many(void *arg)
{
    struct thread *t = arg;
    struct place *p = &t->place;
    char key[32];
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "thread-%d-%d", t->number, (int)rnd(p, 10));
        size_t bytes = 1000 + rnd(p, 200000);
        put_made(p, key, bytes, bytes);
        expect_made(p, key, bytes, bytes);
    }
    return NULL;
}

static void threads_share_a_client(struct place *p)
{
    in_threads(p, 4, many, NULL);
}

static void close_with_operations_in_flight(struct place *p)
{
    put_made(p, "closing", 4 * MIB, 0);
    struct place closing = *p;
    closing.client = client_by(p->way, p->fix->redis->url);
    closing.leases = p->leases ? leases_open(closing.client, p->fix->lender) : NULL;
    uint8_t *got = device_alloc(p->device, 8 * 4 * MIB);
    struct tarn_piece pieces[8];
    struct ask asks[8];
    for (int i = 0; i < 8; i++) {
        pieces[i] = (struct tarn_piece){.addr = got + (size_t)i * 4 * MIB, .bytes = 4 * MIB};
        asks[i].item = (struct tarn_item){.key = key_of("closing"), .pieces = &pieces[i], .npieces = 1};
        tarn_op op;
        assert_int_equal(submit_get(&closing, &asks[i], 0, &op), 0);
    }
    tarn_close(closing.client);
    device_drop(p->device, got); /* ASan, or the device, would detect a late write */
    leases_close(closing.leases);
}

/* --- the matrix --------------------------------------------------------------------------------- */

enum { POOL = 1, WINDOW = 2 };

struct test_case {
    const char *name;
    void (*fn)(struct place *p);
    int over;
};

#define CASE(fn_, over_) \
    { \
#fn_, fn_, over_ \
    }
static const struct test_case cases[] = {
    CASE(sizes_from_none_to_megabytes, POOL | WINDOW),
    CASE(tensor_comes_back_with_shape, POOL),
    CASE(pieces_on_both_sides, POOL | WINDOW),
    CASE(runs_that_share_memory, POOL | WINDOW),
    CASE(ranges_lie_inside_the_object, POOL | WINDOW),
    CASE(other_size_is_refused, POOL),
    CASE(batch_has_a_status_for_each, POOL),
    CASE(second_put_is_refused_and_replace_is_seen, POOL),
    CASE(cached_descriptor_never_gives_foreign_bytes, POOL | WINDOW),
    CASE(what_another_process_put_is_here, POOL | WINDOW),
    CASE(replaced_under_readers, POOL | WINDOW),
    CASE(evicted_under_readers, POOL | WINDOW),
    CASE(writer_killed_before_commit_leaves_nothing, POOL | WINDOW),
    CASE(layers_of_a_put_session, POOL),
    CASE(aborted_session_leaves_nothing, POOL),
    CASE(submitted_gets_complete_once, POOL | WINDOW),
    CASE(canceled_operation_lets_go_of_its_memory, POOL | WINDOW),
    CASE(threads_share_a_client, POOL | WINDOW),
    CASE(close_with_operations_in_flight, POOL | WINDOW),
    CASE(runs_there_and_pieces_here, WINDOW),
    CASE(moves_of_a_batch_have_a_status_each, WINDOW),
    CASE(ranges_at_and_past_the_end, WINDOW),
    CASE(lease_for_reading_is_not_written, WINDOW),
    CASE(generation_of_another_lease, WINDOW),
    CASE(nothing_goes_after_a_recall, WINDOW),
    CASE(recalled_under_readers, WINDOW),
    CASE(recalled_under_writers, WINDOW),
    CASE(notification_has_its_bytes, WINDOW),
    CASE(notifications_of_a_killed_writer, WINDOW),
};
#define NCASES (sizeof cases / sizeof *cases)

struct run {
    const struct test_case *test;
    const struct way *way;
};

static void lender_start(struct fixture *fix, bool gpu)
{
    fix->lender = harness_path(fix->h, "lender");
    const char *argv[] = {self, "--lender", fix->lender, fix->redis->url, gpu ? "gpu" : "cpu", NULL};
    struct harness_process *lender = harness_spawn(fix->h, "lender-process", argv);
    assert_non_null(harness_wait_line(lender, "ready", HARNESS_TIMEOUT_MS));
}

static void fixture_start(struct fixture *fix, const struct way *w)
{
    if (fix->h)
        return;
    fix->h = harness_new();
    fix->redis = harness_redis_start(fix->h, NULL);
    fix->self = self;
    if (w->window)
        lender_start(fix, w->gpu_pool);
    else
        fix->node = harness_node_start(fix->h, "node0", fix->redis, "--pool",
                                       w->gpu_pool ? "gpu0:device=0,bytes=64M" : "cpu0:bytes=64M", NULL);
}

static void missing_way(void **state)
{
    harness_skip(((struct run *)*state)->way->transport, ((struct run *)*state)->way->missing);
}

static void run_case(void **state)
{
    struct run *r = *state;
    struct fixture *fix = &fixtures[r->way->window][r->way->gpu_pool];
    struct place p = {.fix = fix, .seed = tarn_random64()};
    print_message("           seed %llu\n", (unsigned long long)p.seed);
    ran++;
    fixture_start(fix, r->way);
    place_open(&p, r->way, fix->redis->url, fix->lender);
    r->test->fn(&p);
    place_close(&p);
    if (fix->lender && lender_ask(fix->lender, NULL, "RESET"))
        fail_msg("%s", tarn_last_error());
    passed++;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct fixture *fix = &fixtures[i / 2][i % 2];
        if (passed == ran && fix->h)
            harness_passed(fix->h);
        harness_free(fix->h);
    }
    return 0;
}

/* True if the name has all of these words in it. */
static bool wanted(const char *name, char **words)
{
    while (*words && strstr(name, *words))
        words++;
    return !*words;
}

/* test_conformance [WORDS]: runs only cases whose name, "<way>: <case>", contains the words. */
int main(int argc, char **argv)
{
    self = argv[0];
    if (argc >= 7 && strcmp(argv[1], "--peer") == 0)
        return peer_main(argv);
    if (argc == 5 && strcmp(argv[1], "--lender") == 0)
        return lender_main(argv[2], argv[3], strcmp(argv[4], "gpu") == 0);
    static struct way ways[WAYS_MAX];
    static struct run runs[WAYS_MAX * NCASES];
    static struct CMUnitTest tests[WAYS_MAX * NCASES];
    static char names[WAYS_MAX * NCASES][160];
    ways_find(ways);
    size_t n = 0;
    for (struct way *w = ways; w->transport; w++) {
        if (argc == 1 && w->window)
            continue; /* test_conformance_windows.sh asks for them */
        for (size_t i = 0; i < (w->missing ? 1 : NCASES); i++) {
            snprintf(names[n], sizeof names[n], "%s: %s", w->name, w->missing ? "is usable" : cases[i].name);
            bool over = w->missing || (cases[i].over & (w->window ? WINDOW : POOL));
            if (!over || !wanted(names[n], argv + 1))
                continue;
            runs[n] = (struct run){.test = &cases[i], .way = w};
            tests[n] =
                (struct CMUnitTest){names[n], w->missing ? missing_way : run_case, NULL, NULL, &runs[n]};
            n++;
        }
    }
    if (n == 0) {
        print_message("SKIP: %s: no way that is usable here has this in its name\n", argv[1]);
        return 77;
    }
    return _cmocka_run_group_tests("conformance", tests, n, NULL, stop);
}
