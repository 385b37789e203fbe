/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random messages over the tcpx transport and the fixture plugin: a mix of gets and puts of 0 bytes to 8 MiB,
 * at random offsets, with random pieces, half of them in registered memory. Checks that every byte is right,
 * that the bytes around are unchanged, that every page token is returned, and that memory does not grow.
 *
 * TCPX_SOAK=100000 makes it long (make soak-tcpx): this many messages over 4 sockets, a fiftieth of that in
 * the other scenes. TCPX_SOAK_SEED= repeats a run.
 */
#define SLOTS 32u
#define EXTENT (8ull << 20)
#include "tests/unit/fake_node.h"

#include "base/text.h"
#include "tests/tcpx/scene.h"

enum { FLYING = 12, PIECES = 9, GAP = 64, GETS = SLOTS / 2, GUARD = 0x5a };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

struct flight {
    struct tarn_work work;
    bool put, used;
    uint64_t offset; /* in the extent */
    uint8_t *memory; /* has the pieces, with gaps between */
    struct tarn_piece pieces[PIECES];
};

static struct {
    uint64_t random, bytes, done;
    struct fake_node *node;
    struct tarn_link *link;
    uint8_t *source; /* puts take their bytes from here */
    struct flight flights[FLYING];
} soak;

static uint64_t below(uint64_t n)
{
    soak.random ^= soak.random << 13;
    soak.random ^= soak.random >> 7;
    soak.random ^= soak.random << 17;
    return soak.random % n;
}

/* Small and large sizes equally often, and sometimes a multiple of a message's size (or 1 byte off). */
static uint64_t some_bytes(void)
{
    switch (below(4)) {
    case 0:
        return below(EXTENT + 1);
    case 1:
        return (1 + below(15)) * TARN_TCPX_CHUNK + below(3) - 1;
    default:
        return below(1ull << below(24));
    }
}

static uint8_t *slot_memory(const struct flight *f)
{
    return (uint8_t *)soak.node->pool.base + f->work.slot * EXTENT + f->offset;
}

/* --- one message -------------------------------------------------------------------------------- */

static void cut(struct flight *f, uint64_t bytes)
{
    uint64_t at = GAP, left = bytes;
    uint32_t n = 1 + (uint32_t)below(PIECES);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t part = i + 1 == n ? left : below(left + 1);
        f->pieces[i] = (struct tarn_piece){.addr = f->memory + at, .bytes = part};
        at += part + GAP;
        left -= part;
    }
    f->work.npieces = n;
}

static uint64_t source_at(const struct flight *f)
{
    return f->offset * 7 % EXTENT;
}

static void fill_pieces(struct flight *f)
{
    const uint8_t *from = soak.source + source_at(f);
    for (uint32_t i = 0; i < f->work.npieces; from += f->pieces[i++].bytes)
        memcpy(f->pieces[i].addr, from, f->pieces[i].bytes);
}

static void begin(uint32_t i)
{
    struct flight *f = &soak.flights[i];
    uint64_t bytes = some_bytes();
    f->put = below(2);
    f->offset = below(EXTENT - bytes + 1);
    memset(f->memory, GUARD, bytes + (PIECES + 1) * GAP);
    cut(f, bytes);
    uint32_t npieces = f->work.npieces, slot = f->put ? GETS + i : (uint32_t)below(GETS);
    f->work = fake_work(soak.node, slot, f->pieces, npieces);
    f->work.offset += f->offset;
    CHECK(f->work.bytes == bytes);
    if (f->put)
        fill_pieces(f);
    f->used = true;
    submit(soak.node->ops, soak.link, &f->work, f->put);
    soak.bytes += bytes;
}

static void check_gaps(const struct flight *f)
{
    for (uint32_t i = 0; i < f->work.npieces; i++) {
        const uint8_t *end = (uint8_t *)f->pieces[i].addr + f->pieces[i].bytes;
        for (int k = 0; k < GAP; k++)
            CHECK(end[k] == GUARD);
    }
}

static void finish(struct flight *f)
{
    CHECK(f->work.status == 0);
    const uint8_t *there = slot_memory(f);
    for (uint32_t i = 0; i < f->work.npieces; there += f->pieces[i++].bytes)
        CHECK(memcmp(f->pieces[i].addr, there, f->pieces[i].bytes) == 0);
    CHECK(!f->put || memcmp(slot_memory(f), soak.source + source_at(f), f->work.bytes) == 0);
    check_gaps(f);
    f->used = false;
    soak.done++;
}

