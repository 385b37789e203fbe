/* SPDX-License-Identifier: Apache-2.0 */
/* The table that the fixture exports, in the ABI of FIXTURE_ABI, and the calls that move no bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/tcpx/fixture.h"

#ifndef FIXTURE_ABI
#define FIXTURE_ABI 7
#endif
#define EXPORT __attribute__((visibility("default")))

const int fixture_abi = FIXTURE_ABI;

EXPORT struct fixture_counters *tcpx_fixture_counters(void);
struct fixture_counters *tcpx_fixture_counters(void)
{
    return fixture_count;
}

static int refuse(const char *why)
{
    FIXTURE_WARN("%s", why);
    fixture_count->refused++;
    return TARN_TCPX_INTERNAL_ERROR;
}

static void fill_table(void);

static int init(tarn_tcpx_log_fn log)
{
    if (!log)
        fixture_crash("init without a logger");
    if (fixture_log)
        return refuse("gpu lib init twice");
    fixture_log = log;
    fixture_read_options();
    if (fixture_options.init)
        return (int)fixture_options.init;
    if (fixture_options.init_exit) {
        fprintf(stderr, "tcpx fixture: starting\ntcpx fixture: fatal: no driver\n");
        fixture_exit("the option init_exit is set");
    }
    while (fixture_options.init_hang)
        pause();
    if (fixture_options.gpu && !fixture_gpu_open())
        fixture_exit("the CUDA driver does not start");
    fill_table();
    log(TARN_TCPX_LOG_VERSION, 0, __FILE__, __LINE__, "fixture of ABI v%d, %d sockets", FIXTURE_ABI,
        (int)fixture_options.sockets);
    return TARN_TCPX_SUCCESS;
}

static int devices(int *ndev)
{
    *ndev = (int)fixture_options.devices;
    return TARN_TCPX_SUCCESS;
}

#if FIXTURE_ABI == 8
typedef struct tarn_tcpx_properties_v8 properties;
enum { PROPERTIES = sizeof(properties) };
#else
typedef struct tarn_tcpx_properties_v7 properties;
enum { PROPERTIES = FIXTURE_ABI == 6 ? offsetof(properties, device_type) : sizeof(properties) };
#endif

static int get_properties(int dev, properties *p)
{
    static char names[16][8], paths[16][64];
    if (dev < 0 || dev >= 16 || (uint64_t)dev >= fixture_options.devices)
        return refuse("no such device");
    snprintf(names[dev], sizeof(names[dev]), "eth%d", dev + 1);
    snprintf(paths[dev], sizeof(paths[dev]), "/sys/devices/pci0000:00/0000:00:%02x.0", dev + 1);
    const properties all = {.name = names[dev],
                            .pci_path = fixture_options.pci ? paths[dev] : NULL,
                            .guid = (uint64_t)dev,
                            .memory = fixture_unpacks() ? TARN_TCPX_HOST | TARN_TCPX_CUDA : TARN_TCPX_HOST,
                            .speed = 200000,
                            .port = 1,
                            .max_comms = 65536,
                            .max_recvs = 1,
                            .device_type =
                                fixture_unpacks() ? TARN_TCPX_DEVICE_UNPACK : TARN_TCPX_DEVICE_HOST,
                            .device_version = fixture_unpacks() ? (int)fixture_options.version : 0};
    memcpy(p, &all, PROPERTIES);
    return TARN_TCPX_SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------- */

static int reg_memory(void *comm, void *data, uint64_t size, int type, void **mhandle)
{
    if (type != TARN_TCPX_HOST && type != TARN_TCPX_CUDA)
        return refuse("memory of an unknown type");
    if (type == TARN_TCPX_CUDA && !fixture_unpacks())
        return refuse("GPU memory, and the device takes none");
    if (type == TARN_TCPX_CUDA && !fixture_options.pci)
        fixture_crash("GPU memory over a device without a PCI path");
    if (type == TARN_TCPX_CUDA && (uintptr_t)data % FIXTURE_PAGE)
        return refuse("GPU memory is not aligned to 4 KiB");
    static _Atomic uint64_t regs;
    if (++regs == fixture_options.reg_error)
        return refuse("no DMA buffer of that memory");
    struct fixture_mr *mr = malloc(sizeof(*mr));
    if (!mr)
        fixture_crash("no memory to register memory");
    *mr = (struct fixture_mr){.comm = comm,
                              .data = data,
                              .size = size,
                              .type = type,
                              .on_gpu = fixture_options.gpu && fixture_gpu_has(data)};
    fixture_count->regs++;
    *mhandle = mr;
    return TARN_TCPX_SUCCESS;
}

#if FIXTURE_ABI == 8
static int reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
    return reg_memory(comm, data, size, type, mhandle);
}
#else
static int reg_mr(void *comm, void *data, int size, int type, void **mhandle)
{
    return size < 0 ? refuse("memory of negative size")
                    : reg_memory(comm, data, (uint64_t)size, type, mhandle);
}
#endif

static int dereg_mr(void *comm, void *mhandle)
{
    struct fixture_mr *mr = mhandle;
    if (mr->comm != comm)
        return refuse("memory of another comm");
    free(mr);
    fixture_count->regs--;
    return TARN_TCPX_SUCCESS;
}

/* --- requests ----------------------------------------------------------------------------------- */

