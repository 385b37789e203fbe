/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paged tensors in GPU pools: thousands of pieces in an item, in any order, of any size, adjacent or apart,
 * in one allocation or many. Uses the machine's GPUs or the stand-in.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tests/device.h"
#include "tests/world.h"

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=256M", "--pool", "gpu0:device=0,bytes=256M"}};
static const char *const pools[] = {"node0/gpu0", "node0/cpu0"};

struct paged {
    struct world *w;
    struct device *device;
    uint64_t seed;
};

static int start(void **state)
{
    static struct paged p;
    if (devices_there() == 0)
        return 0;
    p = (struct paged){.seed = tarn_random64()};
    print_message("           seed %llu\n", (unsigned long long)p.seed);
    int rc = world_start_client((void **)&p.w, &plan);
    p.device = device_open(0);
    *state = &p;
    return rc;
}

static int stop(void **state)
{
    struct paged *p = *state;
    if (!p)
        return 0;
    device_close(p->device);
    return world_stop((void **)&p->w);
}

static struct paged *need(void **state)
{
    devices_need(1);
    return *state;
}

static uint64_t rnd(struct paged *p, uint64_t below)
{
    p->seed = p->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (p->seed >> 33) % below;
}

static uint8_t *random_bytes(struct paged *p, size_t bytes)
{
    uint8_t *out = malloc(bytes + 8);
    assert_non_null(out);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t x = (uint32_t)rnd(p, UINT32_MAX);
        memcpy(out + i, &x, sizeof x);
    }
    return out;
}

/* --- lists of pieces ---------------------------------------------------------------------------- */

/* Pieces of one allocation in device memory. Their offsets also hold in a host copy of the allocation. */
struct list {
    struct tarn_piece *pieces;
    uint32_t n;
    size_t bytes; /* of all pieces */
    uint8_t *there;
    size_t room; /* size of the allocation */
};

static struct list list_new(struct paged *p, uint32_t n, size_t room)
{
    struct list l = {.pieces = calloc(n, sizeof *l.pieces), .room = room};
    assert_non_null(l.pieces);
    l.there = device_alloc(p->device, room);
    return l;
}

static void list_free(struct paged *p, struct list *l)
{
    device_drop(p->device, l->there);
    free(l->pieces);
}

static void add(struct list *l, size_t at, size_t bytes, size_t stride, size_t count)
{
    assert_true(at + (count ? count - 1 : 0) * (stride ? stride : bytes) + bytes <= l->room);
    l->pieces[l->n++] =
        (struct tarn_piece){.addr = l->there + at, .bytes = bytes, .stride = stride, .count = count};
    l->bytes += bytes * (count ? count : 1);
}

static void shuffle(struct paged *p, struct list *l)
{
    for (uint32_t i = l->n; i > 1; i--) {
        uint32_t k = (uint32_t)rnd(p, i);
        struct tarn_piece t = l->pieces[i - 1];
        l->pieces[i - 1] = l->pieces[k];
        l->pieces[k] = t;
    }
}

/* Copies bytes between the pieces' places in `whole`, a host copy of the allocation, and a contiguous run. */
static void lay(const struct list *l, uint8_t *whole, uint8_t *run, bool to_run)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tarn_piece *q = &l->pieces[i];
        for (uint64_t k = 0; k < (q->count ? q->count : 1); k++, run += q->bytes) {
            uint8_t *at = whole + ((uint8_t *)q->addr - l->there) + k * (q->stride ? q->stride : q->bytes);
            if (to_run)
                memcpy(run, at, q->bytes);
            else
                memcpy(at, run, q->bytes);
        }
    }
}

static void same(const uint8_t *got, const uint8_t *want, size_t bytes, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("%s: byte %zu of %zu is %02x and ought to be %02x", what, i, bytes, got[i], want[i]);
}

static void must(int rc)
{
    if (rc)
        fail_msg("%s", tarn_last_error());
}

/* Puts the object from host memory and gets it into the pieces; no byte outside them may change. Then puts
 * it from the pieces and gets it into host memory. */
