/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection: links that misbehave as a text says (docs/faults.md has the grammar).
 *
 * A faulty link holds a real one. get() and put() roll the dice: a work may fail, come back stale, or be
 * dropped. A dropped work waits for close(). A delayed work waits in a FIFO until progress() passes it to the
 * real link. A work is in one list at a time, so its own `next` links it. The outcome of a work may be lost:
 * the real link moves a copy of it, without the notification.
 *
 * The table for a wrapped transport is the other's with the calls of a link replaced by those in this file.
 * The faulty object keeps it. A delay or a drop defers completion, so such a link is not SHARED.
 */
#include "transport/faulty/faulty.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/text.h"

enum { RULES_MAX = 8 };

/* What one transport's links do; probabilities from 0 to 1. */
struct rule {
    const struct tarn_transport_ops *of;
    struct tarn_transport_ops table;
    uint64_t delay_ns;
    double error, stale, drop, lose, refuse;
};

struct tarn_faulty {
    _Atomic uint64_t random; /* a counter; links may be in several threads */
    uint32_t nrules;
    struct rule rules[RULES_MAX];
};

struct faulty_link {
    struct tarn_link link;
    struct tarn_faulty *faulty;
    const struct rule *rule;
    struct tarn_link *real;
    struct tarn_work *delayed, *delayed_last;
    struct tarn_work *dropped;
    int timer_fd; /* when the first delayed work is due */
    int epoll_fd; /* the timer and the real link's descriptor */
    int watched_fd;
    short watched_events;
};

static struct faulty_link *own(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct faulty_link, link);
}

/* What a link keeps in the context of a delayed work. */
struct delay {
    uint64_t due_ns;
    bool put;
};
_Static_assert(sizeof(struct delay) <= TARN_WORK_CONTEXT, "fits a work");

static struct delay *delay_of(struct tarn_work *w)
{
    return (struct delay *)w->context;
}

/* --- dice --------------------------------------------------------------------------------------- */

