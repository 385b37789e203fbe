/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a location in the directory can still be read; directory_thread.h has the rules. For the directory
 * thread only.
 */
#ifndef TARN_SERVER_LIVENESS_H
#define TARN_SERVER_LIVENESS_H

#include "base/buf.h"
#include "metadata/directory.h"
#include "transport/node_half.h"

enum tarn_liveness { TARN_ALIVE, TARN_DEAD, TARN_UNCERTAIN };

struct tarn_living_node {
    char id[TARN_NODE_ID_MAX + 1];
    uint32_t epoch; /* low half, as in generations */
};

/* The nodes that lived when Redis was last asked. Zero it and fill the first part. */
struct tarn_living {
    struct tarn_directory *directory;
    const char *self;
    const struct tarn_pool_memory *pools;
    uint32_t npools;
    uint64_t fresh_ns; /* how long the list may be used to show that a node lives */
    uint32_t heartbeat_ms, ttl_ms;

    struct tarn_buf nodes; /* of struct tarn_living_node */
    uint64_t asked_ns;
    uint64_t listed_ms; /* Redis's time before the list was read */
    bool calm;          /* the directory was calm after the list was read: a missing node is dead */
};

/*
 * Is the location dead that was seen in the directory at seen_ns? Reads the list of nodes again if the
 * present one is older than seen_ns and does not show the node alive. UNCERTAIN also if Redis does not
 * answer.
 */
enum tarn_liveness tarn_living_check(struct tarn_living *v, const struct tarn_location *l, uint64_t seen_ns,
                                     uint64_t deadline_ns);
/* The same for a location of this node, whose slots tell: never UNCERTAIN. */
enum tarn_liveness tarn_living_own(const struct tarn_living *v, const struct tarn_location *l);
/* The same for a record: ALIVE if one location is, DEAD if all are. */
enum tarn_liveness tarn_living_record(struct tarn_living *v, const struct tarn_record *r, uint64_t seen_ns,
                                      uint64_t deadline_ns);
void tarn_living_free(struct tarn_living *v);

#endif
