/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a client; its figures. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "base/thread.h"
#include "client/cache.h"
#include "client/check.h"
#include "client/gpu/forwards.h"
#include "client/gpu/proxies.h"
#include "client/gpu/tables.h"
#include "client/memory.h"
#include "client/monitor.h"
#include "client/op.h"
#include "client/put_session.h"
#include "client/read_lease_ask.h"
#include "client/refresh.h"
#include "client/retire.h"
#include "client/setting.h"
#include "client/window/lender.h"
#include "client/window/reach.h"
#include "metadata/records.h"
#include "transport/faulty/faulty.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

static int alive_page(struct tarn_client *c)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "client: mmap of a page: %m");
    c->alive = p;
    madvise(p, page, MADV_WIPEONFORK); /* before Linux 4.14 only the fork check is lost */
    atomic_store(c->alive, 1);
    return 0;
}

static int client_init(struct tarn_client *c, const struct tarn_options *o)
{
    c->log = (struct tarn_logger){(enum tarn_log_level)o->log_level, o->log, o->log_arg};
    c->timeout_ms = o->timeout_ms ? o->timeout_ms : 5000;
    c->workers = o->workers ? o->workers : 2;
    c->session = tarn_random64();
    c->interrupt = o->interrupt;
    c->interrupt_arg = o->interrupt_arg;
    pthread_rwlock_init(&c->nodes_lock, NULL);
    pthread_mutex_init(&c->refresh_lock, NULL);
    tarn_cond_init(&c->refresh_done);
    pthread_mutex_init(&c->monitor.lock, NULL);
    pthread_mutex_init(&c->sessions_lock, NULL);
    pthread_mutex_init(&c->tables_lock, NULL);
    pthread_mutex_init(&c->proxies_lock, NULL);
    pthread_mutex_init(&c->forwards_lock, NULL);
    pthread_mutex_init(&c->memory_lock, NULL);
    pthread_mutex_init(&c->lender_lock, NULL);
    c->monitor.wake_fd = -1;
    tarn_read_leases_init(c);

    int rc = alive_page(c);
    if (rc == 0)
        rc = tarn_host_id(c->host_id);
    const char *secret = tarn_setting(o->secret, "TARN_SECRET");
    if (rc == 0 && secret && !*secret)
        rc = tarn_fail(TARN_E_CONFIG,
                       "secret: is empty: give the nodes' secret, or NULL for that of TARN_SECRET");
    c->secret_of_env = secret && !o->secret;
    if (rc == 0 && secret && !(c->secret = strdup(secret)))
        rc = tarn_fail(TARN_E_NO_MEMORY, "client: out of memory");
    if (rc == 0 && o->listen && !(c->listen = strdup(o->listen)))
        rc = tarn_fail(TARN_E_NO_MEMORY, "client: out of memory");
    return rc;
}

static int transports_init(struct tarn_client *c, const struct tarn_options *o)
{
    const char *faults = tarn_setting(NULL, "TARN_FAULTS");
    struct tarn_tcpx_settings tcpx;
    int rc = tarn_tcpx_settings(&tcpx); /* wrong settings fail here, not at the first use */

    if (rc != 0)
        return rc;
    int n = tarn_transport_select(o->transports, &c->log, c->transports, TARN_TRANSPORTS_MAX);
    if (n < 0)
        return n;
    for (int t = 0; t < n; t++) {
        rc = c->transports[t]->local_open(tarn_setting(NULL, "TARN_RDMA_DEVICES"), &c->locals[t]);
        if (rc != 0)
            return rc;
        c->ntransports = t + 1;
    }
    if (faults && !tarn_faulty_new)
        return tarn_fail(TARN_E_CONFIG,
                         "TARN_FAULTS is set, but this program injects no faults: unset it, or "
                         "run one that `make tests` links with the injector");
    return faults ? tarn_faulty_new(faults, &c->faulty) : 0;
}

/* A failure to reach Redis also says where the address came from, unless the caller gave it. */
static int directory_init(struct tarn_client *c, const struct tarn_options *o, uint64_t deadline)
{
    struct tarn_cancel own, *cancel = tarn_client_cancel(c, &own);
    const char *redis = tarn_setting(o->redis, "TARN_REDIS"), *ns = o->ns ? o->ns : "default";
    struct tarn_reason why;
    bool ns_valid = tarn_name_valid(ns, strlen(ns), TARN_NS_MAX);
    int rc = 0;

    if (redis && !*redis)
        rc = tarn_fail(TARN_E_CONFIG, "redis: the address is empty: give the one that tarnd has printed, or "
                                      "none for that of TARN_REDIS");
    if (rc == 0)
        rc = tarn_directory_open(redis ? redis : "redis://127.0.0.1:6379", ns, &c->log, deadline, cancel,
                                 &c->directory);
    if (rc == 0)
        rc = tarn_peer_nodes_refresh(c, deadline, cancel);
    if (rc == 0 || o->redis || !ns_valid || rc == TARN_E_NO_MEMORY || rc == TARN_E_CANCELED)
        return rc;
    tarn_reason_keep(&why, rc);
    return tarn_fail(rc, "%s; %s", why.text,
                     redis ? "this address is TARN_REDIS's"
                           : "no address was given: set TARN_REDIS to the one that tarnd has printed");
}

