/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hit tables: kernels read rows of objects in pools of this host, and never see bytes that a get would not
 * return. On the machine's GPU or the stand-in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include <tarn/table.h>

#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { ROWS = 600, ROOM = 8 << 20, LATER_MS = 4000 };

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu0:device=0,bytes=64M"}};
static const struct world_plan two_plan = {.nodes = 2, .args = {"--pool", "cpu0:bytes=16M"}};
static const struct world_plan refusing_plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=16M", "--when-cut-off", "refuse"}};
static const struct world_plan small_plan = {.nodes = 1, .args = {"--pool", "cpu0:bytes=1M"}};
static const struct world_plan peer_plan = {.nodes = 1, .args = {"--pool", "gpu1:device=1,bytes=64M"}};
static const char *self;

struct scene {
    struct world *w;
    struct tarn_client *client;
    struct device *device;
    struct stream *stream;
    struct tarn_table *table;
    /* of the device */
    uint32_t *rows;
    int32_t *status;
    uint8_t *to;
    /* of the host, what was last gathered */
    int32_t got[ROWS];
    uint8_t *bytes;
    unsigned seed;
};

static struct tarn_table *table_of(struct tarn_client *c, uint32_t npages)
{
    const struct tarn_table_options o = {.size = sizeof(o), .npages = npages, .timeout_ms = 20000};
    struct tarn_table *t = NULL;
    if (tarn_table_new(c, &o, &t))
        fail_msg("a table: %s", tarn_last_error());
    return t;
}

static int start_with(void **state, const struct world_plan *p)
{
    void *w;
    *state = NULL;
    if (!devices_there())
        return 0;
    struct scene *s = calloc(1, sizeof(*s));
    assert_int_equal(world_start(&w, p), 0);
    s->w = w;
    s->client = world_client(s->w, NULL);
    s->device = device_open(0);
    s->stream = stream_open(0);
    s->table = table_of(s->client, 300);
    s->rows = device_alloc(s->device, ROWS * sizeof(*s->rows));
    s->status = device_alloc(s->device, ROWS * sizeof(*s->status));
    s->to = device_alloc(s->device, ROOM);
    s->bytes = malloc(ROOM);
    s->seed = (unsigned)harness_now_ms();
    print_message("seed %u\n", s->seed);
    *state = s;
    return 0;
}

static int start(void **state)
{
    return start_with(state, &plan);
}

static int start_two(void **state)
{
    return start_with(state, &two_plan);
}

static int start_small(void **state)
{
    return start_with(state, &small_plan);
}

static int start_refusing(void **state)
{
    return start_with(state, &refusing_plan);
}

static int start_peer(void **state)
{
    return devices_there() < 2 ? start_with(state, &plan) : start_with(state, &peer_plan);
}

static int stop(void **state)
{
    struct scene *s = *state;
    if (!s)
        return 0;
    tarn_close(s->client); /* frees the table */
    stream_close(s->stream);
    device_drop(s->device, s->rows);
    device_drop(s->device, s->status);
    device_drop(s->device, s->to);
    device_close(s->device);
    free(s->bytes);
    void *w = s->w;
    free(s);
    return world_stop(&w);
}

static void need(void **state)
{
    if (!*state)
        devices_need(1);
}

/* --- rows --------------------------------------------------------------------------------------- */

static struct tarn_gather gather_of(const struct scene *s, uint32_t n, uint32_t row_bytes)
{
    return (struct tarn_gather){.size = sizeof(struct tarn_gather),
                                .row_bytes = row_bytes,
                                .rows = s->rows,
                                .n = n,
                                .to = s->to,
                                .stride = row_bytes,
                                .status = s->status};
}

/* Gathers the rows; their statuses and bytes are in s->got and s->bytes then. A kernel runs when the gather
 * is given: a driver that still had to load one would wait for it. */
static void gather(struct scene *s, const uint32_t *rows, const struct tarn_gather *g)
{
    device_write(s->device, s->rows, rows, g->n * sizeof(*rows));
    device_set(s->device, s->to, 0xee, (g->n - 1) * g->stride + g->row_bytes);
    device_set(s->device, s->status, 0x55, g->n * sizeof(*s->status));
    struct late *l = late_begin_spinning(s->stream);
    int rc = tarn_table_gather(s->table, g, stream_handle(s->stream));
    late_end(l);
    if (rc)
        fail_msg("a gather: %s", tarn_last_error());
    stream_settle(s->stream);
    late_free(l);
    device_read(s->device, s->got, s->status, g->n * sizeof(*s->status));
    device_read(s->device, s->bytes, s->to, (g->n - 1) * g->stride + g->row_bytes);
}

