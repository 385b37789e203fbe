/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both halves: is the transport usable here? */
#include "transport/cuda_ipc/cuda_ipc.h"

#include <stdio.h>

#include "base/error.h"
#include "transport/cuda/cuda.h"

int tarn_cuda_ipc_probe(char *why, size_t why_bytes)
{
    int n, rc = tarn_cuda_count(&n);
    if (rc)
        snprintf(why, why_bytes, "%s", tarn_last_error());
    return rc;
}
