/* SPDX-License-Identifier: Apache-2.0 */
/* Gets. */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/get_item.h"

/* Finishes n gets together, their transfers mixed on the same links. */
void tarn_get_finish(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int cancel_fd);

#endif
