/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/lent.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

#define LOOK_NS (200 * 1000ull) /* between looks at marks, which nobody tells of */

static void free_grants(struct tarn_window *w, uint64_t session)
{
    struct tarn_window_grant *g, *next;
    LL_FOREACH_SAFE(w->grants, g, next)
    if (session == 0 || g->session == session) {
        LL_DELETE(w->grants, g);
        free(g);
    }
}

static void free_notice(struct tarn_window *w, struct tarn_lent_notice *n)
{
    DL_DELETE(w->notices, n);
    w->nnotices--;
    free(n);
}

/* Takes a notice; *out may be NULL. The lock is held. */
static void take(struct tarn_window *w, struct tarn_lent_notice *n, struct tarn_notification *out)
{
    eventfd_t count;
    if (out)
        *out = n->n;
    free_notice(w, n);
    if (w->nnotices == 0)
        eventfd_read(w->notice_fd, &count);
}

static void window_free(struct tarn_window *w)
{
    free_grants(w, 0);
    while (w->notices)
        free_notice(w, w->notices);
    if (w->notice_fd >= 0)
        close(w->notice_fd);
    free(w);
}

void tarn_lease_free(struct tarn_lease *lease)
{
    struct tarn_lent_writer *w, *next;
    if (!lease)
        return;
    LL_FOREACH_SAFE(lease->writers, w, next)
    free(w);
    free(lease);
}

/* --- start and end ------------------------------------------------------------------------------ */

/* Peers map it, so its size is sealed. */
static int map_gens(struct tarn_lent *l)
{
    size_t bytes = TARN_LENT_SLOTS * sizeof(*l->gen);
    l->gen_fd = memfd_create("tarn-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (l->gen_fd < 0 || ftruncate(l->gen_fd, (off_t)bytes) ||
        fcntl(l->gen_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return tarn_fail(TARN_E_SYSTEM, "window: memory for generations: %m: allow more open files");
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->gen_fd, 0);
    if (at == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "window: memory for generations: mmap: %m");
    madvise(at, bytes, MADV_DONTFORK);
    l->gen = at;
    return 0;
}

int tarn_lent_init(struct tarn_lent *l, uint64_t epoch)
{
    l->gen_fd = -1;
    pthread_mutex_init(&l->lock, NULL);
    tarn_cond_init(&l->unpinned);
    tarn_cond_init(&l->told);
    int rc = map_gens(l);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++)
        l->pools[i].memfd = -1;
    for (uint32_t i = 0; !rc && i < TARN_LENT_SLOTS; i++)
        atomic_store_explicit(&l->gen[i], (uint64_t)(uint32_t)epoch << 32 | 1, memory_order_relaxed);
    return rc;
}

void tarn_lent_free(struct tarn_lent *l)
{
    struct tarn_lent_page *p;
    for (uint32_t i = 0; i < l->nslots; i++)
        tarn_lease_free(l->leases[i]);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++) {
        if (l->windows[i])
            window_free(l->windows[i]);
    }
    while ((p = l->pages) != NULL) {
        l->pages = p->next;
        free(p);
    }
    if (l->gen)
        munmap((void *)(uintptr_t)l->gen, TARN_LENT_SLOTS * sizeof(*l->gen));
    if (l->gen_fd >= 0)
        close(l->gen_fd);
    pthread_cond_destroy(&l->unpinned);
    pthread_cond_destroy(&l->told);
    pthread_mutex_destroy(&l->lock);
}

/* --- windows ------------------------------------------------------------------------------------ */

