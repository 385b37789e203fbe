/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts: what is put by page numbers is got by pieces, and the other way round, and no byte beside the
 * named pages changes. Over host memory (shm, tcp), and over GPU memory (the machine's GPU or the stand-in),
 * where the GPU computes the addresses or, with STANDIN_PEERS=0, gets pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>

#include <tarn/layout.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"
#include "transport/layout.h"

enum { ROOM = 8 << 20, PAGES_MOST = 40, ITEMS_MOST = 40, ROUNDS = 60 };

static const struct world_plan host_plan = {.nodes = 1, .args = {"--pool", "cpu0:bytes=256M"}};
static const struct world_plan gpu_plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=256M", "--pool", "gpu0:device=0,bytes=256M"}};
static const struct world_plan far_plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=64M", "--pool", "gpu1:device=1,bytes=256M"}};
static const char *self;

/* A paged buffer, and what its bytes should be. */
struct paged {
    struct world *w;
    struct tarn_client *client;
    struct device *device; /* NULL: host memory */
    const char *place;
    bool faulty;             /* calls may fail, and are made again */
    uint8_t *memory, *model; /* ROOM bytes */
    uint8_t *other;          /* ROOM bytes beside it, in the same memory */
    uint64_t x;              /* random */
    /* the layout */
    struct tarn_layout *layout;
    uint32_t nbases, npages;
    uint64_t page_bytes, stride, base[512]; /* base: offsets in `memory` */
};

static uint64_t random_to(struct paged *p, uint64_t below)
{
    p->x = p->x * 6364136223846793005u + 1442695040888963407u;
    return (p->x >> 33) % below;
}

static void fill(struct paged *p, uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)random_to(p, 256);
}

static int start_faulty(void **state, const struct world_plan *plan, const char *transports, bool gpu,
                        const char *place, const char *faults)
{
    void *w;
    *state = NULL;
    if (gpu && !devices_there())
        return 0;
    struct paged *p = calloc(1, sizeof(*p));
    assert_int_equal(world_start(&w, plan), 0);
    p->w = w;
    p->client =
        faults ? client_open_faulty(p->w->redis->url, (struct tarn_options){.transports = transports}, faults)
               : world_client(p->w, transports);
    p->faulty = faults;
    p->device = gpu ? device_open(0) : NULL;
    p->place = place;
    p->memory = device_alloc(p->device, ROOM);
    p->other = device_alloc(p->device, ROOM);
    p->model = malloc(ROOM);
    p->x = harness_now_ms() | 1;
    print_message("seed %llu\n", (unsigned long long)p->x);
    fill(p, p->model, ROOM);
    device_write(p->device, p->memory, p->model, ROOM);
    *state = p;
    return 0;
}

static int start_with(void **state, const struct world_plan *plan, const char *transports, bool gpu,
                      const char *place)
{
    return start_faulty(state, plan, transports, gpu, place, NULL);
}

#define FAULTS "error=0.1,stale=0.1,lose=0.1,refuse=0.1"

static int start_shm_faulty(void **state)
{
    return start_faulty(state, &host_plan, "shm", false, NULL, "shm:" FAULTS);
}

static int start_tcp_faulty(void **state)
{
    return start_faulty(state, &host_plan, "tcp", false, NULL, "tcp:" FAULTS);
}

static int start_gpu_faulty(void **state)
{
    return start_faulty(state, &gpu_plan, "cuda_ipc", true, "node0/gpu0", "cuda_ipc:" FAULTS);
}

static int start_shm(void **state)
{
    return start_with(state, &host_plan, "shm", false, NULL);
}

static int start_tcp(void **state)
{
    return start_with(state, &host_plan, "tcp", false, NULL);
}

static int start_gpu(void **state)
{
    return start_with(state, &gpu_plan, "cuda_ipc", true, "node0/gpu0");
}

static int start_gpu_host_pool(void **state)
{
    return start_with(state, &gpu_plan, NULL, true, "node0/cpu0");
}

