/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that asks a proxy for one thing and measures its wait, for tests in which the proxy's process
 * stands still or ends meanwhile. Implemented as a kernel (tests/gpu/ring_ask.cu), or by the stand-in; NULL
 * in other builds.
 */
#ifndef TARN_TESTS_RING_ASK_H
#define TARN_TESTS_RING_ASK_H

#include <tarn/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned memory, zeros at first. */
struct ring_asked {
    uint32_t go; /* the kernel asks when this is 1 */
    uint32_t begun, pushed, ended;
    int32_t rc, status; /* of the wait; of the command, if rc is 0 */
    uint64_t waited_ns; /* by the kernel's clock */
};

struct ring_ask {
    struct tarn_ring ring;
    struct tarn_ring_command command;
    uint64_t timeout_ns;
    struct ring_asked *asked;
};

struct stream;

/* Behind the work given to the stream (tests/stream.h) so far. Does not wait. */
void ring_ask(struct stream *s, const struct ring_ask *a) __attribute__((weak));

/* The kernel, of one thread. It ends after a minute without `go`. */
TARN_DEV void ring_ask_play(const struct ring_ask *a)
{
    const uint64_t minute_ns = 60000000000ull, begun = tarn_dev_now();
    struct tarn_ring_producer p;
    uint64_t number = 0;
    int status = 0, rc = tarn_dev_ring_open(&p, &a->ring);
    tarn_dev_store32(&a->asked->begun, 1);
    while (!tarn_dev_load32(&a->asked->go) && tarn_dev_now() - begun < minute_ns) {
#ifndef TARN_DEV_GPU
        sched_yield();
#endif
    }
    if (rc == 0)
        rc = tarn_dev_ring_push(&p, &a->command, a->timeout_ns, &number);
    tarn_dev_store32(&a->asked->pushed, 1);
    const uint64_t pushed = tarn_dev_now();
    if (rc == 0)
        rc = tarn_dev_ring_wait(&p, number, a->timeout_ns, &status);
    tarn_dev_store64(&a->asked->waited_ns, tarn_dev_now() - pushed);
    tarn_dev_store32((uint32_t *)&a->asked->rc, (uint32_t)rc);
    tarn_dev_store32((uint32_t *)&a->asked->status, (uint32_t)status);
    tarn_dev_ring_close(&p);
    tarn_dev_fence();
    tarn_dev_store32(&a->asked->ended, 1);
}

#ifdef __cplusplus
}
#endif
#endif
