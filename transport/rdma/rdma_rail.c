/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, ports, GIDs, queue pairs and their states; the probe. */
#include "transport/rdma/rdma_rail.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/rdma/rdma.h"

/*
 * Timeouts on the wire. A try lasts 4.096 us * 2^14 = 67 ms; devices may take up to four times that. With
 * 6 retries a dead peer is detected after 0.5 s, at most 1.9 s. (Some devices take 7 retries as infinite.)
 * An ACK waits behind everything queued on its way: 67 ms are 8 MB, a switch's buffer, at 1 Gbit/s, and 7
 * tries are 8 MB at 140 Mbit/s. A local port that goes down is noticed earlier (rdma_link.c). A peer that
 * is not ready is retried forever.
 */
enum { ACK_TIMEOUT = 14, RETRIES = 6, RNR_RETRIES = 7, RNR_TIMER = 12, HOPS = 64 };

/*
 * Vendor of soft-RoCE (Linux 6.1). It has two defects. A fenced READ that must be sent again waits for all
 * READs before it, including itself, so it never ends, and the queue pair reports no error. And RETRIES
 * apply to a whole WRITE: packets that arrive count only once its end is acknowledged. So WRITEs must have
 * few packets: with 73 packets and 5 % loss, every tenth WRITE was given up.
 */
#define SOFT_ROCE 0xffffff
#define SOFT_WRITE_BYTES (64u << 10)

/* --- choosing ----------------------------------------------------------------------------------- */

/* The user's choice for one device. */
struct wish {
    char name[64];
    int port, gid; /* -1: any */
};

/* "mlx5_0:1@3" */
static int parse_wish(const char *text, size_t bytes, struct wish *w)
{
    char word[80], *at, *colon;
    uint64_t n;
    if (bytes >= sizeof word)
        return tarn_fail(TARN_E_CONFIG, "rdma device \"%.20s...\": too long: write NAME[:PORT][@GID INDEX]",
                         text);
    memcpy(word, text, bytes);
    word[bytes] = '\0';
    *w = (struct wish){.port = -1, .gid = -1};
    if ((at = strchr(word, '@')) != NULL) {
        *at++ = '\0';
        if (tarn_u64_parse(at, strlen(at), 10, 255, &n))
            return tarn_fail(TARN_E_CONFIG, "rdma device \"%s\": \"%s\" is no GID index: must be 0 to 255",
                             word, at);
        w->gid = (int)n;
    }
    if ((colon = strchr(word, ':')) != NULL) {
        *colon++ = '\0';
        if (tarn_u64_parse(colon, strlen(colon), 10, 255, &n) || n == 0)
            return tarn_fail(TARN_E_CONFIG, "rdma device \"%s\": \"%s\" is no port: must be 1 to 255", word,
                             colon);
        w->port = (int)n;
    }
    snprintf(w->name, sizeof w->name, "%.63s", word);
    return 0;
}

static bool gid_is_v4(const union ibv_gid *g)
{
    static const uint8_t v4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return !memcmp(g->raw, v4, sizeof v4);
}

/* Ranks GIDs: RoCE v2 with IPv4, then IPv6, then link-local, then RoCE v1. */
static int gid_rank(const struct ibv_gid_entry *e)
{
    bool link_local = e->gid.raw[0] == 0xfe && e->gid.raw[1] == 0x80;
    int rank = gid_is_v4(&e->gid) ? 3 : link_local ? 1 : 2;
    return e->gid_type == IBV_GID_TYPE_ROCE_V2 ? rank + 3 : rank;
}

/* Sets gid and gid_index; false if the port has no GID. */
static bool choose_gid(struct tarn_rail *r, int entries, int wanted)
{
    int best = -1;
    for (int i = 0; i < entries && i < 256; i++) {
        struct ibv_gid_entry e;
        if ((wanted >= 0 && i != wanted) || ibv_query_gid_ex(r->context, r->port, (uint32_t)i, &e, 0))
            continue;
        int rank = r->roce ? gid_rank(&e) : 1;
        if (rank <= best)
            continue;
        best = rank;
        r->gid = e.gid;
        r->gid_index = (uint8_t)i;
    }
    return best >= 0;
}

