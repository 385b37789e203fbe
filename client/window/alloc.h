/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of tarn_window_alloc(): files that peers on this host can map. Any thread; a lock of its own. */
#ifndef TARN_CLIENT_WINDOW_ALLOC_H
#define TARN_CLIENT_WINDOW_ALLOC_H

#include <stdint.h>

/* For a window over that range: the file that it lies in, and its offset there; -1: none. The memory stays
 * until tarn_window_file_give(), which takes -1, too. */
int tarn_window_file_take(const void *addr, uint64_t bytes, uint64_t *offset_p);
void tarn_window_file_give(int fd);

#endif
