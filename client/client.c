/* SPDX-License-Identifier: Apache-2.0 */
#include "client/client.h"

#include <sys/eventfd.h>

#include "base/thread.h"

int tarn_client_enter(struct tarn_client *c)
{
    if (!c)
        return tarn_fail(TARN_E_INVALID, "client: NULL: pass what tarn_open() returned");
    if (atomic_load_explicit(c->alive, memory_order_relaxed) == 0)
        return tarn_fail(TARN_E_CLOSED, "client: opened before fork(): open one of its own in the child");
    return 0;
}

struct tarn_cancel *tarn_client_cancel(const struct tarn_client *c, struct tarn_cancel *own)
{
    if (!c->interrupt)
        return NULL;
    *own = (struct tarn_cancel){.fd = -1, .interrupt = c->interrupt, .interrupt_arg = c->interrupt_arg};
    return own;
}

uint64_t tarn_client_deadline(const struct tarn_client *c, uint32_t timeout_ms)
{
    return tarn_now_ns() + (timeout_ms ? timeout_ms : c->timeout_ms) * TARN_NS_PER_MS;
}

int tarn_client_eventfd(int *fd_p)
{
    *fd_p = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*fd_p >= 0)
        return 0;
    return tarn_fail(TARN_E_SYSTEM, "client: eventfd: %m: raise the limit of open files (ulimit -n)");
}

int tarn_client_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    if (tarn_thread_start(thread, fn, arg) == 0)
        return 0;
    return tarn_fail(TARN_E_SYSTEM,
                     "client: cannot start a thread: raise the limit of processes (ulimit -u)");
}
