/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node for transport tests: one memfd pool of equal extents (slot i has [i * EXTENT, + EXTENT)), a guard
 * that counts pins, and a transport's node half. The node half runs in this process or in a forked one.
 * Generations and pins are in shared memory, so the test can read and change them in both cases.
 */
#ifndef TARN_TESTS_FAKE_NODE_H
#define TARN_TESTS_FAKE_NODE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/transports.h"

#ifndef EXTENT
#define SLOTS 128u
#define EXTENT (1ull << 20)
#endif
#ifndef POOLS
#define POOLS 1u
#endif
#define SESSION 0x1122334455667788u
#define EPOCH 0xabcd0000u
#define WAIT_MS 20000

struct fake_shared {
    _Atomic int pins[SLOTS];
    _Atomic uint64_t writer; /* the session that may write */
};

struct fake_node {
    const struct tarn_transport_ops *ops;
    const struct tarn_node_half_ops *node_ops;
    struct tarn_pool_memory pool, pools[POOLS]; /* every entry equals pool */
    struct fake_shared *shared;
    struct tarn_hazard_page *hazards;
    int hazard_fd;
    bool afar;
    struct tarn_local *local;    /* the client's */
    struct tarn_node_half *half; /* node half in this process */
    pid_t pid;                   /* or the forked node's process */
    int control;
    rlim_t nofile; /* limit in the forked process; 0: same as here */
};

