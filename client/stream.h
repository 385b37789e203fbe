/* SPDX-License-Identifier: Apache-2.0 */
/* A submitted get's calls for streams that wait (struct tarn_get_calls). */
#ifndef TARN_CLIENT_STREAM_H
#define TARN_CLIENT_STREAM_H

#include <stdbool.h>

#include "client/get_item.h"
#include "transport/transport.h"

bool tarn_op_given(struct tarn_get *g, struct tarn_work *w);
void tarn_op_landed(struct tarn_get *g, struct tarn_work *w);
void tarn_op_shrunk(struct tarn_get *g);
bool tarn_op_again(struct tarn_get *g);

#endif
