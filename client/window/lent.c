/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/lent_impl.h"

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
#include "client/client.h"
#include "client/window/alloc.h"

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

static void window_free(struct tarn_window *w)
{
    free_grants(w, 0);
    tarn_lent_drop_notices(w, NULL);
    if (w->notice_fd >= 0)
        close(w->notice_fd);
    free(w);
}

void tarn_lease_name_free(struct tarn_lease_name *name)
{
    if (name)
        free(name->name);
    free(name);
}

void tarn_lease_free(struct tarn_lease *lease)
{
    struct tarn_lent_writer *w, *next;
    struct tarn_lease_name *name, *after;
    if (!lease)
        return;
    LL_FOREACH_SAFE(lease->writers, w, next)
    free(w);
    LL_FOREACH_SAFE(lease->names, name, after)
    tarn_lease_name_free(name);
    tarn_runs_free(&lease->runs);
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
    l->gen_fd = l->bell = -1;
    pthread_mutex_init(&l->lock, NULL);
    tarn_cond_init(&l->unpinned);
    tarn_cond_init(&l->told);
    int rc = map_gens(l);
    if (!rc)
        rc = tarn_client_eventfd(&l->bell);
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
        tarn_window_file_give(l->pools[i].memfd);
    }
    while ((p = l->pages) != NULL) {
        l->pages = p->next;
        free(p);
    }
    if (l->gen)
        munmap((void *)(uintptr_t)l->gen, TARN_LENT_SLOTS * sizeof(*l->gen));
    if (l->gen_fd >= 0)
        close(l->gen_fd);
    if (l->bell >= 0)
        close(l->bell);
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
    tarn_window_file_give(l->pools[w->index].memfd);
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

struct tarn_window_grant *tarn_lent_grant_of(struct tarn_window *w, uint64_t session)
{
    struct tarn_window_grant *g;
    LL_SEARCH_SCALAR(w->grants, g, session, session);
    return g;
}

static int grant(struct tarn_lent *l, struct tarn_window *w, uint64_t session, bool write)
{
    struct tarn_window_grant *g = tarn_lent_grant_of(w, session);
    if (!g && !(g = calloc(1, sizeof(*g))))
        return tarn_fail(TARN_E_NO_MEMORY, "window: out of memory for a session");
    if (!g->session) {
        LL_PREPEND(w->grants, g);
        g->pass = ++l->next_pass;
    }
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
            rc = grant(l, w, session, write);
        }
    pthread_mutex_unlock(&l->lock);
    if (rc == TARN_E_AUTH)
        return tarn_fail(TARN_E_AUTH,
                         "window %u: is closed, or the token is not its own: ask for a new descriptor",
                         window);
    return rc;
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
    tarn_lent_tell(l, NULL);
}

void tarn_lent_forget(struct tarn_lent *l, uint64_t session, bool quit)
{
    pthread_mutex_lock(&l->lock);
    tarn_lent_ring_end(l, session);
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

void tarn_lent_receive(struct tarn_lent *l, struct tarn_lease *lease, bool under_way)
{
    pthread_mutex_lock(&l->lock);
    lease->receives = under_way;
    pthread_mutex_unlock(&l->lock);
}

bool tarn_lent_receives(struct tarn_lent *l, const struct tarn_window *w)
{
    const struct tarn_lease *lease;
    pthread_mutex_lock(&l->lock);
    DL_SEARCH_SCALAR(w->leases, lease, receives, true);
    pthread_mutex_unlock(&l->lock);
    return lease != NULL;
}

/* The lock is held. */
static void end(struct tarn_lent *l, struct tarn_lease *lease)
{
    const struct tarn_lent_writer *w;
    bool entered = false;
    if (lease->ended)
        return;
    atomic_store(&l->gen[lease->slot], lease->gen + 1);
    lease->ended = true;
    tarn_lent_tell(l, lease);
    LL_FOREACH (lease->writers, w)
        if (w->entered && !w->gone)
            entered = true;
    lease->window->ends += entered;
}

bool tarn_lent_end(struct tarn_lent *l, struct tarn_lease *lease)
{
    pthread_mutex_lock(&l->lock);
    end(l, lease);
    bool due = lease->window->cut != lease->window->ends;
    pthread_mutex_unlock(&l->lock);
    return due;
}

/* All who have entered the window must enter again. The lock is held. */
static void renew_passes(struct tarn_lent *l, struct tarn_window *w)
{
    struct tarn_window_grant *g;
    struct tarn_lease *lease;
    struct tarn_lent_writer *writer;
    LL_FOREACH (w->grants, g)
        g->pass = ++l->next_pass;
    DL_FOREACH (w->leases, lease)
        LL_FOREACH (lease->writers, writer)
            writer->entered = 0;
}

void tarn_lent_cut(struct tarn_lent *l, struct tarn_window *w, void (*fn)(void *arg, uint32_t window),
                   void *arg)
{
    pthread_mutex_lock(&l->lock);
    uint64_t ends = w->ends;
    bool due = w->cut != ends;
    if (due)
        renew_passes(l, w);
    pthread_mutex_unlock(&l->lock);
    if (!due)
        return;
    fn(arg, w->index);
    pthread_mutex_lock(&l->lock);
    w->cut = ends;
    pthread_mutex_unlock(&l->lock);
}

void tarn_lent_expire(struct tarn_lent *l, uint64_t now_ns, void (*fn)(void *arg, uint32_t window), void *arg)
{
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->nslots; i++)
        if (l->leases[i] && l->leases[i]->ends_ns && l->leases[i]->ends_ns <= now_ns)
            end(l, l->leases[i]);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++)
        if (l->windows[i])
            tarn_lent_cut(l, l->windows[i], fn, arg);
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
    if (!pid)
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
        if (!pid && !lease->pins && !lease->waiters)
            return 0;
        if (end_early)
            return tarn_cancel_fail();
        if (now >= deadline_ns)
            return busy(lease, pid);
        tarn_cond_wait(&l->unpinned, &l->lock, look < deadline_ns ? look : deadline_ns);
    }
}

