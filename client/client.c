/* SPDX-License-Identifier: Apache-2.0 */
/* How every public call begins: is the client usable, and until when may the call take? */
#include "client/client.h"

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
    return tarn_now_ns() + tarn_client_timeout_ns(c, timeout_ms);
}
