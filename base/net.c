/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets with deadlines.
 *
 * A Unix socket file outlives its process, so listening must tell a stale file from a live one: a stale one
 * refuses connections. Probe, unlink, bind and listen happen under flock() of the directory, or two starting
 * nodes could unlink each other's fresh sockets.
 */
#include "base/net.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/resolve.h"
#include "base/text.h"

#define BACKLOG 4096   /* the kernel lowers it to net.core.somaxconn */
#define LISTEN_MS 5000 /* how long a listener waits for its address and for the directory lock */
#define RETRY_NS (2 * TARN_NS_PER_MS) /* between tries when poll() cannot tell */
#define ADDR_TEXT 300

/* --- addresses ---------------------------------------------------------------------------------- */

static int parse_unix(const char *path, const char *what, struct tarn_addr *a)
{
    size_t bytes = strlen(path), most = sizeof((struct sockaddr_un *)0)->sun_path - 1;

    if (bytes == 0 || bytes > most)
        return tarn_fail(TARN_E_INVALID, "%s: the socket path is %zu bytes long: must be 1 to %zu", what,
                         bytes, most);
    *a = (struct tarn_addr){.is_unix = true};
    memcpy(a->host, path, bytes);
    return 0;
}

int tarn_addr_parse(const char *text, const char *what, struct tarn_addr *a)
{
    const char *colon = strrchr(text, ':'), *host = text, *host_end = colon;
    struct tarn_addr parsed = {0};
    uint64_t port = 0;

    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(text + 5, what, a);
    if (colon && *text == '[') {
        host = text + 1;
        host_end = colon > host && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(text, ':', (size_t)(colon - text))) {
        host_end = NULL; /* IPv6 without brackets: the port's colon is ambiguous */
    }
    if (!host_end || host_end <= host || (size_t)(host_end - host) >= sizeof parsed.host)
        return tarn_fail(TARN_E_INVALID,
                         "%s: \"%.80s\" is no address: write HOST:PORT, [IPv6]:PORT or unix:/PATH", what,
                         text);
    if (tarn_u64_parse(colon + 1, strlen(colon + 1), 10, UINT16_MAX, &port) != 0)
        return tarn_fail(TARN_E_INVALID, "%s: \"%.80s\" has no valid port: must be 0 to 65535", what, text);
    memcpy(parsed.host, host, (size_t)(host_end - host));
    parsed.port = (uint16_t)port;
    *a = parsed;
    return 0;
}

void tarn_addr_format(const struct tarn_addr *a, char *out, size_t out_bytes)
{
    if (a->is_unix)
        snprintf(out, out_bytes, "unix:%s", a->host);
    else if (strchr(a->host, ':'))
        snprintf(out, out_bytes, "[%s]:%u", a->host, a->port);
    else
        snprintf(out, out_bytes, "%s:%u", a->host, a->port);
}

static void unix_sockaddr(const struct tarn_addr *a, struct sockaddr_un *sun)
{
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(sun->sun_path, a->host, strnlen(a->host, sizeof sun->sun_path - 1));
}

/* --- waiting ------------------------------------------------------------------------------------ */

int tarn_net_wait(int fd, short events, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = tarn_cancel_fd(cancel), .events = POLLIN}};
        int left_ms = tarn_cancel_left_ms(cancel, deadline_ns);
        if (tarn_canceled(cancel))
            return tarn_cancel_fail();
        int n = poll(p, 2, left_ms);

        if (n > 0 && p[1].revents)
            tarn_cancel_drain(cancel);
        if (n > 0 && !p[0].revents)
            continue;
        if (n > 0 && p[0].revents & POLLNVAL)
            return tarn_fail(TARN_E_SYSTEM, "poll: descriptor %d is not open", fd);
        if (n > 0)
            return 0;
        if (n == 0 && left_ms == 0)
            return tarn_fail(TARN_E_TIMEOUT, "no answer before the deadline");
        if (n < 0 && errno != EINTR)
            return tarn_fail(TARN_E_SYSTEM, "poll: %m");
        tarn_cancel_ask(cancel);
    }
}

/* For waits without a descriptor. False: the deadline has passed. */
static bool wait_a_moment(uint64_t deadline_ns)
{
    struct timespec moment = {.tv_nsec = (long)RETRY_NS};

    if (tarn_now_ns() >= deadline_ns)
        return false;
    nanosleep(&moment, NULL);
    return true;
}

/* --- connecting --------------------------------------------------------------------------------- */

static int open_socket(int family, int *fd_p)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "socket: %m: is the limit of open files (ulimit -n) reached?");
    if (family != AF_UNIX) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    *fd_p = fd;
    return 0;
}

static bool in_progress(int error)
{
    return error == EINPROGRESS || error == EINTR;
}