int tarn_lent_recall(struct tarn_lent *l, struct tarn_lease *lease, uint64_t deadline_ns,
                     struct tarn_cancel *cancel)
{
    pthread_mutex_lock(&l->lock);
    end(l, lease);
    int rc = await_quiet(l, lease, deadline_ns, cancel);
    if (!rc) {
        tarn_lent_drop_notices(lease->window, lease);
        DL_DELETE(lease->window->leases, lease);
        l->leases[lease->slot] = NULL;
        /* The queue has room again. */
        tarn_lent_drain(l);
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

struct tarn_lease *tarn_lent_find(const struct tarn_lent *l, uint32_t window, uint32_t slot, uint64_t gen)
{
    struct tarn_lease *lease = slot < TARN_LENT_SLOTS ? l->leases[slot] : NULL;
    return lease && !lease->ended && lease->gen == gen && lease->window->index == window ? lease : NULL;
}

int tarn_lent_stale(uint32_t window, uint32_t slot)
{
    return tarn_fail(TARN_E_STALE, "window %u lease %u: has ended: ask the lender for a new one", window,
                     slot);
}

/* The lock is held. False: out of memory. */
static bool note_writer(struct tarn_lease *lease, uint64_t session, const char *peer)
{
    const struct tarn_window_grant *g = tarn_lent_grant_of(lease->window, session);
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

struct tarn_lent_writer *tarn_lent_writer_of(struct tarn_lease *lease, uint64_t session)
{
    struct tarn_lent_writer *w;
    LL_SEARCH_SCALAR(lease->writers, w, session, session);
    return w;
}

int tarn_lent_enter(struct tarn_lent *l, struct tarn_lent_visitor *v)
{
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = tarn_lent_find(l, v->window, v->slot, v->gen);
    const struct tarn_window_grant *g = lease ? tarn_lent_grant_of(lease->window, v->session) : NULL;
    struct tarn_lent_writer *w = lease ? tarn_lent_writer_of(lease, v->session) : NULL;
    bool may = v->write ? w && g && g->write && lease->write : g != NULL;
    if (may && v->write && v->keys)
        w->entered++;
    if (may)
        v->pass = g->pass;
    pthread_mutex_unlock(&l->lock);
    if (!lease)
        return tarn_lent_stale(v->window, v->slot);
    return may ? 0
               : tarn_fail(TARN_E_AUTH, "window %u lease %u: show a token for %s first (REACH)", v->window,
                           v->slot, v->write ? "writing" : "reading");
}

void tarn_lent_leave(struct tarn_lent *l, const struct tarn_lent_visitor *v, uint32_t times)
{
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = tarn_lent_find(l, v->window, v->slot, v->gen);
    const struct tarn_window_grant *g = lease ? tarn_lent_grant_of(lease->window, v->session) : NULL;
    struct tarn_lent_writer *w = lease ? tarn_lent_writer_of(lease, v->session) : NULL;
    if (w && g && g->pass == v->pass)
        w->entered -= times < w->entered ? times : w->entered;
    pthread_mutex_unlock(&l->lock);
}

int tarn_lent_visit(struct tarn_lent *l, uint64_t session, const char *peer, uint32_t window, uint32_t slot,
                    uint64_t gen, void (*fn)(void *arg, const struct tarn_lease *lease), void *arg)
{
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = tarn_lent_find(l, window, slot, gen);
    bool noted = !lease || note_writer(lease, session, peer);
    if (lease)
        fn(arg, lease);
    pthread_mutex_unlock(&l->lock);
    if (!noted)
        return tarn_fail(TARN_E_NO_MEMORY, "window %u lease %u: out of memory for a session", window, slot);
    return lease ? 0 : tarn_lent_stale(window, slot);
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

static int gpu_of(const struct tarn_pool_memory *m)
{
    return m->kind == TARN_POOL_GPU ? m->device : -1;
}

static int guard_pin(void *arg, uint64_t session, bool write, uint32_t window, uint32_t slot, uint64_t gen,
                     uint64_t offset, uint64_t bytes, struct tarn_pinned *p)
{
    struct tarn_lent *l = arg;
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = tarn_lent_find(l, window, slot, gen);
    const struct tarn_window_grant *g = lease ? tarn_lent_grant_of(lease->window, session) : NULL;
    if (!lease)
        rc = TARN_E_STALE;
    else if (!g || (write && !(g->write && lease->write)))
        rc = TARN_E_AUTH;
    else if (offset > lease->runs.bytes || bytes > lease->runs.bytes - offset)
        rc = TARN_E_SIZE;
    if (!rc) {
        lease->pins++;
        *p = (struct tarn_pinned){.runs = &lease->runs, .at = offset, .device = gpu_of(&l->pools[window])};
    }
    pthread_mutex_unlock(&l->lock);
    return rc == TARN_E_STALE ? tarn_lent_stale(window, slot)
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
        .notify = tarn_lent_guard_notify,
        .ring_new = tarn_lent_guard_ring_new,
        .ring_got = tarn_lent_guard_ring_got,
        .ring_end = tarn_lent_guard_ring_end,
        .unpin = guard_unpin,
        .touch = guard_touch,
    };
}
