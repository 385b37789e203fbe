/* SPDX-License-Identifier: Apache-2.0 */
/* Gets, the fast way. */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/get_item.h"

/* Serves what can be served at once from cached descriptors and shared links; g->left says what is left,
 * those items have status TARN_INPROGRESS or have not been looked at. */
void tarn_get_fast(struct tarn_get *g);

#endif
