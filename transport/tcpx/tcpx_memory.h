/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCPX: memory that the plugin reads and writes directly, without a copy.
 *
 * A *mapping* is a range that a client's caller registered (tarn_register), and thereby lent to transports.
 * When posted, a message looks for the mapping that it lies in and becomes its user, until the message has
 * ended or its comm is closed. A mapping with users cannot be unmapped (BUSY). Any thread.
 *
 * A *range* is a mapping, or memory of this end (a pool, a stage), as registered with the plugin for one
 * comm. It is registered in windows, when a message first needs them. After a mapping is unmapped, its
 * ranges have no users; tarn_tcpx_ranges_drop_gone() deregisters them. Mapping ids are used only once, so
 * a new mapping at the same address is a different one.
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
    _Atomic uint32_t users; /* messages; grows only under the lock */
};

/* Few, because each message searches all of them. */
struct tarn_tcpx_mappings {
    pthread_rwlock_t lock;
    struct tarn_tcpx_mapping **at;
    uint32_t n, room;
    uint64_t last_id;
    _Atomic uint64_t gone; /* number of mappings unmapped so far */
};

void tarn_tcpx_mappings_open(struct tarn_tcpx_mappings *all);
void tarn_tcpx_mappings_close(struct tarn_tcpx_mappings *all);
int tarn_tcpx_mappings_add(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes);
/* BUSY: it has users. INVALID: no mapping has exactly this range. */
int tarn_tcpx_mappings_remove(struct tarn_tcpx_mappings *all, void *addr, uint64_t bytes);
/* Finds a mapping that contains all these bytes and adds a user; NULL: none. */
struct tarn_tcpx_mapping *tarn_tcpx_mapping_use(struct tarn_tcpx_mappings *all, const void *addr,
                                                uint64_t bytes);
/* The mapping may be freed afterwards. NULL is allowed. */
void tarn_tcpx_mapping_unuse(struct tarn_tcpx_mapping *m);
bool tarn_tcpx_mapping_is_there(struct tarn_tcpx_mappings *all, uint64_t id);

/* --- ranges ------------------------------------------------------------------------------------- */

struct tarn_tcpx_comm;
struct tarn_tcpx_range;

/* How the plugin reaches some bytes. */
struct tarn_tcpx_place {
    struct tarn_tcpx_mapping *mapping; /* NULL: they are in this end's own memory */
    void *mr;
};

/* Sets this end's own memory, to send from and to receive in place. Called once, when the comm is ready. */
int tarn_tcpx_ranges_own(struct tarn_tcpx_comm *c, void *base, uint64_t bytes, bool gpu);
/* Finds the place of a message's bytes in that memory. */
int tarn_tcpx_ranges_find_own(struct tarn_tcpx_comm *c, const void *addr, void **mr_p);
/* Finds the place of a message's bytes anywhere in host memory. False: the plugin must not access them, or
 * refuses to register them. If true, they count as used until tarn_tcpx_mapping_unuse() of the mapping. */
bool tarn_tcpx_ranges_find(struct tarn_tcpx_comm *c, const void *addr, uint32_t bytes,
                           struct tarn_tcpx_place *p);
/* Deregisters ranges of mappings that are gone. */
void tarn_tcpx_ranges_drop_gone(struct tarn_tcpx_comm *c);
/* Deregisters all ranges, before the comm is closed. */
void tarn_tcpx_ranges_close(struct tarn_tcpx_comm *c);

#endif
