/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of a plugin's device to itself. */
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcpx/tcpx_dial.h"

#define NAP_NS (500 * 1000)

static bool naps(int rc, uint64_t until)
{
    if (rc != TARN_E_AGAIN || tarn_now_ns() > until)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    return true;
}

static int await_handle(struct tarn_tcpx_dial *d, uint64_t until, uint8_t handle[TARN_TCPX_HANDLE])
{
    int rc;
    do
        rc = tarn_tcpx_dial_handle(d, handle);
    while (naps(rc, until));
    return rc;
}

static int poll_dial(struct tarn_tcpx_dial *d, void **comm_p)
{
    uint64_t since;
    return *comm_p ? 0 : tarn_tcpx_dial_poll(d, comm_p, &since);
}

static bool failed(int rc)
{
    return rc && rc != TARN_E_AGAIN;
}

/* If accepting has failed, connecting fails as a consequence. */
static int poll_both(struct tarn_tcpx_pair *pair)
{
    int connects = poll_dial(pair->connects, &pair->send);
    int accepts = poll_dial(pair->accepts, &pair->recv);
    if (failed(connects) && !failed(accepts))
        return poll_dial(pair->connects, &pair->send);
    return accepts ? accepts : connects;
}

int tarn_tcpx_pair_open(struct tarn_tcpx_plugin *p, int nic, int gpu, uint32_t most_ms,
                        struct tarn_tcpx_pair *pair)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    uint64_t until = tarn_deadline(most_ms);
    *pair = (struct tarn_tcpx_pair){.plugin = p};
    gpu = tarn_tcpx_dial_gpu(p, nic, gpu);
    int rc = tarn_tcpx_dial_new(p, TARN_TCPX_ACCEPTS, nic, gpu, NULL, &pair->accepts);
    if (!rc)
        rc = await_handle(pair->accepts, until, handle);
    if (!rc)
        rc = tarn_tcpx_dial_new(p, TARN_TCPX_CONNECTS, nic, gpu, handle, &pair->connects);
    if (!rc) {
        do
            rc = poll_both(pair);
        while (naps(rc, until));
    }
    if (rc)
        tarn_tcpx_pair_close(pair);
    return rc == TARN_E_AGAIN
               ? tarn_fail(TARN_E_TIMEOUT,
                           "tcpx plugin %s: device %d has not connected with itself within %u ms: see "
                           "its own lines in the log",
                           p->name, nic, most_ms)
               : rc;
}

void tarn_tcpx_pair_close(struct tarn_tcpx_pair *pair)
{
    if (pair->send)
        tarn_tcpx_close_send(pair->plugin, pair->send);
    if (pair->recv)
        tarn_tcpx_close_recv(pair->plugin, pair->recv);
    tarn_tcpx_dial_leave(pair->connects);
    tarn_tcpx_dial_leave(pair->accepts);
    *pair = (struct tarn_tcpx_pair){0};
}
