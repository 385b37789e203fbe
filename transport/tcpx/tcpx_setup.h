/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending comms. */
#ifndef TARN_TRANSPORT_TCPX_SETUP_H
#define TARN_TRANSPORT_TCPX_SETUP_H

#include "transport/tcpx/tcpx_comm.h"

/* gpu: owner of the memory at this end; -1: the host. */
int tarn_tcpx_comm_listen(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done,
                          struct tarn_tcpx_comm **c_p);
/* The listening end's handle for the peer. AGAIN: not ready yet. */
int tarn_tcpx_comm_handle(struct tarn_tcpx_comm *c, uint8_t handle[TARN_TCPX_HANDLE]);
int tarn_tcpx_comm_connect(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done,
                           const uint8_t handle[TARN_TCPX_HANDLE], struct tarn_tcpx_comm **c_p);
/* Continues the set-up. AGAIN: not ready yet; 0: ready. */
int tarn_tcpx_comm_poll(struct tarn_tcpx_comm *c);
/*
 * Closes and frees; NULL is allowed. AGAIN: a message is still being unpacked; nothing was done. A set-up
 * that has not ended is left to itself (tcpx_dial.h).
 */
int tarn_tcpx_comm_close(struct tarn_tcpx_comm *c);

#endif