/* Widths and speeds as numbered by the InfiniBand specification, in Mbit/s for each lane. */
static uint32_t port_speed(const struct ibv_port_attr *p)
{
    static const struct {
        uint8_t code;
        uint32_t lane;
    } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                  {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    static const struct {
        uint8_t code, lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint32_t lane = 0, lanes = 0;
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        lane = speeds[i].code == p->active_speed ? speeds[i].lane : lane;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        lanes = widths[i].code == p->active_width ? widths[i].lanes : lanes;
    return lane * lanes;
}

/* Fills in the rail of one port; false: unusable. */
static bool open_port(const char *device, struct ibv_context *context, const struct ibv_device_attr *a,
                      uint8_t port, int gid, struct tarn_rail *r)
{
    struct ibv_port_attr p;
    if (ibv_query_port(context, port, &p) || p.state != IBV_PORT_ACTIVE)
        return false;
    *r = (struct tarn_rail){
        .context = context,
        .port = port,
        .roce = p.link_layer == IBV_LINK_LAYER_ETHERNET,
        .fences = a->vendor_id != SOFT_ROCE,
        .lid = p.lid,
        .mtu = p.active_mtu,
        .max_sge =
            tarn_least((uint32_t)a->max_sge, (uint32_t)a->max_sge_rd ? (uint32_t)a->max_sge_rd : UINT32_MAX),
        .max_wr = (uint32_t)a->max_qp_wr,
        .max_cqe = (uint32_t)a->max_cqe,
        .max_reads_out = (uint8_t)tarn_least((uint32_t)a->max_qp_init_rd_atom, UINT8_MAX),
        .max_reads_in = (uint8_t)tarn_least((uint32_t)a->max_qp_rd_atom, UINT8_MAX),
        .max_message = p.max_msg_sz,
        .max_write = a->vendor_id == SOFT_ROCE ? tarn_least(SOFT_WRITE_BYTES, p.max_msg_sz) : p.max_msg_sz,
        .max_region = a->max_mr_size,
        .speed = port_speed(&p),
    };
    snprintf(r->name, sizeof r->name, "%.64s:%u", device, port);
    return choose_gid(r, p.gid_tbl_len, gid);
}

static bool is_open(const struct tarn_rails *r, const char *device, int port)
{
    char name[TARN_RAIL_NAME];
    snprintf(name, sizeof name, "%.64s:%d", device, port);
    for (uint32_t i = 0; i < r->n; i++)
        if (!strcmp(r->rail[i].name, name))
            return true;
    return false;
}

/* Adds the device's active ports, each with its own context. Returns 0, or errno if the device cannot be
 * opened. */
static int open_device(struct ibv_device *device, const struct wish *w, struct tarn_rails *r)
{
    struct ibv_device_attr a = {0};
    const char *name = ibv_get_device_name(device);
    for (int port = 1, ports = 1; port <= ports && r->n < TARN_RAILS_MAX; port++) {
        errno = 0;
        struct ibv_context *context = ibv_open_device(device);
        if (!context)
            return errno ? errno : EIO;
        struct tarn_rail *rail = &r->rail[r->n];
        bool usable = ibv_query_device(context, &a) == 0 && (w->port < 0 || w->port == port) &&
                      !is_open(r, name, port) && open_port(name, context, &a, (uint8_t)port, w->gid, rail) &&
                      (rail->pd = ibv_alloc_pd(context)) != NULL;
        ports = a.phys_port_cnt;
        if (usable)
            r->n++;
        else
            ibv_close_device(context);
    }
    return 0;
}

static int not_opened(const char *name, int error)
{
    return tarn_fail(TARN_E_UNAVAILABLE,
                     "rdma device \"%s\": cannot be opened: %s: see who may open /dev/infiniband/uverbs*",
                     name, strerror(error));
}

static int by_speed(const void *a, const void *b)
{
    uint32_t x = ((const struct tarn_rail *)a)->speed, y = ((const struct tarn_rail *)b)->speed;
    return x < y   ? 1
           : x > y ? -1
                   : strcmp(((const struct tarn_rail *)a)->name, ((const struct tarn_rail *)b)->name);
}

static struct ibv_device *find_device(struct ibv_device **list, const char *name)
{
    for (; *list; list++)
        if (!strcmp(ibv_get_device_name(*list), name))
            return *list;
    return NULL;
}

static int open_wished(struct ibv_device **list, const char *devices, struct tarn_rails *r)
{
    for (const char *at = devices; *at;) {
        struct wish w;
        size_t bytes = strcspn(at, ",");
        uint32_t before = r->n;
        int rc = parse_wish(at, bytes, &w);
        if (rc)
            return rc;
        struct ibv_device *device = find_device(list, w.name);
        if (!device)
            return tarn_fail(TARN_E_CONFIG, "rdma device \"%s\": there is none of this name: see ibv_devices",
                             w.name);
        int error = open_device(device, &w, r);
        if (error)
            return not_opened(w.name, error);
        if (r->n == before && is_open(r, w.name, w.port < 0 ? 1 : w.port))
            return tarn_fail(TARN_E_CONFIG, "rdma device \"%s\": named twice: name each port once", w.name);
        if (r->n == before)
            return tarn_fail(TARN_E_UNAVAILABLE, "rdma device \"%s\": no active port%s: see ibv_devinfo",
                             w.name, w.gid >= 0 ? " with that GID" : "");
        at += bytes + (at[bytes] == ',');
    }
    return 0;
}

/* Adds all usable ports. A device that cannot be opened is reported only if no port is usable. */
static int open_all(struct ibv_device **list, int n, struct tarn_rails *r)
{
    static const struct wish any = {.port = -1, .gid = -1};
    const char *closed = NULL;
    int error = 0;
    for (int i = 0; i < n; i++) {
        int e = open_device(list[i], &any, r);
        if (e && !error) {
            error = e;
            closed = ibv_get_device_name(list[i]);
        }
    }
    if (r->n)
        return 0;
    return error ? not_opened(closed, error)
                 : tarn_fail(TARN_E_UNAVAILABLE,
                             "rdma: %d devices, but no active port with a GID: see ibv_devinfo, bring "
                             "the link up and give it an address",
                             n);
}

static int find_rails(const char *devices, struct tarn_rails *r)
{
    int n = 0, rc;
    const char *missing = tarn_verbs_missing();
    if (missing)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "rdma: no verbs library: %s: install libibverbs1 and the device's provider "
                         "(ibverbs-providers)",
                         missing);
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list || n == 0) {
        if (list)
            ibv_free_device_list(list);
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "rdma: no device: none is in /sys/class/infiniband, or its driver's "
                         "library (ibverbs-providers) is not installed");
    }
    if (devices && *devices)
        rc = open_wished(list, devices, r);
    else
        rc = open_all(list, n, r);
    ibv_free_device_list(list);
    qsort(r->rail, r->n, sizeof r->rail[0], by_speed);
    return rc;
}

