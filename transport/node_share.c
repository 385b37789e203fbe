/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/node_share.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* A second open of a memfd. Mode 0600 keeps other users from opening it for writing through the descriptor.
 */
static int read_only(int fd, const char *transport, const char *pool, int *fd_p)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fchmod(fd, 0600) < 0)
        return tarn_fail(TARN_E_SYSTEM, "pool %s: %s: chmod of its memory: %m", pool, transport);
    *fd_p = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd_p < 0)
        return tarn_fail(TARN_E_SYSTEM, "pool %s: %s: open %s read-only: %m: mount /proc", pool, transport,
                         path);
    return 0;
}

void tarn_share_close(struct tarn_share_files *files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (files[i].arena >= 0)
            close(files[i].arena);
        if (files[i].gen >= 0)
            close(files[i].gen);
    }
}

int tarn_share_open(const char *transport, const struct tarn_pool_memory *pools, uint32_t n,
                    bool (*served)(const struct tarn_pool_memory *p), struct tarn_share_files *files)
{
    int rc = 0;
    for (uint32_t i = 0; i < n; i++)
        files[i] = (struct tarn_share_files){-1, -1};
    for (uint32_t i = 0; !rc && i < n; i++) {
        const struct tarn_pool_memory *p = &pools[i];
        if (!served(p))
            continue;
        rc = p->memfd >= 0 ? read_only(p->memfd, transport, p->name, &files[i].arena) : 0;
        if (!rc)
            rc = read_only(p->gen_fd, transport, p->name, &files[i].gen);
    }
    if (rc)
        tarn_share_close(files, n);
    return rc;
}