/* The status of row 0, which is the whole of page 0; on success all its bytes are equal to *byte_p. */
static int gather_one(struct scene *s, uint32_t bytes, char *byte_p)
{
    const uint32_t row = 0;
    const struct tarn_gather g = gather_of(s, 1, bytes);
    gather(s, &row, &g);
    for (uint32_t i = 1; s->got[0] == 0 && i < bytes; i++)
        if (s->bytes[i] != s->bytes[0])
            fail_msg("byte %u of a row is %#x, the first is %#x", i, s->bytes[i], s->bytes[0]);
    *byte_p = (char)s->bytes[0];
    return s->got[0];
}

static bool reads(struct scene *s, uint32_t bytes, char byte)
{
    char is;
    return gather_one(s, bytes, &is) == 0 && is == byte;
}

static bool ends_with(struct scene *s, uint32_t bytes, int status)
{
    char is;
    return gather_one(s, bytes, &is) == status;
}

static int set_one(struct scene *s, const char *key)
{
    const struct tarn_key k = key_of(key);
    int32_t status = 1;
    int rc = tarn_table_set(s->table, 0, &k, 1, NULL, 0, &status);
    assert_int_equal(rc, status);
    return rc;
}

/* --- what is read ------------------------------------------------------------------------------- */

/* What byte i of object number `object` is. */
static uint8_t byte_of(uint32_t object, uint64_t i)
{
    return (uint8_t)(object * 37 + i * 11 + i / 251 * 7);
}

static void put_objects(struct scene *s, uint32_t n, uint32_t bytes, const char *place)
{
    const struct tarn_put_options o = {.size = sizeof(o), .place = place, .flags = TARN_PUT_REPLACE};
    uint8_t *object = malloc(bytes);
    char names[300][16];
    struct tarn_key keys[300];
    int32_t statuses[300];
    for (uint32_t k = 0; k < n; k++) {
        snprintf(names[k], sizeof(names[k]), "object%u", k);
        for (uint32_t i = 0; i < bytes; i++)
            object[i] = byte_of(k, i);
        struct tarn_piece piece = {.addr = object, .bytes = bytes};
        struct tarn_item item = {
            .key = key_of(names[k]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
        assert_int_equal(tarn_put(s->client, &item, 1, &o), 0);
        keys[k] = key_of(names[k]);
    }
    if (tarn_table_set(s->table, 0, keys, n, NULL, 0, statuses))
        fail_msg("set: %s", tarn_last_error());
    for (uint32_t k = 0; k < n; k++)
        assert_int_equal(statuses[k], 0);
    free(object);
}

static uint32_t random_to(struct scene *s, uint32_t below)
{
    s->seed = s->seed * 1664525 + 1013904223;
    return (s->seed >> 8) % below;
}

/* Random rows of n objects, each of per_page rows of row_bytes bytes. */
static void check_rows(struct scene *s, uint32_t n, uint32_t per_page, uint32_t row_bytes, uint64_t offset,
                       uint32_t gap)
{
    uint32_t rows[ROWS] = {0}, most = ROOM / (row_bytes + gap), nrows = most < ROWS ? most : ROWS;
    struct tarn_gather g = gather_of(s, nrows, row_bytes);
    for (uint32_t i = 0; i < nrows; i++)
        rows[i] = random_to(s, n * per_page);
    g.stride = row_bytes + gap;
    g.rows_per_page = per_page;
    g.offset = offset;
    gather(s, rows, &g);
    for (uint32_t i = 0; i < nrows; i++) {
        const uint8_t *row = s->bytes + i * g.stride;
        assert_int_equal(s->got[i], 0);
        for (uint32_t k = 0; k < row_bytes; k++)
            if (row[k] !=
                byte_of(rows[i] / per_page, offset + (uint64_t)(rows[i] % per_page) * row_bytes + k))
                fail_msg("row %u (number %u), byte %u is wrong", i, rows[i], k);
        for (uint32_t k = row_bytes; k < g.stride && i + 1 < nrows; k++)
            assert_int_equal(row[k], 0xee);
    }
}

static void rows_of(struct scene *s, const char *place)
{
    static const struct {
        uint32_t per_page, row_bytes, offset, gap;
    } shapes[] = {{64, 576, 0, 0},    {64, 656, 0, 16},  {1, 1, 5, 3},         {100, 33, 7, 0},
                  {16, 4096, 0, 0},   {10, 4097, 1, 3},  {2, 32 * 1024, 0, 0}, {1, 65535, 1, 1},
                  {400, 4, 2, 2},     {40, 1000, 8, 24}, {3, 20000, 4, 0},     {1, 65536, 0, 0},
                  {1000, 16, 16, 16}, {50, 1296, 0, 112}};
    put_objects(s, 60, 65536, place);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_rows(s, 60, shapes[i].per_page, shapes[i].row_bytes, shapes[i].offset, shapes[i].gap);
}

static void rows_of_a_host_pool(void **state)
{
    need(state);
    rows_of(*state, "node0/cpu0");
}

static void rows_of_a_gpu_pool(void **state)
{
    need(state);
    rows_of(*state, "node0/gpu0");
}

static void rows_of_another_gpu(void **state)
{
    devices_need(2);
    rows_of(*state, NULL);
}

static void a_table_from_hits(void **state)
{
    need(state);
    struct scene *s = *state;
    const struct tarn_key keys[2] = {key_of("here"), key_of("not here")};
    struct tarn_hits *hits;
    int32_t statuses[2];
    assert_int_equal(client_put(s->client, "here", 'h', 4096, NULL), 0);
    assert_int_equal(tarn_lookup(s->client, keys, 2, NULL, &hits), 0);
    assert_int_equal(tarn_table_set(s->table, 0, keys, 1, hits, 0, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "2 hits for 1 keys"));
    assert_int_equal(tarn_table_set(s->table, 0, keys, 2, hits, 0, statuses), TARN_E_NOT_FOUND);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], TARN_E_NOT_FOUND);
    tarn_hits_free(hits);
    assert_true(reads(s, 4096, 'h'));
}

