/* SPDX-License-Identifier: Apache-2.0 */
/* A lease as its lender tells of it, in the answer to REACH and in POST. */
#ifndef TARN_CLIENT_WINDOW_LEASE_TEXT_H
#define TARN_CLIENT_WINDOW_LEASE_TEXT_H

#include "base/buf.h"
#include "client/window/lent.h"

struct tarn_lease_text {
    const char *base;   /* in: of the window */
    const char *rights; /* "r" or "rw" */
    uint64_t bytes;
    char id[20]; /* the window's, 16 hex digits */
    struct tarn_buf
        runs; /* "<offset>:<bytes>:<stride>:<count>", with spaces between; offsets in the window */
};

/* Fills the struct tarn_lease_text that `arg` is; for tarn_lent_visit(). */
void tarn_lease_tell(void *arg, const struct tarn_lease *lease);

#endif
