/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of tarn-bench. A *row* is one line of the table: a load (a number of objects of one size, some of
 * them at a time) that *contestants* carry out in turn, slice by slice, in one process:
 *
 *   ours, limit, peer, ours, limit, peer, ...
 *
 * A slice is one pass over the load's distinct objects. So the bytes of every operation can be verified
 * afterwards, outside the timed part. Ratios are medians of the ratios of single rounds, because disturbances
 * of the machine hit all contestants of a round alike. A row continues until that median has settled or its
 * time is up.
 *
 *   bench.c        options, groups            bench_load.c   memory, patterns
 *   bench_run.c    the rounds                 bench_stats.c  percentiles, medians
 *   bench_tarn.c   our contestants            bench_peers.c  Redis, memcached
 *   bench_loop.c   the bare socket loop       bench_nodes.c  child processes
 *   bench_print.c  table, JSON                bench_replay.c `tarn-bench replay`
 *   bench_verbs.c  RDMA devices               bench_perftest.c   ib_read_bw and its kin
 *   bench_bare.h   the bare CUDA calls        bench_gpu_memory.c loads in GPU memory
 *   bench_gpu_copy.c   contestants of those calls
 *   bench_shm.c, bench_tcp.c, bench_rdma.c, bench_gpu.c,
 *   bench_lookup.c, bench_alloc.c, bench_idle.c   the groups
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
#include "client/bench/bench_bare.h"

/* --- statistics (bench_stats.c) ----------------------------------------------------------------- */

/*
 * Latencies in nanoseconds in log-linear steps: exact below 256, then 128 steps for each power of two. So
 * a percentile is at most 0.4 % off. Adding never allocates.
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
/* 0 if there are no values. */
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
    uint16_t memcached_port;             /* 0: memcached is not there */
    bool quick;
    double seconds; /* approximate limit for a row */
    const char *json_dir;
    const char *devices, *node_devices; /* RDMA devices of clients and of the node; NULL: all */
};

int bench_env_open(struct bench_env *e);
/* Ends the children by pid and removes the folder. */
void bench_env_close(struct bench_env *e);

/* Starts or restarts a node with one pool, as in tarnd's --pool, that evicts only when full. Before the
 * first node it starts the directory's Redis. */
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

/* The path of one of our programs: in $TARN_BUILD, else beside this one. */
int bench_program(const char *name, char *path, size_t path_bytes);
/* Runs a program to its end. Keeps up to out_bytes - 1 bytes of its standard output. */
int bench_output_of(const char *const *argv, char *out, size_t out_bytes);

/* CPU seconds used by a process so far; 0 if it is gone. */
double bench_cpu_s(pid_t pid);

/* Opens a client of the environment's directory that uses only these transports. */
int bench_client(const struct bench_env *e, const char *transports, struct tarn_client **c_p);

/* Set by SIGINT and SIGTERM; rows then end with CANCELED. */
bool bench_interrupted(void);
void bench_catch_signals(void);

/* --- loads (bench_load.c) ----------------------------------------------------------------------- */

/*
 * The caller's side of a row: `ops` operations of `depth` objects each, spread over `threads`. Each thread
 * has one more operation for warming up, number ops + thread. Object i of operation o has number o * depth
 * + i. Its bytes are in `npieces` pieces: one buffer, or pages scattered over all the memory.
 */
struct bench_load {
    uint64_t bytes; /* of an object */
    uint32_t npieces, depth, threads;
    size_t ops, objects;
    char *memory;
    uint64_t memory_bytes;
    struct tarn_piece *pieces;    /* objects * npieces */
    uint64_t seed;                /* seed of the content it should have now */
    struct bench_gpu_memory *gpu; /* NULL: host memory, filled and checked by the CPU */
};

/* The memory of a load: a GPU's, or pinned host memory. The GPU fills and checks it. */
struct bench_site {
    int device;
    struct bench_bare *bare; /* of the device */
    bool pinned;
};

