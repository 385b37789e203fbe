/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma between processes of one machine: memory of every kind; nodes and clients that start, end and are
 * killed; the devices' objects afterwards. test_rdma_wire.c tests what needs a wire, where transfers take
 * time.
 *
 *   RDMA_CONNECTS=N   connects and closes of the storm (150); each takes 50 to 100 ms in the VM
 *   RDMA_SECONDS=N    seconds of verified gets under eviction and overwrites (20)
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/rdma.h"
#include "transport/transport.h"

#define TIMEOUT_MS 3000

#ifdef __SANITIZE_ADDRESS__
#define QUARANTINE_KIB (300l << 10) /* freed memory that the sanitizer keeps for a while */
#else
#define QUARANTINE_KIB 0l
#endif

static const char *self;

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "300"},
                                       .client = {.transports = "rdma", .timeout_ms = TIMEOUT_MS}};

static int start(void **state)
{
    rdma_need(false);
    return world_start_client(state, &plan);
}

static unsigned setting(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text && *text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

/* --- times of use ------------------------------------------------------------------------------- */

/* Opens the node's file of use times, which it finds by the file's name. */
static int open_touches(pid_t pid)
{
    char path[64], target[64];
    int fd = -1;
    for (int i = 3; fd < 0 && i < 200; i++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, i);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (strstr(target, "tarn-cpu0-touch"))
            fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    assert_true(fd >= 0);
    return fd;
}

/* The latest time of use among the first slots. */
static uint32_t last_use(int fd)
{
    uint32_t ticks[16], last = 0;
    assert_int_equal(pread(fd, ticks, sizeof ticks, 0), sizeof ticks);
    for (int i = 0; i < 16; i++)
        last = ticks[i] > last ? ticks[i] : last;
    return last;
}

/* Waits for later ticks: the node records times of use in ticks. */
static void next_ticks(void)
{
    for (uint64_t end = tarn_now_ns() + 3 * TARN_TICK_NS; tarn_now_ns() < end;)
        harness_pause();
}

/* A get counts as use even if no other get follows, or if the client closes right after it. */
static void last_get_counts_as_use(void **state)
{
    struct world *w = *state;
    int fd = open_touches(harness_pid(w->nodes[0]->process));
    assert_int_equal(client_put(w->client, "used", 'u', 4096, NULL), 0);
    uint32_t put = last_use(fd);
    next_ticks();
    assert_int_equal(client_get(w->client, "used", 'u', 4096), 0);
    HARNESS_UNTIL(last_use(fd) > put, 5000);
    uint32_t got = last_use(fd);
    struct tarn_client *short_lived = world_client(w, "rdma");
    next_ticks();
    assert_int_equal(client_get(short_lived, "used", 'u', 4096), 0);
    tarn_close(short_lived);
    assert_true(last_use(fd) > got);
    close(fd);
}

/* --- memory ------------------------------------------------------------------------------------- */

/* Puts from one place and gets into another. Returns the status of the get; the caller compares the bytes. */
static int round_trip(struct tarn_client *c, const char *key, const struct tarn_piece *in, uint32_t nin,
                      const struct tarn_piece *out, uint32_t nout, size_t bytes)
{
    struct tarn_item put = {.key = key_of(key), .pieces = in, .npieces = nin, .tensor = tarn_bytes(bytes)};
    struct tarn_item get = {.key = key_of(key), .pieces = out, .npieces = nout};
    int status = tarn_put(c, &put, 1, &replacing);
    return status ? status : tarn_get(c, &get, 1, NULL);
}

static void expect_round_trip(struct world *w, uint32_t key, char *in, char *out, size_t bytes)
{
    struct tarn_piece from = {.addr = in, .bytes = bytes}, to = {.addr = out, .bytes = bytes};
    marked_fill(in, bytes, key, 1);
    memset(out, 0, bytes);
    int status = round_trip(w->client, "round", &from, 1, &to, 1, bytes);
    if (status || memcmp(in, out, bytes) != 0)
        fail_msg("%zu bytes: %s", bytes, status ? tarn_last_error() : "wrong bytes");
}

static void memory_of_all_sizes_needs_no_registration(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {0,     1,     7,      4095,   4096,    4097,    16383,      16384,
                                   16385, 65536, 65537,  262144, 524288,  1048575, 1048577,    3145731,
                                   20,    100,   300000, 600001, 2097152, 9000000, (16u << 20)};
    char *in = malloc(17u << 20), *out = malloc(17u << 20);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t shift = 0; shift < 5; shift += 3)
            expect_round_trip(w, i, in + shift, out + 2 * shift, sizes[i]);
    free(in);
    free(out);
    harness_passed(w->h);
}

