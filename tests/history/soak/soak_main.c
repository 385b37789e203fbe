/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak [--seconds N] [--seed N] [--transport shm|cuda_ipc|tcp|rdma] [--copies N] [--only FAULT,...]
 *      [--heartbeat-ms N] [--refuse] [--plan] [--keep]
 *
 * --refuse: nodes have --when-cut-off=refuse, and clients and nodes may be cut off from Redis together.
 * cuda_ipc: pools are in GPU memory; values of clients are in GPU and host memory.
 * Prints the seed. The same seed gives the same faults at the same times (--plan prints them). Prints a table
 * at the end. Exit status 1 if the table has a violation.
 */
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tarn/tarn.h>

#include "base/clock.h"
#include "tests/harness.h"
#include "tests/history/check.h"
#include "tests/history/soak/soak.h"
#include "tests/stall.h"
#include "tests/standin/cuda_standin.h"

enum { TEND_MS = 100, HEAL_MS = 60000, LAST_LOOK_MS = 2000, END_MS = 20000 };

struct run {
    struct soak_options o;
    struct soak_fault faults[SOAK_FAULTS_MAX];
    size_t nfaults;
    char log_dir[64], program[512];
    uint64_t begun_ns;
    struct history_log *log;
    struct soak_control *control;
    struct soak_world *world;
    struct soak_rest rest;
    bool healed, clients_ended;
};

/* --- options ------------------------------------------------------------------------------------ */

static bool set_option(struct soak_options *o, const char *name, const char *value)
{
    if (!strcmp(name, "--seconds"))
        o->seconds = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--seed"))
        o->seed = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--transport"))
        o->transport = value;
    else if (!strcmp(name, "--copies"))
        o->copies = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--heartbeat-ms"))
        o->heartbeat_ms = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--only"))
        o->only = value;
    else
        return false;
    return true;
}

static bool parse(int argc, char **argv, struct soak_options *o, bool *only_plan)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--plan"))
            *only_plan = true;
        else if (!strcmp(argv[i], "--keep"))
            o->keeps = true;
        else if (!strcmp(argv[i], "--refuse"))
            o->refuses = true;
        else if (i + 1 == argc || !set_option(o, argv[i], argv[i + 1]))
            return false;
        else
            i++;
    }
    return o->seconds >= 5 && o->heartbeat_ms >= 50 && o->copies >= 1 && o->copies <= SOAK_NODES;
}

/* --- faults ------------------------------------------------------------------------------------- */

static bool has_node(enum soak_fault_kind k)
{
    return k <= SOAK_NODE_RESTART || (k >= SOAK_NODE_REDIS_CUT && k <= SOAK_NODE_REDIS_LOSS) ||
           k >= SOAK_CLIENT_NODE_CUT;
}

static bool has_client(enum soak_fault_kind k)
{
    return k == SOAK_CLIENT_STOP || k == SOAK_CLIENT_KILL || k >= SOAK_CLIENT_REDIS_CUT;
}

/* Subtracts shift_ms from the times: 0 prints times since the start; otherwise they match the checker's. */
static void print_fault(const struct soak_fault *f, int64_t shift_ms, FILE *to)
{
    fprintf(to, "  %8" PRId64 " .. %8" PRId64 " ms  %-18s", f->from_ms - shift_ms, f->to_ms - shift_ms,
            soak_fault_name(f->kind));
    if (has_client(f->kind))
        fprintf(to, " client %u", f->client);
    if (has_node(f->kind))
        fprintf(to, " node%u", f->node);
    if (strstr(soak_fault_name(f->kind), "delay"))
        fprintf(to, " %u ms", f->amount);
    if (strstr(soak_fault_name(f->kind), "loss"))
        fprintf(to, " %u %%", f->amount);
    fprintf(to, "\n");
}

static void print_faults(const struct run *r, int64_t shift_ms, FILE *to)
{
    for (size_t i = 0; i < r->nfaults; i++)
        print_fault(&r->faults[i], shift_ms, to);
}

