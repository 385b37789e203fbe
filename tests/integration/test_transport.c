/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport does, with both halves driven directly. Each case runs over each transport, with the
 * node half in this process and in a forked one. The last tests cover shm alone, and the registry.
 */
#include "tests/unit/fake_node.h"

#include "tests/harness.h"
#include "tests/tcpx/child.h"

#include <pthread.h>

struct mode {
    const char *transport;
    bool forked;
};

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *reader, *writer; /* equal if one link does both */
};

static struct fixture begin(void **state)
{
    const struct mode *m = *state;
    if (fake_transport(m->transport)->probe())
        harness_skip(m->transport, tarn_last_error());
    struct fixture f = {.n = fake_start(m->transport, m->forked, 0)};
    f.ops = f.n->ops;
    f.reader = f.writer = fake_link(f.n, false);
    if (!f.reader->writable)
        f.writer = fake_link(f.n, true);
    assert_true(f.writer->writable);
    return f;
}

static void end(struct fixture *f)
{
    if (f->writer != f->reader)
        f->ops->close(f->writer);
    f->ops->close(f->reader);
    fake_stop(f->n);
}

static char *new_buffer(size_t bytes, uint64_t seed)
{
    char *b = malloc(bytes + 1);
    assert_non_null(b);
    fill(b, bytes, seed);
    return b;
}

/* --- every transport ---------------------------------------------------------------------------- */

static void a_get_returns_the_put_bytes(void **state)
{
    struct fixture f = begin(state);
    const size_t sizes[] = {1, 47, 48, 49, 4096, 65537, EXTENT};
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *in = new_buffer(sizes[i], i), *out = new_buffer(sizes[i], 99);
        assert_int_equal(put_bytes(f.n, f.writer, i, in, sizes[i]), 0);
        assert_memory_equal((char *)f.n->pool.base + i * EXTENT, in, sizes[i]);
        commit(f.n, i);
        assert_int_equal(get_bytes(f.n, f.reader, i, out, sizes[i]), 0);
        assert_memory_equal(in, out, sizes[i]);
        assert_int_equal(get_bytes(f.n, f.writer, i, out, sizes[i]), 0); /* a link for writing also reads */
        free(in);
        free(out);
    }
    end(&f);
}

static void zero_bytes_still_check(void **state)
{
    struct fixture f = begin(state);
    assert_int_equal(put_bytes(f.n, f.writer, 0, NULL, 0), 0);
    assert_int_equal(get_bytes(f.n, f.reader, 0, NULL, 0), TARN_E_STALE);
    commit(f.n, 0);
    assert_int_equal(get_bytes(f.n, f.reader, 0, NULL, 0), 0);
    assert_int_equal(put_bytes(f.n, f.writer, 0, NULL, 0), TARN_E_STALE);
    end(&f);
}

static void a_get_of_another_generation_is_stale(void **state)
{
    struct fixture f = begin(state);
    char out[100];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    commit(f.n, 3);
    struct tarn_work w = fake_work(f.n, 3, &p, 1);
    assert_int_equal(run_work(f.ops, f.reader, &w, false), 0);
    commit(f.n, 3); /* freed */
    w.owner = NULL;
    assert_int_equal(run_work(f.ops, f.reader, &w, false), TARN_E_STALE);
    commit(f.n, 3); /* another object */
    w.owner = NULL;
    assert_int_equal(run_work(f.ops, f.reader, &w, false), TARN_E_STALE);
    w.owner = NULL;
    w.gen = atomic_load(&f.n->pool.gen[3]);
    assert_int_equal(run_work(f.ops, f.reader, &w, false), 0);
    end(&f);
}

