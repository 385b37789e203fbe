/* SPDX-License-Identifier: Apache-2.0 */
/* `after`: the caller's events, and waiting for one where libtarn does not (writes of put sessions). */
#include "ext.h"

#include <stdio.h>
#include <time.h>

#define LOOK_NS 20000
#define SIGNALS_EVERY 2500 /* polls between checks for signals: 50 ms */

int after_of(PyObject *o, void **event)
{
    if (!o || o == Py_None)
        return 0;
    if (args_handle(o, "after", "cuda_event", "a torch.cuda.Event, or a cudaEvent_t as int", event) < 0)
        return -1;
    if (*event)
        return 0;
    return raise_why(TARN_E_INVALID, NULL, "after: the event was never recorded: record it first");
}

uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Polls for a while without the GIL: 1 if it has passed, 0 if not, or CUDA's error below 0. */
static int look(void *event, uint64_t until_ms)
{
    static const struct timespec pause = {0, LOOK_NS};
    int passed = cuda_passed(event);

    for (int i = 0; passed == 0 && i < SIGNALS_EVERY && now_ms() < until_ms; i++) {
        nanosleep(&pause, NULL);
        passed = cuda_passed(event);
    }
    return passed;
}

int after_wait(struct batch *b, void *event, uint32_t timeout_ms)
{
    uint64_t until = now_ms() + (timeout_ms ? timeout_ms : b->client->timeout_ms);
    int passed;

    if (!event && cuda_after(b, &event) < 0)
        return -1;
    if (!event)
        return 0;
    if (!cuda_is_there())
        return raise_code(TARN_E_UNAVAILABLE, NULL,
                          "after: an event, but no driver of CUDA: see `tarn info`");
    do {
        Py_BEGIN_ALLOW_THREADS;
        passed = look(event, until);
        Py_END_ALLOW_THREADS;
        if (passed == 0 && PyErr_CheckSignals() < 0)
            return -1;
    } while (passed == 0 && now_ms() < until);
    if (passed < 0)
        return raise_why(TARN_E_INVALID, NULL,
                         "after: CUDA says %d of the event: give one that is there, and see `tarn info`",
                         -passed);
    if (passed == 0)
        return raise_why(TARN_E_TIMEOUT, NULL,
                         "after: the event has not passed within the timeout: give a longer one");
    return 0;
}
