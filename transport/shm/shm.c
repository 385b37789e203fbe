/* SPDX-License-Identifier: Apache-2.0 */
/* What both halves share: is the transport usable here? */
#include "transport/shm/shm.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

int tarn_shm_probe(void)
{
    int fd = memfd_create("tarn-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return tarn_fail(TARN_E_UNAVAILABLE, "the kernel gives no sealable memfd: %m");
    close(fd);
    return 0;
}
