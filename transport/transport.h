/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports: how bytes move between a pool of a node and a client's memory.
 *
 * The unit of work is a *guarded range*: bytes [offset, offset + bytes) of an object's extent, with the slot
 * and generation under which the client knows the object. A get completes with 0 only if the slot still had
 * that generation after the last byte had arrived. Otherwise it completes with STALE and the bytes mean
 * nothing. Transports ensure this in two ways: one-sided (shm, rdma, cuda_ipc): move the bytes, fence, read
 * gen[slot], compare. two-sided (tcp, tcpx): the node checks the generation and pins the slot, then sends. A
 * put writes into an extent that the session has reserved under an odd generation.
 *
 * Every transport has two constant tables of functions: the client half (struct tarn_transport_ops, here) and
 * the node half (node_half.h). A registry for each, registry.c and node_registry.c, lists them in order of
 * preference. transport/ knows neither server/ nor client/. What it needs of them comes in as struct
 * tarn_guard and struct tarn_peer.
 *
 * Threads. One thread at a time uses a link. Links with TARN_CAP_SHARED are the exception: they complete
 * every work inside get() or put(), and any number of threads may use them at once.
 *
 * Return contract of get() and put(), the only calls on the data path:
 *   0                done; work->status is final; the callback will not come
 *   TARN_INPROGRESS  accepted; work->done comes exactly once, from progress() or close()
 *   TARN_E_AGAIN     no room now; nothing was done; call progress() and try again
 *   other negative   failed; nothing was done; the callback will not come
 * A callback may post further works on its link. It must not call progress(), wait() or close().
 * get() and put() may only queue the work; progress() and wait() move the bytes. Only connect(), wait() and
 * the handling of ATTACH block, and they have deadlines.
 */
#ifndef TARN_TRANSPORT_TRANSPORT_H
#define TARN_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/window.h>

#include "base/cancel.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/cuda/cuda.h"
#include "transport/pieces.h"

#define TARN_INPROGRESS 1
#define TARN_TRANSPORTS_MAX 8
#define TARN_WORK_CONTEXT 24 /* bytes */

enum {
    TARN_CAP_SHARED = 1 << 0,    /* links complete inline and are thread-safe */
    TARN_CAP_SAME_HOST = 1 << 1, /* reaches only nodes whose Unix socket this process reaches */
    TARN_CAP_VIEW = 1 << 2,      /* offers view() */
    /* The node's CPU takes no part. A written extent may be reused only when the writer is known to be gone.
     */
    TARN_CAP_ONE_SIDED = 1 << 3,
    TARN_CAP_UNCHECKED = 1 << 4, /* put() relies on the reservation and does not compare gen first */
    TARN_CAP_GPU = 1 << 5,       /* moves GPU memory of the client, too. Others would touch it and fault */
    /* Selected without a probe, which takes time or has consequences. connect() finds out. The node half
     * needs nothing that probe() looks for. */
    TARN_CAP_LATE = 1 << 6,
    TARN_CAP_CHECKS = 1 << 7, /* takes works whose pieces nobody has checked (tarn_work.seen) */
    /* NOT_REACHABLE from connect() may be temporary: a client without another transport tries again. */
    TARN_CAP_RETURNS = 1 << 8,
    /* Peers write to windows with keys, and compare nothing. Each lease is entered, and recalls of leases
     * that somebody has entered make the keys void. */
    TARN_CAP_KEYS = 1 << 9,
    TARN_CAP_WINDOWS = 1 << 10, /* clients lend windows by it; put() sees to tarn_work.notify */
    /* Takes works with a layout that is in_one_list (layout.h). Ends them with UNSUPPORTED, nothing done,
     * where it needs pieces after all. */
    TARN_CAP_LAYOUTS = 1 << 11,
};

/* --- slots -------------------------------------------------------------------------------------- */

/*
 * gen[slot] has 64 bits. The high half is the low 32 bits of the node's epoch, the low half a counter. Odd:
 * free or reserved, not readable. Even: an object is readable under this value. The counter only grows:
 *   free/reserved g (odd) --commit--> g+1 (even) --evict, remove--> g+2 (odd)
 *   reserved g --abort--> g+2
 * A slot whose counter would wrap is never used again.
 */
