/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A STAND-IN for GPUs: implements transport/cuda/cuda.h in shared memory, for tests on machines without a
 * GPU. A test that passes with it proves nothing about a GPU, its driver or its speed.
 *
 * It detects mistakes that a GPU does not:
 *   - Device memory is a memfd that is mapped twice. The mapping at the returned address allows no access, so
 *     host code that touches it crashes. Copies use the other mapping.
 *   - A copy takes place, after its delay, only when its queue is used again. A caller that reads the target
 *     or reuses a buffer before the mark after the copy has passed sees wrong bytes.
 *   - Copies reach memory of the queue's device, memory of peers with peer access, and pinned host memory,
 *     within the bounds of allocations. Any other address is illegal: the process loses the device, as with
 *     a GPU.
 *   - A queue has little room, so that callers reach its limits.
 *   - What waits for running kernels with CUDA waits for those that are played.
 *
 * Environment, read when a process first uses it (nodes reject unknown names with TARN_):
 *   STANDIN_DEVICES=2     number of devices in the machine
 *   STANDIN_VISIBLE=1,0   the devices that this process sees, in this order (all)
 *   STANDIN_PEERS=0       whether devices reach each other (1)
 *   STANDIN_BYTES=64M     memory that this process can have of each device (1G)
 *   STANDIN_DELAY_US=     a copy takes place at the earliest this long after it was given (0)
 *   STANDIN_FAIL=         what:n,...  the n-th such call of this process fails ("*": every one). "what":
 *                         alloc, open, pin, queue, copy, mark, poll, dmabuf, flush, export, time, gather,
 * lost. lost: the n-th copy is accepted, and then this process loses its device STANDIN_VERBOSE=      if set,
 * prints illegal addresses to stderr
 *
 *   STANDIN_CUDA=11080    the version of CUDA (12020)
 *
 * Events are ints: 0 not passed, 1 passed, negative: the work before the event has failed. streams.c has the
 * application's streams, export.c has exports of memory.
 *
 * One lock protects everything. A handle names the exporting process and its descriptor. The importer opens
 * it through /proc, so memory lives as long as any process has it open, and no file is left behind.
 */
#include "tests/standin/cuda_standin.h"
#include "tests/standin/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/cuda/cuda.h"

enum { DEVICES_MAX = 8, PIECES = 512, MARKS = 16, STEPS = PIECES + MARKS };

struct handle {
    char magic[8];
    int32_t pid, fd, physical, unused;
    uint64_t inode, bytes;
};
_Static_assert(sizeof(struct handle) <= TARN_CUDA_HANDLE, "fits cuda.h's");

struct memory {
    struct memory *next;
    enum tarn_cuda_kind kind;
    int owner;   /* device of the memory; -1: host memory */
    int visitor; /* device that it was opened for; -1: not opened */
    uintptr_t begin;
    uint64_t bytes;
    uint8_t *real; /* mapping for the copies */
    bool writable;
    int fd;          /* the exporter's descriptor */
    unsigned opened; /* number of opens */
    struct handle handle;
};

struct device {
    int physical;
    uint64_t used;
    bool peers[DEVICES_MAX];
    bool lost;
};

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    int ndevices;
    struct device devices[DEVICES_MAX];
    bool peers;
    uint64_t bytes, delay_ns;
    struct memory *memories;
    int players;           /* threads that play kernels */
    pthread_cond_t played; /* none does any more */
} standin = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .played = PTHREAD_COND_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* --- settings ----------------------------------------------------------------------------------- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t value;
    return text && tarn_size_parse(text, &value) == 0 ? value : otherwise;
}

static void read_settings(void)
{
    int there = (int)setting("STANDIN_DEVICES", 2);
    const char *visible = getenv("STANDIN_VISIBLE");
    there = there > DEVICES_MAX ? DEVICES_MAX : there;
    if (!visible) {
        for (int i = 0; i < there; i++)
            standin.devices[standin.ndevices++].physical = i;
    }
    for (char *end; visible && *visible && standin.ndevices < DEVICES_MAX; visible = *end ? end + 1 : end) {
        long physical = strtol(visible, &end, 10);
        if (end == visible || physical < 0 || physical >= there)
            break; /* as with CUDA, devices after an invalid one are not visible */
        standin.devices[standin.ndevices++].physical = (int)physical;
    }
    standin.peers = setting("STANDIN_PEERS", 1);
    standin.bytes = setting("STANDIN_BYTES", 1ull << 30);
    standin.delay_ns = setting("STANDIN_DELAY_US", 0) * 1000;
    tarn_standin_triggers(getenv("STANDIN_FAIL"));
}