int tarn_lent_add(struct tarn_lent *l, const struct tarn_pool_memory *memory, struct tarn_window *w)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    while (w->index < TARN_WINDOWS_MAX && l->windows[w->index])
        w->index++;
    if (w->index < TARN_WINDOWS_MAX) {
        w->id = ++l->next_id;
        l->windows[w->index] = w;
        l->pools[w->index] = *memory;
        l->pools[w->index].gen = l->gen;
        l->pools[w->index].gen_fd = l->gen_fd;
        l->pools[w->index].nslots = TARN_LENT_SLOTS;
    } else {
        rc = tarn_fail(TARN_E_BUSY, "window: this client has %d windows: close some", TARN_WINDOWS_MAX);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

void tarn_lent_remove(struct tarn_lent *l, struct tarn_window *w)
{
    pthread_mutex_lock(&l->lock);
    l->windows[w->index] = NULL;
    l->pools[w->index] = (struct tarn_pool_memory){.memfd = -1};
    pthread_mutex_unlock(&l->lock);
    window_free(w);
}

/* --- sessions ----------------------------------------------------------------------------------- */

/* Takes as long whatever the two have in common. */
static bool same_token(const char *token, const char *given)
{
    unsigned char differs = 0;
    if (strlen(given) != TARN_WINDOW_TOKEN / 2)
        return false;
    for (size_t i = 0; i < TARN_WINDOW_TOKEN / 2; i++)
        differs |= (unsigned char)(token[i] ^ given[i]);
    return !differs;
}

static struct tarn_window_grant *grant_of(struct tarn_window *w, uint64_t session)
{
    struct tarn_window_grant *g;
    LL_SEARCH_SCALAR(w->grants, g, session, session);
    return g;
}

static int grant(struct tarn_window *w, uint64_t session, bool write)
{
    struct tarn_window_grant *g = grant_of(w, session);
    if (!g && !(g = calloc(1, sizeof(*g))))
        return tarn_fail(TARN_E_NO_MEMORY, "window: out of memory for a session");
    if (!g->session)
        LL_PREPEND(w->grants, g);
    g->session = session;
    g->write |= write;
    return 0;
}

int tarn_lent_admit(struct tarn_lent *l, uint32_t window, const char *token, uint64_t session, bool *write_p)
{
    int rc = TARN_E_AUTH;
    pthread_mutex_lock(&l->lock);
    struct tarn_window *w = window < TARN_WINDOWS_MAX ? l->windows[window] : NULL;
    for (int write = 0; w && write < 2; write++)
        if (same_token(w->tokens[write], token)) {
            *write_p = write;
            rc = grant(w, session, write);
        }
    pthread_mutex_unlock(&l->lock);
    if (rc == TARN_E_AUTH)
        return tarn_fail(TARN_E_AUTH,
                         "window %u: is closed, or the token is not its own: ask for a new descriptor",
                         window);
    return rc;
}

int tarn_lent_may_enter(struct tarn_lent *l, uint32_t window, uint64_t id, uint64_t session, bool write)
{
    int rc = TARN_E_STALE;
    pthread_mutex_lock(&l->lock);
    struct tarn_window *w = window < TARN_WINDOWS_MAX ? l->windows[window] : NULL;
    if (w && w->id == id) {
        const struct tarn_window_grant *g = grant_of(w, session);
        rc = g && g->write >= write ? 0 : TARN_E_AUTH;
    }
    pthread_mutex_unlock(&l->lock);
    if (!rc)
        return 0;
    return rc == TARN_E_STALE
               ? tarn_fail(rc, "window %u: is closed: ask the lender for a new descriptor", window)
               : tarn_fail(rc, "window %u: show its token first (REACH)", window);
}

/* The lock is held. */
static void writer_gone(struct tarn_lent *l, uint64_t session, bool quit)
{
    for (uint32_t i = 0; i < l->nslots; i++) {
        struct tarn_lent_writer *w = NULL;
        if (l->leases[i])
            LL_SEARCH_SCALAR(l->leases[i]->writers, w, session, session);
        if (w && quit) {
            LL_DELETE(l->leases[i]->writers, w);
            free(w);
        } else if (w) {
            w->gone = true;
        }
    }
    pthread_cond_broadcast(&l->told);
}

void tarn_lent_forget(struct tarn_lent *l, uint64_t session, bool quit)
{
    pthread_mutex_lock(&l->lock);
    writer_gone(l, session, quit);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++)
        if (l->windows[i])
            free_grants(l->windows[i], session);
    pthread_mutex_unlock(&l->lock);
}

int tarn_lent_page_add(struct tarn_lent *l, const struct tarn_hazard_page *page, pid_t pid)
{
    struct tarn_lent_page *p = malloc(sizeof(*p));
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "window: out of memory for a session");
    *p = (struct tarn_lent_page){.page = page, .pid = pid};
    pthread_mutex_lock(&l->lock);
    LL_PREPEND(l->pages, p);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

void tarn_lent_page_remove(struct tarn_lent *l, const struct tarn_hazard_page *page)
{
    struct tarn_lent_page *p;
    pthread_mutex_lock(&l->lock);
    LL_SEARCH_SCALAR(l->pages, p, page, page);
    if (p)
        LL_DELETE(l->pages, p);
    pthread_mutex_unlock(&l->lock);
    free(p);
}

/* --- leases ------------------------------------------------------------------------------------- */

