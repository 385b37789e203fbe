/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/admin.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/net.h"
#include "server/control/info.h"
#include "server/directory/presence.h"
#include "server/directory/scrub.h"

#define TIMEOUT_S 10
#define REQUEST_MAX 8192

struct tarn_admin {
    struct tarn_node *node;
    struct evhttp *http;
    char address[280];
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
    single(out, "commands_total", "counter", "Control commands.", (double)s->commands);
    single(out, "errors_total", "counter", "Error answers.", (double)s->errors);
    single(out, "reserved_total", "counter", "Reservations granted.", (double)s->reserved);
    single(out, "committed_total", "counter", "Objects committed.", (double)s->committed);
    single(out, "commit_failed_total", "counter", "Commits refused or not published.",
           (double)s->commit_failed);
    commit_histogram(s, out);
    directory_families(n, out);
    process_families(out);
}

/* --- HTTP --------------------------------------------------------------------------------------- */

static void reply(struct evhttp_request *request, int code, const char *reason, const char *type,
                  const struct tarn_buf *text)
{
    struct evbuffer *body = evbuffer_new();
    if (!body || text->failed || evbuffer_add(body, text->data, text->bytes)) {
        evhttp_send_error(request, HTTP_INTERNAL, "out of memory");
    } else {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
        evhttp_send_reply(request, code, reason, body);
    }
    if (body)
        evbuffer_free(body);
}

static void metrics(struct evhttp_request *request, void *arg)
{
    const struct tarn_admin *a = arg;
    struct tarn_buf text = {0};
    metrics_text(a->node, &text);
    reply(request, HTTP_OK, "OK", "text/plain; version=0.0.4", &text);
    tarn_buf_free(&text);
}

/* Healthy: takes puts and has its directory. */
static void health(struct evhttp_request *request, void *arg)
{
    const struct tarn_admin *a = arg;
    struct tarn_directory_thread_stats d;
    struct tarn_buf text = {0};
    tarn_directory_thread_stats(a->node->directory_thread, &d);
    bool ok = !d.away && a->node->state == TARN_NODE_READY;
    tarn_buf_printf(&text, "{\"node\":\"%s\",\"state\":\"%s\",\"redis\":\"%s\"}\n", a->node->id,
                    tarn_node_state_name(a->node), d.away ? "away" : "ok");
    reply(request, ok ? HTTP_OK : HTTP_SERVUNAVAIL, ok ? "OK" : "Service Unavailable", "application/json",
          &text);
    tarn_buf_free(&text);
}

int tarn_admin_start(struct tarn_node *n, const char *address, struct tarn_admin **a_p)
{
    struct tarn_addr addr;
    int fd, rc = tarn_addr_parse(address, "--http", &addr);
    if (!rc)
        rc = tarn_net_listen(&addr, &fd);
    if (rc)
        return rc;
    struct tarn_admin *a = calloc(1, sizeof(*a));
    if (a)
        a->http = evhttp_new(tarn_loop_base(n->loop));
    if (!a || !a->http || evhttp_set_cb(a->http, "/metrics", metrics, a) ||
        evhttp_set_cb(a->http, "/health", health, a) || evhttp_accept_socket(a->http, fd)) {
        close(fd);
        tarn_admin_stop(a);
        return tarn_fail(TARN_E_NO_MEMORY, "--http %s: out of memory", address);
    }
    a->node = n;
    evhttp_set_allowed_methods(a->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_timeout(a->http, TIMEOUT_S);
    evhttp_set_max_headers_size(a->http, REQUEST_MAX);
    evhttp_set_max_body_size(a->http, REQUEST_MAX);
    tarn_addr_format(&addr, a->address, sizeof(a->address));
    *a_p = a;
    return 0;
}

void tarn_admin_stop(struct tarn_admin *a)
{
    if (!a)
        return;
    if (a->http)
        evhttp_free(a->http);
    free(a);
}

const char *tarn_admin_address(const struct tarn_admin *a)
{
    return a->address;
}