static void enter(void)
{
    pthread_once(&standin.once, read_settings);
    pthread_mutex_lock(&standin.lock);
}

/* As with CUDA, calls that make and end memory, queues and handles wait for the kernels that run. */
static void enter_quiet(void)
{
    enter();
    while (standin.players > 0)
        pthread_cond_wait(&standin.played, &standin.lock);
}

static int leave(int rc)
{
    pthread_mutex_unlock(&standin.lock);
    return rc;
}

void tarn_standin_fail(const char *what)
{
    enter();
    tarn_standin_triggers(what);
    for (int i = 0; !what && i < standin.ndevices; i++)
        standin.devices[i].lost = false;
    leave(0);
}

void tarn_standin_delay(uint64_t us)
{
    enter();
    standin.delay_ns = us * 1000;
    leave(0);
}

static int lost(int device)
{
    return tarn_fail(
        TARN_E_UNAVAILABLE,
        "stand-in: device %d: an illegal memory access was encountered: the device is of no more use "
        "to this process",
        device);
}

/* Every call with a device begins with this check. */
static int check(int device, enum tarn_standin_event e)
{
    if (device < 0 || device >= standin.ndevices)
        return tarn_fail(TARN_E_SYSTEM, "stand-in: device %d: invalid device ordinal", device);
    if (standin.devices[device].lost)
        return lost(device);
    if (e < FAIL_N && tarn_standin_due(e))
        return tarn_fail(TARN_E_SYSTEM, "stand-in: device %d: %s was told to fail", device,
                         tarn_standin_event_names[e]);
    return 0;
}

int tarn_standin_check(int device, const char *what)
{
    int e = 0;
    while (e < FAIL_N && strcmp(tarn_standin_event_names[e], what) != 0)
        e++;
    enter();
    return leave(check(device, (enum tarn_standin_event)e));
}

/* --- devices ------------------------------------------------------------------------------------ */

static int count(int *n_p)
{
    enter();
    *n_p = standin.ndevices;
    return leave(*n_p ? 0 : tarn_fail(TARN_E_UNAVAILABLE, "stand-in: no device is visible"));
}

int tarn_cuda_count(int *n_p)
{
    tarn_standin_wait();
    return count(n_p);
}

int tarn_cuda_describe(int device, struct tarn_cuda_device *d)
{
    enter();
    int rc = check(device, FAIL_N);
    if (rc)
        return leave(rc);
    int physical = standin.devices[device].physical;
    memset(d, 0, sizeof(*d));
    memcpy(d->uuid,
           "\x57\xa4\xd1"
           "tarn-standin",
           15);
    d->uuid[15] = (uint8_t)physical;
    snprintf(d->name, sizeof(d->name), "Stand-in %d", physical);
    return leave(0);
}

int tarn_cuda_find(const uint8_t uuid[TARN_CUDA_UUID], int *device_p)
{
    int n, rc = count(&n);
    for (int i = 0; !rc && i < n; i++) {
        struct tarn_cuda_device d;
        rc = tarn_cuda_describe(i, &d);
        if (rc || memcmp(d.uuid, uuid, sizeof(d.uuid)))
            continue;
        *device_p = i;
        return 0;
    }
    return rc ? rc
              : tarn_fail(
                    TARN_E_NOT_REACHABLE,
                    "stand-in: none of the %d visible devices is the one asked for: see STANDIN_VISIBLE", n);
}

int tarn_cuda_free_bytes(int device, uint64_t *bytes_p)
{
    enter();
    int rc = check(device, FAIL_N);
    *bytes_p = rc ? 0 : standin.bytes - standin.devices[device].used;
    return leave(rc);
}