static int start_gpu_tcp(void **state)
{
    return start_with(state, &gpu_plan, "tcp", true, "node0/gpu0");
}

static int stop(void **state)
{
    struct paged *p = *state;
    if (!p)
        return 0;
    tarn_close(p->client);
    tarn_layout_free(p->layout);
    device_drop(p->device, p->memory);
    device_drop(p->device, p->other);
    device_close(p->device);
    free(p->model);
    void *w = p->w;
    free(p);
    return world_stop(&w);
}

static void need(void **state)
{
    if (!*state)
        devices_need(1);
}

/* --- layouts ------------------------------------------------------------------------------------ */

static struct tarn_layout_options options_of(const struct paged *p, void **bases)
{
    for (uint32_t i = 0; i < p->nbases; i++)
        bases[i] = p->memory + p->base[i];
    return (struct tarn_layout_options){.size = sizeof(struct tarn_layout_options),
                                        .bases = bases,
                                        .nbases = p->nbases,
                                        .page_bytes = p->page_bytes,
                                        .stride = p->stride,
                                        .npages = p->npages};
}

/* Arrays one after the other, in any order, or (interleaved) page by page. */
static void make(struct paged *p, uint32_t nbases, uint64_t page_bytes, bool interleaved)
{
    uint64_t gap = random_to(p, 3) * random_to(p, 100), each = ROOM / nbases;
    void *bases[512];
    tarn_layout_free(p->layout);
    p->nbases = nbases;
    p->page_bytes = page_bytes;
    p->stride = interleaved ? nbases * page_bytes + gap : page_bytes + gap;
    p->npages = (uint32_t)((interleaved ? ROOM : each) / p->stride);
    assert_true(p->npages > 0);
    for (uint32_t i = 0; i < nbases; i++)
        p->base[i] = interleaved ? i * page_bytes : (nbases - 1 - i) * each;
    struct tarn_layout_options o = options_of(p, bases);
    if (tarn_layout_new(&o, &p->layout))
        fail_msg("layout: %s", tarn_last_error());
}

static void choose(struct paged *p, uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool again = true;
        while (again) {
            pages[i] = (uint32_t)random_to(p, p->npages);
            again = false;
            for (uint32_t k = 0; k < i; k++)
                again |= pages[k] == pages[i];
        }
    }
}

static uint64_t page_at(const struct paged *p, uint32_t base, uint32_t page)
{
    return p->base[base] + page * p->stride;
}

/* Copies between the model and the bytes of an object. */
static void model_move(struct paged *p, const uint32_t *pages, uint32_t n, uint8_t *object, bool to_object)
{
    for (uint32_t b = 0; b < p->nbases; b++)
        for (uint32_t i = 0; i < n; i++, object += p->page_bytes) {
            uint8_t *at = p->model + page_at(p, b, pages[i]);
            memcpy(to_object ? object : at, to_object ? at : object, p->page_bytes);
        }
}

static void assert_as_model(struct paged *p)
{
    uint8_t *now = malloc(ROOM);
    device_read(p->device, now, p->memory, ROOM);
    assert_memory_equal(now, p->model, ROOM);
    free(now);
}

/* --- round trips -------------------------------------------------------------------------------- */

/* Several items of one call: each names pages of its own. */
struct batch {
    uint32_t n, pages[ITEMS_MOST * PAGES_MOST];
    char keys[ITEMS_MOST][24];
    struct tarn_piece pieces[ITEMS_MOST];
    struct tarn_item by_page[ITEMS_MOST], by_piece[ITEMS_MOST];
    uint64_t bytes; /* of all, one after the other in `other` */
};

