/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX: memory that the plugin may read and write where it is, without a copy.
 *
 * A *mapping* is what a client's caller has registered (tarn_register), and so has lent to transports.
 * Messages look for the mapping that they lie in when they are posted, and are its users until they have
 * ended or their comm is closed: while it has users it is not unmapped (BUSY). Any thread.
 *
 * A *range* is a mapping, or memory of this end's own (a pool, a stage), as the plugin of one comm knows it:
 * registered with it in windows, when a message first needs them. What of a mapping is left with a comm when
 * it is unmapped has no users, and is taken back from the plugin by tarn_tcpx_ranges_drop_gone(). Mappings
 * have ids that are used once: another one at the same address is another.
 */
#ifndef TARN_TRANSPORT_TCPX_MEMORY_H
#define TARN_TRANSPORT_TCPX_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* --- mappings ----------------------------------------------------------------------------------- */

struct tarn_tcpx_mapping {
    uint64_t id; /* from 1 */
    uint8_t *addr;
    uint64_t bytes;
    _Atomic uint32_t users; /* messages; grows under the lock only */
};

/* Few: a message looks through all of them. */
struct tarn_tcpx_mappings {
    pthread_rwlock_t lock;
    struct tarn_tcpx_mapping **at;
    uint32_t n, room;
    uint64_t last_id;
    _Atomic uint64_t gone; /* how many were unmapped, ever */
};

void tarn_tcpx_mappings_open(struct tarn_tcpx_mappings *all);
void tarn_tcpx_mappings_close(struct tarn_tcpx_mappings *all);
int tarn_tcpx_mappings_add(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes);
/* BUSY: it has users; INVALID: there is none of exactly this range. */
int tarn_tcpx_mappings_remove(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes);
/* One that all of these bytes lie in, with a user more; NULL: none. */
struct tarn_tcpx_mapping *tarn_tcpx_mapping_use(struct tarn_tcpx_mappings *all, const void *addr,
                                                uint64_t bytes);
/* It may be gone from then on. NULL is allowed. */
void tarn_tcpx_mapping_unuse(struct tarn_tcpx_mapping *m);
bool tarn_tcpx_mapping_is_there(struct tarn_tcpx_mappings *all, uint64_t id);

/* --- ranges ------------------------------------------------------------------------------------- */

struct tarn_tcpx_comm;
struct tarn_tcpx_range;

/* By what the plugin reaches some bytes. */
struct tarn_tcpx_place {
    struct tarn_tcpx_mapping *mapping; /* NULL: they are this end's own */
    void *mr;
};

/* Memory of this end's own, to send from and to receive in place. Once, when the comm is ready. */
int tarn_tcpx_ranges_own(struct tarn_tcpx_comm *c, void *base, uint64_t bytes, bool gpu);
/* Bytes of one message in that memory. */
int tarn_tcpx_ranges_find_own(struct tarn_tcpx_comm *c, const void *addr, void **mr_p);
/* Bytes of one message anywhere in the host's memory. False: the plugin must not be told of them, or does not
 * take them; else they count as used until tarn_tcpx_mapping_unuse() of the mapping. */
bool tarn_tcpx_ranges_find(struct tarn_tcpx_comm *c, const void *addr, uint32_t bytes,
                           struct tarn_tcpx_place *p);
/* Takes those of mappings that are gone back from the plugin. */
void tarn_tcpx_ranges_drop_gone(struct tarn_tcpx_comm *c);
/* Takes all of them back from the plugin; the comm is not closed yet. */
void tarn_tcpx_ranges_close(struct tarn_tcpx_comm *c);

#endif
