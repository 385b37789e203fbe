/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping of files at addresses that suit huge pages. */
#ifndef TARN_BASE_MAP_H
#define TARN_BASE_MAP_H

#include <stddef.h>

#define TARN_HUGE_PAGE (2ul << 20)

/*
 * mmap() of the whole file, shared, at a multiple of `align` (a power of two, at least the page size):
 * address and file offset then agree in their low bits, so that a huge page of the file is one TLB
 * entry, and runs of small ones may be (measured: up to a third faster copies). MAP_FAILED with errno.
 */
void *tarn_map_aligned(int fd, size_t bytes, size_t align, int prot);

#endif
