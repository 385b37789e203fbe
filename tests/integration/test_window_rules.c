/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: rules that a peer or a lender of this library never breaks by itself, and what holds when a
 * process stops or ends in the middle of a transfer. The tests reach into both sides for that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "tests/window_pair.h"

static struct tarn_lent *lent_of(const struct window_pair *p)
{
    return &p->lender->lender->lent;
}

/* --- descriptors and tokens --------------------------------------------------------------------- */

static void describe(const struct tarn_lease *l, struct tarn_descriptor *d)
{
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    assert_int_equal(tarn_descriptor_parse(text, d), 0);
}

static int reach_by(const struct window_pair *p, const struct tarn_descriptor *d, struct tarn_reach **r)
{
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_descriptor_format(d, text), 0);
    return tarn_reach(p->peer, text, 0, r);
}

static void set_token(struct tarn_descriptor *d, const char *token)
{
    memcpy(d->token + TARN_WINDOW_TOKEN / 2, token, TARN_WINDOW_TOKEN / 2);
}

static void descriptors_of_others(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = NULL;
    struct tarn_descriptor d;
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    text[strlen("tarn-window ")] = '2';
    assert_int_equal(tarn_reach(p->peer, text, 0, &r), TARN_E_VERSION);
    describe(l, &d);
    snprintf(d.ns, sizeof(d.ns), "elsewhere");
    assert_int_equal(reach_by(p, &d, &r), TARN_E_INVALID);
    assert_non_null(strstr(tarn_last_error(), "elsewhere"));
    assert_null(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static void the_token_of_another_window(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_window *other;
    struct tarn_reach *r = NULL;
    struct tarn_descriptor d;
    assert_int_equal(tarn_window_new(p->lender, p->memory, 4096, &other), 0);
    describe(l, &d);
    set_token(&d, other->tokens[1]);
    assert_int_equal(reach_by(p, &d, &r), TARN_E_AUTH);
    assert_null(r);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(tarn_window_close(other, 0), 0);
}

/* The peer claims that it may. */
static void the_token_for_reading_does_not_write(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_descriptor d;
    struct tarn_reach *r;
    describe(l, &d);
    set_token(&d, p->window->tokens[0]);
    assert_int_equal(reach_by(p, &d, &r), 0);
    assert_int_equal(window_move(r, false, p->own, 100, 0), 0);
    r->write = true;
    memset(p->own, 0x77, 100);
    p->memory[0] = 0x11;
    assert_int_not_equal(window_move(r, true, p->own, 100, 0), 0);
    assert_int_equal(p->memory[0], 0x11);
    assert_int_equal(window_tell(r, NULL, 0, 1, "x"), TARN_E_AUTH);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

static bool has_grants(const struct window_pair *p)
{
    struct tarn_lent *l = lent_of(p);
    pthread_mutex_lock(&l->lock);
    bool yes = p->window->grants != NULL;
    pthread_mutex_unlock(&l->lock);
    return yes;
}

static void what_a_session_may_ends_with_it(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    assert_true(has_grants(p));
    tarn_reach_free(r);
    tarn_close(p->peer);
    p->peer = NULL;
    HARNESS_UNTIL(!has_grants(p), 10000);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- ranges ------------------------------------------------------------------------------------- */

static void the_lender_checks_ranges(void **state)
{
    static const struct {
        uint64_t offset, bytes;
        int rc;
    } all[] = {{0, 4096, 0},
               {4096, 0, 0},
               {4096, 1, TARN_E_SIZE},
               {1, 4096, TARN_E_SIZE},
               {UINT64_MAX, 2, TARN_E_SIZE},
               {2, UINT64_MAX, TARN_E_SIZE}};
    struct window_pair *p = *state;
    const struct tarn_run run = {.bytes = 4096};
    struct tarn_lease *l = window_lease(p, &run, 1, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_guard g = tarn_lent_guard(lent_of(p));
    uint64_t session = p->window->grants->session;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct tarn_pinned pinned;
        int rc = g.pin_lease(g.arg, session, true, p->window->index, l->slot, l->gen, all[i].offset,
                             all[i].bytes, &pinned);
        assert_int_equal(rc, all[i].rc);
        if (!rc)
            g.unpin(g.arg, p->window->index, l->slot, l->gen);
    }
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* The lender has told of runs that end behind what the peer has mapped. */
static void the_peer_checks_runs(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    assert_int_equal(window_move(r, false, p->own, 100, 0), 0);
    r->known.lease.runs.end = WINDOW_ROOM + 1;
    assert_int_equal(window_move(r, false, p->own, 100, 0), TARN_E_STALE);
    assert_int_equal(window_move(r, true, p->own, 100, 0), TARN_E_STALE);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* --- peers that stop in the middle -------------------------------------------------------------- */

#define LARGE (256u * MIB)

/* What a child of a test does, and what it shares with the test. */
struct stalled {
    _Atomic int rc; /* 1: it has not ended */
    unsigned char bytes[LARGE];
};

static struct stalled *share(void)
{
    struct stalled *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    atomic_store(&s->rc, 1);
    return s;
}

/* Moves s->bytes in a process of its own. It has moved before, so the lender takes it for one that keeps up.
 */
static pid_t mover(const struct window_pair *p, const struct tarn_lease *l, const char *transports,
                   bool write, struct stalled *s)
{
    char text[TARN_DESCRIPTOR_MAX];
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct tarn_client *c = world_client(p->w, transports);
        struct tarn_reach *r;
        if (tarn_reach(c, text, 0, &r))
            _exit(1);
        const struct tarn_piece piece = {.addr = s->bytes, .bytes = tarn_reach_bytes(r)};
        struct tarn_move m = {.pieces = &piece, .npieces = 1}, none = {.npieces = 0};
        const struct tarn_move_options o = {.size = sizeof(o), .timeout_ms = 60000}; /* the end is tested */
        if (write && tarn_write(r, &none, 1, NULL))
            _exit(1);
        atomic_store(&s->rc, write ? tarn_write(r, &m, 1, &o) : tarn_read(r, &m, 1, &o));
        dprintf(2, "MOVER %s\n", tarn_last_error());
        _exit(0);
    }
    return pid;
}

/* Stops the process when the first bytes have come to `to`; all others are of `before`. */
static void stop_in_the_middle(pid_t pid, const volatile unsigned char *to, unsigned char before)
{
    HARNESS_UNTIL(*to != before, 10000);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_int_equal(to[LARGE - 1], before);
}

static struct tarn_lease *lend_large(const struct window_pair *p, int fill, unsigned char **memory_p,
                                     struct tarn_window **w_p)
{
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    struct tarn_lease *l;
    *memory_p = malloc(LARGE);
    assert_non_null(*memory_p);
    memset(*memory_p, fill, LARGE);
    assert_int_equal(tarn_window_new(p->lender, *memory_p, LARGE, w_p), 0);
    assert_int_equal(tarn_lease(*w_p, NULL, 0, &o, &l), 0);
    return l;
}

static void a_reader_that_stops(void **state)
{
    struct window_pair *p = *state;
    struct stalled *s = share();
    struct tarn_window *w;
    unsigned char *memory;
    struct tarn_lease *l = lend_large(p, 0x11, &memory, &w);
    pid_t pid = mover(p, l, p->over, false, s);
    stop_in_the_middle(pid, s->bytes, 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    memset(memory, 0xee, LARGE);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(atomic_load(&s->rc), TARN_E_STALE);
    assert_null(memchr(s->bytes, 0xee, LARGE));
    assert_true(s->bytes[LARGE - 1] == 0 || s->bytes[LARGE - 1] == 0x11); /* not of the memory as it is */
    assert_int_equal(tarn_window_close(w, 0), 0);
    free(memory);
    munmap(s, sizeof(*s));
}

static void a_writer_that_stops(void **state)
{
    struct window_pair *p = *state;
    struct stalled *s = share();
    struct tarn_window *w;
    unsigned char *memory;
    memset(s->bytes, 0x11, LARGE);
    struct tarn_lease *l = lend_large(p, 0, &memory, &w);
    pid_t pid = mover(p, l, p->over, true, s);
    stop_in_the_middle(pid, memory, 0);
    assert_int_equal(tarn_recall(l, 0), 0);
    memset(memory, 0xee, LARGE);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(atomic_load(&s->rc), TARN_E_STALE);
    assert_null(memchr(memory, 0x11, LARGE));
    assert_int_equal(tarn_window_close(w, 0), 0);
    free(memory);
    munmap(s, sizeof(*s));
}

#define COPY (64u * 1024)
static unsigned char *barred; /* a page that the copy of the child ends in */

/* Stops the process in the middle of a copy; when it goes on, so does the copy. */
static void stop_here(int number)
{
    (void)number;
    raise(SIGSTOP);
    mprotect(barred, 4096, PROT_READ | PROT_WRITE);
}

/* Over shm, a mark of the process at the lease holds up the recall. */
static void a_copy_that_stops(void **state)
{
    struct window_pair *p = *state;
    const struct tarn_run run = {.bytes = COPY};
    for (int killed = 0; killed < 2; killed++) {
        struct stalled *s = share();
        struct tarn_lease *l = window_lease(p, &run, 1, TARN_LEASE_WRITE);
        char name[40];
        int status;
        barred = s->bytes + COPY - 4096 + (4096 - ((uintptr_t)s->bytes & 4095)) % 4096;
        void (*before)(int) = signal(SIGSEGV, stop_here);
        assert_int_equal(mprotect(barred, 4096, PROT_NONE), 0);
        pid_t pid = mover(p, l, "shm", false, s);
        signal(SIGSEGV, before);
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        assert_true(WIFSTOPPED(status));
        assert_int_equal(tarn_recall(l, 100), TARN_E_BUSY);
        snprintf(name, sizeof(name), "process %d ", (int)pid);
        assert_non_null(strstr(tarn_last_error(), name));
        assert_int_equal(kill(pid, killed ? SIGKILL : SIGCONT), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(atomic_load(&s->rc), killed ? 1 : 0);
        assert_int_equal(tarn_recall(l, 0), 0);
        munmap(s, sizeof(*s));
    }
}

static void *recall(void *arg)
{
    return tarn_recall(arg, 20000) ? arg : NULL;
}

/* A recall that waits for a transfer has ended the lease by then, so no other transfer begins. */
static void a_recall_ends_before_it_waits(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_lent *lent = lent_of(p);
    struct tarn_guard g = tarn_lent_guard(lent);
    struct tarn_pinned pinned;
    pthread_t thread;
    void *failed;
    uint32_t slot = l->slot;
    uint64_t was = l->gen;
    assert_int_equal(g.pin_lease(g.arg, p->window->grants->session, false, 0, slot, was, 0, 1, &pinned), 0);
    assert_int_equal(pthread_create(&thread, NULL, recall, l), 0);
    HARNESS_UNTIL(atomic_load(&lent->gen[slot]) == was + 1, 5000);
    assert_ptr_equal(l, lent->leases[slot]); /* it waits */
    g.unpin(g.arg, 0, slot, was);
    pthread_join(thread, &failed);
    assert_null(failed);
    tarn_reach_free(r);
}

/* The generations, which peers have mapped. */
static void close_ends_leases(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    size_t bytes = TARN_LENT_SLOTS * sizeof(uint64_t);
    const _Atomic uint64_t *gen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, lent_of(p)->gen_fd, 0);
    uint32_t slot = l->slot;
    uint64_t was = l->gen;
    assert_true(gen != MAP_FAILED);
    assert_int_equal(atomic_load(&gen[slot]), was);
    tarn_close(p->lender);
    p->lender = NULL;
    assert_int_equal(atomic_load(&gen[slot]), was + 1);
    munmap((void *)(uintptr_t)gen, bytes);
    tarn_reach_free(r);
}

/* --- notifications ------------------------------------------------------------------------------ */

static void a_full_queue_refuses(void **state)
{
    enum { MOST = 4 * TARN_LENT_NOTICES };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_notification got;
    uint64_t sent = 0, refused = 0;
    for (uint64_t i = 0; i < MOST; i++) {
        int rc = window_tell(r, NULL, 0, sent, "abc");
        assert_true(rc == 0 || rc == TARN_E_AGAIN);
        sent += rc == 0;
        refused += rc != 0;
    }
    assert_true(refused > 0 && sent >= TARN_LENT_NOTICES);
    for (uint64_t i = 0; i < sent; i++) {
        assert_int_equal(tarn_notification_next(p->window, 0, &got), 0);
        assert_int_equal(got.tag, i);
    }
    assert_int_equal(tarn_notification_next(p->window, 50, &got), TARN_E_TIMEOUT);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

#define TELLERS 4
#define TOLD 3000 /* by each: the ring goes round several times */

struct teller {
    struct tarn_reach *reach;
    unsigned char *byte;
    uint64_t number;
    int rc;
};

static void *tell_on(void *arg)
{
    struct teller *t = arg;
    const struct tarn_piece piece = {.addr = t->byte, .bytes = 1};
    struct tarn_move m = {.pieces = &piece, .npieces = 1, .offset = t->number};
    uint64_t until = harness_now_ms() + 60000;
    for (uint64_t i = 0; i < TOLD && !t->rc && harness_now_ms() < until;) {
        t->rc = window_tell(t->reach, &m, 1, t->number << 32 | i, "");
        i += t->rc == 0;
        if (t->rc == TARN_E_AGAIN) {
            t->rc = 0;
            poll(NULL, 0, 1);
        }
    }
    return NULL;
}

/* Each writer's come in order, and all of them, once. */
static void many_threads_tell(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct teller all[TELLERS];
    pthread_t threads[TELLERS];
    uint64_t next[TELLERS] = {0};
    struct tarn_notification got;
    for (uint64_t i = 0; i < TELLERS; i++) {
        all[i] = (struct teller){.reach = r, .byte = p->own, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, tell_on, &all[i]), 0);
    }
    uint64_t got_n = 0, wrong = 0;
    while (got_n < TELLERS * TOLD && tarn_notification_next(p->window, 10000, &got) == 0) {
        uint64_t from = got.tag >> 32;
        wrong += from >= TELLERS || (uint32_t)got.tag != next[from]++;
        got_n++;
    }
    for (uint64_t i = 0; i < TELLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(all[i].rc, 0);
    }
    assert_int_equal(got_n, TELLERS * TOLD);
    assert_int_equal(wrong, 0);
    assert_int_equal(tarn_notification_next(p->window, 50, &got), TARN_E_TIMEOUT);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* As a peer could: `bytes` is what it says, not what there is. */
static void push(struct tarn_lent *l, const struct tarn_lease *lease, uint64_t tag, uint32_t bytes)
{
    struct tarn_notice_ring *ring = l->rings->ring;
    uint64_t n = atomic_fetch_add(&ring->next, 1);
    ring->place[n % TARN_NOTICES].notice = (struct tarn_notice){
        .gen = lease->gen, .tag = tag, .window = lease->window->index, .slot = lease->slot, .bytes = bytes};
    atomic_store(&ring->place[n % TARN_NOTICES].turn, n + 1);
}

static void hostile_notifications(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    struct tarn_reach *r = window_reach(p, l);
    struct tarn_notification got;
    struct tarn_window *hidden;
    struct tarn_lease *secret, nowhere = *l;
    assert_int_equal(tarn_window_new(p->lender, p->memory, 4096, &hidden), 0);
    const struct tarn_lease_options o = {.size = sizeof(o), .flags = TARN_LEASE_WRITE};
    assert_int_equal(tarn_lease(hidden, NULL, 0, &o, &secret), 0);
    assert_int_equal(window_move(r, true, p->own, 1, 0), 0);
    assert_int_equal(window_tell(r, NULL, 0, 0, ""), 0);
    const struct tarn_piece piece = {.addr = p->own, .bytes = 1};
    struct tarn_move m = {.pieces = &piece, .npieces = 1};
    assert_int_equal(window_tell(r, &m, 1, 1, ""), 0); /* makes the ring */
    assert_int_equal(tarn_expect(l, 0, 1, 0), 0);
    assert_int_equal(tarn_expect(l, 1, 1, 0), 0);
    push(lent_of(p), secret, 2, 0);
    nowhere.slot = UINT32_MAX;
    push(lent_of(p), &nowhere, 3, 0);
    push(lent_of(p), l, 4, UINT32_MAX);
    push(lent_of(p), l, 5, 0);
    do
        assert_int_equal(tarn_notification_next(p->window, 5000, &got), 0);
    while (got.tag == 4 && got.bytes <= TARN_NOTIFY_MAX);
    assert_int_equal(got.tag, 5);
    assert_int_equal(tarn_notification_next(hidden, 50, &got), TARN_E_TIMEOUT);
    tarn_reach_free(r);
    assert_int_equal(tarn_recall(l, 0), 0);
    assert_int_equal(tarn_window_close(hidden, 0), 0);
}

/* Keeps the ring from being looked at, as one who waits and has not come round. */
static void keep_rung(struct tarn_lent *l, uint32_t by)
{
    pthread_mutex_lock(&l->lock);
    l->spinning += by;
    pthread_mutex_unlock(&l->lock);
}

static bool has_ring(struct tarn_lent *l)
{
    pthread_mutex_lock(&l->lock);
    bool yes = l->rings != NULL;
    pthread_mutex_unlock(&l->lock);
    return yes;
}

/* They count, and only then is the writer missed. */
static void the_killed_has_told(void **state)
{
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    char text[TARN_DESCRIPTOR_MAX];
    int status;
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    keep_rung(lent_of(p), 1);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct tarn_client *c = world_client(p->w, "shm");
        unsigned char byte = 1;
        const struct tarn_piece piece = {.addr = &byte, .bytes = 1};
        struct tarn_move m = {.pieces = &piece, .npieces = 1};
        struct tarn_reach *r;
        int rc = tarn_reach(c, text, 0, &r);
        for (int i = 0; i < 3 && !rc; i++)
            rc = window_tell(r, &m, 1, 7, "");
        _exit(rc != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    HARNESS_UNTIL(!has_ring(lent_of(p)), 10000);
    keep_rung(lent_of(p), UINT32_MAX);
    assert_int_equal(tarn_expect(l, 7, 3, 0), 0);
    assert_int_equal(tarn_expect(l, 7, 1, 10000), TARN_E_NODE_DOWN);
    assert_int_equal(tarn_recall(l, 0), 0);
}

/* A writer that ends leaves more than the queue takes; then all count. */
static void a_ring_that_ends_loses_nothing(void **state)
{
    enum { MANY = TARN_LENT_NOTICES + 500 };
    struct window_pair *p = *state;
    struct tarn_lease *l = window_lease(p, NULL, 0, TARN_LEASE_WRITE);
    char text[TARN_DESCRIPTOR_MAX];
    int status;
    assert_int_equal(tarn_lease_descriptor(l, text), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct tarn_client *c = world_client(p->w, "shm");
        struct tarn_reach *r;
        int rc = tarn_reach(c, text, 0, &r);
        for (int i = 0; i < MANY && (!rc || rc == TARN_E_AGAIN); i += rc == 0)
            rc = window_tell(r, NULL, 0, 7, "");
        _exit(rc != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    HARNESS_UNTIL(!has_ring(lent_of(p)), 10000);
    assert_int_equal(tarn_expect(l, 7, MANY, 0), 0);
    assert_int_equal(tarn_expect(l, 7, 1, 10000), TARN_E_NODE_DOWN);
    assert_int_equal(tarn_recall(l, 0), 0);
}

#define TCP(test) \
    { \
        "tcp: " #test, test, window_start_tcp, window_stop, NULL \
    }
#define TCPX(test) \
    { \
        "tcpx: " #test, test, window_start_tcpx, window_stop, NULL \
    }
#define SHM(test) \
    { \
        "shm: " #test, test, window_start_shm, window_stop, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {TCP(descriptors_of_others),
                                       TCP(the_token_of_another_window),
                                       TCP(the_token_for_reading_does_not_write),
                                       SHM(the_token_for_reading_does_not_write),
                                       TCP(what_a_session_may_ends_with_it),
                                       TCP(the_lender_checks_ranges),
                                       SHM(the_peer_checks_runs),
                                       TCP(a_reader_that_stops),
                                       TCP(a_writer_that_stops),
                                       TCPX(a_reader_that_stops),
                                       TCPX(a_writer_that_stops),
                                       TCPX(what_a_session_may_ends_with_it),
                                       TCPX(the_token_for_reading_does_not_write),
                                       TCPX(the_lender_checks_ranges),
                                       TCPX(a_recall_ends_before_it_waits),
                                       TCPX(many_threads_tell),
                                       SHM(a_copy_that_stops),
                                       TCP(a_recall_ends_before_it_waits),
                                       SHM(close_ends_leases),
                                       TCP(a_full_queue_refuses),
                                       SHM(a_full_queue_refuses),
                                       TCP(many_threads_tell),
                                       SHM(many_threads_tell),
                                       SHM(hostile_notifications),
                                       SHM(the_killed_has_told),
                                       SHM(a_ring_that_ends_loses_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
