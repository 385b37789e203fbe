/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of tarn-bench. A *row* is one line of the table. It has a load: a number of objects of one size,
 * moved one or several at a time. *Contestants* carry out the load in turn, slice by slice, in one process:
 *
 *   ours, limit, peer, ours, limit, peer, ...
 *
 * A slice is one pass over the load's distinct objects. So the bytes of every operation can be verified
 * afterwards, outside the timed part. A row's ratio is the median of the ratios of its rounds, because a
 * disturbance of the machine affects all contestants of a round alike. A row ends when that median has
 * settled or its time is up.
 *
 *   bench.c        options, groups            bench_load.c   memory, patterns
 *   bench_run.c    the rounds                 bench_stats.c  percentiles, medians
 *   bench_tarn.c   our contestants            bench_peers.c  Redis, memcached
 *   bench_loop.c   the bare socket loop       bench_nodes.c  child processes
 *   bench_print.c  table, JSON                bench_replay.c `tarn-bench replay`
 *   bench_trace.c  traces of requests         bench_policies.c `tarn-bench policies`
 *   bench_verbs.c  RDMA devices               bench_perftest.c   ib_read_bw, ib_write_bw, ib_read_lat
 *   bench_bare.h   the bare CUDA calls        bench_gpu_memory.c loads in GPU memory
 *   bench_gpu_copy.c   contestants that make these calls
 *   bench_ring.h       producers of command rings, which run on a GPU
 *   bench_ring_gets.h  what they ask a proxy for
 *   bench_writes.h     the two ranks of `tarn-bench ring --peer`
 *   bench_peer.h       the two processes of `tarn-bench peer`
 *   bench_memcpy.c the limit of shared memory
 *   bench_shm.c, bench_put.c, bench_tcp.c, bench_rdma.c, bench_gpu.c, bench_peer.c,
 *   bench_lookup.c, bench_alloc.c, bench_idle.c, bench_rows.c, bench_ring.c   the groups
 */
#ifndef TARN_CLIENT_BENCH_H
#define TARN_CLIENT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>
#include <tarn/tarn.h>

#include "base/error.h"
#include "base/option/option.h"
#include "client/bench/bench_bare.h"

/* --- statistics (bench_stats.c) ----------------------------------------------------------------- */

/*
 * Histogram of latencies in nanoseconds with log-linear steps: exact below 256, then 128 steps for each power
 * of two. So a percentile is at most 0.4 % off. Adding never allocates.
 */
#define BENCH_HIST_STEPS 128
#define BENCH_HIST_BUCKETS (58 * BENCH_HIST_STEPS)

struct bench_hist {
    uint64_t count;
    uint64_t bucket[BENCH_HIST_BUCKETS];
};

void bench_hist_clear(struct bench_hist *h);
void bench_hist_add(struct bench_hist *h, uint64_t ns);
void bench_hist_merge(struct bench_hist *to, const struct bench_hist *from);
/* The latency in microseconds that a fraction `quantile` (0..1) of the samples does not exceed; 0 without
 * samples. */
double bench_hist_us(const struct bench_hist *h, double quantile);

#define BENCH_ROUNDS_MAX 400

/* One figure for each round. */
struct bench_series {
    size_t n;
    double value[BENCH_ROUNDS_MAX];
};

void bench_series_add(struct bench_series *s, double value);
/* 0 without values. */
double bench_median(const struct bench_series *s);
/* a[i] / b[i], leaving out rounds in which b is 0. */
void bench_ratios(const struct bench_series *a, const struct bench_series *b, struct bench_series *out);
/* a[i] - b[i]. */
void bench_differences(const struct bench_series *a, const struct bench_series *b, struct bench_series *out);
/* Is the median's standard error (from the order statistics around it) below `part` of the median? */
bool bench_settled(const struct bench_series *s, double part);

/* --- child processes (bench_nodes.c) ------------------------------------------------------------ */

struct bench_child {
    pid_t pid; /* 0: not running */
    char name[32];
};