/* npieces 1: objects are contiguous. */
int bench_load_new(uint64_t bytes, uint32_t npieces, uint32_t depth, uint32_t threads, size_t ops,
                   struct bench_load **l_p);
/* The same in memory of a site. Pieces are multiples of 8 bytes. */
int bench_load_new_at(const struct bench_site *site, uint64_t bytes, uint32_t npieces, uint32_t depth,
                      uint32_t threads, size_t ops, struct bench_load **l_p);
void bench_load_free(struct bench_load *l);
static inline const struct tarn_piece *bench_load_pieces(const struct bench_load *l, size_t object)
{
    return l->pieces + object * l->npieces;
}

/* The number of operations in a pass: enough to time, and not too many to wait for. */
size_t bench_load_ops(uint64_t bytes, uint32_t depth, uint32_t threads);

/* Overwrites everything with bytes that occur in no pattern. */
void bench_load_poison(struct bench_load *l);
/* Gives every object the pattern of (seed, object). */
void bench_load_fill(struct bench_load *l, uint64_t seed);
/* INVALID, with the place of the first wrong byte. */
int bench_load_check(const struct bench_load *l);
/* The same for the first objects only. */
int bench_load_check_first(const struct bench_load *l, size_t objects);
/* The same for one object's bytes in other memory. */
int bench_check(const void *data, uint64_t bytes, uint64_t seed, size_t object);

/* The pattern itself: bytes [offset, offset + bytes) of the object, offset a multiple of 8. */
void bench_pattern_fill(void *data, uint64_t bytes, uint64_t seed, uint64_t offset);
/* Offset of the first wrong byte; UINT64_MAX if all are right. */
uint64_t bench_pattern_check(const void *data, uint64_t bytes, uint64_t seed, uint64_t offset);

/* Maps memory (shared memory of a memfd, or private) and touches all pages. */
int bench_map(uint64_t bytes, bool shared, char **memory_p);

/* --- memory of GPUs (bench_gpu_memory.c), as loads use it --------------------------------------- */

struct bench_gpu_memory;
int bench_gpu_memory_new(const struct bench_site *site, uint64_t bytes, struct bench_gpu_memory **g_p,
                         char **memory_p);
void bench_gpu_memory_free(struct bench_gpu_memory *g);
/* Notes the load's pieces. */
int bench_gpu_memory_cut(struct bench_load *l);
/* The next check returns failures of poison and fill. */
void bench_gpu_memory_poison(struct bench_load *l);
void bench_gpu_memory_fill(struct bench_load *l);
int bench_gpu_memory_check(const struct bench_load *l, size_t objects);
/* Proves that wrong bytes there are found. */
int bench_gpu_memory_prove(const struct bench_site *site);

/* --- contestants (bench_run.c) ------------------------------------------------------------------ */

enum bench_role {
    BENCH_OURS,
    BENCH_LIMIT,     /* the best the machine can do; the best of several counts */
    BENCH_PEER,      /* what a user would otherwise use; may be missing */
    BENCH_REFERENCE, /* ours under another load, for comparison */
};

/* Calls return 0 or a negative TARN_E_*. All but op (or slice) may be NULL. Only op is timed. */
struct bench_ops {
    int (*begin)(void *arg, uint64_t round);                        /* before a slice */
    int (*op)(void *arg, uint32_t thread, size_t i);                /* operation i of the load */
    int (*after)(void *arg, uint32_t thread, size_t i);             /* verifies, and frees what op left */
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
    json_t *figures;  /* more fields of the row */
    char target[256]; /* "" if the row has none */
    bool met;
    char error[TARN_SENTENCE]; /* why the row, or a peer, could not be measured; else "" */
};

struct bench_row *bench_row_new(const char *bench, const char *note, uint64_t bytes);
void bench_row_free(struct bench_row *r);
/* Adds a contestant. arg is closed with the row, or here on failure. Depth, threads and number of
 * operations are the load's (NULL: one operation). */
