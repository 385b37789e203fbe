/* SPDX-License-Identifier: Apache-2.0 */
/* From keys to descriptors. */
#ifndef TARN_CLIENT_RESOLVE_H
#define TARN_CLIENT_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/cancel.h"
#include "client/desc.h"
#include "metadata/directory.h"

struct tarn_client;

/* status 0, or NOT_FOUND. */
struct tarn_resolved {
    int status;
    struct tarn_desc desc;
};

/* Looks n valid keys up in one round trip and fills the cache. */
int tarn_resolve_keys(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out);
/* The same for those keys whose result has a status other than 0. */
int tarn_resolve_left(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out);
/* Is any copy on a node that is not set aside? */
bool tarn_desc_alive(const struct tarn_desc *d);
/* Are all copies on nodes that are gone? */
bool tarn_desc_gone(const struct tarn_desc *d);

#endif
