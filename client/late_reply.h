/* SPDX-License-Identifier: Apache-2.0 */
/* Late replies: those that nobody waits for any more. The keeper reads them. */
#ifndef TARN_CLIENT_LATE_REPLY_H
#define TARN_CLIENT_LATE_REPLY_H

#include <stdbool.h>

struct tarn_monitor;

/* The keeper's round of them; true when it should come again soon. */
bool tarn_late_replies_read(struct tarn_monitor *m);
void tarn_late_replies_end(struct tarn_monitor *m);

#endif