static void make_batch(struct paged *p, struct batch *b)
{
    uint32_t left = p->npages < ITEMS_MOST * PAGES_MOST ? p->npages : ITEMS_MOST * PAGES_MOST;
    uint64_t each = p->nbases * p->page_bytes;
    uint32_t most = (uint32_t)(ROOM / each);
    left = left < most ? left : most;
    choose(p, b->pages, left);
    b->n = 1 + (uint32_t)random_to(p, ITEMS_MOST);
    b->bytes = 0;
    for (uint32_t i = 0, at = 0; i < b->n; i++) {
        uint32_t n = (uint32_t)random_to(p, PAGES_MOST + 1);
        n = n < left - at ? n : left - at;
        snprintf(b->keys[i], sizeof(b->keys[i]), "k%u", i);
        b->pieces[i] = (struct tarn_piece){.addr = p->other + b->bytes, .bytes = n * each};
        b->by_piece[i] = (struct tarn_item){
            .key = key_of(b->keys[i]), .pieces = &b->pieces[i], .npieces = 1, .tensor = tarn_bytes(n * each)};
        b->by_page[i] = (struct tarn_item){.key = key_of(b->keys[i]),
                                           .layout = p->layout,
                                           .pages = b->pages + at,
                                           .npieces = n,
                                           .tensor = tarn_bytes(n * each)};
        at += n;
        b->bytes += n * each;
    }
}

/* Puts or gets items. Those that a fault has hit are tried again, each by itself. */
static int put_or_get(const struct paged *p, bool put, struct tarn_item *items, uint32_t n)
{
    const struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .place = p->place};
    int rc = put ? tarn_put(p->client, items, n, &o) : tarn_get(p->client, items, n, NULL);
    if (!rc || !p->faulty)
        return rc;
    rc = 0;
    for (uint32_t i = 0; !rc && i < n; i++)
        for (int tries = 0; (rc = items[i].status) != 0 && tries < 100; tries++)
            put ? tarn_put(p->client, &items[i], 1, &o) : tarn_get(p->client, &items[i], 1, NULL);
    return rc;
}

static void put_all(const struct paged *p, struct tarn_item *items, uint32_t n)
{
    if (put_or_get(p, true, items, n))
        fail_msg("put: %s", tarn_last_error());
}

static void get_all(const struct paged *p, struct tarn_item *items, uint32_t n)
{
    if (put_or_get(p, false, items, n))
        fail_msg("get: %s", tarn_last_error());
}

static void by_pages_and_by_pieces(void **state)
{
    static const uint32_t nbases[] = {1, 2, 7, 64, 256, 300};
    static const uint64_t page_bytes[] = {1, 24, 576, 656, 4096, 20000, 70000};
    need(state);
    struct paged *p = *state;
    struct batch *b = malloc(sizeof(*b));
    uint8_t *objects = malloc(ROOM);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n = nbases[random_to(p, 6)];
        uint64_t bytes = page_bytes[random_to(p, 7)];
        if (n * (bytes + 200) > ROOM)
            continue;
        make(p, n, bytes, random_to(p, 2));
        make_batch(p, b);
        put_all(p, b->by_page, b->n);
        device_set(p->device, p->other, 0xee, ROOM);
        get_all(p, b->by_piece, b->n);
        device_read(p->device, objects, p->other, b->bytes);
        uint8_t *want = malloc(b->bytes + 1);
        uint64_t at = 0;
        for (uint32_t k = 0; k < b->n; at += b->by_page[k++].tensor.bytes)
            model_move(p, b->by_page[k].pages, b->by_page[k].npieces, want + at, true);
        assert_memory_equal(objects, want, b->bytes);
        free(want);
        fill(p, objects, b->bytes);
        device_write(p->device, p->other, objects, b->bytes);
        put_all(p, b->by_piece, b->n);
        get_all(p, b->by_page, b->n);
        at = 0;
        for (uint32_t k = 0; k < b->n; at += b->by_page[k++].tensor.bytes)
            model_move(p, b->by_page[k].pages, b->by_page[k].npieces, objects + at, false);
        assert_as_model(p);
    }
    free(objects);
    free(b);
}

