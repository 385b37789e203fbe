/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory, node half: hands out the files of the pools. */
#include "transport/node_share.h"
#include "transport/shm/shm.h"

static bool is_served(const struct tarn_pool_memory *p)
{
    return p->memfd >= 0;
}

static int shm_serve(const struct tarn_serve *serve, struct tarn_node_half **h_p)
{
    return tarn_share_serve("shm", serve, is_served, h_p);
}

static void shm_describe(const struct tarn_node_half *h, uint32_t pool, char *text, size_t text_bytes)
{
    (void)h, (void)pool, (void)text_bytes;
    text[0] = '\0';
}

static int shm_attach(struct tarn_node_half *h, struct tarn_attach *a)
{
    return tarn_share_attach(h, "v1", NULL, a);
}

static int shm_enter(struct tarn_node_half *h, uint32_t window, struct tarn_attach *a)
{
    return tarn_share_enter(h, window, "v1", NULL, a);
}

const struct tarn_node_half_ops tarn_shm_node_ops = {
    .name = "shm",
    .caps = TARN_SHM_CAPS,
    .probe = tarn_shm_probe,
    .serve = shm_serve,
    .lend = tarn_share_lend,
    .withdraw = tarn_share_withdraw,
    .cut = tarn_no_lend,
    .enter = shm_enter,
    .serves = tarn_share_serves,
    .describe = shm_describe,
    .attach = shm_attach,
    .detach_link = tarn_no_detach_link,
    .detach = tarn_share_detach,
    .stop = tarn_share_stop,
};
