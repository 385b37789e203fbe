/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: items that can be served at once. */
#ifndef TARN_CLIENT_GET_NOW_H
#define TARN_CLIENT_GET_NOW_H

#include "client/get_item.h"

/* Serves items from cached descriptors and shared links. g->left counts the others: their status is
 * TARN_INPROGRESS, or they have not been looked at. */
void tarn_get_now(struct tarn_get *g);
/* One item is left: will it wait for nothing but this host's GPUs? Asks for a lease where none runs. */
bool tarn_get_is_near(const struct tarn_get *g);

#endif
