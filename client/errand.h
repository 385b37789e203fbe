/* SPDX-License-Identifier: Apache-2.0 */
/* Errands: commands that the keeper repeats. */
#ifndef TARN_CLIENT_ERRAND_H
#define TARN_CLIENT_ERRAND_H

#include <stdbool.h>

#include "client/words.h"

struct tarn_monitor;
struct tarn_remote;

/* The keeper sends the command (DETACH, ABORT: what may be said twice) until the node has answered it or
 * its incarnation is over. Takes *a over; its arguments must lie in a's own text or be constants. */
void tarn_monitor_errand(struct tarn_remote *r, struct tarn_words *a);
/* The keeper's round of them; true when it should come again soon. */
bool tarn_monitor_errands(struct tarn_monitor *m);
void tarn_monitor_errands_end(struct tarn_monitor *m);

#endif
