/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: which copy, by which transport. */
#ifndef TARN_CLIENT_GET_ROUTE_H
#define TARN_CLIENT_GET_ROUTE_H

#include "client/get_job.h"

/* Sends a resolved job on its way, or ends it. */
void tarn_get_route(struct tarn_get_batch *b, struct tarn_get_job *j);
/* The best way not tried yet to a copy that d shows; false when none is left. *more_p: another copy is left
 * besides. */
bool tarn_get_choose(const struct tarn_client *c, const struct tarn_get_job *j, const struct tarn_desc *d,
                     uint8_t *loc_p, uint8_t *t_p, bool *more_p);

#endif
