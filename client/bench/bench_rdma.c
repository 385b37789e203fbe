/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups `rdma` (RDMA against perftest over the same two ports) and `rails` (several rails against one). The
 * clients' memory is registered. The node is on this machine. --devices and --node-devices decide whether the
 * bytes leave the machine.
 */
#include "client/bench/bench.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define PASS_MIN (32ull << 20)
#define PASS_MAX (512ull << 20)
#define IN_FLIGHT 16
#define PIECES 256
#define PIECE_BYTES 1024

struct rdma_bench {
    struct bench_env *e;
    struct bench_report *rep;
    struct bench_rails rails;
    struct tarn_client *c, *viewer;
    uint64_t pass; /* bytes of a pass: 10 ms at the port's speed */
};

/* --- loads and objects -------------------------------------------------------------------------- */

struct side {
    struct tarn_client *c;
    struct bench_load *load;
    struct bench_objects *objects;
    struct tarn_mr *mr;
};

/* Operations of a slice. */
static size_t slice_ops(const struct rdma_bench *b, uint64_t bytes, uint32_t depth, uint32_t threads)
{
    uint64_t objects = b->pass / bytes;
    size_t ops = (objects < 1024 ? objects : 1024) / depth;

    return ops > 2 * threads ? ops / threads * threads : 2 * threads;
}

static int side_of(const struct rdma_bench *b, struct tarn_client *c, const char *name, uint64_t bytes,
                   uint32_t npieces, uint32_t depth, uint32_t threads, size_t ops, bool put, struct side *s)
{
    s->c = c;
    int rc = bench_load_new(bytes, npieces, depth, threads, ops, &s->load);
    if (rc == 0)
        rc = tarn_register(c, s->load->memory, s->load->memory_bytes, TARN_MEMORY_HOST, &s->mr);
    if (rc == 0)
        rc = bench_objects_new(c, b->viewer, name, s->load, &s->objects);
    return rc || put ? rc : bench_objects_put(s->objects);
}

static int side_new(const struct rdma_bench *b, struct tarn_client *c, const char *name, uint64_t bytes,
                    uint32_t npieces, uint32_t depth, uint32_t threads, bool put, struct side *s)
{
    return side_of(b, c, name, bytes, npieces, depth, threads, slice_ops(b, bytes, depth, threads), put, s);
}

static void side_free(struct side *s)
{
    bench_objects_free(s->objects);
    if (s->mr)
        tarn_deregister(s->c, s->mr);
    bench_load_free(s->load);
}

/* Adds the rail, which is the same for all rows of the group, to the JSON. */
static void note_rail(struct bench_row *r, const struct bench_rail *rail)
{
    json_object_set_new(r->figures, "device", json_string(rail->device));
    json_object_set_new(r->figures, "node_device", json_string(rail->node_device));
    json_object_set_new(r->figures, "firmware", json_string(rail->firmware));
    json_object_set_new(r->figures, "link", json_string(rail->link));
    json_object_set_new(r->figures, "gid", json_string(rail->gid));
    json_object_set_new(r->figures, "mtu", json_sprintf("%u", rail->mtu));
}

/* Calls of the verbs library for one object, over all rounds. */
static void note_calls(struct bench_row *r, const struct bench_calls *before, double objects)
{
    struct bench_calls now;

    bench_calls_read(&now);
    bench_row_figure(r, "requests", (double)(now.requests - before->requests) / objects);
    bench_row_figure(r, "posts", (double)(now.posts - before->posts) / objects);
    bench_row_figure(r, "post_us", (double)(now.post_ns - before->post_ns) / 1e3 / objects);
    bench_row_figure(r, "polls", (double)(now.polls - before->polls) / objects);
}

/* Objects that our contestant has moved, including the warm-up round and each thread's warm-up operation. */
static double objects_moved(const struct bench_row *r)
{
    const struct bench_contestant *c = bench_row_find(r, BENCH_OURS);

    return (double)(c->items_s.n + 1) * (double)((c->nops + c->threads) * c->depth);
}

/* --- against perftest --------------------------------------------------------------------------- */

struct plan {
    const char *bench, *note;
    uint64_t bytes;
    uint32_t depth, threads;
    enum bench_perftest tool;
    const struct bench_ops *ops;
    double bound; /* target for the rate, or for the p50 with BENCH_READ_LAT; 0: none */
    /* Moves the same few objects again and again, as perftest moves the same buffer. Both then run from the
     * caches. Many different objects would also pay for main memory. */
    bool again;
};

