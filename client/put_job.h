/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a put, and of a layer-wise session. Items go through in chunks, which overlap:
 *
 *   RESERVE(0)  RESERVE(1)  write(0)  COMMIT(0)  RESERVE(2)  write(1)  COMMIT(1)  RESERVE(3)  write(2)
 *   [COMMIT(0) answered]  COMMIT(2) ...
 *
 * While chunk k is written, chunks k-2 and k-1 are published and chunk k+1 has its room. (With replicas,
 * COMMIT is for the first copies; the others follow after its answer.) Each node has three control
 * connections, one for RESERVE and two for COMMIT. Two chunks with a key in common are not committed at once.
 *
 * A put of one small object to the only node that may take it sends STORE behind RESERVE, with the bytes: the
 * node writes and commits. So it takes one round trip in place of two. Where there are other nodes to turn to
 * it does not: it could not tell whether a silent node has published.
 *
 * Life of a target (one copy of one object):
 *   WANTED --sent--> ASKED --granted--> RESERVED --written--> WRITTEN --sent--> COMMITTING --> STORED
 * and from any of these to LOST; then its reservation is ABORTed. All items and copies of a chunk carry one
 * version, so a chunk has no key twice.
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
#define TARN_CHUNK_FEW 16
#define TARN_PUT_TURNS 2              /* chunks are committed at once */
#define TARN_CHUNK_BYTES (8ull << 20) /* at first, and at least */
#define TARN_CHUNK_NS 500000          /* writing a chunk should take as long as RESERVE and COMMIT */
#define TARN_CHUNK_LAST (2ull << 20)  /* the least of the last chunks */
#define TARN_SMALL_BYTES 16384        /* STORE takes at most so many */
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
    bool granted; /* (pool, slot, gen) is reserved until COMMIT or ABORT */
    uint32_t pool, slot;
    uint64_t offset, gen;
    uint64_t term;           /* of the session in which it is reserved */
    uint64_t tried;          /* as in struct tarn_choice */
    struct tarn_way way;     /* the last one posted to */
    bool held;               /* its node answered BUSY or AGAIN to COMMIT; job->held says why */
    bool misfit;             /* the pieces had more bytes than there is room for */
    struct tarn_piece *made; /* of the pages that are written; NULL: not needed so far */
    struct tarn_transfer x;
    struct tarn_reason refusal; /* x.why */
};

/* Where it can be read once it is stored. */
static inline struct tarn_loc tarn_target_loc(const struct tarn_target *t)
{
    return (struct tarn_loc){t->node, t->offset, t->gen + 1, t->pool, t->slot};
}

struct tarn_put_job {
    size_t index;  /* of the item */
    uint64_t hash; /* of its key */
    bool again;    /* failed, but worth another try in a later chunk */
    bool busy;     /* ... any number of tries: the session may reserve no more yet, or a side is awaited */
    struct tarn_reason failure;  /* code 0: under way or stored */
    struct tarn_reason held;     /* why COMMIT is sent again: BUSY or AGAIN */
    struct tarn_target *targets; /* put.replicas of them */
    struct tarn_peer_node *refused[TARN_REFUSALS_MAX];
    uint32_t nrefused;
};

struct tarn_chunk {
    struct tarn_put_job *jobs;
    struct tarn_target *targets;
    uint32_t n, replicas;
    uint32_t turn; /* which connection COMMITs it */
    bool repeats;  /* has a key of the chunk before it, which must be stored first */
    uint64_t version, bytes;
};

/* The last item of a chain that the node has or has reserved. The next item for that node continues it. */
struct tarn_put_chain {
    enum { TARN_CHAIN_NONE, TARN_CHAIN_KEY, TARN_CHAIN_GRANT } by;
    size_t index; /* of the item */
    uint32_t pool, slot;
    uint64_t gen; /* GRANT: its reservation */
};

/* A node's part in a put. */
struct tarn_put_node {
    struct tarn_peer_node *node;
    struct tarn_put_chain chain;
    struct tarn_control_conn *reserve, *commit[TARN_PUT_TURNS];
    bool reserving, committing[TARN_PUT_TURNS]; /* a reply is outstanding */
    bool stores;                                /* STORE was sent behind RESERVE */
};

struct tarn_put {
    struct tarn_client *client;
    struct tarn_item *items;
    size_t n;
    uint32_t flags, ttl_ms, replicas;
    const struct tarn_key *continues;  /* by the first item of a chain; NULL: none */
    char pool[TARN_POOL_NAME_MAX + 1]; /* "*": the node chooses */
    bool fixed;                        /* the caller named a node */
    bool small;                        /* STORE may take it, if the node does */
    bool spins;                        /* it waits for replies without sleeping at first */
    uint64_t deadline_ns;
    struct tarn_cancel *cancel; /* NULL: none */
    struct tarn_verdict verdict;
    uint64_t chunk_bytes; /* at most, of the next chunk */
    /* Items are divided into chunks of so many, or more: small ones where client, node and Redis have
     * processors of their own; elsewhere these only cost more. */
    uint32_t few;

    struct tarn_candidate *candidates, *scratch;
    uint32_t ncandidates;
    struct tarn_put_node *nodes;
    uint32_t nnodes;
    struct tarn_flight flight;
    struct tarn_seen seen;
};

/* The deadline for giving back, a little behind the put's. The keeper repeats what is not answered by then.
 */
static inline uint64_t tarn_put_grace(const struct tarn_put *p)
{
    return p->deadline_ns + TARN_PUT_GRACE_NS;
}

#endif
