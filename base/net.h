/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets with deadlines. All descriptors are non-blocking and close-on-exec; TCP has TCP_NODELAY. */
#ifndef TARN_BASE_NET_H
#define TARN_BASE_NET_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"

/* An address: "host:port" ("[::1]:7700" for IPv6) or "unix:/path". */
struct tarn_addr {
    char host[256]; /* or the path */
    uint16_t port;  /* 0 with is_unix */
    bool is_unix;
};

/* TARN_E_INVALID with a sentence naming `what` ("--listen") when text is no address. */
int tarn_addr_parse(const char *text, const char *what, struct tarn_addr *a);
void tarn_addr_format(const struct tarn_addr *a, char *out, size_t out_bytes);

/* Connects, waiting no longer than the deadline. *fd_p is set on success. NODE_DOWN, TIMEOUT, SYSTEM,
 * CANCELED; errno is then what connect() failed with, 0 when it was not connect(). */
int tarn_net_connect(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel, int *fd_p);

/*
 * Listens. Port 0: a free port, stored in *a. Replaces a stale Unix socket file, on which nobody answers.
 * BUSY: the port is taken, or the Unix socket is live. A Unix socket has mode 0600.
 */
int tarn_net_listen(struct tarn_addr *a, int *fd_p);

/* Is this errno no failure of a socket that does not block? */
static inline bool tarn_net_would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Waits until fd has one of poll events, or the deadline: 0, TIMEOUT, SYSTEM, CANCELED. */
int tarn_net_wait(int fd, short events, uint64_t deadline_ns, struct tarn_cancel *cancel);

/* A hash of the kernel's boot id and the host name: the same in all processes of a running host. */
int tarn_host_id(char out[40]);

#endif