bool tarn_cuda_reaches(int device, int peer)
{
    tarn_standin_wait();
    enter();
    bool both = device >= 0 && device < standin.ndevices && peer >= 0 && peer < standin.ndevices;
    bool yes = both && (device == peer || standin.peers);
    if (yes)
        standin.devices[device].peers[peer] = true;
    leave(0);
    return yes;
}

/* --- memory ------------------------------------------------------------------------------------- */

/* The first range with this address. Ranges overlap only by mistake (pinned memory inside another one). */
static struct memory *memory_at(uintptr_t at)
{
    struct memory *m = standin.memories;
    while (m && (at < m->begin || at - m->begin >= m->bytes))
        m = m->next;
    return m;
}

void tarn_cuda_memory_of(const void *addr, struct tarn_cuda_memory *m)
{
    *m = (struct tarn_cuda_memory){TARN_CUDA_HOST, -1, (uintptr_t)addr, (uintptr_t)addr + 1};
    enter();
    const struct memory *found = memory_at((uintptr_t)addr);
    if (found)
        *m = (struct tarn_cuda_memory){found->kind, found->owner, found->begin, found->begin + found->bytes};
    leave(0);
}

static struct memory *memory_add(const struct memory *like)
{
    struct memory *m = malloc(sizeof(*m));
    if (!m)
        return NULL;
    *m = *like;
    m->next = standin.memories;
    standin.memories = m;
    return m;
}

static void memory_drop(struct memory *m)
{
    struct memory **at = &standin.memories;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (m->kind == TARN_CUDA_DEVICE) {
        munmap((void *)m->begin, m->bytes);
        munmap(m->real, m->bytes);
        if (m->fd >= 0)
            close(m->fd);
    }
    free(m);
}

static int access_now(void)
{
    return standin.players ? PROT_READ | PROT_WRITE : PROT_NONE;
}

/* Maps both views of the descriptor. The caller sets m->bytes. Adds the memory to the list. */
static struct memory *memory_map(struct memory *m, int fd)
{
    void *view = mmap(NULL, m->bytes, access_now(), MAP_SHARED, fd, 0);
    void *real = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    m->kind = TARN_CUDA_DEVICE;
    m->begin = (uintptr_t)view;
    m->real = real;
    m->writable = true;
    struct memory *added = view == MAP_FAILED || real == MAP_FAILED ? NULL : memory_add(m);
    if (added)
        return added;
    if (view != MAP_FAILED)
        munmap(view, m->bytes);
    if (real != MAP_FAILED)
        munmap(real, m->bytes);
    tarn_fail(TARN_E_NO_MEMORY, "stand-in: mmap of %llu bytes: %m", (unsigned long long)m->bytes);
    return NULL;
}

void tarn_standin_players(int more)
{
    enter();
    standin.players += more;
    for (const struct memory *m = standin.memories; m; m = m->next)
        if (m->kind == TARN_CUDA_DEVICE)
            mprotect((void *)m->begin, m->bytes, access_now());
    if (standin.players == 0)
        pthread_cond_broadcast(&standin.played);
    leave(0);
}

static int no_room(int device, uint64_t bytes, uint64_t unused)
{
    char want[16], have[16];
    tarn_size_format(bytes, want);
    tarn_size_format(unused, have);
    return tarn_fail(
        TARN_E_NO_MEMORY,
        "device %d: %s of memory are needed and %s are free: make the pool smaller or free memory", device,
        want, have);
}

static int alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE])
{
    struct device *d = &standin.devices[device];
    uint64_t whole = (bytes + 4095) & ~4095ull;
    struct stat st;
    if (whole > standin.bytes - d->used)
        return no_room(device, bytes, standin.bytes - d->used);
    int fd = memfd_create("tarn-standin", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)whole) || fstat(fd, &st)) {
        int rc = tarn_fail(TARN_E_SYSTEM, "stand-in: memfd: %m");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct memory m = {.owner = device, .visitor = -1, .bytes = whole, .fd = fd};
    m.handle = (struct handle){"standin", getpid(), fd, d->physical, 0, st.st_ino, whole};
    struct memory *added = memory_map(&m, fd);
    if (!added) {
        close(fd);
        return TARN_E_NO_MEMORY;
    }
    d->used += whole;
    memset(handle, 0, TARN_CUDA_HANDLE);
    memcpy(handle, &m.handle, sizeof(m.handle));
    *addr_p = (void *)added->begin;
    return 0;
}

