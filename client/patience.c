/* SPDX-License-Identifier: Apache-2.0 */
#include "client/patience.h"

#define NS_PER_US 1000u
#define RTT_MOST_US 60000000u /* what is longer is no round trip */

static uint64_t smoothed(uint64_t measured, uint64_t rtt)
{
    uint64_t srtt = (uint32_t)measured, var = measured >> 32;

    if (srtt == 0)
        return rtt / 2 << 32 | rtt;
    uint64_t off = srtt > rtt ? srtt - rtt : rtt - srtt;
    var = (3 * var + off) / 4;
    srtt = (7 * srtt + rtt) / 8;
    return var << 32 | (srtt ? srtt : 1);
}

void tarn_patience_learn(struct tarn_patience *p, uint64_t rtt_ns)
{
    uint64_t was = atomic_load(&p->measured), rtt = rtt_ns / NS_PER_US;

    if (rtt > RTT_MOST_US)
        rtt = RTT_MOST_US;
    while (!atomic_compare_exchange_weak(&p->measured, &was, smoothed(was, rtt ? rtt : 1)))
        ;
}

uint64_t tarn_patience_rtt(const struct tarn_patience *p)
{
    return (uint64_t)(uint32_t)atomic_load(&p->measured) * NS_PER_US;
}

uint64_t tarn_patience_ns(const struct tarn_patience *p)
{
    uint64_t measured = atomic_load(&p->measured);
    uint64_t srtt = (uint64_t)(uint32_t)measured * NS_PER_US, var = (measured >> 32) * NS_PER_US;

    if (measured == 0)
        return 0;
    uint64_t ns = srtt + (4 * var > TARN_PATIENCE_NS ? 4 * var : TARN_PATIENCE_NS);
    return ns < TARN_PATIENCE_MOST_NS ? ns : TARN_PATIENCE_MOST_NS;
}

uint64_t tarn_patience_first(uint64_t farthest_rtt_ns)
{
    uint64_t ns = 2 * (farthest_rtt_ns + TARN_PATIENCE_NS);

    return farthest_rtt_ns && ns < TARN_PATIENCE_FIRST_NS ? ns : TARN_PATIENCE_FIRST_NS;
}