static void there_and_back(struct paged *p, const struct list *l, const char *pool)
{
    uint8_t *object = random_bytes(p, l->bytes), *back = calloc(1, l->bytes + 1);
    uint8_t *whole = random_bytes(p, l->room), *got = malloc(l->room);
    struct tarn_client *c = p->w->client;
    struct tarn_piece flat = {.addr = object, .bytes = l->bytes};
    struct tarn_item item = {
        .key = key_of("paged"), .pieces = &flat, .npieces = 1, .tensor = tarn_bytes(l->bytes)};
    struct tarn_put_options o = {.size = sizeof o, .place = pool, .flags = TARN_PUT_REPLACE};
    assert_true(back && got);
    device_write(p->device, l->there, whole, l->room);
    must(tarn_put(c, &item, 1, &o));
    item.pieces = l->pieces;
    item.npieces = l->n;
    must(tarn_get(c, &item, 1, NULL));
    lay(l, whole, object, false);
    device_read(p->device, got, l->there, l->room);
    same(got, whole, l->room, "get");
    free(whole);
    whole = random_bytes(p, l->room);
    device_write(p->device, l->there, whole, l->room);
    must(tarn_put(c, &item, 1, &o));
    flat.addr = back;
    item.pieces = &flat;
    item.npieces = 1;
    must(tarn_get(c, &item, 1, NULL));
    lay(l, whole, object, true);
    same(back, object, l->bytes, "put");
    free(object);
    free(back);
    free(whole);
    free(got);
}

/* --- tests -------------------------------------------------------------------------------------- */

/* More pieces than any list holds, each in its own page, in random order. */
static void many_pages(void **state)
{
    enum { N = 20000, PAGE = 1024 };
    struct paged *p = need(state);
    for (int k = 0; k < 2; k++) {
        struct list l = list_new(p, N, (size_t)N * PAGE);
        for (size_t i = 0; i < N; i++)
            add(&l, i * PAGE + rnd(p, 30), 700 + rnd(p, 290), 0, rnd(p, 2));
        shuffle(p, &l);
        there_and_back(p, &l, pools[k]);
        list_free(p, &l);
    }
    harness_passed(p->w->h);
}

/* Adjacent pieces are merged into one run, which may be split again. Sizes around the largest that a
 * launch takes, empty pieces between them, and one large enough for the copy engines. */
static void neighbours_and_large_ones(void **state)
{
    static const size_t sizes[] = {1,         65535, 65536, 65537, 0,    131072, 200000,
                                   17u << 20, 0,     3,     4096,  4096, 4096};
    enum { N = sizeof sizes / sizeof *sizes, GAPS = 2 };
    struct paged *p = need(state);
    for (int k = 0; k < 4; k++) {
        struct list l = list_new(p, N * 3, 64 * MIB);
        size_t at = 5;
        for (size_t i = 0; i < (size_t)N * 3; i++) {
            size_t bytes = sizes[i % N];
            if (i / N && bytes > MIB)
                bytes = 300000;
            add(&l, at, bytes, 0, 0);
            at += bytes + (k < GAPS ? 0 : 1 + rnd(p, 50));
        }
        if (k % 2)
            shuffle(p, &l);
        there_and_back(p, &l, pools[0]);
        list_free(p, &l);
    }
    harness_passed(p->w->h);
}

/* As the layers of a cache lie: pieces of many rows, apart, adjacent, and both. */
static void strided_pieces(void **state)
{
    struct paged *p = need(state);
    for (int k = 0; k < 2; k++) {
        struct list l = list_new(p, 64, 32 * MIB);
        size_t at = 0;
        for (int i = 0; i < 40; i++) {
            size_t bytes = 1 + rnd(p, 900), stride = rnd(p, 3) ? bytes + rnd(p, 100) : 0,
                   count = 1 + rnd(p, 700);
            if (at + (stride ? stride : bytes) * count + bytes > l.room)
                break;
            add(&l, at, bytes, stride, count);
            at += (stride ? stride : bytes) * count + rnd(p, 2);
        }
        shuffle(p, &l);
        there_and_back(p, &l, pools[k]);
        list_free(p, &l);
    }
    harness_passed(p->w->h);
}