int tarn_lent_begin(struct tarn_lent *l, struct tarn_window *w, struct tarn_lease *lease)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    if (l->nfree == 0 && l->nslots == TARN_LENT_SLOTS) {
        rc = tarn_fail(TARN_E_BUSY, "window: this client has %d leases: recall some", TARN_LENT_SLOTS);
    } else {
        lease->slot = l->nfree ? l->free[--l->nfree] : l->nslots++;
        lease->window = w;
        lease->gen = atomic_load(&l->gen[lease->slot]) + 1;
        l->leases[lease->slot] = lease;
        DL_APPEND(w->leases, lease);
        atomic_store(&l->gen[lease->slot], lease->gen);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* The lock is held. */
static void end(struct tarn_lent *l, struct tarn_lease *lease)
{
    if (!lease->ended)
        atomic_store(&l->gen[lease->slot], lease->gen + 1);
    lease->ended = true;
    pthread_cond_broadcast(&l->told);
}

void tarn_lent_entered(struct tarn_lent *l, uint32_t window)
{
    pthread_mutex_lock(&l->lock);
    if (l->windows[window])
        l->windows[window]->entered = true;
    pthread_mutex_unlock(&l->lock);
}

bool tarn_lent_end(struct tarn_lent *l, struct tarn_lease *lease)
{
    pthread_mutex_lock(&l->lock);
    end(l, lease);
    bool entered = lease->write && lease->writers && lease->window->entered;
    if (entered)
        lease->window->entered = false;
    pthread_mutex_unlock(&l->lock);
    return entered;
}

void tarn_lent_expire(struct tarn_lent *l, uint64_t now_ns)
{
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->nslots; i++)
        if (l->leases[i] && l->leases[i]->ends_ns && l->leases[i]->ends_ns <= now_ns)
            end(l, l->leases[i]);
    pthread_mutex_unlock(&l->lock);
}

/* The process that has a mark at the lease; 0: none. The lock is held. */
static pid_t marked_by(const struct tarn_lent *l, const struct tarn_lease *lease)
{
    const uint64_t mark = ((uint64_t)lease->window->index << 32 | lease->slot) + 1;
    const struct tarn_lent_page *p;
    LL_FOREACH (l->pages, p) {
        uint32_t used = atomic_load(&p->page->used);
        for (uint32_t i = 0; i < used && i < TARN_HAZARDS; i++)
            if (atomic_load(&p->page->entry[i]) == mark)
                return p->pid;
    }
    return 0;
}

static int busy(const struct tarn_lease *lease, pid_t pid)
{
    if (lease->pins)
        return tarn_fail(TARN_E_BUSY, "lease %u: a transfer of this lender has not ended: recall again",
                         lease->slot);
    return tarn_fail(TARN_E_BUSY,
                     "lease %u: process %d is in the middle of a transfer: end it, or recall again",
                     lease->slot, (int)pid);
}

/* tarn_cancel_ask() calls the application, so not with the lock, which is held before and after. */
static bool canceled(struct tarn_lent *l, struct tarn_cancel *cancel)
{
    pthread_mutex_unlock(&l->lock);
    bool yes = tarn_cancel_ask(cancel);
    pthread_mutex_lock(&l->lock);
    return yes;
}

/* Waits until nobody is at the runs. The lock is held. */
static int await_quiet(struct tarn_lent *l, const struct tarn_lease *lease, uint64_t deadline_ns,
                       struct tarn_cancel *cancel)
{
    for (;;) {
        bool end_early = canceled(l, cancel);
        pid_t pid = marked_by(l, lease);
        uint64_t now = tarn_now_ns(), look = now + LOOK_NS;
        if (!pid && !lease->pins)
            return 0;
        if (end_early)
            return tarn_cancel_fail();
        if (now >= deadline_ns)
            return busy(lease, pid);
        tarn_cond_wait(&l->unpinned, &l->lock, look < deadline_ns ? look : deadline_ns);
    }
}

/* Nobody is to find a lease in a notification that is freed. The lock is held. */
static void drop_notices(const struct tarn_lease *lease)
{
    struct tarn_lent_notice *n, *next;
    DL_FOREACH_SAFE(lease->window->notices, n, next)
    if (n->n.lease == lease)
        take(lease->window, n, NULL);
}

