/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA, client half: a link is one queue pair on each rail that reaches the node.
 *
 * A work becomes a *job*. A job is cut into *strips*: one contiguous part of the object for each rail that
 * takes part. A strip of a get is READs of its bytes, then its *check*: a READ of gen[slot] that starts when
 * all READs before it have arrived. If the check shows the expected generation, the extent had no other owner
 * while the strip was read. Generations only grow, so if all strips' checks show it, that holds for the whole
 * job. A strip of a put is WRITEs. The strip that tells of its job has the notification behind its bytes.
 *
 * Each rail (*lane*) keeps its strips in a ring and posts them in order:
 *
 *   done ... | head: posted, not yet completed | next: being posted | ... tail
 *
 * `arrived` and `checked` lie between head and next. Bytes of strips before `arrived` have come; checks of
 * strips before `checked` are posted. Gets that are posted together are checked together, with one READ for
 * neighbouring slots:
 *
 *   nothing else in flight   bytes, then the checks in the same chain, the first with IBV_SEND_FENCE: the
 *                            device holds it and everything behind it back until the bytes have come
 *   otherwise                checks when the bytes have come, ahead of the bytes of later gets; a fence would
 *                            make each get wait for all before it. The same if fences are unreliable.
 *
 * A rail that fails is set aside for a while; new links do without it in that time. Its gets continue over
 * the other rails. Its puts fail with the link, because only the caller can decide whether to repeat them,
 * once the node has stopped the queue pairs they were posted on. A link that lacks a rail ends when the rail
 * should be back and nothing is in flight, so that the next link uses the rail again.
 *
 * Rails come up independently. connect() begins to join the lanes that the node named (rdma_join.c). It
 * returns when one is up, or reports that none is yet. The other lanes take part in works posted after they
 * come up:
 *
 *   named --tarn_rdma_lanes_begin--> joining --> joined, or lost: its rail is set aside if another joined
 *                                       \------> the link ends first: the joining thread retires it
 *
 *   rdma_link.c   jobs: memory, strips, how they end; the transport's table
 *   rdma_attach.c the node's answer; lanes come up
 *   rdma_lane.c   one rail: posting, completions
 *   rdma_tell.c   notifications
 *   rdma_touch.c  times of last use
 *   rdma_reap.c   how queue pairs end
 */
#ifndef TARN_TRANSPORT_RDMA_LINK_H
#define TARN_TRANSPORT_RDMA_LINK_H

#include "base/container.h"
#include "transport/notices.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/rdma_memory.h"

#define TARN_JOBS 128                          /* works in flight on a link */
#define TARN_RAIL_ASIDE_NS (2 * TARN_NS_PER_S) /* how long a failed rail is set aside */

struct tarn_job {
    struct tarn_work *work; /* NULL: free */
    bool put;
    bool checked;    /* the generation is looked at behind it */
    bool tells;      /* its notification is not queued yet */
    uint64_t number; /* of its notification */
    uint32_t strips; /* not ended yet */
    int status;
    const struct tarn_piece *pieces;
    uint32_t npieces;
    struct tarn_piece bounce; /* used instead of the caller's pieces if its address is set */
    struct tarn_cover cover;
    struct tarn_job *next; /* in the list of free jobs */
};

struct tarn_strip {
    struct tarn_job *job;
    uint64_t offset, bytes; /* within the object's range */
    uint64_t posted;        /* bytes covered by work requests so far */
    uint64_t queued_ns;
    bool tells, told; /* a notification belongs to it; has been posted */
    bool falling;     /* its generation arrives in the falling half of `landing` */
    struct tarn_cursor cursor;
    struct tarn_cursor far; /* windows: in the work's runs */
};

/*
 * Times of last use: WRITEs to touch[slot] whose completion nobody waits for; at most one a second for
 * each slot. They are noted when gets end and posted together, neighbours in one WRITE: when the list is
 * full, when the first note is old enough, and when the link closes. progress() does this for links that
 * are idle.
 */