int tarn_cuda_alloc(int device, uint64_t bytes, void **addr_p, uint8_t handle[TARN_CUDA_HANDLE])
{
    enter_quiet();
    int rc = check(device, FAIL_ALLOC);
    return leave(rc ? rc : alloc(device, bytes, addr_p, handle));
}

void tarn_cuda_free(int device, void *addr)
{
    enter_quiet();
    struct memory *m = addr ? memory_at((uintptr_t)addr) : NULL;
    if (m && m->kind == TARN_CUDA_DEVICE && m->visitor < 0 && m->owner == device) {
        standin.devices[device].used -= m->bytes;
        memory_drop(m);
    }
    leave(0);
}

int tarn_cuda_export(int device, void *begin, uint8_t handle[TARN_CUDA_HANDLE], uint64_t *number_p)
{
    static uint8_t exports;
    enter();
    int rc = check(device, FAIL_EXPORT);
    const struct memory *m = memory_at((uintptr_t)begin);
    if (!rc && (!m || m->kind != TARN_CUDA_DEVICE || m->visitor >= 0 || m->begin != (uintptr_t)begin))
        rc = tarn_fail(TARN_E_UNSUPPORTED,
                       "stand-in: memory of device %d at %p is no allocation of this process", device, begin);
    if (rc)
        return leave(rc);
    memset(handle, 0, TARN_CUDA_HANDLE);
    memcpy(handle, &m->handle, sizeof(m->handle));
    handle[TARN_CUDA_HANDLE - 1] = ++exports; /* as CUDA's, none is like the one before */
    *number_p = m->handle.inode;
    return leave(0);
}

/* The memory of a handle that this device has open already: like the runtime, it counts opens. NULL: none. */
static struct memory *opened_before(int device, const struct handle *h)
{
    struct memory *m = standin.memories;
    while (m && (m->visitor != device || memcmp(&m->handle, h, sizeof(*h))))
        m = m->next;
    return m;
}

static int device_of(int physical)
{
    int i = 0;
    while (i < standin.ndevices && standin.devices[i].physical != physical)
        i++;
    return i < standin.ndevices ? i : -1;
}

static int open_new(int device, const struct handle *h, void **addr_p)
{
    char path[64];
    struct stat st;
    struct memory m = {
        .owner = device_of(h->physical), .visitor = device, .bytes = h->bytes, .fd = -1, .opened = 1};
    m.handle = *h;
    if (m.owner < 0 || (m.owner != device && !standin.peers))
        return tarn_fail(TARN_E_SYSTEM, "stand-in: open on device %d: peer access is not supported", device);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)h->pid, (int)h->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || st.st_ino != h->inode || (uint64_t)st.st_size != h->bytes) {
        if (fd >= 0)
            close(fd);
        return tarn_fail(TARN_E_SYSTEM, "stand-in: open on device %d: the memory is gone", device);
    }
    struct memory *added = memory_map(&m, fd);
    close(fd);
    if (!added)
        return TARN_E_NO_MEMORY;
    *addr_p = (void *)added->begin;
    return 0;
}

int tarn_cuda_open(int device, const uint8_t handle[TARN_CUDA_HANDLE], void **addr_p)
{
    struct handle h;
    memcpy(&h, handle, sizeof(h));
    tarn_standin_wait();
    enter_quiet();
    int rc = check(device, FAIL_OPEN);
    if (rc)
        return leave(rc);
    if (memcmp(h.magic, "standin", sizeof(h.magic)))
        return leave(
            tarn_fail(TARN_E_SYSTEM, "stand-in: open on device %d: invalid resource handle", device));
    if (h.pid == getpid())
        return leave(tarn_fail(TARN_E_SYSTEM, "stand-in: open on device %d: the memory is this process's own",
                               device));
    struct memory *m = opened_before(device, &h);
    if (!m)
        return leave(open_new(device, &h, addr_p));
    m->opened++;
    *addr_p = (void *)m->begin;
    return leave(0);
}

void tarn_cuda_close(int device, void *addr)
{
    enter();
    struct memory *m = addr ? memory_at((uintptr_t)addr) : NULL;
    if (m && m->visitor == device && --m->opened == 0)
        memory_drop(m);
    leave(0);
}

