/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays with an entry a slot, of which most are never used. */
#ifndef TARN_SERVER_LAZY_H
#define TARN_SERVER_LAZY_H

#include <stdint.h>

/* Private zeroed memory that takes a page only where it is touched; NULL when out of memory. */
void *tarn_lazy_new(uint64_t bytes);
/* NULL is allowed. */
void tarn_lazy_free(void *p, uint64_t bytes);

#endif
