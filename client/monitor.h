/* SPDX-License-Identifier: Apache-2.0 */
/* The two threads that look after health. */
#ifndef TARN_CLIENT_MONITOR_H
#define TARN_CLIENT_MONITOR_H

struct tarn_client;

int tarn_monitor_start(struct tarn_client *c);
void tarn_monitor_stop(struct tarn_client *c);

#endif
