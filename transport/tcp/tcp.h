/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport's table, for the registry, and its node half, which the table in tcp_link.c names. */
#ifndef TARN_TRANSPORT_TCP_H
#define TARN_TRANSPORT_TCP_H

#include "transport/transport.h"

extern const struct tarn_transport_ops tarn_tcp_ops;

int tarn_tcp_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p);
bool tarn_tcp_serves(const struct tarn_node_half *s, uint32_t pool);
void tarn_tcp_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes);
int tarn_tcp_attach(struct tarn_node_half *s, struct tarn_attach *a);
void tarn_tcp_detach(struct tarn_node_half *s, uint64_t session);
void tarn_tcp_stop(struct tarn_node_half *s);

/* tcp_socket.c. Are both ends of this connection on one host? */
bool tarn_tcp_same_host(int fd);
/* No delay, and buffers that suit the distance. */
void tarn_tcp_tune(int fd, bool same_host);
/* From now on calls without MSG_DONTWAIT may sleep, for limit_ms (below 1000) at most. */
void tarn_tcp_sleep(int fd, uint32_t limit_ms);

#endif