int bench_row_add(struct bench_row *r, enum bench_role role, const char *name, const struct bench_ops *ops,
                  void *arg, const struct bench_load *l);
/* Runs the rounds. */
int bench_row_measure(const struct bench_env *e, struct bench_row *r);

struct bench_contestant *bench_row_find(const struct bench_row *r, enum bench_role role);
struct bench_contestant *bench_row_named(const struct bench_row *r, const char *name);
/* The limit with the highest median rate; NULL if there is none. */
struct bench_contestant *bench_row_limit(const struct bench_row *r);
/* Medians over the rounds: our rate divided by theirs; our p50 divided by theirs, and minus theirs. */
double bench_rate_ratio(const struct bench_row *r, const struct bench_contestant *other);
double bench_p50_ratio(const struct bench_row *r, const struct bench_contestant *other);
double bench_p50_extra_us(const struct bench_row *r, const struct bench_contestant *other);

void bench_row_figure(struct bench_row *r, const char *name, double value);
/* Notes the target in the row, and whether it was met. */
void bench_at_least(struct bench_row *r, const char *what, double measured, double bound);
void bench_at_most(struct bench_row *r, const char *what, double measured, double bound);

/* --- our contestants (bench_tarn.c) ------------------------------------------------------------- */

/*
 * Objects "<name>/<number>" of a load, put by `c`. They are read through views of `viewer`, a client with
 * shm; if that is NULL, `c` gets them back into the load. get: they exist throughout. put: they exist from
 * their operation to the end of its slice.
 */
struct bench_objects;
int bench_objects_new(struct tarn_client *c, struct tarn_client *viewer, const char *name,
                      struct bench_load *l, struct bench_objects **o_p);
void bench_objects_free(struct bench_objects *o);
/* Where objects are put from now on, as in tarn_put_options. */
void bench_objects_place(struct bench_objects *o, const char *place);
/* Puts all objects (with the load's pattern) and notes their descriptors. */
int bench_objects_put(struct bench_objects *o);
/* Removes the objects that exist. */
void bench_objects_remove(struct bench_objects *o);
/* The addresses of the objects in the pool. Views hold them until the objects are freed. */
int bench_objects_views(struct bench_objects *o, const void ***addrs_p);

extern const struct bench_ops bench_get_ops; /* arg: struct bench_objects, which is not closed */
extern const struct bench_ops bench_put_ops;
extern const struct bench_ops bench_view_ops;
/* Gets submitted one by one, with `depth` of them in flight. */
extern const struct bench_ops bench_get_window_ops;
/* The data phase of puts: each thread writes its objects into its own put session, which is begun before
 * the slice and committed after it. */
extern const struct bench_ops bench_put_write_ops;

/* --- peers (bench_peers.c) ---------------------------------------------------------------------- */

/* Adds Redis and, if built in and installed, memcached, over their Unix sockets or TCP. */
int bench_add_peers(const struct bench_env *e, struct bench_row *r, bool put, bool tcp, struct bench_load *l);

/* --- the bare socket loop (bench_loop.c) -------------------------------------------------------- */

/* Starts the loop's other process. This process must have only one thread. */
int bench_start_loop(uint16_t *port, pid_t *pid_p);
void bench_stop_loop(pid_t pid);
/* Adds the loop as a limit three times: with default, small and large socket buffers. The best one counts. */
int bench_add_loops(struct bench_row *r, uint16_t port, bool put, struct bench_load *l);

/* --- bare CUDA calls (bench_gpu_copy.c) --------------------------------------------------------- */

enum bench_copies_by {
    BENCH_WHOLE,  /* an operation's objects in one cudaMemcpyAsync; `near` is contiguous */
    BENCH_GATHER, /* one launch of a plain kernel */
    BENCH_EACH,   /* one cudaMemcpyAsync for each piece */
    BENCH_BATCH,  /* one cudaMemcpyBatchAsync */
};

