/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user sets for tcpx. It comes from the environment, read here and nowhere else, at both ends: tarnd
 * puts the values of its options there before it starts anything. Programs that run with the privileges of
 * another user get the defaults: a plugin is code.
 */
#ifndef TARN_TRANSPORT_TCPX_SETTINGS_H
#define TARN_TRANSPORT_TCPX_SETTINGS_H

#include <stdint.h>

#define TARN_TCPX_PLUGIN_VARIABLE "TARN_TCPX_PLUGIN"
#define TARN_TCPX_UNPACK_VARIABLE "TARN_TCPX_UNPACK_IMPL"
#define TARN_TCPX_STALL_VARIABLE "TARN_TCPX_STALL_MS"

/* How what is received gets to its place: tcpx_unpack.h. */
enum tarn_tcpx_way { TARN_TCPX_WAY_D2D, TARN_TCPX_WAY_HOST, TARN_TCPX_WAY_KERNEL };

/* The way of this name; NULL and "": kernel, the fastest. CONFIG, with the choices, for another. */
int tarn_tcpx_way_parse(const char *text, enum tarn_tcpx_way *way_p);
const char *tarn_tcpx_way_name(enum tarn_tcpx_way way);

struct tarn_tcpx_settings {
    const char *plugin;     /* as tarn_tcpx_plugin_open() takes it; NULL: the usual one */
    enum tarn_tcpx_way way; /* to unpack */
    uint32_t stall_ms;      /* how long nothing of what was asked of the plugin may end; 0: not set */
};

/* CONFIG: there is no such way to unpack, or the time is no number or out of range. */
int tarn_tcpx_settings(struct tarn_tcpx_settings *s);
/* For programs with options for them; NULL: leave the variable as it is. Before other threads are there. */
int tarn_tcpx_settings_export(const char *plugin, const char *unpack);

#endif