static void a_put_without_reservation_changes_nothing(void **state)
{
    struct fixture f = begin(state);
    bool checked = !(f.ops->caps & TARN_CAP_UNCHECKED); /* unchecked: ends with its links */
    size_t bytes = 300000;
    char *in = new_buffer(bytes, 1), *nothing = calloc(1, bytes);
    commit(f.n, 0); /* readable now */
    assert_int_equal(put_bytes(f.n, f.writer, 0, in, bytes), TARN_E_STALE);
    struct tarn_piece p = {in, bytes, 0, 0};
    struct tarn_work w = fake_work(f.n, 1, &p, 1);
    w.gen += 2; /* a future reservation */
    if (checked)
        assert_int_equal(run_work(f.ops, f.writer, &w, true), TARN_E_STALE);
    assert_memory_equal(f.n->pool.base, nothing, bytes);
    assert_memory_equal((char *)f.n->pool.base + EXTENT, nothing, bytes);
    assert_int_equal(put_bytes(f.n, f.writer, 2, in, bytes), 0); /* the link still works */
    assert_memory_equal((char *)f.n->pool.base + 2 * EXTENT, in, bytes);
    free(in);
    free(nothing);
    end(&f);
}

static void descriptors_out_of_the_pool_are_stale(void **state)
{
    struct fixture f = begin(state);
    char out[100];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    commit(f.n, 0);
    for (int i = 0; i < 5; i++) {
        struct tarn_work w = fake_work(f.n, 0, &p, 1);
        w.offset = i == 0 ? SLOTS * EXTENT - 99 : i == 1 ? UINT64_MAX - 10 : w.offset;
        w.slot = i == 2 ? SLOTS : i == 3 ? UINT32_MAX : w.slot;
        w.pool = i == 4 ? 1 : 0;
        assert_int_equal(run_work(f.ops, f.reader, &w, false), TARN_E_STALE);
    }
    assert_int_equal(get_bytes(f.n, f.reader, 0, out, sizeof(out)), 0);
    end(&f);
}

static void pieces_are_scattered_and_gathered(void **state)
{
    struct fixture f = begin(state);
    enum { RUN = 512, RUNS = 1024, APART = 777 };
    size_t span = (size_t)RUNS * APART;
    char *in = new_buffer(span, 5), *out = calloc(1, span);
    /* Strided, single and empty pieces; more runs than a system call takes. */
    struct tarn_piece put[] = {
        {in, RUN, APART, RUNS - 1}, {in, 0, 0, 0}, {in + (RUNS - 1) * APART, RUN, 0, 1}};
    struct tarn_piece get[RUNS];
    for (int i = 0; i < RUNS; i++)
        get[i] = (struct tarn_piece){out + (RUNS - 1 - i) * APART, RUN, 0, 0}; /* runs in reverse order */
    struct tarn_work w = fake_work(f.n, 7, put, 3);
    assert_int_equal(run_work(f.ops, f.writer, &w, true), 0);
    commit(f.n, 7);
    w = fake_work(f.n, 7, get, RUNS);
    assert_int_equal(run_work(f.ops, f.reader, &w, false), 0);
    for (int i = 0; i < RUNS; i++) {
        assert_memory_equal(in + i * APART, out + (RUNS - 1 - i) * APART, RUN);
        for (int gap = RUN; gap < APART && i < RUNS - 1; gap++)
            assert_int_equal(out[i * APART + gap], 0); /* nothing is written between runs */
    }
    free(in);
    free(out);
    end(&f);
}