/*
 * Adds copies between `far`, where the objects lie one after another, and the pieces of `near`, in a
 * stream of `bare`. Each operation is awaited. EACH and BATCH are so slow that a slice is only the first
 * operation. The row closes none of the arguments.
 */
int bench_add_copies(struct bench_row *r, enum bench_role role, const char *name, enum bench_copies_by by,
                     struct bench_bare *bare, bool put, struct bench_load *near, struct bench_load *far);

/* --- RDMA devices (bench_verbs.c) --------------------------------------------------------------- */

#define BENCH_RAILS_MAX 8

/* A rail as the client sees it; fields with node_ describe the node's end. */
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

/* The rails that the environment's client and node would use. UNAVAILABLE, with the reason. */
int bench_rails_find(const struct bench_env *e, struct bench_rails *r);
/* Opens a client with only these rails, and only rdma. */
int bench_rdma_client(const struct bench_env *e, const struct bench_rails *r, uint32_t rails,
                      struct tarn_client **c_p);

/* A client's calls of its devices' library. */
struct bench_calls {
    uint64_t posts, requests; /* calls of ibv_post_send, and the work requests in them */
    uint64_t writes;          /* RDMA WRITEs among these; of gets, their touches */
    uint64_t post_ns;         /* time spent in them */
    uint64_t polls, empty;    /* calls of ibv_poll_cq, and how many found nothing */
    uint64_t completions, arms;
};
/* Counts from now on, for this client and all that this process opens later. */
void bench_calls_count(struct tarn_client *c);
void bench_calls_read(struct bench_calls *calls);

/* --- perftest (bench_perftest.c) ---------------------------------------------------------------- */

enum bench_perftest { BENCH_READ_BW, BENCH_WRITE_BW, BENCH_READ_LAT };

/* Adds the tool over the same rail, with the row's `depth`, as a limit. If the tool is not on PATH, the
 * row says so. */
int bench_add_perftest(const struct bench_env *e, struct bench_row *r, enum bench_perftest tool,
                       const struct bench_rail *rail, uint64_t bytes, uint32_t depth);

/* --- output (bench_print.c) --------------------------------------------------------------------- */

struct bench_report;
/* Prints the group's heading. */
int bench_report_new(const struct bench_env *e, const char *group, struct bench_report **rep_p);
/* Prints the row, keeps it as JSON, and frees it. `code` is the result of measuring it. Returns 0, so that
 * the group continues, unless that was CANCELED. */
int bench_report_row(struct bench_report *rep, struct bench_row *r, int code);
/* Writes DIR/<group>.json and counts the rows that failed or missed their target. */
int bench_report_close(struct bench_report *rep, int *failed, int *missed);
/* Writes JSON (figures with five digits) to a file, replacing it in one step. */
int bench_write_json(const json_t *j, const char *path);
json_t *bench_machine(void);
json_t *bench_latency_json(const struct bench_hist *h);

/* --- groups ------------------------------------------------------------------------------------- */

/* Each returns an error only if it could not continue. */
int bench_group_shm(struct bench_env *e, struct bench_report *rep);
int bench_group_tcp(struct bench_env *e, struct bench_report *rep);
int bench_group_rdma(struct bench_env *e, struct bench_report *rep);
int bench_group_rails(struct bench_env *e, struct bench_report *rep);
int bench_group_gpu(struct bench_env *e, struct bench_report *rep);
int bench_group_lookup(struct bench_env *e, struct bench_report *rep);
int bench_group_alloc(struct bench_env *e, struct bench_report *rep);
int bench_group_idle(struct bench_env *e, struct bench_report *rep);

/* `tarn-bench replay ...`; the exit status. */
int bench_replay_main(int argc, char **argv);

#endif
