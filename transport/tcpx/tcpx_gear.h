/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TARN_TRANSPORT_TCPX_GEAR_H
#define TARN_TRANSPORT_TCPX_GEAR_H

#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/tcpx_unpack.h"

/* What the comms of a thread share. Zeroed but for the plugin, the way, chunk and stall. */
struct tarn_tcpx_gear {
    struct tarn_tcpx_plugin *plugin;
    enum tarn_tcpx_way way;
    uint32_t chunk_bytes;        /* of the largest message */
    uint32_t stall_ms, setup_ms; /* as long as a request, and a set-up, may take */
    struct tarn_tcpx_unpacker *unpackers[1 + TARN_TCPX_GPUS]; /* of GPU i: 1 + i; 0: without one */
    uint32_t turns[1 + TARN_TCPX_GPUS];                       /* how often they have failed */
    struct tarn_tcpx_fragments list;                          /* the message being unpacked */
    struct tarn_tcpx_mappings *mappings; /* what the plugin may reach besides; NULL: nothing */
};

#endif
