/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a public call's arguments. Failures are INVALID with a sentence. */
#ifndef TARN_CLIENT_CHECK_H
#define TARN_CLIENT_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/error.h"

/* Copies the caller's option struct, which may be shorter or longer than ours. NULL: all defaults. */
int tarn_options_copy(void *mine, size_t mine_bytes, const void *theirs);

/* Refuses unknown bits; `call` begins the sentence. */
static inline int tarn_flags_check(const char *call, uint32_t flags, uint32_t known)
{
    if (!(flags & ~known))
        return 0;
    return tarn_fail(TARN_E_INVALID,
                     "%s: flags 0x%x: 0x%x is none that this library knows: zero the options first", call,
                     flags, flags & ~known);
}

#define TARN_GET_FLAGS ((uint32_t)(TARN_GET_RANGE | TARN_GET_NO_TOUCH | TARN_GET_NOW))
#define TARN_PUT_FLAGS ((uint32_t)(TARN_PUT_REPLACE | TARN_PUT_PIN | TARN_PUT_CHAIN))

/* Refuses NULL as the place for a result, or as a callback. */
int tarn_out_check(const char *call, const void *out);
int tarn_key_check(const struct tarn_key *k);
/* The key, escaped and cut to fit. */
const char *tarn_key_text(const struct tarn_key *k, char out[96]);

#endif
