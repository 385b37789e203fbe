/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: memory of one client that other clients read and write, straight, without a node in between.
 *
 * A *window* is memory that a client lends: of the CPU or of one GPU, usually long-lived, such as an engine's
 * whole KV tensor (the word is MPI's). A *lease* is a list of runs in a window that others may read, or read
 * and write, until it is recalled. Its *descriptor* is a line of text; the application hands it to whom it
 * likes. tarn_reach() makes of a descriptor what tarn_read() and tarn_write() need.
 *
 * The promise. A lease ends by tarn_recall(), by its time, or with its process. From then on reads end with
 * STALE, whatever has been done to the memory since, and no write arrives: tarn_recall() returns 0 only when
 * no peer can touch the runs any more. Nothing of this depends on a peer's good will, except where
 * docs/security.md says so.
 *
 * tarn_close() ends all leases. It waits for transfers of peers of this host no longer than the client's
 * timeout: recall leases before it where a peer may have been stopped.
 *
 * Rules of tarn.h hold here, too. A window, lease or reach may be used by any number of threads at once, but
 * is freed by one.
 */
#ifndef TARN_WINDOW_H
#define TARN_WINDOW_H

#include <tarn/tarn.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_DESCRIPTOR_MAX 512 /* bytes of a descriptor, with its NUL */
#define TARN_RUNS_MAX 1048576   /* runs of a lease */

struct tarn_window;
struct tarn_lease;
struct tarn_reach;

/* --- lending ------------------------------------------------------------------------------------ */

/*
 * Lends [addr, addr + bytes). The first window of a client starts a thread, which answers peers at
 * tarn_options.listen and at a Unix socket; redis-cli can look into both (INFO, CLIENT LIST). The memory must
 * stay mapped until tarn_window_close() has returned 0: nothing tells this library that it was unmapped, or
 * that other memory has come to its address, which peers would then reach. Memory of tarn_window_alloc() is
 * reached by peers of this host without a copy; other CPU memory by tcpx or tcp; memory of a GPU by
 * cuda_ipc, from other hosts by tcpx or tcp.
 *
 * Errors: INVALID (no such memory, or of more than one allocation of a GPU), UNSUPPORTED (CUDA has no handle
 * for memory of this kind: managed, cudaMallocAsync(), cuMemMap()), BUSY (this client has TARN_WINDOWS_MAX
 * windows), SYSTEM.
 */
#define TARN_WINDOWS_MAX 256
int tarn_window_new(struct tarn_client *c, void *addr, uint64_t bytes, struct tarn_window **w_p);
/*
 * Recalls all leases of the window, then frees it. BUSY or TIMEOUT: a lease could not be recalled; the window
 * is as before, but for the leases that were. The leases are freed with it. BUSY at once: a receive into it
 * (channel.h) is under way.
 */
int tarn_window_close(struct tarn_window *w, uint32_t timeout_ms);

/*
 * Memory for windows that peers of this host reach by mapping it. bytes is rounded up to whole pages; the
 * memory is zeroed. TARN_WINDOW_HUGE: in huge pages of 2 MiB, which the system must have reserved. Memory
 * that is freed under a window goes when the last window over it is closed. tarn_window_free() of anything
 * else, or NULL, does nothing.
 */
enum { TARN_WINDOW_HUGE = 1 << 0 };
int tarn_window_alloc(uint64_t bytes, uint32_t flags, void **addr_p);
void tarn_window_free(void *addr);

/* `count` runs of `bytes` bytes, at offset, offset + stride, ... in the window; count 0 counts as 1 and
 * stride 0 as `bytes`. Runs of a lease must not overlap one another. */
struct tarn_run {
    uint64_t offset;
    uint64_t bytes;
    uint64_t stride;
    uint64_t count;
};

enum { TARN_LEASE_WRITE = 1 << 0 /* peers may write, too */ };

struct tarn_lease_options {
    size_t size;
    uint32_t flags;  /* TARN_LEASE_* */
    uint32_t ttl_ms; /* it ends by itself after so long; 0: never */
};

/* Leases n runs, which together, in order, are the lease's bytes: peers count offsets in these. n 0: the
 * whole window. INVALID: outside of the window, or too many. */
int tarn_lease(struct tarn_window *w, const struct tarn_run *runs, uint32_t n,
               const struct tarn_lease_options *o, struct tarn_lease **g_p);
/*
 * Ends the lease. 0: no peer can touch the runs any more; the lease is freed. BUSY: a peer's process has not
 * ended a transfer in time, and the sentence names it; no transfer begins any more; call again.
 */
int tarn_recall(struct tarn_lease *g, uint32_t timeout_ms);
/*
 * What a writer tells with a write (struct tarn_notify): it is seen only once the bytes of that write, and of
 * all writes that the writer has completed before, are in place.
 */
#define TARN_NOTIFY_MAX 256 /* bytes of data */
struct tarn_notification {
    uint64_t tag;
    struct tarn_lease *lease; /* which was written */
    uint32_t bytes;           /* of data */
    uint32_t reserved;
    char data[TARN_NOTIFY_MAX];
    char peer[64]; /* who: "unix:uid=1000,pid=4711" or an address */
};
/* Takes the oldest notification of the window's leases. TIMEOUT: none has come. */
int tarn_notification_next(struct tarn_window *w, uint32_t timeout_ms, struct tarn_notification *out);
/* Readable while notifications wait. Owned by the window: poll it, never read or close it. */
int tarn_notification_fd(const struct tarn_window *w);
/*
 * Waits for n notifications of this lease with that tag, and takes them. 0: they have come. NODE_DOWN: a
 * writer that had reached the lease is gone without saying so; the sentence names it. TIMEOUT: they have not
 * come; those that have stay. STALE: the lease has ended.
 */
int tarn_expect(struct tarn_lease *l, uint64_t tag, uint32_t n, uint32_t timeout_ms);
/* The same as an operation of the client (tarn_event_fd(), tarn_drain(), tarn_wait(), tarn_cancel()). It
 * holds up no others while it waits. A canceled one has taken none, unless its status is 0. */
int tarn_submit_expect(struct tarn_lease *l, uint64_t tag, uint32_t n, uint32_t timeout_ms, uint64_t cookie,
                       tarn_op *op_p);
/* Writes the descriptor. */
int tarn_lease_descriptor(const struct tarn_lease *g, char text[TARN_DESCRIPTOR_MAX]);

/*
 * Names the lease: peers may give the name to tarn_reach() in place of the descriptor. A node keeps the name
 * in Redis (tarn:<ns>:w:<name>) until the lease is recalled or this client ends, for ttl_ms at most (0: no
 * limit).
 * Names are 1 to 63 of A-Z a-z 0-9 . _ -. EXISTS: another lease has the name. NODE_DOWN: no node answers.
 */
int tarn_lease_publish(struct tarn_lease *l, const char *name, uint32_t ttl_ms, uint32_t timeout_ms);

/* --- reaching ----------------------------------------------------------------------------------- */

/*
 * Makes of a descriptor, or the name of one, what reads and writes need: asks the lender once. INVALID: it is
 * neither, or was cut or altered, or is of another namespace. VERSION. NOT_FOUND: nobody lends by that name.
 * STALE: the lease has ended. NODE_DOWN: the lender does not answer. AUTH.
 */
int tarn_reach(struct tarn_client *c, const char *descriptor, uint32_t timeout_ms, struct tarn_reach **r_p);
/* The same as an operation of the client; the descriptor and *r_p stay until the completion. With status 0
 * *r_p is set. */
int tarn_submit_reach(struct tarn_client *c, const char *descriptor, uint32_t timeout_ms, uint64_t cookie,
                      struct tarn_reach **r_p, tarn_op *op_p);
/* No transfer may be under way. NULL is allowed. After tarn_close() reaches may still be freed, but nothing
 * else. */
void tarn_reach_free(struct tarn_reach *r);
/* The lease's bytes. */
uint64_t tarn_reach_bytes(const struct tarn_reach *r);

/* The pieces, in order, make up the range of the lease that begins at `offset`. */
struct tarn_move {
    const struct tarn_piece *pieces;
    uint32_t npieces;
    int32_t status; /* out */
    uint64_t offset;
    uint64_t reserved[2];
};

struct tarn_notify {
    uint64_t tag;
    const void *data;
    uint32_t bytes; /* at most TARN_NOTIFY_MAX */
    uint32_t reserved;
};

struct tarn_move_options {
    size_t size;
    uint32_t timeout_ms;
    uint32_t flags; /* 0 */
    void *after;    /* a cudaEvent_t: the pieces are not touched before it; NULL: none */
    /* A write tells this to the lender once all its bytes are in place; not if one of its moves fails. NULL:
     * nothing. A write of no moves only tells. AGAIN: the lender's queue is full; the bytes are in place, so
     * tell again with a write of no moves. */
    const struct tarn_notify *notify;
};

/*
 * Reads or writes n ranges, each for itself. Statuses: 0; STALE (the lease has ended: what a read brought
 * means nothing, what a write left in the runs is the lender's to judge), SIZE (outside of the lease), AUTH
 * (write to a lease that is for reading), NODE_DOWN, NOT_REACHABLE, TIMEOUT, CANCELED, INVALID.
 *
 * Moves of the same bytes at the same time are in no order, and a read beside a write may bring some bytes of
 * before it and some of after it, even within one word. Let the writer tell, and read then.
 */
int tarn_read(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_move_options *o);
int tarn_write(struct tarn_reach *r, struct tarn_move *moves, size_t n, const struct tarn_move_options *o);
/* The same as operations of the client (tarn_event_fd(), tarn_drain(), tarn_wait(), tarn_cancel()); the reach
 * and the notification's data, too, stay until the completion. */
int tarn_submit_read(struct tarn_reach *r, struct tarn_move *moves, size_t n,
                     const struct tarn_move_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_write(struct tarn_reach *r, struct tarn_move *moves, size_t n,
                      const struct tarn_move_options *o, uint64_t cookie, tarn_op *op_p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