/* Items with and without layouts in one submitted get. */
static void beside_items_with_pieces(void **state)
{
    need(state);
    struct paged *p = *state;
    struct batch *b = malloc(sizeof(*b));
    uint8_t *objects = malloc(ROOM), *want = malloc(ROOM);
    struct tarn_item items[ITEMS_MOST];
    struct tarn_completion done;
    tarn_op op;
    make(p, 16, 4096, false);
    make_batch(p, b);
    put_all(p, b->by_page, b->n);
    device_set(p->device, p->other, 0xee, ROOM);
    for (uint32_t i = 0; i < b->n; i++)
        items[i] = i % 2 ? b->by_piece[i] : b->by_page[i];
    assert_int_equal(tarn_submit_get(p->client, items, b->n, NULL, 7, &op), 0);
    assert_int_equal(tarn_wait(p->client, op, 0, &done), 0);
    assert_int_equal(done.status, 0);
    assert_as_model(p);
    device_read(p->device, objects, p->other, b->bytes);
    memset(want, 0xee, ROOM);
    for (uint64_t i = 0, at = 0; i < b->n; at += b->by_page[i++].tensor.bytes)
        if (i % 2)
            model_move(p, b->by_page[i].pages, b->by_page[i].npieces, want + at, true);
    assert_memory_equal(objects, want, b->bytes);
    free(want);
    free(objects);
    free(b);
}

/* Items of one call have pages of different layouts, so they cannot share a list. */
static void two_layouts_in_one_call(void **state)
{
    need(state);
    struct paged *p = *state;
    uint32_t numbers[32];
    struct tarn_item items[32];
    char keys[32][8];
    uint8_t *want = malloc(32 * 4096);
    make(p, 8, 256, false);
    struct tarn_layout *first = p->layout;
    p->layout = NULL;
    for (int i = 0; i < 32; i++) {
        if (i == 1)
            make(p, 2, 1024, true);
        numbers[i] = (uint32_t)i;
        snprintf(keys[i], sizeof(keys[i]), "%d", i);
        items[i] = (struct tarn_item){.key = key_of(keys[i]),
                                      .layout = i % 2 ? p->layout : first,
                                      .pages = &numbers[i],
                                      .npieces = 1,
                                      .tensor = tarn_bytes(2048)};
    }
    put_all(p, items, 32);
    for (int i = 0; i < 32; i++) {
        struct tarn_piece piece = {.addr = p->other + i * 2048, .bytes = 2048};
        struct tarn_item item = {.key = key_of(keys[i]), .pieces = &piece, .npieces = 1};
        get_all(p, &item, 1);
    }
    device_read(p->device, want, p->other, 32 * 2048);
    for (int i = 0; i < 32; i++) {
        uint8_t object[2048];
        if (i % 2)
            model_move(p, &numbers[i], 1, object, true);
        for (uint64_t b = 0; i % 2 == 0 && b < 8; b++)
            memcpy(object + b * 256, p->model + (7 - b) * (ROOM / 8) + first->buffer.stride * (uint64_t)i,
                   256);
        assert_memory_equal(want + i * 2048, object, 2048);
    }
    get_all(p, items, 32);
    assert_as_model(p);
    tarn_layout_free(first);
    free(want);
}

/* A range of an object into pages. */
static void ranges(void **state)
{
    need(state);
    struct paged *p = *state;
    const struct tarn_get_options range = {.size = sizeof(range), .flags = TARN_GET_RANGE};
    uint8_t *object = malloc(1 << 20);
    uint32_t pages[5];
    make(p, 3, 1000, false);
    fill(p, object, 1 << 20);
    device_write(p->device, p->other, object, 1 << 20);
    assert_int_equal(piece_put(p->client, "long", p->other, 1 << 20, p->place), 0);
    choose(p, pages, 5);
    struct tarn_item item = {
        .key = key_of("long"), .layout = p->layout, .pages = pages, .npieces = 5, .offset = 12345};
    assert_int_equal(tarn_get(p->client, &item, 1, &range), 0);
    model_move(p, pages, 5, object + 12345, false);
    assert_as_model(p);
    item.offset = (1 << 20) - 14999;
    assert_int_equal(tarn_get(p->client, &item, 1, &range), TARN_E_SIZE);
    item.offset = 0;
    assert_int_equal(tarn_get(p->client, &item, 1, NULL), TARN_E_SIZE);
    assert_int_equal(item.tensor.bytes, 1 << 20);
    assert_as_model(p);
    free(object);
}

