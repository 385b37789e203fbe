/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libevent's HTTP server has a loop and a thread of its own. What a page shows belongs to the control thread,
 * so the page is written there, by a posted call, while the HTTP thread waits.
 */
#include "server/control/admin.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/net.h"
#include "base/thread.h"
#include "server/control/info.h"
#include "server/directory/presence.h"
#include "server/directory/scrub.h"

#define TIMEOUT_S 10
#define REQUEST_MAX 8192

struct tarn_admin {
    struct tarn_node *node;
    struct event_base *base;
    struct evhttp *http;
    struct event *end;
    int end_fd; /* readable: the thread ends */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t written;
    bool ending; /* no page is written any more */
    char address[280];
};

/* A page, from the request to its text. */
struct page {
    struct tarn_admin *admin;
    bool (*write)(const struct tarn_node *n, struct tarn_buf *text);
    struct tarn_buf text;
    bool ok, done;
};

/* --- the text of /metrics, in Prometheus's exposition format --------------------------------------- */

static void family(struct tarn_buf *out, const char *name, const char *type, const char *help)
{
    tarn_buf_printf(out, "# HELP tarn_%s %s\n# TYPE tarn_%s %s\n", name, help, name, type);
}

static void single(struct tarn_buf *out, const char *name, const char *type, const char *help, double value)
{
    family(out, name, type, help);
    tarn_buf_printf(out, "tarn_%s %.15g\n", name, value);
}

/* One family with a value for each pool. */
struct pool_metric {
    const char *name, *type, *help;
    size_t offset; /* in struct tarn_pool_stats */
};

#define POOL_METRIC(member_, name_, type_, help_) \
    { \
        "pool_" name_, type_, help_, offsetof(struct tarn_pool_stats, member_) \
    }
static const struct pool_metric pool_metrics[] = {
    POOL_METRIC(bytes, "bytes", "gauge", "Size of the pool."),
    POOL_METRIC(used, "used_bytes", "gauge", "Bytes in extents."),
    POOL_METRIC(largest_hole, "largest_hole_bytes", "gauge", "Largest tensor that fits without eviction."),
    POOL_METRIC(objects, "objects", "gauge", "Readable objects."),
    POOL_METRIC(slots, "slots", "gauge", "Objects at most."),
    POOL_METRIC(reserved, "reserved", "gauge", "Reservations not yet committed."),
    POOL_METRIC(reserved_bytes, "reserved_bytes", "gauge", "Bytes of those."),
    POOL_METRIC(limbo, "limbo", "gauge", "Removed objects that somebody still reads."),
    POOL_METRIC(evicted, "evicted_total", "counter", "Objects evicted."),
    POOL_METRIC(evicted_bytes, "evicted_bytes_total", "counter", "Bytes of those."),
    POOL_METRIC(expired, "expired_total", "counter", "Objects whose time was up."),
    POOL_METRIC(refused, "refused_total", "counter", "Reservations refused because the pool was full."),
};

static void pool_families(const struct tarn_node *n, struct tarn_buf *out)
{
    uint32_t npools;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &npools);
    for (size_t m = 0; m < sizeof(pool_metrics) / sizeof(pool_metrics[0]); m++) {
        family(out, pool_metrics[m].name, pool_metrics[m].type, pool_metrics[m].help);
        for (uint32_t i = 0; i < npools; i++) {
            struct tarn_pool_stats stats;
            tarn_store_stats(n->store, i, &stats);
            uint64_t value = *(const uint64_t *)((const char *)&stats + pool_metrics[m].offset);
            tarn_buf_printf(out, "tarn_%s{pool=\"%s\"} %" PRIu64 "\n", pool_metrics[m].name, pools[i].name,
                            value);
        }
    }
}

static void commit_histogram(const struct tarn_node_stats *s, struct tarn_buf *out)
{
    uint64_t seen = 0;
    family(out, "commit_seconds", "histogram", "Time from COMMIT to its answer; the sum is an upper bound.");
    double sum = 0;
    for (int i = 0; i < TARN_LATENCY_BUCKETS; i++) {
        double le = (double)(1ull << i) / 1e6;
        seen += s->commit_us[i];
        sum += le * (double)s->commit_us[i];
        if (i >= 4 && i <= 24 && i % 2 == 0)
            tarn_buf_printf(out, "tarn_commit_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", le, seen);
    }
    tarn_buf_printf(out, "tarn_commit_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", seen);
    tarn_buf_printf(out, "tarn_commit_seconds_sum %g\ntarn_commit_seconds_count %" PRIu64 "\n", sum, seen);
}

