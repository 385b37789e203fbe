/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which device of the plugin serves which GPU: the plugin for TCPX moves bytes between a NIC and the GPUs
 * behind the same PCIe switch, and no others at full speed, if at all.
 */
#ifndef TARN_TRANSPORT_TCPX_NIC_H
#define TARN_TRANSPORT_TCPX_NIC_H

#include "transport/tcpx/plugin/tcpx_plugin.h"

/*
 * One of the devices that are the fewest switches away from gpus[gpu], by where sysfs has them
 * ("/sys/devices/pci0000:00/0000:00:05.0/0000:01:00.0"; "": not known). GPUs that have the same ones nearest
 * share them out in their order; if nothing is known that is all GPUs and all devices. nnics: 1 to 32.
 */
int tarn_tcpx_nearest(const char *const *nics, int nnics, const char *const *gpus, int ngpus, int gpu);

/* The plugin's device for memory of that GPU (-1: of the host): tcpx_nic.h. */
int tarn_tcpx_nic(const struct tarn_tcpx_plugin *p, int gpu);

#endif
