/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make soak: clients put, replace, remove and get the same keys while nodes, clients, Redis and the network
 * between them fail at random; then the checker looks at what they saw.
 *
 *   plan.c         which fault when: from the seed, nothing else
 *   soak_world.c   processes and links, and how a fault begins and ends
 *   soak_client.c  what a client does, in a process of its own
 *   soak_memory.c  where its values lie: in host memory or a GPU's
 *   soak_end.c     after the last fault: are all keys removed, is all memory free?
 *   soak_main.c    options, the run, the table
 */
#ifndef TARN_TESTS_HISTORY_SOAK_H
#define TARN_TESTS_HISTORY_SOAK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/history/history.h"

enum {
    SOAK_NODES = 3,
    SOAK_WRITERS = 3,
    SOAK_CLIENTS = 6,
    SOAK_DRIVER = 60, /* the driver's number as a client */
    SOAK_KEYS = 48,
    SOAK_VALUE_MAX = 300000,
    SOAK_ROOMS = 8, /* for values, of a client */
    SOAK_FAULTS_MAX = 8192,
};

struct soak_options {
    uint64_t seed;
    uint32_t seconds;
    const char *transport; /* shm, cuda_ipc, tcp or rdma */
    uint32_t copies;
    uint32_t heartbeat_ms; /* of the nodes; 500 does on a machine that is not much too slow */
    const char *only;      /* names of the faults to choose from, with commas between; NULL: all */
    bool keeps;            /* the logs */
    bool refuses;          /* nodes have --when-cut-off=refuse */
};

/* --- faults ------------------------------------------------------------------------------------- */

/* X(name, text, weight) */
#define SOAK_FAULTS(X) \
    X(NODE_STOP, "node-stop", 10) \
    X(NODE_KILL, "node-kill", 6) \
    X(NODE_RESTART, "node-restart", 4) \
    X(CLIENT_STOP, "client-stop", 6) \
    X(CLIENT_KILL, "client-kill", 8) \
    X(REDIS_KILL, "redis-kill", 3) \
    X(REDIS_FLUSH, "redis-flush", 3) \
    X(REDIS_OLD, "redis-old", 3) \
    X(REDIS_STOP, "redis-stop", 4) \
    X(REDIS_PAUSE, "redis-pause", 3) \
    X(REDIS_FULL, "redis-full", 3) \
    X(NODE_REDIS_CUT, "node-redis-cut", 8) \
    X(NODE_REDIS_RESET, "node-redis-reset", 3) \
    X(NODE_REDIS_DELAY, "node-redis-delay", 3) \
    X(NODE_REDIS_LOSS, "node-redis-loss", 3) \
    X(CLIENT_REDIS_CUT, "client-redis-cut", 4) \
    X(CLIENT_REDIS_RESET, "client-redis-reset", 2) \
    X(CLIENT_REDIS_DELAY, "client-redis-delay", 2) \
    X(CLIENT_REDIS_LOSS, "client-redis-loss", 2) \
    X(CLIENT_NODE_CUT, "client-node-cut", 8) \
    X(CLIENT_NODE_RESET, "client-node-reset", 3) \
    X(CLIENT_NODE_DELAY, "client-node-delay", 3) \
    X(CLIENT_NODE_LOSS, "client-node-loss", 3)

enum soak_fault_kind {
#define SOAK_FAULT_ENUM(name_, text_, weight_) SOAK_##name_,
    SOAK_FAULTS(SOAK_FAULT_ENUM)
#undef SOAK_FAULT_ENUM
        SOAK_FAULT_KINDS,
};

struct soak_fault {
    enum soak_fault_kind kind;
    uint32_t from_ms, to_ms; /* since the start */
    uint32_t client, node;   /* as far as the kind has them */
    uint32_t amount;         /* delay in ms, loss in percent */
    bool has_begun, has_ended;
};

const char *soak_fault_name(enum soak_fault_kind k);
/* Do clients reach nodes by their Unix sockets, which no relay sees? Else as if they were on other hosts. */
bool soak_is_local(const char *transport);
/* Are the nodes' pools in GPU memory, and some values of clients? */
bool soak_is_gpu(const char *transport);
/* The faults of a run, by their begin; returns how many. */
size_t soak_plan(const struct soak_options *o, struct soak_fault *faults);

/* --- the world ---------------------------------------------------------------------------------- */

struct soak_world;

/* Starts all but the clients. `program` is this program. */
struct soak_world *soak_world_start(const struct soak_options *o, const char *program,
                                    struct history_log *log, const char *log_dir);
void soak_world_start_clients(struct soak_world *w);
/* Keeps the logs of processes when it did not pass. */
void soak_world_stop(struct soak_world *w, bool passed);
void soak_fault_begin(struct soak_world *w, const struct soak_fault *f);
void soak_fault_end(struct soak_world *w, const struct soak_fault *f);
/* Starts again what ended and is to run. */
void soak_world_tend(struct soak_world *w);
/* Are all nodes there, in the directory, too? */
bool soak_world_is_whole(struct soak_world *w);
/* Has every client ended by itself in this time? Those that did not are killed. */
bool soak_world_end_clients(struct soak_world *w, uint32_t timeout_ms);
/* Processes that ended by a signal that the soak did not send, or with a sanitizer's report. */
uint32_t soak_world_crashes(const struct soak_world *w);
const char *soak_world_redis(const struct soak_world *w);
/* Of all nodes: objects, bytes in use, and bytes reserved. -1: a node does not answer. */
long long soak_world_held(struct soak_world *w, const char *figure);
/* Records of objects in Redis. */
long long soak_world_records(struct soak_world *w);

/* --- clients ------------------------------------------------------------------------------------ */

/* In <log folder>/control, mapped by all. */
struct soak_control {
    atomic_bool stops;
};

struct soak_control *soak_control_map(const char *log_dir);
void soak_log_path(char *out, size_t bytes, const char *log_dir, uint32_t client);
/* Records that the log of one client has room for. */
size_t soak_log_room(uint32_t seconds);
size_t soak_value_bytes(uint32_t key);
/* "client LOG_DIR NUMBER REDIS TRANSPORT COPIES SECONDS [FROM=TO]...": the exit status. */
int soak_client(int argc, char **argv);

/* The GPUs that a soak uses of this machine's; 0: there is none, and tarn_last_error() says why. */
int soak_gpus(void);
/* The way to a GPU's memory, opened once; NULL, the host's: for -1. */
struct device;
struct device *soak_gpu(int ordinal);

/* Room for one value, in host memory (device NULL) or a GPU's: tests/device.h. */
struct soak_room {
    struct device *device;
    void *addr;
};
/* Once, before any is used. gpu: some are in this one's memory; -1: none. */
void soak_rooms_open(int gpu);
/* Number i (of SOAK_ROOMS), in either memory by chance. */
struct soak_room soak_room(uint32_t i);

struct tarn_client;
/* Single operations, with their records. The status. */
int soak_put(struct history_log *l, struct tarn_client *c, uint32_t key, enum history_kind kind,
             uint32_t copies, uint32_t deadline_ms);
int soak_remove(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t deadline_ms);
/* Keys key, key + 1, ..., n of them. */
int soak_get(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t n, uint32_t deadline_ms);

/* --- the end ------------------------------------------------------------------------------------ */

struct soak_rest {
    uint32_t keys;                               /* that could not be removed */
    long long objects, bytes, reserved, records; /* that stayed */
    uint32_t took_ms;
};

void soak_end(struct soak_world *w, struct history_log *log, struct soak_rest *r);

#endif
