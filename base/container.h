/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TARN_BASE_CONTAINER_H
#define TARN_BASE_CONTAINER_H

#include <stddef.h>

/* The object of type_ whose member_ is at at_. */
#define TARN_CONTAINER_OF(at_, type_, member_) ((type_ *)(void *)((char *)(at_)-offsetof(type_, member_)))

#endif
