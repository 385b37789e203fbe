/* SPDX-License-Identifier: Apache-2.0 */
/* Time: deadlines are absolute CLOCK_MONOTONIC nanoseconds. */
#ifndef TARN_BASE_CLOCK_H
#define TARN_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define TARN_NS_PER_MS 1000000ull
#define TARN_NS_PER_S 1000000000ull

static inline uint64_t tarn_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * TARN_NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t tarn_now_ns(void)
{
    return tarn_clock_ns(CLOCK_MONOTONIC);
}

/* The time of the clock's last tick: up to tarn_coarse_tick_ns() old, but read in some nanoseconds. */
static inline uint64_t tarn_coarse_ns(void)
{
    return tarn_clock_ns(CLOCK_MONOTONIC_COARSE);
}

static inline uint64_t tarn_coarse_tick_ns(void)
{
    struct timespec t;
    clock_getres(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * TARN_NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t tarn_unix_ms(void)
{
    return tarn_clock_ns(CLOCK_REALTIME) / TARN_NS_PER_MS;
}

static inline uint64_t tarn_deadline(uint32_t timeout_ms)
{
    return tarn_now_ns() + timeout_ms * TARN_NS_PER_MS;
}

/* Milliseconds left, rounded up, as poll() takes them; 0 when the deadline has passed. */
static inline int tarn_left_ms(uint64_t deadline_ns)
{
    uint64_t now = tarn_now_ns();
    if (now >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now + TARN_NS_PER_MS - 1) / TARN_NS_PER_MS;
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

#endif
