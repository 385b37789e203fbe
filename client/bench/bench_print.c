/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows as a table for people and as JSON for programs. The JSON of a group is a list of rows. Each row has
 * bench, bytes, pieces, threads, depth, ours, limit, ratio_limit, peers, references, node_cpu_s and wall_s.
 * A row of submitted transfers has post_us. A row may have more figures (utilisation, round_trips ...). A row
 * with a target has target and met. The first row also describes the machine.
 */
#include "client/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "base/text.h"

struct bench_report {
    char group[32], path[512];
    json_t *rows;
    int failed, missed; /* rows */
    bool color;
};

/* --- JSON --------------------------------------------------------------------------------------- */

static void cpu_model(char *out, size_t out_bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(out, out_bytes, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, out_bytes, "%.120s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

json_t *bench_machine(void)
{
    struct utsname u;
    char cpu[128], date[32];
    time_t now = time(NULL);
    struct tm t;

    cpu_model(cpu, sizeof cpu);
    uname(&u);
    gmtime_r(&now, &t);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &t);
    return json_pack("{s:s, s:I, s:s, s:s, s:s}", "cpu", cpu, "cores",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "kernel", u.release, "date", date, "tarn",
                     tarn_version());
}

json_t *bench_latency_json(const struct bench_hist *h)
{
    json_t *j = json_object();

    json_object_set_new(j, "p50_us", json_real(bench_hist_us(h, 0.5)));
    json_object_set_new(j, "p99_us", json_real(bench_hist_us(h, 0.99)));
    json_object_set_new(j, "p999_us", json_real(bench_hist_us(h, 0.999)));
    return j;
}

static double contestant_gbps(const struct bench_row *r, const struct bench_contestant *c)
{
    return bench_median(&c->items_s) * (double)r->bytes / 1e9;
}

static json_t *contestant_json(const struct bench_row *r, const struct bench_contestant *c)
{
    json_t *j = c->latency.count ? bench_latency_json(&c->latency) : json_object();

    if (r->bytes && !r->moves_nothing) {
        json_object_set_new(j, "GBps", json_real(contestant_gbps(r, c)));
        json_object_set_new(j, "Gbps", json_real(8 * contestant_gbps(r, c)));
    }
    json_object_set_new(j, "objects_s", json_real(bench_median(&c->items_s)));
    if (c->role == BENCH_OURS) {
        json_object_set_new(j, "rounds", json_integer((json_int_t)c->items_s.n));
        return j;
    }
    json_object_set_new(j, "name", json_string(c->name));
    json_object_set_new(j, "ratio", json_real(bench_rate_ratio(r, c)));
    return j;
}

static json_t *role_json(const struct bench_row *r, enum bench_role role, const struct bench_contestant *but)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->n; i++) {
        const struct bench_contestant *c = r->contestants[i];
        if (c->role == role && !c->dropped && c != but)
            json_array_append_new(list, contestant_json(r, c));
    }
    return list;
}

static json_t *row_json(const struct bench_row *r, int code)
{
    json_t *j =
        json_pack("{s:s, s:I, s:I, s:I, s:I}", "bench", r->bench, "bytes", (json_int_t)r->bytes, "pieces",
                  (json_int_t)r->pieces, "threads", (json_int_t)r->threads, "depth", (json_int_t)r->depth);
    const struct bench_contestant *ours = bench_row_find(r, BENCH_OURS), *limit = bench_row_limit(r);

    if (code == 0 && ours) {
        json_object_set_new(j, "ours", contestant_json(r, ours));
        json_object_set_new(j, "limit", limit ? contestant_json(r, limit) : json_null());
        json_object_set_new(j, "ratio_limit", limit ? json_real(bench_rate_ratio(r, limit)) : json_null());
        json_object_set_new(j, "other_limits", role_json(r, BENCH_LIMIT, limit));
        json_object_set_new(j, "peers", role_json(r, BENCH_PEER, NULL));
        json_object_set_new(j, "references", role_json(r, BENCH_REFERENCE, NULL));
    }
    if (r->post_us > 0)
        json_object_set_new(j, "post_us", json_real(r->post_us));
    json_object_update(j, r->figures);
    json_object_set_new(j, "node_cpu_s", json_real(r->node_cpu_s));
    json_object_set_new(j, "wall_s", json_real(r->wall_s));
    if (r->note[0])
        json_object_set_new(j, "note", json_string(r->note));
    if (r->target[0]) {
        json_object_set_new(j, "target", json_string(r->target));
        json_object_set_new(j, "met", json_boolean(r->met));
    }
    if (r->error[0])
        json_object_set_new(j, "error", json_string(r->error));
    return j;
}

static int make_folders(const char *path)
{
    char part[512];

    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return tarn_fail(TARN_E_SYSTEM, "folder %s: %m", part);
    }
    return 0;
}

