/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "client/client.h"
#include "client/gpu/forward_impl.h"
#include "client/window/lender.h"

#define POLL_NS (100 * 1000) /* before the thread rests */
#define REST_MAX_NS TARN_NS_PER_MS

void tarn_forward_end(struct tarn_forward *f, int code)
{
    uint32_t works = 0;
    __atomic_compare_exchange_n(&f->counts->state, &works, (uint32_t)code, false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
}

/* --- a batch ------------------------------------------------------------------------------------ */

static void drop_zero(struct tarn_forward *f)
{
    if (!f->zero_told)
        tarn_log(&f->client->log, TARN_LOG_WARN, "forward",
                 "msg=\"a writer has told a tag 0, which is dropped, as all that follow: tags begin at 1\" "
                 "window=%u lease=%u",
                 f->lease->window->index, f->lease->slot);
    f->zero_told = true;
}

/* Puts parts into a new batch until one of them would overlap another. Returns how many tags that took. */
static uint32_t gather(struct tarn_forward *f, const uint64_t *tags, uint32_t n, uint32_t *pieces_p)
{
    uint32_t i, npieces = 0;
    f->batch++;
    for (i = 0; i < n; i++) {
        if (tags[i] == 0) {
            drop_zero(f);
            continue;
        }
        uint32_t slot = (uint32_t)((tags[i] - 1) % f->slots), part = (uint32_t)((tags[i] - 1) % f->parts);
        if (f->slot_batch[slot] == f->batch || f->part_batch[part] == f->batch)
            break;
        f->slot_batch[slot] = f->part_batch[part] = f->batch;
        f->pieces[npieces] = (struct tarn_cuda_piece){.from = f->landing.at + (uint64_t)slot * f->bytes,
                                                      .to = f->final.at + (uint64_t)part * f->bytes,
                                                      .bytes = f->bytes};
        f->numbers[npieces++] = part;
    }
    *pieces_p = npieces;
    return i;
}

/* Between looks: nothing at first, then for longer and longer. */
static void rest(uint64_t since_ns)
{
    uint64_t idle = tarn_now_ns() - since_ns, nap = idle / 16 < REST_MAX_NS ? idle / 16 : REST_MAX_NS;
    const struct timespec t = {.tv_nsec = (long)nap};
    if (idle >= POLL_NS)
        nanosleep(&t, NULL);
}

static int give(struct tarn_forward *f, uint32_t n)
{
    uint64_t since = tarn_now_ns();
    size_t taken;
    int rc = 0;
    for (size_t at = 0; !rc && at < n; at += taken) {
        rc = tarn_cuda_copy(f->queue, f->pieces + at, n - at, &taken);
        if (!rc && taken == 0)
            rest(since);
    }
    return rc;
}

/* Waits until what was given is copied. */
static int settle(struct tarn_forward *f)
{
    uint64_t since = tarn_now_ns(), mark = 0;
    int rc = tarn_cuda_mark(f->queue, &mark);
    while (!rc && (rc = tarn_cuda_poll(f->queue, mark)) == TARN_E_AGAIN) {
        rest(since);
        rc = 0;
    }
    return rc;
}

static int copy(struct tarn_forward *f, uint32_t n)
{
    int given = 0, settled = 0;
    for (uint32_t i = 0; f->device < 0 && i < n; i++)
        memcpy(f->pieces[i].to, f->pieces[i].from, f->pieces[i].bytes);
    if (f->device >= 0 && n > 0) {
        given = give(f, n);
        settled = settle(f); /* also what was given before a failure */
    }
    return given ? given : settled;
}

/* Who sees a count sees the bytes that were copied before it. */
static void count(struct tarn_forward *f, uint32_t n)
{
    struct tarn_forward_counts *c = f->counts;
    for (uint32_t i = 0; i < n; i++)
        tarn_dev_store64(&c->parts[f->numbers[i]], c->parts[f->numbers[i]] + 1);
    tarn_dev_store64(&c->total, c->total + n);
}

/* --- the thread --------------------------------------------------------------------------------- */

/* UNAVAILABLE: the GPU does not copy. */
static int forward(struct tarn_forward *f, uint32_t n)
{
    int rc = 0;
    for (uint32_t at = 0, npieces; !rc && at < n;) {
        at += gather(f, f->tags + at, n - at, &npieces);
        rc = copy(f, npieces);
        if (!rc)
            count(f, npieces);
    }
    return rc ? TARN_E_UNAVAILABLE : 0;
}

static void *thread_main(void *arg)
{
    struct tarn_forward *f = arg;
    uint32_t n;
    int rc;
    tarn_cuda_relax();
    do {
        rc = tarn_lent_take(&f->lease->window->lender->lent, f->lease, &f->cancel, f->tags,
                            TARN_FORWARD_BATCH, &n);
        if (!rc)
            rc = forward(f, n);
    } while (!rc);
    tarn_forward_end(f, rc);
    if (rc != TARN_E_CANCELED)
        tarn_log(&f->client->log, TARN_LOG_WARN, "forward",
                 "msg=\"a forwarding has ended\" window=%u lease=%u status=%s cause=\"%s\"",
                 f->lease->window->index, f->lease->slot, tarn_error_name(rc), tarn_last_error());
    return NULL;
}

int tarn_forward_thread_start(struct tarn_forward *f)
{
    f->cancel.fd = -1; /* it sees an abort within a slice */
    int rc = tarn_client_thread(&f->thread, thread_main, f);
    f->started = rc == 0;
    return rc;
}
