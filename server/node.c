/* SPDX-License-Identifier: Apache-2.0 */
/* A node's life: start, heartbeat, end. drain.c has the orderly end, identity.c the node's id and addresses.
 */
#include "server/node.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/net.h"
#include "base/text.h"
#include "base/thread.h"
#include "server/control/admin.h"
#include "server/control/commands.h"
#include "server/control/names.h"
#include "server/directory/presence.h"
#include "server/directory/private_redis.h"
#include "server/directory/recheck.h"
#include "server/directory/scrub.h"
#include "server/drain.h"
#include "server/identity.h"
#include "server/store/keep.h"
#include "server/store/populate.h"
#include "transport/host/start.h"

#define AT "node"
#define TICK_MS 100
#define REDIS_START_MS 10000
#define IO_THREADS_MAX 16 /* unless the operator asks for more */

/* --- store and transports ----------------------------------------------------------------------- */

/* An object left the store. The record may still name it, a released copy's, too. */
static void object_gone(void *arg, const struct tarn_key *key, const struct tarn_location *l, uint64_t bytes,
                        enum tarn_left why)
{
    static const char *const events[] = {[TARN_LEFT_EVICTED] = "evicted",
                                         [TARN_LEFT_EXPIRED] = "expired",
                                         [TARN_LEFT_REMOVED] = "removed",
                                         [TARN_LEFT_RELEASED] = NULL};
    struct tarn_node *n = arg;
    tarn_directory_thread_withdraw(n->directory_thread, key, l, bytes, events[why]);
}

/* --- the state directory ------------------------------------------------------------------------ */

static int keep_pool_of(const char *text, struct tarn_keep_pool *out)
{
    struct tarn_pool_options o;
    int rc = tarn_pool_options_parse(text, &o);
    if (!rc && (o.device[0] || o.huge))
        rc = tarn_fail(
            TARN_E_CONFIG,
            "--state-dir: pool %s: %s: leave --state-dir out, or give that pool to another node", o.name,
            o.huge ? "huge=1 takes memory that is in no directory; a tmpfs mounted with huge=always has "
                     "huge pages, too"
                   : "the memory of a GPU does not outlive the process");
    *out = (struct tarn_keep_pool){.bytes = o.bytes, .align = o.align, .slots = tarn_pool_slots(&o)};
    memcpy(out->name, o.name, sizeof(out->name));
    return rc;
}

static int open_keep(struct tarn_node *n)
{
    const struct tarn_node_config *c = n->config;
    struct tarn_keep_owner *owner = calloc(1, sizeof(*owner));
    const char *redis = c->redis ? c->redis : "";
    int rc = owner ? 0 : tarn_fail(TARN_E_NO_MEMORY, "--state-dir: out of memory");
    if (!rc && !c->id)
        rc = tarn_fail(TARN_E_CONFIG, "--state-dir: a state belongs to a node: give it an --id");
    for (size_t i = 0; !rc && i < c->pools.n; i++)
        rc = keep_pool_of(c->pools.values[i], &owner->pools[owner->npools++]);
    if (!rc) {
        memcpy(owner->id, n->id, sizeof(owner->id));
        snprintf(owner->ns, sizeof(owner->ns), "%s", c->ns);
        owner->redis = tarn_hash(redis, strlen(redis), 0);
        owner->heartbeat_ms = (uint32_t)c->heartbeat_ms;
        n->tick_base_ns = tarn_now_ns();
        rc = tarn_keep_open(c->state_dir, owner, &n->log, &n->epoch, &n->tick_base_ns, &n->keep);
    }
    free(owner);
    return rc;
}

static void add_old_page(void *arg, void *page)
{
    struct tarn_node *n = arg;
    if (tarn_store_hazard_add(n->store, page))
        n->pages_failed = true;
}

static void remove_old_page(void *arg, void *page)
{
    struct tarn_node *n = arg;
    tarn_store_hazard_remove(n->store, page);
}