int bench_write_json(const json_t *j, const char *path)
{
    char temporary[528];
    int rc = make_folders(path);

    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (rc == 0 && (json_dump_file(j, temporary, JSON_INDENT(2) | JSON_REAL_PRECISION(5)) != 0 ||
                    rename(temporary, path) != 0))
        rc = tarn_fail(TARN_E_SYSTEM, "%s: %m: give another place", path);
    return rc;
}

/* --- table -------------------------------------------------------------------------------------- */

static void print_load(const struct bench_row *r)
{
    char size[16] = "", load[96];
    int n = 0;

    if (r->bytes)
        tarn_size_format(r->bytes, size);
    load[0] = '\0';
    if (r->pieces > 1)
        n += snprintf(load + n, sizeof load - (size_t)n, " %u pieces", r->pieces);
    if (r->depth > 1)
        n += snprintf(load + n, sizeof load - (size_t)n, " x%u", r->depth);
    if (r->threads > 1)
        n += snprintf(load + n, sizeof load - (size_t)n, " %u threads", r->threads);
    if (r->note[0])
        snprintf(load + n, sizeof load - (size_t)n, " %s", r->note);
    printf("%-12s %8s%-18s", r->bench, size, load);
}

static void print_figures(const struct bench_row *r)
{
    const char *name;
    json_t *value;

    json_object_foreach(r->figures, name, value) if (json_is_number(value))
        printf("  %s %.5g", name, json_number_value(value));
}

static void print_contest(const struct bench_row *r, const struct bench_contestant *ours)
{
    const struct bench_contestant *limit = bench_row_limit(r);

    char post[16] = "-";

    if (r->bytes && !r->moves_nothing)
        printf(" %8.3f GB/s %8.2f Gbps", contestant_gbps(r, ours), 8 * contestant_gbps(r, ours));
    else
        printf(" %8.0f /s  %14s", bench_median(&ours->items_s), "");
    if (r->post_us > 0)
        snprintf(post, sizeof post, "%.2f", r->post_us);
    printf(" %8s %10.2f %10.2f %10.2f us", post, bench_hist_us(&ours->latency, 0.5),
           bench_hist_us(&ours->latency, 0.99), bench_hist_us(&ours->latency, 0.999));
    if (limit)
        printf("  %5.3f of %s", bench_rate_ratio(r, limit), limit->name);
    for (size_t i = 0; i < r->n; i++) {
        const struct bench_contestant *c = r->contestants[i];
        if (!c->dropped && (c->role == BENCH_PEER || c->role == BENCH_REFERENCE))
            printf("%s %.3gx %s", i ? "," : "", bench_rate_ratio(r, c), c->name);
    }
}

static void print_row(const struct bench_report *rep, const struct bench_row *r, int code)
{
    const struct bench_contestant *ours = bench_row_find(r, BENCH_OURS);

    print_load(r);
    if (code == 0 && ours)
        print_contest(r, ours);
    print_figures(r);
    if (r->target[0])
        printf("  [%s%s: %s%s]", rep->color ? (r->met ? "\033[32m" : "\033[31m") : "",
               r->met ? "met" : "MISSED", r->target, rep->color ? "\033[0m" : "");
    if (r->error[0])
        printf("  (%s)", r->error);
    printf("\n");
    fflush(stdout);
}

/* --- reports ------------------------------------------------------------------------------------ */

int bench_report_new(const struct bench_env *e, const char *group, struct bench_report **rep_p)
{
    struct bench_report *rep = calloc(1, sizeof *rep);

    if (!rep || !(rep->rows = json_array())) {
        free(rep);
        return tarn_fail(TARN_E_NO_MEMORY, "report of %s: out of memory", group);
    }
    snprintf(rep->group, sizeof rep->group, "%s", group);
    snprintf(rep->path, sizeof rep->path, "%s/%s.json", e->json_dir, group);
    rep->color = isatty(STDOUT_FILENO) && !tarn_env_raw("NO_COLOR");
    printf("\n%-38s %13s %13s %8s %10s %10s %13s  medians of the rounds' ratios\n", group, "ours", "", "post",
           "p50", "p99", "p999");
    *rep_p = rep;
    return 0;
}

int bench_report_row(struct bench_report *rep, struct bench_row *r, int code)
{
    if (code != 0) {
        snprintf(r->error, sizeof r->error, "%s: %s", tarn_error_name(code), tarn_last_error());
        rep->failed++;
    } else if (!r->met) {
        rep->missed++;
    }
    print_row(rep, r, code);
    json_t *j = row_json(r, code);
    if (json_array_size(rep->rows) == 0)
        json_object_set_new(j, "machine", bench_machine());
    json_array_append_new(rep->rows, j);
    bench_row_free(r);
    return code == TARN_E_CANCELED ? code : 0;
}

int bench_report_close(struct bench_report *rep, int *failed, int *missed)
{
    int rc = bench_write_json(rep->rows, rep->path);

    *failed += rep->failed;
    *missed += rep->missed;
    json_decref(rep->rows);
    free(rep);
    return rc;
}
