/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes how a client reads a node's answer to ATTACH rdma. Works must be able to rely on an accepted answer:
 * it has keys for every slice of every pool, on every rail that it names. The verbs are a stand-in.
 */
#include "tests/unit/fake_verbs.h"

#include "base/error.h"
#include "transport/rdma/rdma_link.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void open_lanes(struct tarn_rdma_link *l, struct tarn_rails *rails)
{
    static const struct tarn_qp_options options = {.max_wr = 1, .max_sge = 1};
    l->link = (struct tarn_link){.transport = "rdma", .node = "n"};
    l->nlanes = rails->n;
    for (uint32_t k = 0; k < rails->n; k++) {
        l->lanes[k].rail = &rails->rail[k];
        demand(tarn_qp_new(&rails->rail[k], &options, &l->lanes[k].qp, &l->lanes[k].own) == 0);
    }
}

static void check(const struct tarn_rdma_link *l)
{
    uint32_t named = 0;
    for (uint32_t k = 0; k < l->nlanes; k++) {
        named += l->lanes[k].named;
        for (uint32_t i = 0; l->lanes[k].named && i < l->npools; i++) {
            const struct tarn_rdma_peer_memory *m = &l->pools[i];
            if (m->bytes)
                demand(l->lanes[k].pools[i].slices[(m->bytes - 1) / m->slice_bytes] <= UINT32_MAX);
        }
    }
    demand(named > 0 && l->npools > 0);
}

static void close_lanes(struct tarn_rdma_link *l)
{
    for (uint32_t k = 0; k < l->nlanes; k++) {
        for (uint32_t i = 0; l->lanes[k].pools && i < l->npools; i++)
            free(l->lanes[k].pools[i].slices);
        free(l->lanes[k].pools);
        ibv_destroy_qp(l->lanes[k].qp);
    }
    free(l->pools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tarn_rails rails;
    struct tarn_rdma_link l = {0};
    char *text = malloc(bytes + 1);
    demand(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    fake_reset();
    fake_add("a", 1);
    fake_add("b", 2);
    demand(tarn_rails_open(NULL, &rails) == 0);
    open_lanes(&l, &rails);
    int rc = tarn_rdma_read_answer(&l, text);
    if (rc == 0)
        check(&l);
    else
        demand((rc == TARN_E_PROTOCOL || rc == TARN_E_VERSION) && *tarn_last_error());
    close_lanes(&l);
    tarn_rails_close(&rails);
    demand(fake_left() == 0);
    free(text);
    return 0;
}
