/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing from the control thread; directory_thread.h has the rules.
 *
 *   submitted --> sent --all succeeded--> done
 *        \           \--anything else--> held --nothing is sent--> the directory thread's --> done
 *         \--a replace, or the directory thread has some, or there is no stream--^
 *
 * While any publication is held or with the directory thread, new ones follow it there.
 */

#include "base/clock.h"
#include "base/error.h"
#include "server/directory/directory_thread_impl.h"

static void release_held(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    struct tarn_request *r;
    while (!d->sent.first && (r = queue_take(&d->held))) {
        d->with_thread++;
        thread_submit(dt, r);
    }
}

/* --- what did not go well ----------------------------------------------------------------------- */

static void close_stream(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    tarn_watch_free(d->watch);
    tarn_stream_close(d->stream);
    d->watch = NULL;
    d->stream = NULL;
    pthread_mutex_lock(&dt->lock);
    dt->streams = false;
    pthread_mutex_unlock(&dt->lock);
}

/* Its command has timed out. Whether Redis has run the publish is not known. */
static void finish_given_up(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    for (size_t i = 0; i < r->n; i++)
        r->publishes[i].status = TARN_E_TIMEOUT;
    r->failure = (struct tarn_reason){TARN_E_TIMEOUT, "directory: no answer of Redis in time"};
    pthread_mutex_lock(&dt->lock);
    dt->doubts = true;
    pthread_mutex_unlock(&dt->lock);
    r->done(r);
}

/* The directory thread runs all again, after having this connection ended. */
static void give_up_stream(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    struct request_queue sent = d->sent;
    struct tarn_request *r;
    close_stream(dt);
    d->answered = 0;
    queue_init(&d->sent);
    while ((r = queue_take(&sent))) {
        if (r->given_up)
            finish_given_up(dt, r);
        else
            queue_add(&d->held, r);
    }
    release_held(dt);
}

/* --- answers ------------------------------------------------------------------------------------ */

static void settle(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    size_t stored = 0, met = 0, displacing = 0;
    for (size_t i = 0; i < r->n; i++) {
        stored += r->publishes[i].status == 0;
        met += r->publishes[i].status == TARN_E_EXISTS;
        displacing += r->publishes[i].status == 0 && displaces_elsewhere(dt, &r->publishes[i]);
    }
    r->asked = stored + met == r->n;
    if (stored < r->n || displacing) {
        queue_add(&dt->direct.held, r);
        return;
    }
    count_published(dt, r->publishes, r->n);
    pthread_mutex_lock(&dt->lock);
    dt->stats.direct += r->n;
    pthread_mutex_unlock(&dt->lock);
    r->done(r);
}

/* Waits for answers, and for room to send when there was none. */
static void watch_stream(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    int events = TARN_READABLE | (tarn_stream_unsent(d->stream) ? TARN_WRITABLE : 0);
    if (events != d->events && tarn_watch_set(d->watch, events))
        give_up_stream(dt);
    d->events = events;
}

/* `done` may submit, and so give the stream up. */
static void stream_event(void *arg, int events)
{
    struct tarn_directory_thread *dt = arg;
    struct direct_publish *d = &dt->direct;
    int rc = d->sent.first ? 0 : TARN_E_NODE_DOWN; /* closed by Redis */
    (void)events;
    while (!rc && d->stream && d->sent.first) {
        struct tarn_request *r = d->sent.first;
        rc = tarn_stream_take(d->stream, r->publishes, r->n, &d->answered);
        if (rc)
            break;
        queue_take(&d->sent);
        d->answered = 0;
        d->since_ns = tarn_now_ns();
        settle(dt, r);
    }
    if (!d->stream)
        return;
    if (rc && rc != TARN_E_AGAIN) {
        give_up_stream(dt);
        return;
    }
    watch_stream(dt);
    release_held(dt);
}

/* --- for the others ----------------------------------------------------------------------------- */

void direct_publish_adopt(struct tarn_directory_thread *dt, struct tarn_stream *s)
{
    struct direct_publish *d = &dt->direct;
    d->stream = s;
    d->events = TARN_READABLE;
    if (tarn_watch_new(dt->o.loop, tarn_stream_fd(s), d->events, stream_event, dt, &d->watch)) {
        d->watch = NULL;
        close_stream(dt);
    }
}

static bool is_away(struct tarn_directory_thread *dt)
{
    pthread_mutex_lock(&dt->lock);
    bool away = dt->stats.away;
    pthread_mutex_unlock(&dt->lock);
    return away;
}

void direct_publish_submit(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    struct direct_publish *d = &dt->direct;
    /* A replace asks whether the directory is settled, and waits for other answers than its own. */
    bool replaces = any_replace(r->publishes, r->n);
    bool here = d->stream && !d->held.first && !d->with_thread && !is_away(dt) && !replaces;
    int rc = here ? tarn_stream_publish(d->stream, r->publishes, r->n) : TARN_E_BUSY;
    if (rc == TARN_E_BUSY) {
        queue_add(&d->held, r);
        release_held(dt);
        return;
    }
    if (!d->sent.first)
        d->since_ns = tarn_now_ns();
    r->sent = true;
    queue_add(&d->sent, r);
    if (rc)
        give_up_stream(dt);
    else
        watch_stream(dt);
}

void tarn_directory_thread_tick(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    if (d->sent.first && tarn_now_ns() - d->since_ns > dt->o.timeout_ms * TARN_NS_PER_MS)
        give_up_stream(dt);
}

void direct_publish_stop(struct tarn_directory_thread *dt)
{
    struct direct_publish *d = &dt->direct;
    struct request_queue *queues[] = {&d->sent, &d->held};
    if (d->stream)
        close_stream(dt);
    for (size_t i = 0; i < 2; i++) {
        struct tarn_request *r;
        while ((r = queue_take(queues[i])))
            cancel_request(r);
    }
}
