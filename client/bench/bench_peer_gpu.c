/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs in `tarn-bench peer`: memory of windows and of own buffers, and bare copies as the limit. */
#include "base/error.h"
#include "client/bench/bench_peer.h"
#include "transport/cuda/cuda.h"

static int own_gpu(const struct bench_peer_side *s)
{
    return bench_peer_way(s)->gpus[s->first ? 0 : 1];
}

static int other_gpu(const struct bench_peer_side *s)
{
    return bench_peer_way(s)->gpus[s->first ? 1 : 0];
}

bool bench_peer_gpus_exist(const struct bench_peer_way *w)
{
    int n, a = w->gpus[0], b = w->gpus[1];

    if (a == b)
        return true; /* if there is none, the row says so */
    return tarn_cuda_count(&n) == 0 && n > a && n > b && tarn_cuda_reaches(a, b) && tarn_cuda_reaches(b, a);
}

int bench_peer_gpus_open(struct bench_peer_side *s)
{
    const struct bench_peer_way *w = bench_peer_way(s);
    int rc = 0;

    for (int i = 0; rc == 0 && w->memory == BENCH_PEER_GPU && i < 2; i++) {
        int device = w->gpus[i];
        if (s->bare[device])
            continue;
        rc = bench_bare_open(device, &s->bare[device]);
        if (rc == 0)
            rc = bench_gpu_memory_prove(&(struct bench_site){device, s->bare[device], false});
    }
    return rc;
}

void bench_peer_gpus_close(struct bench_peer_side *s)
{
    for (int i = 0; i < BENCH_PEER_GPUS; i++)
        bench_bare_close(s->bare[i]);
}

static int load_new(const struct bench_peer_side *s, int device, uint32_t vectors, struct bench_load **l_p)
{
    const struct bench_peer_plan *p = &s->plan;
    const struct bench_site site = {device, s->bare[device], false};

    return bench_load_new_at(bench_peer_way(s)->memory == BENCH_PEER_GPU ? &site : NULL, p->bytes, vectors,
                             p->depth, 1, p->ops, l_p);
}

int bench_peer_load_new(const struct bench_peer_side *s, uint32_t vectors, struct bench_load **l_p)
{
    return load_new(s, own_gpu(s), vectors, l_p);
}

int bench_peer_add_copies(struct bench_peer_side *s)
{
    const struct bench_peer_plan *p = &s->plan;
    struct bench_bare *bare = s->bare[own_gpu(s)];

    if (!bench_peer_moves(s))
        return 0;
    int rc = load_new(s, other_gpu(s), 1, &s->far);
    if (rc != 0)
        return rc;
    bench_load_fill(s->far, 1);
    rc = bench_add_copies(s->row, BENCH_LIMIT, "copy", BENCH_WHOLE, bare, p->write, s->flat, s->far);
    if (rc != 0 || !s->scattered || p->bytes / p->vectors % 16 != 0)
        return rc;
    return bench_add_copies(s->row, BENCH_LIMIT, "gather kernel", BENCH_GATHER, bare, p->write, s->scattered,
                            s->far);
}