static void an_empty_object_can_be_put_and_got(void **state)
{
    struct world *w = *state;
    struct tarn_piece none = {.addr = NULL, .bytes = 0};
    assert_int_equal(round_trip(w->client, "a", NULL, 0, NULL, 0, 0), 0);
    assert_int_equal(round_trip(w->client, "b", &none, 1, &none, 1, 0), 0);
    assert_int_equal(round_trip(w->client, "a", &none, 1, NULL, 0, 0), 0);
    harness_passed(w->h);
}

/* Such as a mapped file of tensors: devices cannot write there, and need not. */
static void put_from_memory_that_cannot_be_written(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {100, 16384, 16385, 1 << 20, 5 << 20};
    char *in = mmap(NULL, 6u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *out = malloc(6u << 20);
    assert_true(in != MAP_FAILED);
    marked_fill(in, 6u << 20, 1, 1);
    assert_int_equal(mprotect(in, 6u << 20, PROT_READ), 0);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct tarn_piece from = {.addr = in, .bytes = sizes[i]}, to = {.addr = out, .bytes = sizes[i]};
        memset(out, 0, sizes[i]);
        int status = round_trip(w->client, "fixed", &from, 1, &to, 1, sizes[i]);
        if (status || memcmp(in, out, sizes[i]) != 0)
            fail_msg("%zu bytes: %s", sizes[i], status ? tarn_last_error() : "wrong bytes");
    }
    munmap(in, 6u << 20);
    free(out);
    harness_passed(w->h);
}

/* A get into memory that cannot be written is a mistake of the caller. The get says so; nothing else
 * breaks. */
static void get_into_memory_that_cannot_be_written(void **state)
{
    struct world *w = *state;
    size_t bytes = 1 << 20;
    char *fixed = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fixed != MAP_FAILED);
    assert_int_equal(marked_put(w->client, "k", 0, 1, bytes), 0);
    struct tarn_piece piece = {.addr = fixed, .bytes = bytes};
    struct tarn_item item = {.key = key_of("k0"), .pieces = &piece, .npieces = 1};
    int status = tarn_get(w->client, &item, 1, NULL);
    assert_true(status != 0);
    print_message("           %s: %s\n", tarn_error_name(status), tarn_last_error());
    assert_int_equal(fixed[0], 0);
    assert_int_equal(marked_get(w->client, "k", 0, bytes, NULL), 0);
    munmap(fixed, bytes);
    harness_passed(w->h);
}

