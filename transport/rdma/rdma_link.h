/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA, client half: a link is one queue pair on each rail that reaches the node.
 *
 * A work becomes a *job*, cut into one *strip* for each rail that takes part: a contiguous part of the
 * object. A strip of a get is READs of its bytes, then its *check*: a READ of gen[slot] that starts when all
 * the READs before it have arrived. If it shows the generation asked for, nobody had been given the extent
 * while the strip was read; if all strips' checks do, nobody had while any of them was, since generations
 * only grow. A strip of a put is WRITEs.
 *
 * Each rail (*lane*) has its strips in a ring and posts them in order:
 *
 *   done ... | head: posted, not yet completed | next: being posted | ... tail
 *
 * `arrived` and `checked` lie between head and next: whose bytes have come, whose check was posted. Gets that
 * are posted together are checked together, neighbouring slots by one READ:
 *
 *   nothing else under way   bytes, then the checks in the same chain, the first with IBV_SEND_FENCE: the
 *                            device holds it, and all behind it, back until the bytes have come
 *   else                     checks when the bytes have come, ahead of the bytes of later gets; a fence would
 *                            make each get wait for all before it. So it is always where fences cannot be
 *                            relied on.
 *
 * A rail that fails is set aside for a while, and links made in that time do without it. Its gets go on over
 * the other rails. Its puts end with the link: whether they may be repeated is for the caller to say, once
 * the node has stopped the queue pairs they were posted on. A link that misses a rail ends when the rail
 * should be back and nothing is in flight, so that the next one has it again.
 *
 * Rails come up in their own time. connect() begins to join the lanes that the node has named (rdma_join.c)
 * and returns when one is up, or says that none is yet; the others take part in works posted after they are
 * up:
 *
 *   named --tarn_rdma_lanes_begin--> joining --> joined, or lost: the rail is set aside, if another one is
 * joined
 *                                  \------ the link ends first: whoever joins it retires it
 *
 *   rdma_link.c   jobs: memory, strips, how they end; the transport's table
 *   rdma_attach.c the node's answer; lanes come up
 *   rdma_lane.c   one rail: posting, completions
 *   rdma_touch.c  times of last use
 *   rdma_reap.c   how queue pairs end
 */
#ifndef TARN_TRANSPORT_RDMA_LINK_H
#define TARN_TRANSPORT_RDMA_LINK_H

#include "transport/rdma/rdma.h"
#include "transport/rdma/rdma_memory.h"

#define TARN_JOBS 128                          /* works in flight on a link */
#define TARN_RAIL_ASIDE_NS (2 * TARN_NS_PER_S) /* a rail that failed is not used for this long */

struct tarn_job {
    struct tarn_work *work; /* NULL: free */
    bool put;
    uint32_t strips; /* not ended yet */
    int status;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_piece bounce; /* in place of the caller's pieces, when it has an address */
    struct tarn_cover cover;
    struct tarn_job *next; /* of the free ones */
};

struct tarn_strip {
    struct tarn_job *job;
    uint64_t offset, bytes; /* within the object's range */
    uint64_t posted;        /* bytes that work requests have been made for */
    uint64_t queued_ns;
    bool falling; /* where its generation comes to lie */
    struct tarn_cursor cursor;
};

/*
 * Times of last use: WRITEs to touch[slot] that nobody waits for; a slot is touched once a second at most.
 * They are noted when gets end, and posted together, neighbours by one WRITE: when no more can be noted, when
 * the first of them was noted a while ago, and when the link closes. A link that is not used is looked after
 * by progress().
 */
enum {
    TARN_TOUCHES = 32, /* noted at a time */
    TARN_TICKS = 128,  /* neighbours of one WRITE */
    TARN_TOUCHED = 8192
};

struct tarn_slots {
    uint32_t pool, slot, n;
};

struct tarn_touches {
    struct tarn_slots noted[TARN_TOUCHES];
    uint32_t n;
    uint32_t since;  /* the tick when the first of them was noted */
    uint32_t *ticks; /* what they write, the same TARN_TICKS times; in the bounce region */
    struct tarn_touched {
        uint32_t pool, slot, again; /* not before this tick */
    } touched[TARN_TOUCHED];        /* the last ones, by their hash */
};

/* A pool as one rail reaches it. */
struct tarn_pool_keys {
    uint32_t gen, touch;
    uint32_t *slices;
};