/* splitmix64 (S. Vigna) over a shared counter: a given seed gives the same sequence. */
static uint64_t roll(struct tarn_faulty *f)
{
    uint64_t z = atomic_fetch_add_explicit(&f->random, 0x9e3779b97f4a7c15u, memory_order_relaxed);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool happens(struct tarn_faulty *f, double probability)
{
    return probability > 0 && (double)(roll(f) >> 11) * 0x1p-53 < probability;
}

/* --- lists -------------------------------------------------------------------------------------- */

static void arm(struct faulty_link *l)
{
    uint64_t due = l->delayed ? delay_of(l->delayed)->due_ns : 0;
    struct itimerspec t = {.it_value = {(time_t)(due / TARN_NS_PER_S), (long)(due % TARN_NS_PER_S)}};
    timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void delay(struct faulty_link *l, struct tarn_work *w, bool put)
{
    w->next = NULL;
    *delay_of(w) = (struct delay){tarn_now_ns() + l->rule->delay_ns, put};
    if (l->delayed)
        l->delayed_last->next = w;
    else
        l->delayed = w;
    l->delayed_last = w;
    if (l->delayed == w)
        arm(l);
}

/* A work whose outcome is lost: the real link has a copy. */
struct loss {
    struct tarn_work copy;
    struct tarn_work *work;
    const char *transport;
};

/* The work ends as its copy has, but for a success. */
static void take_loss(struct loss *loss)
{
    struct tarn_work *w = loss->work;
    w->status = loss->copy.status;
    w->why = loss->copy.why;
    if (w->status == 0)
        w->status = tarn_fail(TARN_E_NODE_DOWN, "%s: injected fault: lose", loss->transport);
    free(loss);
}

static void lost(struct tarn_work *copy)
{
    struct loss *loss = TARN_CONTAINER_OF(copy, struct loss, copy);
    struct tarn_work *w = loss->work;
    take_loss(loss);
    w->done(w);
}

static int move(const struct faulty_link *l, struct tarn_work *w, bool put)
{
    const struct tarn_transport_ops *t = l->rule->of;
    return put ? t->put(l->real, w) : t->get(l->real, w);
}

static int lose(const struct faulty_link *l, struct tarn_work *w, bool put)
{
    struct loss *loss = malloc(sizeof(*loss));
    if (!loss)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for a fault", l->rule->of->name);
    *loss = (struct loss){*w, w, l->rule->of->name};
    loss->copy.done = lost;
    loss->copy.notify = NULL;
    int r = move(l, &loss->copy, put);
    if (r == 0)
        take_loss(loss);
    else if (r != TARN_INPROGRESS)
        free(loss);
    return r;
}

/* A stream that waits for a work must know it. */
static int pass_on(const struct faulty_link *l, struct tarn_work *w, bool put)
{
    bool losing = !w->last_copy && happens(l->faulty, l->rule->lose);
    return losing ? lose(l, w, put) : move(l, w, put);
}

static void finish(struct tarn_work *w, int status)
{
    w->status = status;
    w->done(w);
}

/* Passes on the works that are due. A queue that is full keeps the rest for the next call. */
static void pass_on_due(struct faulty_link *l)
{
    while (l->delayed && delay_of(l->delayed)->due_ns <= tarn_now_ns()) {
        struct tarn_work *w = l->delayed, *next = w->next;
        struct delay delay = *delay_of(w);
        int r = pass_on(l, w, delay.put);
        if (r == TARN_E_AGAIN) {
            w->next = next;
            *delay_of(w) = delay;
            break;
        }
        l->delayed = next;
        if (r != TARN_INPROGRESS)
            finish(w, r ? r : w->status);
    }
    arm(l);
}

/* --- client half -------------------------------------------------------------------------------- */

static int submit(struct faulty_link *l, struct tarn_work *w, bool put)
{
    const struct rule *rule = l->rule;
    if (happens(l->faulty, rule->drop)) {
        w->next = l->dropped;
        l->dropped = w;
        return TARN_INPROGRESS;
    }
    if (happens(l->faulty, rule->error)) {
        w->status = tarn_fail(TARN_E_NODE_DOWN, "%s: injected fault: error", rule->of->name);
        return 0;
    }
    if (!put && happens(l->faulty, rule->stale)) {
        w->status = tarn_fail(TARN_E_STALE, "%s: injected fault: stale", rule->of->name);
        return 0;
    }
    if (rule->delay_ns == 0)
        return pass_on(l, w, put);
    delay(l, w, put);
    return TARN_INPROGRESS;
}

static int faulty_get(struct tarn_link *l, struct tarn_work *w)
{
    return submit(own(l), w, false);
}

static int faulty_put(struct tarn_link *l, struct tarn_work *w)
{
    return submit(own(l), w, true);
}

static void finish_held(struct faulty_link *l, int status)
{
    while (l->delayed) {
        struct tarn_work *w = l->delayed;
        l->delayed = w->next;
        finish(w, status);
    }
    while (l->dropped) {
        struct tarn_work *w = l->dropped;
        l->dropped = w->next;
        finish(w, status);
    }
}

/* Lets the epoll set watch what the real link waits for. */
static void watch_real(struct faulty_link *l)
{
    short events = 0;
    int fd = l->rule->of->wait_fd(l->real, &events);
    if (fd == l->watched_fd && events == l->watched_events)
        return;
    if (l->watched_fd >= 0 && l->watched_fd != fd)
        epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, l->watched_fd, NULL);
    struct epoll_event e = {.events = (events & POLLIN ? EPOLLIN : 0) | (events & POLLOUT ? EPOLLOUT : 0)};
    if (fd >= 0 && epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, fd, &e) < 0)
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e);
    l->watched_fd = fd;
    l->watched_events = events;
}

static int faulty_progress(struct tarn_link *link)
{
    struct faulty_link *l = own(link);
    if (l->rule->delay_ns)
        pass_on_due(l);
    int r = l->rule->of->progress(l->real);
    if (r < 0)
        finish_held(l, TARN_E_NODE_DOWN);
    else if (l->rule->delay_ns)
        watch_real(l);
    return r;
}

/* Without a delay the real link is all there is to wait for, but that a dropped work is waited for, too. */
static int faulty_wait_fd(const struct tarn_link *link, short *events)
{
    const struct faulty_link *l = own(link);
    if (l->rule->delay_ns == 0) {
        int fd = l->rule->of->wait_fd(l->real, events);
        if (fd >= 0 || !l->dropped)
            return fd;
    }
    *events = POLLIN;
    return l->epoll_fd;
}

