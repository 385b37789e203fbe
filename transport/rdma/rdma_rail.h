/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: the ports of RDMA devices that are used together, and reliable connected queue pairs on them.
 *
 * A rail is one active port. Both ends open their rails; for each rail of a client the node picks the
 * one of its own that reaches it (tarn_rail_reaching), and one queue pair joins the two.
 */
#ifndef TARN_TRANSPORT_RDMA_RAIL_H
#define TARN_TRANSPORT_RDMA_RAIL_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TARN_RAILS_MAX 8
#define TARN_RAIL_NAME 80
#define TARN_ENDPOINT_TEXT 160

struct tarn_rail {
    struct ibv_context *context;
    struct ibv_pd *pd;
    char name[TARN_RAIL_NAME]; /* "mlx5_0:1" */
    uint8_t port;
    uint8_t gid_index;
    bool roce;   /* else InfiniBand */
    bool fences; /* IBV_SEND_FENCE can be relied on */
    uint16_t lid;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    uint32_t max_sge, max_wr, max_cqe;
    uint8_t max_reads_out, max_reads_in; /* reads in flight as requester, as responder */
    uint64_t max_message, max_region;
    uint64_t max_write; /* of one WRITE; not more than max_message */
    uint32_t speed;     /* Mbit/s, 0: unknown */
    int numa;           /* node the device is at; -1: unknown */
};

struct tarn_reaper; /* destroys queue pairs */
struct tarn_joiner; /* joins them with their peers */

struct tarn_rails {
    struct tarn_reaper *reaper;
    struct tarn_joiner *joiner;
    uint32_t n;
    struct tarn_rail rail[TARN_RAILS_MAX];
};

/* --- all of them (rdma_rails.c) ----------------------------------------------------------------- */

/*
 * Opens the active ports of the devices named ("mlx5_0,mlx5_1:1"; NULL or "": all, the fastest kind first).
 * "NAME:PORT@GID" also fixes the index in the port's GID table. UNAVAILABLE with the reason when none is
 * left.
 */
int tarn_rails_open(const char *devices, struct tarn_rails *r);
/* Destroys what was retired, when what is still being joined has been. Where that takes longer than 3 s, a
 * thread goes on with it. */
void tarn_rails_close(struct tarn_rails *r);

/* --- ports and queue pairs (rdma_rail.c) -------------------------------------------------------- */

/* For tarn_rails_open(): adds them. */
int tarn_rails_find(const char *devices, struct tarn_rails *r);
/* Is its port still active? */
bool tarn_rail_active(const struct tarn_rail *r);

/* One end of a queue pair, as the other end needs it. */
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
    uint32_t max_wr, max_sge; /* of the send queue */
};
/* A queue pair in INIT, and its end. */
int tarn_qp_new(const struct tarn_rail *r, const struct tarn_qp_options *o, struct ibv_qp **qp_p,
                struct tarn_endpoint *own);
/* To RTS, joined with the peer's end. Asks the network for the peer's address: where nobody answers that
 * takes seconds. */
int tarn_qp_join(const struct tarn_rail *r, struct ibv_qp *qp, const struct tarn_endpoint *own,
                 const struct tarn_endpoint *peer);

/* --- how they end (rdma_reap.c) ----------------------------------------------------------------- */

/*
 * Stops a queue pair and waits until the device has given back all its requests: from here on it touches no
 * memory for them. `full`: its send queue has no room just now. Takes the completions of cq, which must be
 * its own. False: the device did not say so within 2 s; only ibv_destroy_qp makes sure then.
 */
bool tarn_qp_stop(struct ibv_qp *qp, struct ibv_cq *cq, bool full);
/* The same for one that only answers: its peer reads and writes nothing from here on. One thread at a time
 * for all that share the cq; nothing else may use the receive queue. */
bool tarn_qp_cut_off(struct ibv_qp *qp, struct ibv_cq *cq);

/* A queue pair and what is only its own. Any may be NULL. */
struct tarn_qp_parts {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
};
/* Has them destroyed, in the order in which they are given, by a thread: it may take the device a while. */
void tarn_rails_retire(struct tarn_rails *r, const struct tarn_qp_parts *parts);
/* For tarn_rails_open(). NULL: out of memory. */
struct tarn_reaper *tarn_reaper_new(void);
/* For tarn_rails_close(): closes the ports, too. */
void tarn_reaper_close(struct tarn_rails *r);

/* A thread that uses the rails beside their user: they are not closed before it has ended. NULL: no memory,
 * or no thread for closing them then. */
struct tarn_hold *tarn_rails_hold(struct tarn_rails *r);
void tarn_hold_retire(struct tarn_hold *h, const struct tarn_qp_parts *parts);
/* The last that the thread does. It is joined, by the rails' own. */
void tarn_hold_end(struct tarn_hold *h);
/* The thread could not be started. */
void tarn_hold_drop(struct tarn_hold *h);

/* --- joining without waiting for it (rdma_join.c) ----------------------------------------------- */

struct tarn_join; /* a queue pair that is being joined; one thread uses it */

/* Has a thread do what tarn_qp_join() does; the queue pair is the thread's until that is over. NULL: out of
 * memory. */
struct tarn_join *tarn_join_begin(struct tarn_rails *r, const struct tarn_rail *rail, struct ibv_qp *qp,
                                  const struct tarn_endpoint *own, const struct tarn_endpoint *peer);
/* Is it over? Then it is freed, and *rc_p is what tarn_qp_join() said. */
bool tarn_join_over(struct tarn_join *j, int *rc_p);
/* Nobody waits for it any more: the parts, the queue pair among them, are retired when it is over. */
void tarn_join_abandon(struct tarn_rails *r, struct tarn_join *j, const struct tarn_qp_parts *parts);
/* Waits until more than *seen_p of the rails' joins are over, or the deadline. Zero it to begin. */
void tarn_joins_wait(struct tarn_rails *r, uint64_t *seen_p, uint64_t deadline_ns);

/* For tarn_rails_open() (NULL: out of memory) and tarn_rails_close(): freed with the last of its threads. */
struct tarn_joiner *tarn_joiner_new(void);
void tarn_joiner_leave(struct tarn_joiner *k);

/* The rail that reaches the peer's end, by route and subnet; NULL when none does. `prefer`: among equals. */
const struct tarn_rail *tarn_rail_reaching(const struct tarn_rails *r, const struct tarn_endpoint *peer,
                                           uint32_t prefer);

#endif
