/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, mapping and creating tensor files; the formats themselves are in file_*.c. */
#include "client/cli/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

static const char *const format_names[] = {
    [TARN_FILE_RAW] = "raw",
    [TARN_FILE_NPY] = "npy",
    [TARN_FILE_SAFETENSORS] = "safetensors",
};
#define FORMATS (sizeof format_names / sizeof format_names[0])

int tarn_file_format_parse(const char *name)
{
    for (size_t i = 0; i < FORMATS; i++) {
        if (strcmp(name, format_names[i]) == 0)
            return (int)i;
    }
    const char *near = tarn_nearest(name, format_names, FORMATS);
    return tarn_fail(TARN_E_INVALID, "file format \"%.40s\" is unknown: use npy, safetensors or raw%s%s%s",
                     name, near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
}

int tarn_file_format_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');

    if (!dot || dot == name || !dot[1])
        return TARN_FILE_RAW;
    for (size_t i = 0; i < FORMATS; i++) {
        if (strcasecmp(dot + 1, format_names[i]) == 0)
            return (int)i;
    }
    return tarn_fail(
        TARN_E_INVALID,
        "%s: %.20s is an ending that tarn does not know: use .npy or .safetensors, or --format raw for the "
        "bytes as they are",
        path, dot);
}

/* --- reading ------------------------------------------------------------------------------------ */

/* Reads to the end of something without a known length. */
static int read_all(int fd, const char *path, struct tarn_file *f)
{
    enum { STEP = 1 << 20 };
    struct tarn_buf all = {0};
    char *step = malloc(STEP);
    ssize_t got = -1;

    while (step && !all.failed && (got = read(fd, step, STEP)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        if (got > 0)
            tarn_buf_add(&all, step, (size_t)got);
    }
    free(step);
    if (got != 0 || all.failed) {
        int rc = all.failed || !step ? tarn_fail(TARN_E_NO_MEMORY, "%s: no memory for its bytes", path)
                                     : tarn_fail(TARN_E_INVALID, "%s: cannot read: %m", path);
        tarn_buf_free(&all);
        return rc;
    }
    f->data = (unsigned char *)all.data;
    f->bytes = all.bytes;
    return 0;
}

static int map_all(int fd, const char *path, struct tarn_file *f)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return tarn_fail(TARN_E_SYSTEM, "%s: fstat: %m", path);
    if (S_ISDIR(st.st_mode))
        return tarn_fail(TARN_E_INVALID, "%s: is a directory: name the files in it", path);
    if (fd != STDIN_FILENO && (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)))
        return tarn_fail(
            TARN_E_INVALID,
            "%s: is a device, which may have no end: pipe a part of it: head -c 1M %s | tarn put -", path,
            path);
    /* Files in /proc report 0 bytes but have some. Of standard input only the rest is wanted. */
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || (fd == STDIN_FILENO && lseek(fd, 0, SEEK_CUR) > 0))
        return read_all(fd, path, f);
    f->bytes = (uint64_t)st.st_size;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "%s: mmap: %m", path);
    madvise(map, (size_t)st.st_size, MADV_SEQUENTIAL);
    f->data = map;
    f->mapped = true;
    return 0;
}

static int load(const char *path, struct tarn_file *f)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return tarn_fail(TARN_E_INVALID, "%s: cannot open: %m", *path ? path : "FILE is empty");
    int rc = map_all(fd, path, f);
    if (!is_stdin)
        close(fd);
    return rc;
}

static int parse(enum tarn_file_format format, const struct tarn_file_hint *hint, struct tarn_file *f)
{
    const void *data = f->data ? (const void *)f->data : "";

    if (format == TARN_FILE_SAFETENSORS)
        return tarn_safetensors_parse(data, f->bytes, &f->entries, &f->n);
    f->entries = calloc(1, sizeof *f->entries);
    if (!f->entries)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    f->n = 1;
    if (format == TARN_FILE_NPY)
        return tarn_npy_parse(data, f->bytes, hint->dtype, f->entries);
    return tarn_raw_describe(f->bytes, hint, &f->entries->tensor);
}

int tarn_file_open(const char *path, enum tarn_file_format format, const struct tarn_file_hint *hint,
                   struct tarn_file *f)
{
    struct tarn_file g = {0};
    int rc = load(path, &g);

    if (rc != 0)
        return rc;
    rc = parse(format, hint, &g);
    if (rc != 0) {
        struct tarn_reason why;
        tarn_reason_keep(&why, rc);
        tarn_file_close(&g);
        return tarn_fail(rc, "%s: %s", path, why.text);
    }
    *f = g;
    return 0;
}

void tarn_file_close(struct tarn_file *f)
{
    tarn_file_entries_free(f->entries, f->n);
    if (f->mapped)
        munmap((void *)f->data, f->bytes);
    else
        free((void *)f->data);
    *f = (struct tarn_file){0};
}

/* --- writing ------------------------------------------------------------------------------------ */