static void process_families(struct tarn_buf *out)
{
    struct tarn_process_figures p;
    tarn_process_figures(&p);
    single(out, "process_cpu_seconds_total", "counter", "CPU time of the node.", p.cpu_s);
    single(out, "process_resident_bytes", "gauge", "Resident memory, touched pool memory included.",
           (double)p.resident_bytes);
    single(out, "process_private_bytes", "gauge", "Resident memory without shared memory.",
           (double)p.private_bytes);
}

static void directory_families(const struct tarn_node *n, struct tarn_buf *out)
{
    struct tarn_directory_thread_stats d;
    tarn_directory_thread_stats(n->directory_thread, &d);
    struct tarn_scrub_stats scrub = tarn_scrub_stats(n->scrub);
    single(out, "directory_up", "gauge", "1 when the last call to Redis succeeded.", !d.away);
    single(out, "directory_calls_total", "counter", "Calls to Redis.", (double)d.calls);
    single(out, "directory_failed_calls_total", "counter", "Calls to Redis that failed.",
           (double)d.failed_calls);
    single(out, "directory_waiting_withdrawals", "gauge", "Locations that still have to leave Redis.",
           (double)d.waiting_withdrawals);
    single(out, "restored_total", "counter", "Objects published again.", (double)scrub.restored);
    single(out, "scrub_withdrawn_total", "counter", "Void locations withdrawn.", (double)scrub.withdrawn);
}

static void metrics_text(const struct tarn_node *n, struct tarn_buf *out)
{
    struct tarn_session_figures f;
    const struct tarn_node_stats *s = &n->stats;
    tarn_session_figures(n, &f);
    family(out, "node_info", "gauge", "Who this is.");
    tarn_buf_printf(out, "tarn_node_info{node=\"%s\",version=\"%s\",state=\"%s\"} 1\n", n->id, tarn_version(),
                    tarn_node_state_name(n));
    pool_families(n, out);
    single(out, "sessions", "gauge", "Clients connected.", (double)f.connected);
    single(out, "sessions_lingering", "gauge", "Clients gone whose process still runs.", (double)f.lingering);
    single(out, "oldest_reservation_seconds", "gauge", "Age of the oldest reservation.",
           (double)f.oldest_reservation_ms / 1e3);
    single(out, "commands_total", "counter", "Control commands.", (double)n->host.commands);
    single(out, "errors_total", "counter", "Error answers.", (double)n->host.errors);
    single(out, "reserved_total", "counter", "Reservations granted.", (double)s->reserved);
    single(out, "committed_total", "counter", "Objects committed.", (double)s->committed);
    single(out, "commit_failed_total", "counter", "Commits refused or not published.",
           (double)s->commit_failed);
    commit_histogram(s, out);
    directory_families(n, out);
    process_families(out);
}

/* Healthy: takes puts and has its directory. */
static bool write_health(const struct tarn_node *n, struct tarn_buf *text)
{
    struct tarn_directory_thread_stats d;
    tarn_directory_thread_stats(n->directory_thread, &d);
    tarn_buf_printf(text, "{\"node\":\"%s\",\"state\":\"%s\",\"redis\":\"%s\"}\n", n->id,
                    tarn_node_state_name(n), d.away ? "away" : "ok");
    return !d.away && n->state == TARN_NODE_READY;
}

static bool write_metrics(const struct tarn_node *n, struct tarn_buf *text)
{
    metrics_text(n, text);
    return true;
}

/* --- pages -------------------------------------------------------------------------------------- */

/* On the control thread. */
static void write_page(void *arg)
{
    struct page *p = arg;
    struct tarn_admin *a = p->admin;
    p->ok = p->write(a->node, &p->text);
    pthread_mutex_lock(&a->lock);
    p->done = true;
    pthread_cond_signal(&a->written);
    pthread_mutex_unlock(&a->lock);
}

/* False: the node ends, or has no memory. */
static bool await_page(struct page *p)
{
    struct tarn_admin *a = p->admin;
    if (tarn_loop_post(a->node->host.loop, write_page, p))
        return false;
    pthread_mutex_lock(&a->lock);
    while (!p->done && !a->ending)
        pthread_cond_wait(&a->written, &a->lock);
    bool done = p->done;
    pthread_mutex_unlock(&a->lock);
    return done && !p->text.failed;
}

