/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's memory. */
#ifndef TARN_CLIENT_MEMORY_H
#define TARN_CLIENT_MEMORY_H

#include <stddef.h>

#include <tarn/tarn.h>

/* How many of the items lie in memory of GPUs; 0 when the first does not, the others are not looked at then.
 */
size_t tarn_items_on_gpus(const struct tarn_item *items, size_t n);
/* For tarn_close(): what is registered still. Transports forget it by themselves. */
void tarn_memory_free(struct tarn_client *c);

#endif
