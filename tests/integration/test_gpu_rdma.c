/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory over rdma, at the node and at the client: how it is registered, what is given back, and where
 * works go when the devices refuse it. The verbs are those of fake_verbs.h and the GPUs are the stand-in,
 * whose memory host code cannot touch. This tests tarn's decisions, not a device's behaviour. Only the export
 * is also tested on real GPUs.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include <dirent.h>

#include "tests/device.h"
#include "tests/node_here.h"
#include "tests/standin/cuda_standin.h"
#include "tests/world.h"
#include "transport/rdma/rdma_link.h"

enum { SMALL = 1000, LARGE = 300000, MEMORY = 4 << 20 };

static void need_standin(void)
{
    devices_need(1);
    if (!tarn_standin_fail)
        harness_skip("standin", "verbs that are played need GPUs that are");
}

/* How the device reaches GPU memory. An export must cover the range that is registered with it. */
static char *reach(const char *addr, size_t bytes, int fd, uint64_t offset)
{
    struct tarn_standin_export e;
    if (fd >= 0 && (pread(fd, &e, sizeof e, 0) != sizeof e || e.begin + offset != (uintptr_t)addr ||
                    offset + bytes > e.bytes))
        return NULL;
    return (char *)tarn_standin_reach(0, addr, bytes);
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void says(const char *text)
{
    if (!strstr(tarn_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", tarn_last_error(), text);
}

/* How the devices take GPU memory: by dma-buf, by peermem, or not at all. */
enum way { DMABUF, PEERMEM, NO_EXPORT, REFUSED };

static void take(enum way way)
{
    fake.peermem = way == PEERMEM || way == NO_EXPORT;
    fake.dmabuf_error = way == PEERMEM || way == REFUSED ? EOPNOTSUPP : 0;
    tarn_standin_fail(way == NO_EXPORT ? "dmabuf:*" : NULL);
}

static void begin_verbs(uint8_t rails, enum way way)
{
    need_standin();
    fake_reset();
    fake.reach = reach;
    take(way);
    for (uint8_t i = 0; i < rails; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        fake_add(name, (uint8_t)(1 + i));
    }
}

/* --- exports ------------------------------------------------------------------------------------ */

/* Also on real GPUs: the driver exports a descriptor or says why not. */
static void device_memory_is_exported_or_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        size_t from, bytes;
    } ranges[] = {{0, MEMORY}, {4096, 4096}, {256, 1}, {4095, 2}, {MEMORY - 1, 1}};
    int fd, rc, files;
    char host[64];
    devices_need(1);
    if (tarn_standin_fail)
        tarn_standin_fail(NULL);
    struct device *d = device_open(0);
    char *there = device_alloc(d, MEMORY);
    files = open_files();
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        rc = tarn_cuda_dmabuf(there + ranges[i].from, ranges[i].bytes, &fd);
        print_message("%zu bytes at %zu: %s\n", ranges[i].bytes, ranges[i].from,
                      rc ? tarn_last_error() : "exported");
        assert_true(rc == 0 || rc == TARN_E_UNSUPPORTED);
        if (rc)
            continue;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(tarn_cuda_dmabuf(host, sizeof host, &fd), TARN_E_UNSUPPORTED);
    assert_int_equal(open_files(), files);
    assert_int_equal(tarn_cuda_flush(0), 0);
    device_drop(d, there);
    device_close(d);
}

/* --- pools of the node -------------------------------------------------------------------------- */

struct gpu_node {
    struct fake_node *n;
    struct device *d;
    void *host; /* the pool's original memory */
    char log[1024];
    int lines;
    struct tarn_pool_memory pools[2]; /* the GPU pool first */
};

static void take_line(void *arg, enum tarn_log_level level, const char *line)
{
    struct gpu_node *g = arg;
    assert_int_equal(level, TARN_LOG_WARN);
    snprintf(g->log, sizeof g->log, "%s", line);
    g->lines++;
}

/* A node with a GPU pool and a CPU pool. */
static void start_pools(struct gpu_node *g, enum way way)
{
    *g = (struct gpu_node){.n = NULL};
    begin_verbs(2, way);
    struct tarn_logger log = {TARN_LOG_WARN, take_line, g};
    g->n = fake_make("rdma");
    g->d = device_open(0);
    g->pools[0] = g->pools[1] = g->n->pool;
    g->pools[0].name = "gpu";
    g->pools[0].kind = TARN_POOL_GPU;
    g->pools[0].memfd = -1;
    g->pools[0].base = device_alloc(g->d, SLOTS * EXTENT);
    fake.gpu = (struct fake_range){g->pools[0].base, SLOTS * EXTENT};
    fake.max_region = 24 * EXTENT + 12345; /* slices that end inside extents */
    struct tarn_serve serve = {.log = &log, .epoch = EPOCH, .pools = g->pools, .npools = 2};
    int before = open_files();
    serve.rdma_region_bytes = 24 * EXTENT + 4096;
    if (g->n->node_ops->serve(&serve, &g->n->half))
        fail_msg("serve: %s", tarn_last_error());
    assert_in_range(open_files(), before, before + 1); /* one for the rails' thread, none for exports */
    assert_int_equal(g->n->ops->local_open(NULL, &g->n->local), 0);
}

static void stop_pools(struct gpu_node *g)
{
    tarn_standin_fail(NULL);
    g->n->node_ops->stop(g->n->half);
    g->n->half = NULL;
    device_drop(g->d, g->pools[0].base);
    device_close(g->d);
    fake_stop(g->n);
    assert_true(fake_goes_to(NULL, 0));
}

static int move(struct gpu_node *g, struct tarn_link *l, uint32_t pool, void *at, size_t bytes, bool put)
{
    struct tarn_piece p = {.addr = at, .bytes = bytes};
    struct tarn_work w = fake_work(g->n, 24, &p, 1); /* this extent lies in two slices */
    w.pool = pool;
    return run_work(g->n->ops, l, &w, put);
}

/* Moves host memory to the GPU pool and back, and checks the bytes in the pool. */
static void pool_works(struct gpu_node *g, struct tarn_link *l, size_t bytes)
{
    char *from = malloc(bytes), *to = calloc(1, bytes), *there = malloc(bytes);
    assert_true(from && to && there);
    fill(from, bytes, bytes);
    assert_int_equal(move(g, l, 0, from, bytes, true), 0);
    device_read(g->d, there, (char *)g->pools[0].base + 24 * EXTENT, bytes);
    assert_memory_equal(there, from, bytes);
    commit(g->n, 24);
    assert_int_equal(move(g, l, 0, to, bytes, false), 0);
    assert_memory_equal(to, from, bytes);
    commit(g->n, 24);
    free(from);
    free(to);
    free(there);
}

static void a_gpu_pool_is_registered_in_slices(void **state)
{
    (void)state;
    for (enum way way = DMABUF; way <= NO_EXPORT; way++) {
        struct gpu_node g;
        uint32_t dmabufs = 0;
        start_pools(&g, way);
        assert_true(g.n->node_ops->serves(g.n->half, 0));
        for (uint32_t i = 0; i < fake.nmrs; i++)
            dmabufs += fake.mr[i].dmabuf;
        assert_int_equal(dmabufs, way == DMABUF ? 6 * 2 * 2 : 0); /* slices, rails, read and write */
        struct tarn_link *l = fake_link(g.n, true);
        assert_int_equal(tarn_rdma_link(l)->pools[0].slice_bytes, 24 * EXTENT + 4096);
        pool_works(&g, l, SMALL);
        pool_works(&g, l, EXTENT);
        g.n->ops->close(l);
        assert_int_equal(g.lines, 0);
        stop_pools(&g);
    }
}

static void a_refused_gpu_pool_is_left_to_other_transports(void **state)
{
    (void)state;
    struct gpu_node g;
    char here[SMALL] = "here";
    start_pools(&g, REFUSED);
    assert_false(g.n->node_ops->serves(g.n->half, 0));
    assert_true(g.n->node_ops->serves(g.n->half, 1));
    assert_int_equal(g.lines, 1);
    assert_non_null(strstr(g.log, "pool=gpu"));
    assert_non_null(strstr(g.log, "dma-buf: Operation not supported; peermem: Bad address"));
    struct tarn_link *l = fake_link(g.n, true); /* the CPU pool is unaffected and in its place */
    assert_int_equal(move(&g, l, 1, here, SMALL, true), 0);
    assert_memory_equal((char *)g.pools[1].base + 24 * EXTENT, here, SMALL);
    assert_int_equal(move(&g, l, 0, here, SMALL, true), TARN_E_STALE);
    g.n->ops->close(l);
    stop_pools(&g);
}

/* --- memory of the client ----------------------------------------------------------------------- */

struct fixture {
    struct fake_node *n;
    struct tarn_link *l;
    struct device *d;
    char *there; /* GPU memory, not page-aligned */
    int idle, files;
};

static void start_client(struct fixture *f, enum way way)
{
    begin_verbs(2, way);
    f->n = fake_start("rdma", false, 0);
    f->l = fake_link(f->n, true);
    f->d = device_open(0);
    f->there = device_alloc(f->d, MEMORY);
    fake.gpu = (struct fake_range){f->there, MEMORY};
    f->there += 256;
    f->idle = fake.mrs;
    f->files = open_files();
}

static void stop_client(struct fixture *f)
{
    tarn_standin_fail(NULL);
    assert_int_equal(fake.mrs, f->idle);
    assert_int_equal(open_files(), f->files);
    assert_int_equal(tarn_rdma_link(f->l)->bounces, UINT64_MAX);
    f->n->ops->close(f->l);
    fake_stop(f->n);
    device_drop(f->d, f->there - 256);
    device_close(f->d);
    assert_true(fake_goes_to(NULL, 0));
}

static int work_of(struct fixture *f, uint32_t slot, char *at, size_t bytes, bool put)
{
    struct tarn_piece p = {.addr = at, .bytes = bytes};
    struct tarn_work w = fake_work(f->n, slot, &p, 1);
    w.gpu = 1;
    return run_work(f->n->ops, f->l, &w, put);
}

/* Puts GPU memory, then gets it into another part of GPU memory. */
static void memory_works(struct fixture *f, uint32_t slot, size_t bytes)
{
    char *want = malloc(bytes), *got = malloc(bytes), *pool = (char *)f->n->pool.base + slot * EXTENT;
    assert_true(want && got);
    fill(want, bytes, slot);
    device_write(f->d, f->there, want, bytes);
    assert_int_equal(work_of(f, slot, f->there, bytes, true), 0);
    assert_memory_equal(pool, want, bytes);
    commit(f->n, slot);
    assert_int_equal(work_of(f, slot, f->there + EXTENT, bytes, false), 0);
    device_read(f->d, got, f->there + EXTENT, bytes);
    assert_memory_equal(got, want, bytes);
    free(want);
    free(got);
}

/* Even small works are registered; with host memory those use the link's own buffers. */
static void gpu_memory_is_registered_for_the_work(void **state)
{
    (void)state;
    for (enum way way = DMABUF; way <= NO_EXPORT; way++) {
        struct fixture f;
        start_client(&f, way);
        uint32_t before = fake.nmrs;
        memory_works(&f, 0, 1);
        memory_works(&f, 1, SMALL);
        memory_works(&f, 2, LARGE);
        assert_int_equal(fake.nmrs, before + 6 * 2);
        for (uint32_t i = before; i < fake.nmrs; i++)
            assert_int_equal(fake.mr[i].dmabuf, way == DMABUF);
        stop_client(&f);
    }
}

/* Pieces that are far apart each get their own registration. */
static void scattered_gpu_memory_is_registered_piece_by_piece(void **state)
{
    (void)state;
    struct fixture f;
    char want[2 * SMALL];
    start_client(&f, DMABUF);
    struct tarn_piece p[] = {{f.there, SMALL, 0, 0}, {f.there + 2 * EXTENT, SMALL, 0, 0}};
    fill(want, sizeof want, 3);
    device_write(f.d, p[0].addr, want, SMALL);
    device_write(f.d, p[1].addr, want + SMALL, SMALL);
    struct tarn_work w = fake_work(f.n, 0, p, 2);
    w.gpu = 1;
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), 0);
    assert_memory_equal(f.n->pool.base, want, sizeof want);
    stop_client(&f);
}