/* Pages first: they say what must not be freed. */
static int take_over(struct tarn_node *n)
{
    uint64_t objects = 0, since = tarn_now_ns();
    int rc = tarn_keep_pages(n->keep, sizeof(struct tarn_hazard_page), add_old_page, n);
    if (!rc && n->pages_failed)
        rc = tarn_fail(TARN_E_NO_MEMORY, "--state-dir: out of memory");
    if (!rc && tarn_keep_found(n->keep)) {
        n->taken_over = tarn_presence_take_over(n);
        rc = n->taken_over
                 ? tarn_store_take_over(n->store)
                 : tarn_fail(TARN_E_CONFIG,
                             "--state-dir %s: the file \"presence\" is damaged: remove the state's files",
                             n->config->state_dir);
    }
    if (!rc)
        rc = tarn_keep_begin(n->keep);
    for (uint32_t i = 0; !rc && i < n->config->pools.n; i++) {
        struct tarn_pool_stats stats;
        tarn_store_stats(n->store, i, &stats);
        objects += stats.objects;
    }
    if (!rc && n->taken_over)
        tarn_log(&n->log, TARN_LOG_INFO, AT, "msg=\"state taken over\" objects=%" PRIu64 " ms=%" PRIu64,
                 objects, (uint64_t)((tarn_now_ns() - since) / TARN_NS_PER_MS));
    return rc;
}

static int start_store(struct tarn_node *n)
{
    const struct tarn_node_config *c = n->config;
    int rc = c->state_dir ? open_keep(n) : 0;
    if (rc)
        return rc;
    struct tarn_store_options o = {
        .epoch = n->epoch,
        .keep = n->keep,
        .tick_base_ns = n->tick_base_ns,
        .node = n->id,
        .session_reserved_max = c->session_reserved_max,
        .gone = object_gone,
        .arg = n,
    };
    rc = tarn_eviction_parse(c->eviction, &o.eviction);
    if (!rc)
        rc = tarn_store_new(&o, &n->store);
    for (size_t i = 0; !rc && i < c->pools.n; i++) {
        struct tarn_pool_options pool;
        rc = tarn_pool_options_parse(c->pools.values[i], &pool);
        if (!rc)
            rc = tarn_store_add_pool(n->store, &pool);
    }
    return rc || !n->keep ? rc : take_over(n);
}

static uint32_t io_threads(void)
{
    uint32_t n = tarn_processors();
    return n > IO_THREADS_MAX ? IO_THREADS_MAX : n;
}

static int start_transports(struct tarn_node *n, const char *host)
{
    struct tarn_serve serve = {
        .log = &n->log,
        .host = host,
        .port = (uint16_t)n->config->data_port,
        .io_threads = n->config->io_threads ? (uint32_t)n->config->io_threads : io_threads(),
        .rdma_devices = n->config->rdma_devices,
        .rdma_region_bytes = n->config->rdma_region_bytes,
        .epoch = n->epoch,
        .guard = tarn_store_guard(n->store),
    };
    serve.pools = tarn_store_pools(n->store, &serve.npools);
    return tarn_host_serve(&n->host, &serve, n->config->transports, n->config->transports != NULL);
}

/* After the transports, which may pin memory as they find it. */
static int start_populate(struct tarn_node *n)
{
    uint32_t npools;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &npools);
    return tarn_populate_start(pools, npools, &n->log, &n->populate);
}

/* --- the host ----------------------------------------------------------------------------------- */

static struct tarn_node *node_of(const struct tarn_host *h)
{
    return TARN_CONTAINER_OF(h, struct tarn_node, host);
}

static bool wants_secret(const struct tarn_host *h)
{
    return tarn_node_secret(node_of(h)) != NULL;
}

static const char *unix_path(const struct tarn_host *h)
{
    return node_of(h)->record.unix_path;
}

static int hazard_file(struct tarn_session *s, size_t bytes, int *fd_p)
{
    const struct tarn_node *n = node_of(s->all->host);
    return n->keep ? tarn_keep_page_new(n->keep, s->pid, bytes, fd_p) : 0;
}

static int hazard_add(struct tarn_session *s, struct tarn_hazard_page *page)
{
    return tarn_store_hazard_add(node_of(s->all->host)->store, page);
}

