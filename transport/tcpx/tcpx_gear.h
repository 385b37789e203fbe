/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TARN_TRANSPORT_TCPX_GEAR_H
#define TARN_TRANSPORT_TCPX_GEAR_H

#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/tcpx_unpack.h"

/* What the comms of a thread share. Zero it except for plugin, way, chunk and stall. */
struct tarn_tcpx_gear {
    struct tarn_tcpx_plugin *plugin;
    enum tarn_tcpx_way way;
    uint32_t chunk_bytes;                                     /* size of the largest message */
    uint32_t stall_ms, setup_ms;                              /* time limits for a request and for a set-up */
    struct tarn_tcpx_unpacker *unpackers[1 + TARN_TCPX_GPUS]; /* index 1 + i: GPU i; index 0: no GPU */
    uint32_t turns[1 + TARN_TCPX_GPUS];                       /* how often each has failed */
    struct tarn_tcpx_fragments list;                          /* the message being unpacked */
    struct tarn_tcpx_mappings *mappings; /* further memory the plugin may access; NULL: none */
};

#endif