/* Gets and puts of many sizes at once on one link, some of them stale. Each has its own result. */
static void many_in_flight(void **state)
{
    struct fixture f = begin(state);
    enum { N = SLOTS };
    static struct tarn_work w[N];
    static struct tarn_piece p[N];
    char *in[N], *out[N];
    for (uint32_t i = 0; i < N; i++) {
        size_t bytes = i % 8 == 0 ? 0 : i % 8 == 1 ? 200000 : 100 * i;
        in[i] = new_buffer(bytes, i);
        out[i] = new_buffer(bytes, 1000);
        p[i] = (struct tarn_piece){in[i], bytes, 0, 0};
        w[i] = fake_work(f.n, i, &p[i], 1);
        w[i].gen += i % 5 == 4 ? 2 : 0;
        submit(f.ops, f.writer, &w[i], true);
    }
    assert_int_equal(finish_works(f.ops, f.writer, w, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        bool checked = !(f.ops->caps & TARN_CAP_UNCHECKED);
        assert_int_equal(w[i].status, i % 5 == 4 && checked ? TARN_E_STALE : 0);
        commit(f.n, i);
        p[i].addr = out[i];
        w[i] = fake_work(f.n, i, &p[i], 1);
        w[i].gen += i % 7 == 6 ? 2 : 0;
        submit(f.ops, f.reader, &w[i], false);
    }
    assert_int_equal(finish_works(f.ops, f.reader, w, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(w[i].status, i % 7 == 6 ? TARN_E_STALE : 0);
        if (w[i].status == 0 && i % 5 != 4)
            assert_memory_equal(in[i], out[i], p[i].bytes);
        free(in[i]);
        free(out[i]);
    }
    wait_until(fake_pins(f.n) == 0); /* pins end shortly after the client has the last byte */
    end(&f);
}

/* Both directions of one link at the same time. */
static void gets_and_puts_together(void **state)
{
    struct fixture f = begin(state);
    enum { N = 32 };
    size_t bytes = EXTENT;
    char *in = new_buffer(bytes, 1), *out = malloc(bytes * N);
    assert_int_equal(put_bytes(f.n, f.writer, 0, in, bytes), 0);
    commit(f.n, 0);
    struct tarn_work w[2 * N];
    struct tarn_piece p[N], put = {in, bytes, 0, 0};
    for (uint32_t i = 0; i < N; i++) {
        p[i] = (struct tarn_piece){out + i * bytes, bytes, 0, 0};
        w[2 * i] = fake_work(f.n, 0, &p[i], 1);
        w[2 * i + 1] = fake_work(f.n, i + 1, &put, 1);
        submit(f.ops, f.writer, &w[2 * i], false);
        submit(f.ops, f.writer, &w[2 * i + 1], true);
    }
    assert_int_equal(finish_works(f.ops, f.writer, w, 2 * N), 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(w[2 * i].status, 0);
        assert_int_equal(w[2 * i + 1].status, 0);
        assert_memory_equal(out + i * bytes, in, bytes);
        assert_memory_equal((char *)f.n->pool.base + (i + 1) * EXTENT, in, bytes);
    }
    free(in);
    free(out);
    end(&f);
}

/* A node that reuses an extent as fast as it can, as the store would. */
struct rewriter {
    struct fake_node *n;
    uint32_t slot;
    size_t bytes;
    atomic_bool stop;
    _Atomic int gets; /* gets begun so far */
};

static void rewrite(struct rewriter *r, char value)
{
    atomic_fetch_add(&r->n->pool.gen[r->slot], 1); /* odd */
    while (atomic_load(&r->n->shared->pins[r->slot]))
        sched_yield();
    char *at = (char *)r->n->pool.base + r->slot * EXTENT;
    memset(at, value, r->bytes);
    atomic_fetch_add(&r->n->pool.gen[r->slot], 1);
}

/* Rewrites during every other get. If it were every get, a slow reader would never succeed. */
static void *keep_rewriting(void *arg)
{
    struct rewriter *r = arg;
    for (int i = 0, seen = 0; !atomic_load(&r->stop);) {
        if (atomic_load(&r->gets) - seen < 2) {
            sched_yield();
            continue;
        }
        seen = atomic_load(&r->gets);
        rewrite(r, (char)i++);
    }
    return NULL;
}

/* A get never returns bytes of two versions, whatever the node does during the get. */
static void no_torn_reads(void **state)
{
    struct fixture f = begin(state);
    struct rewriter r = {.n = f.n, .slot = 0, .bytes = 20000};
    pthread_t thread;
    rewrite(&r, 0);
    atomic_fetch_add(&f.n->pool.gen[0], 1); /* even: rewrite() keeps the parity */
    assert_int_equal(pthread_create(&thread, NULL, keep_rewriting, &r), 0);
    char *out = malloc(r.bytes);
    int good = 0;
    for (uint64_t deadline = tarn_deadline(WAIT_MS); good < 200;) {
        assert_true(tarn_now_ns() < deadline);
        atomic_fetch_add(&r.gets, 1);
        int status = get_bytes(f.n, f.reader, 0, out, r.bytes);
        if (status) {
            assert_int_equal(status, TARN_E_STALE);
            continue;
        }
        good++;
        for (size_t i = 1; i < r.bytes; i++)
            assert_int_equal(out[i], out[0]);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    free(out);
    end(&f);
}

static void close_completes_what_is_in_flight(void **state)
{
    struct fixture f = begin(state);
    enum { N = 16 };
    size_t bytes = EXTENT;
    char *buffer = new_buffer(bytes, 1);
    struct tarn_piece p = {buffer, bytes, 0, 0};
    struct tarn_work w[2 * N];
    for (uint32_t i = 0; i < N; i++)
        commit(f.n, i);
    struct tarn_link *l = fake_link(f.n, true);
    for (uint32_t i = 0; i < 2 * N; i++) {
        w[i] = fake_work(f.n, i, &p, 1);
        submit(f.ops, l, &w[i], i >= N);
        if (i % 8 == 0)
            f.ops->progress(l);
    }
    f.ops->close(l);
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_non_null(w[i].owner);
        assert_true(w[i].status == 0 || w[i].status == TARN_E_CANCELED);
    }
    wait_until(fake_pins(f.n) == 0); /* the node's pins end, too */
    free(buffer);
    end(&f);
}

static void attach_answers_are_checked(void **state)
{
    struct fixture f = begin(state);
    const char *texts[] = {"v",
                           "v2 1 0 4096 1",
                           "v1",
                           "v1 1 0 4096",
                           "v1 x",
                           "v1 99 0 4096 1",
                           "v1 127.0.0.1:x y",
                           "v1 127.0.0.1:1 0123456789abcdef0123456789abcdef0",
                           "v1 1 77 4096 1",
                           "v1 1 0 -1 1"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct tarn_link *l;
        int r = fake_connect_with(f.n, texts[i], &l);
        assert_int_equal(r, strncmp(texts[i], "v1", 2) == 0 ? TARN_E_PROTOCOL : TARN_E_VERSION);
        assert_null(l);
    }
    end(&f);
}

/* --- shm ---------------------------------------------------------------------------------------- */

static void shm_refuses_files_that_could_fault(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    for (int which = 0; which < 8; which++) {
        char text[TARN_ATTACH_TEXT];
        int fds[56];
        struct tarn_link *l = NULL;
        struct tarn_peer p = fake_peer(text, fds, fake_attach(n, SESSION, false, "", text, fds));
        assert_int_equal(p.nfds, 4);
        close(fds[which / 2]);
        fds[which / 2] = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        /* Large enough but unsealed, then sealed but too small. */
        assert_int_equal(ftruncate(fds[which / 2], which % 2 ? 10 : (off_t)(SLOTS * EXTENT)), 0);
        if (which % 2)
            fcntl(fds[which / 2], F_ADD_SEALS, F_SEAL_SHRINK);
        assert_int_equal(n->ops->connect(&p, &l), TARN_E_PROTOCOL);
        for (uint32_t i = 0; i < p.nfds; i++)
            close(fds[i]);
    }
    fake_stop(n);
}

static void shm_readers_cannot_write(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", true, 0);
    char text[TARN_ATTACH_TEXT], in[16] = "x";
    int fds[56];
    assert_int_equal(fake_attach(n, SESSION, false, "", text, fds), 4);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) == MAP_FAILED); /* arena */
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0) == MAP_FAILED); /* gen */
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    struct tarn_link *l = fake_link(n, false);
    assert_false(l->writable);
    assert_int_equal(put_bytes(n, l, 0, in, sizeof(in)), TARN_E_NOT_REACHABLE);
    n->ops->close(l);
    fake_stop(n);
}