/* Maps new pages at the same address. A registration cache by address would move the old pages' bytes. */
static void memory_mapped_again_at_the_same_address(void **state)
{
    struct world *w = *state;
    size_t bytes = 1 << 20;
    char *out = malloc(bytes);
    void *at = NULL;
    for (uint32_t i = 0; i < 30; i++) {
        char *in = mmap(at, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
        assert_true(in != MAP_FAILED && (!at || in == at));
        at = in;
        expect_round_trip(w, i, i % 2 ? out : in, i % 2 ? in : out, bytes);
        munmap(in, bytes);
    }
    free(out);
    harness_passed(w->h);
}

/* Runs with gaps, in reverse order, of different sizes on both sides, and more than a queue takes at once. */
static void thousands_of_pieces(void **state)
{
    struct world *w = *state;
    enum { N = 6000, RUN = 700, APART = 1100 };
    size_t bytes = (size_t)N * RUN, room = (size_t)N * APART;
    char *in = malloc(bytes), *out = calloc(1, room);
    struct tarn_piece whole = {.addr = in, .bytes = bytes}, *runs = calloc(N, sizeof(*runs));
    struct tarn_mr *mr = NULL;
    for (uint32_t round = 0; round < 2; round++) { /* the second time with registered memory */
        for (size_t i = 0; i < N; i++)
            runs[i] = (struct tarn_piece){.addr = out + (N - 1 - i) * APART, .bytes = RUN};
        marked_fill(in, bytes, 7, round);
        memset(out, 0, room);
        int status = round_trip(w->client, "pieces", &whole, 1, runs, N, bytes);
        if (status)
            fail_msg("round %u: %s", round, tarn_last_error());
        for (size_t i = 0; i < N; i++) {
            assert_memory_equal(runs[i].addr, in + i * RUN, RUN);
            for (size_t gap = RUN; i > 0 && gap < APART; gap++)
                assert_int_equal(((char *)runs[i].addr)[gap], 0);
        }
        status = round_trip(w->client, "pieces", runs, N, &whole, 1, bytes);
        assert_int_equal(status, 0);
        assert_int_equal(marked_version(in, bytes, 7), round);
        if (!mr)
            assert_int_equal(tarn_register(w->client, out, room, TARN_MEMORY_HOST, &mr), 0);
    }
    assert_int_equal(tarn_deregister(w->client, mr), 0);
    free(in);
    free(out);
    free(runs);
    harness_passed(w->h);
}

/* Memory within, across and beside registered ranges. Afterwards the devices hold no registration of it. */
static void registered_memory(void **state)
{
    struct world *w = *state;
    enum { PART = 1 << 20 };
    char *in = malloc(8u * PART), *out = malloc(8u * PART);
    struct tarn_mr *mr[4];
    expect_round_trip(w, 0, in, out, PART); /* opens the links */
    struct rdma_objects before = rdma_objects();
    assert_int_equal(tarn_register(w->client, in, 2 * PART, TARN_MEMORY_HOST, &mr[0]), 0);
    assert_int_equal(tarn_register(w->client, in + PART / 2, PART, TARN_MEMORY_HOST, &mr[1]), 0);
    assert_int_equal(tarn_register(w->client, in, 2 * PART, TARN_MEMORY_HOST, &mr[2]), 0);
    assert_int_equal(tarn_register(w->client, out + PART, 3 * PART, TARN_MEMORY_HOST, &mr[3]), 0);
    static const size_t from[] = {0, 100, PART / 2, PART, 2 * PART - 50, 2 * PART, 3 * PART + 7};
    static const size_t sizes[] = {40, 100000, PART, 2 * PART, 3 * PART};
    for (uint32_t i = 0; i < 7; i++)
        for (uint32_t k = 0; k < 5; k++)
            expect_round_trip(w, i * 8 + k, in + from[i], out + from[6 - i], sizes[k]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(tarn_deregister(w->client, mr[i]), 0);
    struct rdma_objects after = rdma_objects();
    assert_int_equal(before.mr, after.mr);
    expect_round_trip(w, 1, in, out, 2 * PART);
    free(in);
    free(out);
    harness_passed(w->h);
}

/* --- nodes that end and come back --------------------------------------------------------------- */

static struct traffic getting, putting, filling;

static void traffic_of(struct world *w, struct traffic *t, const char *prefix, bool writes, size_t bytes)
{
    memset(t, 0, sizeof(*t));
    t->client = w->client;
    t->prefix = prefix;
    t->objects = 8;
    t->bytes = bytes;
    t->timeout_ms = TIMEOUT_MS;
    t->puts = writes;
    for (uint32_t i = 0; i < t->objects; i++)
        assert_int_equal(marked_put(w->client, prefix, i, 1, bytes), 0);
}

/* A node comes back under its name. Descriptors, addresses and keys that clients kept of the old run are
 * void. */
static void node_restarted_under_clients(void **state)
{
    struct world *w = *state;
    traffic_of(w, &getting, "g", false, 100000);
    traffic_of(w, &putting, "p", true, 100000);
    getting.evicted = true;
    for (int round = 0; round < 3; round++) {
        struct traffic *both[] = {&getting, &putting};
        for (int i = 0; i < 2; i++) {
            atomic_store(&both[i]->stop, false);
            traffic_start(both[i]);
            traffic_more(both[i], 5, round == 0, 10000);
        }
        harness_kill(w->nodes[0]->process);
        traffic_more(&getting, 3, false, 15000);
        HARNESS_UNTIL(!world_lists(w, "node0"), 10000);
        w->nodes[0] = world_node(w, "node0");
        traffic_more(&putting, 5, true, 15000);
        traffic_stop(&getting);
        traffic_stop(&putting);
    }
    assert_int_equal(marked_put(w->client, "g", 0, 9, 100000), 0);
    assert_int_equal(marked_get(w->client, "g", 0, 100000, NULL), 0);
    assert_true(marked_get(w->client, "g", 1, 100000, NULL) != 0);
    harness_passed(w->h);
}

/* A get does not need the node's CPU. Calls that need it end in time. */
static void stopped_node_still_serves_gets(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(marked_put(w->client, "s", i, 1, 200000), 0);
        assert_int_equal(marked_get(w->client, "s", i, 200000, NULL), 0);
    }
    harness_signal(w->nodes[0]->process, SIGSTOP);
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t begun = harness_now_ms();
        int status = marked_get(w->client, "s", i, 200000, NULL);
        if (status)
            fail_msg("get %u: %s", i, tarn_last_error());
        assert_true(harness_now_ms() - begun < 1000 * harness_slower());
    }
    harness_signal(w->nodes[0]->process, SIGCONT);
    HARNESS_UNTIL(marked_put(w->client, "s", 0, 2, 200000) == 0, 10000);
    harness_passed(w->h);
}

