/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/lent.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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
        free(l->leases[i]);
    for (uint32_t i = 0; i < TARN_WINDOWS_MAX; i++) {
        if (l->windows[i])
            free_grants(l->windows[i], 0);
        free(l->windows[i]);
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
    free_grants(w, 0);
    l->windows[w->index] = NULL;
    l->pools[w->index] = (struct tarn_pool_memory){.memfd = -1};
    pthread_mutex_unlock(&l->lock);
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

void tarn_lent_forget(struct tarn_lent *l, uint64_t session)
{
    pthread_mutex_lock(&l->lock);
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
}

void tarn_lent_end(struct tarn_lent *l, struct tarn_lease *lease)
{
    pthread_mutex_lock(&l->lock);
    end(l, lease);
    pthread_mutex_unlock(&l->lock);
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

/* Waits until nobody is at the runs. The lock is held. */
static int await_quiet(struct tarn_lent *l, const struct tarn_lease *lease, uint64_t deadline_ns,
                       struct tarn_cancel *cancel)
{
    for (;;) {
        pid_t pid = marked_by(l, lease);
        uint64_t now = tarn_now_ns(), look = now + LOOK_NS;
        if (!pid && !lease->pins)
            return 0;
        if (tarn_cancel_ask(cancel))
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
        DL_DELETE(lease->window->leases, lease);
        l->leases[lease->slot] = NULL;
        if ((uint32_t)lease->gen < UINT32_MAX - 3) /* its counter must not come round */
            l->free[l->nfree++] = lease->slot;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
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

int tarn_lent_visit(struct tarn_lent *l, uint32_t window, uint32_t slot, uint64_t gen,
                    void (*fn)(void *arg, const struct tarn_lease *lease), void *arg)
{
    pthread_mutex_lock(&l->lock);
    const struct tarn_lease *lease = find(l, window, slot, gen);
    if (lease)
        fn(arg, lease);
    pthread_mutex_unlock(&l->lock);
    return lease ? 0 : stale(window, slot);
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
    int rc = TARN_E_STALE;
    pthread_mutex_lock(&l->lock);
    struct tarn_lease *lease = find(l, window, slot, gen);
    const struct tarn_window_grant *g = lease ? grant_of(lease->window, session) : NULL;
    if (g && (!write || (g->write && lease->write))) {
        rc = offset <= lease->bytes && bytes <= lease->bytes - offset ? 0 : TARN_E_SIZE;
    } else if (g) {
        rc = TARN_E_AUTH;
    }
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
