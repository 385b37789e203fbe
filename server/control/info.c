/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/info.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "server/directory/presence.h"
#include "server/directory/scrub.h"
#include "server/store/populate.h"
#include "transport/host/session.h"

#define U PRIu64

/* --- figures ------------------------------------------------------------------------------------ */

static uint64_t status_kib(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    unsigned long long kib = 0;
    if (at)
        sscanf(at + strlen(name), " %llu", &kib);
    return kib;
}

void tarn_process_figures(struct tarn_process_figures *out)
{
    char text[4096] = "";
    struct rusage usage;
    FILE *f = fopen("/proc/self/status", "re");
    *out = (struct tarn_process_figures){0};
    if (f) {
        text[fread(text, 1, sizeof(text) - 1, f)] = 0;
        fclose(f);
    }
    out->resident_bytes = status_kib(text, "\nVmRSS:") * 1024;
    out->private_bytes = out->resident_bytes - status_kib(text, "\nRssShmem:") * 1024;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        out->cpu_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                     (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void tarn_session_figures(const struct tarn_node *n, struct tarn_session_figures *out)
{
    uint64_t oldest = 0, now = tarn_now_ns();
    *out = (struct tarn_session_figures){0};
    for (const struct tarn_session *s = n->host.sessions->table; s; s = s->hh.next) {
        out->connected += s->connections > 0;
        out->lingering += s->connections == 0;
        if (!s->reserving_since_ns || !tarn_store_session_reserved(n->store, s->id))
            continue;
        out->reserving++;
        if (now - s->reserving_since_ns > oldest)
            oldest = now - s->reserving_since_ns;
    }
    out->oldest_reservation_ms = oldest / TARN_NS_PER_MS;
}

void tarn_commit_latency_add(struct tarn_node_stats *s, uint64_t ns)
{
    uint64_t us = ns / 1000;
    int bucket = 0;
    while (us && bucket < TARN_LATENCY_BUCKETS - 1) {
        us >>= 1;
        bucket++;
    }
    s->commit_us[bucket]++;
}

uint64_t tarn_commit_latency_us(const struct tarn_node_stats *s, double share)
{
    uint64_t all = 0, seen = 0;
    for (int i = 0; i < TARN_LATENCY_BUCKETS; i++)
        all += s->commit_us[i];
    for (int i = 0; i < TARN_LATENCY_BUCKETS; i++) {
        seen += s->commit_us[i];
        if (all && (double)seen >= share * (double)all)
            return 1ull << i;
    }
    return 0;
}

/* --- INFO --------------------------------------------------------------------------------------- */

static void node_section(const struct tarn_node *n, struct tarn_buf *out)
{
    struct tarn_process_figures p;
    tarn_process_figures(&p);
    tarn_buf_printf(out,
                    "# Node\r\nnode:%s\r\nstate:%s\r\nversion:%s\r\nepoch:%016" PRIx64 "\r\nnamespace:%s\r\n",
                    n->id, tarn_node_state_name(n), tarn_version(), n->epoch, n->config->ns);
    tarn_buf_printf(out, "host:%s\r\nhost_id:%s\r\npid:%u\r\ncontrol:%s\r\nunix:%s\r\n", n->record.host,
                    n->record.host_id, n->record.pid, n->record.control, n->record.unix_path);
    tarn_buf_printf(out,
                    "time_ms:%" U "\r\nuptime_seconds:%" U "\r\nrss_bytes:%" U "\r\nrss_private_bytes:%" U
                    "\r\ncpu_seconds:%.3f\r\n",
                    tarn_unix_ms(), (uint64_t)((tarn_now_ns() - n->started_ns) / TARN_NS_PER_S),
                    p.resident_bytes, p.private_bytes, p.cpu_s);
}

static void pools_section(const struct tarn_node *n, struct tarn_buf *out)
{
    uint32_t npools;
    const struct tarn_pool_memory *pools = tarn_store_pools(n->store, &npools);
    tarn_buf_printf(out, "# Pools\r\npools:%u\r\n", npools);
    for (uint32_t i = 0; i < npools; i++) {
        struct tarn_pool_stats s;
        tarn_store_stats(n->store, i, &s);
        tarn_buf_printf(out, "pool%u:name=%s,kind=%s", i, pools[i].name, n->pools[i].kind);
        if (n->pools[i].device[0])
            tarn_buf_printf(out, ",device=%s", n->pools[i].device);
        tarn_buf_printf(out, ",bytes=%" U ",populated=%" U ",used=%" U ",free=%" U, s.bytes,
                        tarn_populate_bytes(n->populate, i), s.used, s.free);
        tarn_buf_printf(out,
                        ",largest_hole=%" U ",objects=%" U ",slots=%" U ",reserved=%" U ",reserved_bytes=%" U
                        ",limbo=%" U,
                        s.largest_hole, s.objects, s.slots, s.reserved, s.reserved_bytes, s.limbo);
        tarn_buf_printf(out,
                        ",room=%" U ",evicted=%" U ",evicted_bytes=%" U ",expired=%" U ",refused=%" U "\r\n",
                        s.room, s.evicted, s.evicted_bytes, s.expired, s.refused);
    }
}

static void sessions_section(const struct tarn_node *n, struct tarn_buf *out)
{
    struct tarn_session_figures f;
    uint64_t now = tarn_now_ns();
    tarn_session_figures(n, &f);
    tarn_buf_printf(out,
                    "# Sessions\r\nsessions:%" U "\r\nsessions_lingering:%" U "\r\nsessions_reserving:%" U
                    "\r\noldest_reservation_ms:%" U "\r\n",
                    f.connected, f.lingering, f.reserving, f.oldest_reservation_ms);
    for (const struct tarn_session *s = n->host.sessions->table; s; s = s->hh.next) {
        if (!s->reserving_since_ns || !tarn_store_session_reserved(n->store, s->id))
            continue;
        tarn_buf_printf(
            out,
            "session_%016" PRIx64 ":pid=%d,connections=%u,writer=%d,reserved_bytes=%" U ",age_ms=%" U "\r\n",
            s->id, (int)s->pid, s->connections, s->writer, tarn_store_session_reserved(n->store, s->id),
            (uint64_t)((now - s->reserving_since_ns) / TARN_NS_PER_MS));
    }
}

static void transports_section(const struct tarn_node *n, struct tarn_buf *out)
{
    tarn_buf_printf(out, "# Transports\r\n");
    for (uint32_t t = 0; t < n->host.ntransports; t++) {
        char text[TARN_FIELD_MAX];
        n->host.transports[t].ops->describe(n->host.transports[t].half, 0, text, sizeof(text));
        tarn_buf_printf(out, "%s:%s\r\n", n->host.transports[t].ops->name, text);
    }
}

static void stats_section(const struct tarn_node *n, struct tarn_buf *out)
{
    const struct tarn_node_stats *s = &n->stats;
    tarn_buf_printf(out,
                    "# Stats\r\ntotal_connections_received:%" U "\r\ntotal_commands_processed:%" U
                    "\r\ntotal_error_replies:%" U "\r\n",
                    n->host.connections, n->host.commands, n->host.errors);
    tarn_buf_printf(out,
                    "reserved:%" U "\r\ncommitted:%" U "\r\ncommit_failed:%" U "\r\ndeleted:%" U
                    "\r\nstores:%" U "\r\n",
                    s->reserved, s->committed, s->commit_failed, s->deleted, s->stores);
    tarn_buf_printf(
        out,
        "commit_latency_p50_us:%" U "\r\ncommit_latency_p99_us:%" U "\r\ncommit_latency_max_us:%" U "\r\n",
        tarn_commit_latency_us(s, 0.5), tarn_commit_latency_us(s, 0.99), tarn_commit_latency_us(s, 1.0));
}

static void directory_section(const struct tarn_node *n, struct tarn_buf *out)
{
    struct tarn_directory_thread_stats d;
    tarn_directory_thread_stats(n->directory_thread, &d);
    struct tarn_scrub_stats scrub = tarn_scrub_stats(n->scrub);
    char primary[TARN_PRIMARY_TEXT];
    tarn_directory_primary(n->directory, primary);
    tarn_buf_printf(out, "# Directory\r\nredis:%s\r\n", tarn_directory_address(n->directory));
    if (primary[0])
        tarn_buf_printf(out, "redis_primary:%s\r\n", primary);
    tarn_buf_printf(out, "redis_state:%s\r\nround_trips:%" U "\r\n", d.away ? "away" : "ok",
                    tarn_directory_round_trips(n->directory));
    tarn_buf_printf(out,
                    "calls:%" U "\r\nfailed_calls:%" U "\r\npublished:%" U "\r\npublished_direct:%" U
                    "\r\nwaiting_withdrawals:%" U "\r\n",
                    d.calls, d.failed_calls, d.published, d.direct, d.waiting_withdrawals);
    tarn_buf_printf(out, "restored:%" U "\r\nscrub_freed:%" U "\r\nscrub_withdrawn:%" U "\r\n",
                    scrub.restored, scrub.freed, scrub.withdrawn);
    tarn_buf_printf(out, "nodes:%" U "\r\npresence:%s\r\ngiven_up:%" U "\r\nfreed_as_late:%" U "\r\n",
                    n->presence.nodes, tarn_presence_name(n), n->presence.given_up, n->presence.freed);
    tarn_buf_printf(out, "directory:%s\r\ndirectory_state:%s\r\n", d.directory,
                    d.unsettled.code ? "unsettled" : "settled");
    if (d.unsettled.code)
        tarn_buf_printf(out, "directory_unsettled:%s\r\n", d.unsettled.text);
    if (n->presence.evicts)
        tarn_buf_printf(out, "redis_evicts:yes: it may drop records: set maxmemory-policy noeviction\r\n");
    if (d.failure.code)
        tarn_buf_printf(out, "last_error:%s\r\n", d.failure.text);
}

void tarn_info_text(const struct tarn_node *n, const char *section, struct tarn_buf *out)
{
    static const struct {
        const char *name;
        void (*write)(const struct tarn_node *n, struct tarn_buf *out);
    } sections[] = {
        {"node", node_section},         {"pools", pools_section},
        {"sessions", sessions_section}, {"transports", transports_section},
        {"stats", stats_section},       {"directory", directory_section},
    };
    bool all = !section || !strcasecmp(section, "all") || !strcasecmp(section, "default");
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (!all && strcasecmp(section, sections[i].name))
            continue;
        if (out->bytes)
            tarn_buf_printf(out, "\r\n");
        sections[i].write(n, out);
    }
}