static void shm_needs_the_unix_socket(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_attach a = {.session = SESSION, .local = false, .hazard_fd = -1};
    assert_int_equal(n->node_ops->attach(n->half, &a), TARN_E_NOT_REACHABLE);
    fake_stop(n);
}

static void shm_counts_use_only_when_asked(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *l = fake_link(n, false);
    char out[16];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    commit(n, 5);
    struct tarn_work w = fake_work(n, 5, &p, 1);
    assert_int_equal(run_work(n->ops, l, &w, false), 0);
    assert_int_equal(atomic_load(&n->pool.touch[5]), 0);
    w.owner = NULL;
    w.touch = true;
    assert_int_equal(run_work(n->ops, l, &w, false), 0);
    assert_in_range(atomic_load(&n->pool.touch[5]), 99, 100 + WAIT_MS / 10); /* fake_peer: tick 100 */
    n->ops->touch(l, 0, 6);
    assert_true(atomic_load(&n->pool.touch[6]) >= 99);
    n->ops->touch(l, 0, SLOTS);
    n->ops->touch(l, 1, 0);
    n->ops->close(l);
    fake_stop(n);
}

static void shm_views_publish_hazards(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *l = fake_link(n, false);
    const void *addr;
    uint32_t hazard[TARN_HAZARDS], more;
    commit(n, 9);
    uint64_t gen = atomic_load(&n->pool.gen[9]), at = 9 * EXTENT;
    strcpy((char *)n->pool.base + at, "seen in place");
    for (uint32_t i = 0; i < TARN_HAZARDS; i++) {
        assert_int_equal(n->ops->view(l, 0, 9, gen, at, EXTENT, &addr, &hazard[i]), 0);
        assert_string_equal(addr, "seen in place");
        assert_int_equal(atomic_load(&n->hazards->entry[hazard[i]]), 9 + 1);
        assert_int_equal(atomic_load(&n->hazards->used), i + 1); /* low entries first */
    }
    assert_int_equal(n->ops->view(l, 0, 9, gen, at, 1, &addr, &more), TARN_E_AGAIN);
    n->ops->unview(l, hazard[77]);
    assert_int_equal(atomic_load(&n->hazards->entry[hazard[77]]), 0);
    assert_int_equal(n->ops->view(l, 0, 9, gen, at, 1, &addr, &more), 0);
    assert_int_equal(more, hazard[77]);
    for (uint32_t i = 0; i < TARN_HAZARDS; i++)
        n->ops->unview(l, hazard[i]);
    commit(n, 9);
    assert_int_equal(n->ops->view(l, 0, 9, gen, at, 1, &addr, &more), TARN_E_STALE);
    assert_int_equal(n->ops->view(l, 0, 9, gen + 1, at, 1, &addr, &more), TARN_E_STALE); /* not readable */
    assert_int_equal(n->ops->view(l, 0, 0, gen, SLOTS * EXTENT, 1, &addr, &more), TARN_E_STALE);
    for (uint32_t i = 0; i < TARN_HAZARDS; i++)
        assert_int_equal(atomic_load(&n->hazards->entry[i]), 0);
    n->ops->close(l);
    fake_stop(n);
}