/* The environment of rows: a temporary folder and processes. */
struct bench_env {
    char dir[128];
    struct bench_child directory, node, redis, memcached;
    char directory_uri[192];             /* URI of the node's Redis */
    char directory_address[192];         /* the same in the form of base/net.h */
    char redis_unix[192], redis_tcp[64]; /* addresses of the peer, in the form of base/net.h */
    uint16_t memcached_port;             /* 0: memcached does not run */
    bool quick;
    double seconds; /* approximate limit for a row */
    const char *json_dir;
    const char *devices, *node_devices; /* RDMA devices of clients and of the node; NULL: all */
    const char *transport;              /* of the group `peer` and of ring --peer; NULL: all */
    const char *listen, *peer; /* of `ring` between two hosts; peer NULL: this is rank 1, or neither */
};

int bench_env_open(struct bench_env *e);
/* Ends the children by pid and removes the folder. */
void bench_env_close(struct bench_env *e);

/* Starts the Redis of the directory if it does not run. */
int bench_start_directory(struct bench_env *e);
/* Starts or restarts a node with one pool (as in tarnd's --pool) that evicts only when full. The first call
 * also starts the directory's Redis. */
int bench_start_node(struct bench_env *e, const char *pool);
/* The same with a second pool. */
int bench_start_node_with(struct bench_env *e, const char *pool, const char *second);
int bench_start_peers(struct bench_env *e);
/* out_p: read end of a pipe with the child's standard output; NULL: output goes to the log. */
int bench_start_child(const struct bench_env *e, struct bench_child *c, const char *name,
                      const char *const *argv, int *out_p);
void bench_stop_child(struct bench_child *c);
/* A TCP port that is free at the moment. */
int bench_free_port(uint16_t *port);

/* The path of one of our programs: in $TARN_BUILD, otherwise in this program's folder. */
int bench_program(const char *name, char *path, size_t path_bytes);
/* Runs a program to its end. Keeps up to out_bytes - 1 bytes of its standard output. */
int bench_output_of(const char *const *argv, char *out, size_t out_bytes);

/* CPU seconds that a process has used; 0 if it has ended. */
double bench_cpu_s(pid_t pid);

/* Opens a client with the environment's directory and only these transports. */
int bench_client(const struct bench_env *e, const char *transports, struct tarn_client **c_p);

/* Set by SIGINT and SIGTERM; rows then end with CANCELED. */
bool bench_interrupted(void);

/* Sends or receives all bytes of the vector, which it changes, by a bare socket (bench_loop.c). */
struct iovec;
int bench_transfer(int fd, struct iovec *v, size_t n, bool out);
void bench_catch_signals(void);

/* --- loads (bench_load.c) ----------------------------------------------------------------------- */

/*
 * The caller's side of a row: `ops` operations of `depth` objects each, spread over `threads`. Each thread
 * has one more operation to warm up: number ops + thread. Object i of operation o has number o * depth + i.
 * The bytes of an object are in `npieces` pieces: one buffer, or pages scattered over all the memory.
 */
struct bench_load {
    uint64_t bytes; /* of an object */
    uint32_t npieces, depth, threads;
    size_t ops, objects;
    char *memory;
    uint64_t memory_bytes;
    struct tarn_piece *pieces;  /* objects * npieces */
    uint32_t arrays;            /* 0: pieces lie anywhere; else objects have pages of so many arrays, and: */
    struct tarn_layout *layout; /* of the arrays */
    uint32_t *pages;            /* objects * npieces / arrays page numbers */
    bool borrowed;              /* the memory is the caller's */
    uint64_t seed;              /* seed of the expected content */
    struct bench_gpu_memory *gpu; /* NULL: host memory, filled and checked by the CPU */
};

/* Where a load's memory is: on a GPU, or pinned on the host. The GPU fills and checks it. */
struct bench_site {
    int device;
    struct bench_bare *bare; /* of the device */
    bool pinned;
};

/* npieces 1: objects are contiguous. */
int bench_load_new(uint64_t bytes, uint32_t npieces, uint32_t depth, uint32_t threads, size_t ops,
                   struct bench_load **l_p);