int tarn_lent_recall(struct tarn_lent *l, struct tarn_lease *lease, uint64_t deadline_ns,
                     struct tarn_cancel *cancel)
{
    pthread_mutex_lock(&l->lock);
    end(l, lease);
    int rc = await_quiet(l, lease, deadline_ns, cancel);
    if (!rc) {
        drop_notices(lease);
        DL_DELETE(lease->window->leases, lease);
        l->leases[lease->slot] = NULL;
        if ((uint32_t)lease->gen < UINT32_MAX - 3) /* its counter must not come round */
            l->free[l->nfree++] = lease->slot;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

void tarn_lent_end_all(struct tarn_lent *l, uint64_t deadline_ns)
{
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->nslots; i++)
        if (l->leases[i])
            end(l, l->leases[i]);
    for (uint32_t i = 0; i < l->nslots; i++)
        if (l->leases[i])
            await_quiet(l, l->leases[i], deadline_ns, NULL);
    pthread_mutex_unlock(&l->lock);
}

/* The lock is held. */
static struct tarn_lease *find(const struct tarn_lent *l, uint32_t window, uint32_t slot, uint64_t gen)
{
    struct tarn_lease *lease = slot < TARN_LENT_SLOTS ? l->leases[slot] : NULL;
    return lease && !lease->ended && lease->gen == gen && lease->window->index == window ? lease : NULL;
}

static int stale(uint32_t window, uint32_t slot)
{
    return tarn_fail(TARN_E_STALE, "window %u lease %u: has ended: ask the lender for a new one", window,
                     slot);
}

/* The lock is held. False: out of memory. */
static bool note_writer(struct tarn_lease *lease, uint64_t session, const char *peer)
{
    const struct tarn_window_grant *g = grant_of(lease->window, session);
    struct tarn_lent_writer *w;
    LL_SEARCH_SCALAR(lease->writers, w, session, session);
    if (!lease->write || !g || !g->write)
        return true;
    if (!w && !(w = calloc(1, sizeof(*w))))
        return false;
    if (!w->session)
        LL_PREPEND(lease->writers, w);
    w->session = session;
    w->gone = false;
    snprintf(w->peer, sizeof(w->peer), "%s", peer);
    return true;
}

int tarn_lent_visit(struct tarn_lent *l, uint64_t session, const char *peer, uint32_t window, uint32_t slot,
                    uint64_t gen, void (*fn)(void *arg, const struct tarn_lease *lease), void *arg)
{
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = find(l, window, slot, gen);
    bool noted = !lease || note_writer(lease, session, peer);
    if (lease)
        fn(arg, lease);
    pthread_mutex_unlock(&l->lock);
    if (!noted)
        return tarn_fail(TARN_E_NO_MEMORY, "window %u lease %u: out of memory for a session", window, slot);
    return lease ? 0 : stale(window, slot);
}

/* --- notifications ------------------------------------------------------------------------------ */

int tarn_lent_notify(struct tarn_lent *l, uint64_t session, uint32_t window, uint32_t slot, uint64_t gen,
                     const struct tarn_notification *n)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = find(l, window, slot, gen);
    const struct tarn_window_grant *g = lease ? grant_of(lease->window, session) : NULL;
    struct tarn_lent_notice *notice = NULL;
    if (!lease)
        rc = TARN_E_STALE;
    else if (!g || !g->write || !lease->write)
        rc = TARN_E_AUTH;
    else if (lease->window->nnotices == TARN_LENT_NOTICES)
        rc = TARN_E_AGAIN;
    else if (!(notice = malloc(sizeof(*notice))))
        rc = TARN_E_NO_MEMORY;
    if (!rc) {
        notice->n = *n;
        notice->n.lease = lease;
        DL_APPEND(lease->window->notices, notice);
        if (lease->window->nnotices++ == 0)
            eventfd_write(lease->window->notice_fd, 1);
        pthread_cond_broadcast(&l->told);
    }
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_STALE ? stale(window, slot)
           : rc ? tarn_fail(rc, "window %u lease %u: notification: %s", window, slot, tarn_strerror(rc))
                : 0;
}

/* Waits for `told` or the deadline. 0: look again. The lock is held. */
static int await_told(struct tarn_lent *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    if (tarn_cancel_cond(cancel, &l->told, &l->lock, deadline_ns))
        return 0;
    return tarn_canceled(cancel) ? tarn_cancel_fail() : TARN_E_TIMEOUT;
}

