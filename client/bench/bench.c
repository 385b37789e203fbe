/* SPDX-License-Identifier: Apache-2.0 */
/* tarn-bench: options and groups. See bench.h for how it measures. */
#include "client/bench/bench.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option/option.h"
#include "base/option/option_print.h"

struct config {
    bool help, quick;
    int64_t seconds;
    char *json_dir, *devices, *node_devices, *transport, *listen, *peer;
};

static const struct tarn_option options[] = {
    {"quick", 0, TARN_OPT_BOOL, offsetof(struct config, quick), "0", 0, 0, NULL, TARN_OPT_FLAG_ONLY,
     "Fewer rounds: for a first look, not for figures to keep."},
    {"seconds", 0, TARN_OPT_INT, offsetof(struct config, seconds), "6", 0, 3600, "S", TARN_OPT_FLAG_ONLY,
     "Longest time for a row whose ratio does not settle; 0: as few rounds as there can be."},
    {"json-dir", 0, TARN_OPT_STRING, offsetof(struct config, json_dir), "build/bench", 0, 0, "DIR",
     TARN_OPT_FLAG_ONLY, "Where each group's rows go, as GROUP.json."},
    {"devices", 0, TARN_OPT_STRING, offsetof(struct config, devices), NULL, 0, 0, "LIST", TARN_OPT_FLAG_ONLY,
     "RDMA devices of the clients, parted by commas: NAME[:PORT][@GID INDEX]. Without it all that have an "
     "active port. The rows of `rdma` use the fastest of them."},
    {"node-devices", 0, TARN_OPT_STRING, offsetof(struct config, node_devices), NULL, 0, 0, "LIST",
     TARN_OPT_FLAG_ONLY, "RDMA devices of the node. Without it those of the clients."},
    {"transport", 0, TARN_OPT_STRING, offsetof(struct config, transport), NULL, 0, 0, "NAME",
     TARN_OPT_FLAG_ONLY,
     "Only the rows of `peer` over this transport: shm, tcp, rdma or cuda_ipc. Without it shm and tcp. With "
     "--peer, "
     "by what rank 0 writes: shm, tcp, tcpx or rdma; without it rdma where there is a device, else tcp."},
    {"listen", 0, TARN_OPT_STRING, offsetof(struct config, listen), NULL, 0, 0, "HOST:PORT",
     TARN_OPT_FLAG_ONLY, "ring between two hosts: where this one is reached. Without --peer it is rank 1."},
    {"peer", 0, TARN_OPT_STRING, offsetof(struct config, peer), NULL, 0, 0, "HOST:PORT", TARN_OPT_FLAG_ONLY,
     "ring between two hosts: this one is rank 0, and that is where rank 1 listens."},
    {"help", 'h', TARN_OPT_BOOL, offsetof(struct config, help), "0", 0, 0, NULL, TARN_OPT_FLAG_ONLY,
     "Print this and exit."},
};

static const struct tarn_program program = {
    .name = "tarn-bench",
    .arguments = "[all | shm | put | tcp | peer | lookup | alloc | idle | rdma | rails | gpu | rows | ring]",
    .brief = "benchmark of tarn",
    .description =
        "Starts a directory, a storage node and the peers, and measures ours, the physical limit "
        "and the peers "
        "in turn, slice by slice, in one process. The bytes of every operation are verified. "
        "Prints a table and "
        "writes JSON. Ratios are medians of the rounds' own ratios.\n\n"
        "put measures puts over shm beside memcpy and Redis, and the CPU time that an object costs client, "
        "node and directory.\n\n"
        "peer moves bytes between two clients over windows (docs/windows.md), one way and both ways at once, "
        "beside memcpy, the bare socket loop or, named by --transport, perftest or bare copies between "
        "GPUs.\n\n"
        "rdma and rails need RDMA devices and are not part of all: rdma compares with perftest over the "
        "same ports, rails compares all devices with one. Nor is gpu, which compares with bare CUDA calls "
        "on the first GPU, and between it and the second; its rows take less than half of --seconds. Nor are "
        "rows: kernels that read objects by themselves, and ring: the command ring, by which kernels ask the "
        "CPU, beside a bare one.\n\n"
        "ring --peer has kernels, or threads where there is no GPU, write into memory of another host by "
        "commands, beside the least code that does the same. Start rank 1 first, with ring --listen. It "
        "verifies "
        "every byte, and that each part comes once; else both ranks fail. It ends with rank 0. Between two "
        "hosts "
        "give both --listen, and the same TARN_SECRET.\n\n"
        "`tarn-bench replay --help` is about replaying a trace of prefix-block requests, `tarn-bench "
        "policies "
        "--help` about trying eviction policies on one.\n\n"
        "The programs are taken from $TARN_BUILD, or from the folder that tarn-bench is in. Exit "
        "status 0: all "
        "was measured, whether or not targets were met; 1: something could not be.",
    .examples = "tarn-bench shm\ntarn-bench all --quick --json-dir /tmp/results\n"
                "tarn-bench ring --listen 10.0.0.1:7701\n"
                "tarn-bench ring --listen 10.0.0.2:0 --peer 10.0.0.1:7701",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
};

