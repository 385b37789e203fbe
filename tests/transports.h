/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of a transport by name. NULL: there is no such half. */
#ifndef TARN_TESTS_TRANSPORTS_H
#define TARN_TESTS_TRANSPORTS_H

#include <string.h>

#include "transport/node_half.h"

static inline const struct tarn_transport_ops *find_transport(const char *name)
{
    const struct tarn_transport_ops *const *t = tarn_transport_list;
    while (*t && strcmp((*t)->name, name) != 0)
        t++;
    return *t;
}

static inline const struct tarn_node_half_ops *find_node_half(const char *name)
{
    const struct tarn_node_half_ops *const *t = tarn_node_half_list;
    while (*t && strcmp((*t)->name, name) != 0)
        t++;
    return *t;
}

#endif
