/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node half of a transport: how a node offers its pools to clients.
 *
 * Every transport has one constant table of functions for it (struct tarn_node_half_ops) in NAME_node.c. Only
 * nodes link these files; libtarn has the client halves (transport.h). node_registry.c lists the tables.
 *
 * All functions but serves() are called on the control thread. A node half may run threads of its own, which
 * may call the guard.
 */
#ifndef TARN_TRANSPORT_NODE_HALF_H
#define TARN_TRANSPORT_NODE_HALF_H

#include "transport/transport.h"

/* A pool as transports see it. The node owns all of its memory, and keeps it until after stop(). */
struct tarn_pool_memory {
    const char *name;
    enum tarn_pool_kind kind;
    void *base; /* the arena, mapped. GPU: an address of the device, which the CPU must not touch */
    uint64_t bytes;
    int memfd;               /* the arena's file. -1: there is none */
    uint64_t file_offset;    /* of the arena in that file; of a GPU window in its allocation */
    _Atomic uint64_t *gen;   /* nslots */
    _Atomic uint32_t *touch; /* nslots */
    int gen_fd, touch_fd;    /* files of gen and touch */
    uint32_t nslots;
    /* GPU pools only: */
    int device; /* as this process counts them */
    uint8_t uuid[TARN_CUDA_UUID];
    uint8_t handle[TARN_CUDA_HANDLE]; /* other processes open the arena with it, or a window's allocation */
    uint64_t allocation;              /* of a window: the number of tarn_cuda_export() */
};

struct tarn_notice_ring;

/* A range of a lease: it begins at byte `at` of the runs' bytes. */
struct tarn_pinned {
    const struct tarn_runs *runs;
    uint64_t at;
    int device; /* whose memory it is, as this process counts GPUs; -1: the CPU's */
};

/*
 * What a node half asks of the node, from any thread. A pin keeps the extent from being reused, but not the
 * object from being removed. A write pin also keeps the reservation from being committed.
 *
 * pin_read   STALE unless gen[slot] == gen, gen is even, and [offset, offset + bytes) lies in the extent
 * pin_write  STALE unless that session has reserved the slot under gen, which is odd
 * unpin      takes the gen of the pin
 * touch      counts as use; needs a pin
 */
struct tarn_guard {
    void *arg;
    int (*pin_read)(void *arg, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset, uint64_t bytes,
                    void **addr_p);
    int (*pin_write)(void *arg, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                     uint64_t bytes, void **addr_p);
    void (*unpin)(void *arg, uint32_t pool, uint32_t slot, uint64_t gen);
    void (*touch)(void *arg, uint32_t pool, uint32_t slot);
    /*
     * Windows only, in place of pin_read and pin_write; NULL: the host lends pools. Such a pin holds up
     * whoever recalls the lease, so nobody keeps one while a peer is waited for. Offsets count in the lease's
     * bytes. STALE: it has ended. SIZE: the range is not in it. AUTH: the session may not do that.
     */
    int (*pin_lease)(void *arg, uint64_t session, bool write, uint32_t pool, uint32_t slot, uint64_t gen,
                     uint64_t offset, uint64_t bytes, struct tarn_pinned *p);
    /* Windows only: the bytes of a write by that session are in place. AGAIN: too many notifications wait.
     * STALE, AUTH. */
    int (*notify)(void *arg, uint64_t session, uint32_t pool, uint32_t slot, uint64_t gen,
                  const struct tarn_notify *n);
    /*
     * Windows only: a ring of TARN_LINK_NOTICES places (notices.h), into which the transport lets a link of
     * that session write. ring_got: the notification whose number ends in these 32 bits has been written
     * whole. The host takes them in the order of their numbers. ring_end: it takes what is left, and frees
     * the ring.
     */
    int (*ring_new)(void *arg, uint64_t session, struct tarn_notice_ring **ring_p);
    void (*ring_got)(void *arg, struct tarn_notice_ring *ring, uint32_t number);
    void (*ring_end)(void *arg, struct tarn_notice_ring *ring);
    /* Windows only, from serve(): calls fn(fn_arg) on the control thread while fd is readable, until stop().
     */
    int (*watch)(void *arg, int fd, void (*fn)(void *fn_arg), void *fn_arg);
};

