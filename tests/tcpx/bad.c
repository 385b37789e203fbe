/* SPDX-License-Identifier: Apache-2.0 */
/* Invalid plugins, one for each value of BAD. */
#include "transport/tcpx/plugin/tcpx_abi.h"

#define EXPORT __attribute__((visibility("default")))

#if BAD == 1 /* a library without the symbols */
EXPORT extern const int something_else;
const int something_else = 1;

#else /* 2: lacks isend; 3: complete, and linked to the fake driver */
static int init(tarn_tcpx_log_fn log)
{
    (void)log;
    return 0;
}

static int none(int *n)
{
    return *n = 0;
}

static int properties(int dev, struct tarn_tcpx_properties_v7 *p)
{
    (void)dev, (void)p;
    return 0;
}

static int listens(int dev, void *handle, void **comm)
{
    (void)dev, (void)handle, (void)comm;
    return 0;
}

static int connects(int dev, void *handle, void **comm, struct tarn_tcpx_device_handle **d)
{
    (void)dev, (void)handle, (void)comm, (void)d;
    return 0;
}

static int accepts(void *l, void **comm, struct tarn_tcpx_device_handle **d)
{
    (void)l, (void)comm, (void)d;
    return 0;
}

static int reg(void *comm, void *data, int size, int type, void **mh)
{
    (void)comm, (void)data, (void)size, (void)type, (void)mh;
    return 0;
}

static int of_two(void *comm, void *mh)
{
    (void)comm, (void)mh;
    return 0;
}

#if BAD == 3
int cuInit(unsigned int flags);
static int sends(void *comm, void *data, int size, int tag, void *mh, void **request)
{
    (void)comm, (void)data, (void)size, (void)tag, (void)mh, (void)request;
    return cuInit(0);
}
#else
#define sends NULL
#endif

static int receives(void *comm, int n, void **data, int *sizes, int *tags, void **mhs, void **request)
{
    (void)comm, (void)n, (void)data, (void)sizes, (void)tags, (void)mhs, (void)request;
    return 0;
}

static int tests(void *request, int *done, int *sizes)
{
    (void)request, (void)done, (void)sizes;
    return 0;
}

static int of_one(void *comm)
{
    (void)comm;
    return 0;
}

EXPORT extern const struct tarn_tcpx_table ncclNetPlugin_v7;
const struct tarn_tcpx_table ncclNetPlugin_v7 = {.name = "GPUDirectTCPX_bad",
                                                 .init = init,
                                                 .devices = none,
                                                 .get_properties.v7 = properties,
                                                 .listen = listens,
                                                 .connect.v7 = connects,
                                                 .accept.v7 = accepts,
                                                 .reg_mr.v6 = reg,
                                                 .dereg_mr = of_two,
                                                 .isend = sends,
                                                 .irecv = receives,
                                                 .test = tests,
                                                 .close_send = of_one,
                                                 .close_recv = of_one,
                                                 .close_listen = of_one};
#endif