/* --- clients that open and close ---------------------------------------------------------------- */

/* What must be equal before and after. */
struct footprint {
    struct rdma_objects objects;
    int node_files, own_files;
    long node_rss, own_rss;
    long long reserved, stored, used; /* reservations, objects, bytes in extents */
};

static struct footprint footprint(const struct world *w)
{
    const struct harness_node *n = w->nodes[0];
    return (struct footprint){.objects = rdma_objects(),
                              .node_files = process_files(harness_pid(n->process)),
                              .own_files = process_files(getpid()),
                              .node_rss = process_rss(harness_pid(n->process)),
                              .own_rss = process_rss(getpid()),
                              .reserved = node_pool_figure(n->local, "reserved"),
                              .stored = node_pool_figure(n->local, "objects"),
                              .used = node_pool_figure(n->local, "used")};
}

static bool same_footprint(const struct footprint *a, const struct footprint *b)
{
    return rdma_objects_same(&a->objects, &b->objects) && a->node_files == b->node_files &&
           a->own_files == b->own_files && a->reserved == b->reserved && a->stored == b->stored &&
           a->used == b->used;
}

static const char *footprint_text(const struct footprint *f, char *out, size_t bytes)
{
    snprintf(out, bytes,
             "qp %d cq %d mr %d pd %d ctx %d, files %d %d, reserved %lld, objects %lld of %lld bytes",
             f->objects.qp, f->objects.cq, f->objects.mr, f->objects.pd, f->objects.ctx, f->node_files,
             f->own_files, f->reserved, f->stored, f->used);
    return out;
}

/* The node releases a client when it notices that the client is gone, possibly after tarn_close() returns. */
static struct footprint settled(const struct world *w, const struct footprint *want)
{
    struct footprint now = footprint(w);
    for (uint64_t until = harness_now_ms() + 10000; !same_footprint(&now, want) && harness_now_ms() < until;
         now = footprint(w))
        harness_pause();
    char is[160], was[160];
    if (!same_footprint(&now, want))
        fail_msg("%s; before: %s", footprint_text(&now, is, sizeof(is)),
                 footprint_text(want, was, sizeof(was)));
    return now;
}

