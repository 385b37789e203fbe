/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A STAND-IN for kernels that use hit tables and rings: threads of the CPU play them. A gather takes place at
 * once, on any stream. It tests logic and proves nothing about GPUs.
 */
#include <tarn/device.h>

#include "base/error.h"
#include "tests/ring_ask.h"
#include "tests/rows_check.h"
#include "tests/standin/cuda_standin.h"
#include "transport/cuda/cuda.h"

void tarn_cuda_relax(void)
{
}

int tarn_cuda_time(int device, uint64_t *at)
{
    int rc = tarn_standin_check(device, "time");
    if (!rc)
        tarn_dev_store64(at, tarn_dev_now());
    return rc;
}

void tarn_standin_play(void (*kernel)(void *arg), void *arg)
{
    tarn_standin_players(1);
    kernel(arg);
    tarn_standin_players(-1);
}

static _Atomic uint32_t ready; /* a bit for each device */

int tarn_cuda_gather_ready(int device)
{
    int rc = tarn_standin_check(device, "ready");
    if (!rc)
        ready |= 1u << device;
    return rc;
}

struct launch {
    const struct tarn_dev_table *table;
    const struct tarn_cuda_rows *rows;
};

static void gather(void *arg)
{
    const struct launch *l = arg;
    const struct tarn_cuda_rows *r = l->rows;
    tarn_dev_get(l->table, r->rows, r->n, r->to, r->stride, r->status);
}

int tarn_cuda_gather(int device, const struct tarn_dev_table *table, const struct tarn_cuda_rows *r,
                     void *stream)
{
    struct launch l = {table, r};
    (void)stream;
    int rc = tarn_standin_check(device, "gather");
    if (!rc && !(ready >> device & 1))
        rc = tarn_fail(TARN_E_SYSTEM, "stand-in: device %d: no gather was made ready", device);
    if (!rc)
        tarn_standin_play(gather, &l);
    return rc;
}

/* --- tests/rows_check.h ------------------------------------------------------------------------- */

static void check(void *arg)
{
    const struct rows_check *c = arg;
    for (uint32_t row = 0; row < c->n; row++) {
        uint32_t page = c->rows[row] / c->rows_per_page;
        const uint32_t *word = (const uint32_t *)(const void *)(c->to + (uint64_t)row * c->row_bytes);
        bool right =
            word[0] >= c->least[page] && word[0] <= __atomic_load_n(&c->most[page], __ATOMIC_ACQUIRE);
        for (uint32_t i = 1; i < c->row_bytes / 4; i++)
            right &= word[i] == word[0];
        ++*(c->status[row] == TARN_E_STALE ? c->stale
            : c->status[row]               ? c->other
            : right                        ? c->good
                                           : c->wrong);
    }
}

static void loop(void *arg)
{
    const struct rows_loop *l = arg;
    const uint64_t begun = tarn_dev_now();
    uint64_t now = begun, gone_at = 0;
    while (now - begun < 60000000000ull && !(gone_at && now - gone_at > l->after_ns)) {
        now = tarn_dev_now();
        gone_at = gone_at || !tarn_dev_load32(&l->host->gone) ? gone_at : now;
        tarn_dev_get(&l->table, l->rows, l->n, l->to, l->table.row_bytes, l->status);
        for (uint32_t row = 0; row < l->n; row++) {
            const uint32_t page = l->rows[row] / l->table.rows_per_page, bytes = l->table.row_bytes;
            const uint32_t *word = (const uint32_t *)(const void *)(l->to + (uint64_t)row * bytes);
            bool right = true;
            for (uint32_t i = 0; i < bytes / 4; i++)
                right &= word[i] == page + 1;
            ++*(l->status[row] == TARN_E_STALE ? &l->found->stale
                : l->status[row]               ? &l->found->other
                : right                        ? &l->found->good
                                               : &l->found->wrong);
            if (l->status[row] == 0 && gone_at)
                l->found->late_ns = now - gone_at;
        }
        tarn_dev_store32(&l->host->runs, l->host->runs + 1);
    }
}

void rows_loop(struct stream *s, const struct rows_loop *l)
{
    tarn_standin_launch(s, loop, l, sizeof(*l));
}

/* At once: a gather takes place at once, too. */
void rows_check(struct stream *s, const struct rows_check *c)
{
    struct rows_check copy = *c;
    (void)s;
    tarn_standin_play(check, &copy);
}

/* --- tests/ring_ask.h --------------------------------------------------------------------------- */

static void ask(void *arg)
{
    ring_ask_play(arg);
}

void ring_ask(struct stream *s, const struct ring_ask *a)
{
    tarn_standin_launch(s, ask, a, sizeof(*a));
}
