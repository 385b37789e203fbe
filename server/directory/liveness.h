/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a location in the directory can still be read: see publisher.h for the rules. Used by the
 * directory thread only.
 */
#ifndef TARN_SERVER_LIVENESS_H
#define TARN_SERVER_LIVENESS_H

#include "metadata/directory.h"
#include "transport/node_half.h"

enum tarn_liveness { TARN_ALIVE, TARN_DEAD, TARN_UNCERTAIN };

struct tarn_living_node {
    char id[TARN_NODE_ID_MAX + 1];
    uint32_t epoch; /* low half, as in generations */
};

/* The living nodes as last asked. Zero it, fill the first part. */
struct tarn_living {
    struct tarn_directory *directory;
    const char *self;
    uint64_t epoch;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    uint64_t fresh_ns; /* for so long the list may show a node alive without asking again */
    uint32_t heartbeat_ms, ttl_ms;

    struct tarn_living_node *nodes;
    size_t n, room;
    uint64_t asked_ns;
    uint64_t listed_ms; /* Redis's time before that */
    bool calm;          /* the directory was, behind the list: a missing node is dead */
};

/*
 * Is the location, seen in the directory at seen_ns, dead? Asks for the list of nodes when the one at
 * hand does not show the node alive and is older than that. UNCERTAIN also when it cannot be had.
 */
enum tarn_liveness tarn_living_check(struct tarn_living *v, const struct tarn_location *l, uint64_t seen_ns,
                                     uint64_t deadline_ns);
/* Of a whole record: alive when one location is, dead when all are. */
enum tarn_liveness tarn_living_record(struct tarn_living *v, const struct tarn_record *r, uint64_t seen_ns,
                                      uint64_t deadline_ns);
void tarn_living_free(struct tarn_living *v);

#endif
