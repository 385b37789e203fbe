/* SPDX-License-Identifier: Apache-2.0 */
/* The state directory itself: lock, owner, presence, and the processes that have pools mapped. keep.h has the
 * rules; keep_pool.c the pools. */
#include "server/store/keep_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/text.h"

#define AT "state"
#define MAGIC 0x314554415453544eull
#define FORMAT 1 /* to be raised with every change of a struct that is kept */

struct node_file {
    uint64_t check, magic, format, epoch, tick_base_ns;
    char boot[40];
    struct tarn_keep_owner owner;
};

/* --- files ---------------------------------------------------------------------------------------- */

int keep_file(struct tarn_keep *k, const char *name, uint64_t bytes, int *fd_p)
{
    struct stat st;
    int fd = openat(k->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st))
        return tarn_fail(TARN_E_CONFIG, "--state-dir %s: %s: %m: give a directory that the node may write",
                         k->path, name);
    if (bytes && (uint64_t)st.st_size > bytes)
        st.st_size = ftruncate(fd, 0) ? st.st_size : 0;
    if (bytes && fallocate(fd, 0, 0, (off_t)bytes)) {
        char size[16];
        tarn_size_format(bytes, size);
        int rc = tarn_fail(
            TARN_E_CONFIG,
            "--state-dir %s: %s: no %s for this file: %m: make room there, or make the pools smaller%s",
            k->path, name, size,
            errno == EOPNOTSUPP ? "; the file system must know fallocate, as tmpfs and ext4 do" : "");
        close(fd);
        return rc;
    }
    *fd_p = fd;
    return 0;
}

int keep_map(struct tarn_keep *k, const char *name, uint64_t bytes, int *fd_p, void **base_p)
{
    int rc = keep_file(k, name, bytes, fd_p);
    if (rc)
        return rc;
    *base_p = tarn_map_aligned(*fd_p, bytes, TARN_HUGE_PAGE, PROT_READ | PROT_WRITE);
    if (*base_p != MAP_FAILED) {
        madvise(*base_p, bytes, MADV_DONTDUMP);
        return 0;
    }
    *base_p = NULL;
    rc = tarn_fail(TARN_E_SYSTEM, "--state-dir %s: %s: mmap of %" PRIu64 " bytes: %m", k->path, name, bytes);
    close(*fd_p);
    *fd_p = -1;
    return rc;
}

