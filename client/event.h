/* SPDX-License-Identifier: Apache-2.0 */
/* Events (cudaEvent_t) of the application's GPUs. */
#ifndef TARN_CLIENT_EVENT_H
#define TARN_CLIENT_EVENT_H

#include <stdint.h>

#include "base/cancel.h"

/* Waits until the event has passed. TIMEOUT, CANCELED, or CUDA's failure. */
int tarn_event_wait(void *event, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* Fails with TIMEOUT. */
int tarn_event_late(void);
/* How long to sleep between two looks after waiting for so long; 0 at first. */
uint64_t tarn_event_nap_ns(uint64_t waited_ns);

#endif
