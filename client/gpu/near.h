/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPUs near a GPU. Threads begin on their creator's CPUs, and memory lies near who first touches it. So
 * whoever makes both for a GPU does it on the CPUs of its NUMA node.
 */
#ifndef TARN_CLIENT_GPU_NEAR_H
#define TARN_CLIENT_GPU_NEAR_H

#include <sched.h>
#include <stdbool.h>

/* Those of `allowed` that are of the device's NUMA node; `pci` is its name in sysfs. False: `sysfs` does not
 * tell, or there are none. */
bool tarn_near_cpus(const char *sysfs, const char *pci, const cpu_set_t *allowed, cpu_set_t *cpus);
/* Moves the calling thread to the CPUs near the device. False: it has not moved. Else it goes back with
 * sched_setaffinity() to `before`. */
bool tarn_near_go(int device, cpu_set_t *before);

#endif
