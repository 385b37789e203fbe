/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the frequency of this processor's time-stamp counter in kHz, for the VM's kernel. */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
    uint64_t ns, ticks;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Reads both clocks at the same time: of many attempts it takes the quickest one. */
static struct moment look(void)
{
    struct moment best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        uint64_t before = now_ns(), ticks = __rdtsc(), between = now_ns() - before;
        if (between < least) {
            least = between;
            best = (struct moment){before + between / 2, ticks};
        }
    }
    return best;
}

int main(void)
{
    struct moment from = look();
    poll(NULL, 0, 100); /* long enough for a precision of 1e-6 */
    struct moment to = look();
    printf("%.0f\n", (double)(to.ticks - from.ticks) * 1e6 / (double)(to.ns - from.ns));
    return 0;
}