static void release(struct fixture_request *r)
{
    r->comm->released++;
    fixture_count->requests--;
}

static bool ends_of_itself(const struct fixture_comm *c)
{
    return c->sends || fixture_abi == 6;
}

/* Sets *sizes only with the option tell_sizes. */
static int test(void *request, int *done, int *sizes)
{
    const struct fixture_options *o = &fixture_options;
    struct fixture_request *r = request;
    struct fixture_comm *c = r->comm;
    *done = 0;
    if (c->tested == c->posted || r != fixture_request_at(c, c->tested))
        return refuse("test: invalid request");
    if (c->sends)
        fixture_send_progress(c);
    else
        fixture_receive_progress(c);

    if (c->dead || (c->sends && !fixture_peer_is_there(c)))
        return TARN_TCPX_SYSTEM_ERROR;
    if (r->number == (c->sends ? o->send_error : o->recv_error))
        return refuse("test: an option makes this request fail");
    if (r->refused)
        return refuse("message truncated");
    if (!r->done || r->number == (c->sends ? o->send_hang : o->recv_hang))
        return TARN_TCPX_SUCCESS;
    if (!c->sends)
        fixture_publish(r);
    if (o->tell_sizes)
        *sizes = (int)r->size;
    c->tested++;
    if (ends_of_itself(c))
        release(r);
    *done = 1;
    return TARN_TCPX_SUCCESS;
}

static int iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles, (void)request;
    fixture_crash("iflush");
}

static int close_send(void *send_comm)
{
    fixture_comm_free(send_comm);
    return TARN_TCPX_SUCCESS;
}

static int close_recv(void *recv_comm)
{
    struct fixture_comm *c = recv_comm;
    if (fixture_options.close_ms && c->posted)
        fixture_write_late(c);
    fixture_bounce_free(recv_comm);
    fixture_comm_free(recv_comm);
    return TARN_TCPX_SUCCESS;
}

/* --- the tables --------------------------------------------------------------------------------- */

#if FIXTURE_ABI != 6
static int connect_v7(int dev, void *handle, void **send_comm, struct tarn_tcpx_device_handle **send_dev)
{
    (void)send_dev;
    return fixture_connect(dev, handle, send_comm);
}

/* Without a device handle the comm is made without bounce memory, and its first receive crashes. */
static int accept_v7(void *listen_comm, void **recv_comm, struct tarn_tcpx_device_handle **recv_dev)
{
    int rc = fixture_accept(listen_comm, recv_comm);
    bool wanted = rc == 0 && *recv_comm && fixture_unpacks() && recv_dev && *recv_dev;
    return wanted ? fixture_bounce_new(*recv_comm, *recv_dev) : rc;
}

static int get_device_mr(void *comm, void *mhandle, void **dptr)
{
    (void)comm, (void)mhandle, (void)dptr;
    return TARN_TCPX_SUCCESS;
}

/* Allowed only for the oldest receive that is done. */
static int irecv_consumed(void *recv_comm, int n, void *request)
{
    struct fixture_comm *c = recv_comm;
    struct fixture_request *r = request;
    if (n != 1 || c->sends || c->released == c->tested || r != fixture_request_at(c, c->released))
        return refuse("irecvConsumed: invalid request");
    if (c->meta)
        fixture_return_pages(r);
    release(r);
    return TARN_TCPX_SUCCESS;
}
#endif

#define SAME_IN_ALL \
    .init = init, .devices = devices, .listen = fixture_listen, .dereg_mr = dereg_mr, \
    .isend = fixture_isend, .irecv = fixture_irecv, .iflush = iflush, .test = test, \
    .close_send = close_send, .close_recv = close_recv, .close_listen = fixture_close_listen
#define SAME_FROM_V7 \
    .connect.v7 = connect_v7, .accept.v7 = accept_v7, .get_device_mr = get_device_mr, \
    .irecv_consumed = irecv_consumed
typedef struct tarn_tcpx_table table;

#if FIXTURE_ABI == 6
#define TABLE ncclNetPlugin_v6
static const table whole = {.name = "fixture_v6",
                            SAME_IN_ALL,
                            .get_properties.v7 = get_properties,
                            .reg_mr.v6 = reg_mr,
                            .connect.v6 = fixture_connect,
                            .accept.v6 = fixture_accept};
#elif FIXTURE_ABI == 7
#define TABLE ncclNetPlugin_v7
static const table whole = {.name = "GPUDirectTCPX_v7",
                            SAME_IN_ALL,
                            SAME_FROM_V7,
                            .get_properties.v7 = get_properties,
                            .reg_mr.v6 = reg_mr};
#else
#define TABLE ncclNetPlugin_v8
static const table whole = {.name = "fixture_v8",
                            SAME_IN_ALL,
                            SAME_FROM_V7,
                            .get_properties.v8 = get_properties,
                            .reg_mr.v8 = reg_mr};
#endif
EXPORT extern table TABLE;
table TABLE;

/* Reads the option late_table, because init() reads the other options too late for it. */
__attribute__((constructor)) static void make_table(void)
{
    const char *options = getenv("TCPX_FIXTURE");
    bool late = options && strstr(options, "late_table=1");
    TABLE = late ? (table){.name = whole.name, .init = whole.init} : whole;
}

static void fill_table(void)
{
    TABLE = whole;
}