/* The real link knows nothing of works held back, so with any of those the waiting is done here. */
static int faulty_wait(struct tarn_link *link, uint64_t deadline_ns)
{
    struct faulty_link *l = own(link);
    if (!l->delayed && !l->dropped)
        return l->rule->of->wait(l->real, deadline_ns);
    return tarn_wait_by_poll(&l->rule->table, link, deadline_ns);
}

static void faulty_touch(struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    own(l)->rule->of->touch(own(l)->real, pool, slot);
}

static int faulty_view(struct tarn_link *link, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                       uint64_t bytes, const void **addr_p, uint32_t *hazard_p)
{
    const struct faulty_link *l = own(link);
    if (happens(l->faulty, l->rule->stale))
        return tarn_fail(TARN_E_STALE, "%s: injected fault: stale", l->rule->of->name);
    return l->rule->of->view(l->real, pool, slot, gen, offset, bytes, addr_p, hazard_p);
}

static int faulty_address(struct tarn_link *link, int device, const struct tarn_range *r,
                          struct tarn_address *a)
{
    const struct faulty_link *l = own(link);
    if (happens(l->faulty, l->rule->stale))
        return tarn_fail(TARN_E_STALE, "%s: injected fault: stale", l->rule->of->name);
    return l->rule->of->address(l->real, device, r, a);
}

static void faulty_unview(struct tarn_link *l, uint32_t hazard)
{
    own(l)->rule->of->unview(own(l)->real, hazard);
}

static int faulty_learn(struct tarn_link *l, const struct tarn_peer *p)
{
    return own(l)->rule->of->learn(own(l)->real, p);
}

static void free_link(struct faulty_link *l)
{
    if (l->timer_fd >= 0)
        close(l->timer_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    free(l);
}

static void faulty_close(struct tarn_link *link)
{
    struct faulty_link *l = own(link);
    finish_held(l, TARN_E_CANCELED);
    l->rule->of->close(l->real);
    free_link(l);
}

static int new_link(struct tarn_faulty *f, const struct rule *rule, const struct tarn_peer *p,
                    struct faulty_link **l_p)
{
    struct faulty_link *l = tarn_link_new(rule->of->name, p, sizeof(*l));
    if (!l)
        return TARN_E_NO_MEMORY;
    l->faulty = f;
    l->rule = rule;
    l->watched_fd = -1;
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN};
    if (l->timer_fd < 0 || l->epoll_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->timer_fd, &e) < 0) {
        free_link(l);
        return tarn_fail(TARN_E_SYSTEM, "%s: descriptors for a faulty link: %m", rule->of->name);
    }
    *l_p = l;
    return 0;
}

static struct rule *rule_of(struct tarn_faulty *f, const struct tarn_transport_ops *ops)
{
    for (uint32_t i = 0; i < f->nrules; i++)
        if (f->rules[i].of == ops)
            return &f->rules[i];
    return NULL;
}

int tarn_faulty_connect(struct tarn_faulty *f, const struct tarn_transport_ops *ops,
                        const struct tarn_peer *p, struct tarn_link **l_p,
                        const struct tarn_transport_ops **ops_p)
{
    const struct rule *rule = rule_of(f, ops);
    if (!rule) {
        *ops_p = ops;
        return ops->connect(p, l_p);
    }
    struct faulty_link *l = NULL;
    int r = happens(f, rule->refuse)
                ? tarn_fail(TARN_E_NODE_DOWN, "node %s: %s: injected fault: refuse", p->node, ops->name)
                : new_link(f, rule, p, &l);
    if (r) {
        if (*l_p) /* offered */
            ops->close(*l_p);
        return r;
    }
    l->real = *l_p;
    while ((r = ops->connect(p, &l->real)) == TARN_INPROGRESS && tarn_now_ns() < p->deadline_ns)
        ;
    if (r == TARN_INPROGRESS) {
        ops->close(l->real);
        r = tarn_fail(TARN_E_NOT_REACHABLE, "node %s: %s: is not connected in time", p->node, ops->name);
    }
    if (r) {
        free_link(l);
        return r;
    }
    l->link.writable = l->real->writable;
    l->link.id = l->real->id;
    *l_p = &l->link;
    *ops_p = &rule->table;
    return 0;
}

/* --- the text ----------------------------------------------------------------------------------- */

static bool parse_number(const char *text, size_t bytes, double max, double *out)
{
    char copy[32], *end;
    if (bytes == 0 || bytes >= sizeof(copy))
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    *out = strtod(copy, &end);
    return *end == '\0' && *out >= 0 && *out <= max;
}