struct viewer {
    struct fake_node *n;
    struct tarn_link *l;
    uint32_t slot;
};

static void *view_again_and_again(void *arg)
{
    struct viewer *v = arg;
    for (int i = 0; i < 3000; i++) {
        const void *addr;
        uint32_t hazard[4];
        for (int k = 0; k < 4; k++)
            if (v->n->ops->view(v->l, 0, v->slot, v->n->pool.gen[v->slot], v->slot * EXTENT, 8, &addr,
                                &hazard[k]))
                return "view";
        for (int k = 0; k < 4; k++)
            if (atomic_load(&v->n->hazards->entry[hazard[k]]) != v->slot + 1)
                return "somebody took the entry"; /* threads never share an entry */
        for (int k = 0; k < 4; k++)
            v->n->ops->unview(v->l, hazard[k]);
    }
    return NULL;
}

static void shm_views_from_many_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *l = fake_link(n, false);
    struct viewer v[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        v[i] = (struct viewer){n, l, i};
        commit(n, i);
        assert_int_equal(pthread_create(&threads[i], NULL, view_again_and_again, &v[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        void *failure;
        pthread_join(threads[i], &failure);
        assert_null(failure);
    }
    assert_true(atomic_load(&n->hazards->used) <= 64); /* so the node scans only a few entries */
    n->ops->close(l);
    fake_stop(n);
}

/* --- registry ----------------------------------------------------------------------------------- */

static void the_registry_finds_and_selects(void **state)
{
    (void)state;
    const struct tarn_transport_ops *out[8];
    assert_string_equal(tarn_transport_list[0]->name, "shm");
    assert_ptr_equal(find_transport("cuda_ipc"), tarn_transport_list[1]);
    assert_ptr_equal(find_transport("rdma"), tarn_transport_list[2]);
    assert_ptr_equal(find_transport("tcpx"), tarn_transport_list[3]);
    assert_ptr_equal(find_transport("tcp"), tarn_transport_list[4]);
    assert_null(find_transport("tc"));
    int rdma = find_transport("rdma")->probe() == 0;
    int usable = 4 + rdma; /* cuda_ipc is not probed; a plugin is named */
    assert_int_equal(tarn_transport_select(NULL, NULL, out, 8), usable);
    assert_int_equal(tarn_transport_select("", NULL, out, 8), usable);
    assert_int_equal(tarn_transport_select("tcp,shm", NULL, out, 8), 2); /* in the list's order */
    assert_string_equal(out[0]->name, "shm");
    assert_int_equal(tarn_transport_select("tcp", NULL, out, 8), 1);
    assert_string_equal(out[0]->name, "tcp");
    assert_int_equal(tarn_transport_select("shm,tcp", NULL, out, 1), 1);
    assert_int_equal(tarn_transport_select("shn", NULL, out, 8), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "did you mean \"shm\""));
    assert_int_equal(tarn_transport_select("tcp,,shm", NULL, out, 8), TARN_E_CONFIG);
    assert_int_equal(tarn_transport_select("infiniband", NULL, out, 8), TARN_E_CONFIG);
}

static void keep_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 512, "%s", line);
}