/* The same in the memory of a site. Pieces are multiples of 8 bytes. */
int bench_load_new_at(const struct bench_site *site, uint64_t bytes, uint32_t npieces, uint32_t depth,
                      uint32_t threads, size_t ops, struct bench_load **l_p);
/* The same with pages of so many arrays, for one thread. npieces: a multiple of it. */
int bench_load_new_paged(const struct bench_site *site, uint64_t bytes, uint32_t npieces, uint32_t arrays,
                         uint32_t depth, size_t ops, struct bench_load **l_p);
/* The same in memory of the caller, for one thread: (ops + 1) * depth * bytes bytes. */
int bench_load_new_over(char *memory, uint64_t bytes, uint32_t npieces, uint32_t depth, size_t ops,
                        struct bench_load **l_p);
void bench_load_free(struct bench_load *l);
static inline const struct tarn_piece *bench_load_pieces(const struct bench_load *l, size_t object)
{
    return l->pieces + object * l->npieces;
}

/* The number of operations in a pass: enough for a good measurement in a short time. */
size_t bench_load_ops(uint64_t bytes, uint32_t depth, uint32_t threads);

/* Overwrites everything with bytes that occur in no pattern. */
void bench_load_poison(struct bench_load *l);
/* Gives every object the pattern of (seed, object). */
void bench_load_fill(struct bench_load *l, uint64_t seed);
/* INVALID if a byte is wrong. The error names the place of the first one. */
int bench_load_check(const struct bench_load *l);
/* The same for the first objects only. */
int bench_load_check_first(const struct bench_load *l, size_t objects);
/* The same for the bytes of one object in other memory. */
int bench_check(const void *data, uint64_t bytes, uint64_t seed, size_t object);

/* Writes bytes [offset, offset + bytes) of an object's pattern. The offset is a multiple of 8. */
void bench_pattern_fill(void *data, uint64_t bytes, uint64_t seed, uint64_t offset);
/* Offset of the first wrong byte; UINT64_MAX if all are right. */
uint64_t bench_pattern_check(const void *data, uint64_t bytes, uint64_t seed, uint64_t offset);

/* Maps memory (shared memory of a memfd, or private) and touches all pages. */
int bench_map(uint64_t bytes, bool shared, char **memory_p);

/* --- GPU memory of loads (bench_gpu_memory.c) --------------------------------------------------- */

struct bench_gpu_memory;
int bench_gpu_memory_new(const struct bench_site *site, uint64_t bytes, struct bench_gpu_memory **g_p,
                         char **memory_p);
void bench_gpu_memory_free(struct bench_gpu_memory *g);
/* Records the load's pieces. */
int bench_gpu_memory_cut(struct bench_load *l);
/* The next check reports failures of poison and fill. */
void bench_gpu_memory_poison(struct bench_load *l);
void bench_gpu_memory_fill(struct bench_load *l);
int bench_gpu_memory_check(const struct bench_load *l, size_t objects);
/* Tests the check itself: it must detect wrong bytes in the site's memory. */
int bench_gpu_memory_prove(const struct bench_site *site);

/* --- contestants (bench_run.c) ------------------------------------------------------------------ */

enum bench_role {
    BENCH_OURS,
    BENCH_LIMIT,     /* the best that the machine can do; of several limits the fastest counts */
    BENCH_PEER,      /* an alternative to tarn; may be missing */
    BENCH_REFERENCE, /* ours with another load, for comparison */
};

/* Calls return 0 or a negative TARN_E_*. All but op (or slice) may be NULL. Only op is timed. */
struct bench_ops {
    int (*begin)(void *arg, uint64_t round);                        /* before a slice */
    int (*op)(void *arg, uint32_t thread, size_t i);                /* operation i of the load */
    int (*after)(void *arg, uint32_t thread, size_t i);             /* after op: verifies and frees */
    int (*end)(void *arg);                                          /* after a slice: verifies */
    int (*slice)(void *arg, double *items_s, struct bench_hist *h); /* used instead of op; measures the
                                                                     * time itself */
    void (*close)(void *arg);
};

