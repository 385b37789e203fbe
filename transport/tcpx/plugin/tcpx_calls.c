/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into a network plugin. Hides the differences of its three versions of the ABI and turns its results
 * into tarn's errors. */
#include <limits.h>

#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

static const char *words(int rc)
{
    static const char *const names[] = {"success",          "CUDA error",    "system error", "internal error",
                                        "invalid argument", "invalid usage", "remote error", "in progress"};
    return rc >= 0 && (size_t)rc < sizeof(names) / sizeof(names[0]) ? names[rc] : "no known result";
}

static int result(const struct tarn_tcpx_plugin *p, const char *call, int rc, const char *remedy)
{
    if (rc == TARN_TCPX_SUCCESS)
        return 0;
    bool remote = rc == TARN_TCPX_SYSTEM_ERROR || rc == TARN_TCPX_REMOTE_ERROR;
    return tarn_fail(remote ? TARN_E_NODE_DOWN : TARN_E_UNAVAILABLE, "tcpx plugin %s: %s gave %d (%s): %s",
                     p->name, call, rc, words(rc), remedy);
}

static const char own_lines[] = "its own lines in the log say why";
static const char rxdm[] =
    "its own lines in the log say why; does RxDM run on both hosts, with its sockets under "
    "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX?";

int tarn_tcpx_listen(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **listen_p)
{
    *listen_p = NULL;
    return result(p, "listen", p->calls.listen(dev, handle, listen_p), own_lines);
}

int tarn_tcpx_connect(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **comm_p)
{
    struct tarn_tcpx_device_handle *at = &p->unused;
    *comm_p = NULL;
    int rc = p->version < 7 ? p->calls.connect.v6(dev, handle, comm_p)
                            : p->calls.connect.v7(dev, handle, comm_p, &at);
    return result(p, "connect", rc, p->gpudirect ? rxdm : own_lines);
}

int tarn_tcpx_accept(struct tarn_tcpx_plugin *p, void *listen_comm, struct tarn_tcpx_device_handle *device,
                     void **comm_p)
{
    struct tarn_tcpx_device_handle *at = device;
    *comm_p = NULL;
    int rc = p->version < 7 ? p->calls.accept.v6(listen_comm, comm_p)
                            : p->calls.accept.v7(listen_comm, comm_p, &at);
    return result(p, "accept", rc, p->gpudirect ? rxdm : own_lines);
}

int tarn_tcpx_reg(struct tarn_tcpx_plugin *p, void *comm, void *data, uint64_t bytes, int type, void **mr_p)
{
    *mr_p = NULL;
    if (p->version < 8 && bytes > INT_MAX)
        return tarn_fail(
            TARN_E_INVALID,
            "tcpx plugin %s: regMr of %llu bytes: version %d of the ABI has room for 2 GiB less one "
            "byte: register in parts",
            p->name, (unsigned long long)bytes, p->version);
    if (type == TARN_TCPX_CUDA && (uintptr_t)data % TARN_TCPX_PAGE)
        return tarn_fail(
            TARN_E_INVALID,
            "tcpx plugin %s: regMr of GPU memory at %p: the address is no multiple of %d, and the "
            "plugin would give 3: allocate whole pages",
            p->name, data, TARN_TCPX_PAGE);
    int rc = p->version < 8 ? p->calls.reg_mr.v6(comm, data, (int)bytes, type, mr_p)
                            : p->calls.reg_mr.v8(comm, data, bytes, type, mr_p);
    return result(p, "regMr", rc,
                  type == TARN_TCPX_CUDA && p->gpudirect
                      ? "the address is aligned, so no DMA buffer of it could be had: does RxDM run, with "
                        "get_gpu_fd_* under NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX, and does the GPU's driver "
                        "export them? `tarn doctor tcpx`"
                      : own_lines);
}

int tarn_tcpx_dereg(struct tarn_tcpx_plugin *p, void *comm, void *mr)
{
    return result(p, "deregMr", p->calls.dereg_mr(comm, mr), own_lines);
}

int tarn_tcpx_isend(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p)
{
    *request_p = NULL;
    return result(p, "isend", p->calls.isend(comm, data, (int)bytes, 0, mr, request_p), own_lines);
}

int tarn_tcpx_irecv(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p)
{
    int size = (int)bytes, tag = 0;
    *request_p = NULL;
    return result(p, "irecv", p->calls.irecv(comm, 1, &data, &size, &tag, &mr, request_p), own_lines);
}

static int test(struct tarn_tcpx_plugin *p, void *request, int *size)
{
    int done = 0;
    int rc = p->calls.test(request, &done, size);
    if (rc == TARN_TCPX_SUCCESS)
        return done ? 0 : TARN_E_AGAIN;
    return result(
        p, "test", rc,
        rc == TARN_TCPX_SYSTEM_ERROR || rc == TARN_TCPX_REMOTE_ERROR
            ? "the peer has closed the connection or is gone, and before all had arrived: see its log"
            : own_lines);
}

int tarn_tcpx_test(struct tarn_tcpx_plugin *p, void *request)
{
    int unused = 0;
    return test(p, request, &unused);
}

/* The plugin for TCPX reports no sizes; for other plugins 0 would be an error. */
int tarn_tcpx_test_recv(struct tarn_tcpx_plugin *p, void *request, uint32_t bytes)
{
    int size = 0;
    int rc = test(p, request, &size);
    if (rc || size <= 0 || (uint32_t)size == bytes)
        return rc;
    return tarn_fail(
        TARN_E_PROTOCOL,
        "tcpx plugin %s: a receive brought %d bytes, and the sender announced %u: is its plugin of the "
        "same version?",
        p->name, size, bytes);
}

int tarn_tcpx_consumed(struct tarn_tcpx_plugin *p, void *comm, void *request)
{
    if (!p->calls.irecv_consumed)
        return 0;
    return result(p, "irecvConsumed", p->calls.irecv_consumed(comm, 1, request), own_lines);
}

int tarn_tcpx_close_send(struct tarn_tcpx_plugin *p, void *comm)
{
    return result(p, "closeSend", p->calls.close_send(comm), own_lines);
}

int tarn_tcpx_close_recv(struct tarn_tcpx_plugin *p, void *comm)
{
    return result(p, "closeRecv", p->calls.close_recv(comm), own_lines);
}

int tarn_tcpx_close_listen(struct tarn_tcpx_plugin *p, void *comm)
{
    return result(p, "closeListen", p->calls.close_listen(comm), own_lines);
}
