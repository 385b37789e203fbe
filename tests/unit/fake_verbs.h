/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libibverbs and its devices. A program that includes this file has its own ibv_* functions,
 * and the linker prefers them. The test describes devices, ports and GIDs. Work requests run as memcpy
 * between addresses of this process when the completion queue is polled, after the checks that a device makes
 * (keys, ranges, access, the peer's queue pair). Where devices may choose, this one takes the worst case:
 * READs that no fence separates run in reverse order, as late as possible, behind all WRITEs. WRITEs keep
 * their order. A WRITE with an immediate completes a receive of the peer, and fails if there is none.
 *
 * Any thread may call it: one lock protects queue pairs and regions.
 *
 * It shows what tarn decides and requests. It does not show how real devices, drivers and wires behave:
 * tests/rdma-vm does.
 */
#ifndef TARN_TESTS_FAKE_VERBS_H
#define TARN_TESTS_FAKE_VERBS_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/rdma/rdma_rail.h"

#define FAKE_DEVICES 8
#define FAKE_PORTS 2
#define FAKE_GIDS 6
#define FAKE_MRS 8192
#define FAKE_QPS 1024
#define FAKE_QUEUE 1024
#define FAKE_SGES 40
#define FAKE_POSTED 4096
#define FAKE_RECEIVES 512
#define FAKE_EVENTS 64

struct fake_port {
    atomic_bool down;
    bool infiniband;
    uint8_t speed, width; /* ibverbs codes */
    uint16_t lid;
    int ngids;
    struct {
        union ibv_gid gid;
        bool v1, missing;
    } gid[FAKE_GIDS];
};

struct fake_range {
    const char *addr;
    size_t bytes;
};

static struct fake_verbs {
    struct fake_device {
        struct ibv_device device;
        char name[32];
        int nports;
        struct fake_port port[FAKE_PORTS + 1]; /* indexed from 1 */
        bool closed;                           /* cannot be opened */
        atomic_bool dead;                      /* every posted request fails */
        atomic_bool held;                      /* runs no request */
        uint64_t moved, wrs;                   /* payload bytes and requests */
        uint32_t max_sges;                     /* most SGEs in one request so far */
    } device[FAKE_DEVICES];
    int ndevices;
    const char *missing; /* why there is no library; NULL: it is there */
    uint64_t max_region;
    uint32_t vendor;
    int max_wr, max_cqe, max_sge;
    /* Requests posted with ibv_post_send since the last fake_forget(). */
    struct fake_posted {
        enum ibv_wr_opcode opcode;
        unsigned flags;
        uint64_t far, bytes;
        uint32_t call; /* number of the call, from 1 */
        uint32_t imm;  /* as it goes over the wire */
        const struct fake_device *device;
    } posted[FAKE_POSTED];
    uint32_t nposted, calls;
    atomic_bool held;                             /* runs no request */
    void (*before)(const struct ibv_send_wr *wr); /* called before a request runs */
    uint64_t fail_far;                            /* requests to this address fail with fail_status */
    enum ibv_wc_status fail_status;
    int overruns; /* of completion queues */
    int unready;  /* WRITEs with an immediate that found no receive */
    /* memory */
    struct fake_range readonly; /* EFAULT for write access */
    struct fake_range alien;    /* EFAULT for any access: memory that cannot be pinned */
    struct fake_range gpu;      /* EFAULT unless peermem or dma-buf */
    bool peermem;
    int dmabuf_error; /* errno of ibv_reg_dmabuf_mr; 0: success */
    /* Maps GPU memory for the device: by descriptor and offset in the export, or by peermem (fd -1). Returns
     * NULL if the device cannot reach it. If unset, the address itself is used. */
    char *(*reach)(const char *addr, size_t bytes, int fd, uint64_t offset);
    int asked; /* attempts to register GPU memory */
    uint64_t pinned_max, pinned;
    struct fake_mr {
        struct ibv_mr mr; /* addr: address on the wire */
        char *memory;
        int access;
        bool dmabuf, live;
    } mr[FAKE_MRS];
    uint32_t nmrs;
    struct fake_qp *qp[FAKE_QPS];
    uint32_t nqps;
    atomic_int contexts, pds, cqs, channels, mrs, qps; /* objects alive */
    atomic_bool stuck;                                 /* ibv_destroy_qp blocks */
    /* Called when a client's queue pair goes to RTR by this device towards peer. Returns an errno, or 0. Not
     * called for a node's queue pairs, which are recognised by their send queue of one request. */
    int (*resolve)(struct fake_device *d, const union ibv_gid *peer);
    /* Called without the lock when a node's queue pair is joined, as if the network was asked. May be
     * NULL. */
    void (*node_joins)(void);
    bool mute; /* flushes no request */
    enum ibv_fork_status fork_status;
    int forked; /* calls of ibv_fork_init */
} fake;

static pthread_mutex_t fake_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

struct fake_cq {
    struct ibv_cq cq;
    bool armed;
    int pending; /* completions requested but not yet polled */
};

struct fake_channel {
    struct ibv_comp_channel channel;
    struct ibv_cq *events[FAKE_EVENTS]; /* as many as its descriptor counts */
    int n;
};

struct fake_qp {
    struct ibv_qp qp;
    struct fake_device *device;
    uint32_t peer, room;
    enum ibv_qp_state state;
    struct ibv_recv_wr receive[FAKE_RECEIVES]; /* by number */
    uint32_t received[FAKE_RECEIVES];          /* immediates of those that have completed */
    uint32_t receives, polled, completed, posted;
    struct ibv_send_wr wr[FAKE_QUEUE];
    struct ibv_sge sge[FAKE_QUEUE][FAKE_SGES];
    enum ibv_wc_status status[FAKE_QUEUE]; /* of executed requests */
    uint64_t head, done, tail, freed;      /* freed: the sender knows that requests up to here are done */
};

static inline void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.max_region = UINT64_MAX;
    fake.max_wr = 512;
    fake.max_cqe = 4096;
    fake.max_sge = 16;
}

