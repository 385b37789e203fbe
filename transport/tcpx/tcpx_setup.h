/* SPDX-License-Identifier: Apache-2.0 */
/* How comms are made, and end. */
#ifndef TARN_TRANSPORT_TCPX_SETUP_H
#define TARN_TRANSPORT_TCPX_SETUP_H

#include "transport/tcpx/tcpx_comm.h"

/* gpu: whose memory is at this end, -1 the host's. */
int tarn_tcpx_comm_listen(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done,
                          struct tarn_tcpx_comm **c_p);
/* What names the listening end, for the peer to connect to. AGAIN: it takes longer. */
int tarn_tcpx_comm_handle(struct tarn_tcpx_comm *c, uint8_t handle[TARN_TCPX_HANDLE]);
int tarn_tcpx_comm_connect(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done,
                           const uint8_t handle[TARN_TCPX_HANDLE], struct tarn_tcpx_comm **c_p);
/* Moves the set-up on. AGAIN: it takes longer; 0: ready. */
int tarn_tcpx_comm_poll(struct tarn_tcpx_comm *c);
/*
 * Closes and frees; NULL is allowed. AGAIN: a message is still being unpacked to where it belongs, nothing
 * was done. A set-up that has not ended is left to itself (tcpx_dial.h).
 */
int tarn_tcpx_comm_close(struct tarn_tcpx_comm *c);

#endif
