/* SPDX-License-Identifier: Apache-2.0 */
/* What a store is made with. */
#ifndef TARN_SERVER_STORE_OPTIONS_H
#define TARN_SERVER_STORE_OPTIONS_H

#include "metadata/directory.h"

/* Why an object left the store. */
enum tarn_left {
    TARN_LEFT_UNTOLD, /* the caller knows: `gone` is not called */
    TARN_LEFT_EVICTED,
    TARN_LEFT_EXPIRED,
    TARN_LEFT_REMOVED,
    TARN_LEFT_RELEASED,
};

struct tarn_store_options {
    uint64_t epoch;                         /* its low half must not be 0: INVALID */
    const char *node;                       /* id, for locations */
    uint32_t high_watermark, low_watermark; /* percent of a pool; ticks evict from high down to low */
    uint64_t session_reserved_max; /* bytes that a session with several reservations may hold; 0: no limit */
    /* An object left the store. */
    void (*gone)(void *arg, const struct tarn_key *key, const struct tarn_location *l, uint64_t bytes,
                 enum tarn_left why);
    void *arg;
};

#endif
