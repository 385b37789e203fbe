/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups, for other parts of the client. */
#ifndef TARN_CLIENT_LOOKUP_H
#define TARN_CLIENT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/cancel.h"
#include "client/desc.h"

struct tarn_client;

/* Copies hit i's descriptor. False: it is a miss. */
bool tarn_hits_desc(const struct tarn_hits *h, size_t i, struct tarn_desc *d);
int tarn_lookup_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_hits **hits_p);

#endif