/* A session writes pages three times, one part of the object after the other. */
static void layer_by_layer(void **state)
{
    need(state);
    struct paged *p = *state;
    const struct tarn_put_options o = {.size = sizeof(o), .place = p->place};
    uint32_t pages[13], n = 13, bytes = 13 * 5 * 3000;
    uint8_t *want = malloc(3 * bytes), *object = malloc(3 * bytes);
    struct tarn_put_session *s;
    make(p, 5, 3000, false);
    choose(p, pages, n);
    struct tarn_item item = {.key = key_of("layers"), .tensor = tarn_bytes(3 * bytes)};
    assert_int_equal(tarn_put_begin(p->client, &item, 1, &o, &s), 0);
    for (uint32_t i = 0; i < 3; i++) {
        choose(p, pages, n);
        model_move(p, pages, n, want + i * bytes, true);
        if (tarn_put_write_pages(s, 0, i * bytes, p->layout, pages, n, 0))
            fail_msg("write: %s", tarn_last_error());
    }
    assert_int_equal(tarn_put_write_pages(s, 0, 2 * bytes + 1, p->layout, pages, n, 0), TARN_E_SIZE);
    assert_int_equal(tarn_put_write_pages(s, 0, 0, NULL, pages, n, 0), TARN_E_INVALID);
    assert_int_equal(tarn_put_write_pages(NULL, 0, 0, p->layout, pages, n, 0), TARN_E_INVALID);
    assert_int_equal(tarn_put_write_pages(s, 1, 0, p->layout, pages, n, 0), TARN_E_INVALID);
    pages[12] = p->npages;
    assert_int_equal(tarn_put_write_pages(s, 0, 0, p->layout, pages, n, 0), TARN_E_INVALID);
    assert_int_equal(tarn_put_commit(s, NULL, 0), 0);
    device_set(p->device, p->other, 0xee, ROOM);
    assert_int_equal(piece_get(p->client, "layers", p->other, 3 * bytes), 0);
    device_read(p->device, object, p->other, 3 * bytes);
    assert_memory_equal(object, want, 3 * bytes);
    free(object);
    free(want);
}

/* --- wrong uses --------------------------------------------------------------------------------- */

static void refused(const struct tarn_layout_options *o, const char *why)
{
    struct tarn_layout *l = NULL;
    assert_int_equal(tarn_layout_new(o, &l), TARN_E_INVALID);
    assert_null(l);
    if (!strstr(tarn_last_error(), why))
        fail_msg("\"%s\" is not in \"%s\"", why, tarn_last_error());
}

static void wrong_layouts(void **state)
{
    need(state);
    struct paged *p = *state;
    void *bases[512];
    p->nbases = 4;
    p->page_bytes = 4096;
    p->stride = 4096;
    p->npages = 16;
    for (uint32_t i = 0; i < 4; i++)
        p->base[i] = i * 65536;
    const struct tarn_layout_options good = options_of(p, bases);
    struct tarn_layout_options o = good;
    refused(NULL, "bases");
    assert_int_equal(tarn_layout_new(&good, NULL), TARN_E_INVALID);
    o.size = 3;
    refused(&o, "size");
    o = good, o.nbases = 0;
    refused(&o, "0 bases");
    o = good, o.nbases = TARN_LAYOUT_BASES_MAX + 1;
    refused(&o, "4097 bases");
    o = good, o.bases = NULL;
    refused(&o, "0 bases");
    o = good, o.page_bytes = 0;
    refused(&o, "0 bytes");
    o = good, o.page_bytes = 1ull << 29;
    refused(&o, "1 GiB");
    o = good, o.page_bytes = UINT64_MAX;
    refused(&o, "1 GiB");
    o = good, o.stride = 4095;
    refused(&o, "overlap");
    o = good, o.npages = 0;
    refused(&o, "0 pages");
    o = good, o.npages = (1ull << 32) + 1;
    refused(&o, "2^32");
    o = good, o.npages = 1ull << 32, o.stride = 1ull << 40;
    refused(&o, "base 0");
    bases[2] = NULL;
    refused(&good, "base 2");
    tarn_layout_free(NULL);
}

