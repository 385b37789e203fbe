/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make soak: clients put, replace, remove and get the same keys while nodes, clients, Redis and the network
 * between them fail at random. Afterwards the checker checks the clients' histories.
 *
 *   plan.c         chooses the faults and their times from the seed alone
 *   soak_world.c   processes and connections; begins and ends faults
 *   soak_client.c  a client, in its own process
 *   soak_memory.c  memory for values: on the host or a GPU
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
    SOAK_ROOMS = 8, /* values that a client has room for */
    SOAK_FAULTS_MAX = 8192,
};

struct soak_options {
    uint64_t seed;
    uint32_t seconds;
    const char *transport; /* shm, cuda_ipc, tcp or rdma */
    uint32_t copies;
    uint32_t heartbeat_ms; /* of the nodes; 500 is enough unless the machine is very slow */
    const char *only;      /* names of the faults to choose from, separated by commas; NULL: all */
    bool keeps;            /* keep the logs */
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
    uint32_t client, node;   /* if the kind concerns a client or node */
    uint32_t amount;         /* delay in ms, loss in percent */
    bool has_begun, has_ended;
};

const char *soak_fault_name(enum soak_fault_kind k);
/* True: clients reach nodes by Unix sockets, without a relay. False: as if they were on other hosts. */
bool soak_is_local(const char *transport);
/* True: the nodes' pools and some values of clients are in GPU memory. */
bool soak_is_gpu(const char *transport);
/* Writes the faults of a run, sorted by begin. Returns their number. */
size_t soak_plan(const struct soak_options *o, struct soak_fault *faults);

/* --- the world ---------------------------------------------------------------------------------- */

struct soak_world;

/* Starts everything except the clients. `program` is this program. */
struct soak_world *soak_world_start(const struct soak_options *o, const char *program,
                                    struct history_log *log, const char *log_dir);
void soak_world_start_clients(struct soak_world *w);
/* Keeps the logs of processes if the run did not pass. */
void soak_world_stop(struct soak_world *w, bool passed);
void soak_fault_begin(struct soak_world *w, const struct soak_fault *f);
void soak_fault_end(struct soak_world *w, const struct soak_fault *f);
/* Restarts processes that have ended and should run. */
void soak_world_tend(struct soak_world *w);
/* Do all nodes run, and are they in the directory? */
bool soak_world_is_whole(struct soak_world *w);
/* Waits for the clients to end, and kills those that are late. True: all ended in time. */
bool soak_world_end_clients(struct soak_world *w, uint32_t timeout_ms);
/* Number of processes that ended by a signal that the soak did not send, or with a sanitizer's report. */
uint32_t soak_world_crashes(const struct soak_world *w);
const char *soak_world_redis(const struct soak_world *w);
/* A figure (objects, bytes in use, bytes reserved) summed over all nodes. -1: a node does not answer. */
long long soak_world_held(struct soak_world *w, const char *figure);
/* Records of objects in Redis. */
long long soak_world_records(struct soak_world *w);

/* --- clients ------------------------------------------------------------------------------------ */

/* In <log folder>/control, which all clients map. */
struct soak_control {
    atomic_bool stops;
};

struct soak_control *soak_control_map(const char *log_dir);
void soak_log_path(char *out, size_t bytes, const char *log_dir, uint32_t client);
/* Number of records that a client's log has room for. */
size_t soak_log_room(uint32_t seconds);
size_t soak_value_bytes(uint32_t key);
/* Runs "client LOG_DIR NUMBER REDIS TRANSPORT COPIES SECONDS [FROM=TO]...". Returns the exit status. */
int soak_client(int argc, char **argv);

/* Number of this machine's GPUs that a soak uses. 0: none; tarn_last_error() says why. */
int soak_gpus(void);
/* The device to access a GPU's memory; opened once. NULL (host memory) for -1. */
struct device;
struct device *soak_gpu(int ordinal);

/* Room for one value, in host memory (device NULL) or a GPU's: tests/device.h. */
struct soak_room {
    struct device *device;
    void *addr;
};
/* Call once before soak_room(). gpu: some rooms are in this GPU's memory; -1: none. */
void soak_rooms_open(int gpu);
/* Room number i (of SOAK_ROOMS), at random in host or GPU memory. */
struct soak_room soak_room(uint32_t i);

struct tarn_client;
/* Single operations. They write their records and return the status. */
int soak_put(struct history_log *l, struct tarn_client *c, uint32_t key, enum history_kind kind,
             uint32_t copies, uint32_t deadline_ms);
int soak_remove(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t deadline_ms);
/* Gets n keys: key, key + 1, ... */
int soak_get(struct history_log *l, struct tarn_client *c, uint32_t key, uint32_t n, uint32_t deadline_ms);

/* --- the end ------------------------------------------------------------------------------------ */

struct soak_rest {
    uint32_t keys;                               /* keys that could not be removed */
    long long objects, bytes, reserved, records; /* leftovers */
    uint32_t took_ms;
};

void soak_end(struct soak_world *w, struct history_log *log, struct soak_rest *r);

#endif
