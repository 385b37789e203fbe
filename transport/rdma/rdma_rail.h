/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: active ports of RDMA devices that are used together, and reliable connected queue pairs on them.
 *
 * Client and node open their own rails. For each rail of a client, the node picks its own rail that
 * reaches it (tarn_rail_reaching); one queue pair connects the two.
 */
#ifndef TARN_TRANSPORT_RDMA_RAIL_H
#define TARN_TRANSPORT_RDMA_RAIL_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint32_t tarn_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#define TARN_RAILS_MAX 8
#define TARN_RAIL_NAME 80
#define TARN_ENDPOINT_TEXT 160

struct tarn_rail {
    struct ibv_context *context;
    struct ibv_pd *pd;
    char name[TARN_RAIL_NAME]; /* "mlx5_0:1" */
    uint8_t port;
    uint8_t gid_index;
    bool roce;   /* else: InfiniBand */
    bool fences; /* IBV_SEND_FENCE is reliable */
    uint16_t lid;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    uint32_t max_sge, max_wr, max_cqe;
    uint8_t max_reads_out, max_reads_in; /* READs in flight as requester and as responder */
    uint64_t max_message, max_region;
    uint64_t max_write; /* largest WRITE; at most max_message */
    uint32_t speed;     /* Mbit/s, 0: unknown */
};

struct tarn_reaper; /* destroys queue pairs */
struct tarn_joiner; /* joins them with their peers */

struct tarn_rails {
    struct tarn_reaper *reaper;
    struct tarn_joiner *joiner;
    uint32_t n;
    struct tarn_rail rail[TARN_RAILS_MAX];
};

/*
 * Opens the active ports of the named devices ("mlx5_0,mlx5_1:1"; NULL or "": all, of the fastest kind
 * first). "NAME:PORT@GID" also fixes the index in the port's GID table. UNAVAILABLE, with the reason, if
 * no port is usable.
 */
int tarn_rails_open(const char *devices, struct tarn_rails *r);
/* Destroys retired queue pairs, after pending joins have ended. After 3 s a thread continues alone. */
void tarn_rails_close(struct tarn_rails *r);

/* Is its port still active? */
bool tarn_rail_active(const struct tarn_rail *r);

/* One end of a queue pair, as told to the other end. */
struct tarn_endpoint {
    uint32_t qpn, psn;
    uint16_t lid;
    bool roce;
    union ibv_gid gid;
    uint32_t mtu; /* enum ibv_mtu */
    uint8_t reads_out, reads_in;
};

/* "qpn,psn,lid,roce,gid,mtu,out,in" in hexadecimal, without blanks. */
void tarn_endpoint_format(const struct tarn_endpoint *e, char out[TARN_ENDPOINT_TEXT]);
/* PROTOCOL when it is malformed. */
int tarn_endpoint_parse(const char *text, size_t bytes, struct tarn_endpoint *e);

struct tarn_qp_options {
    struct ibv_cq *cq;
    uint32_t max_wr, max_sge; /* capacity of the send queue */
    uint32_t receives;        /* of the receive queue, besides the one for tarn_qp_cut_off() */
};
/* Makes a queue pair in state INIT, and describes its end. */
int tarn_qp_new(const struct tarn_rail *r, const struct tarn_qp_options *o, struct ibv_qp **qp_p,
                struct tarn_endpoint *own);
/* Brings the queue pair to RTS, joined with the peer's end. The kernel asks the network for the peer's
 * address, which takes seconds if nobody answers. */
int tarn_qp_join(const struct tarn_rail *r, struct ibv_qp *qp, const struct tarn_endpoint *own,
                 const struct tarn_endpoint *peer);

/* NULL if libibverbs is available; else the reason, valid forever. Loads the library. Any thread
 * (rdma_verbs.c). */
const char *tarn_verbs_missing(void);

/* --- how they end (rdma_reap.c) ----------------------------------------------------------------- */

/*
 * Stops a queue pair and waits until the device has flushed all its requests. After that it accesses no
 * memory for them. `full`: the send queue may have no room. Takes the completions of cq, which no other
 * queue pair may use. False: the device did not flush within 2 s; only ibv_destroy_qp then stops it for
 * certain.
 */
bool tarn_qp_stop(struct ibv_qp *qp, struct ibv_cq *cq, bool full);
typedef void tarn_received_fn(void *arg, const struct ibv_wc *wc);
/* The same for the responding end: from here on the peer can neither read nor write. Only one thread at a
 * time for all queue pairs of a cq. fn gets receives that complete
 * before the end; NULL: there are none. */
bool tarn_qp_cut_off(struct ibv_qp *qp, struct ibv_cq *cq, tarn_received_fn *fn, void *arg);

/* A queue pair and the objects that only it uses. Each may be NULL. */
struct tarn_qp_parts {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
};
/* Hands the parts to a thread that destroys them in the given order, since devices may be slow at it. */
void tarn_rails_retire(struct tarn_rails *r, const struct tarn_qp_parts *parts);
/* Part of tarn_rails_open(). NULL: out of memory. */
struct tarn_reaper *tarn_reaper_new(void);
/* Part of tarn_rails_close(): closes the ports, too. */
void tarn_reaper_close(struct tarn_rails *r);

/* Holds the rails for another thread: they stay open until it has ended. NULL: no memory, or the thread
 * that would close them cannot be started. */
struct tarn_hold *tarn_rails_hold(struct tarn_rails *r);
void tarn_hold_retire(struct tarn_hold *h, const struct tarn_qp_parts *parts);
/* The thread's last call. The rails' thread joins it. */
void tarn_hold_end(struct tarn_hold *h);
/* Drops the hold if the thread could not be started. */
void tarn_hold_drop(struct tarn_hold *h);

/* --- joining without waiting for it (rdma_join.c) ----------------------------------------------- */

struct tarn_join; /* a queue pair being joined; used by one thread */

/* Runs tarn_qp_join() in a thread. The queue pair belongs to that thread until it is done. NULL: out of
 * memory. */
struct tarn_join *tarn_join_begin(struct tarn_rails *r, const struct tarn_rail *rail, struct ibv_qp *qp,
                                  const struct tarn_endpoint *own, const struct tarn_endpoint *peer);
/* Is it done? If so, frees it and sets *rc_p to tarn_qp_join()'s result. */
bool tarn_join_over(struct tarn_join *j, int *rc_p);
/* Gives the result up: the parts, including the queue pair, are retired once the join is done. */
void tarn_join_abandon(struct tarn_rails *r, struct tarn_join *j, const struct tarn_qp_parts *parts);
/* Waits until more than *seen_p of the rails' joins are done, or the deadline passes. Zero *seen_p first. */
void tarn_joins_wait(struct tarn_rails *r, uint64_t *seen_p, uint64_t deadline_ns);

/* For tarn_rails_open() (NULL: out of memory) and tarn_rails_close(). Freed with the last of its threads. */
struct tarn_joiner *tarn_joiner_new(void);
void tarn_joiner_leave(struct tarn_joiner *k);

/* The rail that reaches the peer's end, by route and subnet; NULL if none does. `prefer` decides among
 * equals. */
const struct tarn_rail *tarn_rail_reaching(const struct tarn_rails *r, const struct tarn_endpoint *peer,
                                           uint32_t prefer);

#endif