#define GROUP_NAMES "all, shm, put, tcp, peer, lookup, alloc, idle, rdma, rails, gpu, rows or ring"

static const struct {
    const char *name;
    int (*run)(struct bench_env *, struct bench_report *);
    bool special; /* needs devices; `all` leaves it out */
} groups[] = {
    {"shm", bench_group_shm, false},       {"put", bench_group_put, false},
    {"tcp", bench_group_tcp, false},       {"peer", bench_group_peer, false},
    {"lookup", bench_group_lookup, false}, {"alloc", bench_group_alloc, false},
    {"idle", bench_group_idle, false},     {"rdma", bench_group_rdma, true},
    {"rails", bench_group_rails, true},    {"gpu", bench_group_gpu, true},
    {"rows", bench_group_rows, true},      {"ring", bench_group_ring, true},
};

static struct bench_env environment(const struct config *c)
{
    return (struct bench_env){.quick = c->quick,
                              .seconds = (double)c->seconds,
                              .json_dir = c->json_dir,
                              .devices = c->devices,
                              .transport = c->transport,
                              .listen = c->listen,
                              .peer = c->peer,
                              .node_devices = c->node_devices ? c->node_devices : c->devices};
}

/* Runs a group in its own environment. */
static int run_group(const struct config *c, size_t group, int *failed, int *missed)
{
    struct bench_env e = environment(c);
    struct bench_report *rep;
    int rc = bench_report_new(&e, c->peer ? "ring-peer" : groups[group].name, &rep);

    if (rc != 0)
        return rc;
    if (c->quick && e.seconds > 2)
        e.seconds = 2;
    rc = bench_env_open(&e);
    if (rc == 0)
        rc = c->peer ? bench_writes_rows(&e, rep) : groups[group].run(&e, rep);
    if (rc != 0)
        fprintf(stderr, "tarn-bench: %s: %s\n", groups[group].name, tarn_last_error());
    bench_env_close(&e);
    int written = bench_report_close(rep, failed, missed);
    return rc ? rc : written;
}

static int run(const struct config *c, const char *name)
{
    int failed = 0, missed = 0, rc = 0;
    bool known = false;

    for (size_t i = 0; rc != TARN_E_CANCELED && i < sizeof groups / sizeof groups[0]; i++) {
        bool all = strcmp(name, "all") == 0 && !groups[i].special;
        if (!all && strcmp(name, groups[i].name) != 0)
            continue;
        known = true;
        int code = run_group(c, i, &failed, &missed);
        rc = code ? code : rc;
    }
    if (!known) {
        fprintf(stderr, "tarn-bench: no group \"%s\": give " GROUP_NAMES "\n", name);
        return 2;
    }
    printf("\n%s: results in %s/", rc || failed ? "not everything could be measured" : "done", c->json_dir);
    printf(missed ? ", %d rows miss their target\n" : ", no row misses its target\n", missed);
    return rc || failed ? 1 : 0;
}

/* Rank 1 of `ring` between two hosts. */
static int serve(const struct config *c)
{
    struct bench_env e = environment(c);
    int rc = bench_env_open(&e);

    if (rc == 0)
        rc = bench_writes_serve(&e);
    if (rc != 0)
        fprintf(stderr, "tarn-bench: ring, rank 1: %s\n", tarn_last_error());
    bench_env_close(&e);
    printf(rc ? "something was wrong\n" : "done: every part came once, and every byte was right\n");
    return rc ? 1 : 0;
}

static int run_named(const struct config *c, const char *name)
{
    bool remote = c->listen || c->peer;

    if (remote && strcmp(name, "ring") != 0) {
        fprintf(stderr, "tarn-bench: --listen and --peer are for ring, not for %s\n", name);
        return 2;
    }
    return remote && !c->peer ? serve(c) : run(c, name);
}

int main(int argc, char **argv)
{
    struct tarn_options_parsed parsed = {0};
    struct tarn_buf help = {0};
    struct config c = {0};
    int status = 2;

    bench_catch_signals();
    if (argc > 1 && strcmp(argv[1], "replay") == 0)
        return bench_replay_main(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "policies") == 0)
        return bench_policies_main(argc - 1, argv + 1);
    if (tarn_options_parse(&program, argc, argv, &c, &parsed) != 0) {
        fprintf(stderr, "tarn-bench: %s\n", tarn_last_error());
    } else if (c.help) {
        tarn_options_help(&program, &help);
        status = help.failed || fputs(help.data, stdout) < 0;
    } else if (parsed.nargs > 1) {
        fprintf(stderr, "tarn-bench: one group at a time: give " GROUP_NAMES "\n");
    } else {
        status = run_named(&c, parsed.nargs ? parsed.args[0] : "all");
    }
    tarn_buf_free(&help);
    tarn_options_free(&program, &c, &parsed);
    return status;
}