static void registered_gpu_memory_is_not_registered_again(void **state)
{
    (void)state;
    for (enum way way = DMABUF; way <= NO_EXPORT; way++) {
        struct fixture f;
        start_client(&f, way);
        assert_int_equal(f.n->ops->map(f.n->local, f.there, 2 * EXTENT), 0);
        assert_int_equal(open_files(), f.files);
        uint32_t before = fake.nmrs;
        memory_works(&f, 0, SMALL);
        memory_works(&f, 1, LARGE);
        assert_int_equal(fake.nmrs, before);
        assert_int_equal(f.n->ops->unmap(f.n->local, f.there, 2 * EXTENT), 0);
        stop_client(&f);
    }
}

/* GPU memory is never staged through the CPU. Host memory works as usual. */
static void refused_gpu_memory_is_not_reachable(void **state)
{
    (void)state;
    struct fixture f;
    char here[LARGE];
    start_client(&f, REFUSED);
    commit(f.n, 1);
    for (uint64_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        assert_int_equal(work_of(&f, 0, f.there, bytes, true), TARN_E_NOT_REACHABLE);
        says("GPU memory: dma-buf: Operation not supported; peermem: Bad address: load nvidia-peermem");
        assert_int_equal(work_of(&f, 1, f.there, bytes, false), TARN_E_NOT_REACHABLE);
    }
    int asked = fake.asked;
    take(DMABUF);
    assert_int_equal(work_of(&f, 0, f.there, SMALL, true),
                     TARN_E_NOT_REACHABLE); /* the device is not asked again so soon */
    says("peermem: Bad address");
    assert_int_equal(fake.asked, asked);
    fill(here, LARGE, 9);
    assert_int_equal(put_bytes(f.n, f.l, 0, here, LARGE), 0);
    assert_memory_equal(f.n->pool.base, here, LARGE);
    tarn_rdma_local(f.n->local)->refused.until_ns = tarn_now_ns();
    memory_works(&f, 2, SMALL);
    take(REFUSED);
    assert_int_equal(f.n->ops->map(f.n->local, f.there, EXTENT), TARN_E_UNSUPPORTED);
    stop_client(&f);
}