static void come_and_go(struct world *w, unsigned i)
{
    struct tarn_client *c = world_client(w, NULL);
    struct tarn_item item = {.key = key_of("half"), .tensor = tarn_bytes(50000)};
    struct tarn_put_session *s;
    uint32_t key = i % 4;
    if (marked_put(c, "storm", key, i, 20000) || marked_get(c, "storm", key, 20000, NULL))
        fail_msg("client %u: %s", i, tarn_last_error());
    if (i % 8 == 0 && tarn_put_begin(c, &item, 1, NULL, &s)) /* closed with an open reservation */
        fail_msg("client %u: %s", i, tarn_last_error());
    tarn_close(c);
}

/* Mooncake, UCCL: queue pairs and memory keys leak with every connection. */
static void a_storm_of_connects_leaves_no_resources(void **state)
{
    struct world *w = *state;
    unsigned n = setting("RDMA_CONNECTS", 150), warm = 40;
    struct footprint before = {0};
    uint64_t begun = harness_now_ms();
    for (unsigned i = 0; i < warm + n; i++) {
        if (i == warm) {
            before = footprint(w);
            before = settled(w, &before);
        }
        come_and_go(w, i);
    }
    struct footprint after = settled(w, &before);
    char held[160];
    print_message("           %u connects and closes in %llu ms; node grew by %ld KiB, client by %ld\n", n,
                  (unsigned long long)(harness_now_ms() - begun), after.node_rss - before.node_rss,
                  after.own_rss - before.own_rss);
    print_message("           before and after: %s\n", footprint_text(&after, held, sizeof(held)));
    /* Less than an allocation of 64 bytes, or a page, for each client. */
    assert_true(after.node_rss - before.node_rss < QUARANTINE_KIB + 1024 + (long)n / 16);
    assert_true(after.own_rss - before.own_rss < QUARANTINE_KIB + 1024 + (long)n / 16);
    harness_passed(w->h);
}

static struct harness_process *peer(struct world *w, const char *what)
{
    const char *argv[] = {self, "--peer", w->redis->url, what, NULL};
    return harness_spawn(w->h, what, argv);
}

static void killed_clients_leave_no_resources(void **state)
{
    struct world *w = *state;
    assert_int_equal(marked_put(w->client, "mine", 0, 1, 1000), 0);
    assert_int_equal(marked_get(w->client, "mine", 0, 1000, NULL), 0);
    for (uint32_t i = 0; i < 4; i++) /* the objects that the peers replace */
        assert_int_equal(marked_put(w->client, "churn", i, 1, 100000), 0);
    struct footprint before = footprint(w);
    for (int i = 0; i < 5; i++) {
        struct harness_process *p[3];
        for (int k = 0; k < 3; k++)
            p[k] = peer(w, k == 2 ? "half" : "churn");
        for (int k = 0; k < 3; k++)
            assert_non_null(harness_wait_line(p[k], "ready", HARNESS_TIMEOUT_MS));
        for (int k = 0; k < 3; k++)
            harness_signal(p[k], SIGKILL);
        for (int k = 0; k < 3; k++)
            harness_wait(p[k], HARNESS_TIMEOUT_MS);
    }
    before.own_files = process_files(getpid()); /* the harness keeps some files open for each process */
    settled(w, &before);
    assert_int_equal(marked_get(w->client, "mine", 0, 1000, NULL), 0);
    harness_passed(w->h);
}

/* --- verified gets ------------------------------------------------------------------------------ */

/* Readers get batches. One writer replaces what they read, another fills the pool. */
enum { HOT = 48, HOT_BYTES = 2000, COLD = 256, COLD_BYTES = 80000, BATCH = 64, READERS = 4 };

/* A long heartbeat: a host that is busy for a second must not make the node count as gone. */
static const struct world_plan churn = {.nodes = 1,
                                        .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "5000"},
                                        .client = {.transports = "rdma", .timeout_ms = TIMEOUT_MS}};

