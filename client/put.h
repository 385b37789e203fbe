/* SPDX-License-Identifier: Apache-2.0 */
/* Puts from beginning to end. */
#ifndef TARN_CLIENT_PUT_H
#define TARN_CLIENT_PUT_H

#include <stddef.h>
#include <stdint.h>

#include <tarn/tarn.h>

#include "base/cancel.h"

int tarn_put_run(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *o,
                 uint64_t deadline_ns, struct tarn_cancel *cancel);

#endif
