/* SPDX-License-Identifier: Apache-2.0 */
/* Which windows of a lender a link knows. Transports that share or register memory must be told of each. */
#ifndef TARN_CLIENT_KNOWN_H
#define TARN_CLIENT_KNOWN_H

#include "client/peer_node.h"

/* Makes the link know the window with that index and id, if it does not; that asks the lender. STALE: the
 * window is gone. NOT_REACHABLE: not by this transport. */
int tarn_link_know(struct tarn_open_link *l, uint32_t window, uint64_t id, uint64_t deadline_ns,
                   struct tarn_cancel *cancel);

#endif