static void perftest_targets(struct bench_row *r, const struct plan *p)
{
    const struct bench_contestant *limit = bench_row_limit(r);

    if (!limit)
        return;
    if (p->tool == BENCH_READ_LAT) {
        double ratio = bench_p50_ratio(r, limit);
        bench_row_figure(r, "p50_ratio", ratio);
        bench_row_figure(r, "perftest_us", bench_median(&limit->p50_us));
        bench_at_most(r, "p50 / ib_read_lat", ratio, p->bound);
    } else if (p->bound > 0) {
        bench_at_least(r, "of perftest", bench_rate_ratio(r, limit), p->bound);
    }
}

static int perftest_row(struct rdma_bench *b, const struct plan *p)
{
    struct bench_row *r = bench_row_new(p->bench, p->note, p->bytes);
    struct side s = {0};
    struct bench_calls before;
    bool put = p->tool == BENCH_WRITE_BW;
    size_t ops = slice_ops(b, p->bytes, p->depth, p->threads);
    int rc = r ? side_of(b, b->c, p->bench, p->bytes, 1, p->depth, p->threads, p->again ? 1 : ops, put, &s)
               : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", p->ops, s.objects, s.load);
    if (rc == 0)
        bench_row_find(r, BENCH_OURS)->nops = ops;
    if (rc == 0)
        rc = bench_add_perftest(b->e, r, p->tool, &b->rails.rail[0], p->bytes, IN_FLIGHT);
    bench_calls_read(&before);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0) {
        note_calls(r, &before, objects_moved(r));
        perftest_targets(r, p);
    }
    if (r) {
        note_rail(r, &b->rails.rail[0]);
        rc = bench_report_row(b->rep, r, rc);
    }
    side_free(&s);
    return rc;
}

/* --- pieces ------------------------------------------------------------------------------------- */

/* Compares one object in scattered pieces with single gets of as many objects, each of a piece's size. */
static void pieces_targets(const struct rdma_bench *b, struct bench_row *r, const struct bench_calls *before,
                           const struct bench_calls *after, double gets)
{
    double times = PIECES * bench_rate_ratio(r, bench_row_find(r, BENCH_REFERENCE));
    uint32_t sge = b->rails.rail[0].max_sge;
    uint64_t writes = after->writes - before->writes; /* touches; one serves many gets */
    double requests = (double)(after->requests - before->requests - writes) / gets;

    bench_row_figure(r, "times_single_gets", times);
    bench_row_figure(r, "requests", requests);
    bench_row_figure(r, "max_sge", sge);
    bench_at_least(r, "times single gets", times, 3);
    bench_at_most(r, "requests", requests, (PIECES + sge - 1) / sge + 1);
}

static int pieces_row(struct rdma_bench *b)
{
    struct bench_row *r = bench_row_new("rdma_get", "", PIECES * PIECE_BYTES);
    struct side s = {0}, single = {0};
    struct bench_calls before, after;
    int rc =
        r ? side_new(b, b->c, "pieces", PIECES * PIECE_BYTES, PIECES, 1, 1, false, &s) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = side_new(b, b->c, "single", PIECE_BYTES, 1, 1, 1, false, &single);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "tarn", &bench_get_ops, s.objects, s.load);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_REFERENCE, "single gets of 1 KiB", &bench_get_ops, single.objects,
                           single.load);
    bench_calls_read(&before);
    for (size_t i = 0; rc == 0 && i < s.load->ops; i++)
        rc = bench_get_ops.op(s.objects, 0, i);
    bench_calls_read(&after);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0)
        pieces_targets(b, r, &before, &after, (double)s.load->ops);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    side_free(&single);
    side_free(&s);
    return rc;
}

/* --- the node's CPU during gets ----------------------------------------------------------------- */

/* Context switches of all threads of a process so far. */
static double context_switches(pid_t pid)
{
    char path[64], line[128];
    double total = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *t; d && (t = readdir(d));) {
        char file[400];
        unsigned long long n;
        snprintf(file, sizeof file, "%s/%.255s/status", path, t->d_name);
        FILE *f = fopen(file, "re");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
                sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1)
                total += (double)n;
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return total;
}