static inline void fake_forget(void)
{
    fake.nposted = fake.calls = 0;
}

/* Number of objects that still exist. */
static inline int fake_left(void)
{
    return fake.contexts + fake.pds + fake.cqs + fake.channels + fake.mrs + fake.qps;
}

static inline union ibv_gid fake_v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
    return (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, [12] = a, [13] = b, [14] = c, [15] = d}};
}

/* Waits until `left` objects remain: threads that join queue pairs release theirs when they end. */
static inline bool fake_goes_to(const atomic_int *count, int left)
{
    for (int i = 0; i < 5000 && (count ? atomic_load(count) : fake_left()) != left; i++)
        poll(NULL, 0, 1);
    return (count ? atomic_load(count) : fake_left()) == left;
}

/* A device with one active RoCE port of 10 Gbit/s and the GID ::ffff:127.0.0.n. */
static inline struct fake_device *fake_add(const char *name, uint8_t n)
{
    struct fake_device *d = &fake.device[fake.ndevices++];
    snprintf(d->name, sizeof d->name, "%s", name);
    d->nports = 1;
    d->port[1] = (struct fake_port){.speed = 4, .width = 1, .ngids = 1};
    d->port[1].gid[0].gid = fake_v4(127, 0, 0, n);
    return d;
}

/* --- devices, ports ----------------------------------------------------------------------------- */

const char *tarn_verbs_missing(void)
{
    return fake.missing;
}

struct ibv_device **ibv_get_device_list(int *n)
{
    struct ibv_device **list = calloc((size_t)fake.ndevices + 1, sizeof(struct ibv_device *));
    for (int i = 0; list && i < fake.ndevices; i++)
        list[i] = &fake.device[i].device;
    *n = fake.ndevices;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    return status == IBV_WC_SUCCESS ? "success" : "failure";
}

