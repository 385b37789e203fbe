/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proxies: threads of a client that carry out what kernels ask for in command rings (ring.h).
 *
 *   GET      part of the object of a page of the proxy's table, into memory of one of its ranges
 *   WRITE    from memory of one of its ranges into one of its reaches; then tells the lender
 *   REFRESH  has the object of a page looked up again, for direct gets (device.h)
 *   QUIET    completes when all commands before it have completed
 *
 * A GET is a get of the client: every transport serves it, and what gets promise (tarn.h) holds. What is in
 * shared memory or in reach of this host's GPUs comes within microseconds. All else takes longer and does not
 * hold up the commands behind it, so commands complete in any order.
 *
 * Statuses of commands
 *   GET      0, NOT_FOUND (no such object, or the page is of none), SIZE (outside of the object), and the
 *            others of tarn_get()
 *   WRITE    0, SIZE (outside of the lease), AUTH, STALE and the others of tarn_write(). While the lender's
 *            queue of notifications is full, the proxy tells again until 50 ms before the command's deadline:
 *            then AGAIN, the bytes are in place and nobody is told. After TIMEOUT either may be so or not
 *   REFRESH  what tarn_table_set() says of a page; NOT_REACHABLE: only GET brings the object
 *   all      INVALID (a wrong command, or memory that is in no range), TIMEOUT, CANCELED
 *
 * CUDA makes queues and registers memory only when no kernel runs: a kernel that asked for what needs them
 * would wait for itself, until its own time is over. So make the proxy, which opens queues for the GPUs of
 * its ranges, and set the table's pages, which registers the pools, before such kernels run. What comes over
 * tcp or tcpx into memory of a GPU needs more: get something from each of those nodes with tarn_get() first.
 *
 * The client's log has a line with the reason of each failed command, at level debug.
 */
#ifndef TARN_PROXY_H
#define TARN_PROXY_H

#include <tarn/ring.h>
#include <tarn/table.h>
#include <tarn/window.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_PROXY_RINGS_MAX 1024
#define TARN_PROXY_RANGES_MAX 1024

struct tarn_proxy;

/* Memory of the host, or of one allocation of a GPU. */
struct tarn_proxy_range {
    void *addr;
    uint64_t bytes;
};

enum {
    TARN_PROXY_ANYWHERE = 1 << 0, /* its threads run on any CPU, not only on those near the device */
};

struct tarn_proxy_options {
    size_t size;
    int32_t device;      /* whose kernels ask; -1: threads of this process do, no GPU reaches the rings */
    uint32_t flags;      /* TARN_PROXY_* */
    uint32_t nrings;     /* 1 to TARN_PROXY_RINGS_MAX */
    uint32_t ring_size;  /* commands: a power of two, 2 to 65536; 0: 1024 */
    uint32_t threads;    /* the rings are divided among them; 0: 1 */
    uint32_t timeout_ms; /* of each command; 0: the client's */
    struct tarn_table *table; /* GET and REFRESH name its pages; NULL: there are none */
    const struct tarn_proxy_range *ranges;
    uint32_t nranges;
    uint32_t nreaches;
    struct tarn_reach *const *reaches; /* WRITE names one by its index */
};

/*
 * Makes rings and starts the threads. As every call that allocates memory of a GPU, this one and
 * tarn_proxy_free() may wait for the kernels that run there. The memory of the ranges must stay, and the
 * reaches, until the proxy is freed; register the memory (tarn_register()) where transports want that. The
 * proxy looks once whose memory it is. Errors: INVALID, UNAVAILABLE (no GPU), NO_MEMORY, SYSTEM.
 *
 * A thread that has nothing to do polls for 100 us, then sleeps in steps that grow up to 1 ms: a kernel's
 * first command after a pause waits that much longer. The threads run on the CPUs of the device's NUMA node,
 * as far as this process may use them. On a system that does not tell the node they run anywhere.
 *
 * The object belongs to one thread at a time, and to its client: tarn_close() frees it. A table may be freed
 * before its proxy: GET and REFRESH end with INVALID from then on.
 */
int tarn_proxy_new(struct tarn_client *c, const struct tarn_proxy_options *o, struct tarn_proxy **p_p);
/* Ring i, for kernels; valid until the proxy is freed. INVALID: there is no such ring. */
int tarn_proxy_ring(const struct tarn_proxy *p, uint32_t i, struct tarn_ring *ring);
/* Ends all waits of kernels with CANCELED, for good. Returns when nothing touches the memory of commands any
 * more. */
void tarn_proxy_abort(struct tarn_proxy *p);
/*
 * Aborts it, then waits for kernels of the device and frees the rings. No kernel may be launched with them
 * any more. Threads of this process that use a ring must have ended: abort first. NULL is allowed.
 */
void tarn_proxy_free(struct tarn_proxy *p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
