/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's memory: registered ranges, and which items are in GPU memory. */
#ifndef TARN_CLIENT_MEMORY_H
#define TARN_CLIENT_MEMORY_H

#include <stddef.h>

#include <tarn/tarn.h>

/* How many items are in GPU memory. 0 when the first is not; then the others are not looked at. */
size_t tarn_items_on_gpus(const struct tarn_item *items, size_t n);
/* At close: frees what is still registered. Transports forget it by themselves. */
void tarn_memory_free(struct tarn_client *c);

#endif