/* A get ends only when the GPU can see what the device wrote. */
static void a_get_ends_when_the_gpu_sees_its_bytes(void **state)
{
    (void)state;
    struct fixture f;
    start_client(&f, DMABUF);
    tarn_standin_fail("flush:*");
    assert_int_equal(work_of(&f, 0, f.there, SMALL, true), 0);
    commit(f.n, 0);
    assert_int_equal(work_of(&f, 0, f.there, SMALL, false), TARN_E_SYSTEM);
    says("flush");
    stop_client(&f);
}

/* --- routes ------------------------------------------------------------------------------------- */

/* Puts and gets GPU memory. Returns how many of the bytes went by rdma. */
static uint64_t bytes_by_rdma(struct tarn_client *c, struct device *d, uint8_t *there, const char *key,
                              uint8_t byte, size_t bytes)
{
    uint64_t before = fake.device[0].moved;
    device_set(d, there, byte, bytes);
    if (piece_put(c, key, there, bytes, NULL))
        fail_msg("put: %s", tarn_last_error());
    device_set(d, there, 0, bytes);
    if (piece_get(c, key, there, bytes))
        fail_msg("get: %s", tarn_last_error());
    device_expect(d, there, byte, bytes);
    return fake.device[0].moved - before;
}

static void works_go_by_tcp_where_rdma_refuses(void **state)
{
    (void)state;
    static const size_t sizes[] = {SMALL, LARGE};
    struct here e;
    struct tarn_mr *mr;
    for (enum way way = DMABUF; way <= REFUSED; way++) {
        begin_verbs(1, way);
        start_here(&e);
        struct tarn_client *c = client_open(e.redis->url, (struct tarn_options){.transports = "rdma,tcp"});
        struct device *d = device_open(0);
        uint8_t *there = device_alloc(d, LARGE);
        fake.gpu = (struct fake_range){(char *)there, LARGE};
        for (int i = 0; i < 4; i++) { /* first two: not registered; last two: registered as far as possible */
            char key[8];
            size_t bytes = sizes[i % 2];
            snprintf(key, sizeof key, "k%d", i);
            if (i == 2)
                assert_int_equal(tarn_register(c, there, LARGE, TARN_MEMORY_CUDA, &mr), 0);
            uint64_t moved = bytes_by_rdma(c, d, there, key, (uint8_t)(i + 1), bytes);
            if (way == REFUSED)
                assert_int_equal(moved, 0);
            else
                assert_true(moved >= 2 * bytes);
        }
        assert_int_equal(tarn_deregister(c, mr), 0);
        device_drop(d, there);
        device_close(d);
        tarn_close(c);
        stop_here(&e);
        assert_true(fake_goes_to(NULL, 0));
        tarn_standin_fail(NULL);
    }
}