/* Seconds that the machine has spent in softirqs, where software verbs in the kernel do their work. */
static double softirq_s(void)
{
    unsigned long long v[7] = {0};
    FILE *f = fopen("/proc/stat", "re");

    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                    &v[6]) != 7)
        v[6] = 0;
    if (f)
        fclose(f);
    return (double)v[6] / (double)sysconf(_SC_CLK_TCK);
}

struct usage {
    double cpu_s, switches, softirq_s;
};

static struct usage usage_now(pid_t pid)
{
    return (struct usage){bench_cpu_s(pid), context_switches(pid), softirq_s()};
}

/* Gets for this many seconds; without objects it only waits. */
static int spend(struct bench_objects *o, const struct bench_load *l, double seconds, double *gets)
{
    uint64_t start = tarn_now_ns(), end = start + (uint64_t)(seconds * 1e9);
    int rc = 0;

    *gets = 0;
    if (!o)
        poll(NULL, 0, (int)(seconds * 1000));
    while (o && rc == 0 && !bench_interrupted() && tarn_now_ns() < end) {
        for (size_t i = 0; rc == 0 && i < l->ops; i++)
            rc = bench_get_ops.op(o, 0, i);
        *gets += (double)(l->ops * l->depth);
    }
    return rc;
}

static int node_cpu(struct rdma_bench *b, struct bench_row *r, const struct side *s)
{
    double seconds = b->e->quick ? 2 : 5, gets, none;
    pid_t pid = b->e->node.pid;
    struct usage t0 = usage_now(pid);
    int rc = spend(NULL, NULL, seconds, &none);
    struct usage t1 = usage_now(pid);

    if (rc == 0)
        rc = spend(s->objects, s->load, seconds, &gets);
    if (rc != 0)
        return rc;
    struct usage t2 = usage_now(pid);
    double cpu = (t2.cpu_s - t1.cpu_s) - (t1.cpu_s - t0.cpu_s);
    double switches = (t2.switches - t1.switches) - (t1.switches - t0.switches);
    r->wall_s = seconds;
    r->node_cpu_s = t2.cpu_s - t1.cpu_s;
    bench_row_figure(r, "gets", gets);
    bench_row_figure(r, "cpu_ms", 1e3 * (t2.cpu_s - t1.cpu_s));
    bench_row_figure(r, "idle_cpu_ms", 1e3 * (t1.cpu_s - t0.cpu_s));
    bench_row_figure(r, "switches", t2.switches - t1.switches);
    bench_row_figure(r, "idle_switches", t1.switches - t0.switches);
    bench_row_figure(r, "machine_softirq_s", t2.softirq_s - t1.softirq_s);
    bench_at_most(r, "node CPU beyond idle, % of a core", 100 * cpu / seconds, 0.5);
    bench_at_most(r, "switches a get beyond idle", switches / gets, 0.01);
    return bench_load_check(s->load);
}

static int node_cpu_row(struct rdma_bench *b)
{
    struct bench_row *r = bench_row_new("node_cpu", "rdma gets", 65536);
    struct side s = {0};
    int rc = r ? side_new(b, b->c, "cpu", 65536, 1, IN_FLIGHT, 1, false, &s) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = node_cpu(b, r, &s);
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    side_free(&s);
    return rc;
}

/* --- rails -------------------------------------------------------------------------------------- */

static int rails_row(struct rdma_bench *b, struct tarn_client *one, uint64_t bytes)
{
    struct bench_row *r = bench_row_new("rails_get", "", bytes);
    struct side all = {0}, single = {0};
    int rc = r ? side_new(b, b->c, "all", bytes, 1, IN_FLIGHT, 1, false, &all) : TARN_E_NO_MEMORY;

    if (rc == 0)
        rc = side_new(b, one, "one", bytes, 1, IN_FLIGHT, 1, false, &single);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_OURS, "all rails", &bench_get_ops, all.objects, all.load);
    if (rc == 0)
        rc = bench_row_add(r, BENCH_REFERENCE, "one rail", &bench_get_ops, single.objects, single.load);
    if (rc == 0)
        rc = bench_row_measure(b->e, r);
    if (rc == 0) {
        double times = bench_rate_ratio(r, bench_row_find(r, BENCH_REFERENCE));
        bench_row_figure(r, "rails", b->rails.n);
        bench_at_least(r, "of one rail", times, 0.85 * b->rails.n);
    }
    if (r)
        rc = bench_report_row(b->rep, r, rc);
    side_free(&single);
    side_free(&all);
    return rc;
}

