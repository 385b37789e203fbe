/* SPDX-License-Identifier: Apache-2.0 */
/* Producers of `tarn-bench ring` as threads of the CPU, so that the benchmark can be tested without a GPU. */
#include "client/bench/bench_ring.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

struct bench_ring_run {
    uint32_t n;
    pthread_t threads[];
};

static void *produce(void *task)
{
    bench_ring_produce(task);
    return NULL;
}

int bench_ring_start(struct bench_bare *b, const struct bench_ring_task *tasks, uint32_t n,
                     struct bench_ring_run **run_p)
{
    struct bench_ring_run *run = calloc(1, sizeof *run + n * sizeof run->threads[0]);

    (void)b;
    if (!run)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    for (; run->n < n; run->n++)
        if (pthread_create(&run->threads[run->n], NULL, produce, (void *)&tasks[run->n]) != 0)
            break;
    if (run->n == n) {
        *run_p = run;
        return 0;
    }
    (void)bench_ring_finish(run); /* they end by their limit */
    return tarn_fail(TARN_E_SYSTEM, "the ring benchmark: %u threads cannot be started: %m", n);
}

int bench_ring_finish(struct bench_ring_run *run)
{
    for (uint32_t i = 0; i < run->n; i++)
        pthread_join(run->threads[i], NULL);
    free(run);
    return 0;
}
