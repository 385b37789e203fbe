/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: what can be served at once. */
#ifndef TARN_CLIENT_GET_NOW_H
#define TARN_CLIENT_GET_NOW_H

#include "client/get_item.h"

/* Serves what can be served at once from cached descriptors and shared links; g->left says what is left,
 * those items have status TARN_INPROGRESS or have not been looked at. */
void tarn_get_now(struct tarn_get *g);
/* Of a get with one item left: will it wait for nothing but this host's GPUs? Where no lease runs one is
 * asked for. */
bool tarn_get_is_near(const struct tarn_get *g);

#endif
