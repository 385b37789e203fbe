/* SPDX-License-Identifier: Apache-2.0 */
#include "client/event.h"

#include <sched.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/cuda/cuda.h"

#define SPIN_NS (100 * 1000)
#define NAP_MAX_NS (500 * 1000)

int tarn_event_late(void)
{
    return tarn_fail(TARN_E_TIMEOUT, "the deadline passed before the event to wait for: raise timeout_ms or "
                                     "look at what it was recorded behind");
}

uint64_t tarn_event_nap_ns(uint64_t waited_ns)
{
    uint64_t nap = waited_ns / 32;

    return waited_ns < SPIN_NS ? 0 : nap < NAP_MAX_NS ? nap : NAP_MAX_NS;
}

int tarn_event_wait(void *event, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    uint64_t begun = tarn_now_ns(), now = begun;
    int rc;

    while ((rc = tarn_cuda_passed(event)) == TARN_E_AGAIN && now < deadline_ns) {
        if (now - begun >= NAP_MAX_NS && tarn_cancel_ask(cancel))
            return tarn_cancel_fail();
        struct timespec nap = {0, (long)tarn_event_nap_ns(now - begun)};
        if (nap.tv_nsec > 0)
            nanosleep(&nap, NULL);
        else
            sched_yield();
        now = tarn_now_ns();
    }
    return rc == TARN_E_AGAIN ? tarn_event_late() : rc;
}