static void rows_outside(void **state)
{
    need(state);
    struct scene *s = *state;
    const uint32_t rows[] = {0, 299, 300, UINT32_MAX, 1};
    const uint32_t inner[] = {0, 7, 8, 9, 10};
    struct tarn_gather g = gather_of(s, 5, 1000);
    assert_int_equal(client_put(s->client, "k", 'k', 8191, NULL), 0);
    assert_int_equal(set_one(s, "k"), 0);
    gather(s, rows, &g);
    assert_int_equal(s->got[0], 0);
    assert_int_equal(s->got[1], TARN_E_NOT_FOUND);
    assert_int_equal(s->got[2], TARN_E_INVALID);
    assert_int_equal(s->got[3], TARN_E_INVALID);
    assert_int_equal(s->got[4], TARN_E_NOT_FOUND);
    for (uint32_t i = 1000; i < 5000; i++) /* nothing is written for those */
        assert_int_equal(s->bytes[i], 0xee);
    g.rows_per_page = 20;
    gather(s, inner, &g);
    assert_int_equal(s->got[1], 0);
    assert_int_equal(s->got[2], TARN_E_INVALID);
    g.offset = 192;
    gather(s, inner, &g);
    assert_int_equal(s->got[1], TARN_E_INVALID);
    g.offset = 191;
    gather(s, inner, &g);
    assert_int_equal(s->got[1], 0);
    g.offset = UINT64_MAX - 500;
    gather(s, inner, &g);
    assert_int_equal(s->got[0], TARN_E_INVALID);
    assert_int_equal(s->got[1], TARN_E_INVALID);
}

/* --- objects that come and go ------------------------------------------------------------------- */

static void an_object_that_comes_later(void **state)
{
    need(state);
    struct scene *s = *state;
    assert_true(ends_with(s, 4096, TARN_E_NOT_FOUND));
    assert_int_equal(set_one(s, "later"), TARN_E_NOT_FOUND);
    assert_true(ends_with(s, 4096, TARN_E_NOT_FOUND));
    assert_int_equal(client_put(s->client, "later", 'l', 4096, NULL), 0);
    HARNESS_UNTIL(reads(s, 4096, 'l'), LATER_MS);
}

