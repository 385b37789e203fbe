/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works of a CUDA IPC link that one GPU carries out: turns pieces into copies, and ends the works.
 *
 *   waiting --> runs in a list of the queue --tarn_cuda_start--> started --tarn_cuda_mark--> marked
 *           --tarn_cuda_poll--> ended
 *
 * One pass over a work's pieces writes its runs to where the GPU reads them. Adjacent pieces become one run.
 * A list takes all waiting works, so a call's scattered pieces become one launch or a few. The first list of
 * many runs starts early, so that the GPU copies while the next one is made. A large run, or a single one,
 * goes to the copy engines.
 *
 * A work whose memory the GPU reaches is one *part*, which ends with its last run. A work in pageable
 * memory goes through a ring of pinned memory, one part for each stretch. A put's stretch is gathered
 * before the copy; a get's is scattered after it. Parts end in the order in which they were made, so the
 * ring is freed in order, too. Memory of another GPU that this one does not reach takes the same path,
 * with that GPU gathering and scattering. The CPU waits for that GPU while this one copies other
 * stretches.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_LANE_H
#define TARN_TRANSPORT_CUDA_IPC_LANE_H

#include "transport/cuda_ipc/cuda_ipc_pool.h"

struct tarn_ipc_lane;

/* How a work's memory is accessed. */
enum tarn_ipc_way {
    TARN_IPC_DIRECT, /* by the lane's GPU */
    TARN_IPC_STAGED, /* by the CPU, through the ring */
    TARN_IPC_FAR,    /* by the GPU that owns the memory, through the ring */
};

/* What a work's context has. The link's: `mark`. */
struct tarn_ipc_course {
    uint8_t *at;   /* the range in the pool, or the window if it is scattered there */
    uint64_t runs; /* about how many it has */
    bool put : 1, staged : 1, far : 1, scattered : 1;
    uint32_t mark; /* of a lease: the hazard that keeps it */
};
_Static_assert(sizeof(struct tarn_ipc_course) <= TARN_WORK_CONTEXT, "fits a work");

static inline struct tarn_ipc_course *tarn_ipc_course(const struct tarn_work *w)
{
    return (struct tarn_ipc_course *)w->context;
}

/* queue: on the device; owned by the lane from now on. ended: called when all of a work's bytes have
 * moved, or (status) will not. It may post further works. */
int tarn_ipc_lane_open(struct tarn_ipc_local *local, int device, struct tarn_cuda_queue *queue,
                       void (*ended)(void *arg, struct tarn_work *w, int status), void *arg,
                       struct tarn_ipc_lane **lane_p);
/* Does the lane have what works of this kind need? AGAIN: *want must be opened first. gpu: owner of the
 * work's memory, -1: none. */
int tarn_ipc_lane_ready(struct tarn_ipc_lane *lane, enum tarn_ipc_way way, int gpu,
                        struct tarn_ipc_want *want);
/* Posts a work of at least 1 byte, for which the lane is ready. `at`: its range of the pool, or the window of
 * its lease, as an address of the device. */
void tarn_ipc_lane_post(struct tarn_ipc_lane *lane, struct tarn_work *w, bool put, enum tarn_ipc_way way,
                        uint8_t *at);
bool tarn_ipc_lane_busy(const struct tarn_ipc_lane *lane);
/* Makes progress. 1: some was made; 0: none; negative: CUDA failed, end the lane. */
int tarn_ipc_lane_progress(struct tarn_ipc_lane *lane);
/* Waits for running copies, then ends the remaining works with `status`; works that have handed out an
 * event end normally. The lane's CUDA objects are kept for the next lane, unless CUDA has failed. */
void tarn_ipc_lane_close(struct tarn_ipc_lane *lane, int status);

#endif
