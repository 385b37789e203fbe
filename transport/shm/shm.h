/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory transport: its two tables, and what both halves need. */
#ifndef TARN_TRANSPORT_SHM_H
#define TARN_TRANSPORT_SHM_H

#include "transport/transport.h"

enum {
    TARN_SHM_CAPS =
        TARN_CAP_SHARED | TARN_CAP_SAME_HOST | TARN_CAP_VIEW | TARN_CAP_ONE_SIDED | TARN_CAP_WINDOWS
};

extern const struct tarn_transport_ops tarn_shm_ops;
extern const struct tarn_node_half_ops tarn_shm_node_ops;

int tarn_shm_probe(void);

#endif