static inline bool tarn_gen_readable(uint64_t gen)
{
    return (gen & 1) == 0;
}

/* touch[slot] has 32 bits: the time of last use in ticks of the node. Readers write it, eviction reads it. */
#define TARN_TICK_NS 10000000ull /* 10 ms of CLOCK_MONOTONIC since the node's start */
/* The node's tick now; tick_base_ns: this host's CLOCK_MONOTONIC at tick 0. As fine as the coarse clock. */
uint32_t tarn_tick_now(uint64_t tick_base_ns);

enum tarn_pool_kind { TARN_POOL_CPU, TARN_POOL_GPU };

/*
 * A page that a session shares with the node. An entry is 0 when empty, else (pool << 32 | slot) + 1. Only
 * the first `used` entries may be non-zero; `used` never shrinks.
 */
#define TARN_HAZARDS 2048
struct tarn_hazard_page {
    _Atomic uint32_t used;
    uint32_t reserved;
    _Atomic uint64_t entry[TARN_HAZARDS];
};

#define TARN_ATTACH_TEXT 32768 /* remote keys of a large pool take kilobytes */
#define TARN_OFFER_TEXT 2048

/* --- client half -------------------------------------------------------------------------------- */

/* The node as a client half sees it: what ATTACH answered. */
struct tarn_peer {
    const struct tarn_logger *log;
    const char *node; /* for messages */
    uint64_t session;
    struct tarn_local *local; /* the transport's in this client; NULL: it has none */
    bool write;               /* what was asked for at ATTACH */
    const char *text;         /* the ATTACH answer */
    int *fds;                 /* received descriptors; the link owns those that it sets to -1 */
    uint32_t nfds;
    uint64_t tick_base_ns;      /* this host's CLOCK_MONOTONIC at the node's tick 0 */
    bool alone;                 /* the client has no other transport */
    bool windows;               /* the peer lends windows, not pools (node_half.h) */
    uint64_t deadline_ns;       /* of connect() */
    struct tarn_cancel *cancel; /* of connect() */
    uint64_t patience_ns;       /* for each answer in connect(); 0: until the deadline */
};

/*
 * A connection, mapping or queue pairs to one node: what all links have. Each transport's own link (struct
 * tarn_tcp_link and so on) begins with it.
 */
struct tarn_link {
    const char *transport; /* its name, for messages */
    char node[64];         /* for messages */
    const struct tarn_logger *log;
    /* May puts be posted? If not, put() fails with NOT_REACHABLE. For puts, ATTACH with write and connect a
     * new link with that answer: it serves gets, too. Views of this link need it to stay open. */
    bool writable;
    uint64_t id; /* the argument of DETACH once it is closed; 0: the node notices by itself */
};

/*
 * What all links of a transport in a client share: devices, and the memory registered with them. Any thread
 * may use it. Registering may block. It outlives its links. Each transport has its own behind this pointer.
 */
struct tarn_local;

struct tarn_seen;
struct tarn_work;

/*
 * For streams that wait for a work: when has its last copy been given to a GPU? The thread that uses the link
 * calls given() when it has. Then `event` (a cudaEvent_t) is behind that copy, and behind all that `queue`
 * was given before. If the event is destroyed before the work is done, given() is called again with event
 * NULL. It is not called when the bytes take another way.
 */
struct tarn_last_copy {
    void (*given)(struct tarn_work *w);
    const void *queue;
    void *event;
};

/* One guarded range to move. The caller owns it and keeps it until it is done. */
/* A lease of a window, as peers have it. */
struct tarn_leased {
    uint64_t window_id;
    struct tarn_runs runs; /* offsets in the window */
};