struct bench_contestant {
    char name[64];
    enum bench_role role;
    const struct bench_ops *ops;
    void *arg;
    uint32_t depth, threads; /* the load's */
    size_t nops;
    /* results */
    struct bench_hist latency;
    struct bench_series items_s, p50_us;
    bool dropped; /* a peer that failed */
};

#define BENCH_CONTESTANTS_MAX 8

struct bench_row {
    char bench[32], note[64];
    uint64_t bytes;
    bool moves_nothing; /* a view: a rate in bytes would be meaningless */
    uint32_t pieces, threads, depth;
    struct bench_contestant *contestants[BENCH_CONTESTANTS_MAX];
    size_t n;
    double node_cpu_s, wall_s;
    double post_us;   /* median time until a submitted transfer is accepted; 0: nothing is submitted */
    json_t *figures;  /* more fields of the row */
    char target[256]; /* "" if the row has none */
    bool met;
    char error[TARN_SENTENCE]; /* why the row or a peer could not be measured; "" if it was measured */
};

struct bench_row *bench_row_new(const char *bench, const char *note, uint64_t bytes);
void bench_row_free(struct bench_row *r);
/* Adds a contestant. arg is closed with the row, or by this call on failure. The load gives depth, threads
 * and number of operations (NULL: one operation). */
int bench_row_add(struct bench_row *r, enum bench_role role, const char *name, const struct bench_ops *ops,
                  void *arg, const struct bench_load *l);
/* The timed part of a contestant's slice, for one that runs another. */
int bench_slice_timed(struct bench_contestant *c, struct bench_hist *h, double *items_s);
/* Runs the rounds. */
int bench_row_measure(const struct bench_env *e, struct bench_row *r);

struct bench_contestant *bench_row_find(const struct bench_row *r, enum bench_role role);
struct bench_contestant *bench_row_named(const struct bench_row *r, const char *name);
/* The limit with the highest median rate; NULL if there is none. */
struct bench_contestant *bench_row_limit(const struct bench_row *r);
/* Medians over the rounds: our rate / theirs; our p50 / theirs; our p50 - theirs. */
double bench_rate_ratio(const struct bench_row *r, const struct bench_contestant *other);
double bench_p50_ratio(const struct bench_row *r, const struct bench_contestant *other);
double bench_p50_extra_us(const struct bench_row *r, const struct bench_contestant *other);

void bench_row_figure(struct bench_row *r, const char *name, double value);
/* Records in the row the target and whether it was met. */
void bench_at_least(struct bench_row *r, const char *what, double measured, double bound);
void bench_at_most(struct bench_row *r, const char *what, double measured, double bound);

/* --- our contestants (bench_tarn.c) ------------------------------------------------------------- */

/*
 * Objects "<name>/<number>" of a load. `c` puts them. They are verified through views of `viewer`, a client
 * with shm. If `viewer` is NULL, `c` gets them back into the load. For gets they exist all the time. For puts
 * they exist from their operation to the end of its slice.
 */
struct bench_objects;
int bench_objects_new(struct tarn_client *c, struct tarn_client *viewer, const char *name,
                      struct bench_load *l, struct bench_objects **o_p);
void bench_objects_free(struct bench_objects *o);
/* Sets where later puts place objects, as in tarn_put_options. */
void bench_objects_place(struct bench_objects *o, const char *place);
/* Puts all objects (with the load's pattern) and keeps their descriptors. */
int bench_objects_put(struct bench_objects *o);
/* Removes the objects that exist. */
void bench_objects_remove(struct bench_objects *o);
/* Makes the node touch every page of BENCH_POOL once, so that no row includes that cost. */
#define BENCH_POOL "cpu0:bytes=1G"
#define BENCH_POOL_BYTES (1ull << 30)
int bench_warm_pool(struct tarn_client *c, struct tarn_client *viewer);
/* The addresses of the objects in the pool. Views hold them until the objects are freed. */
int bench_objects_views(struct bench_objects *o, const void ***addrs_p);