const char *ibv_get_device_name(struct ibv_device *d)
{
    return ((struct fake_device *)d)->name;
}

static int fake_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
static int fake_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int fake_notify(struct ibv_cq *cq, int solicited);
static int fake_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
    if (((struct fake_device *)d)->closed) {
        errno = EACCES;
        return NULL;
    }
    struct ibv_context *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->device = d;
    c->ops.poll_cq = fake_poll;
    c->ops.post_send = fake_post;
    c->ops.post_recv = fake_receive;
    c->ops.req_notify_cq = fake_notify;
    fake.contexts++;
    return c;
}

int ibv_close_device(struct ibv_context *c)
{
    fake.contexts--;
    free(c);
    return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
    *a = (struct ibv_device_attr){
        .max_mr_size = fake.max_region,
        .vendor_id = fake.vendor,
        .max_qp_wr = fake.max_wr,
        .max_sge = fake.max_sge,
        .max_sge_rd = fake.max_sge,
        .max_cqe = fake.max_cqe,
        .max_qp_rd_atom = 16,
        .max_qp_init_rd_atom = 16,
        .phys_port_cnt = (uint8_t)((struct fake_device *)c->device)->nports,
    };
    return 0;
}

/* Called by the inline function of the same name, which always passes the complete structure. */
int(ibv_query_port)(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out)
{
    const struct fake_port *p = &((struct fake_device *)c->device)->port[port];
    *(struct ibv_port_attr *)(void *)out = (struct ibv_port_attr){
        .state = p->down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_1024,
        .gid_tbl_len = p->ngids,
        .max_msg_sz = 1u << 31,
        .lid = p->lid,
        .active_speed = p->speed,
        .active_width = p->width,
        .link_layer = p->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
    };
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t i, struct ibv_gid_entry *e,
                      uint32_t flags, size_t bytes)
{
    const struct fake_port *p = &((struct fake_device *)c->device)->port[port];
    (void)flags;
    (void)bytes;
    if (i >= (uint32_t)p->ngids || p->gid[i].missing)
        return ENODATA;
    *e = (struct ibv_gid_entry){.gid = p->gid[i].gid,
                                .gid_index = i,
                                .port_num = port,
                                .gid_type = p->infiniband  ? IBV_GID_TYPE_IB
                                            : p->gid[i].v1 ? IBV_GID_TYPE_ROCE_V1
                                                           : IBV_GID_TYPE_ROCE_V2};
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return fake.fork_status;
}

int ibv_fork_init(void)
{
    fake.forked++;
    return 0;
}

/* --- memory ------------------------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    if (pd)
        pd->context = c;
    fake.pds += pd != NULL;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    fake.pds--;
    free(pd);
    return 0;
}

static inline bool fake_meets(const struct fake_range *r, const char *addr, size_t bytes)
{
    return r->bytes && addr < r->addr + r->bytes && r->addr < addr + bytes;
}

static inline struct ibv_mr *fake_register_locked(struct ibv_pd *pd, void *memory, size_t bytes,
                                                  uint64_t iova, int access)
{
    bool gpu = fake_meets(&fake.gpu, memory, bytes);
    fake.asked += gpu;
    if (gpu && fake.peermem && fake.reach)
        memory = fake.reach(memory, bytes, -1, 0);
    int error = fake_meets(&fake.alien, memory, bytes)                                           ? EFAULT
                : (gpu && !fake.peermem) || !memory                                              ? EFAULT
                : fake_meets(&fake.readonly, memory, bytes) && (access & IBV_ACCESS_LOCAL_WRITE) ? EFAULT
                : bytes > fake.max_region                                                        ? EINVAL
                : fake.pinned_max && fake.pinned + bytes > fake.pinned_max                       ? ENOMEM
                : fake.nmrs == FAKE_MRS                                                          ? ENOSPC
                                                                                                 : 0;
    if (error) {
        errno = error;
        return NULL;
    }
    struct fake_mr *m = &fake.mr[fake.nmrs++]; /* keys are never reused */
    uint32_t key = fake.nmrs << 8 | 0x55;
    *m = (struct fake_mr){.memory = memory, .access = access, .live = true};
    m->mr = (struct ibv_mr){.context = pd->context,
                            .pd = pd,
                            .addr = (void *)(uintptr_t)iova,
                            .length = bytes,
                            .lkey = key,
                            .rkey = key};
    fake.mrs++;
    fake.pinned += bytes;
    return &m->mr;
}

