/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire beside tcp: a socket, on which rank 0 sends parts as fast as there is credit.
 *
 *   rank 0 --> 8 bytes count, the part's bytes          rank 1 --> 8 bytes: parts verified
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "client/bench/bench_writes.h"

struct bench_wire {
    struct bench_writes_shape shape;
    char *memory;
    const char *peer;     /* rank 0: the other's address, without the wire's port; NULL: rank 1 */
    int listener, socket; /* -1: none */
};

/* --- sockets ------------------------------------------------------------------------------------ */

static int move(const struct bench_wire *w, uint64_t *count, void *part, bool out)
{
    struct iovec v[2] = {{count, sizeof *count}, {part, part ? w->shape.bytes : 0}};

    return bench_transfer(w->socket, v, part ? 2 : 1, out);
}

/* From here on it blocks, but no longer than for a part. */
static void make_blocking(int fd)
{
    const struct timeval patience = {.tv_sec = BENCH_WRITES_PATIENCE_MS / 1000};

    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static void *slot_of(const struct bench_wire *w, uint64_t count)
{
    return w->memory + (count - 1) % w->shape.slots * w->shape.bytes;
}

/* --- the wire ----------------------------------------------------------------------------------- */

static void close_wire(struct bench_wire *w)
{
    if (!w)
        return;
    if (w->listener >= 0)
        close(w->listener);
    if (w->socket >= 0)
        close(w->socket);
    free(w);
}

/* Rank 1 listens at the address of its client, at a port of its own. */
static int listen_beside(struct bench_wire *w, const char *address, char *text)
{
    struct tarn_addr a;
    int rc = tarn_addr_parse(address, "--listen", &a);

    a.port = 0;
    if (rc == 0)
        rc = tarn_net_listen(&a, &w->listener);
    snprintf(text, BENCH_WIRE_TEXT, "%u", rc == 0 ? a.port : 0);
    return rc;
}

static int offer(const struct bench_env *e, const struct bench_writes_shape *shape, char *memory, char *text,
                 struct bench_wire **w_p)
{
    struct bench_wire *w = malloc(sizeof *w);

    if (!w)
        return tarn_fail(TARN_E_NO_MEMORY, "the bare socket: out of memory");
    *w =
        (struct bench_wire){.shape = *shape, .memory = memory, .peer = e->peer, .listener = -1, .socket = -1};
    int rc = e->peer ? 0 : listen_beside(w, e->listen, text);
    if (rc != 0) {
        close_wire(w);
        return rc;
    }
    *w_p = w;
    return 0;
}

/* Rank 0 connects. Rank 1 accepts that when the first parts are to come. */
static int join(struct bench_wire *w, const char *text)
{
    struct tarn_addr a;

    if (!w->peer)
        return 0;
    int rc = tarn_addr_parse(w->peer, "--peer", &a);
    a.port = (uint16_t)strtoul(text, NULL, 10);
    if (rc == 0)
        rc = tarn_net_connect(&a, tarn_deadline(BENCH_WRITES_PATIENCE_MS), NULL, &w->socket);
    if (rc == 0)
        make_blocking(w->socket);
    return rc;
}

static int send_parts(struct bench_wire *w, uint64_t counted, uint64_t last)
{
    uint64_t verified = counted;
    int rc = 0;

    for (uint64_t count = counted + 1; rc == 0 && count <= last; count++) {
        while (rc == 0 && count > verified + w->shape.slots)
            rc = move(w, &verified, NULL, false);
        if (rc == 0)
            rc = move(w, &(uint64_t){count}, slot_of(w, count), true);
    }
    while (rc == 0 && verified < last)
        rc = move(w, &verified, NULL, false);
    return rc;
}

static int accept_rank0(struct bench_wire *w)
{
    int rc = tarn_net_wait(w->listener, POLLIN, tarn_deadline(BENCH_WRITES_PATIENCE_MS), NULL);

    if (rc != 0)
        return rc;
    w->socket = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
    if (w->socket < 0)
        return tarn_fail(TARN_E_SYSTEM, "the bare socket: accept: %m");
    make_blocking(w->socket);
    return 0;
}

/* They come in order, so the part's slot is known before its count. */
static int take_parts(struct bench_wire *w, struct bench_landing *l)
{
    uint64_t told = l->verified, count;
    int rc = w->socket < 0 ? accept_rank0(w) : 0;

    while (rc == 0 && l->verified < l->last) {
        rc = move(w, &count, slot_of(w, l->verified + 1), false);
        if (rc == 0)
            rc = bench_landing_take(l, count, bench_wire_as(&w->shape, count));
        if (rc == 0 && bench_landing_owes(l, told)) {
            told = l->verified;
            rc = move(w, &told, NULL, true);
        }
    }
    return rc;
}

const struct bench_wire_ops bench_wire_sockets = {.name = "bare socket",
                                                  .offer = offer,
                                                  .join = join,
                                                  .send = send_parts,
                                                  .take = take_parts,
                                                  .close = close_wire};
