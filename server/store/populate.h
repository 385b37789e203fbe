/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touches the memory of CPU pools in the background, as huge pages where the kernel has some.
 *
 * The kernel allocates and zeroes a page of a memfd at the first access, and every process that maps it has a
 * fault. So the first put into fresh room takes ten times as long as the next one (measured: 3.4 and 0.33 ms
 * for 4 MiB). One thread therefore touches the arenas once. It asks for huge pages
 * (MADV_COLLAPSE, Linux 6.1) in place of those that shmem_enabled, usually off, would give on a fault: a
 * client then has one fault in 2 MiB rather than 512, and copies faster. Contents do not change, so the node
 * serves meanwhile.
 */
#ifndef TARN_SERVER_POPULATE_H
#define TARN_SERVER_POPULATE_H

#include "base/log.h"
#include "metadata/directory.h"
#include "transport/node_half.h"

struct tarn_populate;

/* `pools` and `log` must last until the stop. */
int tarn_populate_start(const struct tarn_pool_memory *pools, uint32_t npools, const struct tarn_logger *log,
                        struct tarn_populate **p_p);
/* Ends the thread, done or not, and frees. NULL is allowed. */
void tarn_populate_stop(struct tarn_populate *p);
/* Bytes of a pool that have been touched. Any thread. */
uint64_t tarn_populate_bytes(const struct tarn_populate *p, uint32_t pool);

#endif
