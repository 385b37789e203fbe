/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX, client half: nodes that it has failed to reach again and again rest for a while, in which other
 * transports are used at once. Without that each operation would first wait for the plugin, which seldom says
 * that it fails. What comes after a rest does not wait for it either: the connection is made beside
 * operations that go another way, and taken when it is there.
 *
 * What a client remembers of that, and what its caller has registered, is its struct tarn_local. Any thread.
 */
#ifndef TARN_TRANSPORT_TCPX_REST_H
#define TARN_TRANSPORT_TCPX_REST_H

#include "transport/tcpx/tcpx_memory.h"
#include "transport/transport.h"

int tarn_tcpx_local_open(const char *devices, struct tarn_local **local_p);
void tarn_tcpx_local_close(struct tarn_local *local);

/* NULL for NULL. */
struct tarn_tcpx_mappings *tarn_tcpx_local_mappings(struct tarn_local *local);
int tarn_tcpx_local_map(struct tarn_local *local, void *addr, uint64_t bytes);
int tarn_tcpx_local_unmap(struct tarn_local *local, void *addr, uint64_t bytes);

/*
 * Those who may have registered mappings with a plugin, and are told when one was unmapped: then drop() is
 * called with the lock held, by the thread that unmaps. It may be locked twice by a thread.
 */
struct tarn_tcpx_holder {
    struct tarn_tcpx_holder *next, *prev;
    struct tarn_local *local; /* NULL: nothing is unmapped */
    pthread_mutex_t lock;
    void (*drop)(struct tarn_tcpx_holder *h);
};
void tarn_tcpx_holder_add(struct tarn_local *local, struct tarn_tcpx_holder *h,
                          void (*drop)(struct tarn_tcpx_holder *h));
void tarn_tcpx_holder_remove(struct tarn_tcpx_holder *h);

/* UNAVAILABLE: the node rests, with the reason. local NULL: nothing is remembered. */
int tarn_tcpx_rest_check(struct tarn_local *local, const char *node);
/* Has the node rested, and nothing moved since? Then nobody is to wait for it. */
bool tarn_tcpx_rest_doubts(struct tarn_local *local, const char *node);
/* A link has ended. moved: it has moved something; late: works have waited long for a connection; why: it
 * failed, NULL: it did not. */
void tarn_tcpx_rest_note(struct tarn_local *local, const char *node, bool moved, bool late, const char *why);

#endif
