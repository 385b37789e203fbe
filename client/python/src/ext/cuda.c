/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's streams. An event is recorded after their work so far. libtarn waits for it before it accesses
 * the values; no device is synchronised. With several streams, our own stream waits for an event of each, and
 * the last event is recorded there.
 *
 * Uses the driver's API, since all CUDA libraries of a process share libcuda. It is looked for when the
 * first GPU value comes. The GIL guards everything here, and none of these calls waits. Events are reused.
 */
#include "ext.h"

#include <dlfcn.h>
#include <stdlib.h>

#define DEVICES_MAX 64

enum {
    DISABLE_TIMING = 2,
    NON_BLOCKING = 1,
    NOT_READY = 600,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_ORDINAL = 9,
    ATTRIBUTE_RANGE_BEGIN = 11,
    ATTRIBUTE_RANGE_BYTES = 12,
    MEMORY_DEVICE = 2
};

struct event {
    struct event *next;
    int device;
    void *handle; /* CUevent */
};

static struct {
    void *lib;
    int (*ctx_retain)(void **ctx, int device);
    int (*ctx_push)(void *ctx);
    int (*ctx_pop)(void **ctx);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*pointer_attribute)(void *out, int attribute, uintptr_t at);
} driver;

static struct {
    void *ctx;
    void *joiner; /* our stream */
    struct event *idle;
} devices[DEVICES_MAX];
static bool used;           /* contexts are held; they are invalid in a child of fork() */
static unsigned generation; /* value of fork_generation() then */

/* --- the driver --------------------------------------------------------------------------------- */

static bool find(const char *name, void *fn_p)
{
    void *fn = dlsym(driver.lib, name);

    *(void **)fn_p = fn;
    return fn != NULL;
}

/* flags: with RTLD_NOLOAD only asks whether the process has it. */
static bool load(int flags)
{
    if (driver.lib)
        return true;
    if (!(driver.lib = dlopen("libcuda.so.1", RTLD_NOW | flags)))
        return false;
    if (find("cuDevicePrimaryCtxRetain", &driver.ctx_retain) &&
        find("cuCtxPushCurrent_v2", &driver.ctx_push) && find("cuCtxPopCurrent_v2", &driver.ctx_pop) &&
        find("cuEventCreate", &driver.event_create) && find("cuEventRecord", &driver.event_record) &&
        find("cuEventQuery", &driver.event_query) && find("cuStreamCreate", &driver.stream_create) &&
        find("cuStreamWaitEvent", &driver.stream_wait_event) &&
        find("cuPointerGetAttribute", &driver.pointer_attribute))
        return true;
    dlclose(driver.lib);
    driver.lib = NULL;
    return false;
}

/* Notes the allocation's range, if the driver reports it. */
static void note_seen(struct batch *b, const void *addr, int device)
{
    uintptr_t begin = 0;
    size_t bytes = 0;

    if (driver.pointer_attribute(&begin, ATTRIBUTE_RANGE_BEGIN, (uintptr_t)addr) != 0 ||
        driver.pointer_attribute(&bytes, ATTRIBUTE_RANGE_BYTES, (uintptr_t)addr) != 0)
        return;
    b->seen_begin = begin;
    b->seen_end = begin + bytes;
    b->seen_device = device;
}

int cuda_device_of(struct batch *b, const void *addr)
{
    unsigned type = 0;
    int device = HOST_MEMORY;

    if ((uintptr_t)addr >= b->seen_begin && (uintptr_t)addr < b->seen_end)
        return b->seen_device;
    if (b->no_gpus || !load(RTLD_NOLOAD)) {
        b->no_gpus = true;
        return HOST_MEMORY;
    }
    if (driver.pointer_attribute(&type, ATTRIBUTE_MEMORY_TYPE, (uintptr_t)addr) != 0 ||
        type != MEMORY_DEVICE || driver.pointer_attribute(&device, ATTRIBUTE_ORDINAL, (uintptr_t)addr) != 0)
        return HOST_MEMORY;
    note_seen(b, addr, device);
    return device;
}

static int failed(const char *call, int rc)
{
    return raise_why(TARN_E_UNAVAILABLE, NULL, "CUDA: %s() says %d: the stream or the device is not usable",
                     call, rc);
}

