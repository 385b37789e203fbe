/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport: its two tables, and what both halves need. */
#ifndef TARN_TRANSPORT_TCP_H
#define TARN_TRANSPORT_TCP_H

#include "transport/transport.h"

enum { TARN_TCP_CAPS = TARN_CAP_GPU | TARN_CAP_WINDOWS };

extern const struct tarn_transport_ops tarn_tcp_ops;
extern const struct tarn_node_half_ops tarn_tcp_node_ops;

int tarn_tcp_probe(void);

/*
 * Call before sending, and after receiving. ThreadSanitizer does not know that bytes come after they were
 * sent where ATTACH passed the connection. Within one process it would report races.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
extern char tarn_tcp_order;
static inline void tarn_tcp_sends(void)
{
    __tsan_release(&tarn_tcp_order);
}
static inline void tarn_tcp_received(void)
{
    __tsan_acquire(&tarn_tcp_order);
}
#else
static inline void tarn_tcp_sends(void)
{
}
static inline void tarn_tcp_received(void)
{
}
#endif

/* tcp_socket.c */

/* Are both ends of this connection on one host? */
bool tarn_tcp_same_host(int fd);
/* Sets no delay, and buffers that suit the distance. */
void tarn_tcp_tune(int fd, bool same_host);
/* Lets calls without MSG_DONTWAIT sleep, for at most limit_ms (below 1000). */
void tarn_tcp_sleep(int fd, uint32_t limit_ms);

#endif
