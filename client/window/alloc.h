/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of tarn_window_alloc(): files that peers on this host can map. Any thread; a lock of its own. */
#ifndef TARN_CLIENT_WINDOW_ALLOC_H
#define TARN_CLIENT_WINDOW_ALLOC_H

#include <stdint.h>

/* The file that the range lies in, and the range's offset there; -1: none. */
int tarn_window_file(const void *addr, uint64_t bytes, uint64_t *offset_p);

#endif