/* Removes all files but the lock; `node` first, so that what is left of a removal is no state. */
static void remove_all(struct tarn_keep *k)
{
    int copy = openat(k->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    unlinkat(k->dir, "node", 0);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] != '.' && strcmp(e->d_name, "lock"))
            unlinkat(k->dir, e->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* A directory with other files is somebody else's: they are not to be removed. */
static int check_ours(const struct tarn_keep *k)
{
    int copy = openat(k->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    for (const struct dirent *e; !rc && d && (e = readdir(d));) {
        const char *dot = strchr(e->d_name, '.');
        bool ours = e->d_name[0] == '.' || !strcmp(e->d_name, "lock") || !strcmp(e->d_name, "node") ||
                    !strcmp(e->d_name, "node.new") || !strcmp(e->d_name, "presence") ||
                    !strncmp(e->d_name, "page-", 5) || (e->d_name[0] >= '0' && e->d_name[0] <= '9' && dot);
        if (!ours)
            rc = tarn_fail(
                TARN_E_CONFIG,
                "--state-dir %s: has \"%.60s\", which is no file of a node: give a directory of its own",
                k->path, e->d_name);
    }
    if (d)
        closedir(d);
    return rc;
}

static int open_dir(struct tarn_keep *k)
{
    struct stat st;
    if (mkdir(k->path, 0700) && errno != EEXIST)
        return tarn_fail(TARN_E_CONFIG, "--state-dir %s: %m: give a directory that can be made", k->path);
    k->dir = open(k->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->dir < 0 || fstat(k->dir, &st))
        return tarn_fail(TARN_E_CONFIG, "--state-dir %s: %m: give a directory", k->path);
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return tarn_fail(
            TARN_E_CONFIG,
            "--state-dir %s: is user %u's with mode %04o: it must be this node's user's with mode 0700",
            k->path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
    return 0;
}

static int take_lock(struct tarn_keep *k)
{
    int rc = keep_file(k, "lock", 0, &k->lock);
    if (!rc && flock(k->lock, LOCK_EX | LOCK_NB))
        rc = tarn_fail(TARN_E_BUSY, "--state-dir %s: another node runs with it: give each node its own",
                       k->path);
    return rc;
}

/* --- owner ---------------------------------------------------------------------------------------- */

static int boot_id(char out[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    memset(out, 0, 40);
    ssize_t n = fd >= 0 ? read(fd, out, 36) : -1;
    if (fd >= 0)
        close(fd);
    return n == 36
               ? 0
               : tarn_fail(TARN_E_SYSTEM, "--state-dir: /proc/sys/kernel/random/boot_id: %m: mount /proc");
}

static uint64_t check_of(const struct node_file *f)
{
    return tarn_hash((const char *)f + sizeof(f->check), sizeof(*f) - sizeof(f->check), FORMAT);
}

/* Why a state is not this node's; NULL: it is. */
static const char *difference(const struct node_file *f, const struct node_file *want)
{
    if (f->magic != MAGIC || f->check != check_of(f))
        return f->magic == MAGIC && f->format != FORMAT ? "it has another format" : "it is damaged";
    if (f->format != FORMAT)
        return "it has another format";
    if (memcmp(f->boot, want->boot, sizeof(f->boot)))
        return "it is of another boot of the machine, which may have lost some of it";
    if (strcmp(f->owner.id, want->owner.id))
        return "it is another node's: --id differs";
    if (strcmp(f->owner.ns, want->owner.ns))
        return "it is of another namespace: --ns differs";
    if (f->owner.redis != want->owner.redis)
        return "it belongs to another directory: --redis differs";
    if (f->owner.heartbeat_ms != want->owner.heartbeat_ms)
        return "--heartbeat-ms differs";
    if (memcmp(&f->owner, &want->owner, sizeof(f->owner)))
        return "the pools differ in number, name, size, slots or alignment";
    return NULL;
}

/* 1: there is a file. */
static int read_node_file(const struct tarn_keep *k, struct node_file *f)
{
    int fd = openat(k->dir, "node", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    memset(f, 0, sizeof(*f));
    ssize_t n = read(fd, f, sizeof(*f));
    close(fd);
    if (n != (ssize_t)sizeof(*f))
        f->check = ~check_of(f);
    return 1;
}

/* All files of pools have their sizes: a state without one of them is damaged. */
static bool is_complete(const struct tarn_keep *k, const struct tarn_keep_owner *o)
{
    static const char *const parts[] = {"arena", "gen", "touch"};
    for (uint32_t i = 0; i < o->npools; i++) {
        const uint64_t sizes[] = {o->pools[i].bytes, o->pools[i].slots * sizeof(uint64_t),
                                  o->pools[i].slots * sizeof(uint32_t)};
        for (int part = 0; part < 3; part++) {
            char name[32];
            struct stat st;
            snprintf(name, sizeof(name), "%u.%s", i, parts[part]);
            if (fstatat(k->dir, name, &st, AT_SYMLINK_NOFOLLOW) || (uint64_t)st.st_size != sizes[part])
                return false;
        }
    }
    return true;
}

static int find_state(struct tarn_keep *k, const struct tarn_logger *log, uint64_t *epoch_p,
                      uint64_t *tick_base_p)
{
    struct node_file f, want = {.magic = MAGIC, .format = FORMAT, .owner = k->owner};
    int rc = boot_id(want.boot), there = rc ? 0 : read_node_file(k, &f);
    const char *why = there ? difference(&f, &want) : NULL;
    if (rc)
        return rc;
    if (there && !why && !is_complete(k, &k->owner))
        why = "a file of a pool is missing or has another size";
    if (there && why)
        tarn_log(log, TARN_LOG_WARN, AT, "msg=\"the pools start empty\" state-dir=%s cause=\"%s\"", k->path,
                 why);
    k->found = there && !why;
    if (!k->found)
        remove_all(k);
    k->epoch = *epoch_p = k->found ? f.epoch : *epoch_p;
    k->tick_base_ns = *tick_base_p = k->found ? f.tick_base_ns : *tick_base_p;
    return keep_map(k, "presence", 2 * sizeof(struct presence_place), &k->presence_fd, (void **)&k->presence);
}

int tarn_keep_open(const char *dir, const struct tarn_keep_owner *owner, const struct tarn_logger *log,
                   uint64_t *epoch_p, uint64_t *tick_base_ns_p, struct tarn_keep **k_p)
{
    if (strlen(dir) >= sizeof(((struct tarn_keep *)0)->path))
        return tarn_fail(TARN_E_CONFIG, "--state-dir: a path of %zu bytes: at most %zu are possible",
                         strlen(dir), sizeof(((struct tarn_keep *)0)->path) - 1);
    struct tarn_keep *k = calloc(1, sizeof(*k));
    if (!k)
        return tarn_fail(TARN_E_NO_MEMORY, "--state-dir: out of memory");
    k->dir = k->lock = k->presence_fd = -1;
    k->owner = *owner;
    snprintf(k->path, sizeof(k->path), "%s", dir);
    int rc = open_dir(k);
    if (!rc)
        rc = check_ours(k);
    if (!rc)
        rc = take_lock(k);
    if (!rc)
        rc = find_state(k, log, epoch_p, tick_base_ns_p);
    if (rc) {
        tarn_keep_close(k);
        return rc;
    }
    *k_p = k;
    return 0;
}

int tarn_keep_begin(struct tarn_keep *k)
{
    struct node_file f = {.magic = MAGIC, .format = FORMAT, .owner = k->owner};
    if (k->found)
        return 0;
    f.epoch = k->epoch;
    f.tick_base_ns = k->tick_base_ns;
    int fd, rc = boot_id(f.boot);
    f.check = check_of(&f);
    if (!rc)
        rc = keep_file(k, "node.new", sizeof(f), &fd);
    if (rc)
        return rc;
    bool written = pwrite(fd, &f, sizeof(f), 0) == (ssize_t)sizeof(f);
    close(fd);
    if (!written || renameat(k->dir, "node.new", k->dir, "node"))
        return tarn_fail(TARN_E_SYSTEM, "--state-dir %s: node: %m", k->path);
    return 0;
}

void tarn_keep_close(struct tarn_keep *k)
{
    if (!k)
        return;
    for (uint32_t i = 0; i < k->npages; i++)
        munmap(k->pages[i].page, k->pages[i].bytes);
    free(k->pages);
    if (k->presence)
        munmap(k->presence, 2 * sizeof(*k->presence));
    for (uint32_t i = 0; i < TARN_POOLS_MAX; i++)
        keep_pool_close(k, i);
    if (k->presence_fd >= 0)
        close(k->presence_fd);
    if (k->lock >= 0)
        close(k->lock);
    if (k->dir >= 0)
        close(k->dir);
    free(k);
}

bool tarn_keep_found(const struct tarn_keep *k)
{
    return k && k->found;
}

/* --- presence ------------------------------------------------------------------------------------- */

static uint64_t presence_check(const struct presence_place *p)
{
    return tarn_hash(&p->number, sizeof(*p) - sizeof(p->check), FORMAT) | 1;
}

static const struct presence_place *last_presence(const struct tarn_keep *k)
{
    const struct presence_place *last = NULL;
    for (int i = 0; i < 2; i++) {
        const struct presence_place *p = &k->presence[i];
        if (atomic_load(&p->check) == presence_check(p) && (!last || p->number > last->number))
            last = p;
    }
    return last;
}

bool tarn_keep_presence(const struct tarn_keep *k, void *out, size_t bytes)
{
    const struct presence_place *p = last_presence(k);
    if (p)
        memcpy(out, p->bytes, bytes);
    return p;
}

void tarn_keep_set_presence(struct tarn_keep *k, const void *presence, size_t bytes)
{
    const struct presence_place *last = last_presence(k);
    struct presence_place *p = &k->presence[last == k->presence];
    atomic_store(&p->check, 0);
    p->number = last ? last->number + 1 : 1;
    memset(p->bytes, 0, sizeof(p->bytes));
    memcpy(p->bytes, presence, bytes);
    atomic_store(&p->check, presence_check(p));
}

/* --- processes ------------------------------------------------------------------------------------ */

/* When a process began, in clock ticks since the boot; 0: there is none. No two of a boot have both the same.
 */
static uint64_t began(pid_t pid)
{
    char path[32], text[512];
    unsigned long long at = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *name_end = strrchr(text, ')');
    if (!name_end ||
        sscanf(name_end + 2,
               "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &at) != 1)
        return 0;
    return at;
}

int tarn_keep_page_new(struct tarn_keep *k, pid_t pid, size_t bytes, int *fd_p)
{
    char name[80];
    uint64_t at = pid > 0 ? began(pid) : 0;
    if (!at)
        return tarn_fail(
            TARN_E_NOT_REACHABLE,
            "ATTACH: process %d cannot be told from others after a restart of the node: use one PID "
            "namespace, or tcp",
            (int)pid);
    snprintf(name, sizeof(name), "page-%d-%" PRIu64 "-%016" PRIx64, (int)pid, at, tarn_random64());
    return keep_file(k, name, bytes, fd_p);
}

/* A process whose first thread has ended may go on in others: the pidfd tells. */
static bool lives(const char *name)
{
    int pid;
    uint64_t at;
    if (sscanf(name, "page-%d-%" SCNu64, &pid, &at) != 2 || began(pid) != at)
        return false;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool exited = fd < 0 ? errno == ESRCH : poll(&p, 1, 0) == 1;
    if (fd >= 0)
        close(fd);
    return !exited;
}

void tarn_keep_page_end(struct tarn_keep *k, int fd, bool unmapped)
{
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = 0;
    const char *name = strrchr(path, '/');
    if (name && (unmapped || !lives(name + 1)))
        unlinkat(k->dir, name + 1, 0);
}

static int take_page(struct tarn_keep *k, const char *name, size_t bytes)
{
    struct old_page *grown = realloc(k->pages, (k->npages + 1) * sizeof(*grown));
    int fd;
    if (!grown)
        return tarn_fail(TARN_E_NO_MEMORY, "--state-dir: out of memory");
    k->pages = grown;
    struct old_page *p = &k->pages[k->npages];
    snprintf(p->name, sizeof(p->name), "%.79s", name);
    p->bytes = bytes;
    int rc = keep_map(k, name, bytes, &fd, &p->page);
    if (rc)
        return rc;
    close(fd);
    k->npages++;
    return 0;
}

int tarn_keep_pages(struct tarn_keep *k, size_t bytes, void (*fn)(void *arg, void *page), void *arg)
{
    int copy = openat(k->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d)
        return tarn_fail(TARN_E_SYSTEM, "--state-dir %s: %m", k->path);
    for (const struct dirent *e; !rc && (e = readdir(d));) {
        if (strncmp(e->d_name, "page-", 5))
            continue;
        if (!lives(e->d_name))
            unlinkat(k->dir, e->d_name, 0);
        else if (!(rc = take_page(k, e->d_name, bytes)))
            fn(arg, k->pages[k->npages - 1].page);
    }
    closedir(d);
    return rc;
}

uint32_t tarn_keep_pages_tick(struct tarn_keep *k, void (*fn)(void *arg, void *page), void *arg)
{
    for (uint32_t i = 0; i < k->npages;) {
        struct old_page *p = &k->pages[i];
        if (lives(p->name)) {
            i++;
            continue;
        }
        fn(arg, p->page);
        munmap(p->page, p->bytes);
        unlinkat(k->dir, p->name, 0);
        *p = k->pages[--k->npages];
    }
    return k->npages;
}