enum {
    TARN_TOUCHES = 32, /* notes in the list */
    TARN_TICKS = 128,  /* slots in one WRITE */
    TARN_TOUCHED = 8192
};

/* Notifications of a link (rdma_tell.c). */
struct tarn_tell {
    uint64_t ring;         /* its address at the lender; 0: there is none */
    uint64_t next, popped; /* the next number; numbers before `popped` have free places again */
    enum { TARN_TELL_UNASKED, TARN_TELL_ASKED, TARN_TELL_ANSWERED } asked;
    struct tarn_rdma_lane *lane;     /* on which the lender was asked */
    struct tarn_notice *notices;     /* sources of WRITEs, one for each job, in the bounce region */
    const _Atomic uint64_t *landing; /* `popped` is read to */
};

struct tarn_slots {
    uint32_t pool, slot, n;
};

struct tarn_touches {
    struct tarn_slots noted[TARN_TOUCHES];
    uint32_t n;
    uint32_t since;  /* the tick of the first note */
    uint32_t *ticks; /* source of the WRITEs, in the bounce region: TARN_TICKS equal values */
    struct tarn_touched {
        uint32_t pool, slot, again; /* do not touch before this tick */
    } touched[TARN_TOUCHED];        /* recently touched slots, by hash */
};

/* A pool as one rail reaches it. */
struct tarn_pool_keys {
    uint32_t gen, touch;
    uint32_t *slices;
};

struct tarn_rdma_lane {
    struct tarn_rdma_link *link;
    uint32_t index; /* the client's rail */
    const struct tarn_rail *rail;
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct tarn_endpoint own;
    bool joined, armed;
    bool named;                   /* the node has a queue pair for it: `peer` */
    bool lost;                    /* joining failed, and the rail has not been set aside yet */
    struct tarn_pool_keys *pools; /* for each pool of the link */
    uint32_t ring_key;            /* of the ring for notifications */
    struct tarn_strip *ring;
    uint32_t ring_size;        /* a power of two */
    uint64_t head, next, tail; /* counters of strips */
    uint64_t checked, arrived; /* counters of strips, too */
    uint32_t depth, room;      /* send queue: work requests in all, and free now */
    uint32_t silent;           /* work requests posted since the last one that asks for a completion */
    uint64_t queued;           /* bytes of strips that have not ended */
    double bytes_ns;           /* measured speed, smoothed; 0: unknown */
    _Atomic uint64_t *landing; /* generations read by checks; two places for each strip */
    struct ibv_mr *landing_mr;
    struct tarn_endpoint peer;
    struct tarn_join *join; /* joining in progress */
};

struct tarn_rdma_peer_memory {
    uint64_t bytes, slice_bytes;
    uint64_t arena, gen, touch; /* addresses at the node */
    uint32_t nslots;            /* 0: no such pool */
};

struct tarn_rdma_link {
    struct tarn_link link;
    struct tarn_rdma_local *local;
    uint64_t tick_base_ns;
    bool broken, windows; /* windows: the peer lends windows */
    uint64_t whole_ns;    /* when a missing rail should be back; 0: none is missing */
    uint64_t quiet_ns;    /* time of the last completion or look at the ports; 0: none noted */
    int epoll_fd;         /* watches the lanes' channels */
    uint32_t nlanes, npools;
    struct tarn_rdma_lane lanes[TARN_RAILS_MAX];
    struct tarn_rdma_peer_memory *pools;
    struct tarn_job *jobs, *free_jobs;
    /* Lanes call this when a strip ends. */
    void (*strip_ended)(struct tarn_rdma_link *l, struct tarn_job *job, int status);
    uint32_t busy; /* jobs in flight */
    struct tarn_region *bounce;
    uint64_t bounces; /* bit i: chunk i is free */
    struct tarn_touches touches;
    struct tarn_tell tell;
    uint64_t usual_ns;      /* smoothed duration of a work that is alone in flight */
    uint32_t joining;       /* lanes being joined */
    struct tarn_reason why; /* why the last lane that failed to join did */
};

