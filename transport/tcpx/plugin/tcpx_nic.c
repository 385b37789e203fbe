/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/plugin/tcpx_nic.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/cuda/cuda.h"

/* The number of leading folders that both paths share: more is nearer. */
static int shared(const char *a, const char *b)
{
    int folders = 0;
    while (*a == '/' && *b == '/') {
        size_t n = 1 + strcspn(a + 1, "/");
        if (strncmp(a, b, n) != 0 || (b[n] && b[n] != '/'))
            break;
        folders++;
        a += n;
        b += n;
    }
    return folders;
}

/* A bit for each nearest device. */
static uint32_t nearest(const char *const *nics, int nnics, const char *gpu)
{
    uint32_t set = 0;
    int most = 0;
    for (int i = 0; i < nnics; i++) {
        int folders = shared(nics[i], gpu);
        if (folders > most)
            set = 0;
        if (folders >= most) {
            most = folders;
            set |= 1u << i;
        }
    }
    return set;
}

int tarn_tcpx_nearest(const char *const *nics, int nnics, const char *const *gpus, int ngpus, int gpu)
{
    uint32_t set = nearest(nics, nnics, gpus[gpu]);
    int before = 0, sharers = 0;
    for (int i = 0; i < ngpus; i++)
        if (nearest(nics, nnics, gpus[i]) == set) {
            before += i < gpu;
            sharers++;
        }
    for (int skip = before * __builtin_popcount(set) / sharers; skip > 0; skip--)
        set &= set - 1;
    return __builtin_ctz(set);
}

/* "" if CUDA or sysfs does not say. */
static void find_gpu(int gpu, char path[PATH_MAX])
{
    char id[TARN_CUDA_PCI], link[64];
    path[0] = '\0';
    if (tarn_cuda_pci(gpu, id))
        return;
    snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s", id);
    if (!realpath(link, path))
        path[0] = '\0';
}

int tarn_tcpx_nic(const struct tarn_tcpx_plugin *p, int gpu)
{
    const char *nics[TARN_TCPX_DEVICES], *gpus[TARN_TCPX_GPUS];
    int n, nic = 0;
    if (gpu < 0 || p->ndevices < 2 || tarn_cuda_count(&n) || gpu >= n || n > TARN_TCPX_GPUS)
        return 0;
    char(*paths)[PATH_MAX] = calloc((size_t)n, sizeof(*paths));
    if (!paths)
        return gpu * p->ndevices / n;
    for (int i = 0; i < n; i++) {
        find_gpu(i, paths[i]);
        gpus[i] = paths[i];
    }
    for (int i = 0; i < p->ndevices; i++)
        nics[i] = p->devices[i].pci;
    nic = tarn_tcpx_nearest(nics, p->ndevices, gpus, n, gpu);
    free(paths);
    return nic;
}