static int start_for_churn(void **state)
{
    rdma_need(false);
    return world_start_client(state, &churn);
}

struct reader {
    struct tarn_client *client;
    pthread_t thread;
    bool registered;
    uint32_t seed;
    unsigned long long good, absent, failed;
    char wrong[300];
};

static _Atomic uint32_t acked[HOT];
static atomic_bool over;

struct batch {
    struct tarn_item items[BATCH];
    struct tarn_piece pieces[BATCH];
    char names[BATCH][16];
    uint32_t keys[BATCH], acked[BATCH];
    char data[BATCH][HOT_BYTES];
};

static void batch_begin(struct reader *r, struct batch *b)
{
    for (int i = 0; i < BATCH; i++) {
        r->seed = r->seed * 1664525u + 1013904223u;
        b->keys[i] = (r->seed >> 8) % HOT;
        b->acked[i] = atomic_load(&acked[b->keys[i]]);
        snprintf(b->names[i], sizeof(b->names[i]), "hot%u", b->keys[i]);
        b->pieces[i] = (struct tarn_piece){.addr = b->data[i], .bytes = HOT_BYTES};
        b->items[i] = (struct tarn_item){.key = key_of(b->names[i]), .pieces = &b->pieces[i], .npieces = 1};
        memset(b->data[i], 0xee, 64);
    }
}

/* Redis may be slow on a busy machine: failures that can be retried are only counted. */
static void batch_failure(struct reader *r, const struct tarn_item *item, const char *name)
{
    enum tarn_error_class class = tarn_error_class(item->status);
    r->absent += item->status == TARN_E_NOT_FOUND;
    r->failed += item->status != TARN_E_NOT_FOUND;
    if (item->status != TARN_E_NOT_FOUND && class != TARN_CLASS_RETRY && class != TARN_CLASS_RECONNECT &&
        class != TARN_CLASS_RELOCATE)
        snprintf(r->wrong, sizeof(r->wrong), "%s: %s: %s", name, tarn_error_name(item->status),
                 tarn_last_error());
}

static void batch_check(struct reader *r, const struct batch *b)
{
    for (int i = 0; i < BATCH; i++) {
        if (b->items[i].status) {
            batch_failure(r, &b->items[i], b->names[i]);
            continue;
        }
        int64_t version = marked_version(b->data[i], HOT_BYTES, b->keys[i]);
        if (version < b->acked[i])
            snprintf(r->wrong, sizeof(r->wrong), "%s: version %lld (-1: torn or foreign), %u had been put",
                     b->names[i], (long long)version, b->acked[i]);
        r->good++;
    }
}

static void *read_all_the_time(void *arg)
{
    struct reader *r = arg;
    struct batch *b = calloc(1, sizeof(*b));
    struct tarn_mr *mr = NULL;
    if (r->registered && tarn_register(r->client, b, sizeof(*b), TARN_MEMORY_HOST, &mr))
        snprintf(r->wrong, sizeof(r->wrong), "%s", tarn_last_error());
    while (!r->wrong[0] && !atomic_load(&over)) {
        batch_begin(r, b);
        tarn_get(r->client, b->items, BATCH, NULL);
        batch_check(r, b);
    }
    if (mr)
        tarn_deregister(r->client, mr);
    free(b);
    return NULL;
}

static void start_churn(struct world *w)
{
    getting = (struct traffic){.prefix = "cold", .objects = COLD, .bytes = COLD_BYTES, .evicted = true};
    putting = (struct traffic){.prefix = "hot", .objects = HOT, .bytes = HOT_BYTES, .puts = true};
    filling = (struct traffic){.prefix = "cold", .objects = COLD, .bytes = COLD_BYTES, .puts = true};
    struct traffic *all[] = {&getting, &putting, &filling};
    putting.acked = acked;
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(marked_put(w->client, "hot", i, 1, HOT_BYTES), 0);
    for (int i = 0; i < 3; i++) {
        all[i]->client = w->client;
        all[i]->timeout_ms = TIMEOUT_MS;
        traffic_start(all[i]);
    }
    traffic_more(&filling, COLD, false, 60000); /* the pool is full from here on */
}

