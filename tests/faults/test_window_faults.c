/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows while something around them fails: Redis is lost, the lender's process is stopped, forks or is
 * killed, an answer is lost, memory is freed under a window.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/container.h"
#include "client/client.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "tests/router.h"
#include "tests/window_pair.h"
#include "transport/tcp/tcp_node.h"

#ifdef __SANITIZE_THREAD__
#define NEEDS_FORK() harness_skip("fork", "ThreadSanitizer does not follow a child of a process with threads")
#else
#define NEEDS_FORK() (void)0
#endif

enum { ROOM = 65536, SHORT_MS = 300 };

/* Limits for waits that should end by a deadline of SHORT_MS. */
static uint64_t late_ms(uint64_t since_ms)
{
    uint64_t passed = harness_now_ms() - since_ms, allowed = SHORT_MS + 3000ull * harness_slower();
    return passed > allowed ? passed : 0;
}

/* --- names -------------------------------------------------------------------------------------- */

struct names {
    struct world *w;
    struct tarn_client *lender, *other, *peer;
    unsigned char *memory;
    struct tarn_window *window, *others;
    struct tarn_lease *lease, *others_lease;
};

static struct tarn_lease *lend_to_read(struct tarn_client *c, void *memory, struct tarn_window **w_p)
{
    struct tarn_lease *l;
    assert_int_equal(tarn_window_new(c, memory, ROOM, w_p), 0);
    assert_int_equal(tarn_lease(*w_p, NULL, 0, NULL, &l), 0);
    return l;
}

static int start_names(void **state)
{
    static const struct world_plan plan = {.nodes = 2, .args = {"--pool", "cpu0:bytes=16M"}};
    struct names *n = calloc(1, sizeof(*n));
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    n->w = w;
    HARNESS_UNTIL(world_lists(n->w, "node0") && world_lists(n->w, "node1"), 5000);
    n->lender = world_client(n->w, NULL);
    n->other = world_client(n->w, NULL);
    n->peer = world_client(n->w, NULL);
    n->memory = malloc(2ul * ROOM);
    memset(n->memory, 0x11, ROOM);
    memset(n->memory + ROOM, 0x22, ROOM);
    n->lease = lend_to_read(n->lender, n->memory, &n->window);
    n->others_lease = lend_to_read(n->other, n->memory + ROOM, &n->others);
    *state = n;
    return 0;
}

static int stop_names(void **state)
{
    struct names *n = *state;
    void *w = n->w;
    tarn_close(n->peer);
    tarn_close(n->other);
    tarn_close(n->lender);
    free(n->memory);
    free(n);
    return world_stop(&w);
}

/* The first byte of the lease of that name; negative: the status. */
static int byte_of(const struct names *n, const char *name, uint32_t timeout_ms)
{
    struct tarn_reach *r;
    unsigned char byte = 0;
    int rc = tarn_reach(n->peer, name, timeout_ms, &r);
    if (rc)
        return rc;
    rc = window_move(r, false, &byte, 1, 0);
    tarn_reach_free(r);
    return rc ? rc : byte;
}

/* Whatever node the other lender asks, and whichever it was that keeps the name. */
static void two_lenders_of_one_name(void **state)
{
    struct names *n = *state;
    assert_int_equal(tarn_lease_publish(n->lease, "kv", 0, 0), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tarn_lease_publish(n->others_lease, "kv", 0, 0), TARN_E_EXISTS);
        assert_non_null(strstr(tarn_last_error(), "\"kv\""));
        assert_int_equal(byte_of(n, "kv", 0), 0x11);
    }
    tarn_close(n->lender);
    n->lender = NULL;
    HARNESS_UNTIL(tarn_lease_publish(n->others_lease, "kv", 0, 0) == 0, 20000);
    assert_int_equal(byte_of(n, "kv", 0), 0x22);
}

