/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for the slots of a table that a transport does not support, and what all transports share. */
#include "transport/transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"

void *tarn_link_new(const char *transport, const struct tarn_peer *p, size_t bytes)
{
    struct tarn_link *l = calloc(1, bytes);
    if (!l) {
        tarn_fail(TARN_E_NO_MEMORY, "node %s: %s: out of memory", p->node, transport);
        return NULL;
    }
    l->transport = transport;
    l->log = p->log;
    l->writable = p->write;
    snprintf(l->node, sizeof(l->node), "%s", p->node);
    return l;
}

int tarn_link_stale(const struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    return tarn_fail(TARN_E_STALE, "node %s: pool %u slot %u: the object has moved or was replaced", l->node,
                     pool, slot);
}

int tarn_no_local_open(const char *devices, struct tarn_local **local_p)
{
    (void)devices;
    *local_p = NULL;
    return 0;
}

void tarn_no_local_close(struct tarn_local *local)
{
    (void)local;
}

int tarn_no_map(struct tarn_local *local, void *addr, uint64_t bytes)
{
    (void)local, (void)addr, (void)bytes;
    return 0;
}

int tarn_no_ready(struct tarn_local *local, int device, unsigned n, uint64_t deadline_ns)
{
    (void)local, (void)device, (void)n, (void)deadline_ns;
    return 0;
}

uint64_t tarn_peer_until(const struct tarn_peer *p)
{
    uint64_t now = tarn_now_ns(), left = p->deadline_ns > now ? p->deadline_ns - now : 0;

    return p->patience_ns && p->patience_ns < left ? now + p->patience_ns : p->deadline_ns;
}

uint64_t tarn_slice_end(uint64_t deadline_ns)
{
    uint64_t end = tarn_deadline(TARN_WAIT_SLICE_MS);
    return end < deadline_ns ? end : deadline_ns;
}

int tarn_no_learn(struct tarn_link *l, const struct tarn_peer *p)
{
    (void)l, (void)p;
    return 0;
}

int tarn_no_offer(const struct tarn_peer *p, char text[TARN_OFFER_TEXT], struct tarn_link **l_p)
{
    (void)p;
    text[0] = '\0';
    *l_p = NULL;
    return 0;
}

int tarn_no_view(struct tarn_link *l, uint32_t pool, uint32_t slot, uint64_t gen, uint64_t offset,
                 uint64_t bytes, const void **addr_p, uint32_t *hazard_p)
{
    (void)l, (void)pool, (void)slot, (void)gen, (void)offset, (void)bytes, (void)addr_p, (void)hazard_p;
    return tarn_fail(TARN_E_NOT_REACHABLE, "view: this transport moves bytes only: get a copy, or run on the "
                                           "node's host with the shm transport");
}

void tarn_no_unview(struct tarn_link *l, uint32_t hazard)
{
    (void)l, (void)hazard;
}

int tarn_no_address(struct tarn_link *l, int device, const struct tarn_range *r, struct tarn_address *a)
{
    (void)r;
    (void)a;
    return tarn_fail(TARN_E_NOT_REACHABLE, "node %s: %s: kernels of GPU %d do not reach its pools", l->node,
                     l->transport, device);
}

void tarn_no_touch(struct tarn_link *l, uint32_t pool, uint32_t slot)
{
    (void)l, (void)pool, (void)slot;
}

int tarn_no_progress(struct tarn_link *l)
{
    (void)l;
    return 0;
}

int tarn_no_wait_fd(const struct tarn_link *l, short *events)
{
    (void)l;
    *events = 0;
    return -1;
}

int tarn_no_wait(struct tarn_link *l, uint64_t deadline_ns)
{
    (void)l, (void)deadline_ns;
    return 0;
}

int tarn_wait_by_poll(const struct tarn_transport_ops *ops, struct tarn_link *l, uint64_t deadline_ns)
{
    struct pollfd p;
    int left_ms = tarn_left_ms(deadline_ns);
    p.fd = ops->wait_fd(l, &p.events);
    if (p.fd < 0)
        return ops->progress(l);
    int ready = poll(&p, 1, left_ms < TARN_WAIT_SLICE_MS ? left_ms : TARN_WAIT_SLICE_MS);
    int r = ops->progress(l);
    return r ? r : ready > 0;
}

uint32_t tarn_tick_now(uint64_t tick_base_ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    uint64_t now = (uint64_t)t.tv_sec * TARN_NS_PER_S + (uint64_t)t.tv_nsec;
    return now > tick_base_ns ? (uint32_t)((now - tick_base_ns) / TARN_TICK_NS) : 0;
}
