/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/node_share.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* A second open of a memfd. Mode 0600 keeps other users from opening it for writing through the descriptor.
 */
static int read_only(int fd, const char *transport, const char *pool, int *fd_p)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fchmod(fd, 0600) < 0)
        return tarn_fail(TARN_E_SYSTEM, "pool %s: %s: chmod of its memory: %m", pool, transport);
    *fd_p = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd_p < 0)
        return tarn_fail(TARN_E_SYSTEM, "pool %s: %s: open %s read-only: %m: mount /proc", pool, transport,
                         path);
    return 0;
}

static int open_files(struct tarn_share_node *s, uint32_t i)
{
    const struct tarn_pool_memory *p = &s->half.serve.pools[i];
    int rc = p->memfd >= 0 ? read_only(p->memfd, s->transport, p->name, &s->files[i].arena) : 0;
    return rc ? rc : read_only(p->gen_fd, s->transport, p->name, &s->files[i].gen);
}

static void close_files(struct tarn_share_files *f)
{
    if (f->arena >= 0)
        close(f->arena);
    if (f->gen >= 0)
        close(f->gen);
    *f = (struct tarn_share_files){-1, -1};
}

void tarn_share_stop(struct tarn_node_half *h)
{
    struct tarn_share_node *s = tarn_share_node(h);
    for (uint32_t i = 0; i < h->serve.npools; i++)
        close_files(&s->files[i]);
    free(s);
}

int tarn_share_serve(const char *transport, const struct tarn_serve *serve,
                     bool (*is_served)(const struct tarn_pool_memory *p), struct tarn_node_half **h_p)
{
    struct tarn_share_node *s = calloc(1, sizeof(*s) + serve->npools * sizeof(s->files[0]));
    int rc = 0;
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for %u pools", transport, serve->npools);
    s->half.serve = *serve;
    s->transport = transport;
    s->is_served = is_served;
    for (uint32_t i = 0; i < serve->npools; i++)
        s->files[i] = (struct tarn_share_files){-1, -1};
    for (uint32_t i = 0; !rc && i < serve->npools; i++)
        if (is_served(&serve->pools[i])) {
            rc = open_files(s, i);
            s->nserved++;
        }
    if (rc)
        tarn_share_stop(&s->half);
    else
        *h_p = &s->half;
    return rc;
}

/* A pool whose files could not be opened is not served. */
bool tarn_share_serves(const struct tarn_node_half *h, uint32_t pool)
{
    return tarn_share_node(h)->is_served(&h->serve.pools[pool]) && tarn_share_node(h)->files[pool].gen >= 0;
}

void tarn_share_lend(struct tarn_node_half *h, uint32_t window)
{
    struct tarn_share_node *s = tarn_share_node(h);
    if (s->is_served(&h->serve.pools[window]) && open_files(s, window)) {
        tarn_log(h->serve.log, TARN_LOG_WARN, "host",
                 "msg=\"a window is not offered\" transport=%s cause=\"%s\"", s->transport,
                 tarn_last_error());
        close_files(&s->files[window]);
    }
}

void tarn_share_withdraw(struct tarn_node_half *h, uint32_t window)
{
    close_files(&tarn_share_node(h)->files[window]);
}

static size_t add_pool(const struct tarn_share_node *s, uint32_t i, const char *more, size_t length,
                       struct tarn_attach *a)
{
    const struct tarn_pool_memory *p = &s->half.serve.pools[i];
    if (p->memfd >= 0)
        a->fds[a->nfds++] = a->write ? p->memfd : s->files[i].arena;
    a->fds[a->nfds++] = s->files[i].gen;
    if (p->touch_fd >= 0)
        a->fds[a->nfds++] = p->touch_fd;
    return (size_t)snprintf(a->text + length, sizeof(a->text) - length, " %u %llu %u%s", i,
                            (unsigned long long)p->bytes, p->nslots, more);
}

int tarn_share_attach(struct tarn_node_half *h, const char *begin,
                      void (*more)(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE]),
                      struct tarn_attach *a)
{
    const struct tarn_share_node *s = tarn_share_node(h);
    enum { POOLS_MAX = (sizeof(a->fds) / sizeof(a->fds[0]) - 1) / TARN_SHARE_FDS };
    _Static_assert(POOLS_MAX * (TARN_SHARE_MORE + 48) + 64 < TARN_ATTACH_TEXT,
                   "so many pools fit the answer");
    if (!a->local)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "%s: descriptors cannot pass over TCP: attach over the node's Unix socket",
                         s->transport);
    if (s->nserved > POOLS_MAX)
        return tarn_fail(TARN_E_UNSUPPORTED, "%s: %u pools do not fit one ATTACH: use at most %u",
                         s->transport, s->nserved, POOLS_MAX);
    a->nfds = 0;
    memset(a->close_fds, 0, sizeof(a->close_fds));
    size_t length = (size_t)snprintf(a->text, sizeof(a->text), "%s %u", begin, s->nserved);
    for (uint32_t i = 0; s->nserved && i < h->serve.npools; i++) {
        char text[TARN_SHARE_MORE] = "";
        if (!tarn_share_serves(h, i))
            continue;
        if (more)
            more(&h->serve.pools[i], text);
        length += add_pool(s, i, text, length, a);
    }
    if (a->hazard_fd >= 0)
        a->fds[a->nfds++] = a->hazard_fd;
    return 0;
}

int tarn_share_enter(struct tarn_node_half *h, uint32_t window, const char *begin,
                     void (*more)(const struct tarn_pool_memory *p, char text[TARN_SHARE_MORE]),
                     struct tarn_attach *a)
{
    const struct tarn_pool_memory *p = &h->serve.pools[window];
    char text[TARN_SHARE_MORE] = "";
    a->nfds = 0;
    memset(a->close_fds, 0, sizeof(a->close_fds));
    if (more)
        more(p, text);
    size_t length = (size_t)snprintf(a->text, sizeof(a->text), "%s 1", begin);
    length += add_pool(tarn_share_node(h), window, text, length, a);
    if (a->ring_fd >= 0) {
        a->fds[a->nfds++] = a->ring_fd;
        a->fds[a->nfds++] = a->bell_fd;
    }
    snprintf(a->text + length, sizeof(a->text) - length, " %llu", (unsigned long long)p->file_offset);
    return 0;
}

void tarn_share_detach(struct tarn_node_half *h, uint64_t session)
{
    (void)h, (void)session;
}