static int set(struct rule *rule, const char *text, size_t bytes)
{
    double ms = 0;
    const struct {
        const char *name;
        double *value, max;
    } settings[] = {
        {"delay", &ms, 3600000},  {"error", &rule->error, 1}, {"stale", &rule->stale, 1},
        {"drop", &rule->drop, 1}, {"lose", &rule->lose, 1},   {"refuse", &rule->refuse, 1},
    };
    const char *equals = memchr(text, '=', bytes);
    size_t name = equals ? (size_t)(equals - text) : bytes;
    for (size_t i = 0; equals && i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (strlen(settings[i].name) != name || memcmp(settings[i].name, text, name) != 0)
            continue;
        if (!parse_number(equals + 1, bytes - name - 1, settings[i].max, settings[i].value))
            break;
        if (settings[i].value == &ms)
            rule->delay_ns = (uint64_t)(ms * (double)TARN_NS_PER_MS);
        return 0;
    }
    return tarn_fail(TARN_E_CONFIG,
                     "faults: \"%.*s\": write delay=MS, or error=, stale=, drop=, lose= or refuse= with a "
                     "number from 0 to 1",
                     (int)bytes, text);
}

/* Adds a rule that does nothing yet. */
static int add_rule(struct tarn_faulty *f, const struct tarn_transport_ops *of, struct rule **rule_p)
{
    if (rule_of(f, of) || f->nrules == RULES_MAX)
        return tarn_fail(TARN_E_CONFIG, "faults: transport %s is named twice: write its settings once",
                         of->name);
    struct rule *rule = &f->rules[f->nrules++];
    rule->of = of;
    rule->table = *of;
    rule->table.learn = faulty_learn;
    rule->table.get = faulty_get;
    rule->table.put = faulty_put;
    rule->table.progress = faulty_progress;
    rule->table.wait_fd = faulty_wait_fd;
    rule->table.wait = faulty_wait;
    rule->table.touch = faulty_touch;
    rule->table.view = faulty_view;
    rule->table.unview = faulty_unview;
    rule->table.address = faulty_address;
    rule->table.close = faulty_close;
    *rule_p = rule;
    return 0;
}

static int parse_rule(struct tarn_faulty *f, const char *text, size_t bytes)
{
    const char *colon = memchr(text, ':', bytes), *end = text + bytes;
    if (!colon)
        return tarn_fail(TARN_E_CONFIG, "faults: \"%.*s\": write TRANSPORT:SETTING=VALUE,... or seed=NUMBER",
                         (int)bytes, text);
    const struct tarn_transport_ops *of;
    struct rule *rule = NULL;
    int r = tarn_transport_named(text, (size_t)(colon - text), &of);
    if (!r)
        r = add_rule(f, of, &rule);
    for (const char *at = colon + 1; !r && at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t n = (size_t)((comma ? comma : end) - at);
        r = set(rule, at, n);
        at += n + 1;
    }
    if (!r && (rule->delay_ns || rule->drop > 0))
        rule->table.caps &= ~(uint32_t)TARN_CAP_SHARED;
    return r;
}

static int parse_section(struct tarn_faulty *f, const char *text, size_t bytes)
{
    uint64_t seed;
    if (bytes < 5 || memcmp(text, "seed=", 5) != 0)
        return parse_rule(f, text, bytes);
    if (tarn_u64_parse(text + 5, bytes - 5, 10, UINT64_MAX, &seed))
        return tarn_fail(TARN_E_CONFIG, "faults: \"%.*s\": the seed is a decimal number", (int)bytes, text);
    atomic_store(&f->random, seed);
    return 0;
}

int tarn_faulty_new(const char *text, struct tarn_faulty **f_p)
{
    struct tarn_faulty *f = calloc(1, sizeof(*f));
    if (!f)
        return tarn_fail(TARN_E_NO_MEMORY, "faults: out of memory");
    atomic_store(&f->random, tarn_random64());
    for (const char *at = text; *at;) {
        size_t bytes = strcspn(at, ";");
        int r = bytes ? parse_section(f, at, bytes) : 0;
        if (r) {
            free(f);
            return r;
        }
        at += bytes + (at[bytes] == ';');
    }
    *f_p = f;
    return 0;
}

void tarn_faulty_free(struct tarn_faulty *f)
{
    free(f);
}
