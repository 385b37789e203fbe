/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A STAND-IN for the part of CUDA's driver that the Python package calls for streams, over that of
 * tests/standin: nothing that passes over it says anything about a GPU. A stream does nothing by itself; one
 * that is held has work that does not end until it is let go. Events are ints, as the stand-in wants them: 1
 * has passed.
 *
 * It is stricter than CUDA: a stream and an event are only taken with their own device's context current.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "transport/cuda/cuda.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600 };

struct event {
    int passed; /* first: what an event is to the stand-in */
    int device;
    uint64_t behind; /* bits of held streams */
    struct event *next;
};

struct stream {
    int device;
    bool held;
    uint64_t behind; /* of others, that it waits for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream streams[64];
static unsigned nstreams = 8; /* the first ones are the devices' default streams */
static struct event *events;
static unsigned nrecords;

EXPORT int cuCtxGetCurrent(void **context);

static int current_device(void)
{
    void *context;

    return cuCtxGetCurrent(&context) ? -1 : (int)(uintptr_t)context - 1;
}

static struct stream *find(void *handle)
{
    if ((uintptr_t)handle > 2)
        return handle;
    struct stream *s = &streams[current_device()];
    s->device = current_device();
    return s;
}

static uint64_t bit_of(const struct stream *s)
{
    return 1ull << (s - streams);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int n;

    if (tarn_cuda_count(&n) || device < 0 || device >= n)
        return INVALID_DEVICE;
    *context = (void *)((uintptr_t)device + 1);
    return 0;
}

EXPORT int cuStreamCreate(void **stream, unsigned int flags);
int cuStreamCreate(void **stream, unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    struct stream *s = nstreams < 64 ? &streams[nstreams++] : NULL;
    pthread_mutex_unlock(&lock);
    if (!s)
        return INVALID;
    s->device = current_device();
    *stream = s;
    return 0;
}

EXPORT int cuEventCreate(void **event, unsigned int flags);
int cuEventCreate(void **event, unsigned int flags)
{
    struct event *e = calloc(1, sizeof *e);

    (void)flags;
    if (!e)
        return INVALID;
    e->device = current_device();
    pthread_mutex_lock(&lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&lock);
    *event = e;
    return 0;
}

EXPORT int cuEventRecord(void *event, void *stream);
int cuEventRecord(void *event, void *stream)
{
    struct stream *s = find(stream);
    struct event *e = event;

    if (s->device != current_device() || e->device != s->device)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    e->behind = s->behind | (s->held ? bit_of(s) : 0);
    __atomic_store_n(&e->passed, e->behind == 0, __ATOMIC_RELEASE);
    nrecords++;
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuEventQuery(void *event);
int cuEventQuery(void *event)
{
    return __atomic_load_n(&((struct event *)event)->passed, __ATOMIC_ACQUIRE) ? 0 : NOT_READY;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned int flags);
int cuStreamWaitEvent(void *stream, void *event, unsigned int flags)
{
    struct stream *s = find(stream);

    (void)flags;
    if (s->device != current_device())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    s->behind |= ((struct event *)event)->behind;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* --- for tests ---------------------------------------------------------------------------------- */

EXPORT void *played_stream(int device);
void *played_stream(int device)
{
    void *s = NULL;

    pthread_mutex_lock(&lock);
    if (nstreams < 64) {
        s = &streams[nstreams++];
        ((struct stream *)s)->device = device;
    }
    pthread_mutex_unlock(&lock);
    return s;
}

EXPORT void played_hold(void *stream);
void played_hold(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct stream *)stream)->held = true;
    pthread_mutex_unlock(&lock);
}

EXPORT void played_let_go(void *stream);
void played_let_go(void *stream)
{
    struct stream *s = stream;

    pthread_mutex_lock(&lock);
    s->held = false;
    for (unsigned i = 0; i < nstreams; i++)
        streams[i].behind &= ~bit_of(s);
    for (struct event *e = events; e; e = e->next) {
        e->behind &= ~bit_of(s);
        if (e->behind == 0)
            __atomic_store_n(&e->passed, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}

EXPORT unsigned played_records(void);
unsigned played_records(void)
{
    return nrecords;
}

EXPORT void *played_default_stream(int device);
void *played_default_stream(int device)
{
    streams[device].device = device;
    return &streams[device];
}
