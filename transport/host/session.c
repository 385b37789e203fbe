/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/host/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define AT "session"
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define PIDFS_MAGIC 0x50494446u
#define SESSIONS_MAX 256 /* of one process: each may keep a hazard page, which every reuse looks at */

int tarn_sessions_new(struct tarn_host *h, void (*drop)(const struct tarn_session *s),
                      struct tarn_sessions **s_p)
{
    struct tarn_sessions *s = calloc(1, sizeof(*s));
    if (!s)
        return tarn_fail(TARN_E_NO_MEMORY, "sessions: out of memory");
    s->host = h;
    s->terms = tarn_now_ns(); /* more than any that a host of this name has told before a restart */
    s->drop = drop;
    *s_p = s;
    return 0;
}

static void detach(struct tarn_session *s)
{
    const struct tarn_host *h = s->all->host;
    for (uint32_t i = 0; i < h->ntransports; i++) {
        if (s->attached & 1u << i)
            h->transports[i].ops->detach(h->transports[i].half, s->id);
    }
    s->attached = 0;
}

static void drop_page(struct tarn_session *s)
{
    if (s->page) {
        s->all->host->ops->hazard_remove(s, s->page);
        munmap(s->page, sizeof(*s->page));
        s->page = NULL;
    }
    if (s->hazard_fd >= 0)
        close(s->hazard_fd);
    s->hazard_fd = -1;
}

static void session_free(struct tarn_session *s)
{
    struct tarn_host *h = s->all->host;
    detach(s);
    bool released = h->ops->release(s, true);
    drop_page(s);
    tarn_watch_free(s->exit_watch);
    if (s->pidfd >= 0)
        close(s->pidfd);
    HASH_DEL(s->all->table, s);
    free(s);
    if (released)
        h->ops->released(h);
}

void tarn_sessions_free(struct tarn_sessions *s)
{
    struct tarn_session *session, *next;
    if (!s)
        return;
    HASH_ITER (hh, s->table, session, next)
        session_free(session);
    free(s);
}

/* The last connection that goes takes the session with it. */
static void process_exited(void *arg, int events)
{
    struct tarn_session *s = arg;
    (void)events;
    tarn_watch_free(s->exit_watch);
    s->exit_watch = NULL;
    if (s->connections)
        s->all->drop(s);
    else
        session_free(s);
}

/* --- which process ------------------------------------------------------------------------------ */

struct peer {
    pid_t pid;
    uint64_t process;
    int pidfd;
};

/* The inode of a pidfd on pidfs (Linux 6.9); 0 where all pidfds have the same one. */
static uint64_t process_of(int pidfd)
{
    struct statfs fs;
    struct stat st;
    bool unique = pidfd >= 0 && fstatfs(pidfd, &fs) == 0 && (uint64_t)fs.f_type == PIDFS_MAGIC;
    return unique && fstat(pidfd, &st) == 0 ? st.st_ino : 0;
}

/* Who is at the other end. A process that cannot be told from others cannot be watched either. */
static int look_at_peer(int fd, struct peer *p)
{
    struct ucred ids = {0};
    socklen_t bytes = sizeof(ids), pidfd_bytes = sizeof(p->pidfd);
    *p = (struct peer){.pidfd = -1};
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &ids, &bytes))
        return tarn_fail(TARN_E_SYSTEM, "HELLO: cannot tell the peer's process: %m");
    p->pid = ids.pid;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &p->pidfd, &pidfd_bytes)) {
        /* Before Linux 6.5. Any other failure says that the process is gone and its number may be another's.
         */
        p->pidfd = errno == ENOPROTOOPT && ids.pid > 0 ? (int)syscall(SYS_pidfd_open, ids.pid, 0) : -1;
    }
    p->process = process_of(p->pidfd);
    if (p->pidfd >= 0 && !p->pid && !p->process) {
        close(p->pidfd);
        p->pidfd = -1;
    }
    return 0;
}

static bool has_too_many(const struct tarn_session *one)
{
    unsigned n = 0;
    for (const struct tarn_session *s = one->all->table; s; s = s->hh.next)
        n += s->pidfd >= 0 && s->pid == one->pid && s->process == one->process;
    return n > SESSIONS_MAX;
}

/* The session's first connection over the Unix socket says which process it is. Owns p->pidfd. */
static int become(struct tarn_session *s, const struct peer *p)
{
    s->pid = p->pid;
    s->process = p->process;
    s->pidfd = p->pidfd;
    if (s->pidfd >= 0 && has_too_many(s)) {
        close(s->pidfd);
        s->pidfd = -1;
        return tarn_fail(TARN_E_BUSY,
                         "HELLO: process %d has %d sessions with node %s: close clients that are not used",
                         (int)p->pid, SESSIONS_MAX, s->all->host->id);
    }
    s->identified = true;
    if (s->pidfd >= 0 &&
        tarn_watch_new(s->all->host->loop, s->pidfd, TARN_READABLE, process_exited, s, &s->exit_watch)) {
        close(s->pidfd);
        s->pidfd = -1;
    }
    return 0;
}

static int identify(struct tarn_session *s, int unix_fd)
{
    struct peer p;
    int rc = look_at_peer(unix_fd, &p);
    if (rc)
        return rc;
    if (!s->identified)
        return become(s, &p);
    if (p.pidfd >= 0)
        close(p.pidfd);
    if (s->pid == p.pid && s->process == p.process)
        return 0;
    return tarn_fail(TARN_E_AUTH,
                     "HELLO: session %016" PRIx64 " belongs to process %d, not to %d: choose a "
                     "random number for each process",
                     s->id, (int)s->pid, (int)p.pid);
}

/* --- coming and going --------------------------------------------------------------------------- */