struct tarn_rdma_lane {
    struct tarn_link *link;
    uint32_t index; /* of the client's rail */
    const struct tarn_rail *rail;
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct tarn_endpoint own;
    bool joined, armed;
    bool named;                   /* the node has a queue pair for it: `peer` */
    bool lost;                    /* could not be joined, and the rail is not set aside yet */
    struct tarn_pool_keys *pools; /* as many as the link's */
    struct tarn_strip *ring;
    uint32_t ring_size;        /* a power of two */
    uint64_t head, next, tail; /* counters */
    uint64_t checked, arrived; /* these, too */
    uint32_t depth, room;      /* work requests the send queue takes, and takes now */
    uint32_t silent;           /* posted since the last one that completes */
    uint64_t queued;           /* bytes of strips not ended */
    double bytes_ns;           /* measured speed, smoothed; 0: not known yet */
    _Atomic uint64_t *landing; /* generations that checks have read; twice as many as strips */
    struct ibv_mr *landing_mr;
    struct tarn_endpoint peer;
    struct tarn_join *join; /* being joined */
};

struct tarn_rdma_peer_memory {
    uint64_t bytes, slice_bytes;
    uint64_t arena, gen, touch; /* addresses there */
    uint32_t nslots;            /* 0: no such pool */
};

struct tarn_link {
    char node[64];
    uint64_t id;
    struct tarn_local *local;
    uint64_t tick_base_ns;
    bool writable, broken;
    uint64_t whole_ns; /* when a rail that is missing should be back; 0: none is missing */
    uint64_t quiet_ns; /* nothing has completed since then, or ports were looked at then; 0: not noted yet */
    int epoll_fd;      /* the lanes' channels */
    uint32_t nlanes, npools;
    struct tarn_rdma_lane lanes[TARN_RAILS_MAX];
    struct tarn_rdma_peer_memory *pools;
    struct tarn_job *jobs, *free_jobs;
    /* What lanes tell of a strip that has ended. */
    void (*strip_ended)(struct tarn_link *l, struct tarn_job *job, int status);
    uint32_t busy; /* jobs in flight */
    struct tarn_region *bounce;
    uint64_t bounces; /* bit i: chunk i is free */
    struct tarn_touches touches;
    uint64_t usual_ns;       /* how long a lone work takes, smoothed */
    uint32_t joining;        /* lanes that are being joined */
    char why[TARN_SENTENCE]; /* ... and the last one that could not be */
};

/* rdma_lane.c */
int tarn_rdma_lane_open(struct tarn_link *l, uint32_t index, struct tarn_rdma_lane *n);
/* From here on the device touches nobody's memory for the lane; its strips stay in the ring. The rails'
 * thread destroys the queue pair, unless that alone makes sure of it. */
void tarn_rdma_lane_stop(struct tarn_rdma_lane *n);
void tarn_rdma_lane_close(struct tarn_rdma_lane *n);
/* Adds a strip; the ring always has room. */
void tarn_rdma_lane_queue(struct tarn_rdma_lane *n, struct tarn_job *job, uint64_t offset, uint64_t bytes);
/* Posts what fits. Negative: the rail failed. */
int tarn_rdma_lane_post(struct tarn_rdma_lane *n);
/* Takes completions, ending strips. The number of them, or negative: the rail failed. */
int tarn_rdma_lane_poll(struct tarn_rdma_lane *n);
/* Asks for an event at the next completion. */
int tarn_rdma_lane_arm(struct tarn_rdma_lane *n);
/* Takes events that came. */
void tarn_rdma_lane_disarm(struct tarn_rdma_lane *n);
/* Posts touches; false: not now. */
bool tarn_rdma_lane_touch(struct tarn_rdma_lane *n, const struct tarn_slots *slots, uint32_t count);

/* rdma_touch.c */
void tarn_touch_note(struct tarn_link *l, uint32_t pool, uint32_t slot);
/* Posts what was noted if it is time to. */
void tarn_touch_tend(struct tarn_link *l);
/* Posts it and waits a moment for the devices to have written it. Nothing else is in flight. */
void tarn_touch_finish(struct tarn_link *l);

/* rdma_attach.c: reads the node's answer: which lanes it has named, and the pools. */
int tarn_rdma_read_answer(struct tarn_link *l, const char *text);
/* Begins to join the lanes that were named. */
int tarn_rdma_lanes_begin(struct tarn_link *l);
/* Takes those that are joined into use, and notes those that are lost. */
void tarn_rdma_lanes_look(struct tarn_link *l);
/* 0: a lane is up, and the others are, too, or take longer. TARN_INPROGRESS: none is, after
 * TARN_WAIT_SLICE_MS or at the deadline. NOT_REACHABLE: none will be. */
int tarn_rdma_lanes_await(struct tarn_link *l, uint64_t deadline_ns);

#endif