static void a_replaced_object(void **state)
{
    need(state);
    struct scene *s = *state;
    assert_int_equal(client_put(s->client, "k", 'a', 4096, NULL), 0);
    assert_int_equal(set_one(s, "k"), 0);
    for (int i = 0; i < 50; i++) {
        char is, now = (char)('a' + i % 20);
        assert_int_equal(client_put(s->client, "k", now, 4096, &replacing), 0);
        int status = gather_one(s, 4096, &is);
        if (status == 0)
            assert_int_equal(is, now);
        else
            assert_int_equal(status, TARN_E_STALE);
        HARNESS_UNTIL(reads(s, 4096, now), LATER_MS);
    }
}

static void a_removed_object(void **state)
{
    need(state);
    struct scene *s = *state;
    const struct tarn_key k = key_of("k");
    assert_int_equal(client_put(s->client, "k", 'a', 4096, NULL), 0);
    assert_int_equal(set_one(s, "k"), 0);
    assert_true(reads(s, 4096, 'a'));
    assert_int_equal(tarn_remove(s->client, &k, 1, NULL, 0), 0);
    assert_false(reads(s, 4096, 'a'));
    HARNESS_UNTIL(ends_with(s, 4096, TARN_E_NOT_FOUND), LATER_MS);
}

/* The table's thread looks for the page's object, since a kernel has found it stale; meanwhile the page
 * becomes another object's. */
static void a_page_that_is_set_anew(void **state)
{
    need(state);
    struct scene *s = *state;
    char is;
    assert_int_equal(client_put(s->client, "a", 'a', 4096, NULL), 0);
    assert_int_equal(client_put(s->client, "b", 'b', 4096, NULL), 0);
    for (int i = 0; i < 150; i++) {
        const char *key = i % 2 ? "a" : "b", *other = i % 2 ? "b" : "a";
        assert_int_equal(client_put(s->client, other, *other, 4096, &replacing), 0);
        gather_one(s, 4096, &is); /* stale */
        harness_pause();
        assert_int_equal(set_one(s, key), 0);
        for (int again = 0; again < 4; again++) {
            int status = gather_one(s, 4096, &is);
            if (status == 0)
                assert_int_equal(is, *key);
            else
                assert_int_equal(status, TARN_E_STALE); /* the lease lapses now and then */
            harness_pause();
        }
    }
    assert_int_equal(tarn_table_set(s->table, 0, NULL, 1, NULL, 0, NULL), 0);
    assert_true(ends_with(s, 4096, TARN_E_NOT_FOUND));
}

/* Objects whose rows kernels read are the last to be evicted. */
static void use_is_told(void **state)
{
    need(state);
    struct scene *s = *state;
    char key[16], is;
    assert_int_equal(client_put(s->client, "used", 'u', 256 << 10, NULL), 0);
    assert_int_equal(set_one(s, "used"), 0);
    for (int i = 0; i < 12; i++) {
        uint64_t until = harness_now_ms() + 300;
        while (harness_now_ms() < until) /* the table's thread tells use every 100 ms */
            assert_true(reads(s, 256 << 10, 'u'));
        snprintf(key, sizeof(key), "other%d", i);
        assert_int_equal(client_put(s->client, key, 'o', 256 << 10, NULL), 0);
    }
    assert_int_equal(gather_one(s, 256 << 10, &is), 0);
    assert_int_equal(client_read(s->client, "other0", 256 << 10, 0, &is), TARN_E_NOT_FOUND);
}

/* --- while writers change everything ------------------------------------------------------------ */

enum { KEYS = 24, BYTES = 3000, STORM_MS = 3000 };

/* A writer's objects have one 32-bit number in all words, which grows. */
struct storm {
    struct scene *scene;
    _Atomic uint32_t least[KEYS], most[KEYS]; /* what a get that begins now may find */
    _Atomic bool stop;
    unsigned changes;
};