static bool overlaps_pinned(uintptr_t begin, uint64_t bytes)
{
    for (const struct memory *m = standin.memories; m; m = m->next)
        if (begin < m->begin + m->bytes && m->begin < begin + bytes)
            return true;
    return false;
}

int tarn_cuda_pin(void *addr, uint64_t bytes, bool writable)
{
    struct memory m = {.kind = TARN_CUDA_PINNED,
                       .owner = -1,
                       .visitor = -1,
                       .begin = (uintptr_t)addr,
                       .bytes = bytes,
                       .real = addr,
                       .writable = writable,
                       .fd = -1};
    tarn_standin_wait();
    enter_quiet();
    int rc = check(0, FAIL_PIN);
    if (!rc && (!addr || !bytes))
        rc = tarn_fail(TARN_E_SYSTEM, "stand-in: pin: invalid argument");
    else if (!rc && overlaps_pinned(m.begin, bytes))
        rc = tarn_fail(TARN_E_SYSTEM, "stand-in: pin: part or all of the memory is already registered");
    else if (!rc && !memory_add(&m))
        rc = tarn_fail(TARN_E_NO_MEMORY, "stand-in: pin: out of memory");
    return leave(rc);
}

void tarn_cuda_unpin(void *addr)
{
    enter_quiet();
    struct memory *m = memory_at((uintptr_t)addr);
    if (m && m->kind == TARN_CUDA_PINNED && m->begin == (uintptr_t)addr)
        memory_drop(m);
    leave(0);
}

/* --- queues ------------------------------------------------------------------------------------- */

/* A task of a queue. */
struct step {
    enum { STEP_COPY, STEP_PAGES, STEP_MARK } what;
    struct tarn_cuda_piece piece;
    struct tarn_cuda_paged buffer;
    struct tarn_cuda_pages pages;
    bool put;
    bool loses; /* STANDIN_FAIL: the device is lost at this step */
    uint64_t due_ns;
};

struct tarn_cuda_queue {
    int device;
    struct step steps[STEPS]; /* a ring */
    uint64_t given, done;
    unsigned pieces;          /* copies among the steps from `done` to `given` */
    uint64_t marked, reached; /* marks given and carried out; callers know of those up to `passed` */
    uint64_t passed;
    struct tarn_standin_mark *marks[MARKS];
    struct tarn_cuda_piece list[PIECES];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Where copies on `device` find an address, and the bytes from there on. NULL: the device cannot reach it. */
static uint8_t *reached_from(int device, const void *addr, bool write, uint64_t *left)
{
    const struct memory *m = memory_at((uintptr_t)addr);
    if (!m || (write && !m->writable))
        return NULL;
    if (m->visitor >= 0 ? m->visitor != device
                        : m->owner >= 0 && m->owner != device && !standin.devices[device].peers[m->owner])
        return NULL;
    *left = m->bytes - ((uintptr_t)addr - m->begin);
    return m->real + ((uintptr_t)addr - m->begin);
}

/* Copies the part of a piece that is in one allocation on both sides. Returns its bytes; 0: illegal. */
static uint64_t copy_within(int device, const uint8_t *from, uint8_t *to, uint64_t bytes)
{
    uint64_t from_left, to_left;
    const uint8_t *source = reached_from(device, from, false, &from_left);
    uint8_t *sink = reached_from(device, to, true, &to_left);
    if (!source || !sink)
        return 0;
    bytes = bytes < from_left ? bytes : from_left;
    bytes = bytes < to_left ? bytes : to_left;
    memcpy(sink, source, bytes);
    return bytes;
}

static bool copy_whole(int device, const uint8_t *from, uint8_t *to, uint64_t bytes)
{
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = copy_within(device, from + at, to + at, bytes - at);
        if (!n)
            return false;
    }
    return true;
}

