/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TARN_SERVER_METRICS_H
#define TARN_SERVER_METRICS_H

#include "base/buf.h"
#include "server/parts.h"

/* The text of /metrics. */
void tarn_metrics_text(const struct tarn_node *n, struct tarn_buf *out);

#endif
