/* SPDX-License-Identifier: Apache-2.0 */
/* How the copy kernel copies a run with any alignments. Used by kernels.cu, and by tests on the CPU. */
#ifndef TARN_TRANSPORT_KERNELS_RUN_H
#define TARN_TRANSPORT_KERNELS_RUN_H

#include <stdint.h>

#ifdef __CUDACC__
#define TARN_ANYWHERE __host__ __device__
#else
#define TARN_ANYWHERE
#endif

/* `head` single bytes, then accesses of `width` bytes, then fewer than `width` single bytes. */
struct tarn_run_plan {
    uint32_t head, width;
};

/* If both addresses have the same low bits, the width is 16 bytes; else the widest access that suits both. */
static inline TARN_ANYWHERE struct tarn_run_plan tarn_run_plan(uint64_t from, uint64_t to, uint64_t bytes)
{
    struct tarn_run_plan p;
    uint32_t differ = (uint32_t)(to ^ from) & 15;
    p.width = differ ? differ & -differ : 16;
    p.head = (uint32_t)-to & (p.width - 1);
    p.head = p.head < bytes ? p.head : (uint32_t)bytes;
    return p;
}

#endif