#define OPEN_FILES "/proc/self/fd" /* where a file without a name can be linked from */

/*
 * Reserves space now, so that a full disk is an error here, not a SIGBUS in the middle of a get. If the file
 * system does not support this, posix_fallocate() writes a byte to each block.
 */
static int take_room(struct tarn_file_out *o)
{
    if (o->bytes == 0)
        return 0;
    if (o->bytes > INT64_MAX)
        return tarn_fail(TARN_E_INVALID, "%s: %llu bytes are more than a file can have", o->path,
                         (unsigned long long)o->bytes);
    errno = fallocate(o->fd, 0, 0, (off_t)o->bytes) == 0 ? 0 : errno;
    o->sync = errno == EOPNOTSUPP;
    if (o->sync)
        errno = posix_fallocate(o->fd, 0, (off_t)o->bytes);
    if (errno != 0)
        return tarn_fail(TARN_E_SYSTEM, "%s: no room for %llu bytes: %m: write elsewhere, or make room",
                         o->path, (unsigned long long)o->bytes);
    void *map = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
    if (map == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "%s: mmap: %m", o->path);
    o->map = map;
    return 0;
}

/*
 * The file has no name until it is complete, so a killed get leaves nothing behind. If the file system
 * does not support that, it has the temporary name from the start.
 */
static int open_temporary(struct tarn_file_out *o, const char *directory)
{
    if (access(OPEN_FILES, X_OK) == 0)
        o->fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        o->fd = open(o->temporary, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        o->named = o->fd >= 0;
    }
    if (o->fd < 0)
        return tarn_fail(
            TARN_E_INVALID,
            "%s: cannot create: %m: write to a directory that is there and that you may write to", o->path);
    return take_room(o);
}

int tarn_file_create(const char *path, uint64_t bytes, struct tarn_file_out *o)
{
    struct stat old;

    /* stat() fails for a link that leads nowhere, or that the kernel does not follow for this user. */
    if (stat(path, &old) != 0 && lstat(path, &old) == 0)
        return tarn_fail(TARN_E_INVALID, "%s: cannot create: %m: name a file, or a link to one", path);
    /* Keep a symbolic link: replace its target, and keep the target's permissions. */
    char *real = realpath(path, NULL), *directory = NULL;
    struct tarn_file_out out = {.fd = -1, .bytes = bytes, .path = real ? real : strdup(path)};
    const char *slash = out.path ? strrchr(out.path, '/') : NULL;
    int rc = 0;

    if (out.path)
        directory = slash ? strndup(out.path, (size_t)(slash - out.path) + 1) : strdup("./");
    if (!directory ||
        asprintf(&out.temporary, "%s.tarn-%016llx", directory, (unsigned long long)tarn_random64()) < 0) {
        out.temporary = NULL;
        rc = tarn_fail(TARN_E_NO_MEMORY, "%s: no memory", path);
    }
    if (rc == 0)
        rc = open_temporary(&out, directory);
    if (rc == 0 && stat(out.path, &old) == 0 && fchmod(out.fd, old.st_mode & 0777) != 0)
        rc = tarn_fail(TARN_E_SYSTEM, "%s: fchmod: %m", path);
    free(directory);
    if (rc != 0) {
        tarn_file_discard(&out);
        return rc;
    }
    *o = out;
    return 0;
}

#define PREFAULT_MIN (1 << 20) /* below this the call costs more than the faults */

void tarn_file_prefault(void *addr, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)addr & ~(page - 1);

    /* Kernels before 5.14 do not support it; then pages fault one by one. */
    if (bytes >= PREFAULT_MIN)
        madvise((void *)start, (uintptr_t)addr + bytes - start, MADV_POPULATE_WRITE);
}

static int give_name(struct tarn_file_out *o)
{
    char link[sizeof OPEN_FILES + 16];

    if (o->sync && fsync(o->fd) != 0)
        return tarn_fail(TARN_E_SYSTEM, "%s: cannot write: %m", o->path);
    snprintf(link, sizeof link, OPEN_FILES "/%d", o->fd);
    if (!o->named && linkat(AT_FDCWD, link, AT_FDCWD, o->temporary, AT_SYMLINK_FOLLOW) != 0)
        return tarn_fail(TARN_E_INVALID, "%s: cannot create: %m", o->path);
    o->named = true;
    if (rename(o->temporary, o->path) != 0)
        return tarn_fail(TARN_E_INVALID, "%s: cannot create: %m", o->path);
    o->named = false;
    return 0;
}

int tarn_file_commit(struct tarn_file_out *o)
{
    int rc = give_name(o);

    tarn_file_discard(o);
    return rc;
}

void tarn_file_discard(struct tarn_file_out *o)
{
    if (o->named)
        unlink(o->temporary);
    if (o->map)
        munmap(o->map, o->bytes);
    if (o->fd >= 0)
        close(o->fd);
    free(o->path);
    free(o->temporary);
    *o = (struct tarn_file_out){.fd = -1};
}
