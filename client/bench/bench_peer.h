/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two processes of `tarn-bench peer`: A, the benchmark, and B, forked from it. Both set up a row from one
 * plan, with a client each and the same contestants in the same order. One way, B lends and A moves. Both
 * ways, both lend, and both move at the same time.
 *
 *   A                                      B
 *   SET_UP plan, A's descriptors   -->     lends; both ways: reaches A's leases
 *                                  <--     B's descriptors
 *   a slice of contestant k:
 *   BEGIN k round                  -->     fills its sources, poisons its destinations; so does A
 *   RUN k (both ways)              -->     moves; so does A
 *   END k                          -->     checks its destinations; so does A
 *   TEAR_DOWN                      -->     frees all of it
 *
 * Each command has one answer. A row's bytes are a pattern of round, object and offset, so a byte of another
 * round or place is detected. Every object is checked after every slice.
 *
 *   bench_peer.c        the transports, the rows and their targets
 *   bench_peer_pair.c   the processes and the commands
 *   bench_peer_side.c   what one process sets up for a row
 *   bench_peer_gpu.c    GPUs: memory, and copies as the limit
 *   bench_peer_move.c   contestants: reads and writes of a lease, memcpy
 *   bench_peer_rdma.c   clients over RDMA devices; perftest
 */
#ifndef TARN_CLIENT_BENCH_PEER_H
#define TARN_CLIENT_BENCH_PEER_H

#include <tarn/window.h>

#include "client/bench/bench.h"

#define BENCH_PEER_CALL_MS 60000
#define BENCH_PEER_DEPTH_MAX 16
#define BENCH_PEER_REGION_BYTES (512ull << 20) /* most bytes of a row's objects */
#define BENCH_PEER_MOVERS_MAX 2
#define BENCH_PEER_GPUS 2

enum bench_peer_how {
    BENCH_PEER_CALL,    /* blocking calls */
    BENCH_PEER_SUBMIT,  /* `depth` submitted transfers, then waits for all */
    BENCH_PEER_NOTIFY,  /* writes with a notification */
    BENCH_PEER_PING,    /* A writes and notifies, B waits for it, writes and notifies, A waits for it */
    BENCH_PEER_CONNECT, /* a new client reaches the lease and reads once */
};

struct bench_peer_plan {
    size_t way; /* index in bench_peer_ways */
    enum bench_peer_how how;
    bool write, both;
    const char *reference; /* the name of a second mover, contiguous and by plain calls; NULL: none */
    uint64_t bytes;
    uint32_t vectors, depth; /* vectors: runs of the lease, and pieces, of an object */
    size_t ops;
};

/* --- movers (bench_peer_move.c) ----------------------------------------------------------------- */

struct bench_peer_side;

/* Sources and destinations of a contestant in one process. */
struct bench_peer_bank {
    bool write;
    struct bench_load *load; /* own buffers; NULL: this process does not move */
    struct bench_load *lent; /* what the other process reads or writes; NULL: this process does not lend */
};

/* A contestant that reads or writes a lease. */
struct bench_peer_mover {
    struct bench_peer_side *side;
    enum bench_peer_how how;
    struct bench_peer_bank bank;
    char *memory; /* of the window; NULL: a GPU's, which `bank.lent` has */
    struct tarn_window *window;
    struct tarn_lease *lease;
    char peer[TARN_DESCRIPTOR_MAX]; /* the other process's lease */
    struct tarn_reach *reach;
    struct bench_hist post; /* times until submitted transfers were accepted */
};

/* Adds it to the side's contestants, and lends if the side lends. The lease's runs are `vectors` an object.
 */
int bench_peer_add_mover(struct bench_peer_side *s, enum bench_role role, const char *name,
                         enum bench_peer_how how, uint32_t vectors);
int bench_peer_reach(struct bench_peer_mover *m, const char *descriptor);
/* Adds memcpy between own buffers and the other process's region, by one thread and in the same pieces, as a
 * limit. */
int bench_peer_add_memcpy(struct bench_peer_side *s);

/* --- a side of a row (bench_peer_side.c) -------------------------------------------------------- */

/* One of the two processes. */
struct bench_peer_side {
    const struct bench_env *e;
    bool first; /* A */
    /* memory of one memfd in both processes; the bare limits' windows */
    char *region, *other_region;
    uint16_t loop_port;                       /* of a bare socket loop for this process alone */
    struct bench_bare *bare[BENCH_PEER_GPUS]; /* NULL: not opened */
    /* of the row */
    struct bench_peer_plan plan;
    struct tarn_client
        *c; /* over the plan's transport; a new one for each row, so that it maps no old windows */
    struct bench_load *flat, *scattered; /* own buffers: contiguous objects, and in the plan's pieces */
    struct bench_load *far;              /* memory on the other process's GPU for the bare copies, or NULL */
    struct tarn_mr *flat_mr, *scattered_mr;
    struct bench_peer_mover *movers[BENCH_PEER_MOVERS_MAX];
    size_t nmovers;
    struct bench_row *row; /* its contestants; those that only A can run come last */
};

