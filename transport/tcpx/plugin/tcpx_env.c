/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of the plugin for TCPX. The plugin reads it in init() or later, without checks: some
 * values make it hang or silently slow. Variables that are set are checked. Missing ones get good values,
 * except those that depend on the end or machine (interfaces, CPUs).
 */
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/text.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

#define CHUNK_VARIABLE "NCCL_DYNAMIC_CHUNK_SIZE"
#define STEERING_VARIABLE "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS"
#define QUEUED 6        /* requests that a socket queues */
#define PREFIX_BYTES 64 /* sun_path has 108 bytes; socket names with a PCI address follow */

enum kind { NUMBER, FOLDER, FREE };

static const struct variable {
    const char *name;
    enum kind kind;
    const char *fill;    /* value if it is not set; NULL: leave it unset */
    const char *suggest; /* suggestion if there is no such value */
    uint64_t min, max;
    bool shared; /* others in the process read it, too; set only for TCPX's plugin */
    const char *what;
} variables[] = {
    /* The plugin's own 128 KiB are overwritten with 0, and chunks of 0 bytes never end. */
    {CHUNK_VARIABLE, NUMBER, "524288", NULL, 4096, 1 << 30, false,
     "bytes of a chunk; other values make the plugin hang or crawl"},
    {TARN_TCPX_PREFIX_VARIABLE, FOLDER, "/run/tcpx", NULL, 0, 0, false, "folder of RxDM's sockets"},
    {"NCCL_SOCKET_NTHREADS", NUMBER, "1", NULL, 1, 16, true, "threads of a connection"},
    {"NCCL_NSOCKS_PERTHREAD", NUMBER, "4", NULL, 1, 8, true, "sockets of a thread"},
    /* accept() takes this long; the default is 5 s. */
    {STEERING_VARIABLE, NUMBER, "50000", NULL, 0, 5000000, false, "every connection waits that long"},
    {"NCCL_GPUDIRECTTCPX_FORCE_ACK", NUMBER, "0", NULL, 0, 1, false, "a switch"},
    {"NCCL_GPUDIRECTTCPX_RECV_SYNC", NUMBER, NULL, "0", 0, 1, false, "a switch, alike at both ends"},
    {"NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT", NUMBER, "1", NULL, 0, 1, false, "a switch"},
    {TARN_TCPX_INTERFACES_VARIABLE, FREE, NULL, NULL, 0, 0, false,
     "interfaces for data, such as eth1,eth2,eth3,eth4"},
    {TARN_TCPX_CONTROL_VARIABLE, FREE, NULL, NULL, 0, 0, false, "interface for control, such as eth0"},
    {"NCCL_GPUDIRECTTCPX_TX_BINDINGS", FREE, NULL, NULL, 0, 0, false,
     "CPUs that send, eth1:8-21,104-117;..."},
    {"NCCL_GPUDIRECTTCPX_RX_BINDINGS", FREE, NULL, NULL, 0, 0, false, "CPUs that receive, likewise"},
    {"NCCL_GPUDIRECTTCPX_CONNECTION_RETRY", FREE, NULL, NULL, 0, 0, false, "tries of a connection"},
    {"NCCL_GPUDIRECTTCPX_TIMEOUT_THRESHOLD_NS", FREE, NULL, NULL, 0, 0, false, "when slowness is logged"},
    {"NCCL_GPUDIRECTTCPX_TX_COMPLETION_NANOSLEEP", FREE, NULL, NULL, 0, 0, false,
     "pause between looks, sending"},
    {"NCCL_GPUDIRECTTCPX_RX_COMPLETION_NANOSLEEP", FREE, NULL, NULL, 0, 0, false, "the same, receiving"},
    {"NCCL_THREAD_SPIN_ENABLE", FREE, NULL, NULL, 0, 0, false, "whether the plugin's threads spin"},
    {"NCCL_MIN_ZCOPY_SIZE", FREE, NULL, NULL, 0, 0, false, "when host memory is sent without a copy"},
};

enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

static int check_number(const struct variable *v, const char *text)
{
    uint64_t n;
    if (tarn_u64_parse(text, strlen(text), 10, v->max, &n) == 0 && n >= v->min)
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "environment: %s=%.32s: not in %llu..%llu (%s): unset it, or set it to %s", v->name,
                     text, (unsigned long long)v->min, (unsigned long long)v->max, v->what,
                     v->fill ? v->fill : v->suggest);
}

static int check_folder(const struct variable *v, const char *text)
{
    if (*text == '/' && strlen(text) <= PREFIX_BYTES)
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "environment: %s=%.80s: not an absolute path of at most %d bytes: name the folder of "
                     "RxDM's sockets, %s as a rule",
                     v->name, text, PREFIX_BYTES, v->fill);
}

static const char *fill_of(const struct variable *v, bool gpudirect)
{
    return gpudirect || !v->shared ? v->fill : NULL;
}

int tarn_tcpx_env_at(size_t i, bool gpudirect, struct tarn_tcpx_variable *out)
{
    if (i >= VARIABLES)
        return TARN_E_NOT_FOUND;
    const struct variable *v = &variables[i];
    const char *text = tarn_env_raw(v->name);
    *out = (struct tarn_tcpx_variable){v->name, text, fill_of(v, gpudirect), v->what};
    if (!text || v->kind == FREE)
        return 0;
    return v->kind == NUMBER ? check_number(v, text) : check_folder(v, text);
}

/* The value was checked, or it is unset and the plugin decides. */
static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = tarn_env(name);
    uint64_t v;
    return text && tarn_u64_parse(text, strlen(text), 10, UINT32_MAX, &v) == 0 ? v : otherwise;
}

int tarn_tcpx_env(bool gpudirect, uint32_t *chunk_bytes_p)
{
    struct tarn_tcpx_variable v;
    for (size_t i = 0; i < VARIABLES; i++) {
        int rc = tarn_tcpx_env_at(i, gpudirect, &v);
        if (rc)
            return rc;
    }
    /* This replaces values that tarn_env_raw() hides. The plugin would read them. */
    for (size_t i = 0; tarn_tcpx_env_at(i, gpudirect, &v) == 0; i++)
        if (!v.value && v.fill && setenv(v.name, v.fill, 1))
            return tarn_fail(TARN_E_NO_MEMORY, "environment: %s: %m", v.name);

    /* A request above the dynamic chunk leaks bounce memory. One far below 2048 fragments cannot end the
     * process. */
    uint64_t chunk = number_of(CHUNK_VARIABLE, TARN_TCPX_CHUNK);
    *chunk_bytes_p = chunk < TARN_TCPX_CHUNK ? (uint32_t)chunk : TARN_TCPX_CHUNK;
    return 0;
}

/* The plugin floods its log about requests that a socket cannot queue. */
uint32_t tarn_tcpx_env_window(void)
{
    uint64_t sockets = number_of("NCCL_SOCKET_NTHREADS", 1) * number_of("NCCL_NSOCKS_PERTHREAD", 1);
    uint64_t window = QUEUED * (sockets ? sockets : 1);
    return window < TARN_TCPX_REQUESTS ? (uint32_t)window : TARN_TCPX_REQUESTS;
}

uint32_t tarn_tcpx_env_wait_ms(void)
{
    return (uint32_t)(number_of(STEERING_VARIABLE, 0) / 1000);
}
