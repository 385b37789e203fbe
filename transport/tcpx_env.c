/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of the plugin for TCPX, which it reads in init() or later and takes without a check: with
 * some values it hangs or is silently slow. What is set is checked; what is not gets the value that the
 * plugin should have had. Values of which ends or machines differ (interfaces, CPUs) are left alone.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/tcpx_plugin.h"

#define CHUNK_VARIABLE "NCCL_DYNAMIC_CHUNK_SIZE"
#define PREFIX_VARIABLE "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"
#define PREFIX_DEFAULT "/run/tcpx"
#define QUEUED 6 /* requests of a socket */
#define PREFIX_BYTES 64 /* sun_path has 108, and names of sockets with a PCI address follow */

static const struct number {
    const char *name;
    const char *value;   /* for when it is not set; NULL: leave it so */
    const char *suggest; /* where there is no value */
    uint64_t min, max;
    bool shared; /* others in the process read it, too: left alone for plugins other than TCPX */
    const char *why;
} numbers[] = {
    /* The plugin's own 128 KiB are overwritten by 0, and chunks of no bytes never end. */
    {CHUNK_VARIABLE, "524288", NULL, 4096, 1 << 30, false, "other values make the plugin hang or crawl"},
    {"NCCL_SOCKET_NTHREADS", "1", NULL, 1, 16, true, "threads of a connection"},
    {"NCCL_NSOCKS_PERTHREAD", "4", NULL, 1, 8, true, "sockets of a thread"},
    /* accept() takes that long; unset it is 5 s. */
    {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "50000", NULL, 0, 5000000, false,
     "every connection waits that long"},
    {"NCCL_GPUDIRECTTCPX_FORCE_ACK", "0", NULL, 0, 1, false, "a switch"},
    {"NCCL_GPUDIRECTTCPX_RECV_SYNC", NULL, "0", 0, 1, false, "a switch, alike at both ends"},
    {"NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT", "1", NULL, 0, 1, false, "a switch"},
};

static int set(const char *name, const char *value)
{
    return setenv(name, value, 0) ? tarn_fail(TARN_E_NO_MEMORY, "environment: %s: %m", name) : 0;
}

static int check_number(const struct number *n, bool gpudirect)
{
    const char *text = getenv(n->name);
    uint64_t v;
    if (!text)
        return n->value && (gpudirect || !n->shared) ? set(n->name, n->value) : 0;
    if (tarn_u64_parse(text, strlen(text), 10, n->max, &v) == 0 && v >= n->min)
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "environment: %s=%.32s: not in %llu..%llu (%s): unset it, or set it to %s", n->name,
                     text, (unsigned long long)n->min, (unsigned long long)n->max, n->why,
                     n->value ? n->value : n->suggest);
}

static int check_prefix(void)
{
    const char *text = getenv(PREFIX_VARIABLE);
    if (!text)
        return set(PREFIX_VARIABLE, PREFIX_DEFAULT);
    if (*text == '/' && strlen(text) <= PREFIX_BYTES)
        return 0;
    return tarn_fail(TARN_E_CONFIG,
                     "environment: %s=%.80s: not an absolute path of at most %d bytes: name the folder of "
                     "RxDM's sockets, " PREFIX_DEFAULT " as a rule",
                     PREFIX_VARIABLE, text, PREFIX_BYTES);
}

/* Checked, or not set and the plugin's own business. */
static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t v;
    return text && tarn_u64_parse(text, strlen(text), 10, UINT32_MAX, &v) == 0 ? v : otherwise;
}

int tarn_tcpx_env(bool gpudirect, uint32_t *chunk_bytes_p, uint32_t *window_p)
{
    int rc = check_prefix();
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && rc == 0; i++)
        rc = check_number(&numbers[i], gpudirect);
    if (rc)
        return rc;

    /* A request above the dynamic chunk leaks bounce memory; one far below 2048 fragments cannot end the
     * process. */
    uint64_t chunk = number_of(CHUNK_VARIABLE, TARN_TCPX_CHUNK);
    *chunk_bytes_p = chunk < TARN_TCPX_CHUNK ? (uint32_t)chunk : TARN_TCPX_CHUNK;
    /* What it cannot queue with a socket it floods the log about. */
    uint64_t sockets = number_of("NCCL_SOCKET_NTHREADS", 1) * number_of("NCCL_NSOCKS_PERTHREAD", 1);
    uint64_t window = QUEUED * (sockets ? sockets : 1);
    *window_p = window < TARN_TCPX_REQUESTS ? (uint32_t)window : TARN_TCPX_REQUESTS;
    return 0;
}
