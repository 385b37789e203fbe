/* SPDX-License-Identifier: Apache-2.0 */
/* A client that lends a window and one that reaches it, for tests of windows. */
#ifndef TARN_TESTS_WINDOW_PAIR_H
#define TARN_TESTS_WINDOW_PAIR_H

#include <tarn/window.h>

#include "tests/world.h"

#define WINDOW_ROOM (1u * MIB) /* of the window */

struct window_pair {
    struct world *w;
    struct tarn_client *lender, *peer;
    const char *over;      /* the peer's transport */
    unsigned char *memory; /* of the window */
    bool shared;           /* it is tarn_window_alloc()'s */
    void *lent;            /* the same memory, as the lender names it; a GPU's has another address */
    struct tarn_window *window;
    unsigned char *own; /* of the peer; WINDOW_ROOM bytes */
};

/* For tables of tests. Over shm and rdma with memory that is shared. */
int window_start_tcp(void **state);
int window_start_tcpx(void **state);
int window_start_shm(void **state);
int window_start_rdma(void **state);
/* With memory of the stand-in's GPU, into which it lets the test look: over cuda_ipc and tcp. */
int window_start_gpu(void **state);
int window_start_gpu_tcp(void **state);
int window_stop(void **state);

#define WINDOW_TCP(test) {"tcp: " #test, test, window_start_tcp, window_stop, NULL},
#define WINDOW_TCPX(test) {"tcpx: " #test, test, window_start_tcpx, window_stop, NULL},
#define WINDOW_SHM(test) {"shm: " #test, test, window_start_shm, window_stop, NULL},
#define WINDOW_GPU(test) {"cuda_ipc: " #test, test, window_start_gpu, window_stop, NULL},
#define WINDOW_GPU_TCP(test) {"tcp, memory of a GPU: " #test, test, window_start_gpu_tcp, window_stop, NULL},
#define WINDOW_RDMA(test) {"rdma: " #test, test, window_start_rdma, window_stop, NULL},
#define WINDOW_COUNT(_tests) (sizeof(_tests) / sizeof(_tests)[0])

struct CMUnitTest;
/* Runs tests within the host, over GPUs that are played, and over RDMA devices, where there are any. The
 * argument "rdma": the last of these alone. Returns how many failed. */
int window_run(int argc, char **argv, const struct CMUnitTest *here, size_t nhere,
               const struct CMUnitTest *gpu, size_t ngpu, const struct CMUnitTest *rdma, size_t nrdma);

/* The runs of the pair's window, or all of it with n 0. */
struct tarn_lease *window_lease(const struct window_pair *p, const struct tarn_run *runs, uint32_t n,
                                uint32_t flags);
int window_try_reach(const struct window_pair *p, const struct tarn_lease *l, struct tarn_reach **r);
struct tarn_reach *window_reach(const struct window_pair *p, const struct tarn_lease *l);
/* Reads or writes one range. */
int window_move(struct tarn_reach *r, bool write, void *addr, uint64_t bytes, uint64_t offset);
/* Writes, and tells. */
int window_tell(struct tarn_reach *r, struct tarn_move *m, size_t n, uint64_t tag, const char *data);
/* Tells with tags 0, 1, ... until there is no room and the lender has looked at all. Returns how many. */
uint64_t window_fill(const struct window_pair *p, struct tarn_reach *r);

#endif