static void the_error_has_the_reason_where_rdma_is_the_only_transport(void **state)
{
    (void)state;
    struct here e;
    begin_verbs(1, REFUSED);
    start_here(&e);
    struct tarn_client *c = client_open(e.redis->url, (struct tarn_options){.transports = "rdma"});
    struct device *d = device_open(0);
    uint8_t *there = device_alloc(d, LARGE);
    fake.gpu = (struct fake_range){(char *)there, LARGE};
    assert_int_equal(piece_put(c, "k", there, SMALL, NULL), TARN_E_NOT_REACHABLE);
    says("peermem: Bad address");
    assert_int_equal(client_put(c, "k", 'k', SMALL, NULL), 0);
    assert_int_equal(piece_get(c, "k", there, SMALL), TARN_E_NOT_REACHABLE);
    says("peermem: Bad address");
    device_drop(d, there);
    device_close(d);
    tarn_close(c);
    stop_here(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_memory_is_exported_or_refused_with_the_reason),
        cmocka_unit_test(a_gpu_pool_is_registered_in_slices),
        cmocka_unit_test(a_refused_gpu_pool_is_left_to_other_transports),
        cmocka_unit_test(gpu_memory_is_registered_for_the_work),
        cmocka_unit_test(scattered_gpu_memory_is_registered_piece_by_piece),
        cmocka_unit_test(registered_gpu_memory_is_not_registered_again),
        cmocka_unit_test(refused_gpu_memory_is_not_reachable),
        cmocka_unit_test(a_get_ends_when_the_gpu_sees_its_bytes),
        cmocka_unit_test(works_go_by_tcp_where_rdma_refuses),
        cmocka_unit_test(the_error_has_the_reason_where_rdma_is_the_only_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