/* --- the groups --------------------------------------------------------------------------------- */

static int open_group(struct rdma_bench *b)
{
    char pool[64];
    int rc = bench_rails_find(b->e, &b->rails);

    for (uint32_t i = 0; rc == 0 && i < b->rails.n; i++) {
        const struct bench_rail *k = &b->rails.rail[i];
        printf("%s port %u to %s port %u: firmware %s, MTU %u, %s %.4g Gbit/s, GID %u %s\n", k->device,
               k->port, k->node_device, k->node_port, k->firmware, k->mtu, k->link, k->speed / 1000.0,
               k->gid_index, k->gid);
    }
    if (rc != 0)
        return rc;
    b->pass = b->rails.rail[0].speed * 1000000ull / 8 / 100;
    b->pass = b->pass < PASS_MIN ? PASS_MIN : b->pass > PASS_MAX ? PASS_MAX : b->pass;
    snprintf(pool, sizeof pool, "cpu0:bytes=%llu", (unsigned long long)(6 * b->pass));
    rc = bench_start_node(b->e, pool);
    return rc ? rc : bench_client(b->e, "shm", &b->viewer);
}

int bench_group_rdma(struct bench_env *e, struct bench_report *rep)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = cores < IN_FLIGHT ? (uint32_t)cores : IN_FLIGHT;
    const struct plan plans[] = {
        {"rdma_get", "", 65536, IN_FLIGHT, 1, BENCH_READ_BW, &bench_get_ops, 0.95, false},
        {"rdma_get", "", 1 << 20, IN_FLIGHT, 1, BENCH_READ_BW, &bench_get_ops, 0.95, false},
        {"rdma_get", "submitted", 65536, IN_FLIGHT, 1, BENCH_READ_BW, &bench_get_window_ops, 0, false},
        {"rdma_write", "again", 65536, 1, 1, BENCH_WRITE_BW, &bench_put_write_ops, 0.95, true},
        {"rdma_write", "again", 1 << 20, 1, 1, BENCH_WRITE_BW, &bench_put_write_ops, 0.95, true},
        {"rdma_write", "", 65536, 1, 1, BENCH_WRITE_BW, &bench_put_write_ops, 0, false},
        {"rdma_write", "", 1 << 20, 1, 1, BENCH_WRITE_BW, &bench_put_write_ops, 0, false},
        {"rdma_write", "", 65536, 1, threads, BENCH_WRITE_BW, &bench_put_write_ops, 0, false},
        {"rdma_get", "", 4096, 1, 1, BENCH_READ_LAT, &bench_get_ops, 2.1, false},
    };
    struct rdma_bench b = {.e = e, .rep = rep};
    int rc = open_group(&b);

    if (rc == 0)
        rc = bench_rdma_client(e, &b.rails, 1, &b.c);
    if (rc == 0)
        bench_calls_count(b.c);
    for (size_t i = 0; rc == 0 && i < sizeof plans / sizeof plans[0]; i++)
        rc = perftest_row(&b, &plans[i]);
    if (rc == 0)
        rc = pieces_row(&b);
    if (rc == 0)
        rc = node_cpu_row(&b);
    tarn_close(b.viewer);
    tarn_close(b.c);
    return rc;
}

int bench_group_rails(struct bench_env *e, struct bench_report *rep)
{
    struct rdma_bench b = {.e = e, .rep = rep};
    struct tarn_client *one = NULL;
    int rc = open_group(&b);

    if (rc == 0 && b.rails.n < 2)
        rc = tarn_fail(TARN_E_UNAVAILABLE, "one rail is not several: name more with --devices");
    if (rc == 0)
        rc = bench_rdma_client(e, &b.rails, b.rails.n, &b.c);
    if (rc == 0)
        rc = bench_rdma_client(e, &b.rails, 1, &one);
    if (rc == 0)
        rc = rails_row(&b, one, 1 << 20);
    tarn_close(b.viewer);
    tarn_close(one);
    tarn_close(b.c);
    return rc;
}