/* The refusal gives the cause. If other transports remain, the cause is logged. */
static void a_named_unusable_transport_is_reported(void **state)
{
    const struct tarn_transport_ops *out[8];
    char line[512] = "";
    const struct tarn_logger log = {.level = TARN_LOG_WARN, .fn = keep_line, .arg = line};
    char *plugin = strdup(getenv("TARN_TCPX_PLUGIN"));
    (void)state;
    setenv("TARN_TCPX_PLUGIN", "/nowhere/lib.so", 1);
    int alone = tarn_transport_select("tcpx", NULL, out, 8);
    bool told =
        strstr(tarn_last_error(), "transport tcpx is not usable here: TARN_TCPX_PLUGIN=/nowhere/lib.so: ");
    int all = tarn_transport_select(NULL, &log, out, 8);
    bool silent = !*line;
    int others = tarn_transport_select("tcpx,tcp", &log, out, 8);
    setenv("TARN_TCPX_PLUGIN", plugin, 1);
    free(plugin);
    assert_int_equal(alone, TARN_E_UNAVAILABLE);
    assert_true(told);
    assert_true(all >= 2 && silent);
    assert_int_equal(others, 1);
    assert_string_equal(out[0]->name, "tcp");
    assert_non_null(
        strstr(line, "level=warn at=transport msg=\"not usable here\" transport=tcpx cause=\"TARN_TCPX"));
}

