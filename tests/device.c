/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/harness.h"
#include "tests/stream.h"
#include "tests/world.h"

enum { STAGE = 1 << 20 };

struct device {
    int ordinal;
    pthread_mutex_t lock; /* protects the fields below */
    struct tarn_cuda_queue *queue;
    uint8_t *stage;
};

static void must(int rc)
{
    if (rc)
        fail_msg("%s: %s", tarn_error_name(rc), tarn_last_error());
}

int devices_there(void)
{
    int n;
    return tarn_cuda_count(&n) ? 0 : n;
}

void devices_need(int n)
{
    int there = devices_there();
    if (there == 0)
        harness_skip("gpu", tarn_last_error());
    if (there < n)
        harness_skip("gpus", "there is only one");
}

void *pinned_new(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    must(tarn_cuda_pin(p, bytes, true));
    return p;
}

void pinned_free(void *addr, size_t bytes)
{
    tarn_cuda_unpin(addr);
    munmap(addr, bytes);
}

struct device *device_open(int ordinal)
{
    struct device *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    d->ordinal = ordinal;
    pthread_mutex_init(&d->lock, NULL);
    must(tarn_cuda_queue_open(ordinal, &d->queue));
    d->stage = pinned_new(STAGE);
    return d;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    tarn_cuda_queue_close(d->queue);
    pinned_free(d->stage, STAGE);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void *device_alloc(struct device *d, size_t bytes)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    void *addr = NULL;
    bytes = bytes ? bytes : 1;
    if (d) {
        must(tarn_cuda_alloc(d->ordinal, bytes, &addr, handle));
        device_set(d, addr, 0, bytes);
    } else {
        addr = calloc(1, bytes);
        assert_non_null(addr);
    }
    return addr;
}

void device_drop(struct device *d, void *addr)
{
    if (d)
        tarn_cuda_free(d->ordinal, addr);
    else
        free(addr);
}

/* Polls without harness_pause(), whose milliseconds would add up over thousands of copies. */
void queue_wait(struct tarn_cuda_queue *q, uint64_t mark)
{
    uint64_t until = harness_now_ms() + DEVICE_TIMEOUT_MS;
    int rc;
    while ((rc = tarn_cuda_poll(q, mark)) == TARN_E_AGAIN && harness_now_ms() < until)
        sched_yield();
    must(rc);
}

void queue_give(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n)
{
    uint64_t until = harness_now_ms() + DEVICE_TIMEOUT_MS;
    for (size_t at = 0, taken; at < n; at += taken) {
        must(tarn_cuda_copy(q, pieces + at, n - at, &taken));
        assert_true(taken <= n - at);
        assert_true(taken > 0 || harness_now_ms() < until);
        if (taken == 0)
            sched_yield();
    }
}

void queue_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n)
{
    uint64_t mark = 0;
    queue_give(q, pieces, n);
    must(tarn_cuda_mark(q, &mark));
    queue_wait(q, mark);
}

void device_write(struct device *d, void *to, const void *from, size_t bytes)
{
    if (!d) {
        memcpy(to, from, bytes);
        return;
    }
    pthread_mutex_lock(&d->lock);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < STAGE ? bytes - at : STAGE;
        memcpy(d->stage, (const uint8_t *)from + at, n);
        queue_copy(d->queue, &(struct tarn_cuda_piece){d->stage, (uint8_t *)to + at, n}, 1);
    }
    pthread_mutex_unlock(&d->lock);
}

void device_read(struct device *d, void *to, const void *from, size_t bytes)
{
    if (!d) {
        memcpy(to, from, bytes);
        return;
    }
    pthread_mutex_lock(&d->lock);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < STAGE ? bytes - at : STAGE;
        queue_copy(d->queue, &(struct tarn_cuda_piece){(const uint8_t *)from + at, d->stage, n}, 1);
        memcpy((uint8_t *)to + at, d->stage, n);
    }
    pthread_mutex_unlock(&d->lock);
}

void device_set(struct device *d, void *to, uint8_t byte, size_t bytes)
{
    uint8_t *with = malloc(bytes + 1);
    assert_non_null(with);
    memset(with, byte, bytes);
    device_write(d, to, with, bytes);
    free(with);
}

void device_expect(struct device *d, const void *addr, uint8_t byte, size_t bytes)
{
    uint8_t *got = malloc(bytes);
    assert_non_null(got);
    device_read(d, got, addr, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != byte)
            fail_msg("byte %zu of %zu is %u, not %u", i, bytes, got[i], byte);
    free(got);
}

/* --- objects in one piece ----------------------------------------------------------------------- */

int piece_put(struct tarn_client *c, const char *key, void *addr, size_t bytes, const char *place)
{
    struct tarn_piece piece = {.addr = addr, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(bytes)};
    struct tarn_put_options o = {.size = sizeof o, .place = place, .flags = TARN_PUT_REPLACE};
    return tarn_put(c, &item, 1, &o);
}

int piece_get(struct tarn_client *c, const char *key, void *addr, size_t bytes)
{
    struct tarn_piece piece = {.addr = addr, .bytes = bytes};
    struct tarn_item item = {.key = key_of(key), .pieces = &piece, .npieces = 1};
    return tarn_get(c, &item, 1, NULL);
}

/* --- twins -------------------------------------------------------------------------------------- */

static uint8_t *end_of(const struct tarn_piece *p)
{
    return (uint8_t *)p->addr + p->bytes + (p->count ? (p->count - 1) * p->stride : 0);
}

void twin_make(struct twin *t, struct device *d, struct tarn_item *item)
{
    uint8_t *end = NULL;
    *t = (struct twin){.device = d, .pieces = calloc(item->npieces + 1, sizeof(*t->pieces))};
    assert_non_null(t->pieces);
    for (uint32_t i = 0; i < item->npieces; i++) {
        const struct tarn_piece *p = &item->pieces[i];
        t->host = !t->host || (uint8_t *)p->addr < t->host ? p->addr : t->host;
        end = end_of(p) > end ? end_of(p) : end;
    }
    t->bytes = (size_t)(end - t->host);
    t->there = device_alloc(d, t->bytes);
    device_write(d, t->there, t->host, t->bytes);
    for (uint32_t i = 0; i < item->npieces; i++) {
        t->pieces[i] = item->pieces[i];
        t->pieces[i].addr = t->there + ((uint8_t *)item->pieces[i].addr - t->host);
    }
    item->pieces = t->pieces;
}

void twin_end(struct twin *t, struct tarn_item *item, const struct tarn_piece *own)
{
    device_read(t->device, t->host, t->there, t->bytes);
    item->pieces = own;
    device_drop(t->device, t->there);
    free(t->pieces);
}

/* --- streams ------------------------------------------------------------------------------------ */

struct late {
    uint32_t word;
};

struct late *late_begin(struct stream *s)
{
    struct late *l = pinned_new(sizeof(*l));
    stream_hold(s, &l->word);
    return l;
}

struct late *late_begin_spinning(struct stream *s)
{
    struct late *l = pinned_new(sizeof(*l));
    stream_spin(s, &l->word);
    return l;
}

void late_end(struct late *l)
{
    __atomic_store_n(&l->word, 1, __ATOMIC_RELEASE);
}

void late_free(struct late *l)
{
    pinned_free(l, sizeof(*l));
}

void stream_settle(struct stream *s)
{
    HARNESS_UNTIL(stream_is_idle(s), DEVICE_TIMEOUT_MS);
}