struct tarn_serve {
    const struct tarn_logger *log;
    const char *host;           /* address to bind to and to publish: "127.0.0.1" */
    uint16_t port;              /* of two-sided transports' data connections; 0: a free one */
    uint32_t io_threads;        /* at least 1 */
    const char *rdma_devices;   /* "mlx5_0,mlx5_1"; NULL: all */
    uint64_t rdma_region_bytes; /* pools are registered in parts of this size; 0: 3.5 GiB */
    uint64_t epoch;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    struct tarn_guard guard;
};

/*
 * One ATTACH of a session to a transport. attach() answers it, or returns TARN_INPROGRESS. Then the transport
 * owns *a until it sets `result` and calls done(). It calls done() once, from a thread of its
 * own, from stop() at the latest. The session's detach() may come before that.
 */
struct tarn_attach {
    uint64_t session;
    bool write;           /* the session wants write access, too */
    bool local;           /* came over the Unix socket, which can pass descriptors */
    int hazard_fd;        /* the session's hazard page; -1: there is none */
    int ring_fd, bell_fd; /* enter() for writing, within a host: notices.h; -1: none */
    const char *offer;    /* what the client half's offer() wrote; "" for none */
    _Atomic bool gone;    /* nobody waits for the answer any more, so attach() may fail */
    void (*done)(struct tarn_attach *a);
    /* out */
    struct tarn_reason result; /* in done: code 0, or the failure */
    uint64_t link; /* what detach_link() takes; 0: nothing does. In: of enter(), the link that learns */
    char text[TARN_ATTACH_TEXT]; /* one line for the client half, e.g. "v1 127.0.0.1:7701 <token>" */
    int fds[56];                 /* for SCM_RIGHTS; the node closes fds[i] after sending if close_fds[i] */
    bool close_fds[56];
    uint32_t nfds;
};

/* What all node halves have. Each transport's own (struct tarn_tcp_node and so on) begins with it. */
struct tarn_node_half {
    struct tarn_serve serve; /* as serve() got it */
};

struct tarn_node_half_ops {
    /* As in the client half's table. */
    const char *name;
    uint32_t caps;
    int (*probe)(void);

    int (*serve)(const struct tarn_serve *s, struct tarn_node_half **h_p);
    /* Windows: this one has come, or is about to go (and has no lease left). A half that cannot serve it says
     * so by serves(). */
    void (*lend)(struct tarn_node_half *h, uint32_t window);
    void (*withdraw)(struct tarn_node_half *h, uint32_t window);
    /* Once it returns, nobody can write to the window with what enter() has told so far. TARN_CAP_KEYS;
     * writers must enter again. */
    void (*cut)(struct tarn_node_half *h, uint32_t window);
    /* A session enters a window: answers what the client half's learn() takes, as attach() does. */
    int (*enter)(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a);
    /* Can clients reach the pool? Any thread may ask. */
    bool (*serves)(const struct tarn_node_half *h, uint32_t pool);
    /* The transport's text in the pool's record; "" for none. */
    void (*describe)(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes);
    int (*attach)(struct tarn_node_half *h, struct tarn_attach *a);
    /* The session has closed one link; `link` is its id. The transport gives back what the link held,
     * and nothing is written through it any more. */
    void (*detach_link)(struct tarn_node_half *h, uint64_t session, uint64_t link);
    /* The session is gone. A two-sided transport receives under a write pin, which is refused once the store
     * has taken the reservations back, so no extent is reused under a write. A one-sided transport on the
     * same host cannot stop a living writer: the node waits until the process is gone. A one-sided
     * transport to other hosts cuts the writer off before this returns. */
    void (*detach)(struct tarn_node_half *h, uint64_t session);
    void (*stop)(struct tarn_node_half *h);
};

/* For transports whose halves need to know nothing about single windows. */
void tarn_no_lend(struct tarn_node_half *h, uint32_t window);
int tarn_no_enter(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a);
/* For transports whose nodes notice by themselves that a link is closed. */
void tarn_no_detach_link(struct tarn_node_half *h, uint64_t session, uint64_t link);

/* --- registry (node_registry.c) ----------------------------------------------------------------- */

/* All node halves, best first; ends with NULL. */
extern const struct tarn_node_half_ops *const tarn_node_half_list[];
/* As tarn_transport_select(). */
int tarn_node_half_select(const char *names, const struct tarn_logger *log,
                          const struct tarn_node_half_ops **out, int max);

#endif