int tarn_rails_open(const char *devices, struct tarn_rails *r)
{
    *r = (struct tarn_rails){.reaper = tarn_reaper_new(), .joiner = tarn_joiner_new()};
    int rc =
        r->reaper && r->joiner ? find_rails(devices, r) : tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    if (rc)
        tarn_rails_close(r);
    return rc;
}

void tarn_rails_close(struct tarn_rails *r)
{
    if (r->joiner)
        tarn_joiner_leave(r->joiner);
    tarn_reaper_close(r);
    *r = (struct tarn_rails){0};
}

int tarn_rdma_probe(void)
{
    struct tarn_rails rails;
    int rc = tarn_rails_open(NULL, &rails);
    if (rc == 0)
        tarn_rails_close(&rails);
    return rc;
}

bool tarn_rail_active(const struct tarn_rail *r)
{
    struct ibv_port_attr p;
    return ibv_query_port(r->context, r->port, &p) == 0 && p.state == IBV_PORT_ACTIVE;
}

/* --- endpoints as text -------------------------------------------------------------------------- */

void tarn_endpoint_format(const struct tarn_endpoint *e, char out[TARN_ENDPOINT_TEXT])
{
    int n = snprintf(out, TARN_ENDPOINT_TEXT, "%x,%x,%x,%x,", e->qpn, e->psn, e->lid, e->roce);
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, TARN_ENDPOINT_TEXT - (size_t)n, "%02x", e->gid.raw[i]);
    snprintf(out + n, TARN_ENDPOINT_TEXT - (size_t)n, ",%x,%x,%x", e->mtu, e->reads_out, e->reads_in);
}

