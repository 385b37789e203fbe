/* SPDX-License-Identifier: Apache-2.0 */
/* The rails of a client or node with their joining and destroying threads; the probe. */
#include <stdio.h>

#include "base/error.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/rdma_rail.h"

int tarn_rails_open(const char *devices, struct tarn_rails *r)
{
    *r = (struct tarn_rails){.reaper = tarn_reaper_new(), .joiner = tarn_joiner_new()};
    int rc = r->reaper && r->joiner ? tarn_rails_find(devices, r)
                                    : tarn_fail(TARN_E_NO_MEMORY, "rdma: out of memory");
    if (rc)
        tarn_rails_close(r);
    return rc;
}

void tarn_rails_close(struct tarn_rails *r)
{
    if (r->joiner)
        tarn_joiner_leave(r->joiner);
    tarn_reaper_close(r);
    *r = (struct tarn_rails){0};
}

int tarn_rdma_probe(char *why, size_t why_bytes)
{
    struct tarn_rails rails;
    int rc = tarn_rails_open(NULL, &rails);
    if (rc == 0) {
        tarn_rails_close(&rails);
        return 0;
    }
    snprintf(why, why_bytes, "%s", tarn_last_error());
    return TARN_E_UNAVAILABLE;
}