/* Ranges of an object, and several items in one call, each with its own pieces. */
static void ranges_of_many_items(void **state)
{
    enum { ITEMS = 40, PIECES = 60, BYTES = 3000, OBJECT = 4 * MIB };
    struct paged *p = need(state);
    struct list l = list_new(p, ITEMS * PIECES, (size_t)ITEMS * PIECES * 4096);
    uint8_t *object = random_bytes(p, OBJECT), *got = malloc(l.room);
    struct tarn_piece flat = {.addr = object, .bytes = OBJECT};
    struct tarn_item put = {
        .key = key_of("big"), .pieces = &flat, .npieces = 1, .tensor = tarn_bytes(OBJECT)};
    struct tarn_put_options o = {.size = sizeof o, .place = pools[0], .flags = TARN_PUT_REPLACE};
    struct tarn_get_options go = {.size = sizeof go, .flags = TARN_GET_RANGE};
    struct tarn_item items[ITEMS];
    must(tarn_put(p->w->client, &put, 1, &o));
    for (size_t i = 0; i < (size_t)ITEMS * PIECES; i++)
        add(&l, i * 4096 + i % 16, BYTES, 0, 1);
    shuffle(p, &l);
    for (size_t i = 0; i < ITEMS; i++)
        items[i] = (struct tarn_item){.key = key_of("big"),
                                      .pieces = l.pieces + i * PIECES,
                                      .npieces = PIECES,
                                      .offset = rnd(p, OBJECT - PIECES * BYTES)};
    must(tarn_get(p->w->client, items, ITEMS, &go));
    device_read(p->device, got, l.there, l.room);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t k = 0; k < PIECES; k++)
            same(got + ((uint8_t *)items[i].pieces[k].addr - l.there), object + items[i].offset + k * BYTES,
                 BYTES, "a range");
    list_free(p, &l);
    free(object);
    free(got);
    harness_passed(p->w->h);
}

/* Each layer is an allocation, and each block has a piece in every layer: more allocations than are
 * cached. */
static void pieces_in_many_allocations(void **state)
{
    enum { LAYERS = 150, BLOCKS = 20, BYTES = 5000, N = LAYERS * BLOCKS };
    struct paged *p = need(state);
    uint8_t *layers[LAYERS], *object = random_bytes(p, N * BYTES), got[BLOCKS * BYTES];
    struct tarn_piece pieces[N], flat = {.addr = object, .bytes = N * BYTES};
    struct tarn_item item = {
        .key = key_of("layers"), .pieces = &flat, .npieces = 1, .tensor = tarn_bytes(N * BYTES)};
    struct tarn_put_options o = {.size = sizeof o, .place = pools[0], .flags = TARN_PUT_REPLACE};
    must(tarn_put(p->w->client, &item, 1, &o));
    for (int i = 0; i < LAYERS; i++)
        layers[i] = device_alloc(p->device, BLOCKS * BYTES);
    for (int i = 0; i < N; i++)
        pieces[i] = (struct tarn_piece){.addr = layers[i % LAYERS] + i / LAYERS * BYTES, .bytes = BYTES};
    item.pieces = pieces;
    item.npieces = N;
    must(tarn_get(p->w->client, &item, 1, NULL));
    for (int i = 0; i < LAYERS; i++) {
        device_read(p->device, got, layers[i], sizeof got);
        for (int k = 0; k < BLOCKS; k++)
            same(got + k * BYTES, object + (k * LAYERS + i) * BYTES, BYTES, "a block of a layer");
    }
    for (int i = 0; i < LAYERS; i++)
        device_drop(p->device, layers[i]);
    free(object);
    harness_passed(p->w->h);
}

