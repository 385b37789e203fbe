/* SPDX-License-Identifier: Apache-2.0 */
/* Gets that wait. */
#ifndef TARN_CLIENT_GET_H
#define TARN_CLIENT_GET_H

#include "client/get_item.h"

/* Finishes what is left of n gets together, on shared links. cancel_fd: the worker's; -1: one call's own get.
 */
void tarn_get_finish(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int cancel_fd);

#endif
