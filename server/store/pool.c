/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of CPU pools, and the slot arrays of all pools.
 *
 * A pool is three memfds: the arena, and the slot arrays gen and touch. Their pages count against the
 * process's memory and cgroup when they are first touched; the size of the /dev/shm mount does not limit
 * them. A pool that is larger than memory would meet the OOM killer hours later. So making a pool checks that
 * there is room.
 *
 * The memfds are sealed against shrinking, so no mapping of them raises SIGBUS. F_SEAL_SEAL prevents a client
 * with a writable descriptor from sealing the file against others' writes.
 */
#include "server/store/pool.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/text.h"

/* --- what there is ------------------------------------------------------------------------------ */

/* The number after `name` in a file of lines "name[:] number ...", or `missing`. "" is the first word. */
static uint64_t file_number(const char *path, const char *name, uint64_t missing)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return missing;
    char line[256];
    uint64_t v = missing;
    size_t n = strlen(name);
    while (v == missing && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, n) == 0 && sscanf(line + n, "%*[: \t]%" SCNu64, &v) != 1)
            sscanf(line + n, "%" SCNu64, &v);
    }
    fclose(f);
    return v;
}

struct room {
    uint64_t bytes;
    char limit[600]; /* what sets the limit and how it is raised */
};

static void room_from_cgroup(const char *dir, bool v2, struct room *r)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t limit = file_number(path, "", UINT64_MAX);
    if (limit >= INT64_MAX / 2) /* "max", or v1's way to say no limit */
        return;
    char other[600];
    snprintf(other, sizeof(other), "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t used = file_number(other, "", 0);
    snprintf(other, sizeof(other), "%s/memory.stat", dir);
    uint64_t cache = file_number(other, v2 ? "inactive_file" : "total_inactive_file", 0) +
                     file_number(other, v2 ? "active_file" : "total_active_file", 0);
    used -= cache < used ? cache : used;
    uint64_t bytes = limit > used ? limit - used : 0;
    if (bytes >= r->bytes)
        return;
    r->bytes = bytes;
    snprintf(r->limit, sizeof(r->limit),
             "the memory limit in %.400s is %" PRIu64 ": make the pool smaller or raise it", path, limit);
}

/* Looks at the cgroup `sub` of a hierarchy mounted at `mount`, and at all above it. */
static void room_from_hierarchy(const char *mount, const char *sub, bool v2, struct room *r)
{
    char dir[512];
    if (snprintf(dir, sizeof(dir), "%s%s", mount, sub) >= (int)sizeof(dir))
        return;
    for (;;) {
        room_from_cgroup(dir, v2, r);
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + strlen(mount))
            return;
        *slash = 0;
    }
}

/* Lines are "<id>:<controllers>:<path>"; v2 has id 0 and no controllers. */
static void room_from_cgroups(const char *root, struct room *r)
{
    char path[512], line[512];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *sub = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!sub)
            continue;
        *sub++ = 0;
        controllers++;
        bool v2 = *controllers == 0;
        if (!v2 && strcmp(controllers, "memory") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
        room_from_hierarchy(path, strcmp(sub, "/") == 0 ? "" : sub, v2, r);
        room_from_cgroup(path, v2, r); /* a container may see its own cgroup at the mount's root */
    }
    fclose(f);
}

int tarn_pool_check_memory(const char *root, const char *name, uint64_t bytes)
{
    char path[512], want[16], have[16];
    struct room r;
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    uint64_t kb = file_number(path, "MemAvailable", UINT64_MAX / 1024);
    r.bytes = kb * 1024;
    snprintf(r.limit, sizeof(r.limit),
             "MemAvailable in /proc/meminfo is %" PRIu64 " kB: make the pool smaller or free memory", kb);
    room_from_cgroups(root, &r);
    if (bytes <= r.bytes)
        return 0;
    tarn_size_format(bytes, want);
    tarn_size_format(r.bytes, have);
    return tarn_fail(TARN_E_NO_MEMORY, "pool %s: %s of memory are needed and %s are free: %s", name, want,
                     have, r.limit);
}