/* --- all of them -------------------------------------------------------------------------------- */

static uint64_t resident_kib(void)
{
    unsigned long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    CHECK(f && fscanf(f, "%lu %lu", &all, &resident) == 2);
    fclose(f);
    return resident * 4;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void move(uint64_t messages)
{
    uint64_t begun = 0, late = tarn_deadline(60000), early_kib = 0;
    soak.done = 0;
    while (soak.done < messages) {
        for (uint32_t i = 0; i < FLYING && begun < messages; i++)
            if (!soak.flights[i].used) {
                begin(i);
                begun++;
            }
        CHECK(soak.node->ops->wait(soak.link, tarn_deadline(1000)) >= 0);
        for (uint32_t i = 0; i < FLYING; i++)
            if (soak.flights[i].used && soak.flights[i].work.owner) {
                finish(&soak.flights[i]);
                late = tarn_deadline(60000);
            }
        CHECK(tarn_now_ns() < late);
        if (!early_kib && soak.done > messages / 4)
            early_kib = resident_kib();
    }
    /* Allows for extents of puts that are touched later. Sanitizers keep too much memory for this check. */
    CHECK(SANITIZED || resident_kib() < early_kib + FLYING * (EXTENT >> 10) + 32768);
}

static void prepare(struct tarn_tcpx_plugin *p)
{
    setenv("TARN_TCPX_PLUGIN", p->path, 1);
    soak.random = number_from("TCPX_SOAK_SEED", tarn_random64());
    soak.node = fake_start("tcpx", false, 0);
    soak.source = malloc(2 * EXTENT);
    CHECK(soak.source);
    fill(soak.source, 2 * EXTENT, soak.random);
    for (uint32_t i = 0; i < GETS; i++) {
        fill((char *)soak.node->pool.base + i * EXTENT, EXTENT, soak.random + i);
        commit(soak.node, i);
    }
    for (uint32_t i = 0; i < FLYING; i++) {
        uint64_t bytes = EXTENT + (PIECES + 1) * GAP;
        CHECK((soak.flights[i].memory = malloc(bytes)));
        if (i % 2) /* registered memory needs no copy, if the plugin supports that */
            CHECK(soak.node->ops->map(soak.node->local, soak.flights[i].memory, bytes) == 0);
    }
    soak.link = fake_link(soak.node, true);
}

static int soaks(struct tarn_tcpx_plugin *p)
{
    struct fixture_counters *c = scene_counters(p);
    uint64_t messages = number_from("TCPX_SOAK", 150), seed;
    if (strcmp(getenv("NCCL_NSOCKS_PERTHREAD"), "4") || p->devices[0].mode != TARN_TCPX_UNPACK)
        messages = messages / 50 > 150 ? messages / 50 : 150;
    prepare(p);
    seed = soak.random;
    uint64_t start = tarn_now_ns();
    move(messages);
    double seconds = (double)(tarn_now_ns() - start) / 1e9;
    soak.node->ops->close(soak.link);
    wait_until(fake_pins(soak.node) == 0);
    fake_stop(soak.node);
    printf("random: %s: %llu messages, %.2f GB, %.0f MB/s, seed %llu\n", p->name,
           (unsigned long long)messages, (double)soak.bytes / 1e9, (double)soak.bytes / seconds / 1e6,
           (unsigned long long)seed);
    CHECK(c->bytes_received == soak.bytes && c->bytes_sent == soak.bytes);
    CHECK(c->tokens_taken == c->tokens_returned && c->tokens_dropped == 0 && c->tokens_leaked == 0);
    CHECK((c->tokens_taken > 0) == (p->devices[0].mode == TARN_TCPX_UNPACK));
    CHECK(c->comms == 0 && c->regs == 0 && c->listens == 0 && c->requests == 0 && c->refused == 0);
    return 0;
}

static void every_byte_is_right_and_every_token_goes_back(void **state)
{
    static const struct scene scenes[] = {
        {.plugin = "fixture-v7", .sockets = "1", .body = soaks},
        {.plugin = "fixture-v7", .sockets = "4", .body = soaks},
        {.plugin = "fixture-v7", .sockets = "8", .options = "cut_min=300,seed=7", .body = soaks},
        {.plugin = "fixture-v7", .sockets = "4", .options = "plain=1", .body = soaks},
        {.plugin = "fixture-v8", .sockets = "3", .body = soaks, .chunk = "100001"},
        {.plugin = "fixture-v6", .sockets = "4", .body = soaks},
    };
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        scene_play(&scenes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_is_right_and_every_token_goes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
