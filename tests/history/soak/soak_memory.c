/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for a client's values: host memory, or a random choice of host and GPU memory. */
#include <stdlib.h>

#include "tests/device.h"
#include "tests/history/soak/soak.h"

enum { GPUS_MAX = 2 };

static struct {
    char *host, *gpu; /* gpu: NULL without a GPU */
    struct device *device;
} rooms;

int soak_gpus(void)
{
    int n = devices_there();
    return n < GPUS_MAX ? n : GPUS_MAX;
}

struct device *soak_gpu(int ordinal)
{
    static struct device *gpus[GPUS_MAX];
    if (ordinal < 0)
        return NULL;
    if (!gpus[ordinal])
        gpus[ordinal] = device_open(ordinal);
    return gpus[ordinal];
}

void soak_rooms_open(int gpu)
{
    size_t bytes = (size_t)SOAK_ROOMS * SOAK_VALUE_MAX;
    rooms.host = device_alloc(NULL, bytes);
    rooms.device = soak_gpu(gpu);
    rooms.gpu = rooms.device ? device_alloc(rooms.device, bytes) : NULL;
}

struct soak_room soak_room(uint32_t i)
{
    size_t at = (size_t)i * SOAK_VALUE_MAX;
    if (rooms.gpu && rand() % 2)
        return (struct soak_room){rooms.device, rooms.gpu + at};
    return (struct soak_room){NULL, rooms.host + at};
}
