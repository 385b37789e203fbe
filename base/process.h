/* SPDX-License-Identifier: Apache-2.0 */
/* What each program does first, and a number for the process. */
#ifndef TARN_BASE_PROCESS_H
#define TARN_BASE_PROCESS_H

#include <stdint.h>

/*
 * Reserves closed descriptors 0, 1 and 2. Otherwise the next socket or pool would get such a number, and
 * output would go there. Makes a write past RLIMIT_FSIZE fail instead of ending the process.
 */
void tarn_process_begin(void);

/* A random number that no other process has, nor a forked child. Any thread may call it. */
uint64_t tarn_process_number(void);

#endif
