/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a channel: a client and where its lender answers, as it travels in LENDER and CONNECT. */
#ifndef TARN_CLIENT_WINDOW_PARTY_H
#define TARN_CLIENT_WINDOW_PARTY_H

#include "base/resp/resp.h"
#include "client/window/descriptor.h"

#define TARN_PARTY_FIELDS 7

struct tarn_party {
    char id[80];             /* "lender-4711" */
    uint64_t epoch, session; /* of the lender; of its client */
    char address[128], unix_path[108], host_id[40];
    char secret[TARN_WINDOW_TOKEN / 2 + 1]; /* opens the lender's control connections */
};

/* Adds TARN_PARTY_FIELDS strings. */
void tarn_party_tell(const struct tarn_party *p, struct tarn_buf *out);
/* Takes them. PROTOCOL. */
int tarn_party_take(redisReply *const *fields, struct tarn_party *p);

#endif
