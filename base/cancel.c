/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cancel.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

bool tarn_cancel_ask(struct tarn_cancel *c)
{
    uint64_t now = c && c->interrupt ? tarn_now_ns() : 0;

    if (now > 0 && now >= c->ask_ns && !atomic_load(&c->on)) {
        bool first = c->ask_ns == 0; /* most calls wait for a moment only */
        c->ask_ns = now + TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;
        if (!first && c->interrupt(c->interrupt_arg) != 0)
            atomic_store(&c->on, true);
    }
    return tarn_canceled(c);
}

int tarn_cancel_fail(void)
{
    return tarn_fail(TARN_E_CANCELED, "canceled by the caller");
}

void tarn_cancel_drain(struct tarn_cancel *c)
{
    uint64_t n;

    while (read(c->fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
    c->drained = true;
}

int tarn_cancel_left_ms(const struct tarn_cancel *c, uint64_t deadline_ns)
{
    int left = tarn_left_ms(deadline_ns);

    return c && c->fd < 0 && left > TARN_WAIT_SLICE_MS ? TARN_WAIT_SLICE_MS : left;
}

bool tarn_cancel_pause(struct tarn_cancel *c, uint64_t deadline_ns, int ms)
{
    struct pollfd fd = {tarn_cancel_fd(c), POLLIN, 0};
    int left = tarn_cancel_left_ms(c, deadline_ns);

    if (poll(&fd, 1, left < ms ? left : ms) > 0) /* may stem from an earlier cancel; the flag decides */
        tarn_cancel_drain(c);
    return !tarn_cancel_ask(c) && tarn_now_ns() < deadline_ns;
}

bool tarn_cancel_cond(struct tarn_cancel *c, pthread_cond_t *cond, pthread_mutex_t *lock,
                      uint64_t deadline_ns)
{
    uint64_t now = tarn_now_ns(), slice = now + TARN_WAIT_SLICE_MS * TARN_NS_PER_MS;

    if (now >= deadline_ns || tarn_canceled(c))
        return false;
    tarn_cond_wait(cond, lock, slice < deadline_ns ? slice : deadline_ns);
    if (c && c->interrupt) {
        pthread_mutex_unlock(lock);
        tarn_cancel_ask(c);
        pthread_mutex_lock(lock);
    }
    return true;
}
