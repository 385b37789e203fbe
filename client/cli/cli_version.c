/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli_version.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MELLANOX 0x15b3

bool cli_version_reaches(const char *text, unsigned major, unsigned minor)
{
    unsigned has[2] = {0, 0};

    text += strcspn(text, "0123456789");
    if (sscanf(text, "%u.%u", &has[0], &has[1]) < 1)
        return false;
    return has[0] > major || (has[0] == major && has[1] >= minor);
}

/* Physical and virtual functions; source: the PCI ID repository. */
static const struct {
    unsigned first, last;
    int generation;
    const char *name;
} models[] = {
    {0x1013, 0x1014, 4, "ConnectX-4"},
    {0x1015, 0x1016, 4, "ConnectX-4 Lx"},
    {0x1017, 0x1018, 5, "ConnectX-5"},
    {0x1019, 0x101a, 5, "ConnectX-5 Ex"},
    {0x101b, 0x101c, 6, "ConnectX-6"},
    {0x101d, 0x101e, 6, "ConnectX-6 Dx"}, /* 0x101e: of all later ones, too */
    {0x101f, 0x101f, 6, "ConnectX-6 Lx"},
    {0x1021, 0x1021, 7, "ConnectX-7"},
    {0x1023, 0x1024, 8, "ConnectX-8"},
    {0x1025, 0x10ff, 9, "later than ConnectX-8"},
    {0xa2d2, 0xa2d3, 5, "BlueField"},
    {0xa2d6, 0xa2d6, 6, "BlueField-2"},
    {0xa2d9, 0xa2dc, 7, "BlueField-3"},
    {0xa2df, 0xa2df, 9, "BlueField-4"},
};

const char *cli_nic_model(unsigned vendor, unsigned device, int *generation)
{
    for (size_t i = 0; vendor == MELLANOX && i < sizeof models / sizeof models[0]; i++)
        if (device >= models[i].first && device <= models[i].last) {
            *generation = models[i].generation;
            return models[i].name;
        }
    return NULL;
}
