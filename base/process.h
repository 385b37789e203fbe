/* SPDX-License-Identifier: Apache-2.0 */
/* What a program of ours does before anything else. */
#ifndef TARN_BASE_PROCESS_H
#define TARN_BASE_PROCESS_H

/*
 * Descriptors 0, 1 and 2 that are closed stay unusable: else the next socket or pool would get the number,
 * and what is printed would go there. A write past RLIMIT_FSIZE fails instead of ending the process.
 */
void tarn_process_begin(void);

#endif
