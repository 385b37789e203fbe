/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/device.h"
#include "tests/harness.h"
#include "tests/standin/cuda_standin.h"
#include "tests/tcpx/child.h"
#include "tests/transports.h"
#include "transport/tcpx/tcpx_dial.h"

static const char *const faults[] = {NULL,        "delay=3",   "error=0.05", "stale=0.1",
                                     "drop=0.03", "lose=0.05", "refuse=0.3"};
enum { SETUP_MS = 20000, SLOW_MS = 150 };
enum { ALL = sizeof(faults) / sizeof(*faults), FEW = 2, PLAIN = 1 };

static void name_way(struct way *w)
{
    char memory[64] = "", number[16] = "";
    if (w->device > 0)
        snprintf(number, sizeof(number), "%d", w->device);
    if (w->gpu_pool || w->device >= 0)
        snprintf(memory, sizeof(memory), " %s-%s %s%s-memory", w->gpu_pool ? "gpu" : "cpu",
                 w->window ? "window" : "pool", w->device < 0 ? "host" : "gpu", number);
    else if (w->window)
        snprintf(memory, sizeof(memory), " window");
    snprintf(w->name, sizeof(w->name), "%s%s%s%s%s", w->transport, w->afar ? " afar" : "", memory,
             w->faults ? " " : "", w->faults ? strchr(w->faults, ':') + 1 : "");
}

/* What ways have in common. */
struct kind {
    const char *transport;
    bool window, gpu; /* gpu: the pool or window is */
    bool afar;
};

/* Adds this way without faults and with the first ones of `faults`: nfaults ways in all. */
static void add(struct way *w, const struct kind *k, int device, int nfaults)
{
    char *text;
    while (w->transport)
        w++;
    for (int i = 0; i < nfaults; i++, w++) {
        *w = (struct way){.transport = strdup(k->transport),
                          .timeout_ms = WAY_TIMEOUT_MS,
                          .window = k->window,
                          .gpu_pool = k->gpu,
                          .afar = k->afar,
                          .device = device};
        assert_non_null(w->transport);
        if (faults[i]) {
            assert_true(asprintf(&text, "%s:%s", k->transport, faults[i]) > 0);
            w->faults = text;
            if (strncmp(faults[i], "drop", 4) == 0)
                w->timeout_ms = 300;
        }
        name_way(w);
    }
}

static void add_missing(struct way *w, const char *name, const char *why)
{
    while (w->transport)
        w++;
    *w = (struct way){.transport = strdup(name), .missing = strdup(why), .device = -1};
    assert_true(w->transport && w->missing);
    snprintf(w->name, sizeof(w->name), "%s", name);
}

/* Pools, of the host and of GPUs. */
static void add_pools(struct way *list, const char *name)
{
    const struct kind cpu = {.transport = name}, gpu = {.transport = name, .gpu = true};
    bool is_ipc = strcmp(name, "cuda_ipc") == 0, is_tcpx = strcmp(name, "tcpx") == 0;
    const struct kind far = {.transport = name, .afar = true};
    if (!is_ipc)
        add(list, &cpu, -1, ALL);
    if (strcmp(name, "tcp") == 0) /* nearby its bytes go over a Unix socket */
        add(list, &far, -1, PLAIN);
    if (!is_ipc && ((strcmp(name, "tcp") && !is_tcpx) || devices_there() == 0))
        return;
    bool slow = is_tcpx && !tarn_standin_fail;
    if (slow)
        add_missing(list, "tcpx with faults over real GPUs",
                    "the fixture's copies take minutes there; make check-standin has them");
    add(list, &gpu, 0, slow ? PLAIN : ALL);
    add(list, &gpu, -1, slow ? PLAIN : FEW);
    add(list, &cpu, 0, slow ? PLAIN : FEW);
    if (devices_there() > 1)
        add(list, &gpu, 1, slow ? PLAIN : FEW);
}

/* Windows. cuda_ipc lends those of a GPU, and nothing else. For those over tcp there is test_gpu_windows_tcp.
 */
static void add_windows(struct way *list, const char *name)
{
    const struct kind cpu = {.transport = name, .window = true};
    const struct kind gpu = {.transport = name, .window = true, .gpu = true};
    if (!(find_transport(name)->caps & TARN_CAP_WINDOWS))
        return;
    if (strcmp(name, "cuda_ipc")) {
        bool is_tcpx = !strcmp(name, "tcpx");
        int few = is_tcpx && !tarn_standin_fail ? PLAIN : FEW;
        add(list, &cpu, -1, ALL);
        if ((is_tcpx || !strcmp(name, "tcp")) && devices_there() > 0)
            add(list, &cpu, 0, few);
        if (is_tcpx && devices_there() > 0) {
            add(list, &gpu, 0, few);
            add(list, &gpu, -1, few);
        }
        return;
    }
    add(list, &gpu, 0, ALL);
    add(list, &gpu, -1, FEW);
    if (devices_there() > 1)
        add(list, &gpu, 1, FEW);
}

static int add_transport(void *arg, const char *name, const char *why)
{
    struct way *list = arg;
    if (why) {
        add_missing(list, name, why);
        return 0;
    }
    add_pools(list, name);
    add_windows(list, name);
    return 0;
}

/* How long tcpx's network plugin takes for the first connection of a process: this one. */
static uint32_t measure_setup(void)
{
    struct tarn_tcpx_plugin *p;
    struct tarn_tcpx_pair pair;
    uint64_t begun = harness_now_ms();
    int rc = tarn_tcpx_plugin_open(getenv("TARN_TCPX_PLUGIN"), NULL, &p);
    if (rc == 0)
        rc = tarn_tcpx_pair_open(p, 0, -1, SETUP_MS, &pair);
    if (rc == 0)
        tarn_tcpx_pair_close(&pair);
    else
        print_message("tcpx: %s\n", tarn_last_error());
    return (uint32_t)(harness_now_ms() - begun);
}

/* Lengthens the timeouts, so that no case times out because a slow plugin connects. */
static void allow_for_setup(struct way *ways)
{
    uint32_t ms = 0;
    char text[16];
    for (struct way *w = ways; w->transport; w++) {
        if (strcmp(w->transport, "tcpx") != 0 || w->missing)
            continue;
        ms = ms ? ms : measure_setup();
        w->timeout_ms += ms < SLOW_MS ? 0 : 2 * ms;
    }
    if (ms < SLOW_MS)
        return;
    print_message("tcpx: the plugin takes %u ms to connect first: limits are longer by twice that\n", ms);
    snprintf(text, sizeof(text), "%u", WAY_TIMEOUT_MS + 2 * ms);
    setenv("TARN_TCPX_STALL_MS", text, 0);
}

void ways_find(struct way ways[WAYS_MAX])
{
    child_configure("fixture-v7");
    if (devices_there() > 0)
        setenv("TCPX_FIXTURE", "gpu=1,pages=4096,cut_min=2048", 0); /* bounce memory of a comm: 16 MiB */
    assert_int_equal(tarn_transports(add_transport, ways), 0);
    allow_for_setup(ways);
}
