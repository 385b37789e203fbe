/* SPDX-License-Identifier: Apache-2.0 */
/* A user's choice of transports by name, for both registries. */
#ifndef TARN_TRANSPORT_CHOOSE_H
#define TARN_TRANSPORT_CHOOSE_H

#include "transport/transport.h"

/* What a table says about its transport. */
struct tarn_transport_entry {
    const char *name;
    uint32_t caps;
    int (*probe)(void);
};

/* The index of the transport with this name (not ended by NUL), or CONFIG with the nearest name. */
int tarn_choose_named(const struct tarn_transport_entry *all, int n, const char *name, size_t bytes);
/* As tarn_transport_select(), but gives indexes into `all`. */
int tarn_choose(const struct tarn_transport_entry *all, int n, const char *names,
                const struct tarn_logger *log, int *out, int max);

#endif