static inline void *fake_memory(const char *name, size_t bytes, int *fd_p)
{
    *fd_p = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(*fd_p >= 0);
    assert_int_equal(ftruncate(*fd_p, (off_t)bytes), 0);
    assert_int_equal(fcntl(*fd_p, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    void *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd_p, 0);
    assert_true(addr != MAP_FAILED);
    return addr;
}

/* --- guard -------------------------------------------------------------------------------------- */

static inline int fake_pin(struct fake_node *n, uint32_t slot, uint64_t gen, uint64_t offset, uint64_t bytes,
                           void **addr_p)
{
    atomic_fetch_add(&n->shared->pins[slot], 1);
    uint64_t start = slot * EXTENT;
    if (atomic_load(&n->pool.gen[slot]) != gen || offset < start || offset - start > EXTENT ||
        bytes > EXTENT - (offset - start)) {
        atomic_fetch_sub(&n->shared->pins[slot], 1);
        return TARN_E_STALE;
    }
    *addr_p = (char *)n->pool.base + offset;
    return 0;
}

static inline int fake_pin_read(void *arg, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                                uint64_t bytes, void **addr_p)
{
    bool may = pool < POOLS && tarn_gen_readable(gen);
    return may ? fake_pin(arg, slot, gen, offset, bytes, addr_p) : TARN_E_STALE;
}

static inline int fake_pin_write(void *arg, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen,
                                 uint64_t offset, uint64_t bytes, void **addr_p)
{
    struct fake_node *n = arg;
    bool may = pool < POOLS && !tarn_gen_readable(gen) && session == atomic_load(&n->shared->writer);
    return may ? fake_pin(n, slot, gen, offset, bytes, addr_p) : TARN_E_STALE;
}

static inline void fake_unpin(void *arg, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct fake_node *n = arg;
    (void)pool;
    (void)gen;
    atomic_fetch_sub(&n->shared->pins[slot], 1);
}

static inline void fake_touch(void *arg, uint32_t pool, uint32_t slot)
{
    struct fake_node *n = arg;
    (void)pool;
    atomic_fetch_add(&n->pool.touch[slot], 1);
}

static inline int fake_pins(struct fake_node *n)
{
    int total = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        total += atomic_load(&n->shared->pins[i]);
    return total;
}

/* Waits until another thread or process makes _what true. */
#define wait_until(_what) \
    do { \
        uint64_t deadline_ = tarn_deadline(WAIT_MS); \
        while (!(_what)) { \
            assert_true(tarn_now_ns() < deadline_); \
            poll(NULL, 0, 1); \
        } \
    } while (0)

/* --- the node half, here or forked -------------------------------------------------------------- */

static inline void fake_serve(struct fake_node *n)
{
    for (uint32_t i = 0; i < POOLS; i++)
        n->pools[i] = n->pool;
    struct tarn_serve serve = {
        .host = "127.0.0.1",
        .io_threads = 2,
        .epoch = EPOCH,
        .pools = n->pools,
        .npools = POOLS,
        .guard = {n, fake_pin_read, fake_pin_write, fake_unpin, fake_touch},
    };
    if (n->node_ops->serve(&serve, &n->half))
        fail_msg("serve: %s", tarn_last_error());
}

struct fake_command {
    char what; /* 'r', 'w': attach; 'd': detach; 'q': quit */
    uint64_t session;
    char offer[TARN_OFFER_TEXT];
};

static inline void fake_send_fds(int to, const char *text, const int *fds, uint32_t nfds)
{
    union {
        char bytes[CMSG_SPACE(56 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)text, strlen(text) + 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(nfds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    }
    assert_true(sendmsg(to, &m, MSG_NOSIGNAL) > 0);
}

static inline uint32_t fake_receive_fds(int from, char *text, size_t text_bytes, int *fds)
{
    union {
        char bytes[CMSG_SPACE(56 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {text, text_bytes};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    assert_true(recvmsg(from, &m, MSG_CMSG_CLOEXEC) > 0);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c)
        return 0;
    memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    return (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

static inline void fake_attached(struct tarn_attach *a)
{
    __atomic_store_n(&a->nfds, 0, __ATOMIC_RELEASE);
}

/* Runs ATTACH and waits for its answer. */
static inline int fake_attach_here(struct fake_node *n, struct tarn_attach *a)
{
    a->local = !n->afar;
    a->hazard_fd = n->hazard_fd;
    a->done = fake_attached;
    a->nfds = UINT32_MAX; /* until the answer comes */
    int r = n->node_ops->attach(n->half, a);
    if (r != TARN_INPROGRESS)
        return r;
    wait_until(__atomic_load_n(&a->nfds, __ATOMIC_ACQUIRE) != UINT32_MAX);
    return tarn_reason_fail(&a->result);
}

static inline void fake_child(struct fake_node *n, int control)
{
    if (n->nofile)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){n->nofile, n->nofile});
    fake_serve(n);
    struct fake_command c;
    while (recv(control, &c, sizeof(c), 0) == sizeof(c) && c.what != 'q') {
        struct tarn_attach a = {.session = c.session, .write = c.what == 'w', .offer = c.offer};
        if (c.what == 'd')
            n->node_ops->detach(n->half, c.session);
        else if (fake_attach_here(n, &a))
            a.text[0] = '\0';
        fake_send_fds(control, a.text, a.fds, a.nfds);
        for (uint32_t i = 0; i < a.nfds; i++)
            if (a.close_fds[i])
                close(a.fds[i]);
    }
    n->node_ops->stop(n->half);
    _exit(fake_pins(n) == 0 ? 0 : 1); /* stop() must always give back every pin */
}

#ifdef __SANITIZE_THREAD__
#define FAKE_THREADS 2 /* ThreadSanitizer adds a thread */
#else
#define FAKE_THREADS 1
#endif

/*
 * Waits until no other thread is left. Call before fork(): an abandoned set-up may still run in a thread, and
 * under ThreadSanitizer a child of a multi-threaded process must not start threads. The directory's link
 * count is its subdirectories plus "." and "..".
 */
static inline void fake_await_threads(void)
{
    struct stat st;
    uint64_t until = tarn_deadline(20000);
    while (stat("/proc/self/task", &st) == 0 && st.st_nlink > 2 + FAKE_THREADS) {
        if (tarn_now_ns() > until)
            fail_msg("%u threads are left", (unsigned)st.st_nlink - 2);
        poll(NULL, 0, 1);
    }
}

static inline void fake_fork(struct fake_node *n)
{
    int pair[2];
    fake_await_threads();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    n->pid = fork();
    assert_true(n->pid >= 0);
    if (n->pid == 0) {
        close(pair[0]);
        fake_child(n, pair[1]);
    }
    close(pair[1]);
    n->control = pair[0];
}

static inline const struct tarn_transport_ops *fake_transport(const char *name)
{
    return find_transport(strcmp(name, "tcp-unix") ? name : "tcp");
}

/* All slots begin reserved for SESSION under gen 1 of the epoch. tcp: clients come from afar; tcp-unix: their
 * control connections are Unix sockets, as those of other transports. */
static inline struct fake_node *fake_make(const char *transport)
{
    struct fake_node *n = calloc(1, sizeof(*n));
    assert_non_null(n);
    n->afar = strcmp(transport, "tcp") == 0;
    n->ops = fake_transport(transport);
    n->node_ops = find_node_half(n->ops->name);
    assert_true(n->ops && n->node_ops);
    n->pool = (struct tarn_pool_memory){.name = "cpu", .bytes = SLOTS * EXTENT, .nslots = SLOTS};
    n->pool.base = fake_memory("pool", SLOTS * EXTENT, &n->pool.memfd);
    n->pool.gen = fake_memory("gen", SLOTS * sizeof(uint64_t), &n->pool.gen_fd);
    n->pool.touch = fake_memory("touch", SLOTS * sizeof(uint32_t), &n->pool.touch_fd);
    n->hazards = fake_memory("hazards", sizeof(*n->hazards), &n->hazard_fd);
    n->shared = mmap(NULL, sizeof(*n->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(n->shared != MAP_FAILED);
    atomic_store(&n->shared->writer, SESSION);
    for (uint32_t i = 0; i < SLOTS; i++)
        atomic_store(&n->pool.gen[i], ((uint64_t)EPOCH << 32) + 1);
    return n;
}

static inline struct fake_node *fake_start(const char *transport, bool forked, rlim_t nofile)
{
    struct fake_node *n = fake_make(transport);
    n->nofile = nofile;
    if (forked)
        fake_fork(n);
    else
        fake_serve(n);
    if (n->ops->local_open(NULL, &n->local))
        fail_msg("local: %s", tarn_last_error());
    return n;
}

static inline void fake_kill(struct fake_node *n)
{
    kill(n->pid, SIGKILL);
    assert_int_equal(waitpid(n->pid, NULL, 0), n->pid);
    close(n->control);
    n->pid = 0;
}

static inline void fake_stop(struct fake_node *n)
{
    int status = 0;
    if (n->half) {
        n->node_ops->stop(n->half);
        assert_int_equal(fake_pins(n), 0);
    }
    if (n->pid) {
        send(n->control, &(struct fake_command){.what = 'q'}, sizeof(struct fake_command), 0);
        assert_int_equal(waitpid(n->pid, &status, 0), n->pid);
        close(n->control);
    }
    n->ops->local_close(n->local);
    munmap(n->pool.base, n->pool.bytes);
    munmap(n->pool.gen, SLOTS * sizeof(uint64_t));
    munmap(n->pool.touch, SLOTS * sizeof(uint32_t));
    munmap(n->hazards, sizeof(*n->hazards));
    munmap(n->shared, sizeof(*n->shared));
    close(n->pool.memfd);
    close(n->pool.gen_fd);
    close(n->pool.touch_fd);
    close(n->hazard_fd);
    free(n);
    assert_int_equal(status, 0);
}

/* --- the client's side of attaching ------------------------------------------------------------- */

/* Runs ATTACH. The descriptors belong to the caller, as if they had come over the Unix socket. */
static inline uint32_t fake_attach(struct fake_node *n, uint64_t session, bool write, const char *offer,
                                   char text[TARN_ATTACH_TEXT], int *fds)
{
    if (n->pid) {
        struct fake_command c = {.what = write ? 'w' : 'r', .session = session};
        snprintf(c.offer, sizeof(c.offer), "%s", offer);
        assert_true(send(n->control, &c, sizeof(c), 0) == sizeof(c));
        return fake_receive_fds(n->control, text, TARN_ATTACH_TEXT, fds);
    }
    struct tarn_attach a = {.session = session, .write = write, .offer = offer};
    if (fake_attach_here(n, &a))
        fail_msg("attach: %s", tarn_last_error());
    memcpy(text, a.text, sizeof(a.text));
    for (uint32_t i = 0; i < a.nfds; i++) {
        fds[i] = a.close_fds[i] ? a.fds[i] : fcntl(a.fds[i], F_DUPFD_CLOEXEC, 0);
    }
    return a.nfds;
}

static inline void fake_detach(struct fake_node *n, uint64_t session)
{
    if (!n->pid) {
        n->node_ops->detach(n->half, session);
        return;
    }
    char text[512];
    int fds[56];
    struct fake_command c = {.what = 'd', .session = session};
    assert_true(send(n->control, &c, sizeof(c), 0) == sizeof(c));
    fake_receive_fds(n->control, text, sizeof(text), fds);
}

static inline struct tarn_peer fake_peer(const char *text, int *fds, uint32_t nfds)
{
    return (struct tarn_peer){
        .node = "n1",
        .session = SESSION,
        .text = text,
        .fds = fds,
        .nfds = nfds,
        .tick_base_ns = tarn_now_ns() - 100 * TARN_TICK_NS,
        .deadline_ns = tarn_deadline(WAIT_MS),
    };
}

static inline struct tarn_link *fake_link(struct fake_node *n, bool write)
{
    char text[TARN_ATTACH_TEXT], offer[TARN_OFFER_TEXT];
    int fds[56];
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, fds, 0);
    p.local = n->local;
    p.write = write;
    if (n->ops->offer(&p, offer, &l))
        fail_msg("offer: %s", tarn_last_error());
    p.nfds = fake_attach(n, SESSION, write, offer, text, fds);
    int r;
    while ((r = n->ops->connect(&p, &l)) == TARN_INPROGRESS)
        assert_true(tarn_now_ns() < p.deadline_ns);
    if (r)
        fail_msg("connect: %s", tarn_last_error());
    for (uint32_t i = 0; i < p.nfds; i++)
        assert_int_equal(fds[i], -1);
    return l;
}

/* Offers, attaches, and connects with the given text in place of the node's answer. Returns connect()'s
 * result. */
static inline int fake_connect_with(struct fake_node *n, const char *answer, struct tarn_link **l_p)
{
    char text[TARN_ATTACH_TEXT], offer[TARN_OFFER_TEXT];
    int fds[56];
    struct tarn_peer p = fake_peer(answer, fds, 0);
    p.local = n->local;
    *l_p = NULL;
    if (n->ops->offer(&p, offer, l_p))
        fail_msg("offer: %s", tarn_last_error());
    p.nfds = fake_attach(n, SESSION, false, offer, text, fds);
    int r;
    while ((r = n->ops->connect(&p, l_p)) == TARN_INPROGRESS)
        assert_true(tarn_now_ns() < p.deadline_ns);
    for (uint32_t i = 0; i < p.nfds; i++)
        close(fds[i]); /* still the caller's */
    return r;
}

/* --- works -------------------------------------------------------------------------------------- */

static inline void work_done(struct tarn_work *w)
{
    assert_null(w->owner); /* done must be called once */
    w->owner = w;
}

static inline struct tarn_work fake_work(struct fake_node *n, uint32_t slot, const struct tarn_piece *pieces,
                                         uint32_t npieces)
{
    return (struct tarn_work){
        .slot = slot,
        .gen = slot < SLOTS ? atomic_load(&n->pool.gen[slot]) : 0,
        .offset = slot * EXTENT,
        .bytes = tarn_pieces_bytes(pieces, npieces),
        .pieces = pieces,
        .npieces = npieces,
        .status = 1,
        .done = work_done,
    };
}

static inline void submit(const struct tarn_transport_ops *ops, struct tarn_link *l, struct tarn_work *w,
                          bool put)
{
    uint64_t deadline = tarn_deadline(WAIT_MS);
    int r;
    while ((r = put ? ops->put(l, w) : ops->get(l, w)) == TARN_E_AGAIN && tarn_now_ns() < deadline)
        ops->progress(l);
    if (r == TARN_INPROGRESS)
        return;
    if (r < 0)
        w->status = r;
    w->owner = w;
}

/* Waits until the works are done. Returns progress()'s result. */
static inline int finish_works(const struct tarn_transport_ops *ops, struct tarn_link *l, struct tarn_work *w,
                               size_t n)
{
    uint64_t deadline = tarn_deadline(WAIT_MS);
    size_t done = 0;
    while (done < n) {
        assert_true(tarn_now_ns() < deadline);
        if (w[done].owner) {
            done++;
            continue;
        }
        int r = ops->progress(l);
        if (r < 0)
            return r;
        struct pollfd p;
        p.fd = ops->wait_fd(l, &p.events);
        if (!w[done].owner && p.fd >= 0)
            poll(&p, 1, tarn_left_ms(deadline));
        else
            sched_yield();
    }
    return 0;
}

static inline int run_work(const struct tarn_transport_ops *ops, struct tarn_link *l, struct tarn_work *w,
                           bool put)
{
    submit(ops, l, w, put);
    int r = finish_works(ops, l, w, 1);
    return r ? r : w->status;
}

static inline int put_bytes(struct fake_node *n, struct tarn_link *l, uint32_t slot, void *data,
                            uint64_t bytes)
{
    struct tarn_piece p = {.addr = data, .bytes = bytes};
    struct tarn_work w = fake_work(n, slot, &p, 1);
    return run_work(n->ops, l, &w, true);
}

static inline int get_bytes(struct fake_node *n, struct tarn_link *l, uint32_t slot, void *data,
                            uint64_t bytes)
{
    struct tarn_piece p = {.addr = data, .bytes = bytes};
    struct tarn_work w = fake_work(n, slot, &p, 1);
    return run_work(n->ops, l, &w, false);
}

static inline void commit(struct fake_node *n, uint32_t slot)
{
    atomic_fetch_add(&n->pool.gen[slot], 1);
}

static inline void fill(void *data, size_t bytes, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ((uint8_t *)data)[i] = (uint8_t)(x >> 56);
    }
}

#endif
