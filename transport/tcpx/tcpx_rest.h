/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: a node that was unreachable several times rests for a while. In that time, operations
 * use other transports at once. Without rests each operation would first wait for the plugin, which seldom
 * reports failure. After a rest nobody waits for it either: the connection is made while operations use other
 * transports, and used once it is up.
 *
 * What a client remembers of nodes, and what its caller registered, is its struct tarn_tcpx_local. Any
 * thread.
 */
#ifndef TARN_TRANSPORT_TCPX_REST_H
#define TARN_TRANSPORT_TCPX_REST_H

#include "transport/tcpx/tcpx_memory.h"
#include "transport/transport.h"

static inline struct tarn_tcpx_local *tarn_tcpx_local(struct tarn_local *local)
{
    return (struct tarn_tcpx_local *)local;
}

int tarn_tcpx_local_open(const char *devices, struct tarn_local **local_p);
void tarn_tcpx_local_close(struct tarn_local *local);

struct tarn_tcpx_mappings *tarn_tcpx_local_mappings(struct tarn_tcpx_local *local);
int tarn_tcpx_local_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_tcpx_local_unmap(struct tarn_local *local, void *addr, uint64_t bytes);

/*
 * Objects that may have registered mappings with a plugin. When a mapping is unmapped, the unmapping
 * thread calls drop() with the lock held. The lock may be taken twice by one thread.
 */
struct tarn_tcpx_holder {
    struct tarn_tcpx_holder *next, *prev;
    struct tarn_tcpx_local *local;
    pthread_mutex_t lock;
    void (*drop)(struct tarn_tcpx_holder *h);
};
void tarn_tcpx_holder_add(struct tarn_tcpx_local *local, struct tarn_tcpx_holder *h,
                          void (*drop)(struct tarn_tcpx_holder *h));
void tarn_tcpx_holder_remove(struct tarn_tcpx_holder *h);

/* UNAVAILABLE, with the reason: the node rests. */
int tarn_tcpx_rest_check(struct tarn_tcpx_local *local, const char *node);
/* Has the node rested without any transfer since? Then nobody should wait for it. */
bool tarn_tcpx_rest_doubts(struct tarn_tcpx_local *local, const char *node);
/* A link has ended. moved: it moved bytes; late: works waited long for a connection; why: its failure,
 * NULL: none. */
void tarn_tcpx_rest_note(struct tarn_tcpx_local *local, const char *node, bool moved, bool late,
                         const char *why);

#endif
