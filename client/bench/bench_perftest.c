/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of RDMA: the tools of perftest, between the same two ports. A slice starts the tool's server,
 * waits until it listens, runs the tool's client for about SLICE_S and reads its output.
 *
 * The tools measure time with the processor's counter and calibrate it at every start. If that fails, they
 * print a warning or no figure, and the slice is repeated.
 */
#include "client/bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"

#define SLICE_S 0.3
#define ITERATIONS_MAX 100000
#define TRIES 6
#define LISTEN_MS 10000
#define MIB 1048576.0

static const struct {
    const char *program;
    bool latency;
    unsigned iterations; /* in the first slice */
} tools[] = {
    [BENCH_READ_BW] = {"ib_read_bw", false, 64},
    [BENCH_WRITE_BW] = {"ib_write_bw", false, 64},
    [BENCH_READ_LAT] = {"ib_read_lat", true, 500},
    [BENCH_WRITE_LAT] = {"ib_write_lat", true, 500},
};

struct perftest {
    const struct bench_env *e;
    enum bench_perftest tool;
    struct bench_rail rail;
    uint64_t bytes;
    uint32_t depth;
    unsigned iterations;
    struct bench_child server;
};

/* --- the command line --------------------------------------------------------------------------- */

#define ARGS 32

struct command {
    char text[ARGS][64];
    const char *argv[ARGS + 1];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void add(struct command *c, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(c->text[c->n], sizeof c->text[c->n], format, args);
    va_end(args);
    c->argv[c->n] = c->text[c->n];
    c->argv[++c->n] = NULL;
}

static void add_tool(struct command *c, const struct perftest *p, uint16_t port, bool server)
{
    add(c, "%s", tools[p->tool].program);
    add(c, "--ib-dev=%s", server ? p->rail.node_device : p->rail.device);
    add(c, "--ib-port=%u", server ? p->rail.node_port : p->rail.port);
    if (p->rail.roce)
        add(c, "--gid-index=%u", server ? p->rail.node_gid_index : p->rail.gid_index);
    add(c, "--mtu=%u", p->rail.mtu);
    add(c, "--size=%llu", (unsigned long long)p->bytes);
    add(c, "--iters=%u", p->iterations);
    add(c, "--port=%u", port);
    add(c, "--CPU-freq");
    if (tools[p->tool].latency)
        return;
    add(c, "--tx-depth=%u", p->depth);
    add(c, "--cq-mod=1"); /* post a new request as soon as one has completed, not when all have */
}

/* --- running ------------------------------------------------------------------------------------ */

static bool listed(const char *table, const char *port)
{
    char line[256];
    FILE *f = fopen(table, "re");
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f)) {
        char *at = strstr(line, port);
        found = at && strstr(at, " 0A "); /* LISTEN */
    }
    if (f)
        fclose(f);
    return found;
}

/* Does not connect to find out: the server would take that for its client. */
static int await_listening(uint16_t port)
{
    uint64_t deadline = tarn_deadline(LISTEN_MS);
    struct timespec pause = {.tv_nsec = 5 * TARN_NS_PER_MS};
    char text[16];

    snprintf(text, sizeof text, ":%04X ", port);
    while (!listed("/proc/net/tcp", text) && !listed("/proc/net/tcp6", text)) {
        if (tarn_now_ns() > deadline)
            return tarn_fail(TARN_E_UNAVAILABLE, "its server did not start to listen");
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int run(struct perftest *p, char *out, size_t out_bytes)
{
    struct command server = {.n = 0}, client = {.n = 0};
    uint16_t port;
    int rc = bench_free_port(&port);

    if (rc != 0)
        return rc;
    add_tool(&server, p, port, true);
    rc = bench_start_child(p->e, &p->server, "perftest", server.argv, NULL);
    if (rc == 0)
        rc = await_listening(port);
    if (rc == 0) {
        const char *const both_outputs[] = {"sh", "-c", "exec \"$@\" 2>&1", "sh"};
        for (size_t i = 0; i < sizeof both_outputs / sizeof both_outputs[0]; i++)
            add(&client, "%s", both_outputs[i]);
        add_tool(&client, p, port, false);
        add(&client, "127.0.0.1");
        rc = bench_output_of(client.argv, out, out_bytes);
    }
    bench_stop_child(&p->server);
    return rc;
}

/* Reads the line of figures that begins with the size. */
static bool find_figures(const char *out, uint64_t bytes, double v[9])
{
    for (const char *line = out; line; line = strchr(line, '\n'), line += line != NULL) {
        memset(v, 0, 9 * sizeof *v);
        int n = sscanf(line, "%lf %lf %lf %lf %lf %lf %lf %lf %lf", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                       &v[6], &v[7], &v[8]);
        if (n >= 5 && v[0] == (double)bytes && v[3] > 0)
            return !strstr(out, "measured timestamp frequency");
    }
    return false;
}

/* --- the contestant ----------------------------------------------------------------------------- */

static int slice(void *arg, double *items_s, struct bench_hist *h)
{
    struct perftest *p = arg;
    char out[8192] = "";
    double v[9];
    int rc = 0;

    for (int i = 0; i < TRIES && !bench_interrupted(); i++) {
        if ((rc = run(p, out, sizeof out)) != 0 || !find_figures(out, p->bytes, v))
            continue;
        if (tools[p->tool].latency) { /* columns: min, max, typical (the median), average */
            bench_hist_add(h, (uint64_t)(v[4] * 1000));
            *items_s = 1e6 / v[5];
        } else { /* columns: peak, average, in MiB/s */
            *items_s = v[3] * MIB / (double)p->bytes;
        }
        double most = SLICE_S * *items_s, least = 4.0 * p->depth;
        most = most < ITERATIONS_MAX ? most : ITERATIONS_MAX;
        p->iterations = (unsigned)(most > least ? most : least);
        return 0;
    }
    return rc ? rc : tarn_fail(TARN_E_UNAVAILABLE, "it printed no figure: %.150s", out);
}

static void close_tool(void *arg)
{
    struct perftest *p = arg;

    bench_stop_child(&p->server);
    free(p);
}

static const struct bench_ops perftest_ops = {.slice = slice, .close = close_tool};

static bool on_path(const char *program)
{
    const char *at = tarn_env("PATH");
    char path[512];

    while (at && *at) {
        size_t n = strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)n, at, program);
        if (access(path, X_OK) == 0)
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

int bench_add_perftest(const struct bench_env *e, struct bench_row *r, enum bench_perftest tool,
                       const struct bench_rail *rail, uint64_t bytes, uint32_t depth)
{
    if (!on_path(tools[tool].program)) {
        snprintf(r->error, sizeof r->error, "no %s on PATH: install perftest", tools[tool].program);
        return 0;
    }
    struct perftest *p = malloc(sizeof *p);
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory", tools[tool].program);
    *p = (struct perftest){.e = e,
                           .tool = tool,
                           .rail = *rail,
                           .bytes = bytes,
                           .depth = depth,
                           .iterations = tools[tool].iterations};
    return bench_row_add(r, BENCH_LIMIT, tools[tool].program, &perftest_ops, p, NULL);
}