static void hazard_remove(struct tarn_session *s, struct tarn_hazard_page *page)
{
    const struct tarn_node *n = node_of(s->all->host);
    tarn_store_hazard_remove(n->store, page);
    if (n->keep)
        tarn_keep_page_end(n->keep, s->hazard_fd, s->quit);
}

static bool release(struct tarn_session *s, bool over)
{
    struct tarn_node *n = node_of(s->all->host);
    if (over && n->directory_thread)
        tarn_names_forget(n, s->id);
    uint32_t aborted = tarn_store_abort_session(n->store, s->id);
    if (aborted && over)
        tarn_log(&n->log, TARN_LOG_INFO, "session",
                 "msg=\"reservations of a gone client freed\" session=%016" PRIx64 " pid=%d reservations=%u",
                 s->id, (int)s->pid, aborted);
    else if (aborted)
        tarn_reservations_changed(s);
    return aborted > 0;
}

static void released(struct tarn_host *h)
{
    node_of(h)->drain_check(node_of(h));
}

static const struct tarn_host_ops host_ops = {
    .run = tarn_command_run,
    .commands = &tarn_node_commands,
    .wants_secret = wants_secret,
    .authenticate = tarn_node_authenticate,
    .greet = tarn_node_greet,
    .unix_path = unix_path,
    .hazard_file = hazard_file,
    .hazard_add = hazard_add,
    .hazard_remove = hazard_remove,
    .release = release,
    .released = released,
};

/* --- heartbeat ---------------------------------------------------------------------------------- */

static void fill_pools(struct tarn_node *n)
{
    for (uint32_t i = 0; i < n->record.npools; i++) {
        struct tarn_pool_stats stats;
        tarn_store_stats(n->store, i, &stats);
        n->pools[i].free_bytes = stats.free;
        n->pools[i].objects = stats.objects;
    }
}

static void beat(struct tarn_node *n)
{
    /* A beat behind the farewell would bring the record back. */
    if (n->beating || n->leaving)
        return;
    fill_pools(n);
    tarn_presence_fill(n, &n->beat.beat);
    n->beating = true;
    n->beat_at_ns = 0;
    n->beat_sent_ns = tarn_now_ns();
    tarn_directory_thread_submit(n->directory_thread, &n->beat);
}

/* Writes the record at once: its state has changed. */
static void beat_now(struct tarn_node *n)
{
    n->beat_again = n->beating;
    beat(n);
}

static void drain(struct tarn_node *n)
{
    if (tarn_drain_begin(n))
        beat_now(n);
}

static void rechecked(void *arg)
{
    struct tarn_node *n = arg;
    if (tarn_presence_rechecked(n))
        beat_now(n);
}

/* After a beat: runs the scrub and what is due soon. */
static void beat_follows(struct tarn_node *n, const struct tarn_beat *b)
{
    const struct tarn_directory_state *s = &b->state;
    if (b->expires_in_ms)
        n->beat_at_ns = tarn_deadline(b->expires_in_ms);
    if (s->now_ms < s->since_ms + n->ttl_ms &&
        s->since_ms + n->ttl_ms < s->now_ms + (uint64_t)n->config->heartbeat_ms)
        n->beat_at_ns = tarn_deadline((uint32_t)(s->since_ms + n->ttl_ms - s->now_ms));
    if (n->state == TARN_NODE_WITHDRAWING)
        return;
    tarn_recheck_tick(n->recheck);
    if (b->left)
        tarn_scrub_sweep_all(n->scrub);
    if (!tarn_presence_scrubs(n))
        return;
    bool doubts = tarn_directory_thread_doubts(n->directory_thread) || n->compare_all;
    n->compare_all = false;
    if (doubts) {
        tarn_scrub_sweep_all(n->scrub);
        tarn_scrub_check_all(n->scrub);
    }
    tarn_scrub_tick(n->scrub);
}

/* A start that takes longer than the record lives leaves no record, so the record that the start wrote is not
 * enough. */
