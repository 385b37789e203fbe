/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which device of the plugin serves which GPU. The plugin for TCPX moves bytes between a NIC and GPUs
 * behind the same PCIe switch; other GPUs are slow or do not work.
 */
#ifndef TARN_TRANSPORT_TCPX_NIC_H
#define TARN_TRANSPORT_TCPX_NIC_H

#include "transport/tcpx/plugin/tcpx_plugin.h"

/*
 * The device for gpus[gpu]: one with the fewest switches in between, by paths in sysfs
 * ("/sys/devices/pci0000:00/0000:00:05.0/0000:01:00.0"; "": unknown). GPUs with the same nearest devices
 * share them in order. If nothing is known, all GPUs share all devices. nnics: 1 to 32.
 */
int tarn_tcpx_nearest(const char *const *nics, int nnics, const char *const *gpus, int ngpus, int gpu);

/* The plugin's device for memory of that GPU (-1: the host): tcpx_nic.h. */
int tarn_tcpx_nic(const struct tarn_tcpx_plugin *p, int gpu);

#endif
