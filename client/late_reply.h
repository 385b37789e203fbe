/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late replies: their caller went away before they came (deadline, cancel). The keeper reads them and gives
 * back what is granted in them; then the connection is usable again.
 */
#ifndef TARN_CLIENT_LATE_REPLY_H
#define TARN_CLIENT_LATE_REPLY_H

#include <stdbool.h>

struct tarn_monitor;

/* One round of the keeper. True: it should come again soon. */
bool tarn_late_replies_read(struct tarn_monitor *m);
/* At close. */
void tarn_late_replies_end(struct tarn_monitor *m);

#endif
