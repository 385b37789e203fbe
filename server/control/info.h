/* SPDX-License-Identifier: Apache-2.0 */
/* What a node says about itself: INFO's text and the figures behind it. */
#ifndef TARN_SERVER_INFO_H
#define TARN_SERVER_INFO_H

#include "base/buf.h"
#include "server/parts.h"

/* All sections, or the one named (any case; "all" and "default": all). */
void tarn_info_text(const struct tarn_node *n, const char *section, struct tarn_buf *out);

struct tarn_process_figures {
    uint64_t resident_bytes; /* pools included, as far as they were touched */
    uint64_t private_bytes;  /* of these, without shared memory */
    double cpu_s;
};
void tarn_process_figures(struct tarn_process_figures *out);

struct tarn_session_figures {
    uint64_t connected, lingering, reserving;
    uint64_t oldest_reservation_ms; /* age of the oldest run of reservations of one session */
};
void tarn_session_figures(const struct tarn_node *n, struct tarn_session_figures *out);

/* The commit latency that `share` (0.5, 0.99) of commits did not exceed, in microseconds; 0 without any. */
uint64_t tarn_commit_latency_us(const struct tarn_node_stats *s, double share);
void tarn_commit_latency_add(struct tarn_node_stats *s, uint64_t ns);

#endif