static bool carry_out(struct tarn_cuda_queue *q, const struct step *s)
{
    const struct tarn_cuda_paged *b = &s->buffer;
    bool done = !s->loses;
    if (done && s->what == STEP_COPY)
        done = copy_whole(q->device, s->piece.from, s->piece.to, s->piece.bytes);
    for (uint32_t i = 0; s->what == STEP_PAGES && i < b->nbases; i++)
        for (uint32_t j = 0; done && j < s->pages.n; j++) {
            uint8_t *near = (uint8_t *)b->bases[i] + s->pages.page[j] * b->stride;
            uint8_t *far = s->pages.far + i * s->pages.far_stride + j * b->page_bytes;
            done = copy_whole(q->device, s->put ? near : far, s->put ? far : near, b->page_bytes);
        }
    return done;
}

/* Carries out the steps that are due, in order. `all`: also those that are not due yet. */
static int advance(struct tarn_cuda_queue *q, bool all)
{
    uint64_t now = now_ns();
    for (; q->done < q->given; q->done++) {
        const struct step *s = &q->steps[q->done % STEPS];
        if (standin.devices[q->device].lost)
            return lost(q->device);
        if (!all && s->due_ns > now)
            return 0;
        if (!carry_out(q, s)) {
            standin.devices[q->device].lost = true;
            return lost(q->device);
        }
        q->pieces -= s->what != STEP_MARK;
        if (s->what == STEP_MARK)
            __atomic_store_n(&q->marks[q->reached++ % MARKS]->passed, true, __ATOMIC_RELEASE);
    }
    return standin.devices[q->device].lost ? lost(q->device) : 0;
}

static void give(struct tarn_cuda_queue *q, struct step s)
{
    s.due_ns = now_ns() + standin.delay_ns;
    q->steps[q->given++ % STEPS] = s;
}

void tarn_standin_mark_drop(struct tarn_standin_mark *m)
{
    if (__atomic_sub_fetch(&m->users, 1, __ATOMIC_ACQ_REL) == 0)
        free(m);
}

/* Drops the queue's reference. Passes the mark, even if a lost device did not reach it. */
static void mark_drop(struct tarn_standin_mark *m)
{
    if (!m)
        return;
    __atomic_store_n(&m->passed, true, __ATOMIC_RELEASE);
    tarn_standin_mark_drop(m);
}

int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p)
{
    tarn_standin_wait();
    enter_quiet();
    int rc = check(device, FAIL_QUEUE);
    leave(0);
    if (rc)
        return rc;
    struct tarn_cuda_queue *q = calloc(1, sizeof(*q));
    if (!q)
        return tarn_fail(TARN_E_NO_MEMORY, "stand-in: a queue of device %d: out of memory", device);
    q->device = device;
    *q_p = q;
    return 0;
}

void tarn_cuda_queue_close(struct tarn_cuda_queue *q)
{
    if (!q)
        return;
    for (bool more = true; more;) {
        enter();
        more = advance(q, true) == 0 && q->done < q->given;
        leave(0);
        if (more)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* a GPU's delay, not synchronisation */
    }
    for (int i = 0; i < MARKS; i++)
        mark_drop(q->marks[i]);
    free(q);
}

/* Unlike kernels, copies reach the host's pageable memory. */
static uint8_t *copied_from(int device, const void *addr, bool write, uint64_t *left)
{
    uint8_t *real = reached_from(device, addr, write, left);
    if (real || memory_at((uintptr_t)addr))
        return real;
    *left = UINT64_MAX;
    return (uint8_t *)(uintptr_t)addr;
}

int tarn_cuda_copy_now(int device, const struct tarn_cuda_piece *pieces, size_t n)
{
    enter();
    int rc = check(device, FAIL_COPY);
    for (size_t i = 0; !rc && i < n; i++) {
        uint64_t from_left = 0, to_left = 0;
        const uint8_t *from = copied_from(device, pieces[i].from, false, &from_left);
        uint8_t *to = copied_from(device, pieces[i].to, true, &to_left);
        if (from && to && from_left >= pieces[i].bytes && to_left >= pieces[i].bytes)
            memcpy(to, from, pieces[i].bytes);
        else
            rc = tarn_fail(TARN_E_SYSTEM, "stand-in: a copy on device %d: illegal address", device);
    }
    return leave(rc);
}

