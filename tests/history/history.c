/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of operations in shared files; see history.h. */
#include "tests/history/history.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

struct history_log {
    struct history_file {
        _Atomic uint64_t n;
        uint64_t room;
        struct history_op ops[];
    } * file;
    size_t bytes;
    uint16_t client;
};

static size_t file_bytes(size_t room)
{
    return sizeof(struct history_file) + room * sizeof(struct history_op);
}

static struct history_file *map(int fd, size_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct history_log *history_open(const char *path, uint16_t client, size_t room)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct history_log *l = calloc(1, sizeof *l);
    if (fd >= 0 && l && ftruncate(fd, (off_t)file_bytes(room)) == 0) {
        l->bytes = file_bytes(room);
        l->client = client;
        l->file = map(fd, l->bytes, PROT_READ | PROT_WRITE);
    }
    if (fd >= 0)
        close(fd);
    if (!l || !l->file) {
        free(l);
        return NULL;
    }
    l->file->room = room;
    uint64_t now = tarn_now_ns();
    history_note(l, HISTORY_RUN, client, now, now);
    return l;
}

void history_close(struct history_log *l)
{
    if (!l)
        return;
    munmap(l->file, l->bytes);
    free(l);
}

/* Claims a record. It stays HISTORY_NONE if the process is killed before the kind, which is written last. */
static struct history_op *claim(struct history_log *l)
{
    uint64_t i = atomic_fetch_add(&l->file->n, 1);
    return i < l->file->room ? &l->file->ops[i] : NULL;
}

static void set_kind(struct history_op *op, enum history_kind kind)
{
    atomic_signal_fence(memory_order_seq_cst);
    __atomic_store_n(&op->kind, (uint8_t)kind, __ATOMIC_RELEASE);
}

struct history_op *history_begin(struct history_log *l, enum history_kind kind, uint32_t key,
                                 uint32_t deadline_ms)
{
    struct history_op *op = claim(l);
    if (!op)
        return NULL;
    op->client = l->client;
    op->key = key;
    op->deadline_ms = deadline_ms;
    if (kind == HISTORY_PUT || kind == HISTORY_REPLACE)
        op->version = history_version(l, op);
    op->start_ns = tarn_now_ns();
    set_kind(op, kind);
    return op;
}

void history_end(struct history_op *op, int status)
{
    uint64_t now = tarn_now_ns();
    op->status = status;
    atomic_store_explicit(&op->end_ns, now, memory_order_release);
}

void history_note(struct history_log *l, enum history_kind kind, uint16_t client, uint64_t start_ns,
                  uint64_t end_ns)
{
    struct history_op *op = claim(l);
    if (!op)
        return;
    op->client = client;
    op->start_ns = start_ns;
    atomic_store(&op->end_ns, end_ns);
    set_kind(op, kind);
}

uint64_t history_version(const struct history_log *l, const struct history_op *op)
{
    return (uint64_t)(l->client + 1) << 40 | (uint64_t)(op - l->file->ops + 1);
}

/* --- loading ------------------------------------------------------------------------------------ */

/* Goes from the last record to the first. An operation without an end was over when the next run began. */
static void set_gone(struct history_op *ops, size_t n)
{
    uint64_t next_run_ns = UINT64_MAX;
    while (n-- > 0) {
        uint64_t end = atomic_load(&ops[n].end_ns);
        ops[n].gone_ns = end ? end : next_run_ns;
        if (ops[n].kind == HISTORY_RUN)
            next_run_ns = ops[n].start_ns;
    }
}

static bool add_log(struct history *h, const struct history_file *f, size_t bytes)
{
    uint64_t n = atomic_load(&f->n);
    if (n > f->room)
        n = f->room;
    if (bytes < file_bytes(n))
        return true;
    struct history_op *ops = realloc(h->ops, (h->n + n + 1) * sizeof *ops);
    if (!ops)
        return false;
    h->ops = ops;
    memcpy(&ops[h->n], f->ops, n * sizeof *ops);
    set_gone(&ops[h->n], n);
    h->n += n;
    return true;
}

static bool load_log(struct history *h, const char *path)
{
    struct stat st;
    bool ok = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && (size_t)st.st_size < sizeof(struct history_file)) {
        ok = true;
    } else {
        struct history_file *f = map(fd, (size_t)st.st_size, PROT_READ);
        ok = f && add_log(h, f, (size_t)st.st_size);
        if (f)
            munmap(f, (size_t)st.st_size);
    }
    close(fd);
    return ok;
}

bool history_load(const char *folder, struct history *h)
{
    char path[512];
    struct dirent *e;
    bool ok = true;
    DIR *d = opendir(folder);
    *h = (struct history){0};
    if (!d)
        return false;
    while (ok && (e = readdir(d))) {
        if (strncmp(e->d_name, "log-", 4) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ok = load_log(h, path);
    }
    int error = errno;
    closedir(d);
    errno = error;
    if (!ok)
        history_free(h);
    return ok;
}

void history_free(struct history *h)
{
    free(h->ops);
    *h = (struct history){0};
}