static void do_faults(struct run *r, uint64_t now_ms)
{
    for (size_t i = 0; i < r->nfaults; i++) {
        struct soak_fault *f = &r->faults[i];
        if (!f->has_begun && now_ms >= f->from_ms) {
            soak_fault_begin(r->world, f);
            f->has_begun = true;
        }
        if (f->has_begun && !f->has_ended && now_ms >= f->to_ms) {
            soak_fault_end(r->world, f);
            f->has_ended = true;
        }
    }
}

/* --- the run ------------------------------------------------------------------------------------ */

static void note_stall(void *arg, uint64_t from_ns, uint64_t to_ns)
{
    history_note(arg, HISTORY_STALL, HISTORY_ALL_CLIENTS, from_ns, to_ns);
}

static void tend_for(struct run *r, uint64_t until_ms)
{
    uint64_t next_tend = 0;
    for (uint64_t now = 0; now < until_ms;) {
        now = (tarn_now_ns() - r->begun_ns) / TARN_NS_PER_MS;
        do_faults(r, now);
        if (now >= next_tend) {
            soak_world_tend(r->world);
            next_tend = now + TEND_MS;
        }
        harness_pause();
    }
}

static bool heal(struct run *r)
{
    uint64_t deadline = tarn_deadline(HEAL_MS);
    while (!soak_world_is_whole(r->world)) {
        if (!tarn_left_ms(deadline))
            return false;
        soak_world_tend(r->world);
        harness_pause();
    }
    return true;
}

static void prepare(struct run *r)
{
    char path[512];
    ssize_t n = readlink("/proc/self/exe", r->program, sizeof r->program - 1);
    assert_true(n > 0);
    r->program[n] = '\0';
    snprintf(r->log_dir, sizeof r->log_dir, "/dev/shm/tarn-soak-XXXXXX");
    assert_non_null(mkdtemp(r->log_dir));
    soak_log_path(path, sizeof path, r->log_dir, SOAK_DRIVER);
    r->log = history_open(path, SOAK_DRIVER, soak_log_room(r->o.seconds));
    r->control = soak_control_map(r->log_dir);
    assert_non_null(r->log);
    assert_non_null(r->control);
    soak_rooms_open(-1);
}

static void go(struct run *r)
{
    struct stalls *s = stalls_start(note_stall, r->log);
    r->world = soak_world_start(&r->o, r->program, r->log, r->log_dir);
    r->begun_ns = tarn_now_ns();
    soak_world_start_clients(r->world);
    tend_for(r, r->o.seconds * 1000ull);
    r->healed = heal(r);
    tend_for(r, (tarn_now_ns() - r->begun_ns) / TARN_NS_PER_MS + LAST_LOOK_MS);
    atomic_store(&r->control->stops, true);
    r->clients_ended = soak_world_end_clients(r->world, END_MS);
    soak_end(r->world, r->log, &r->rest);
    stalls_stop(s);
}

/* --- the table ---------------------------------------------------------------------------------- */

static void print_kinds(const struct run *r)
{
    printf("faults: %zu\n", r->nfaults);
    for (int k = 0; k < SOAK_FAULT_KINDS; k++) {
        int n = 0;
        for (size_t i = 0; i < r->nfaults; i++)
            n += r->faults[i].kind == (enum soak_fault_kind)k && r->faults[i].has_begun;
        if (n)
            printf("  %-18s %d\n", soak_fault_name((enum soak_fault_kind)k), n);
    }
}

static bool leaked(const struct soak_rest *r)
{
    return r->keys || r->objects || r->bytes || r->reserved || r->records;
}

static void print_rest(const struct run *r)
{
    const struct soak_rest *e = &r->rest;
    if (!r->healed)
        printf("not all nodes came back within %d s\n", HEAL_MS / 1000);
    if (!r->clients_ended)
        printf("not all clients ended within %d s\n", END_MS / 1000);
    if (soak_world_crashes(r->world))
        printf("processes that ended by a signal of their own: %u\n", soak_world_crashes(r->world));
    printf("  %-12s %lld objects, %lld bytes, %lld reservations, %lld records, %u keys not removed (after %u "
           "ms)\n",
           "leaked", e->objects, e->bytes, e->reserved, e->records, e->keys, e->took_ms);
}