int tarn_pool_check_huge(const char *root, const char *name, uint64_t bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    uint64_t page = file_number(path, "Hugepagesize", TARN_HUGE_PAGE / 1024) * 1024;
    if (bytes % page)
        return tarn_fail(TARN_E_CONFIG,
                         "pool %s: %" PRIu64 " bytes are not whole huge pages: use a multiple of %" PRIu64,
                         name, bytes, page);
    uint64_t free_pages = file_number(path, "HugePages_Free", 0),
             promised = file_number(path, "HugePages_Rsvd", 0);
    free_pages -= promised < free_pages ? promised : free_pages;
    uint64_t pages = bytes / page;
    if (pages <= free_pages)
        return 0;
    return tarn_fail(TARN_E_NO_MEMORY,
                     "pool %s: %" PRIu64 " huge pages of %" PRIu64 " kB are needed and %" PRIu64
                     " are free: run sysctl vm.nr_hugepages=%" PRIu64 " or leave huge pages off",
                     name, pages, page / 1024, free_pages,
                     file_number(path, "HugePages_Total", 0) + pages - free_pages);
}

/* --- making it ---------------------------------------------------------------------------------- */

static int memfd_map(const char *pool, const char *part, uint64_t bytes, unsigned flags, int *fd_p,
                     void **base_p)
{
    char name[64];
    snprintf(name, sizeof(name), "tarn-%s-%s", pool, part);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0)
        return tarn_fail(TARN_E_SYSTEM, "pool %s: memfd_create for %s: %m", pool, part);
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        base = tarn_map_aligned(fd, bytes, TARN_HUGE_PAGE, PROT_READ | PROT_WRITE);
    if (base == MAP_FAILED) {
        int rc = tarn_fail(TARN_E_NO_MEMORY, "pool %s: %s of %" PRIu64 " bytes: %m: make the pool smaller",
                           pool, part, bytes);
        close(fd);
        return rc;
    }
    madvise(base, bytes, MADV_DONTDUMP); /* a core file is no place for a pool */
    *fd_p = fd;
    *base_p = base;
    return 0;
}

static int create_slots(const char *name, struct tarn_pool_memory *m)
{
    void *gen = NULL, *touch = NULL;
    int rc = memfd_map(name, "gen", m->nslots * sizeof(uint64_t), 0, &m->gen_fd, &gen);
    m->gen = gen;
    if (rc == 0)
        rc = memfd_map(name, "touch", m->nslots * sizeof(uint32_t), 0, &m->touch_fd, &touch);
    m->touch = touch;
    return rc;
}

int tarn_pool_create(const char *name, uint64_t bytes, uint32_t nslots, bool huge, const char *device,
                     struct tarn_pool_memory *m)
{
    struct tarn_pool_memory made = {
        .bytes = bytes, .nslots = nslots, .memfd = -1, .gen_fd = -1, .touch_fd = -1};
    int rc = device[0] ? tarn_pool_take_gpu(name, device, &made)
                       : memfd_map(name, "arena", bytes, huge ? MFD_HUGETLB : 0, &made.memfd, &made.base);
    if (rc == 0)
        rc = create_slots(name, &made);
    if (rc != 0) {
        tarn_pool_destroy(&made);
        return rc;
    }
    *m = made;
    return 0;
}

static void memfd_unmap(int fd, void *base, uint64_t bytes)
{
    if (base)
        munmap(base, bytes);
    if (fd >= 0)
        close(fd);
}

void tarn_pool_destroy(struct tarn_pool_memory *m)
{
    if (m->kind == TARN_POOL_GPU)
        tarn_cuda_free(m->device, m->base);
    else
        memfd_unmap(m->memfd, m->base, m->bytes);
    memfd_unmap(m->gen_fd, m->gen, m->nslots * sizeof(uint64_t));
    memfd_unmap(m->touch_fd, m->touch, m->nslots * sizeof(uint32_t));
}
