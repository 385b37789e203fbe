/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a node share. node.c puts it together. Threads and what each runs:
 *   control thread           node->host.loop: store, sessions, control connections, scrub, admin, this struct
 *   directory thread         directory_thread.c: takes requests and posts results back
 *   transports' I/O threads  reach the store through its guard only
 *   populate thread          touches the pools' memory once and ends
 * The directory thread, the directory and the transports have locks: docs/architecture.md.
 */
#ifndef TARN_SERVER_PARTS_H
#define TARN_SERVER_PARTS_H

#include "server/directory/directory_thread.h"
#include "server/directory/presence_state.h"
#include "server/options.h"
#include "server/store/store.h"
#include "transport/host/host.h"

#define TARN_LATENCY_BUCKETS 32

struct tarn_scrub;
struct tarn_recheck;
struct tarn_admin;
struct tarn_pending;
struct tarn_lent_name;
struct tarn_populate;
struct tarn_private_redis;

enum tarn_node_state {
    TARN_NODE_READY,
    TARN_NODE_DRAINING,    /* no new reservations; existing ones may still be committed */
    TARN_NODE_WITHDRAWING, /* no commits either */
};

struct tarn_node_stats {
    uint64_t reserved, committed, commit_failed, deleted;
    uint64_t stores;                          /* objects whose bytes came with STORE */
    uint64_t commit_us[TARN_LATENCY_BUCKETS]; /* bucket i: below 2^i microseconds */
};

struct tarn_node {
    const struct tarn_node_config *config;
    struct tarn_logger log;
    char id[TARN_NODE_ID_MAX + 1];
    char unix_dir[108];
    uint64_t epoch, started_ns;
    uint32_t ttl_ms; /* of the node's record */
    enum tarn_node_state state;
    int exit_status;

    struct tarn_host host;
    struct tarn_private_redis *redis;
    struct tarn_directory *directory;
    struct tarn_store *store;
    struct tarn_keep *keep; /* the state directory; NULL: none */
    bool taken_over;        /* it goes on with what the process before has left */
    bool compare_all; /* publishes of the process before may have got no answer: compare with the directory */
    bool pages_failed;
    uint64_t tick_base_ns; /* with `keep` */
    bool keeps;            /* it ends, and leaves its objects for the next start */
    struct tarn_populate *populate;
    struct tarn_directory_thread *directory_thread;
    struct tarn_scrub *scrub;
    struct tarn_recheck *recheck;
    struct tarn_admin *admin;
    struct tarn_watch *tick, *heartbeat;
    struct tarn_pending *pending; /* COMMIT, DELETE and SETTLED that wait for the directory */
    struct tarn_lent_name *names; /* of clients' leases (control/names.h) */
    uint32_t nnames;
    struct tarn_watch *expiry; /* of their deadlines; runs while `pending` has any */

    struct tarn_node_record record; /* the directory thread reads it during a beat: do not write it then */
    struct tarn_pool_record pools[TARN_POOLS_MAX];
    struct tarn_request beat, leave;
    bool beating, beat_again, withdrawn, leaving;
    uint64_t beat_sent_ns, beat_at_ns; /* last beat sent; next beat due, 0: at the heartbeat */
    struct tarn_presence presence;
    uint32_t unsettled; /* pending commands that the directory thread has, abandoned ones too */
    uint64_t drain_cursor, drain_deadline_ns;
    uint64_t keep_until_ns; /* with `keeps`: commits under way are waited for; 0: puts in flight are */
    struct tarn_node_stats stats;
    void (*ready)(struct tarn_node *n);       /* called once, when a beat has confirmed the record */
    void (*drain)(struct tarn_node *n);       /* starts the drain */
    void (*drain_check)(struct tarn_node *n); /* a reservation or commit has ended: a drain may continue */
};

/* The secret that control connections must show: the operator's, or the one the node has made. NULL: none. */
static inline const char *tarn_node_secret(const struct tarn_node *n)
{
    const char *made = n->record.secret[0] ? n->record.secret : NULL;
    return n->config->secret ? n->config->secret : made;
}

#endif