extern const struct bench_ops bench_get_ops; /* arg: struct bench_objects, which is not closed */
extern const struct bench_ops bench_put_ops;
extern const struct bench_ops bench_view_ops;
/* Gets submitted one by one, with `depth` of them in flight. */
extern const struct bench_ops bench_get_window_ops;
/* The data phase of puts. Each thread writes its objects into its own put session. The session begins before
 * the slice and is committed after it. */
extern const struct bench_ops bench_put_write_ops;

/* --- peers (bench_peers.c) ---------------------------------------------------------------------- */

/* Adds Redis over its Unix socket or TCP, and memcached likewise if it is built in and installed. */
int bench_add_peers(const struct bench_env *e, struct bench_row *r, bool put, bool tcp, struct bench_load *l);

/* --- memcpy (bench_memcpy.c) -------------------------------------------------------------------- */

/* Adds memcpy as a limit: from those addresses into the load, or, where from is NULL, from the load into a
 * mapping of a memfd. */
int bench_add_memcpy(struct bench_row *r, struct bench_load *l, const void **from);

/* --- the bare socket loop (bench_loop.c) -------------------------------------------------------- */

/* Starts the other process of the loop. The caller must have only one thread. */
int bench_start_loop(uint16_t *port, pid_t *pid_p);
void bench_stop_loop(pid_t pid);
/* Adds the loop as four limits: by TCP with default, small and large socket buffers, and by a Unix socket.
 * The fastest counts. Gets bring what the load has at this call. */
int bench_add_loops(struct bench_row *r, uint16_t port, bool put, struct bench_load *l);

/* --- bare CUDA calls (bench_gpu_copy.c) --------------------------------------------------------- */

enum bench_copies_by {
    BENCH_WHOLE,  /* one cudaMemcpyAsync for all objects of an operation; `near` is contiguous */
    BENCH_GATHER, /* one launch of a plain kernel */
    BENCH_EACH,   /* one cudaMemcpyAsync for each piece */
    BENCH_BATCH,  /* one cudaMemcpyBatchAsync */
};

/*
 * Adds copies between `far` and the pieces of `near`, in a stream of `bare`. In `far` the objects are
 * contiguous. Each operation waits for its copies. With EACH and BATCH a slice is only the first operation,
 * because they are slow. The row closes none of the arguments.
 */
int bench_add_copies(struct bench_row *r, enum bench_role role, const char *name, enum bench_copies_by by,
                     struct bench_bare *bare, bool put, struct bench_load *near, struct bench_load *far);

/* --- RDMA devices (bench_verbs.c) --------------------------------------------------------------- */

#define BENCH_RAILS_MAX 8

/* A rail as the client sees it. Fields with node_ describe the node's end. */
struct bench_rail {
    char device[64], node_device[64], firmware[64], gid[48], link[16];
    uint8_t port, node_port, gid_index, node_gid_index;
    bool roce;
    uint32_t mtu, speed, max_sge; /* bytes, Mbit/s */
};

struct bench_rails {
    uint32_t n;
    struct bench_rail rail[BENCH_RAILS_MAX];
};

/* Finds the rails that the environment's client and node use. UNAVAILABLE if there are none. */
int bench_rails_find(const struct bench_env *e, struct bench_rails *r);
/* Opens a client that uses only rdma, over the first `rails` of these rails. */
int bench_rdma_client(const struct bench_env *e, const struct bench_rails *r, uint32_t rails,
                      struct tarn_client **c_p);

/* Counts of a client's calls of the verbs library. */
struct bench_calls {
    uint64_t posts, requests; /* calls of ibv_post_send, and the work requests in them */
    uint64_t writes;          /* RDMA WRITEs among them; a get writes only touches */
    uint64_t post_ns;         /* time spent in them */
    uint64_t polls, empty;    /* calls of ibv_poll_cq, and how many found nothing */
    uint64_t completions, arms;
};
/* Starts counting, for this client and all clients that this process opens later. */
void bench_calls_count(struct tarn_client *c);
void bench_calls_read(struct bench_calls *calls);