struct tarn_work {
    /* what */
    uint32_t pool, slot;
    uint64_t gen;
    uint64_t offset;                 /* from the start of the pool, or of the lease */
    uint64_t bytes;                  /* total of the pieces; 0 is legal and still checks the generation */
    const struct tarn_leased *lease; /* NULL: the work is about a pool */
    /* put() with TARN_CAP_WINDOWS: what the lender is told once the bytes are in place; NULL: nothing. */
    const struct tarn_notify *notify;
    const struct tarn_piece *pieces;
    uint32_t npieces;                 /* of pieces, or of pages */
    const struct tarn_layout *layout; /* TARN_CAP_LAYOUTS: has pages in place of pieces; NULL: none */
    const uint32_t *pages;
    uint32_t gpu; /* the pieces lie in memory of GPU gpu - 1, as this process counts them; 0: the CPU's */
    /* NULL: the pieces were checked. Otherwise only the first was, and a transport with TARN_CAP_CHECKS
     * checks the rest: do all lie in memory of `gpu`, and have they `bytes` bytes in total? If not, the work
     * ends with INVALID or SIZE, `why` is NULL, and some bytes may have moved. */
    struct tarn_seen *seen;
    struct tarn_last_copy *last_copy; /* NULL: no stream waits for it */
    bool touch;                       /* get: count as use */
    /* outcome */
    int status;
    bool untold;     /* status 0, but the lender's queue had no room for `notify` */
    const char *why; /* in done: the failure's sentence if the transport has one; else NULL */
    void (*done)(struct tarn_work *w); /* status is set */
    void *owner;
    /* The transport's own. It keeps a struct of its own in `context`. */
    struct tarn_work *next;
    _Alignas(uint64_t) char context[TARN_WORK_CONTEXT];
};

/* A guarded range of a pool, and where a GPU finds it. */
struct tarn_range {
    uint32_t pool, slot;
    uint64_t gen, offset, bytes;
};
struct tarn_address {
    const uint8_t *at;
    const uint64_t *gen_at;
};

/* --- the table ---------------------------------------------------------------------------------- */

struct tarn_transport_ops {
    const char *name;
    uint32_t caps;

    /* Usable on this machine? 0, or a failure with one sentence. No side effects. */
    int (*probe)(void);

    int (*local_open)(const char *devices, struct tarn_local **local_p);
    void (*local_close)(struct tarn_local *local);
    /* Registers memory that works will use often. Other memory can be moved, too, but slower. unmap: BUSY
     * while works in flight use it. */
    int (*map)(struct tarn_local *local, void *addr, uint64_t bytes);
    int (*unmap)(struct tarn_local *local, void *addr, uint64_t bytes);
    /* Makes what n links need to move memory of the device: CUDA makes it only when no kernel runs there, and
     * links that are used later may find one that waits for them. */
    int (*ready)(struct tarn_local *local, int device, unsigned n, uint64_t deadline_ns);
    /* Writes what the node needs to know before it can answer ATTACH. connect() goes on with *l_p, and frees
     * it when it fails. connect() returns TARN_INPROGRESS while the network is still being asked, after
     * TARN_WAIT_SLICE_MS or at the deadline at the latest. Then call it again with the same arguments, or
     * close(). */
    int (*offer)(const struct tarn_peer *p, char text[TARN_OFFER_TEXT], struct tarn_link **l_p);
    int (*connect)(const struct tarn_peer *p, struct tarn_link **l_p);
    /* Windows: takes what the lender's half has said about one (enter() in node_half.h), so that works may
     * name it. A window known under the same index is replaced; works on it that are still under way end as
     * they would have. Links with TARN_CAP_SHARED: one thread at a time. */
    int (*learn)(struct tarn_link *l, const struct tarn_peer *p);
    int (*get)(struct tarn_link *l, struct tarn_work *w);
    int (*put)(struct tarn_link *l, struct tarn_work *w);
    /* Moves what can be moved without blocking, and calls done callbacks. 1: progress was made (links whose
     * wait_fd() is -1 must report this). 0: nothing to report. Negative: the link is broken and must be
     * closed. All its works have completed, with NODE_DOWN, or with this code if the node is not at fault. */
    int (*progress)(struct tarn_link *l);
    /* The descriptor and poll events that make progress() worth calling. -1: none. */
    int (*wait_fd)(const struct tarn_link *l, short *events);
    /* Does what poll() on wait_fd and progress() do, with fewer system calls: waits for progress or the
     * deadline. 1: bytes moved or works completed. 0: neither. It returns 0 after TARN_WAIT_SLICE_MS at the
     * latest, so that the caller can look whether it was canceled, and at once when nothing is in flight.
     * Negative: as progress(). */
    int (*wait)(struct tarn_link *l, uint64_t deadline_ns);
    /* Marks use without moving bytes. Never fails; may do nothing. */
    void (*touch)(struct tarn_link *l, uint32_t pool, uint32_t slot);
    /* Zero-copy: publishes a hazard, then checks the generation. STALE, AGAIN (too many), NOT_REACHABLE. */
    int (*view)(struct tarn_link *l, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                uint64_t bytes, const void **addr_p, uint32_t *hazard_p);
    void (*unview)(struct tarn_link *l, uint32_t hazard);
    /* Where kernels of `device` find the range and the slot's generation, as long as the link is open. Any
     * thread; waits for a slice at most. STALE, NOT_REACHABLE; BUSY: still being opened, call again. */
    int (*address)(struct tarn_link *l, int device, const struct tarn_range *r, struct tarn_address *a);
    /* Completes works in flight with CANCELED. Afterwards nothing touches their memory. */
    void (*close)(struct tarn_link *l);
};