int tarn_lent_next(struct tarn_lent *l, struct tarn_window *w, uint64_t deadline_ns,
                   struct tarn_cancel *cancel, struct tarn_notification *out)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    while (!rc && !w->notices)
        rc = await_told(l, deadline_ns, cancel);
    if (!rc)
        take(w, w->notices, out);
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_TIMEOUT ? tarn_fail(rc, "window %u: no notification in time: wait longer", w->index)
                                : rc;
}

/* Takes the lease's notices with that tag, if there are n of them. The lock is held. */
static bool take_tagged(const struct tarn_lease *lease, uint64_t tag, uint32_t n)
{
    struct tarn_lent_notice *at, *next;
    uint32_t found = 0;
    DL_FOREACH (lease->window->notices, at)
        found += at->n.lease == lease && at->n.tag == tag;
    if (found < n)
        return false;
    DL_FOREACH_SAFE(lease->window->notices, at, next)
    if (n > 0 && at->n.lease == lease && at->n.tag == tag) {
        take(lease->window, at, NULL);
        n--;
    }
    return true;
}

static int writer_lost(const struct tarn_lease *lease)
{
    const struct tarn_lent_writer *w;
    LL_SEARCH_SCALAR(lease->writers, w, gone, true);
    if (!w)
        return 0;
    return tarn_fail(TARN_E_NODE_DOWN, "window %u lease %u: its writer %s is gone: has that process ended?",
                     lease->window->index, lease->slot, w->peer);
}

int tarn_lent_expect(struct tarn_lent *l, struct tarn_lease *lease, uint64_t tag, uint32_t n,
                     uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    while (!rc && !take_tagged(lease, tag, n)) {
        rc = lease->ended ? stale(lease->window->index, lease->slot) : writer_lost(lease);
        if (!rc)
            rc = await_told(l, deadline_ns, cancel);
    }
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_TIMEOUT
               ? tarn_fail(
                     rc,
                     "window %u lease %u: %u notifications with tag %llu have not come in time: wait longer",
                     lease->window->index, lease->slot, n, (unsigned long long)tag)
               : rc;
}

void tarn_lent_info(struct tarn_lent *l, struct tarn_buf *text)
{
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++) {
        const struct tarn_lease *lease;
        uint32_t n = 0, ended = 0;
        if (!l->windows[i])
            continue;
        DL_FOREACH (l->windows[i]->leases, lease) {
            n++;
            ended += lease->ended;
        }
        tarn_buf_printf(text, "window%u:kind=%s,bytes=%llu,leases=%u,ended=%u\r\n", i,
                        l->pools[i].kind == TARN_POOL_GPU ? "gpu" : "cpu",
                        (unsigned long long)l->pools[i].bytes, n, ended);
    }
    pthread_mutex_unlock(&l->lock);
}

/* --- the guard ---------------------------------------------------------------------------------- */

static int guard_pin(void *arg, uint64_t session, bool write, uint32_t window, uint32_t slot, uint64_t gen,
                     uint64_t offset, uint64_t bytes, struct tarn_pinned *p)
{
    struct tarn_lent *l = arg;
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = find(l, window, slot, gen);
    const struct tarn_window_grant *g = lease ? grant_of(lease->window, session) : NULL;
    if (!lease)
        rc = TARN_E_STALE;
    else if (!g || (write && !(g->write && lease->write)))
        rc = TARN_E_AUTH;
    else if (offset > lease->bytes || bytes > lease->bytes - offset)
        rc = TARN_E_SIZE;
    if (!rc) {
        lease->pins++;
        *p = (struct tarn_pinned){.runs = lease->runs, .nruns = lease->nruns, .at = offset};
    }
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_STALE ? stale(window, slot)
           : rc               ? tarn_fail(rc, "window %u lease %u: %s", window, slot, tarn_strerror(rc))
                              : 0;
}

static void guard_unpin(void *arg, uint32_t pool, uint32_t slot, uint64_t gen)
{
    struct tarn_lent *l = arg;
    (void)pool, (void)gen;
    pthread_mutex_lock(&l->lock);
    if (--l->leases[slot]->pins == 0)
        pthread_cond_broadcast(&l->unpinned);
    pthread_mutex_unlock(&l->lock);
}

static void guard_touch(void *arg, uint32_t pool, uint32_t slot)
{
    (void)arg, (void)pool, (void)slot;
}

struct tarn_guard tarn_lent_guard(struct tarn_lent *l)
{
    return (struct tarn_guard){
        .arg = l,
        .pin_lease = guard_pin,
        .unpin = guard_unpin,
        .touch = guard_touch,
    };
}