static void ready_if_listed(struct tarn_node *n, const struct tarn_beat *b)
{
    if (!n->ready || n->state != TARN_NODE_READY || b->gone || b->other ||
        strcmp(n->record.state, "ready") != 0)
        return;
    n->ready(n);
    n->ready = NULL;
}

static void beat_done(struct tarn_request *r)
{
    struct tarn_node *n = TARN_CONTAINER_OF(r, struct tarn_node, beat);
    bool again = n->beat_again;
    n->beating = n->beat_again = false;
    if (r->failure.code == TARN_E_CANCELED)
        return;
    if (!r->failure.code && r->beat.taken_epoch) {
        tarn_drain_taken(n, r->beat.taken_epoch);
        return;
    }
    if (!r->failure.code) {
        again |= tarn_presence_beaten(n, &r->beat, n->beat_sent_ns);
        beat_follows(n, &r->beat);
        ready_if_listed(n, &r->beat);
    }
    if (r->beat.conflict)
        tarn_presence_conflict(n, r->failure.text);
    if (again)
        beat(n);
}

static void heartbeat(void *arg)
{
    struct tarn_node *n = arg;
    beat(n);
    tarn_control_tick(n->host.control);
    tarn_names_tick(n);
}

/* Without a directory nobody finds what the node holds: it ends, and whoever has started it can tell. */
static void redis_is_lost(struct tarn_node *n)
{
    tarn_log(&n->log, TARN_LOG_ERROR, AT, "msg=\"the node ends\" cause=\"%s\"", tarn_last_error());
    n->exit_status = 1;
    tarn_loop_stop(n->host.loop);
}

static void tick(void *arg)
{
    struct tarn_node *n = arg;
    if (n->redis && tarn_private_redis_tend(n->redis, &n->log)) {
        redis_is_lost(n);
        return;
    }
    if (n->keep && !tarn_keep_pages_tick(n->keep, remove_old_page, n))
        tarn_store_writers_gone(n->store);
    tarn_store_tick(n->store);
    tarn_directory_thread_tick(n->directory_thread);
    if (n->beat_at_ns && tarn_now_ns() >= n->beat_at_ns)
        beat(n);
    if (n->state != TARN_NODE_READY)
        tarn_drain_check(n);
}

/* --- start -------------------------------------------------------------------------------------- */

/* Each client has a connection or two, so thousands must fit. */
static void allow_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int start_directory(struct tarn_node *n)
{
    const struct tarn_node_config *c = n->config;
    const char *uri = c->redis;
    if (!uri) {
        int rc = tarn_private_redis_start(n->unix_dir, tarn_deadline(REDIS_START_MS), &n->redis);
        if (rc)
            return rc;
        uri = tarn_private_redis_socket_uri(n->redis);
    }
    int rc = tarn_directory_open(uri, c->ns, &n->log, tarn_deadline((uint32_t)c->redis_timeout_ms), NULL,
                                 &n->directory);
    return rc ? rc : tarn_directory_check_redis(n->directory, tarn_deadline((uint32_t)c->redis_timeout_ms));
}

static int start_directory_thread(struct tarn_node *n)
{
    struct tarn_directory_thread_options o = {
        .loop = n->host.loop,
        .directory = n->directory,
        .log = &n->log,
        .node = n->id,
        .timeout_ms = (uint32_t)n->config->redis_timeout_ms,
        .heartbeat_ms = (uint32_t)n->config->heartbeat_ms,
        .ttl_ms = n->ttl_ms,
        .claimed = n->presence.claimed,
    };
    o.pools = tarn_store_pools(n->store, &o.npools);
    n->beat = (struct tarn_request){.kind = TARN_REQUEST_BEAT, .done = beat_done};
    return tarn_directory_thread_start(&o, &n->directory_thread);
}

static int start_scrub(struct tarn_node *n)
{
    const struct tarn_scrub_options o = {
        .store = n->store,
        .directory_thread = n->directory_thread,
        .log = &n->log,
        .directory = n->presence.known,
        .heartbeat_ms = (uint32_t)n->config->heartbeat_ms,
        .scrub_s = (uint32_t)n->config->scrub_s,
    };
    return tarn_scrub_new(&o, &n->scrub);
}

