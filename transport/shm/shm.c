/* SPDX-License-Identifier: Apache-2.0 */
/* What both halves share: is the transport usable here? */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

int tarn_shm_probe(char *why, size_t why_bytes)
{
    int fd = memfd_create("tarn-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        snprintf(why, why_bytes, "the kernel gives no sealable memfd: %s", strerror(errno));
        return TARN_E_UNAVAILABLE;
    }
    close(fd);
    return 0;
}
