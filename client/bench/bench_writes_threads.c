/* SPDX-License-Identifier: Apache-2.0 */
/* Producers of `tarn-bench ring --peer` as threads of the CPU, where there is no GPU. */
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "client/bench/bench_writes.h"

struct bench_threads {
    uint32_t n;
    pthread_t threads[];
};

static void *produce(void *task)
{
    struct bench_writes_state s = {.rc = 0};

    bench_writes_produce(task, &s);
    return NULL;
}

int bench_threads_start(struct bench_writes_task *tasks, uint32_t n, struct bench_threads **t_p)
{
    struct bench_threads *t = calloc(1, sizeof *t + n * sizeof t->threads[0]);

    if (!t)
        return tarn_fail(TARN_E_NO_MEMORY, "the ring benchmark: out of memory");
    for (; t->n < n; t->n++)
        if (pthread_create(&t->threads[t->n], NULL, produce, &tasks[t->n]) != 0)
            break;
    if (t->n == n) {
        *t_p = t;
        return 0;
    }
    bench_threads_finish(t); /* they end by their limit */
    return tarn_fail(TARN_E_SYSTEM, "the ring benchmark: %u threads cannot be started: %m", n);
}

void bench_threads_finish(struct bench_threads *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        pthread_join(t->threads[i], NULL);
    free(t);
}