/* Connects fd. Returns 0 or an errno value: ETIMEDOUT also when the deadline has passed, ECANCELED when the
 * wait was canceled. */
static int connect_errno(int fd, const struct sockaddr *to, socklen_t to_bytes, uint64_t deadline_ns,
                         struct tarn_cancel *cancel)
{
    /* A Unix socket whose backlog is full says EAGAIN, and no poll() tells when there is room. */
    while (connect(fd, to, to_bytes) != 0) {
        if (in_progress(errno)) {
            int error = 0;
            socklen_t error_bytes = sizeof error;
            int rc = tarn_net_wait(fd, POLLOUT, deadline_ns, cancel);
            if (rc != 0)
                return rc == TARN_E_TIMEOUT ? ETIMEDOUT : rc == TARN_E_CANCELED ? ECANCELED : EBADF;
            if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0)
                return errno;
            return error;
        }
        if (errno != EAGAIN)
            return errno;
        if (tarn_cancel_ask(cancel))
            return ECANCELED;
        if (!wait_a_moment(deadline_ns))
            return ETIMEDOUT;
    }
    return 0;
}

static int connect_failed(const struct tarn_addr *a, int error)
{
    char text[ADDR_TEXT];
    const char *cause = strerror(error);

    tarn_addr_format(a, text, sizeof text);
    if (error == ECANCELED)
        return tarn_cancel_fail();
    if (error == ETIMEDOUT)
        return tarn_fail(TARN_E_TIMEOUT, "%s: no connection before the deadline", text);
    if (error == EACCES || error == EPERM)
        return tarn_fail(TARN_E_SYSTEM, "%s: cannot connect: %s: run as a user who may", text, cause);
    return tarn_fail(TARN_E_NODE_DOWN, "%s: cannot connect: %s: does anything listen there?", text, cause);
}

/*
 * TCP can connect a socket to itself when nobody listens on a port of the ephemeral range and the
 * kernel picks just that one as the local port. That is no peer.
 */
static bool connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 && here.ss_family != AF_UNIX &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
           memcmp(&here, &there, here_bytes) == 0;
}

/* Tries one address. On failure *error_p is connect()'s errno value, or 0 if something else failed. */
static int connect_one(int family, const struct sockaddr *to, socklen_t to_bytes, uint64_t deadline_ns,
                       struct tarn_cancel *cancel, int *error_p, int *fd_p)
{
    int fd = -1;
    int rc = open_socket(family, &fd);

    *error_p = 0;
    if (rc != 0)
        return rc;
    *error_p = connect_errno(fd, to, to_bytes, deadline_ns, cancel);
    if (*error_p == 0 && connected_to_itself(fd))
        *error_p = ECONNREFUSED;
    if (*error_p) {
        close(fd);
        return TARN_E_NODE_DOWN;
    }
    *fd_p = fd;
    return 0;
}

static int connect_unix(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel,
                        int *error_p, int *fd_p)
{
    struct sockaddr_un sun;

    unix_sockaddr(a, &sun);
    return connect_one(AF_UNIX, (struct sockaddr *)&sun, sizeof sun, deadline_ns, cancel, error_p, fd_p);
}

/* Tries every address of the name; a silent one gets only its share of the time left. */
static int connect_tcp(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel,
                       int *error_p, int *fd_p)
{
    struct addrinfo *found = NULL;
    int rc = tarn_resolve(a->host, a->port, deadline_ns, cancel, &found);
    uint64_t addresses = 0;

    if (rc != 0)
        return rc;
    for (const struct addrinfo *i = found; i; i = i->ai_next)
        addresses++;
    for (const struct addrinfo *i = found; i; i = i->ai_next, addresses--) {
        uint64_t now = tarn_now_ns();
        uint64_t share = now < deadline_ns ? (deadline_ns - now) / addresses : 0;
        rc = connect_one(i->ai_family, i->ai_addr, i->ai_addrlen, now + share, cancel, error_p, fd_p);
        if (rc == 0 || *error_p == ECANCELED)
            break;
    }
    freeaddrinfo(found);
    return rc;
}

int tarn_net_connect(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel, int *fd_p)
{
    int error = 0;
    int rc = a->is_unix ? connect_unix(a, deadline_ns, cancel, &error, fd_p)
                        : connect_tcp(a, deadline_ns, cancel, &error, fd_p);
    if (error)
        rc = connect_failed(a, error);
    errno = error;
    return rc;
}

/* --- listening ---------------------------------------------------------------------------------- */

static int bind_and_listen(int fd, const struct sockaddr *at, socklen_t at_bytes)
{
    return bind(fd, at, at_bytes) == 0 && listen(fd, BACKLOG) == 0 ? 0 : errno;
}