static void redis_is_lost(void **state)
{
    struct names *n = *state;
    struct tarn_reach *r;
    char text[TARN_DESCRIPTOR_MAX];
    unsigned char byte;
    assert_int_equal(tarn_lease_publish(n->lease, "kv", 0, 0), 0);
    assert_int_equal(tarn_lease_descriptor(n->lease, text), 0);
    harness_kill(n->w->redis->process);
    uint64_t since = harness_now_ms();
    int rc = byte_of(n, "kv", SHORT_MS);
    assert_int_equal(rc, TARN_E_DIRECTORY);
    assert_int_equal(late_ms(since), 0);
    since = harness_now_ms();
    rc = tarn_lease_publish(n->others_lease, "late", 0, SHORT_MS);
    assert_int_equal(rc, TARN_E_DIRECTORY);
    assert_int_equal(late_ms(since), 0);
    /* A descriptor needs no Redis. */
    assert_int_equal(tarn_reach(n->peer, text, 0, &r), 0);
    assert_int_equal(window_move(r, false, &byte, 1, 0), 0);
    assert_int_equal(byte, 0x11);
    tarn_reach_free(r);
    /* It comes back empty: nodes write again what they keep. */
    harness_redis_restart(n->w->redis);
    HARNESS_UNTIL(byte_of(n, "kv", 0) == 0x11, 20000);
    HARNESS_UNTIL(tarn_lease_publish(n->others_lease, "later", 0, 0) == 0, 20000);
    assert_int_equal(byte_of(n, "later", 0), 0x22);
    rc = byte_of(n, "late", 0); /* its LEND may have been under way */
    assert_true(rc == TARN_E_NOT_FOUND || rc == 0x22);
}

/* --- a lender in a process of its own ------------------------------------------------------------ */

enum order { NONE, EXPECT, RECALL, FORK };

/* What both processes see. */
struct board {
    _Atomic int order, entered, done, rc;
    char descriptor[TARN_DESCRIPTOR_MAX];
    pid_t child;
};

struct far {
    struct world *w;
    struct board *board;
    unsigned char *memory; /* of the window, in both processes */
    pid_t pid;
    struct tarn_client *peer;
    struct tarn_reach *reach;
};

static void leave_a_child(struct board *b)
{
    pid_t pid = fork();
    if (pid == 0)
        for (alarm(60);;)
            pause();
    b->child = pid;
}

static void obey(struct board *b, struct tarn_lease *l, enum order order)
{
    atomic_fetch_add(&b->entered, 1);
    if (order == EXPECT)
        atomic_store(&b->rc, tarn_expect(l, 7, 1, SHORT_MS));
    else if (order == RECALL)
        atomic_store(&b->rc, tarn_recall(l, 0));
    else
        leave_a_child(b);
    atomic_store(&b->order, NONE);
    atomic_fetch_add(&b->done, 1);
}

static void lender_process(const struct far *f)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    struct tarn_client *c = world_client(f->w, NULL);
    struct tarn_window *w;
    struct tarn_lease *l;
    if (tarn_window_new(c, f->memory, ROOM, &w) || tarn_lease(w, NULL, 0, &o, &l) ||
        tarn_lease_descriptor(l, f->board->descriptor))
        _exit(1);
    for (atomic_store(&f->board->done, 1);;) {
        enum order order = (enum order)atomic_load(&f->board->order);
        if (order != NONE)
            obey(f->board, l, order);
        harness_pause();
    }
}