static struct tarn_session *session_new(struct tarn_sessions *all, uint64_t id)
{
    struct tarn_session *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->all = all;
    s->id = id;
    s->term = ++all->terms;
    s->pidfd = s->hazard_fd = -1;
    HASH_ADD(hh, all->table, id, sizeof(s->id), s);
    if (!s->hh.tbl) {
        free(s);
        return NULL;
    }
    return s;
}

int tarn_session_join(struct tarn_sessions *all, uint64_t id, int unix_fd, struct tarn_session **session_p)
{
    struct tarn_session *s;
    HASH_FIND(hh, all->table, &id, sizeof(id), s);
    bool fresh = !s;
    if (fresh && !(s = session_new(all, id)))
        return tarn_fail(TARN_E_NO_MEMORY, "HELLO: out of memory");
    int rc = unix_fd >= 0 ? identify(s, unix_fd) : 0;
    if (rc && fresh)
        session_free(s);
    if (rc)
        return rc;
    s->connections++;
    s->quit = false;
    *session_p = s;
    return 0;
}

void tarn_session_leave(struct tarn_session *s)
{
    if (--s->connections)
        return;
    detach(s);
    if (!s->exit_watch || s->quit || (!s->page && !s->writer)) {
        session_free(s);
        return;
    }
    if (s->writer)
        return;
    bool released = s->all->host->ops->release(s, false);
    s->term = ++s->all->terms;
    if (released)
        s->all->host->ops->released(s->all->host);
}

void tarn_session_quit(struct tarn_session *s)
{
    s->quit = true;
}

/* --- attaching ---------------------------------------------------------------------------------- */

/* The size is sealed, so that no client can take pages away under the node. */
static int make_page_file(struct tarn_session *s, size_t bytes)
{
    int rc = s->all->host->ops->hazard_file ? s->all->host->ops->hazard_file(s, bytes, &s->hazard_fd) : 0;
    if (rc || s->hazard_fd >= 0)
        return rc;
    int fd = memfd_create("tarn-hazards", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        rc = tarn_fail(TARN_E_SYSTEM, "hazard page: %m: allow the node more open files");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    s->hazard_fd = fd;
    return 0;
}

static int make_page(struct tarn_session *s)
{
    size_t bytes = sizeof(*s->page);
    int rc = make_page_file(s, bytes);
    if (rc)
        return rc;
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->hazard_fd, 0);
    if (page == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "hazard page: mmap: %m");
    rc = s->all->host->ops->hazard_add(s, page);
    if (rc)
        munmap(page, bytes);
    else
        s->page = page;
    return rc;
}

/* Its index; NOT_REACHABLE when there is none of that name. */
static int find_transport(const struct tarn_host *h, const char *command, const char *name)
{
    for (uint32_t i = 0; i < h->ntransports; i++) {
        if (!strcmp(h->transports[i].ops->name, name))
            return (int)i;
    }
    return tarn_fail(TARN_E_NOT_REACHABLE, "%s %s: node %s does not offer that transport", command, name,
                     h->id);
}

static int check_attach(const struct tarn_session *s, const struct tarn_node_half_ops *ops, bool write,
                        bool local)
{
    bool mapped = ops->caps & TARN_CAP_SAME_HOST;
    if (mapped && !local)
        return tarn_fail(TARN_E_NOT_REACHABLE,
                         "ATTACH %s: reaches from the node's host only: connect to its Unix socket",
                         ops->name);
    if (mapped && write && (ops->caps & TARN_CAP_ONE_SIDED) && s->pidfd < 0)
        return tarn_fail(
            TARN_E_NOT_REACHABLE,
            "ATTACH %s: the node cannot see process %d, so it could not tell when a writer is gone: "
            "use one PID namespace, or write by tcp",
            ops->name, (int)s->pid);
    return 0;
}

int tarn_session_attach(struct tarn_session *s, const char *transport, struct tarn_attach *a,
                        const struct tarn_host_transport **transport_p)
{
    struct tarn_host *h = s->all->host;
    int at = find_transport(h, "ATTACH", transport);
    if (at < 0)
        return at;
    const struct tarn_node_half_ops *ops = h->transports[at].ops;
    *transport_p = &h->transports[at];
    int rc = check_attach(s, ops, a->write, a->local);
    if (!rc && (ops->caps & TARN_CAP_VIEW) && a->local && s->hazard_fd < 0 && (rc = make_page(s)))
        drop_page(s);
    if (rc)
        return rc;
    a->session = s->id;
    a->hazard_fd = s->hazard_fd;
    rc = ops->attach(h->transports[at].half, a);
    if (rc < 0)
        return rc;
    s->quit = false;
    s->attached |= 1u << at;
    s->writer |= a->write && (ops->caps & TARN_CAP_SAME_HOST) && (ops->caps & TARN_CAP_ONE_SIDED);
    return rc;
}

int tarn_session_attached(const struct tarn_session *s, const char *transport, bool write,
                          const struct tarn_host_transport **transport_p)
{
    int at = find_transport(s->all->host, "ENTER", transport);
    if (at < 0)
        return at;
    *transport_p = &s->all->host->transports[at];
    bool mapped = (*transport_p)->ops->caps & TARN_CAP_SAME_HOST;
    if ((s->attached & 1u << at) && (!write || !mapped || s->writer))
        return 0;
    return tarn_fail(TARN_E_AUTH, "ENTER %s: say ATTACH %s %s first", transport, transport,
                     write ? "w" : "r");
}

int tarn_session_detach_link(struct tarn_session *s, const char *transport, uint64_t link)
{
    struct tarn_host *h = s->all->host;
    int at = find_transport(h, "DETACH", transport);
    if (at < 0)
        return at;
    h->transports[at].ops->detach_link(h->transports[at].half, s->id, link);
    return 0;
}