int tarn_open(const struct tarn_options *given, struct tarn_client **c_p)
{
    struct tarn_options o;
    int rc = tarn_out_check("open", c_p);
    if (rc == 0)
        rc = tarn_options_copy(&o, sizeof o, given);
    if (rc == 0 && o.reserved)
        rc = tarn_fail(TARN_E_INVALID, "open: tarn_options.reserved is set: zero the options first");
    if (rc != 0)
        return rc;
    struct tarn_client *c = aligned_alloc(64, sizeof *c);
    if (!c)
        return tarn_fail(TARN_E_NO_MEMORY, "client: out of memory");
    memset(c, 0, sizeof *c);
    rc = client_init(c, &o);
    uint64_t deadline = tarn_client_deadline(c, 0);
    if (rc == 0)
        rc = transports_init(c, &o);
    if (rc == 0)
        rc = tarn_cache_new(o.cache_entries ? o.cache_entries : 1u << 20, &c->cache);
    if (rc == 0)
        rc = directory_init(c, &o, deadline);
    if (rc == 0)
        rc = tarn_ops_new(c);
    if (rc == 0)
        rc = tarn_monitor_start(c);
    if (rc == 0)
        rc = tarn_read_leases_start(c);
    if (rc == 0) {
        *c_p = c;
        return 0;
    }
    struct tarn_reason why;
    tarn_reason_keep(&why, rc);
    tarn_close(c);
    return tarn_reason_fail(&why);
}

static void nodes_free(struct tarn_client *c)
{
    struct tarn_peer_node *node, *next;

    HASH_ITER (hh, c->nodes, node, next) {
        HASH_DEL(c->nodes, node);
        tarn_peer_node_free(node);
    }
}

void tarn_close(struct tarn_client *c)
{
    /* In a forked child, threads, sockets and mappings are the parent's. */
    if (!c || (c->alive && atomic_load(c->alive) == 0))
        return;
    tarn_ops_stop(c);
    tarn_put_sessions_close(c);
    tarn_forwards_close(c);
    tarn_proxies_close(c);
    tarn_tables_close(c);
    tarn_read_leases_stop(c);
    tarn_monitor_stop(c);
    tarn_ops_free(c);
    tarn_lender_stop(c->lender);
    tarn_reaches_leave(c);
    nodes_free(c);
    for (int t = 0; t < c->ntransports; t++)
        c->transports[t]->local_close(c->locals[t]);
    tarn_cache_free(c->cache);
    if (c->directory)
        tarn_directory_close(c->directory);
    if (c->faulty)
        tarn_faulty_free(c->faulty);
    if (c->alive)
        munmap(c->alive, (size_t)sysconf(_SC_PAGESIZE));
    tarn_read_leases_free(c);
    tarn_memory_free(c);
    pthread_mutex_destroy(&c->memory_lock);
    pthread_mutex_destroy(&c->lender_lock);
    pthread_mutex_destroy(&c->forwards_lock);
    pthread_mutex_destroy(&c->proxies_lock);
    pthread_mutex_destroy(&c->tables_lock);
    pthread_mutex_destroy(&c->sessions_lock);
    pthread_mutex_destroy(&c->monitor.lock);
    pthread_cond_destroy(&c->refresh_done);
    pthread_mutex_destroy(&c->refresh_lock);
    pthread_rwlock_destroy(&c->nodes_lock);
    free(c->secret);
    free(c->listen);
    free(c);
}

/* --- figures ------------------------------------------------------------------------------------ */

static uint64_t total(const struct tarn_client *c, enum tarn_counter what)
{
    uint64_t n = 0;

    for (int i = 0; i < TARN_STRIPES; i++)
        n += atomic_load_explicit(&c->counters[i].n[what], memory_order_relaxed);
    return n;
}

int tarn_client_stats(struct tarn_client *c, struct tarn_stats *out)
{
    int rc = tarn_client_enter(c);
    if (rc != 0)
        return rc;
    if (!out || out->size < sizeof out->size)
        return tarn_fail(TARN_E_INVALID, "stats: size is not set: set it to sizeof (struct tarn_stats)");

    struct tarn_stats s = {
        .size = out->size,
        .gets = total(c, TARN_COUNT_GETS),
        .get_bytes = total(c, TARN_COUNT_GET_BYTES),
        .misses = total(c, TARN_COUNT_MISSES),
        .stale = total(c, TARN_COUNT_STALE),
        .puts = total(c, TARN_COUNT_PUTS),
        .put_bytes = total(c, TARN_COUNT_PUT_BYTES),
        .errors = total(c, TARN_COUNT_ERRORS),
        .directory_round_trips = tarn_directory_round_trips(c->directory),
        .cached_descriptors = tarn_cache_count(c->cache),
        .failovers = total(c, TARN_COUNT_FAILOVERS),
    };
    memcpy(out, &s, s.size < sizeof s ? s.size : sizeof s);
    return 0;
}