/* Sockets and what can be told about them; the record is then complete. */
static int start_control(struct tarn_node *n, struct tarn_addr *listen_addr,
                         const struct tarn_addr *unix_addr)
{
    int rc = tarn_host_listen(&n->host, listen_addr, unix_addr);
    if (!rc)
        rc = tarn_identity_share(n, unix_addr);
    return rc ? rc : tarn_identity_record(n, listen_addr, unix_addr);
}

static int start_all(struct tarn_node *n)
{
    struct tarn_addr listen_addr, unix_addr;
    int rc = tarn_addr_parse(n->config->listen, "--listen", &listen_addr);
    allow_open_files();
    if (!rc)
        rc = tarn_identity_choose(n, &unix_addr);
    if (!rc)
        rc = tarn_loop_new(&n->host.loop);
    if (!rc)
        rc = start_store(n);
    if (!rc)
        rc = start_transports(n, listen_addr.host);
    if (!rc)
        rc = start_populate(n);
    if (!rc)
        rc = start_control(n, &listen_addr, &unix_addr);
    if (!rc)
        rc = start_directory(n);
    if (!rc)
        rc = tarn_identity_secret(n, &listen_addr);
    if (!rc)
        rc = tarn_identity_claim(n);
    if (!rc)
        rc = start_directory_thread(n);
    if (!rc)
        rc = start_scrub(n);
    if (!rc)
        rc = tarn_recheck_new(n->store, n->directory_thread, rechecked, n, &n->recheck);
    if (!rc && n->config->http)
        rc = tarn_admin_start(n, n->config->http, &n->admin);
    if (!rc)
        rc = tarn_timer_new(n->host.loop, TICK_MS, tick, n, &n->tick);
    if (!rc)
        rc = tarn_timer_new(n->host.loop, (uint32_t)n->config->heartbeat_ms, heartbeat, n, &n->heartbeat);
    if (!rc) {
        beat(n);
        tarn_scrub_sweep_all(n->scrub);
        n->compare_all = n->taken_over;
    }
    return rc;
}

int tarn_node_start(const struct tarn_node_config *c, const struct tarn_logger *log, struct tarn_node **n_p)
{
    struct tarn_node *n = calloc(1, sizeof(*n));
    if (!n)
        return tarn_fail(TARN_E_NO_MEMORY, "node: out of memory");
    n->config = c;
    n->log = *log;
    n->host.ops = &host_ops;
    n->host.log = &n->log;
    n->host.id = n->id;
    n->drain = drain;
    n->drain_check = tarn_drain_check;
    n->epoch = tarn_random64();
    n->started_ns = tarn_now_ns();
    n->ttl_ms = 3 * (uint32_t)c->heartbeat_ms;
    int rc = start_all(n);
    struct tarn_reason why;
    if (tarn_reason_keep(&why, rc)) {
        tarn_node_free(n);
        return tarn_reason_fail(&why);
    }
    *n_p = n;
    return 0;
}

int tarn_node_run(struct tarn_node *n)
{
    tarn_loop_run(n->host.loop);
    return n->exit_status;
}

/* --- end ---------------------------------------------------------------------------------------- */

/* Connections first, so that nobody asks for what is being taken apart; the store's memory last. */
void tarn_node_free(struct tarn_node *n)
{
    if (!n)
        return;
    tarn_watch_free(n->tick);
    tarn_watch_free(n->heartbeat);
    tarn_watch_free(n->expiry);
    tarn_admin_stop(n->admin);
    if (n->store)
        tarn_store_freeze(n->store);
    tarn_host_end(&n->host);
    tarn_names_free(n);
    tarn_directory_thread_stop(n->directory_thread);
    n->directory_thread = NULL;
    tarn_scrub_free(n->scrub);
    tarn_recheck_free(n->recheck);
    tarn_directory_close(n->directory);
    tarn_populate_stop(n->populate);
    tarn_store_free(n->store);
    tarn_keep_close(n->keep);
    tarn_loop_free(n->host.loop);
    tarn_private_redis_stop(n->redis);
    free(n);
}
