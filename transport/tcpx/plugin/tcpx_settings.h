/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's settings for tcpx. They come from the environment, which both ends read only here; tarnd
 * first sets the variables from its options. Programs that run with another user's privileges get the
 * defaults, because a plugin is code.
 */
#ifndef TARN_TRANSPORT_TCPX_SETTINGS_H
#define TARN_TRANSPORT_TCPX_SETTINGS_H

#include <stdint.h>

#define TARN_TCPX_PLUGIN_VARIABLE "TARN_TCPX_PLUGIN"
#define TARN_TCPX_UNPACK_VARIABLE "TARN_TCPX_UNPACK_IMPL"
#define TARN_TCPX_STALL_VARIABLE "TARN_TCPX_STALL_MS"

/* How received bytes reach their destination: tcpx_unpack.h. */
enum tarn_tcpx_way { TARN_TCPX_WAY_D2D, TARN_TCPX_WAY_HOST, TARN_TCPX_WAY_KERNEL };

/* The way with this name; NULL or "": kernel, the fastest. CONFIG lists the choices. */
int tarn_tcpx_way_parse(const char *text, enum tarn_tcpx_way *way_p);
const char *tarn_tcpx_way_name(enum tarn_tcpx_way way);

struct tarn_tcpx_settings {
    const char *plugin;     /* for tarn_tcpx_plugin_open(); NULL: the usual one */
    enum tarn_tcpx_way way; /* of unpacking */
    uint32_t stall_ms;      /* limit on time without any completed request; 0: not set */
};

/* CONFIG: unknown way to unpack, or the time is no number or out of range. */
int tarn_tcpx_settings(struct tarn_tcpx_settings *s);
/* For programs with options for these; NULL leaves the variable unchanged. Call before starting threads. */
int tarn_tcpx_settings_export(const char *plugin, const char *unpack);

#endif
