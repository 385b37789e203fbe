/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both ends of a connection: sockets, a ring of requests, and cursors over their pieces. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/tcpx/fixture.h"

struct fixture_comm *fixture_comm_new(bool sends, uint32_t nsockets)
{
    static _Atomic uint64_t made;
    struct fixture_comm *c = calloc(1, sizeof(*c));
    if (!c)
        fixture_crash("no memory for a comm");
    c->sends = sends;
    c->nsockets = nsockets;
    c->random = (fixture_options.seed << 20) + ++made;
    c->control = -1;
    for (uint32_t s = 0; s < FIXTURE_SOCKETS; s++)
        c->socket[s] = -1;
    for (int i = 0; !sends && i < FIXTURE_REQUESTS; i++)
        if (!(c->request[i].fragments = malloc(sizeof(union tarn_tcpx_load) * TARN_TCPX_FRAGMENTS)))
            fixture_crash("no memory for a comm");
    fixture_count->comms++;
    return c;
}

void fixture_cut_off(struct fixture_comm *c)
{
    const struct linger now = {.l_onoff = 1};
    for (uint32_t i = 0; i <= c->nsockets; i++) {
        int *fd = i ? &c->socket[i - 1] : &c->control;
        if (*fd < 0)
            continue;
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        close(*fd);
        *fd = -1;
    }
    c->dead = true;
}

void fixture_comm_free(struct fixture_comm *c)
{
    fixture_cut_off(c);
    fixture_count->requests -= c->posted - c->released;
    fixture_count->comms--;
    for (int i = 0; i < FIXTURE_REQUESTS; i++) {
        free(c->request[i].fragments);
        if (c->request[i].staging)
            fixture_gpu_free_host(c->request[i].staging);
    }
    free(c);
}

bool fixture_unpacks(void)
{
    return fixture_abi != 6 && !fixture_options.plain;
}

struct fixture_request *fixture_request_at(struct fixture_comm *c, uint64_t seq)
{
    return &c->request[seq % FIXTURE_REQUESTS];
}

struct fixture_request *fixture_request_new(struct fixture_comm *c)
{
    if (c->posted - c->released == FIXTURE_REQUESTS)
        return NULL;
    struct fixture_request *r = fixture_request_at(c, c->posted);
    *r = (struct fixture_request){.comm = c,
                                  .seq = c->posted++,
                                  .fragments = r->fragments,
                                  .staging = r->staging,
                                  .staging_bytes = r->staging_bytes};
    fixture_count->requests++;
    return r;
}

struct fixture_piece *fixture_cursor_at(struct fixture_comm *c, struct fixture_cursor *at, uint32_t socket,
                                        struct fixture_request **r_p)
{
    if (at->seq < c->released) /* those requests are done, so they have no pieces left for this socket */
        *at = (struct fixture_cursor){.seq = c->released};
    for (; at->seq < c->planned; *at = (struct fixture_cursor){.seq = at->seq + 1}) {
        struct fixture_request *r = fixture_request_at(c, at->seq);
        for (; at->piece < r->npieces; at->piece++, at->done = 0) {
            struct fixture_piece *piece = &r->pieces[at->piece];
            if (piece->socket == socket && at->done < piece->bytes) {
                *r_p = r;
                return piece;
            }
        }
    }
    return NULL;
}

bool fixture_peer_is_there(struct fixture_comm *c)
{
    char byte;
    ssize_t n = c->dead ? 0 : recv(c->control, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (n > 0 || (n < 0 && errno == EAGAIN))
        return true;
    if (!c->dead)
        FIXTURE_WARN("Connection closed by remote peer");
    c->dead = true;
    return false;
}
