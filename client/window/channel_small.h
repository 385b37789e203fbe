/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of small messages, which go with DELIVER. Items may be memory of the host or of GPUs. */
#ifndef TARN_CLIENT_WINDOW_CHANNEL_SMALL_H
#define TARN_CLIENT_WINDOW_CHANNEL_SMALL_H

#include "client/window/channels.h"

/* Copies all bytes of the call's items to `data`. INVALID: an item is in memory of two kinds. */
int tarn_channel_gather(const struct tarn_channel_call *k, char *data);
/* The other way: as many bytes of each item as it says (tarn_channel_item.bytes). */
int tarn_channel_scatter(const struct tarn_channel_call *k, const char *data);

#endif