static void wrong_pages(void **state)
{
    need(state);
    struct paged *p = *state;
    make(p, 4, 4096, false);
    uint32_t pages[3] = {0, p->npages, 1};
    struct tarn_item item = {.key = key_of("k"),
                             .layout = p->layout,
                             .pages = pages,
                             .npieces = 3,
                             .tensor = tarn_bytes(3 * 4 * 4096)};
    for (int i = 0; i < 3; i++) {
        item.pages = i == 1 ? NULL : pages;
        pages[1] = i == 2 ? UINT32_MAX : p->npages;
        assert_int_equal(tarn_put(p->client, &item, 1, NULL), TARN_E_INVALID);
        assert_non_null(strstr(tarn_last_error(), i == 1 ? "NULL" : "page 1"));
        assert_int_equal(tarn_get(p->client, &item, 1, NULL), TARN_E_INVALID);
        assert_int_equal(item.status, TARN_E_INVALID);
    }
    pages[1] = 2;
    item.pages = pages;
    item.tensor = tarn_bytes(3 * 4 * 4096 - 1);
    assert_int_equal(tarn_put(p->client, &item, 1, NULL), TARN_E_INVALID);
    item.tensor = tarn_bytes(0);
    item.npieces = 0;
    item.pages = NULL;
    assert_int_equal(tarn_put(p->client, &item, 1, NULL), 0);
    assert_int_equal(tarn_get(p->client, &item, 1, NULL), 0);
    assert_as_model(p);
}

/* Many pages are looked at together. */
static void a_wrong_page_among_many(void **state)
{
    enum { MANY = 300 };
    static const uint64_t sizes[] = {1, 5, 1ull << 31, (1ull << 31) + 1, 1ull << 32};
    static const uint32_t wrong[] = {1, 5, 1u << 31, (1u << 31) + 1, UINT32_MAX};
    uint32_t pages[MANY];
    char text[32];
    (void)state;
    for (size_t s = 0; s < 5; s++) {
        const struct tarn_layout l = {.npages = sizes[s]};
        for (uint32_t i = 0; i < MANY; i++)
            pages[i] = (uint32_t)(sizes[s] - 1);
        assert_int_equal(tarn_layout_check("get", 0, &l, pages, MANY), 0);
        for (uint32_t i = 0; i < 5 * MANY; i++) {
            uint32_t at = i / 5, right = pages[at];
            pages[at] = wrong[i % 5];
            bool is_wrong = pages[at] >= l.npages;
            snprintf(text, sizeof(text), "page %u is %u:", at, pages[at]);
            assert_int_equal(tarn_layout_check("get", 0, &l, pages, MANY), is_wrong ? TARN_E_INVALID : 0);
            assert_true(!is_wrong || strstr(tarn_last_error(), text));
            pages[at] = right;
        }
    }
}

/* Arrays in several memories. */
static void mixed_memory_is_refused(void **state)
{
    need(state);
    struct paged *p = *state;
    uint8_t *host = malloc(65536);
    void *bases[2] = {p->memory, host};
    struct tarn_layout_options o = {
        .size = sizeof(o), .bases = bases, .nbases = 2, .page_bytes = 4096, .npages = 16};
    refused(&o, "base 1");
    bases[1] = p->memory;
    o.npages = ROOM / 4096 * 1000;
    refused(&o, "base 0");
    free(host);
}

