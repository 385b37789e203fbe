/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwarding: what peers write into a landing place of this client goes on to its final place, often memory
 * of another GPU, before anybody is told.
 *
 * A NIC writes into memory near it: of the host, or of the GPU beside it. The landing place is a lease there,
 * divided into *slots*; the final place is divided into *parts*. Both have the same size. Peers write a slot
 * and tell a tag, with tarn_write() or a proxy's WRITE (proxy.h):
 *
 *   tag n, from 1 on:   slot (n - 1) % slots, for part (n - 1) % parts
 *
 * A thread takes what has been told, copies all that came with one launch of the batched kernel, and counts a
 * part only when its bytes are at their final place. Kernels and threads wait for these counts. Whoever
 * writes a slot again must know that its part was counted; how, is the application's affair: a write into a
 * window of the writer, for example.
 */
#ifndef TARN_FORWARD_H
#define TARN_FORWARD_H

#include <tarn/device_base.h>
#include <tarn/error.h>

#ifndef TARN_DEV_GPU
#include <sched.h>
#endif

#include <tarn/window.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- waiting, in kernels and threads ------------------------------------------------------------- */

/* Where the counts are, for kernels: an argument by value, or in GPU memory. */
struct tarn_arrivals {
    const uint64_t *counts; /* of each part: how often it has arrived */
    const uint64_t *total;  /* of all parts */
    const uint32_t *state;  /* 0, or the TARN_E_* with which every wait ends */
    uint32_t parts;
};

#define TARN_ARRIVALS_POLLS 16 /* a wait looks at clock and state with every 16th poll */

TARN_DEV int tarn_dev_arrivals_wait(const struct tarn_arrivals *a, const uint64_t *at, uint64_t count,
                                    uint64_t timeout_ns)
{
    uint64_t start = 0;
    int rc = 0;

    for (uint64_t polls = 1; rc == 0 && tarn_dev_load64(at) < count; polls++) {
        if (polls % TARN_ARRIVALS_POLLS != 0)
            continue;
        rc = (int)tarn_dev_load32(a->state);
        if (rc != 0) {
            tarn_dev_fence_loads(); /* what was counted before the end counts */
            return tarn_dev_load64(at) < count ? rc : 0;
        }
#ifndef TARN_DEV_GPU
        sched_yield();
#endif
        uint64_t now = tarn_dev_now();
        start = start ? start : now;
        if (now - start >= timeout_ns)
            rc = TARN_E_TIMEOUT;
    }
    return rc;
}

/*
 * Waits until the part has arrived `count` times. TIMEOUT. INVALID: there is no such part. CANCELED: the
 * forwarding was aborted. Others: why it has ended, see tarn_forward_new().
 *
 * Call tarn_dev_fence() before you read the part.
 */
TARN_DEV int tarn_dev_wait_part(const struct tarn_arrivals *a, uint32_t part, uint64_t count,
                                uint64_t timeout_ns)
{
    return part < a->parts ? tarn_dev_arrivals_wait(a, &a->counts[part], count, timeout_ns) : TARN_E_INVALID;
}

/* Waits until `count` parts have arrived, of whatever number. */
TARN_DEV int tarn_dev_wait_parts(const struct tarn_arrivals *a, uint64_t count, uint64_t timeout_ns)
{
    return tarn_dev_arrivals_wait(a, a->total, count, timeout_ns);
}

/* --- forwarding ---------------------------------------------------------------------------------- */

#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_FORWARD_PARTS_MAX (1u << 20)

struct tarn_forward;

struct tarn_forward_options {
    size_t size;
    struct tarn_lease *lease; /* the landing place: one run, of slots * bytes at least */
    void *to;                 /* the final place: parts * bytes of the host or of one allocation of a GPU */
    uint32_t bytes;           /* of a slot and a part */
    uint32_t slots, parts;    /* 1 to TARN_FORWARD_PARTS_MAX */
    uint32_t flags;           /* 0 */
};

/*
 * Begins to forward what is told of the lease, and what has been told already. Until it is freed, it takes
 * the lease's notifications: neither tarn_notification_next() nor tarn_expect() sees any, and up to 1024 wait
 * for it besides those of the window. Their data is not looked at. A tag 0 is dropped; the client's log has a
 * line for the first.
 *
 * The copies run on the GPU of the landing place; if that is memory of the host, on the GPU of the final
 * place. Memory of the host is pinned for that, unless all of it is pinned already. Small parts are copied by
 * a kernel: kernels that wait for parts must leave it a multiprocessor there. If both places are memory of
 * the host, the thread copies, and only threads may wait.
 *
 * Until it is freed, tarn_recall() of the lease and tarn_window_close() say BUSY. If the lease ends by its
 * time, waits end with STALE; if the GPU fails, with UNAVAILABLE; the log says why. tarn_close() frees it.
 *
 * Errors: INVALID, BUSY (the lease is forwarded already), NOT_REACHABLE (the GPU that copies does not reach
 * the other place), UNAVAILABLE, NO_MEMORY, SYSTEM. The object belongs to one thread at a time. Like every
 * call that allocates memory of a GPU, this one and tarn_forward_free() may wait for the kernels that run
 * there.
 */
int tarn_forward_new(struct tarn_client *c, const struct tarn_forward_options *o, struct tarn_forward **f_p);
/* Where the counts are; valid until it is freed. */
int tarn_forward_arrivals(const struct tarn_forward *f, struct tarn_arrivals *a);
/* Ends all waits with CANCELED, for good. Returns when nothing copies any more. What has been told, and is
 * not counted by then, is lost. */
void tarn_forward_abort(struct tarn_forward *f);
/*
 * Aborts it, then waits for kernels of the GPUs of both places and frees the counts. No kernel may be
 * launched with them any more, and threads of this process that wait for them must have ended: abort first.
 * NULL is allowed.
 */
void tarn_forward_free(struct tarn_forward *f);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
