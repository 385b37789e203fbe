/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works of a CUDA IPC link that one GPU carries out: from pieces to copies, and to their ends.
 *
 *   waiting --> runs in a list of the queue --tarn_cuda_start--> started --tarn_cuda_mark--> marked
 *           --tarn_cuda_poll--> ended
 *
 * One pass over a work's pieces writes its runs to where the GPU reads them; pieces that touch become one
 * run. Lists take all works that wait, so a call's scattered pieces become one launch, or a few: the first of
 * many runs is started early, so that the GPU copies while the next list is made. A run that is large, or all
 * there is, goes to the copy engines by itself.
 *
 * A work whose memory the GPU reaches is one *part*: it ends with its last run. One in pageable memory goes
 * through a ring of pinned memory, a part for each stretch of it: what a put's part holds is gathered before
 * the copy, what a get's holds scattered behind it. Parts end in the order in which they were made, so the
 * ring's room comes free in order, too. Memory of another GPU that this one does not reach goes the same way,
 * that GPU gathering and scattering; it is waited for, while this one has other stretches to copy.
 */
#ifndef TARN_TRANSPORT_CUDA_IPC_LANE_H
#define TARN_TRANSPORT_CUDA_IPC_LANE_H

#include "transport/cuda_ipc/cuda_ipc_pool.h"

struct tarn_ipc_lane;

/* How a work's memory is reached. */
enum tarn_ipc_way {
    TARN_IPC_DIRECT, /* by the lane's GPU */
    TARN_IPC_STAGED, /* by the CPU, through the ring */
    TARN_IPC_FAR,    /* by another GPU, that of the work, through the ring */
};

/* queue: of the device; the lane's from now on. ended: all of a work's bytes have moved, or (status) will
 * not. It may post further works. */
int tarn_ipc_lane_open(struct tarn_local *local, int device, struct tarn_cuda_queue *queue,
                       void (*ended)(void *arg, struct tarn_work *w, int status), void *arg,
                       struct tarn_ipc_lane **lane_p);
/* Has the lane what such works take? AGAIN: *want has to be opened first. gpu: the work's memory is on, -1:
 * on none. */
int tarn_ipc_lane_ready(struct tarn_ipc_lane *lane, enum tarn_ipc_way way, int gpu,
                        struct tarn_ipc_want *want);
/* A work of 1 byte at least, for which the lane is ready; `at`: where its range of the pool is, as the device
 * reaches it. */
void tarn_ipc_lane_post(struct tarn_ipc_lane *lane, struct tarn_work *w, bool put, enum tarn_ipc_way way,
                        uint8_t *at);
bool tarn_ipc_lane_busy(const struct tarn_ipc_lane *lane);
/* Moves what can be moved. 1: something did; 0; negative: CUDA failed, end the lane. */
int tarn_ipc_lane_progress(struct tarn_ipc_lane *lane);
/* Waits for what is under way, then ends the works that are left: with `status`, but for those that have told
 * of an event and are through. What CUDA has of the lane is kept for the next one, unless it has failed. */
void tarn_ipc_lane_close(struct tarn_ipc_lane *lane, int status);

#endif
