/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: one client of a process, by the number it chose. A session lives as long as one of its
 * control connections, and longer while its process could still harm or need the pools:
 *
 *   CONNECTED --last connection closes--> LINGERING --the process exits--> gone
 *       |  \--the same, but QUIT was said, or nothing can be mapped-------> gone
 *       \-----the process exits: its connections are closed---------------> gone
 *
 * LINGERING keeps the hazard page, since the process may hold views. If the session has a writable mapping,
 * it keeps its reservations, too, since a late write may come. A process that connects again under the same
 * number is CONNECTED again. QUIT promises that nothing is mapped any more; HELLO and ATTACH revoke that
 * promise. When the process exits, connections that a child has inherited are closed as well: its mappings
 * are gone.
 *
 * A session's *term* ends when the host takes its reservations back. An id that comes again begins another
 * term, so the client can tell that what it had reserved is gone (docs/protocol.md, HELLO).
 */
#ifndef TARN_TRANSPORT_SESSION_H
#define TARN_TRANSPORT_SESSION_H

#include <sys/types.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "transport/host/host.h"

struct tarn_session {
    UT_hash_handle hh;
    struct tarn_sessions *all;
    uint64_t id, term;
    uint32_t connections;
    bool identified;  /* a connection came over the Unix socket; sets pid, process and pidfd */
    pid_t pid;        /* 0: the process is in a PID namespace that is hidden from here */
    uint64_t process; /* inode of the pidfd, unique to the process; 0: the kernel does not give one */
    int pidfd;        /* -1: the process cannot be watched from here */
    struct tarn_watch *exit_watch;
    bool quit;         /* QUIT was sent: nothing is mapped */
    bool writer;       /* has a writable mapping */
    uint32_t attached; /* bits of host->transports */
    int hazard_fd;
    struct tarn_hazard_page *page;
    uint64_t reserving_since_ns; /* tarnd's; 0: it has no reservations */
    uint64_t last_ns;            /* its last command */
};

struct tarn_sessions {
    struct tarn_host *host;
    struct tarn_session *table;
    uint64_t terms; /* begun so far, of all sessions */
    void (*drop)(const struct tarn_session *s);
};

/* drop: closes all connections of a session. */
int tarn_sessions_new(struct tarn_host *h, void (*drop)(const struct tarn_session *s),
                      struct tarn_sessions **s_p);
/* Ends all sessions. Their connections must be closed. */
void tarn_sessions_free(struct tarn_sessions *s);

/*
 * Adds a connection to the session of that id; the first connection starts the session. unix_fd: the
 * connection's descriptor if it is of the Unix socket, else -1. AUTH: the id belongs to another process.
 * BUSY: the process has too many sessions.
 */
int tarn_session_join(struct tarn_sessions *s, uint64_t id, int unix_fd, struct tarn_session **session_p);
void tarn_session_leave(struct tarn_session *s);
/* QUIT. */
void tarn_session_quit(struct tarn_session *s);

/*
 * ATTACH. The caller sets `write`, `local` and `offer` of *a. Fills its text and descriptors, or returns
 * TARN_INPROGRESS and calls a->done later. *transport_p: the transport of that name.
 */
int tarn_session_attach(struct tarn_session *s, const char *transport, struct tarn_attach *a,
                        const struct tarn_host_transport **transport_p);
/* The transport of that name, which the session has attached to. AUTH: it has not, or not for writing. */
int tarn_session_attached(const struct tarn_session *s, const char *transport, bool write,
                          const struct tarn_host_transport **transport_p);
/* DETACH. */
int tarn_session_detach_link(struct tarn_session *s, const char *transport, uint64_t link);

#endif