static void answer(struct evhttp_request *request, struct page *p, const char *type)
{
    struct evbuffer *body = evbuffer_new();
    if (!body || !await_page(p) || evbuffer_add(body, p->text.data, p->text.bytes)) {
        evhttp_send_error(request, HTTP_INTERNAL, "out of memory");
    } else {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
        evhttp_send_reply(request, p->ok ? HTTP_OK : HTTP_SERVUNAVAIL, p->ok ? "OK" : "Service Unavailable",
                          body);
    }
    if (body)
        evbuffer_free(body);
    tarn_buf_free(&p->text);
}

static void metrics(struct evhttp_request *request, void *arg)
{
    struct page p = {.admin = arg, .write = write_metrics};
    answer(request, &p, "text/plain; version=0.0.4");
}

static void health(struct evhttp_request *request, void *arg)
{
    struct page p = {.admin = arg, .write = write_health};
    answer(request, &p, "application/json");
}

/* --- start and stop ----------------------------------------------------------------------------- */

static void end_thread(evutil_socket_t fd, short what, void *arg)
{
    const struct tarn_admin *a = arg;
    (void)fd, (void)what;
    event_base_loopbreak(a->base);
}

static void *run(void *arg)
{
    const struct tarn_admin *a = arg;
    event_base_dispatch(a->base);
    return NULL;
}

/* Serves on fd, which is the server's from then on. False: out of memory. */
static bool serve(struct tarn_admin *a, int fd)
{
    a->base = event_base_new();
    a->http = a->base ? evhttp_new(a->base) : NULL;
    a->end = a->base ? event_new(a->base, a->end_fd, EV_READ, end_thread, a) : NULL;
    if (!a->http || !a->end || event_add(a->end, NULL) || evhttp_set_cb(a->http, "/metrics", metrics, a) ||
        evhttp_set_cb(a->http, "/health", health, a) || evhttp_accept_socket(a->http, fd))
        return false;
    evhttp_set_allowed_methods(a->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_timeout(a->http, TIMEOUT_S);
    evhttp_set_max_headers_size(a->http, REQUEST_MAX);
    evhttp_set_max_body_size(a->http, REQUEST_MAX);
    return true;
}

static int admin_new(struct tarn_node *n, const struct tarn_addr *addr, struct tarn_admin **a_p)
{
    struct tarn_admin *a = calloc(1, sizeof(*a));
    if (!a)
        return tarn_fail(TARN_E_NO_MEMORY, "--http: out of memory");
    a->node = n;
    pthread_mutex_init(&a->lock, NULL);
    tarn_cond_init(&a->written);
    tarn_addr_format(addr, a->address, sizeof(a->address));
    *a_p = a;
    a->end_fd = eventfd(0, EFD_CLOEXEC);
    return a->end_fd < 0 ? tarn_fail(TARN_E_SYSTEM, "--http: eventfd: %m: raise the limit of open files") : 0;
}

int tarn_admin_start(struct tarn_node *n, const char *address, struct tarn_admin **a_p)
{
    struct tarn_admin *a = NULL;
    struct tarn_addr addr;
    int fd, rc = tarn_addr_parse(address, "--http", &addr);
    if (!rc)
        rc = tarn_net_listen(&addr, &fd);
    if (rc)
        return rc;
    rc = admin_new(n, &addr, &a);
    if (!rc && !serve(a, fd))
        rc = tarn_fail(TARN_E_NO_MEMORY, "--http %s: out of memory", address);
    if (rc)
        close(fd);
    int error = rc ? 0 : tarn_thread_start(&a->thread, run, a);
    if (error)
        rc = tarn_fail(TARN_E_SYSTEM, "--http: no thread: %s: allow more threads", strerror(error));
    if (rc) {
        tarn_admin_stop(a);
        return rc;
    }
    a->started = true;
    *a_p = a;
    return 0;
}

/* The node's loop has ended or has not begun: a page that waits for it is not written any more. */
void tarn_admin_stop(struct tarn_admin *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->ending = true;
    pthread_cond_signal(&a->written);
    pthread_mutex_unlock(&a->lock);
    if (a->started) {
        eventfd_write(a->end_fd, 1);
        pthread_join(a->thread, NULL);
    }
    if (a->http)
        evhttp_free(a->http);
    if (a->end)
        event_free(a->end);
    if (a->base)
        event_base_free(a->base);
    if (a->end_fd >= 0)
        close(a->end_fd);
    pthread_cond_destroy(&a->written);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

const char *tarn_admin_address(const struct tarn_admin *a)
{
    return a->address;
}