static inline bool bench_peer_moves(const struct bench_peer_side *s)
{
    return s->first || s->plan.both;
}

static inline bool bench_peer_lends(const struct bench_peer_side *s)
{
    return !s->first || s->plan.both;
}

/* The own buffers as the plan has them. */
static inline struct bench_load *bench_peer_load(const struct bench_peer_side *s)
{
    return s->scattered ? s->scattered : s->flat;
}

typedef char bench_peer_descriptors[BENCH_PEER_MOVERS_MAX][TARN_DESCRIPTOR_MAX];

/* Opens a client over the plan's transport. */
int bench_peer_client(const struct bench_peer_side *s, struct tarn_client **c_p);
int bench_peer_side_set_up(struct bench_peer_side *s, const struct bench_peer_plan *plan);
/* The descriptors of the side's leases; "" where there is none. */
int bench_peer_side_describe(const struct bench_peer_side *s, bench_peer_descriptors texts);
int bench_peer_side_reach(struct bench_peer_side *s, const bench_peer_descriptors texts);
void bench_peer_side_tear_down(struct bench_peer_side *s);

/* --- ways (bench_peer.c) ------------------------------------------------------------------------ */

enum bench_peer_memory {
    BENCH_PEER_SHARED, /* of tarn_window_alloc() */
    BENCH_PEER_PRIVATE,
    BENCH_PEER_GPU,
};

/* A transport, and the kind of memory at both ends. */
struct bench_peer_way {
    const char *transport, *note;
    bool named; /* its rows are measured only if it is named */
    enum bench_peer_memory memory;
    int gpus[2]; /* A's and B's */
    int (*open)(const struct bench_peer_side *s, struct tarn_client **c_p);
    int (*add_limits)(struct bench_peer_side *s);
    void (*small_target)(struct bench_row *r, bool write); /* of reads and writes of 4 KiB */
};

extern const struct bench_peer_way bench_peer_ways[];

static inline const struct bench_peer_way *bench_peer_way(const struct bench_peer_side *s)
{
    return &bench_peer_ways[s->plan.way];
}

/* --- GPUs (bench_peer_gpu.c) -------------------------------------------------------------------- */

bool bench_peer_gpus_exist(const struct bench_peer_way *w);
/* Opens the way's GPUs that are not open in this process yet, which must not have forked since. */
int bench_peer_gpus_open(struct bench_peer_side *s);
void bench_peer_gpus_close(struct bench_peer_side *s);
/* A load in the plan's shape: on the process's own GPU if the way has GPUs, otherwise in private memory. */
int bench_peer_load_new(const struct bench_peer_side *s, uint32_t vectors, struct bench_load **l_p);
/* Adds bare copies between own memory and memory of this process on the other process's GPU, as limits: one
 * for contiguous objects, and a gather kernel for pieces. */
int bench_peer_add_copies(struct bench_peer_side *s);

/* --- RDMA (bench_peer_rdma.c) ------------------------------------------------------------------- */

int bench_peer_rdma_client(const struct bench_peer_side *s, struct tarn_client **c_p);
/* Adds perftest as a limit. Only A runs it, and one way only. */
int bench_peer_add_perftest(struct bench_peer_side *s);
void bench_peer_small_perftest(struct bench_row *r, bool write);

/* --- the pair (bench_peer_pair.c) --------------------------------------------------------------- */

struct bench_peer_pair {
    struct bench_peer_side side; /* A's */
    pid_t loops[2], other;
    int fd; /* to B; -1: there is none, or commands and answers are out of step */
};

/* Starts B. The caller must have only one thread. */
int bench_peer_start(const struct bench_env *e, struct bench_peer_pair *p);
void bench_peer_stop(struct bench_peer_pair *p);
/* Sets up the plan in both processes, and adds its contestants to r. */
int bench_peer_set_up(struct bench_peer_pair *p, const struct bench_peer_plan *plan, struct bench_row *r);
void bench_peer_tear_down(struct bench_peer_pair *p);
/* CPU milliseconds of B for each 1e9 bytes that contestant k of r moved. */
double bench_peer_lender_ms(const struct bench_row *r, size_t k);

#endif
