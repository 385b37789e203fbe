/* SPDX-License-Identifier: Apache-2.0 */
/* Owed replies. */
#ifndef TARN_CLIENT_OWED_H
#define TARN_CLIENT_OWED_H

#include <stdbool.h>

struct tarn_monitor;

/* The keeper's round of them; true when it should come again soon. */
bool tarn_monitor_owed(struct tarn_monitor *m);
void tarn_monitor_owed_end(struct tarn_monitor *m);

#endif