/* --- registry (registry.c) ---------------------------------------------------------------------- */

/* All transports, best first; ends with NULL. */
extern const struct tarn_transport_ops *const tarn_transport_list[];
/*
 * Picks the transports that the comma list names (NULL or "": all) and that are usable or have TARN_CAP_LATE,
 * in the order of tarn_transport_list; at most max. Returns how many. CONFIG: an unknown name, with the
 * nearest. UNAVAILABLE: none is usable, with the cause. `log` gets a line for each named transport that is
 * not usable; it may be NULL.
 */
int tarn_transport_select(const char *names, const struct tarn_logger *log,
                          const struct tarn_transport_ops **out, int max);

/* The transport of this name (not ended by NUL), or CONFIG with the nearest. */
int tarn_transport_named(const char *name, size_t bytes, const struct tarn_transport_ops **ops_p);

/* --- for transports (transport.c) --------------------------------------------------------------- */

/* A transport's own link of this size, zeroed but for the struct tarn_link that it begins with, which is
 * writable if the peer was attached with write. NULL: out of memory, with the sentence. */
void *tarn_link_new(const char *transport, const struct tarn_peer *p, size_t bytes);
/* STALE: the slot no longer has the generation, or was never the node's. */
int tarn_link_stale(const struct tarn_link *l, uint32_t pool, uint32_t slot);

/* Tables use these for functions that the transport does not have. */
int tarn_no_local_open(const char *devices, struct tarn_local **local_p);
void tarn_no_local_close(struct tarn_local *local);
int tarn_no_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_no_ready(struct tarn_local *local, int device, unsigned n, uint64_t deadline_ns);
/* The end of a wait in connect() that begins now. */
uint64_t tarn_peer_until(const struct tarn_peer *p);
/* The end of a slice of a wait that begins now: after TARN_WAIT_SLICE_MS, or at the deadline. */
uint64_t tarn_slice_end(uint64_t deadline_ns);
/* Of links that need to know nothing about windows. */
int tarn_no_learn(struct tarn_link *l, const struct tarn_peer *p);
int tarn_no_offer(const struct tarn_peer *p, char text[TARN_OFFER_TEXT], struct tarn_link **l_p);
int tarn_no_view(struct tarn_link *l, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                 uint64_t bytes, const void **addr_p, uint32_t *hazard_p);
void tarn_no_unview(struct tarn_link *l, uint32_t hazard);
int tarn_no_address(struct tarn_link *l, int device, const struct tarn_range *r, struct tarn_address *a);
void tarn_no_touch(struct tarn_link *l, uint32_t pool, uint32_t slot);
int tarn_no_progress(struct tarn_link *l);
int tarn_no_wait_fd(const struct tarn_link *l, short *events);
int tarn_no_wait(struct tarn_link *l, uint64_t deadline_ns);
/* wait() by poll() on the table's wait_fd. */
int tarn_wait_by_poll(const struct tarn_transport_ops *ops, struct tarn_link *l, uint64_t deadline_ns);

#endif