/* --- perftest (bench_perftest.c) ---------------------------------------------------------------- */

enum bench_perftest { BENCH_READ_BW, BENCH_WRITE_BW, BENCH_READ_LAT, BENCH_WRITE_LAT };

/* Adds the tool as a limit, over the same rail and with the same depth. If the tool is not on PATH, the row
 * says so. */
int bench_add_perftest(const struct bench_env *e, struct bench_row *r, enum bench_perftest tool,
                       const struct bench_rail *rail, uint64_t bytes, uint32_t depth);

/* --- output (bench_print.c) --------------------------------------------------------------------- */

struct bench_report;
/* Prints the group's heading. */
int bench_report_new(const struct bench_env *e, const char *group, struct bench_report **rep_p);
/* Prints the row, keeps it as JSON, and frees it. `code` is the result of the measurement. Returns CANCELED
 * if `code` is CANCELED; otherwise 0, so that the group continues. */
int bench_report_row(struct bench_report *rep, struct bench_row *r, int code);
/* Writes DIR/<group>.json and counts the rows that failed or missed their target. */
int bench_report_close(struct bench_report *rep, int *failed, int *missed);
/* Writes JSON (figures with five digits) to a file. Replaces the file atomically. */
int bench_write_json(const json_t *j, const char *path);
json_t *bench_machine(void);
json_t *bench_latency_json(const struct bench_hist *h);

/* --- groups ------------------------------------------------------------------------------------- */

/* A group returns an error only if it could not continue. */
int bench_group_shm(struct bench_env *e, struct bench_report *rep);
int bench_group_put(struct bench_env *e, struct bench_report *rep);
int bench_group_tcp(struct bench_env *e, struct bench_report *rep);
int bench_group_rdma(struct bench_env *e, struct bench_report *rep);
int bench_group_rails(struct bench_env *e, struct bench_report *rep);
int bench_group_gpu(struct bench_env *e, struct bench_report *rep);
int bench_group_rows(struct bench_env *e, struct bench_report *rep);
int bench_group_ring(struct bench_env *e, struct bench_report *rep);
/* `ring` between two hosts (bench_writes.h): rank 0's rows; rank 1, which serves one rank 0 to its end. */
int bench_writes_rows(struct bench_env *e, struct bench_report *rep);
int bench_writes_serve(struct bench_env *e);
int bench_group_peer(struct bench_env *e, struct bench_report *rep);
int bench_group_lookup(struct bench_env *e, struct bench_report *rep);
int bench_group_alloc(struct bench_env *e, struct bench_report *rep);
int bench_group_idle(struct bench_env *e, struct bench_report *rep);

/* --- traces of prefix-block requests --------------------------------------------------------------- */

/*
 * A line of a trace is a request: {"timestamp": MS, "hash_ids": [...], ...}. Each block has an id. Ids are
 * chained: equal ids have equal prefixes.
 */
struct bench_trace {
    const char *path;
    FILE *file;
    uint64_t requests; /* read so far */
    double ms;         /* of the request: its time, and its blocks */
    uint64_t *ids;
    size_t n, room;
};

/* path NULL: CONFIG, since --trace is missing. */
int bench_trace_open(struct bench_trace *t, const char *path);
/* Reads a request; *more is false after the last one. FORMAT: a line that is no request. NO_MEMORY. */
int bench_trace_next(struct bench_trace *t, bool *more);
void bench_trace_close(struct bench_trace *t);

/*
 * A subcommand with options of its own: parses them into *config, shows help when *help is set by that, else
 * calls run(). Returns the exit status: 2 when an option is wrong.
 */
int bench_program_main(const struct tarn_program *p, int argc, char **argv, void *config, const bool *help,
                       int (*run)(const void *config));
/* Runs `tarn-bench replay ...`, `tarn-bench policies ...`. Returns the exit status. */
int bench_replay_main(int argc, char **argv);
int bench_policies_main(int argc, char **argv);

#endif
