/* SPDX-License-Identifier: Apache-2.0 */
#include "client/window/lease_text.h"

#include <inttypes.h>
#include <stdio.h>

void tarn_lease_tell(void *arg, const struct tarn_lease *lease)
{
    struct tarn_lease_text *t = arg;
    t->bytes = lease->runs.bytes;
    t->rights = lease->write ? "rw" : "r";
    snprintf(t->id, sizeof(t->id), "%016" PRIx64, lease->window->id);
    for (uint32_t i = 0; i < lease->runs.n; i++) {
        const struct tarn_piece *r = &lease->runs.piece[i];
        tarn_buf_printf(&t->runs, "%s%" PRIu64 ":%" PRIu64 ":%" PRIu64 ":%" PRIu64, i ? " " : "",
                        (uint64_t)((const char *)r->addr - t->base), r->bytes, r->stride, r->count);
    }
}
