/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: items that can be served at once. */
#ifndef TARN_CLIENT_GET_NOW_H
#define TARN_CLIENT_GET_NOW_H

#include "client/get_item.h"

/* Serves items from cached descriptors and shared links. g->left counts the others: their status is
 * TARN_INPROGRESS, or they have not been looked at. */
void tarn_get_now(struct tarn_get *g);
/* The first item that is left and would wait for more than this host's GPUs; n: there is none. Asks for a
 * lease where none runs. */
size_t tarn_get_first_far(const struct tarn_get *g);

#endif
