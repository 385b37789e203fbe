/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/near.h"

#include <stdio.h>
#include <stdlib.h>

#include "transport/cuda/cuda.h"

/* The file's first line. */
static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *f = fopen(path, "re");
    bool there = f && fgets(line, (int)bytes, f);
    if (f)
        fclose(f);
    return there;
}

/* Adds the CPUs of a list such as "0-3,8,10-11". */
static bool parse_cpus(const char *list, cpu_set_t *cpus)
{
    char *end;
    for (const char *at = list; *at && *at != '\n'; at = *end == ',' ? end + 1 : end) {
        long first = strtol(at, &end, 10), last = first;
        if (end != at && *end == '-')
            last = strtol(end + 1, &end, 10);
        if (end == at || first < 0 || last < first || (*end && *end != ',' && *end != '\n'))
            return false;
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, cpus);
    }
    return true;
}

bool tarn_near_cpus(const char *sysfs, const char *pci, const cpu_set_t *allowed, cpu_set_t *cpus)
{
    char path[256], line[4096];
    cpu_set_t of_node;
    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", sysfs, pci);
    if (!read_line(path, line, sizeof(line)))
        return false;
    long node = strtol(line, NULL, 10); /* -1: the system does not know */
    snprintf(path, sizeof(path), "%s/devices/system/node/node%ld/cpulist", sysfs, node);
    CPU_ZERO(&of_node);
    if (node < 0 || !read_line(path, line, sizeof(line)) || !parse_cpus(line, &of_node))
        return false;
    CPU_AND(cpus, &of_node, allowed);
    return CPU_COUNT(cpus) > 0;
}

bool tarn_near_go(int device, cpu_set_t *before)
{
    char pci[TARN_CUDA_PCI];
    cpu_set_t cpus;
    return tarn_cuda_pci(device, pci) == 0 && sched_getaffinity(0, sizeof(*before), before) == 0 &&
           tarn_near_cpus("/sys", pci, before, &cpus) && sched_setaffinity(0, sizeof(cpus), &cpus) == 0;
}