static bool parse_gid(const char *text, size_t bytes, union ibv_gid *gid)
{
    if (bytes != 32)
        return false;
    for (int i = 0; i < 16; i++) {
        uint64_t byte;
        if (tarn_u64_parse(text + 2 * i, 2, 16, 255, &byte))
            return false;
        gid->raw[i] = (uint8_t)byte;
    }
    return true;
}

int tarn_endpoint_parse(const char *text, size_t bytes, struct tarn_endpoint *e)
{
    static const uint64_t most[] = {0xffffff, 0xffffff, 0xffff, 1, 0, IBV_MTU_4096, 255, 255};
    enum { FIELDS = sizeof most / sizeof *most, GID = 4 };
    uint64_t v[FIELDS] = {0};
    const char *at = text, *end = text + bytes;
    *e = (struct tarn_endpoint){0};
    for (int i = 0; i < FIELDS; i++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t n = (size_t)((comma ? comma : end) - at);
        bool ok = i == GID ? parse_gid(at, n, &e->gid) : tarn_u64_parse(at, n, 16, most[i], &v[i]) == 0;
        if (!ok || (comma != NULL) != (i < FIELDS - 1))
            return tarn_fail(TARN_E_PROTOCOL, "rdma: \"%.*s\" is no end of a queue pair",
                             (int)(bytes < 100 ? bytes : 100), text);
        at += n + 1;
    }
    if (v[5] < IBV_MTU_256)
        return tarn_fail(TARN_E_PROTOCOL, "rdma: MTU code %u: must be 1 to 5", (unsigned)v[5]);
    e->qpn = (uint32_t)v[0];
    e->psn = (uint32_t)v[1];
    e->lid = (uint16_t)v[2];
    e->roce = v[3];
    e->mtu = (uint32_t)v[5];
    e->reads_out = (uint8_t)v[6];
    e->reads_in = (uint8_t)v[7];
    return 0;
}

/* --- queue pairs -------------------------------------------------------------------------------- */

/* Errors from the network end when the network is whole again. */
static int qp_failed(const struct tarn_rail *r, const char *what, int error)
{
    bool network = error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT || error == ENETDOWN;
    return tarn_fail(network ? TARN_E_NOT_REACHABLE : TARN_E_SYSTEM, "rdma %s: %s: %s", r->name, what,
                     strerror(error));
}

int tarn_qp_new(const struct tarn_rail *r, const struct tarn_qp_options *o, struct ibv_qp **qp_p,
                struct tarn_endpoint *own)
{
    struct ibv_qp_init_attr init = {
        .send_cq = o->cq,
        .recv_cq = o->cq,
        .cap = {.max_send_wr = o->max_wr,
                .max_recv_wr = o->receives + 1,
                .max_send_sge = o->max_sge,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = r->port,
                            .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
    if (!qp)
        return tarn_fail(TARN_E_SYSTEM,
                         "rdma %s: no queue pair of %u work requests: %m: raise the device's or the "
                         "memlock limit (ulimit -l)",
                         r->name, o->max_wr);
    int error = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error) {
        ibv_destroy_qp(qp);
        return qp_failed(r, "queue pair to INIT", error);
    }
    *own = (struct tarn_endpoint){
        .qpn = qp->qp_num,
        .psn = (uint32_t)tarn_random64() & 0xffffff,
        .lid = r->lid,
        .roce = r->roce,
        .gid = r->gid,
        .mtu = r->mtu,
        .reads_out = r->max_reads_out,
        .reads_in = r->max_reads_in,
    };
    *qp_p = qp;
    return 0;
}

static struct ibv_ah_attr address_of(const struct tarn_rail *r, const struct tarn_endpoint *peer)
{
    bool routed = r->roce || r->gid.global.subnet_prefix != peer->gid.global.subnet_prefix;
    return (struct ibv_ah_attr){
        .dlid = peer->lid,
        .port_num = r->port,
        .is_global = routed,
        .grh = {.dgid = peer->gid, .sgid_index = r->gid_index, .hop_limit = HOPS},
    };
}

int tarn_qp_join(const struct tarn_rail *r, struct ibv_qp *qp, const struct tarn_endpoint *own,
                 const struct tarn_endpoint *peer)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = own->mtu < peer->mtu ? own->mtu : peer->mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = own->reads_in < peer->reads_out ? own->reads_in : peer->reads_out,
        .min_rnr_timer = RNR_TIMER,
        .ah_attr = address_of(r, peer),
    };
    int error = ibv_modify_qp(qp, &a,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error)
        return qp_failed(r, "queue pair to RTR (is the peer's address reachable from this port?)", error);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = ACK_TIMEOUT,
        .retry_cnt = RETRIES,
        .rnr_retry = RNR_RETRIES,
        .sq_psn = own->psn,
        .max_rd_atomic = own->reads_out < peer->reads_in ? own->reads_out : peer->reads_in,
    };
    error = ibv_modify_qp(qp, &a,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return error ? qp_failed(r, "queue pair to RTS", error) : 0;
}