static void *storm_main(void *arg)
{
    struct storm *st = arg;
    struct tarn_client *c = world_client(st->scene->w, "shm,tcp");
    unsigned x = st->scene->seed ^ 0x5bd1e995;
    uint32_t words[BYTES / 4];
    while (!st->stop) {
        char name[16];
        x = x * 1664525 + 1013904223;
        uint32_t k = (x >> 8) % KEYS, v = atomic_fetch_add(&st->most[k], 1) + 1;
        snprintf(name, sizeof(name), "object%u", k);
        const struct tarn_key key = key_of(name);
        for (size_t i = 0; i < BYTES / 4; i++)
            words[i] = v;
        struct tarn_piece piece = {.addr = words, .bytes = BYTES};
        struct tarn_item item = {.key = key, .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
        if (x >> 28 == 0 ? tarn_remove(c, &key, 1, NULL, 0) : tarn_put(c, &item, 1, &replacing))
            continue; /* nothing is promised then */
        st->least[k] = x >> 28 == 0 ? v + 1 : v;
        st->changes++;
    }
    tarn_close(c);
    return NULL;
}

static void rows_while_writers_replace(void **state)
{
    need(state);
    struct scene *s = *state;
    struct storm st = {.scene = s};
    uint32_t rows[ROWS], least[ROWS], row_bytes = 100 * 4, per_page = BYTES / row_bytes;
    unsigned good = 0, stale = 0;
    pthread_t writer;
    struct tarn_gather g = gather_of(s, ROWS, row_bytes);
    put_objects(s, KEYS, BYTES, "node0/cpu0");
    for (uint32_t k = 0; k < KEYS; k++) {
        char name[16];
        uint32_t zeros[BYTES / 4] = {0};
        struct tarn_piece piece = {.addr = zeros, .bytes = BYTES};
        snprintf(name, sizeof(name), "object%u", k);
        struct tarn_item item = {
            .key = key_of(name), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
        assert_int_equal(tarn_put(s->client, &item, 1, &replacing), 0);
    }
    g.rows_per_page = per_page;
    assert_int_equal(pthread_create(&writer, NULL, storm_main, &st), 0);
    for (uint64_t end = harness_now_ms() + STORM_MS; harness_now_ms() < end;) {
        for (uint32_t i = 0; i < ROWS; i++) {
            rows[i] = random_to(s, KEYS * per_page);
            least[i] = st.least[rows[i] / per_page];
        }
        gather(s, rows, &g);
        for (uint32_t i = 0; i < ROWS; i++) {
            const uint32_t *words = (const uint32_t *)(const void *)(s->bytes + i * (size_t)row_bytes);
            good += s->got[i] == 0;
            stale += s->got[i] == TARN_E_STALE;
            for (uint32_t j = 1; s->got[i] == 0 && j < row_bytes / 4; j++)
                if (words[j] != words[0])
                    fail_msg("row %u: word %u is of version %u, the first of %u", rows[i], j, words[j],
                             words[0]);
            if (s->got[i] == 0 && (words[0] < least[i] || words[0] > st.most[rows[i] / per_page]))
                fail_msg("row %u: is of version %u: version %u had been put when the get began", rows[i],
                         words[0], least[i]);
        }
    }
    st.stop = true;
    pthread_join(writer, NULL);
    print_message("%u rows read, %u stale, %u changes\n", good, stale, st.changes);
    assert_true(good > 1000 && stale > 0 && st.changes > 20);
}

/* --- nodes that fail ---------------------------------------------------------------------------- */

static void another_copy_after_a_node_was_killed(void **state)
{
    need(state);
    struct scene *s = *state;
    assert_int_equal(client_put(s->client, "k", 'k', 4096, &twice), 0);
    assert_int_equal(set_one(s, "k"), 0);
    harness_kill(s->w->nodes[0]->process);
    HARNESS_UNTIL(reads(s, 4096, 'k'), LATER_MS);
    harness_kill(s->w->nodes[1]->process);
    HARNESS_UNTIL(!reads(s, 4096, 'k'), LATER_MS);
    for (int i = 0; i < 5; i++)
        assert_false(reads(s, 4096, 'k'));
}

/* The node cannot free the old value. The put waits until nobody reads it any more. */
static void a_paused_node_is_not_read_when_a_put_has_replaced(void **state)
{
    need(state);
    struct scene *s = *state;
    struct tarn_put_options o = {.size = sizeof(o), .place = "node0"};
    char is;
    assert_int_equal(client_put(s->client, "k", 'a', 4096, &o), 0);
    assert_int_equal(set_one(s, "k"), 0);
    assert_true(reads(s, 4096, 'a'));
    harness_signal(s->w->nodes[0]->process, SIGSTOP);
    struct tarn_client *other = world_client(s->w, "shm,tcp");
    o = (struct tarn_put_options){
        .size = sizeof(o), .place = "node1", .flags = TARN_PUT_REPLACE, .timeout_ms = 30000};
    assert_int_equal(client_put(other, "k", 'b', 4096, &o), 0);
    int status = gather_one(s, 4096, &is);
    assert_true(status || is == 'b');
    HARNESS_UNTIL(reads(s, 4096, 'b'), LATER_MS);
    harness_signal(s->w->nodes[0]->process, SIGCONT);
    tarn_close(other);
}

/* Nodes go on serving while Redis does not answer, and so do tables: a lease is renewed before its end. */
static void rows_while_redis_is_away(void **state)
{
    need(state);
    struct scene *s = *state;
    unsigned good = 0, bad = 0;
    char is;
    assert_int_equal(client_put(s->client, "k", 'k', 4096, NULL), 0);
    assert_int_equal(set_one(s, "k"), 0);
    harness_signal(s->w->redis->process, SIGSTOP);
    for (uint64_t end = harness_now_ms() + 5000; harness_now_ms() < end; harness_pause())
        if (gather_one(s, 4096, &is) == 0)
            good++;
        else
            bad++;
    harness_signal(s->w->redis->process, SIGCONT);
    print_message("%u gathers were good, %u not\n", good, bad);
    assert_true(bad * 50 < good); /* some, on a busy host */
    HARNESS_UNTIL(reads(s, 4096, 'k'), LATER_MS);
}

/* Nodes that serve nobody then. */
static void rows_that_are_refused_while_redis_is_away(void **state)
{
    need(state);
    struct scene *s = *state;
    assert_int_equal(client_put(s->client, "k", 'k', 4096, NULL), 0);
    assert_int_equal(set_one(s, "k"), 0);
    harness_signal(s->w->redis->process, SIGSTOP);
    HARNESS_UNTIL(!reads(s, 4096, 'k'), 20000);
    for (int i = 0; i < 100; i++, harness_pause())
        assert_false(reads(s, 4096, 'k'));
    harness_signal(s->w->redis->process, SIGCONT);
    HARNESS_UNTIL(reads(s, 4096, 'k'), 20000);
}

/* --- calls -------------------------------------------------------------------------------------- */

static void a_gpu_whose_kernels_cannot_be_made_ready(void **state)
{
    need(state);
    struct scene *s = *state;
    const struct tarn_table_options o = {.size = sizeof(o), .npages = 1};
    struct tarn_table *t;
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in's calls fail on demand");
    tarn_standin_fail("ready:1");
    assert_int_equal(tarn_table_new(s->client, &o, &t), TARN_E_SYSTEM);
    assert_int_equal(tarn_table_new(s->client, &o, &t), 0);
    tarn_standin_fail(NULL);
}

static void wrong_tables(void **state)
{
    need(state);
    struct scene *s = *state;
    struct tarn_table_options o = {.size = sizeof(o), .npages = 1, .device = devices_there()};
    const struct tarn_key k = key_of("k"), none = {"", 0};
    struct tarn_table *t;
    assert_int_equal(tarn_table_new(s->client, &o, &t), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "device"));
    o.device = -1;
    assert_int_equal(tarn_table_new(s->client, &o, &t), TARN_E_INVALID);
    o.device = 0;
    o.npages = 0;
    assert_int_equal(tarn_table_new(s->client, &o, &t), TARN_E_INVALID);
    o.npages = TARN_TABLE_PAGES_MAX + 1;
    assert_int_equal(tarn_table_new(s->client, &o, &t), TARN_E_INVALID);
    assert_int_equal(tarn_table_new(s->client, &o, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_table_new(NULL, &o, &t), TARN_E_INVALID);
    assert_int_equal(tarn_table_set(NULL, 0, &k, 1, NULL, 0, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_table_set(s->table, 300, &k, 1, NULL, 0, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "pages 0 to 299"));
    assert_int_equal(tarn_table_set(s->table, UINT32_MAX, &k, 2, NULL, 0, NULL), TARN_E_INVALID);
    assert_int_equal(tarn_table_set(s->table, 0, &none, 1, NULL, 0, NULL), TARN_E_INVALID);
    tarn_table_free(NULL);
}

static void wrong_gathers(void **state)
{
    need(state);
    struct scene *s = *state;
    const struct tarn_gather good = gather_of(s, 4, 64);
    uint32_t host[4] = {0};
    struct tarn_gather g = good;
    void *stream = stream_handle(s->stream);
    assert_int_equal(tarn_table_gather(NULL, &g, stream), TARN_E_INVALID);
    g.n = 0;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), 0);
    g = good;
    g.row_bytes = 0;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    g = good;
    g.stride = 63;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    g = good;
    g.rows = host;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "does not reach"));
    g = good;
    g.to = host;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    g = good;
    g.status = NULL;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    g = good;
    g.rows = (const uint32_t *)(const void *)((const char *)s->rows + 2);
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    g = good;
    g.to = s->to + ROOM - 4 * 64 + 1;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "255 from there on"));
    g = good;
    g.stride = UINT64_MAX / 2;
    assert_int_equal(tarn_table_gather(s->table, &g, stream), TARN_E_INVALID);
    assert_int_equal(tarn_table_gather(s->table, &good, stream), 0);
    stream_settle(s->stream);
}

