/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory transport's table, for the registry. */
#ifndef TARN_TRANSPORT_SHM_H
#define TARN_TRANSPORT_SHM_H

#include "transport/transport.h"

extern const struct tarn_transport_ops tarn_shm_ops;

#endif
