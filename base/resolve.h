/* SPDX-License-Identifier: Apache-2.0 */
/* Host names to addresses with a deadline. getaddrinfo() has none, so names are looked up on a thread. */
#ifndef TARN_BASE_RESOLVE_H
#define TARN_BASE_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

#include "base/cancel.h"

/* The addresses of host and port; the caller frees them with freeaddrinfo(). NODE_DOWN, TIMEOUT, NO_MEMORY,
 * CANCELED. */
int tarn_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct tarn_cancel *cancel,
                 struct addrinfo **out_p);

#endif