/* One bad piece among thousands. The error names it, and no byte outside the pieces changes. */
static void a_bad_piece_among_many_is_refused(void **state)
{
    enum { N = 3000, BYTES = 64 };
    struct paged *p = need(state);
    static uint8_t here[N * BYTES];
    struct list l = list_new(p, N, (size_t)N * BYTES * 2);
    struct tarn_piece flat = {.addr = here, .bytes = N * BYTES};
    struct tarn_item item = {
        .key = key_of("bad"), .pieces = &flat, .npieces = 1, .tensor = tarn_bytes(N * BYTES)};
    struct tarn_put_options o = {.size = sizeof o, .place = pools[0], .flags = TARN_PUT_REPLACE};
    uint8_t *got = malloc(l.room);
    assert_non_null(got);
    memset(here, 1, sizeof here);
    must(tarn_put(p->w->client, &item, 1, &o));
    for (size_t i = 0; i < N; i++)
        add(&l, i * BYTES * 2, BYTES, 0, 0);
    item.pieces = l.pieces;
    item.npieces = N;
    l.pieces[N - 5].addr = NULL;
    assert_int_equal(tarn_get(p->w->client, &item, 1, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 2995 has no address"));
    l.pieces[N - 5].addr = here;
    assert_int_equal(tarn_get(p->w->client, &item, 1, NULL), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 2995 at "));
    l.pieces[N - 5].addr = l.there + l.room - BYTES;
    l.pieces[N - 1].bytes = BYTES + 1;
    assert_int_equal(tarn_get(p->w->client, &item, 1, NULL), TARN_E_SIZE);
    device_read(p->device, got, l.there, l.room);
    for (size_t i = 0; i < l.room - BYTES; i++)
        assert_true(got[i] == 0 || (got[i] == 1 && i / BYTES % 2 == 0));
    for (size_t i = 0; i < sizeof here; i++)
        assert_int_equal(here[i], 1);
    l.pieces[N - 1] = (struct tarn_piece){.addr = l.there + BYTES, .bytes = BYTES};
    must(tarn_get(p->w->client, &item, 1, NULL));
    list_free(p, &l);
    free(got);
    harness_passed(p->w->h);
}

/* The same for puts. The reservation then accepts the right pieces. */
static void a_bad_piece_of_a_put_is_refused(void **state)
{
    enum { N = 3000, BYTES = 64 };
    struct paged *p = need(state);
    static uint8_t here[BYTES], got[N * BYTES];
    struct list l = list_new(p, N, (size_t)N * BYTES * 2);
    struct tarn_piece flat = {.addr = got, .bytes = sizeof got};
    struct tarn_item item = {.key = key_of("bad put"), .npieces = N, .tensor = tarn_bytes(sizeof got)};
    struct tarn_put_options o = {.size = sizeof o, .place = pools[0], .flags = TARN_PUT_REPLACE};
    struct tarn_put_session *s;
    for (size_t i = 0; i < N; i++)
        add(&l, i * BYTES * 2, BYTES, 0, 0);
    item.pieces = l.pieces;
    void *before = l.pieces[N - 5].addr;
    l.pieces[N - 5].addr = here;
    assert_int_equal(tarn_put(p->w->client, &item, 1, &o), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "piece 2995 at "));
    l.pieces[N - 5].addr = before;
    must(tarn_put_begin(p->w->client, &item, 1, &o, &s));
    l.pieces[N - 1].bytes++;
    assert_int_equal(tarn_put_write(s, 0, 0, l.pieces, N, 10000), TARN_E_SIZE);
    assert_non_null(strstr(tarn_last_error(), "192001 bytes at 0 reach past the tensor's 192000"));
    l.pieces[N - 1].bytes--;
    assert_int_equal(tarn_put_write(s, 0, BYTES, l.pieces, N, 10000), TARN_E_SIZE);
    assert_int_equal(tarn_put_write(s, 0, sizeof got, l.pieces, N, 10000), TARN_E_SIZE);
    must(tarn_put_write(s, 0, 0, l.pieces, N - 7, 10000));
    must(tarn_put_write(s, 0, (N - 7) * BYTES, l.pieces + N - 7, 7, 10000));
    must(tarn_put_commit(s, NULL, 10000));
    item.pieces = &flat;
    item.npieces = 1;
    must(tarn_get(p->w->client, &item, 1, NULL));
    uint8_t *all = malloc(l.room);
    assert_non_null(all);
    device_read(p->device, all, l.there, l.room);
    for (size_t i = 0; i < N; i++)
        same(got + i * BYTES, all + i * BYTES * 2, BYTES, "a piece");
    free(all);
    list_free(p, &l);
    harness_passed(p->w->h);
}

#define TEST(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_pages),
        TEST(neighbours_and_large_ones),
        TEST(strided_pieces),
        TEST(ranges_of_many_items),
        TEST(pieces_in_many_allocations),
        TEST(a_bad_piece_among_many_is_refused),
        TEST(a_bad_piece_of_a_put_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