/* Memory of a layout that an operation uses is not deregistered. */
static void registered_memory_in_use(void **state)
{
    struct paged *p = *state;
    uint32_t page = 3;
    struct tarn_mr *mr;
    tarn_op op;
    struct tarn_completion done;
    make(p, 2, 4096, true);
    struct tarn_item item = {
        .key = key_of("k"), .layout = p->layout, .pages = &page, .npieces = 1, .tensor = tarn_bytes(8192)};
    put_all(p, &item, 1);
    assert_int_equal(tarn_register(p->client, p->memory, ROOM, TARN_MEMORY_HOST, &mr), 0);
    harness_signal(p->w->nodes[0]->process, SIGSTOP);
    assert_int_equal(tarn_submit_get(p->client, &item, 1, NULL, 7, &op), 0);
    assert_int_equal(tarn_deregister(p->client, mr), TARN_E_BUSY);
    harness_signal(p->w->nodes[0]->process, SIGCONT);
    assert_int_equal(tarn_wait(p->client, op, 0, &done), 0);
    assert_int_equal(done.status, 0);
    assert_int_equal(tarn_deregister(p->client, mr), 0);
    assert_as_model(p);
}

/* --- main --------------------------------------------------------------------------------------- */

/* Pools of a GPU that the layout's does not reach: the transport wants pieces after all. */
static void pools_out_of_reach(void **state)
{
    devices_need(2);
    if (!tarn_standin_fail)
        harness_skip("standin", "only the stand-in's GPUs do not reach each other");
    struct paged *p = *state;
    const char *argv[] = {self, "--far", NULL};
    setenv("STANDIN_PEERS", "0", 1);
    struct harness_process *far = harness_spawn(p->w->h, "far", argv);
    unsetenv("STANDIN_PEERS");
    assert_int_equal(harness_wait(far, HARNESS_TIMEOUT_MS), 0);
}

static int start_far(void **state)
{
    return start_with(state, &far_plan, "cuda_ipc", true, "node0/gpu1");
}

#define SHM(test) \
    { \
        "shm: " #test, test, start_shm, stop, NULL \
    }
#define TCP(test) \
    { \
        "tcp: " #test, test, start_tcp, stop, NULL \
    }
#define GPU(test) \
    { \
        "cuda_ipc: " #test, test, start_gpu, stop, NULL \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SHM(by_pages_and_by_pieces),
        TCP(by_pages_and_by_pieces),
        GPU(by_pages_and_by_pieces),
        {"a GPU's pages, host pool: by_pages_and_by_pieces", by_pages_and_by_pieces, start_gpu_host_pool,
         stop, NULL},
        {"a GPU's pages, tcp: by_pages_and_by_pieces", by_pages_and_by_pieces, start_gpu_tcp, stop, NULL},
        SHM(beside_items_with_pieces),
        GPU(beside_items_with_pieces),
        {"shm, faults: by_pages_and_by_pieces", by_pages_and_by_pieces, start_shm_faulty, stop, NULL},
        {"tcp, faults: by_pages_and_by_pieces", by_pages_and_by_pieces, start_tcp_faulty, stop, NULL},
        {"cuda_ipc, faults: by_pages_and_by_pieces", by_pages_and_by_pieces, start_gpu_faulty, stop, NULL},
        SHM(two_layouts_in_one_call),
        GPU(two_layouts_in_one_call),
        SHM(ranges),
        TCP(ranges),
        GPU(ranges),
        SHM(layer_by_layer),
        TCP(layer_by_layer),
        GPU(layer_by_layer),
        SHM(wrong_layouts),
        GPU(wrong_layouts),
        SHM(wrong_pages),
        GPU(wrong_pages),
        cmocka_unit_test(a_wrong_page_among_many),
        GPU(mixed_memory_is_refused),
        TCP(registered_memory_in_use),
        SHM(pools_out_of_reach),
    };
    const struct CMUnitTest far[] = {
        {"far: by_pages_and_by_pieces", by_pages_and_by_pieces, start_far, stop, NULL}};
    self = argv[0];
    if (argc > 1)
        return cmocka_run_group_tests_name("layouts, far", far, NULL, NULL);
    return cmocka_run_group_tests_name("layouts", tests, NULL, NULL);
}