/* Makes its primary context current, which all runtimes use; ctx_pop() undoes it. */
int cuda_enter(int device)
{
    int rc;

    if (!load(0))
        return raise_why(TARN_E_UNAVAILABLE, NULL, "CUDA: a value on a GPU, but no driver: %s", dlerror());
    if (device < 0 || device >= DEVICES_MAX)
        return raise_why(TARN_E_INVALID, NULL, "CUDA: device %d: there is none such", device);
    if (used && generation != fork_generation())
        return raise_why(EXT_E_FORKED, NULL, "CUDA: used before fork(): start processes by spawn instead");
    used = true;
    generation = fork_generation();
    if (!devices[device].ctx && (rc = driver.ctx_retain(&devices[device].ctx, device)) != 0)
        return failed("cuDevicePrimaryCtxRetain", rc);
    rc = driver.ctx_push(devices[device].ctx);
    return rc == 0 ? 0 : failed("cuCtxPushCurrent", rc);
}

void cuda_leave(void)
{
    void *unused;

    driver.ctx_pop(&unused);
}

/* --- events ------------------------------------------------------------------------------------- */

/* The device must be entered. */
static struct event *take_event(int device)
{
    struct event *e = devices[device].idle;

    if (e) {
        devices[device].idle = e->next;
        return e;
    }
    if (!(e = malloc(sizeof *e))) {
        PyErr_NoMemory();
        return NULL;
    }
    e->device = device;
    int rc = driver.event_create(&e->handle, DISABLE_TIMING);
    if (rc == 0)
        return e;
    free(e);
    failed("cuEventCreate", rc);
    return NULL;
}

static void put_back(struct event *e)
{
    if (generation != fork_generation())
        return;
    e->next = devices[e->device].idle;
    devices[e->device].idle = e;
}

/* An event after all of the stream's work so far; NULL with an exception. */
static struct event *record(int device, void *stream)
{
    if (cuda_enter(device) < 0)
        return NULL;
    struct event *e = take_event(device);
    int rc = e ? driver.event_record(e->handle, stream) : 0;
    cuda_leave();
    if (rc == 0)
        return e;
    put_back(e);
    failed("cuEventRecord", rc);
    return NULL;
}

/* Makes our stream on a device wait for the event, too. */
static int join_event(int device, struct event *e)
{
    int rc = 0;

    if (cuda_enter(device) < 0)
        return -1;
    if (!devices[device].joiner)
        rc = driver.stream_create(&devices[device].joiner, NON_BLOCKING);
    if (rc == 0)
        rc = driver.stream_wait_event(devices[device].joiner, e->handle, 0);
    cuda_leave();
    return rc == 0 ? 0 : failed("cuStreamWaitEvent", rc);
}

/* --- a batch's ---------------------------------------------------------------------------------- */

int cuda_use(struct batch *b, int device, void *stream)
{
    for (unsigned i = 0; i < b->nstreams; i++)
        if (b->streams[i].device == device && b->streams[i].handle == stream)
            return 0;
    if (b->nstreams == STREAMS_MAX)
        return raise_why(TARN_E_UNSUPPORTED, NULL, "values of more than %d streams in one call: make several",
                         STREAMS_MAX);
    b->streams[b->nstreams++] = (struct stream){device, stream};
    return 0;
}

bool cuda_asked(struct batch *b, int device)
{
    uint64_t bit = device >= 0 && device < DEVICES_MAX ? 1ull << device : 0;
    bool asked = b->asked & bit;

    b->asked |= bit;
    return asked;
}

int cuda_after(struct batch *b, void **after)
{
    int home = b->nstreams > 0 ? b->streams[0].device : 0;

    *after = b->event ? b->event->handle : NULL;
    if (b->nstreams == 0 || b->event)
        return 0;
    if (b->nstreams == 1) {
        b->event = record(home, b->streams[0].handle);
    } else {
        for (unsigned i = 0; i < b->nstreams; i++) {
            struct event *e = record(b->streams[i].device, b->streams[i].handle);
            if (!e)
                return -1;
            int rc = join_event(home, e);
            put_back(e); /* waiters keep what was recorded */
            if (rc < 0)
                return -1;
        }
        b->event = record(home, devices[home].joiner);
    }
    *after = b->event ? b->event->handle : NULL;
    return b->event ? 0 : -1;
}

int cuda_passed(void *event)
{
    if (!driver.lib)
        return -1;
    int rc = driver.event_query(event);
    return rc == 0 ? 1 : rc == NOT_READY ? 0 : -rc;
}

bool cuda_is_used(void)
{
    return load(RTLD_NOLOAD);
}

bool cuda_is_there(void)
{
    return load(0);
}

void cuda_forget(struct batch *b)
{
    if (b->event)
        put_back(b->event);
    b->event = NULL;
}
