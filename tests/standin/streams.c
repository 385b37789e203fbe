/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A STAND-IN for an application's streams: tests/stream.h and tarn_cuda_stream_wait(). Each stream has a
 * thread that carries out its work in order, with delays. It tests logic and proves nothing about GPUs.
 */
#include "tests/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "tests/standin/cuda_standin.h"
#include "transport/cuda/cuda.h"

enum { STEPS = 64 };

struct step {
    enum { STEP_FILL, STEP_COPY, STEP_EVENT, STEP_WAIT, STEP_HOLD, STEP_KERNEL } what;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    uint8_t byte;
    int *event;
    struct tarn_standin_mark *mark;
    const uint32_t *word;
    void (*kernel)(void *arg);
    void *arg;
};

struct stream {
    int device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct step steps[STEPS];
    unsigned given, done;
    bool stop;
};

/* Programs without cmocka also link this file. */
static void *must(void *p)
{
    if (!p)
        abort();
    return p;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL); /* a GPU's delay, not synchronisation */
}

static void carry_out(const struct step *s)
{
    switch (s->what) {
    case STEP_FILL:
        memset(s->to, s->byte, s->bytes);
        break;
    case STEP_COPY:
        memcpy(s->to, s->from, s->bytes);
        break;
    case STEP_EVENT:
        __atomic_store_n(s->event, 1, __ATOMIC_RELEASE);
        break;
    case STEP_WAIT:
        while (!__atomic_load_n(&s->mark->passed, __ATOMIC_ACQUIRE))
            pause_a_little();
        tarn_standin_mark_drop(s->mark);
        break;
    case STEP_HOLD:
        while (!__atomic_load_n(s->word, __ATOMIC_ACQUIRE))
            pause_a_little();
        break;
    case STEP_KERNEL:
        tarn_standin_play(s->kernel, s->arg);
        free(s->arg);
        break;
    }
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->done < s->given) {
        if (s->done == s->given) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        struct step step = s->steps[s->done % STEPS];
        pthread_mutex_unlock(&s->lock);
        carry_out(&step);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void give(struct stream *s, struct step step)
{
    pthread_mutex_lock(&s->lock);
    while (s->given - s->done == STEPS)
        pthread_cond_wait(&s->changed, &s->lock);
    s->steps[s->given++ % STEPS] = step;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

struct stream *stream_open(int device)
{
    struct stream *s = must(calloc(1, sizeof(*s)));
    s->device = device;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, stream_main, s))
        abort();
    return s;
}

void stream_close(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void *stream_handle(struct stream *s)
{
    return s;
}

static uint8_t *reach(const struct stream *s, const void *addr, size_t bytes)
{
    return must(tarn_standin_reach(s->device, addr, bytes));
}

void stream_fill(struct stream *s, void *to, uint8_t byte, size_t bytes)
{
    give(s, (struct step){.what = STEP_FILL, .to = reach(s, to, bytes), .byte = byte, .bytes = bytes});
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    give(s, (struct step){
                .what = STEP_COPY, .to = reach(s, to, bytes), .from = reach(s, from, bytes), .bytes = bytes});
}

void *stream_event(struct stream *s)
{
    int *event = must(calloc(1, sizeof(*event)));
    give(s, (struct step){.what = STEP_EVENT, .event = event});
    return event;
}

void stream_event_free(void *event)
{
    free(event);
}

bool stream_is_idle(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool idle = s->done == s->given;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

void *managed_new(size_t bytes)
{
    return must(tarn_standin_managed(bytes));
}

void managed_free(void *addr, size_t bytes)
{
    tarn_standin_managed_free(addr, bytes);
}

void stream_hold(struct stream *s, const uint32_t *word)
{
    give(s, (struct step){.what = STEP_HOLD, .word = word});
}

void stream_spin(struct stream *s, const uint32_t *word)
{
    stream_hold(s, word);
}

void tarn_standin_launch(struct stream *s, void (*kernel)(void *arg), const void *arg, size_t bytes)
{
    void *copy = must(malloc(bytes));
    memcpy(copy, arg, bytes);
    give(s, (struct step){.what = STEP_KERNEL, .kernel = kernel, .arg = copy});
}

int tarn_cuda_stream_wait(void *stream, void *event)
{
    if (!stream)
        return tarn_fail(TARN_E_INVALID, "stand-in: has no default stream");
    struct tarn_standin_mark *mark = event;
    __atomic_add_fetch(&mark->users, 1, __ATOMIC_RELAXED);
    give(stream, (struct step){.what = STEP_WAIT, .mark = mark});
    return 0;
}

int tarn_cuda_passed(void *event)
{
    int passed = __atomic_load_n((int *)event, __ATOMIC_ACQUIRE);
    if (passed < 0)
        return tarn_fail(TARN_E_UNAVAILABLE, "stand-in: an event: an illegal memory access was encountered");
    return passed ? 0 : TARN_E_AGAIN;
}