static inline struct ibv_mr *fake_register(struct ibv_pd *pd, void *memory, size_t bytes, uint64_t iova,
                                           int access)
{
    pthread_mutex_lock(&fake_lock);
    struct ibv_mr *mr = fake_register_locked(pd, memory, bytes, iova, access);
    pthread_mutex_unlock(&fake_lock);
    return mr;
}

struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
    return fake_register(pd, addr, bytes, (uintptr_t)addr, access);
}

struct ibv_mr *(ibv_reg_mr_iova)(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access)
{
    return fake_register(pd, addr, bytes, iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova,
                                unsigned int access)
{
    return fake_register(pd, addr, bytes, iova, (int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                                 int access)
{
    char *memory = (char *)(uintptr_t)iova;
    if (fake.reach)
        memory = fake.reach(memory, bytes, fd, offset);
    if (fake.dmabuf_error || !memory) {
        fake.asked++;
        errno = fake.dmabuf_error ? fake.dmabuf_error : EINVAL;
        return NULL;
    }
    struct fake_range gpu = fake.gpu;
    fake.gpu.bytes = 0; /* dma-buf: skip the GPU check */
    struct ibv_mr *mr = fake_register(pd, memory, bytes, iova, access);
    fake.gpu = gpu;
    fake.asked++;
    if (mr)
        ((struct fake_mr *)mr)->dmabuf = true;
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct fake_mr *m = (struct fake_mr *)mr;
    pthread_mutex_lock(&fake_lock);
    m->live = false;
    fake.mrs--;
    fake.pinned -= mr->length;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

/* The memory behind a key; NULL if a device would refuse the access. */
static inline char *fake_memory_of(uint32_t key, uint64_t addr, uint64_t bytes, int access,
                                   const struct ibv_pd *pd)
{
    uint32_t i = (key >> 8) - 1;
    if ((key & 0xff) != 0x55 || i >= fake.nmrs || !fake.mr[i].live || (pd && fake.mr[i].mr.pd != pd))
        return NULL;
    const struct fake_mr *m = &fake.mr[i];
    uint64_t from = (uintptr_t)m->mr.addr;
    bool inside = addr >= from && addr - from <= m->mr.length && bytes <= m->mr.length - (addr - from);
    return inside && (m->access & access) == access ? m->memory + (addr - from) : NULL;
}

/* --- queues ------------------------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
    struct fake_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return NULL;
    ch->channel = (struct ibv_comp_channel){.context = c, .fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
    fake.channels++;
    return &ch->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
    close(ch->fd);
    free(ch);
    fake.channels--;
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *arg, struct ibv_comp_channel *ch, int vector)
{
    struct fake_cq *q = n <= fake.max_cqe ? calloc(1, sizeof *q) : NULL;
    (void)vector;
    if (!q)
        return NULL;
    q->cq = (struct ibv_cq){.context = c, .channel = ch, .cq_context = arg, .cqe = n};
    fake.cqs++;
    return &q->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    struct fake_channel *ch = (struct fake_channel *)cq->channel;
    uint64_t one;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; ch && i < ch->n; i++)
        if (ch->events[i] == cq && read(ch->channel.fd, &one, sizeof one) == sizeof one)
            ch->events[i--] = ch->events[--ch->n];
    pthread_mutex_unlock(&fake_lock);
    free(cq);
    fake.cqs--;
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_qp *q = fake.nqps < FAKE_QPS ? calloc(1, sizeof *q) : NULL;
    if (!q) {
        pthread_mutex_unlock(&fake_lock);
        return NULL;
    }
    q->qp = (struct ibv_qp){.context = pd->context,
                            .pd = pd,
                            .send_cq = a->send_cq,
                            .recv_cq = a->recv_cq,
                            .qp_num = ++fake.nqps};
    q->device = (struct fake_device *)pd->context->device;
    q->room = a->cap.max_send_wr;
    q->receives = a->cap.max_recv_wr < FAKE_RECEIVES ? a->cap.max_recv_wr : FAKE_RECEIVES;
    fake.qp[q->qp.qp_num - 1] = q;
    pthread_mutex_unlock(&fake_lock);
    fake.qps++;
    return &q->qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    while (atomic_load(&fake.stuck))
        poll(NULL, 0, 1);
    pthread_mutex_lock(&fake_lock);
    fake.qp[qp->qp_num - 1] = NULL;
    pthread_mutex_unlock(&fake_lock);
    free(qp);
    fake.qps--;
    return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
    struct fake_qp *q = (struct fake_qp *)qp;
    pthread_mutex_lock(&fake_lock);
    void (*joins)(void) = fake.node_joins;
    pthread_mutex_unlock(&fake_lock);
    if (mask & IBV_QP_DEST_QPN && q->room == 1 && joins)
        joins();
    if (mask & IBV_QP_DEST_QPN && q->room > 1 && fake.resolve) {
        int error = fake.resolve(q->device, &a->ah_attr.grh.dgid);
        if (error)
            return error;
    }
    pthread_mutex_lock(&fake_lock);
    if (mask & IBV_QP_STATE)
        q->state = a->qp_state;
    if (mask & IBV_QP_DEST_QPN)
        q->peer = a->dest_qp_num;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static void fake_event(struct ibv_cq *cq)
{
    struct fake_cq *c = (struct fake_cq *)cq;
    struct fake_channel *ch = (struct fake_channel *)cq->channel;
    uint64_t one = 1;
    const struct fake_device *d = (const struct fake_device *)cq->context->device;
    if (!c->armed || fake.held || d->held || ch->n == FAKE_EVENTS ||
        write(ch->channel.fd, &one, sizeof one) != sizeof one)
        return;
    ch->events[ch->n++] = cq;
    c->armed = false;
}

static void fake_note(const struct fake_qp *q, const struct ibv_send_wr *wr)
{
    if (fake.nposted == FAKE_POSTED)
        return;
    struct fake_posted *p = &fake.posted[fake.nposted++];
    *p = (struct fake_posted){.opcode = wr->opcode,
                              .flags = wr->send_flags,
                              .far = wr->wr.rdma.remote_addr,
                              .call = fake.calls,
                              .imm = wr->imm_data,
                              .device = q->device};
    for (int i = 0; i < wr->num_sge; i++)
        p->bytes += wr->sg_list[i].length;
}

static int fake_post_all(struct fake_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_cq *cq = (struct fake_cq *)q->qp.send_cq;
    fake.calls++;
    for (; wr; wr = wr->next) {
        bool ready = q->state == IBV_QPS_RTS || q->state == IBV_QPS_ERR;
        if (q->tail - q->freed == q->room || !ready || wr->num_sge > fake.max_sge) {
            *bad = wr;
            return ready ? ENOMEM : EINVAL;
        }
        struct ibv_send_wr *copy = &q->wr[q->tail % FAKE_QUEUE];
        *copy = *wr;
        copy->next = NULL;
        copy->sg_list = q->sge[q->tail % FAKE_QUEUE];
        if (wr->num_sge)
            memcpy(copy->sg_list, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
        q->tail++;
        q->device->wrs++;
        if ((uint32_t)wr->num_sge > q->device->max_sges)
            q->device->max_sges = (uint32_t)wr->num_sge;
        fake_note(q, wr);
        cq->pending += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
        fake.overruns += cq->pending > cq->cq.cqe;
    }
    fake_event(q->qp.send_cq);
    return 0;
}

static int fake_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    pthread_mutex_lock(&fake_lock);
    int rc = fake_post_all((struct fake_qp *)qp, wr, bad);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static int fake_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *q = (struct fake_qp *)qp;
    pthread_mutex_lock(&fake_lock);
    bool room = q->posted - q->polled < q->receives;
    *bad = room ? NULL : wr;
    if (room)
        q->receive[q->posted++ % FAKE_RECEIVES] = *wr;
    pthread_mutex_unlock(&fake_lock);
    return room ? 0 : ENOMEM;
}

/* Completes a receive of the peer's. */
static enum ibv_wc_status fake_deliver(struct fake_qp *peer, const struct ibv_send_wr *wr)
{
    if (peer->completed == peer->posted) {
        fake.unready++;
        return IBV_WC_RNR_RETRY_EXC_ERR;
    }
    peer->received[peer->completed++ % FAKE_RECEIVES] = wr->imm_data;
    fake_event(peer->qp.recv_cq);
    return IBV_WC_SUCCESS;
}

static bool fake_word(const char *to, const char *from, size_t bytes, size_t word)
{
    return bytes == word && !(((uintptr_t)to | (uintptr_t)from) % word);
}

/* Aligned words of four and of eight bytes travel as devices and processors see each other's: in one piece,
 * and in order. */
static void fake_copy(char *to, const char *from, size_t bytes)
{
    if (fake_word(to, from, bytes, sizeof(uint32_t)))
        __atomic_store_n((uint32_t *)(void *)to,
                         __atomic_load_n((const uint32_t *)(const void *)from, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    else if (fake_word(to, from, bytes, sizeof(uint64_t)))
        __atomic_store_n((uint64_t *)(void *)to,
                         __atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    else
        memcpy(to, from, bytes);
}

static enum ibv_wc_status fake_carry_out(struct fake_qp *q, const struct ibv_send_wr *wr)
{
    struct fake_qp *peer = q->peer && q->peer <= fake.nqps ? fake.qp[q->peer - 1] : NULL;
    bool read = wr->opcode == IBV_WR_RDMA_READ;
    uint64_t bytes = 0, at = 0;
    for (int i = 0; i < wr->num_sge; i++)
        bytes += wr->sg_list[i].length;
    if (fake.before)
        fake.before(wr);
    if (fake.fail_far && wr->wr.rdma.remote_addr == fake.fail_far)
        return fake.fail_status;
    if (q->device->dead || !peer || peer->device->dead || peer->state != IBV_QPS_RTS)
        return IBV_WC_RETRY_EXC_ERR;
    char *far = fake_memory_of(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, bytes,
                               read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE, peer->qp.pd);
    if (!far)
        return IBV_WC_REM_ACCESS_ERR;
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *s = &wr->sg_list[i];
        char *near = fake_memory_of(s->lkey, s->addr, s->length, read ? IBV_ACCESS_LOCAL_WRITE : 0, q->qp.pd);
        if (!near)
            return IBV_WC_LOC_PROT_ERR;
        fake_copy(read ? near : far + at, read ? far + at : near, s->length);
        at += s->length;
    }
    q->device->moved += bytes;
    return wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? fake_deliver(peer, wr) : IBV_WC_SUCCESS;
}

/* Runs one request; `failed`: not, for one before it has failed. */
static bool fake_run(struct fake_qp *q, uint64_t i, bool failed)
{
    enum ibv_wc_status *status = &q->status[i % FAKE_QUEUE];
    *status =
        q->state == IBV_QPS_RTS && !failed ? fake_carry_out(q, &q->wr[i % FAKE_QUEUE]) : IBV_WC_WR_FLUSH_ERR;
    return *status == IBV_WC_SUCCESS;
}

/* Runs requests up to the next fence, or all that are posted: WRITEs in order, then READs in reverse. */
static void fake_work_off(struct fake_qp *q)
{
    uint64_t end = q->done + 1;
    bool failed = false;
    while (end < q->tail && !(q->wr[end % FAKE_QUEUE].send_flags & IBV_SEND_FENCE))
        end++;
    for (uint64_t i = q->done; i < end; i++)
        if (q->wr[i % FAKE_QUEUE].opcode != IBV_WR_RDMA_READ)
            failed = !fake_run(q, i, failed);
    for (uint64_t i = end; i > q->done; i--)
        if (q->wr[(i - 1) % FAKE_QUEUE].opcode == IBV_WR_RDMA_READ)
            fake_run(q, i - 1, false);
    for (; q->done < end; q->done++) /* requests after a failed one are flushed */
        if (q->state != IBV_QPS_RTS)
            q->status[q->done % FAKE_QUEUE] = IBV_WC_WR_FLUSH_ERR;
        else if (q->status[q->done % FAKE_QUEUE] != IBV_WC_SUCCESS)
            q->state = IBV_QPS_ERR;
}

/* Completed receives, then those that are flushed. */
static int fake_poll_receives(struct fake_qp *q, int n, struct ibv_wc *wc)
{
    int got = 0;
    bool flushed = q->state == IBV_QPS_ERR && !fake.mute;
    for (; got < n && q->polled < (flushed ? q->posted : q->completed); q->polled++) {
        bool done = q->polled < q->completed;
        wc[got++] = (struct ibv_wc){.wr_id = q->receive[q->polled % FAKE_RECEIVES].wr_id,
                                    .status = done ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR,
                                    .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                                    .imm_data = q->received[q->polled % FAKE_RECEIVES],
                                    .qp_num = q->qp.qp_num};
        if (!done)
            q->completed++;
    }
    return got;
}

static int fake_poll_qp(struct fake_qp *q, int n, struct ibv_wc *wc)
{
    bool flushed = q->state == IBV_QPS_ERR;
    int got = fake_poll_receives(q, n, wc);
    if (flushed && fake.mute)
        return got;
    while (q->head < q->tail && got < n && (flushed || !(fake.held || q->device->held))) {
        if (q->head == q->done)
            fake_work_off(q);
        const struct ibv_send_wr *wr = &q->wr[q->head % FAKE_QUEUE];
        enum ibv_wc_status status = q->status[q->head++ % FAKE_QUEUE];
        bool asked = wr->send_flags & IBV_SEND_SIGNALED;
        if (status == IBV_WC_SUCCESS && !asked)
            continue;
        q->freed = q->head;
        ((struct fake_cq *)q->qp.send_cq)->pending -= asked;
        wc[got++] = (struct ibv_wc){.wr_id = wr->wr_id, .status = status, .qp_num = q->qp.qp_num};
    }
    return got;
}

static int fake_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    int got = 0;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < fake.nqps && got < n; i++)
        if (fake.qp[i] && fake.qp[i]->qp.send_cq == cq)
            got += fake_poll_qp(fake.qp[i], n - got, wc + got);
    pthread_mutex_unlock(&fake_lock);
    return got;
}

static int fake_notify(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    pthread_mutex_lock(&fake_lock);
    ((struct fake_cq *)cq)->armed = true;
    for (uint32_t i = 0; i < fake.nqps; i++)
        if (fake.qp[i] && fake.qp[i]->qp.send_cq == cq && fake.qp[i]->head < fake.qp[i]->tail)
            fake_event(cq);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    struct fake_channel *ch = (struct fake_channel *)channel;
    uint64_t one;
    *context = NULL;
    if (read(channel->fd, &one, sizeof one) != sizeof one)
        return -1;
    pthread_mutex_lock(&fake_lock);
    *cq = ch->events[0];
    memmove(ch->events, ch->events + 1, (size_t)--ch->n * sizeof(struct ibv_cq *));
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
    (void)cq;
    (void)n;
}

#endif
