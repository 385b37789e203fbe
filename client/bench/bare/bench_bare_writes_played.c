/* SPDX-License-Identifier: Apache-2.0 */
/* There are no kernels: producers of `tarn-bench ring --peer` are threads of the CPU. */
#include "base/error.h"
#include "client/bench/bench_writes_produce.h"

int bench_writes_start(struct bench_bare *b, const struct bench_writes_task *tasks, uint32_t n)
{
    (void)b;
    (void)tasks;
    return tarn_fail(TARN_E_UNSUPPORTED, "%u producers on a GPU: built without CUDA", n);
}

int bench_writes_finish(struct bench_bare *b)
{
    (void)b;
    return 0;
}
