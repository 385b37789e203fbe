/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both halves of TCP share: the probe and socket settings.
 *
 * Within one host the bytes in flight should stay in the processor's cache: with the kernel's own buffer
 * sizes, which grow to megabytes, they go through memory once more on their way, and large transfers
 * take up to twice as long. Between hosts the kernel knows better and its sizes are left alone.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/tcp/tcp.h"

#define SAME_HOST_BUFFER (256 << 10)

#ifdef __SANITIZE_THREAD__
char tarn_tcp_order;
#endif

bool tarn_tcp_same_host(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) < 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) < 0 || here.ss_family != there.ss_family)
        return false;
    if (here.ss_family == AF_UNIX)
        return true;
    if (here.ss_family == AF_INET)
        return ((struct sockaddr_in *)&here)->sin_addr.s_addr ==
               ((struct sockaddr_in *)&there)->sin_addr.s_addr;
    return memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr, &((struct sockaddr_in6 *)&there)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

void tarn_tcp_tune(int fd, bool same_host)
{
    int one = 1, bytes = SAME_HOST_BUFFER;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!same_host)
        return;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

void tarn_tcp_sleep(int fd, uint32_t limit_ms)
{
    struct timeval limit = {.tv_usec = limit_ms * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

int tarn_tcp_probe(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tarn_fail(TARN_E_UNAVAILABLE, "no TCP sockets: %m");
    close(fd);
    return 0;
}