int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    *taken = 0;
    enter();
    int rc = check(q->device, FAIL_COPY);
    if (!rc && q->pieces + n > PIECES)
        rc = advance(q, false);
    bool loses = !rc && n && tarn_standin_due(FAIL_LOST);
    for (; !rc && *taken < n && q->pieces < PIECES; (*taken)++, q->pieces++)
        give(q, (struct step){.what = STEP_COPY, .piece = pieces[*taken], .loses = loses});
    return leave(rc);
}

struct tarn_cuda_piece *tarn_cuda_list(struct tarn_cuda_queue *q, size_t *room)
{
    enter();
    if (q->pieces == PIECES)
        advance(q, false);
    *room = PIECES - q->pieces;
    memset(q->list, 0, sizeof(q->list)); /* discards a list that was not started */
    leave(0);
    return *room ? q->list : NULL;
}

int tarn_cuda_start(struct tarn_cuda_queue *q, size_t n, uint64_t bytes)
{
    size_t taken;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (q->list[i].bytes == 0 || q->list[i].bytes > TARN_CUDA_PIECE_MAX)
            return tarn_fail(TARN_E_SYSTEM, "stand-in: a piece of %llu bytes is in a list",
                             (unsigned long long)q->list[i].bytes);
        sum += q->list[i].bytes;
    }
    if (n == 0 || n > PIECES - q->pieces || sum != bytes)
        return tarn_fail(TARN_E_SYSTEM, "stand-in: a list of %zu pieces of %llu bytes was started as of %llu",
                         n, (unsigned long long)sum, (unsigned long long)bytes);
    return tarn_cuda_copy(q, q->list, n, &taken);
}

int tarn_cuda_start_pages(struct tarn_cuda_queue *q, const struct tarn_cuda_paged *buffer, size_t n, bool put)
{
    const struct tarn_cuda_pages *entries = (const struct tarn_cuda_pages *)q->list;
    enter();
    int rc = check(q->device, FAIL_COPY);
    bool loses = !rc && n && tarn_standin_due(FAIL_LOST);
    for (size_t i = 0; !rc && i < n; i++, q->pieces++)
        give(q,
             (struct step){STEP_PAGES, .buffer = *buffer, .pages = entries[i], .put = put, .loses = loses});
    return leave(rc);
}

int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p)
{
    enter();
    int rc = check(q->device, FAIL_MARK);
    if (!rc && q->marked - q->passed == MARKS)
        rc = TARN_E_AGAIN;
    if (rc)
        return leave(rc);
    struct tarn_standin_mark *m = calloc(1, sizeof(*m));
    if (!m)
        return leave(tarn_fail(TARN_E_NO_MEMORY, "stand-in: a mark: out of memory"));
    m->users = 1;
    mark_drop(q->marks[q->marked % MARKS]);
    q->marks[q->marked % MARKS] = m;
    give(q, (struct step){.what = STEP_MARK});
    *mark_p = ++q->marked;
    return leave(0);
}

int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark)
{
    if (mark <= q->passed)
        return 0;
    enter();
    int rc = check(q->device, FAIL_POLL);
    if (!rc)
        rc = advance(q, false);
    leave(0);
    q->passed = mark < q->reached ? mark : q->reached;
    return mark <= q->passed ? 0 : rc ? rc : TARN_E_AGAIN;
}

void *tarn_cuda_mark_event(struct tarn_cuda_queue *q)
{
    return q->marks[(q->marked - 1) % MARKS];
}

/* --- the application ---------------------------------------------------------------------------- */

uint8_t *tarn_standin_reach(int device, const void *addr, uint64_t bytes)
{
    enter();
    uint64_t left = 0;
    uint8_t *at = reached_from(device, addr, true, &left);
    leave(0);
    return bytes <= left ? at : NULL;
}

void *tarn_standin_managed(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct memory m = {NULL, TARN_CUDA_MANAGED, -1, -1, (uintptr_t)at, bytes, at, .writable = true, .fd = -1};
    enter();
    bool made = m.real != MAP_FAILED && memory_add(&m);
    leave(0);
    return made ? m.real : NULL;
}

void tarn_standin_managed_free(void *addr, uint64_t bytes)
{
    enter();
    struct memory *m = memory_at((uintptr_t)addr);
    if (m && m->kind == TARN_CUDA_MANAGED) {
        memory_drop(m);
        munmap(addr, bytes);
    }
    leave(0);
}
