/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the application's GPUs. */
#ifndef TARN_CLIENT_EVENT_H
#define TARN_CLIENT_EVENT_H

#include <stdint.h>

#include "base/cancel.h"

/* Waits until the event (cudaEvent_t) has passed; TIMEOUT, CANCELED, or why it never will. */
int tarn_event_wait(void *event, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* TIMEOUT, in words. */
int tarn_event_late(void);
/* How long to leave events alone between two looks, having waited so long: 0 at first. */
uint64_t tarn_event_nap_ns(uint64_t waited_ns);

#endif
