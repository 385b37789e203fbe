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

/* One key's answer: 0 with *d; NOT_FOUND. */
struct tarn_resolved {
    int status;
    struct tarn_desc desc;
};

/* Asks the directory for n keys at once and fills the cache. The keys must be valid. */
int tarn_resolve_keys(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_cancel *cancel, struct tarn_resolved *out);
/* A descriptor from a record; true when it names a node that the client does not know yet. */
bool tarn_desc_make(struct tarn_client *c, const struct tarn_record *r, struct tarn_desc *d);
/* Any copy on a node that is not set aside? */
bool tarn_desc_alive(const struct tarn_desc *d);
/* No copy is on a node that is still there. */
bool tarn_desc_gone(const struct tarn_desc *d);
/* Copies hit i's descriptor; false when it has none. */
bool tarn_hits_desc(const struct tarn_hits *h, size_t i, struct tarn_desc *d);
int tarn_lookup_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                    struct tarn_cancel *cancel, struct tarn_hits **hits_p);

#endif