/* --- who reaches whom --------------------------------------------------------------------------- */

static socklen_t sockaddr_of(const union ibv_gid *g, struct sockaddr_storage *a)
{
    *a = (struct sockaddr_storage){0};
    if (gid_is_v4(g)) {
        struct sockaddr_in *in = (struct sockaddr_in *)a;
        in->sin_family = AF_INET;
        in->sin_port = htons(9);
        memcpy(&in->sin_addr, g->raw + 12, 4);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(9);
    memcpy(&in6->sin6_addr, g->raw, 16);
    return sizeof *in6;
}

/* The source address of the kernel's route to the peer; false without a route. Sends nothing. */
static bool source_for(const union ibv_gid *peer, union ibv_gid *source)
{
    struct sockaddr_storage a;
    socklen_t bytes = sockaddr_of(peer, &a);
    int fd = socket(a.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, bytes) == 0 &&
              getsockname(fd, (struct sockaddr *)&a, &bytes) == 0;
    if (fd >= 0)
        close(fd);
    if (!ok)
        return false;
    *source = (union ibv_gid){0};
    if (a.ss_family == AF_INET) {
        source->raw[10] = source->raw[11] = 0xff;
        memcpy(source->raw + 12, &((struct sockaddr_in *)&a)->sin_addr, 4);
    } else {
        memcpy(source->raw, &((struct sockaddr_in6 *)&a)->sin6_addr, 16);
    }
    return true;
}

static bool same_gid(const union ibv_gid *a, const union ibv_gid *b)
{
    return !memcmp(a->raw, b->raw, sizeof a->raw);
}

/* 0: does not reach it; larger is better. */
static int reach(const struct tarn_rail *r, const struct tarn_endpoint *peer, const union ibv_gid *source)
{
    if (r->roce != peer->roce || (r->roce && gid_is_v4(&r->gid) != gid_is_v4(&peer->gid)))
        return 0;
    if (same_gid(&r->gid, &peer->gid))
        return 4; /* the same port */
    if (source && same_gid(&r->gid, source))
        return 3;
    if (r->gid.global.subnet_prefix == peer->gid.global.subnet_prefix && !(r->roce && gid_is_v4(&r->gid)))
        return 2;
    return r->roce && source && !same_gid(source, &peer->gid) ? 0 : 1;
}

const struct tarn_rail *tarn_rail_reaching(const struct tarn_rails *r, const struct tarn_endpoint *peer,
                                           uint32_t prefer)
{
    union ibv_gid source;
    bool routed = peer->roce && source_for(&peer->gid, &source);
    const struct tarn_rail *best = NULL;
    int best_reach = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        const struct tarn_rail *rail = &r->rail[(prefer + k) % r->n];
        int how = reach(rail, peer, routed ? &source : NULL);
        if (how > best_reach) {
            best_reach = how;
            best = rail;
        }
    }
    return best;
}
