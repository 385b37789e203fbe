/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside puts: what tarn_put, its parts (reserve, write, commit) and layer-wise sessions share.
 *
 * Items go through in chunks, which are also the unit of overlap:
 *
 *   RESERVE(0)  RESERVE(1)  write(0)  COMMIT(0)  RESERVE(2)  write(1)  [COMMIT(0) answered]  COMMIT(1) ...
 *
 * so while chunk k is being written, chunk k-1 is being published and chunk k+1 has its room. (With replicas,
 * COMMIT is for the first copies; those for the others follow once these are answered.) Each node has two
 * control connections for this, one for RESERVE and one for COMMIT.
 *
 * Life of a target (one copy of one object):
 *   WANTED --sent--> ASKED --granted--> RESERVED --written--> WRITTEN --sent--> COMMITTING --> STORED
 * and from any of these to LOST; what was granted and is lost is ABORTed. All items of a chunk, and all
 * copies, carry one version, so a chunk never has the same key twice.
 */
#ifndef TARN_CLIENT_PUT_JOB_H
#define TARN_CLIENT_PUT_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/desc.h"
#include "client/flight.h"
#include "client/place.h"
#include "client/verdict.h"
#include "client/way.h"
#include "transport/seen.h"

struct tarn_put_job;

#define TARN_CHUNK_ITEMS 64
#define TARN_CHUNK_BYTES (8ull << 20) /* at first, and at least */
#define TARN_CHUNK_NS \
    500000 /* what writing a chunk is to take: as long as others are reserved and committed */
#define TARN_CHUNK_LAST (2ull << 20) /* a chunk is not made smaller than this for being one of the last */
#define TARN_PUT_TRIES 3
#define TARN_REFUSALS_MAX 16
#define TARN_PUT_GRACE_NS (30 * TARN_NS_PER_MS)

enum tarn_target_state {
    TARN_TARGET_WANTED,
    TARN_TARGET_ASKED,
    TARN_TARGET_RESERVED,
    TARN_TARGET_WRITTEN,
    TARN_TARGET_COMMITTING,
    TARN_TARGET_STORED,
    TARN_TARGET_LOST,
};

struct tarn_target {
    struct tarn_put_job *job;
    struct tarn_peer_node *node;
    enum tarn_target_state state;
    bool granted; /* the node holds room under (pool, slot, gen) until COMMIT or ABORT */
    uint32_t pool, slot;
    uint64_t offset, gen;
    uint64_t tried;      /* as in struct tarn_choice */
    struct tarn_way way; /* it was posted to last */
    bool misfit;         /* the pieces written last had more bytes than there is room for */
    struct tarn_transfer x;
};

/* Where it can be read once it is stored. */
static inline struct tarn_loc tarn_target_loc(const struct tarn_target *t)
{
    return (struct tarn_loc){t->node, t->offset, t->gen + 1, t->pool, t->slot};
}

struct tarn_put_job {
    size_t index; /* of the item */
    int status;   /* 0: under way or stored; else why it failed */
    bool again;   /* worth another try: in a later chunk */
    bool busy; /* ... however often: the session has reserved as much as it may, or a transport is awaited */
    int held;  /* why its COMMIT is to be sent again: BUSY or AGAIN; 0: it is not */
    char text[TARN_SENTENCE];
    struct tarn_target *targets; /* put.replicas of them */
    struct tarn_peer_node *refused[TARN_REFUSALS_MAX];
    uint32_t nrefused;
};

struct tarn_chunk {
    struct tarn_put_job *jobs;
    struct tarn_target *targets;
    uint32_t n;
    uint64_t version, bytes;
};

/* A node's part in a put. */
struct tarn_put_node {
    struct tarn_peer_node *node;
    struct tarn_control_conn *reserve, *commit;
    bool reserving, committing; /* a reply is outstanding */
};

struct tarn_put {
    struct tarn_client *client;
    struct tarn_item *items;
    size_t n;
    uint32_t flags, ttl_ms, replicas;
    char pool[TARN_POOL_NAME_MAX + 1]; /* "*": the node chooses */
    bool fixed;                        /* one node was named: there is no other to go to */
    uint64_t deadline_ns;
    struct tarn_cancel *cancel; /* NULL: none */
    struct tarn_verdict verdict;
    uint64_t chunk_bytes; /* the next chunk's */

    struct tarn_candidate *candidates, *scratch;
    uint32_t ncandidates;
    struct tarn_put_node *nodes;
    uint32_t nnodes;
    struct tarn_flight flight;
    struct tarn_seen seen;
};

/* Giving back must not fail for want of time, nor keep the caller: all of it together has so long behind the
 * put's deadline. What is not answered by then is the keeper's. */
static inline uint64_t tarn_put_grace(const struct tarn_put *p)
{
    return p->deadline_ns + TARN_PUT_GRACE_NS;
}

#endif