static inline struct tarn_rdma_link *tarn_rdma_link(const struct tarn_link *l)
{
    return TARN_CONTAINER_OF(l, struct tarn_rdma_link, link);
}

/* rdma_lane.c */
int tarn_rdma_lane_open(struct tarn_rdma_link *l, uint32_t index, struct tarn_rdma_lane *n);
/* From here on the device touches no memory for the lane. Its strips stay in the ring. The rails' thread
 * destroys the queue pair, unless only immediate destruction can stop the device. */
void tarn_rdma_lane_stop(struct tarn_rdma_lane *n);
void tarn_rdma_lane_close(struct tarn_rdma_lane *n);
/* Adds a strip. The ring always has room. tells: the notification goes with it. */
void tarn_rdma_lane_queue(struct tarn_rdma_lane *n, struct tarn_job *job, uint64_t offset, uint64_t bytes,
                          bool tells);
/* Posts as many strips as fit. Negative: the rail failed. */
int tarn_rdma_lane_post(struct tarn_rdma_lane *n);
/* Takes completions and ends strips. Returns the number of completions; negative: the rail failed. */
int tarn_rdma_lane_poll(struct tarn_rdma_lane *n);
/* Asks for an event at the next completion. */
int tarn_rdma_lane_arm(struct tarn_rdma_lane *n);
/* Takes pending events. */
void tarn_rdma_lane_disarm(struct tarn_rdma_lane *n);
/* Posts touches; false: no room now. */
bool tarn_rdma_lane_touch(struct tarn_rdma_lane *n, const struct tarn_slots *slots, uint32_t count);

/* READs how many notifications the lender has taken; false: no room now. */
bool tarn_rdma_lane_ask(struct tarn_rdma_lane *n);

/* rdma_tell.c */
#define TARN_TELL_BYTES(_jobs) ((_jobs) * sizeof(struct tarn_notice) + sizeof(uint64_t))
/* Memory for devices, of TARN_TELL_BYTES(TARN_JOBS). */
void tarn_tell_init(struct tarn_tell *t, char *memory);
/* 0: there is a free place. AGAIN: nobody knows, so the lender is being asked. BUSY: all are taken. Without
 * sentences. */
int tarn_tell_room(struct tarn_rdma_link *l);
/* Makes of the request the notification of that job. */
void tarn_tell_fill(struct tarn_rdma_lane *n, const struct tarn_job *job, struct ibv_send_wr *wr);
/* The lender's answer has landed. */
void tarn_tell_answered(struct tarn_rdma_link *l);

/* rdma_touch.c */
void tarn_touch_note(struct tarn_rdma_link *l, uint32_t pool, uint32_t slot);
/* Posts the noted touches if they are due. */
void tarn_touch_tend(struct tarn_rdma_link *l);
/* Posts the noted touches and waits briefly until the devices have written them. Nothing else is in
 * flight. */
void tarn_touch_finish(struct tarn_rdma_link *l);

/* rdma_attach.c. Reads the lanes and pools that the node's answer names. */
int tarn_rdma_read_answer(struct tarn_rdma_link *l, const char *text);
/* The transport's learn(). */
int tarn_rdma_learn(struct tarn_link *link, const struct tarn_peer *p);
/* Begins to join the named lanes. */
int tarn_rdma_lanes_begin(struct tarn_rdma_link *l);
/* Takes joined lanes into use and notes lost ones. */
void tarn_rdma_lanes_look(struct tarn_rdma_link *l);
/* 0: at least one lane is up. TARN_INPROGRESS: none is up yet, after TARN_WAIT_SLICE_MS or at the
 * deadline. NOT_REACHABLE: none will come up. */
int tarn_rdma_lanes_await(struct tarn_rdma_link *l, uint64_t deadline_ns);

#endif
