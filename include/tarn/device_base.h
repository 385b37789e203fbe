/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device.h and ring.h are made of: loads, stores and fences that GPUs and CPUs see from each other, and
 * time.
 *
 * Everything is an inline function, for device code compiled by nvcc and for plain C: a thread of a CPU can
 * play a GPU, which is how tests run without one.
 *
 * A *half* is 16 bytes, aligned to 16, that are read and written as one. Word b of a half has a stamp, by
 * which the reader knows that it has what it waits for; so no fence is needed between the data and a flag. A
 * GPU's 16-byte access is one transaction. A CPU writes a half in three steps and never shows a new stamp
 * beside old data, nor the reverse (tarn_dev_half_write). It reads b, then a, and looks at b again.
 *
 * All accesses to memory that others write are relaxed, at system scope: they pass by the first-level cache,
 * which is not coherent, and never use the read-only cache. Source: PTX ISA, "Memory Consistency Model".
 */
#ifndef TARN_DEVICE_BASE_H
#define TARN_DEVICE_BASE_H

#include <stdint.h>

#ifdef __CUDACC__
#define TARN_DEV static __device__ __forceinline__
#define TARN_DEV_GPU 1
#else
#include <time.h>
#define TARN_DEV static inline
#endif

struct tarn_half {
    uint64_t a, b;
}
#ifdef __CUDACC__
__align__(16)
#else
__attribute__((aligned(16)))
#endif
    ;

/* --- words -------------------------------------------------------------------------------------- */

TARN_DEV uint32_t tarn_dev_load32(const uint32_t *at)
{
#ifdef TARN_DEV_GPU
    uint32_t v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

TARN_DEV uint8_t tarn_dev_load8(const uint8_t *at)
{
#ifdef TARN_DEV_GPU
    uint32_t v;
    asm volatile("ld.relaxed.sys.u8 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return (uint8_t)v;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

TARN_DEV uint64_t tarn_dev_load64(const uint64_t *at)
{
#ifdef TARN_DEV_GPU
    uint64_t v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

TARN_DEV void tarn_dev_store32(uint32_t *at, uint32_t v)
{
#ifdef TARN_DEV_GPU
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
#else
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
#endif
}

TARN_DEV void tarn_dev_store64(uint64_t *at, uint64_t v)
{
#ifdef TARN_DEV_GPU
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
#else
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
#endif
}

TARN_DEV void tarn_dev_store8(uint8_t *at, uint8_t v)
{
#ifdef TARN_DEV_GPU
    asm volatile("st.relaxed.sys.u8 [%0], %1;" ::"l"(at), "r"((uint32_t)v) : "memory");
#else
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
#endif
}

/*
 * This thread's loads before it come before those behind it. Of the GPU's scope: loads from any memory are
 * kept in order. The system's scope would also wait until what the thread has stored is visible to the host.
 */
TARN_DEV void tarn_dev_fence_loads(void)
{
#ifdef TARN_DEV_GPU
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

/* Orders this thread's accesses before it and behind it, for all GPUs and CPUs. */
TARN_DEV void tarn_dev_fence(void)
{
#ifdef TARN_DEV_GPU
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* --- halves ------------------------------------------------------------------------------------- */

TARN_DEV struct tarn_half tarn_dev_half_read(const struct tarn_half *at)
{
    struct tarn_half h;
#ifdef TARN_DEV_GPU
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(h.a), "=l"(h.b) : "l"(at) : "memory");
#else
    do {
        h.b = __atomic_load_n(&at->b, __ATOMIC_ACQUIRE);
        h.a = __atomic_load_n(&at->a, __ATOMIC_ACQUIRE);
    } while (h.b != __atomic_load_n(&at->b, __ATOMIC_ACQUIRE));
#endif
    return h;
}

/* One writer at a time. `unstamped` is a b that no reader takes for a valid one. */
TARN_DEV void tarn_dev_half_write(struct tarn_half *at, struct tarn_half h, uint64_t unstamped)
{
#ifdef TARN_DEV_GPU
    (void)unstamped;
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(h.a), "l"(h.b) : "memory");
#else
    __atomic_store_n(&at->b, unstamped, __ATOMIC_RELAXED);
    __atomic_store_n(&at->a, h.a, __ATOMIC_RELEASE);
    __atomic_store_n(&at->b, h.b, __ATOMIC_RELEASE);
#endif
}

/* --- time --------------------------------------------------------------------------------------- */

/* Nanoseconds of a clock that only this device has: of the GPU's global timer, or CLOCK_MONOTONIC. */
TARN_DEV uint64_t tarn_dev_now(void)
{
#ifdef TARN_DEV_GPU
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
#endif
}

#endif