static void every_slot_is_filled(void **state)
{
    (void)state;
    for (int i = 0; tarn_transport_list[i]; i++) {
        const struct tarn_transport_ops *t = tarn_transport_list[i];
        const struct tarn_node_half_ops *n = tarn_node_half_list[i];
        assert_true(n && n->serve && n->serves && n->describe && n->attach && n->detach_link && n->detach &&
                    n->stop);
        assert_true(n->caps == t->caps && n->probe == t->probe);
        assert_string_equal(n->name, t->name);
        assert_true(t->local_open && t->local_close && t->map && t->unmap && t->offer);
        assert_true(t->connect && t->get && t->put && t->progress && t->wait_fd && t->touch);
        assert_true(t->view && t->unview && t->close);
        tarn_last_error_set("");
        assert_true(t->probe() == 0 || *tarn_last_error());
        if (!(t->caps & TARN_CAP_VIEW))
            assert_int_equal(t->view(NULL, 0, 0, 0, 0, 0, NULL, NULL), TARN_E_NOT_REACHABLE);
    }
    assert_ptr_equal(find_node_half("tcp"), tarn_node_half_list[4]);
    assert_null(tarn_node_half_list[5]);
}

static struct mode modes[] = {{"shm", false},      {"shm", true},     {"tcp", false},  {"tcp", true},
                              {"rdma", false},     {"rdma", true},    {"tcpx", false}, {"tcpx", true},
                              {"tcp-unix", false}, {"tcp-unix", true}};

#define CASE(_f) \
    {#_f " (shm)", _f, NULL, NULL, &modes[0]}, {#_f " (shm, two processes)", _f, NULL, NULL, &modes[1]}, \
        {#_f " (tcp)", _f, NULL, NULL, &modes[2]}, {#_f " (tcp, two processes)", _f, NULL, NULL, &modes[3]}, \
        {#_f " (rdma)", _f, NULL, NULL, &modes[4]}, \
        {#_f " (rdma, two processes)", _f, NULL, NULL, &modes[5]}, \
        {#_f " (tcpx)", _f, NULL, NULL, &modes[6]}, \
        {#_f " (tcpx, two processes)", _f, NULL, NULL, &modes[7]}, \
        {#_f " (tcp by Unix sockets)", _f, NULL, NULL, &modes[8]}, \
    { \
#_f " (tcp by Unix sockets, two processes)", _f, NULL, NULL, &modes[9] \
    }

int main(void)
{
    child_configure("fixture-v7");
    const struct CMUnitTest tests[] = {
        CASE(a_get_returns_the_put_bytes),
        CASE(zero_bytes_still_check),
        CASE(a_get_of_another_generation_is_stale),
        CASE(a_put_without_reservation_changes_nothing),
        CASE(descriptors_out_of_the_pool_are_stale),
        CASE(pieces_are_scattered_and_gathered),
        CASE(many_in_flight),
        CASE(gets_and_puts_together),
        CASE(no_torn_reads),
        CASE(close_completes_what_is_in_flight),
        CASE(attach_answers_are_checked),
        cmocka_unit_test(shm_refuses_files_that_could_fault),
        cmocka_unit_test(shm_readers_cannot_write),
        cmocka_unit_test(shm_needs_the_unix_socket),
        cmocka_unit_test(shm_counts_use_only_when_asked),
        cmocka_unit_test(shm_views_publish_hazards),
        cmocka_unit_test(shm_views_from_many_threads),
        cmocka_unit_test(the_registry_finds_and_selects),
        cmocka_unit_test(a_named_unusable_transport_is_reported),
        cmocka_unit_test(every_slot_is_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
