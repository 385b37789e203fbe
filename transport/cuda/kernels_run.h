/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the copy kernel goes about a run, whatever the alignments of its two ends. For kernels.cu, and for the
 * CPU to test.
 */
#ifndef TARN_TRANSPORT_KERNELS_RUN_H
#define TARN_TRANSPORT_KERNELS_RUN_H

#include <stdint.h>

#ifdef __CUDACC__
#define TARN_ANYWHERE __host__ __device__
#else
#define TARN_ANYWHERE
#endif

/* `head` single bytes, then accesses of `width` bytes, then fewer than `width` single ones. */
struct tarn_run_plan {
    uint32_t head, width;
};

/* Where both addresses agree in their low bits, 16 bytes go at a time; else the widest access that fits both.
 */
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