static void tables_end_with_their_client(void **state)
{
    need(state);
    struct scene *s = *state;
    struct tarn_client *c = world_client(s->w, NULL);
    const struct tarn_key k = key_of("k");
    assert_int_equal(client_put(c, "k", 'k', 4096, NULL), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(tarn_table_set(table_of(c, 10), 3, &k, 1, NULL, 0, NULL), 0);
    tarn_table_free(table_of(c, 10));
    tarn_close(c);
}

/* --- GPUs that do not reach each other ---------------------------------------------------------- */

static void pools_out_of_reach(void **state)
{
    devices_need(2);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in's GPUs do not reach each other");
    struct scene *s = *state;
    const char *argv[] = {self, "--far", NULL};
    setenv("STANDIN_PEERS", "0", 1);
    struct harness_process *far = harness_spawn(s->w->h, "far", argv);
    unsetenv("STANDIN_PEERS");
    assert_int_equal(harness_wait(far, HARNESS_TIMEOUT_MS), 0);
}

static void a_pool_out_of_reach(void **state)
{
    struct scene *s = *state;
    assert_int_equal(client_put(s->client, "k", 'k', 4096, NULL), 0);
    assert_int_equal(set_one(s, "k"), TARN_E_NOT_REACHABLE);
    assert_true(ends_with(s, 4096, TARN_E_NOT_REACHABLE));
}

#define WITH(start_, name_) \
    { \
#name_, name_, start_, stop, NULL \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH(start, rows_of_a_host_pool),
        WITH(start, rows_of_a_gpu_pool),
        WITH(start_peer, rows_of_another_gpu),
        WITH(start, a_table_from_hits),
        WITH(start, rows_outside),
        WITH(start, an_object_that_comes_later),
        WITH(start, a_replaced_object),
        WITH(start, a_removed_object),
        WITH(start, a_page_that_is_set_anew),
        WITH(start_small, use_is_told),
        WITH(start, rows_while_writers_replace),
        WITH(start_two, another_copy_after_a_node_was_killed),
        WITH(start_two, a_paused_node_is_not_read_when_a_put_has_replaced),
        WITH(start, rows_while_redis_is_away),
        WITH(start_refusing, rows_that_are_refused_while_redis_is_away),
        WITH(start, a_gpu_whose_kernels_cannot_be_made_ready),
        WITH(start, wrong_tables),
        WITH(start, wrong_gathers),
        WITH(start, tables_end_with_their_client),
        WITH(start, pools_out_of_reach),
    };
    const struct CMUnitTest far[] = {WITH(start_peer, a_pool_out_of_reach)};
    self = argv[0];
    if (argc > 1)
        return cmocka_run_group_tests_name("tables, far", far, NULL, NULL);
    return cmocka_run_group_tests_name("tables", tests, NULL, NULL);
}