/* False: no operation of some kind succeeded, so the history proves nothing. */
static bool did_work(const struct history_report *h)
{
    bool worked =
        h->by_status[HISTORY_GET][0] && h->by_status[HISTORY_REPLACE][0] && h->by_status[HISTORY_REMOVE][0];
    if (!worked)
        printf("no get, no replace or no remove succeeded: does the transport work here? (tarn doctor)\n");
    return worked;
}

static bool judge(struct run *r)
{
    static struct history_report report;
    struct history h;
    bool passed = r->healed && r->clients_ended && !soak_world_crashes(r->world) && !leaked(&r->rest);
    if (!history_load(r->log_dir, &h) || !history_check(&h, &report)) {
        printf("the histories cannot be read: %s\n", strerror(errno));
        return false;
    }
    passed &= history_is_legal(&report) && did_work(&report);
    if (!passed) {
        printf("faults, in the times of the operations below:\n");
        print_faults(r, ((int64_t)report.first_ns - (int64_t)r->begun_ns) / (int64_t)TARN_NS_PER_MS, stdout);
    }
    print_kinds(r);
    history_print(&report, stdout);
    print_rest(r);
    history_free(&h);
    return passed;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static int soak(struct run *r)
{
    prepare(r);
    go(r);
    bool passed = judge(r);
    soak_world_stop(r->world, passed && !r->o.keeps);
    history_close(r->log);
    if (passed && !r->o.keeps)
        nftw(r->log_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    printf("%s\n", passed ? "1 passed, 0 failed, 0 skipped" : "0 passed, 1 failed, 0 skipped");
    return passed ? 0 : 1;
}

/* Checks again the histories that an earlier run kept. */
static int check_again(const char *dir)
{
    static struct history_report report;
    struct history h;
    if (!history_load(dir, &h) || !history_check(&h, &report)) {
        fprintf(stderr, "%s: %s\n", dir, strerror(errno));
        return 2;
    }
    history_print(&report, stdout);
    history_free(&h);
    return history_is_legal(&report) ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct run r = {.o = {.seconds = 60, .transport = "shm", .copies = 2, .heartbeat_ms = 500}};
    bool only_plan = false;
    if (argc > 1 && !strcmp(argv[1], "client"))
        return soak_client(argc - 1, argv + 1);
    if (argc == 3 && !strcmp(argv[1], "--check"))
        return check_again(argv[2]);
    r.o.seed = tarn_now_ns() % 1000000;
    if (!parse(argc, argv, &r.o, &only_plan)) {
        fprintf(stderr,
                "usage: soak [--seconds N] [--seed N] [--transport shm|cuda_ipc|tcp|rdma] [--copies 1..%d]\n"
                "            [--only FAULT,...] [--heartbeat-ms N] [--refuse] [--plan] [--keep]\n"
                "       soak --check FOLDER\n",
                SOAK_NODES);
        return 2;
    }
    r.nfaults = soak_plan(&r.o, r.faults);
    printf("soak: seed %" PRIu64 ", %u s, %s, %u copies%s\n", r.o.seed, r.o.seconds, r.o.transport,
           r.o.copies, soak_is_gpu(r.o.transport) && tarn_standin_fail ? ", over a STAND-IN for CUDA" : "");
    fflush(stdout);
    if (only_plan) {
        print_faults(&r, 0, stdout);
        return 0;
    }
    if (soak_is_gpu(r.o.transport) && soak_gpus() == 0) {
        fprintf(stderr, "soak: --transport %s: no GPU: %s (CUDA=standin plays some)\n", r.o.transport,
                tarn_last_error());
        return 2;
    }
    return soak(&r);
}