static void gets_are_right_under_eviction_and_overwrites(void **state)
{
    struct world *w = *state;
    static struct reader readers[READERS];
    unsigned long long good = 0, absent = 0, failed = 0;
    start_churn(w);
    atomic_store(&over, false);
    for (int i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.client = w->client, .registered = i % 2, .seed = 77u + (uint32_t)i};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_all_the_time, &readers[i]), 0);
    }
    for (uint64_t until = harness_now_ms() + 1000 * setting("RDMA_SECONDS", 20); harness_now_ms() < until;)
        harness_pause();
    atomic_store(&over, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i].thread, NULL);
    for (int i = 0; i < READERS; i++) {
        good += readers[i].good;
        absent += readers[i].absent;
        failed += readers[i].failed;
        if (readers[i].wrong[0])
            fail_msg("%s", readers[i].wrong);
    }
    print_message(
        "           %llu gets of %d bytes, %llu absent, %llu failed; %u of %d bytes, %u did not succeed; "
        "%u of %u puts replaced one\n",
        good, HOT_BYTES, absent, failed, atomic_load(&getting.good), COLD_BYTES,
        atomic_load(&getting.ended) - atomic_load(&getting.good), atomic_load(&putting.good),
        atomic_load(&putting.ended));
    assert_true(failed * 100 <= good);
    traffic_stop(&getting);
    traffic_stop(&putting);
    traffic_stop(&filling);
    assert_true(good > 1000 && atomic_load(&putting.good) > 100 && atomic_load(&getting.good) > 10);
    assert_true(atomic_load(&getting.ended) > atomic_load(&getting.good)); /* objects were evicted */
    harness_passed(w->h);
}

/* --- the other process -------------------------------------------------------------------------- */

/* test_rdma --peer REDIS WHAT: works until it is killed. */
static int peer_main(const char *redis, const char *what)
{
    struct tarn_client *c = client_open(redis, plan.client);
    struct tarn_item item = {.key = key_of("half"), .tensor = tarn_bytes(MIB)};
    struct tarn_put_session *s;
    static char data[MIB];
    struct tarn_piece piece = {.addr = data, .bytes = MIB};
    if (strcmp(what, "half") == 0) {
        if (tarn_put_begin(c, &item, 1, NULL, &s))
            return 1;
        for (int n = 0; tarn_put_write(s, 0, 0, &piece, 1, 0) == 0; n++)
            if (n == 0)
                dprintf(STDOUT_FILENO, "ready\n");
        return 1;
    }
    for (uint32_t i = 0; marked_put(c, what, i % 4, i, 100000) == 0; i++)
        if (marked_get(c, what, i % 4, 100000, NULL) == 0 && i == 10)
            dprintf(STDOUT_FILENO, "ready\n");
    return 1;
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, rdma_stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "--peer") == 0)
        return peer_main(argv[2], argv[3]);
    /* The kernel may turn memory in use into a huge page at any time, which looks like a leak. The node
     * inherits this setting. */
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const struct CMUnitTest tests[] = {
        CASE(last_get_counts_as_use),
        CASE(memory_of_all_sizes_needs_no_registration),
        CASE(an_empty_object_can_be_put_and_got),
        CASE(put_from_memory_that_cannot_be_written),
        CASE(get_into_memory_that_cannot_be_written),
        CASE(memory_mapped_again_at_the_same_address),
        CASE(thousands_of_pieces),
        CASE(registered_memory),
        CASE(node_restarted_under_clients),
        CASE(stopped_node_still_serves_gets),
        CASE(a_storm_of_connects_leaves_no_resources),
        CASE(killed_clients_leave_no_resources),
        cmocka_unit_test_setup_teardown(gets_are_right_under_eviction_and_overwrites, start_for_churn,
                                        rdma_stop),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
