/* SPDX-License-Identifier: Apache-2.0 */
/* Removes. */
#ifndef TARN_CLIENT_REMOVE_H
#define TARN_CLIENT_REMOVE_H

#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/cancel.h"

/* statuses: one a key, or NULL. */
int tarn_remove_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                    uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