static int listen_failed(const struct tarn_addr *a, int error)
{
    char text[ADDR_TEXT];

    tarn_addr_format(a, text, sizeof text);
    if (error == EADDRNOTAVAIL)
        return tarn_fail(TARN_E_CONFIG, "%s: cannot listen: %s: give an address of this machine", text,
                         strerror(error));
    if (error == EEXIST)
        return tarn_fail(TARN_E_CONFIG,
                         "%s: a file is there that is no socket: remove it or give another path", text);
    if (error == EADDRINUSE)
        return tarn_fail(TARN_E_BUSY, "%s: in use by another process: stop it or listen elsewhere", text);
    return tarn_fail(TARN_E_SYSTEM, "%s: cannot listen: %s: give another %s", text, strerror(error),
                     a->is_unix        ? "path"
                     : error == EACCES ? "port, from 1024 on"
                                       : "address");
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_storage at;
    socklen_t at_bytes = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &at_bytes) != 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static int listen_tcp(struct tarn_addr *a, int *fd_p)
{
    struct addrinfo *found = NULL;
    int fd = -1, one = 1;
    int rc = tarn_resolve(a->host, a->port, tarn_deadline(LISTEN_MS), NULL, &found);

    if (rc != 0)
        return rc;
    rc = open_socket(found->ai_family, &fd);
    if (rc != 0)
        goto free_found;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int error = bind_and_listen(fd, found->ai_addr, found->ai_addrlen);
    if (error) {
        rc = listen_failed(a, error);
        close(fd);
        goto free_found;
    }
    a->port = bound_port(fd);
    *fd_p = fd;
free_found:
    freeaddrinfo(found);
    return rc;
}

/* Locks the directory that holds `path`; closing *fd_p unlocks it. */
static int lock_directory(const char *path, int *fd_p)
{
    char directory[sizeof((struct tarn_addr *)0)->host];
    const char *slash = strrchr(path, '/');
    uint64_t deadline_ns = tarn_deadline(LISTEN_MS);

    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "unix:%s: cannot open the directory: %m: give another path", path);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (wait_a_moment(deadline_ns))
            continue;
        close(fd);
        return tarn_fail(TARN_E_BUSY, "unix:%s: its directory is locked by another process", path);
    }
    *fd_p = fd;
    return 0;
}

/* Unlinks the socket file if nobody answers on it. EADDRINUSE when somebody does. */
static int remove_stale(const struct tarn_addr *a, const struct sockaddr_un *sun)
{
    struct stat st;
    int fd = -1, error = 0;

    if (lstat(a->host, &st) != 0)
        return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(st.st_mode))
        return EEXIST;
    if (open_socket(AF_UNIX, &fd) != 0)
        return EMFILE;
    if (connect(fd, (const struct sockaddr *)sun, sizeof *sun) != 0)
        error = errno;
    close(fd);
    if (error != ECONNREFUSED)
        return EADDRINUSE;
    return unlink(a->host) == 0 || errno == ENOENT ? 0 : errno;
}

static int listen_unix(const struct tarn_addr *a, int *fd_p)
{
    struct sockaddr_un sun;
    int directory = -1, fd = -1;
    int rc = lock_directory(a->host, &directory);

    if (rc != 0)
        return rc;
    rc = open_socket(AF_UNIX, &fd);
    if (rc != 0)
        goto unlock;
    unix_sockaddr(a, &sun);
    int error = remove_stale(a, &sun);
    if (error == 0 && fchmod(fd, 0600) != 0) /* so bind() creates the file with that mode */
        error = errno;
    if (error == 0)
        error = bind_and_listen(fd, (struct sockaddr *)&sun, sizeof sun);
    if (error == 0) {
        *fd_p = fd;
    } else {
        rc = listen_failed(a, error);
        close(fd);
    }
unlock:
    close(directory);
    return rc;
}

int tarn_net_listen(struct tarn_addr *a, int *fd_p)
{
    return a->is_unix ? listen_unix(a, fd_p) : listen_tcp(a, fd_p);
}

/* --- which host --------------------------------------------------------------------------------- */

int tarn_host_id(char out[40])
{
    char text[37 + 256] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "/proc/sys/kernel/random/boot_id: %m: is /proc mounted?");
    ssize_t n = read(fd, text, 36);
    close(fd);
    if (n != 36)
        return tarn_fail(TARN_E_SYSTEM, "/proc/sys/kernel/random/boot_id: too short");
    text[n] = '\n';
    if (gethostname(text + n + 1, sizeof text - (size_t)n - 2) != 0)
        return tarn_fail(TARN_E_SYSTEM, "gethostname: %m");

    XXH128_hash_t h = XXH3_128bits(text, strlen(text));
    snprintf(out, 40, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    return 0;
}