/* The lender forks from a process without threads. */
static struct far *far_start(const char *transport)
{
    static const struct world_plan plan = {.nodes = 0};
    struct far *f = calloc(1, sizeof(*f));
    void *w;
    assert_int_equal(world_start(&w, &plan), 0);
    f->w = w;
    f->board = mmap(NULL, sizeof(*f->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(f->board, MAP_FAILED);
    assert_int_equal(tarn_window_alloc(ROOM, 0, (void **)&f->memory), 0);
    f->pid = fork();
    assert_true(f->pid >= 0);
    if (f->pid == 0)
        lender_process(f);
    HARNESS_UNTIL(atomic_load(&f->board->done) == 1, 10000);
    f->peer = world_client(f->w, transport);
    if (tarn_reach(f->peer, f->board->descriptor, 0, &f->reach))
        fail_msg("reach: %s", tarn_last_error());
    return f;
}

static void far_stop(struct far *f)
{
    void *w = f->w;
    tarn_reach_free(f->reach);
    tarn_close(f->peer);
    kill(f->pid, SIGKILL);
    waitpid(f->pid, NULL, 0);
    tarn_window_free(f->memory);
    munmap(f->board, sizeof(*f->board));
    free(f);
    world_stop(&w);
}

static void stop(const struct far *f)
{
    assert_int_equal(kill(f->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(f->pid, NULL, WUNTRACED), f->pid);
}

/* Returns when the lender has begun with it. */
static void give_order(const struct far *f, enum order order)
{
    int entered = atomic_load(&f->board->entered);
    atomic_store(&f->board->order, order);
    HARNESS_UNTIL(atomic_load(&f->board->entered) > entered, 10000);
}

/* The status, when the order has been carried out. */
static int carried_out(const struct far *f, int done)
{
    HARNESS_UNTIL(atomic_load(&f->board->done) > done, 20000);
    return atomic_load(&f->board->rc);
}

/* One byte within SHORT_MS. */
static int move_shortly(const struct far *f, bool write, unsigned char *byte)
{
    const struct tarn_piece piece = {.addr = byte, .bytes = 1};
    const struct tarn_move_options o = {.size = sizeof(o), .timeout_ms = SHORT_MS};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    uint64_t since = harness_now_ms();
    int rc = write ? tarn_write(f->reach, &m, 1, &o) : tarn_read(f->reach, &m, 1, &o);
    assert_int_equal(late_ms(since), 0);
    return rc;
}

static void a_lender_that_is_stopped(void **state)
{
    struct far *f = far_start("tcp");
    struct tarn_reach *r;
    unsigned char byte = 1;
    (void)state;
    assert_int_equal(move_shortly(f, true, &byte), 0);
    stop(f);
    for (int write = 1; write >= 0; write--) {
        int rc = move_shortly(f, write, &byte);
        assert_true(rc == TARN_E_TIMEOUT || rc == TARN_E_NODE_DOWN);
        assert_int_equal(strstr(tarn_last_error(), "bytes of the write may still arrive") != NULL, write);
    }
    uint64_t since = harness_now_ms();
    int rc = tarn_reach(f->peer, f->board->descriptor, SHORT_MS, &r);
    assert_true(rc == TARN_E_TIMEOUT || rc == TARN_E_NODE_DOWN);
    assert_int_equal(late_ms(since), 0);
    assert_int_equal(kill(f->pid, SIGCONT), 0);
    HARNESS_UNTIL(window_move(f->reach, false, &byte, 1, 0) == 0, 10000);
    HARNESS_UNTIL(window_move(f->reach, true, &byte, 1, 0) == 0, 10000);
    far_stop(f);
}

/* Nobody of the lender's process is needed. */
static void a_lender_that_is_stopped_over_shm(void **state)
{
    struct far *f = far_start("shm");
    unsigned char byte = 1;
    (void)state;
    assert_int_equal(move_shortly(f, true, &byte), 0);
    assert_int_equal(move_shortly(f, false, &byte), 0);
    stop(f);
    byte = 2;
    assert_int_equal(move_shortly(f, true, &byte), 0);
    assert_int_equal(f->memory[0], 2);
    f->memory[0] = 3;
    assert_int_equal(move_shortly(f, false, &byte), 0);
    assert_int_equal(byte, 3);
    assert_int_equal(kill(f->pid, SIGCONT), 0);
    far_stop(f);
}

/* What was told in time is seen, though the deadline passes while the lender is stopped. */
static void expecting_while_stopped(void **state)
{
    struct far *f = far_start("shm");
    const struct tarn_notify notify = {.tag = 7};
    const struct tarn_move_options o = {.size = sizeof(o), .notify = &notify};
    unsigned char byte = 1;
    (void)state;
    assert_int_equal(move_shortly(f, true, &byte), 0); /* its ring is there */
    int done = atomic_load(&f->board->done);
    give_order(f, EXPECT);
    stop(f);
    uint64_t since = harness_now_ms();
    assert_int_equal(tarn_write(f->reach, NULL, 0, &o), 0);
    HARNESS_UNTIL(harness_now_ms() > since + 2ull * SHORT_MS, 10000);
    assert_int_equal(kill(f->pid, SIGCONT), 0);
    assert_int_equal(carried_out(f, done), 0);
    far_stop(f);
}

static void recalling_while_stopped(const char *transport)
{
    struct far *f = far_start(transport);
    unsigned char byte = 1;
    assert_int_equal(move_shortly(f, true, &byte), 0);
    int done = atomic_load(&f->board->done);
    give_order(f, RECALL);
    stop(f);
    for (int write = 0; write < 2; write++) {
        int rc = move_shortly(f, write, &byte);
        if (rc && rc != TARN_E_STALE && rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN)
            fail_msg("%d: %s", rc, tarn_last_error());
    }
    assert_int_equal(kill(f->pid, SIGCONT), 0);
    assert_int_equal(carried_out(f, done), 0);
    f->memory[0] = 77;
    HARNESS_UNTIL(move_shortly(f, true, &byte) == TARN_E_STALE, 10000);
    HARNESS_UNTIL(move_shortly(f, false, &byte) == TARN_E_STALE, 10000);
    assert_int_equal(f->memory[0], 77);
    far_stop(f);
}

static void a_recall_that_is_stopped(void **state)
{
    (void)state;
    recalling_while_stopped("tcp");
    recalling_while_stopped("shm");
}

/* --- fork --------------------------------------------------------------------------------------- */

/* A child keeps the connections of its parent open, so peers notice by their deadlines only. */
static void a_lender_whose_child_lives_on(void **state)
{
    NEEDS_FORK();
    struct far *f = far_start("tcp");
    struct tarn_reach *r = NULL;
    unsigned char byte = 1;
    (void)state;
    assert_int_equal(move_shortly(f, true, &byte), 0);
    int done = atomic_load(&f->board->done);
    give_order(f, FORK);
    carried_out(f, done);
    assert_int_equal(kill(f->pid, SIGKILL), 0);
    assert_int_equal(waitpid(f->pid, NULL, 0), f->pid);
    for (int write = 0; write < 2; write++) {
        int rc = move_shortly(f, write, &byte);
        if (rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN)
            fail_msg("%d: %s", rc, tarn_last_error());
    }
    uint64_t since = harness_now_ms();
    int rc = tarn_reach(f->peer, f->board->descriptor, SHORT_MS, &r);
    if (rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN)
        fail_msg("%d: %s", rc, tarn_last_error());
    assert_int_equal(late_ms(since), 0);
    assert_int_equal(kill(f->board->child, SIGKILL), 0);
    HARNESS_UNTIL(move_shortly(f, false, &byte) == TARN_E_NODE_DOWN, 10000);
    HARNESS_UNTIL(tarn_reach(f->peer, f->board->descriptor, SHORT_MS, &r) == TARN_E_NODE_DOWN, 10000);
    far_stop(f);
}

/* In the child; the number of the first call that is wrong, or 0. */
static int use_the_parents(const struct window_pair *p, struct tarn_lease *l, struct tarn_reach *r)
{
    char text[TARN_DESCRIPTOR_MAX];
    unsigned char byte = 0;
    const struct tarn_piece piece = {.addr = &byte, .bytes = 1};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    struct tarn_notification got;
    struct tarn_window *w;
    struct tarn_lease *l2;
    struct tarn_reach *r2;
    const int all[] = {
        tarn_window_new(p->lender, p->memory, 4096, &w),
        tarn_window_close(p->window, 0),
        tarn_lease(p->window, NULL, 0, NULL, &l2),
        tarn_recall(l, 0),
        tarn_expect(l, 1, 1, 0),
        tarn_notification_next(p->window, 0, &got),
        tarn_lease_publish(l, "child", 0, 0),
        tarn_lease_descriptor(l, text) ? TARN_E_INVALID : tarn_reach(p->peer, text, 0, &r2),
        tarn_read(r, &m, 1, NULL),
        tarn_write(r, &m, 1, NULL),
        tarn_submit_read(r, &m, 1, NULL, 0, NULL),
        tarn_submit_write(r, &m, 1, NULL, 0, NULL),
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != TARN_E_CLOSED)
            return (int)i + 1;
    r->known.times = 1; /* it would tell the lender */
    tarn_reach_free(r);
    tarn_close(p->peer);
    tarn_close(p->lender);
    tarn_window_free(p->shared ? p->memory : NULL);
    return 0;
}

static void a_lender_that_forks(void **state)
{
    NEEDS_FORK();
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    int status;
    assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
    uint64_t commands = p->lender->lender->host.commands;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(use_the_parents(p, l, r));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(p->lender->lender->host.commands, commands);
    p->own[0] = 0x77;
    assert_int_equal(window_tell(r, NULL, 0, 5, "x"), 0);
    assert_int_equal(window_move(r, true, p->own, 100, 0), 0);
    assert_int_equal(p->memory[0], 0x77);
    assert_int_equal(tarn_expect(l, 5, 1, 0), 0);
    struct tarn_reach *again = window_reach(p, l);
    tarn_reach_free(again);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- answers that are lost ----------------------------------------------------------------------- */

/* All data connections to the lender by tcp go through it. */
static struct relay *relay_of_data(struct router *router, const struct tarn_host *h)
{
    uint32_t i = 0;
    while (strcmp(h->transports[i].ops->name, "tcp"))
        assert_true(++i < h->ntransports);
    const struct tarn_tcp_node *n = TARN_CONTAINER_OF(h->transports[i].half, struct tarn_tcp_node, half);
    struct relay *x = router_add(router, "127.0.0.1:0", n->address);
    router_route(n->address, relay_address(x));
    return x;
}

static void *write_once(void *arg)
{
    static unsigned char byte = 0x55;
    return (void *)(intptr_t)window_move(arg, true, &byte, 1, 0);
}

/* The bytes are in place, and the answer never comes: told as NODE_DOWN, and not written again. */
static void a_write_whose_answer_is_lost(void **state)
{
#ifdef __SANITIZE_THREAD__
    harness_skip("races", "the test looks at memory while a peer writes there");
#endif
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    router_no_unix(true);
    struct tarn_reach *r = window_reach(p, l);
    struct router *router = router_start(1);
    struct relay *x = relay_of_data(router, &p->lender->lender->host);
    pthread_t thread;
    void *rc;
    assert_int_equal(window_move(r, true, p->own, 1, 0), 0);
    for (int i = 0; i < 3; i++) {
        p->memory[0] = 0;
        relay_set(x, &(struct relay_state){.cut = RELAY_DOWN});
        assert_int_equal(pthread_create(&thread, NULL, write_once, r), 0);
        HARNESS_UNTIL(((volatile unsigned char *)p->memory)[0] == 0x55, 5000);
        p->memory[0] = 0x66;
        relay_set(x, &(struct relay_state){.cut = RELAY_DOWN, .reset = true});
        pthread_join(thread, &rc);
        assert_int_equal((intptr_t)rc, TARN_E_NODE_DOWN);
        relay_set(x, NULL);
        HARNESS_UNTIL(window_move(r, false, p->own, 1, 0) == 0, 10000);
        assert_int_equal(p->own[0], 0x66);
        HARNESS_UNTIL(window_move(r, true, p->own, 1, 1) == 0, 10000);
        assert_int_equal(p->memory[0], 0x66);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
    router_stop(router);
    router_no_unix(false);
}

/* --- memory ------------------------------------------------------------------------------------- */

static void memory_that_is_not_there(void **state)
{
    struct window_pair *p = *state;
    struct tarn_window *w = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(munmap(at + page, page), 0);
    assert_int_equal(tarn_window_new(p->lender, at, 3 * page, &w), TARN_E_INVALID);
    assert_int_equal(tarn_window_new(p->lender, at + page - 1, 2, &w), TARN_E_INVALID);
    assert_null(w);
    assert_int_equal(tarn_window_new(p->lender, at + 1, page - 1, &w), 0);
    assert_int_equal(tarn_window_close(w, 0), 0);
    munmap(at, page);
    munmap(at + 2 * page, page);
}

/* Memory of tarn_window_alloc() stays while a window is over it, so nothing else comes to be lent. */
static void memory_that_is_freed(void **state)
{
    struct window_pair *p = *state;
    struct tarn_window *w;
    struct tarn_lease *l;
    unsigned char *memory, *others[8];
    assert_int_equal(tarn_window_alloc(ROOM, 0, (void **)&memory), 0);
    memset(memory, 0x11, ROOM);
    assert_int_equal(tarn_window_new(p->lender, memory, ROOM, &w), 0);
    tarn_window_free(memory);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tarn_window_alloc(ROOM, 0, (void **)&others[i]), 0);
        memset(others[i], 0xee, ROOM);
    }
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    assert_int_equal(tarn_lease(w, NULL, 0, &o, &l), 0);
    struct tarn_reach *r = window_reach(p, l);
    assert_int_equal(window_move(r, false, p->own, ROOM, 0), 0);
    assert_int_equal(p->own[0], 0x11);
    assert_int_equal(p->own[ROOM - 1], 0x11);
    assert_int_equal(window_move(r, true, p->own, ROOM, 0), 0);
    tarn_reach_free(r);
    assert_int_equal(tarn_window_close(w, 0), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(others[i][0], 0xee);
        tarn_window_free(others[i]);
    }
}

/* Other memory cannot be kept. While nothing else is there, the lender's transfers fail, and nothing else. */
static void memory_that_is_unmapped(void **state)
{
    struct window_pair *p = *state;
    struct tarn_window *w;
    struct tarn_lease *l, *sound = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    char *at = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(tarn_window_new(p->lender, at, ROOM, &w), 0);
    assert_int_equal(tarn_lease(w, NULL, 0, &o, &l), 0);
    struct tarn_reach *r = window_reach(p, l), *other = window_reach(p, sound);
    assert_int_equal(window_move(r, true, p->own, ROOM, 0), 0);
    assert_int_equal(mprotect(at, ROOM, PROT_NONE), 0); /* unmapped, but nothing else can come there */
    for (int write = 0; write < 2; write++) {
        int rc = window_move(r, write, p->own, ROOM, 0);
        assert_int_not_equal(rc, 0);
        HARNESS_UNTIL(window_move(other, write, p->own, ROOM, 0) == 0, 10000);
    }
    tarn_reach_free(r);
    tarn_reach_free(other);
    assert_int_equal(tarn_window_close(w, 0), 0);
    assert_int_equal(tarn_recall(sound, 0), 0);
    munmap(at, ROOM);
}

/* --- works in flight ----------------------------------------------------------------------------- */

enum { FLYING = 16, PART_BYTES = WINDOW_ROOM / FLYING };

static void submit_writes(struct window_pair *p, struct tarn_reach *r, struct tarn_move *moves,
                          struct tarn_piece *pieces)
{
    for (uint64_t i = 0; i < FLYING; i++) {
        pieces[i] = (struct tarn_piece){.addr = p->own + i * PART_BYTES, .bytes = PART_BYTES};
        moves[i] = (struct tarn_move){.pieces = &pieces[i], .npieces = 1, .offset = i * PART_BYTES};
        assert_int_equal(tarn_submit_write(r, &moves[i], 1, NULL, i, NULL), 0);
    }
}

/* Fills the memory of a recalled lease; nothing comes there while somebody else uses the window. */
static void nothing_arrives(struct window_pair *p)
{
    memset(p->memory, 0xee, WINDOW_ROOM);
    struct tarn_lease *l = window_lease(p, NULL, 0, 0);
    struct tarn_client *c = world_client(p->w, NULL);
    char text[TARN_DESCRIPTOR_MAX];
    struct tarn_reach *r;
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(tarn_reach(c, text, 0, &r), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(window_move(r, false, p->own, WINDOW_ROOM, 0), 0);
        for (size_t k = 0; k < WINDOW_ROOM; k++)
            assert_int_equal(p->own[k], 0xee);
    }
    tarn_reach_free(r);
    tarn_close(c);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void a_peer_closes_with_works_in_flight(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_move moves[FLYING];
    struct tarn_piece pieces[FLYING];
    submit_writes(p, r, moves, pieces);
    tarn_close(p->peer);
    p->peer = NULL;
    assert_int_equal(tarn_recall(l, 0), 0);
    nothing_arrives(p);
    assert_int_equal(window_move(r, false, p->own, 1, 0), TARN_E_INVALID);
    r->known.times = 1; /* it would tell the lender */
    tarn_reach_free(r);
}

static void a_window_closes_with_works_in_flight(void **state)
{
    struct window_pair *p = *state;
    struct tarn_reach *r = window_reach(p, window_lease(p, NULL, 0, TARN_LEASE_WRITE));
    struct tarn_move moves[FLYING];
    struct tarn_piece pieces[FLYING];
    struct tarn_completion done;
    submit_writes(p, r, moves, pieces);
    assert_int_equal(tarn_window_close(p->window, 0), 0);
    memset(p->memory, 0xee, WINDOW_ROOM);
    for (int i = 0; i < FLYING; i++) {
        HARNESS_UNTIL(tarn_drain(p->peer, &done, 1) == 1, 10000);
        assert_true(done.status == 0 || done.status == TARN_E_STALE || done.status == TARN_E_AUTH);
    }
    for (size_t k = 0; k < WINDOW_ROOM; k++)
        assert_int_equal(p->memory[k], 0xee);
    assert_int_equal(tarn_window_new(p->lender, p->memory, WINDOW_ROOM, &p->window), 0);
    nothing_arrives(p);
    tarn_reach_free(r);
}

#define NAMES(test) cmocka_unit_test_setup_teardown(test, start_names, stop_names)
#define TCP(test) \
    { \
        "tcp: " #test, test, window_start_tcp, window_stop, NULL \
    }
#define SHM(test) \
    { \
        "shm: " #test, test, window_start_shm, window_stop, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        NAMES(two_lenders_of_one_name),
        NAMES(redis_is_lost),
        cmocka_unit_test(a_lender_that_is_stopped),
        cmocka_unit_test(a_lender_that_is_stopped_over_shm),
        cmocka_unit_test(expecting_while_stopped),
        cmocka_unit_test(a_recall_that_is_stopped),
        cmocka_unit_test(a_lender_whose_child_lives_on),
        TCP(a_lender_that_forks),
        SHM(a_lender_that_forks),
        TCP(a_write_whose_answer_is_lost),
        TCP(memory_that_is_not_there),
        TCP(memory_that_is_freed),
        SHM(memory_that_is_freed),
        TCP(memory_that_is_unmapped),
        TCP(a_peer_closes_with_works_in_flight),
        SHM(a_peer_closes_with_works_in_flight),
        TCP(a_window_closes_with_works_in_flight),
        SHM(a_window_closes_with_works_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
