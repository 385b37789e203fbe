/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing from the control thread, see publisher.h.
 *
 *   submitted --> sent --all succeeded--> done
 *        \           \--anything else--> held --nothing is sent--> the directory thread's --> done
 *         \--a replace, or the directory thread has some, or there is no stream--^
 *
 * While any publication is held or with the directory thread, new ones follow it there.
 */

#include "base/clock.h"
#include "base/error.h"
#include "server/directory/publisher_impl.h"

static void release_held(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    struct tarn_request *r;
    while (!l->sent.first && (r = queue_take(&l->held))) {
        l->with_thread++;
        thread_submit(p, r);
    }
}

/* --- what did not go well ----------------------------------------------------------------------- */

static void close_stream(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    tarn_watch_free(l->watch);
    tarn_stream_close(l->stream);
    l->watch = NULL;
    l->stream = NULL;
    pthread_mutex_lock(&p->lock);
    p->streams = false;
    pthread_mutex_unlock(&p->lock);
}

/* Nobody waits for it any more, and whether it was run is not known. */
static void finish_given_up(struct tarn_publisher *p, struct tarn_request *r)
{
    for (size_t i = 0; i < r->n; i++)
        r->publishes[i].status = TARN_E_TIMEOUT;
    r->failure = (struct tarn_reason){TARN_E_TIMEOUT, "directory: no answer of Redis in time"};
    pthread_mutex_lock(&p->lock);
    p->doubts = true;
    pthread_mutex_unlock(&p->lock);
    r->done(r);
}

/* The directory thread runs all again, after having this connection ended. */
static void give_up_stream(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    struct request_queue sent = l->sent;
    struct tarn_request *r;
    close_stream(p);
    l->answered = 0;
    queue_init(&l->sent);
    while ((r = queue_take(&sent))) {
        if (r->given_up)
            finish_given_up(p, r);
        else
            queue_add(&l->held, r);
    }
    release_held(p);
}

/* --- answers ------------------------------------------------------------------------------------ */

static void settle(struct tarn_publisher *p, struct tarn_request *r)
{
    size_t stored = 0, met = 0, displacing = 0;
    for (size_t i = 0; i < r->n; i++) {
        stored += r->publishes[i].status == 0;
        met += r->publishes[i].status == TARN_E_EXISTS;
        displacing += r->publishes[i].status == 0 && displaces_elsewhere(p, &r->publishes[i]);
    }
    r->asked = stored + met == r->n;
    if (stored < r->n || displacing) {
        queue_add(&p->direct.held, r);
        return;
    }
    count_published(p, r->publishes, r->n);
    pthread_mutex_lock(&p->lock);
    p->stats.direct += r->n;
    pthread_mutex_unlock(&p->lock);
    r->done(r);
}

/* Waits for answers, and for room to send when there was none. */
static void watch_stream(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    int events = TARN_READABLE | (tarn_stream_unsent(l->stream) ? TARN_WRITABLE : 0);
    if (events != l->events && tarn_watch_set(l->watch, events))
        give_up_stream(p);
    l->events = events;
}

/* `done` may submit, and so give the stream up. */
static void stream_event(void *arg, int events)
{
    struct tarn_publisher *p = arg;
    struct direct_publish *l = &p->direct;
    int rc = l->sent.first ? 0 : TARN_E_NODE_DOWN; /* closed by Redis */
    (void)events;
    while (!rc && l->stream && l->sent.first) {
        struct tarn_request *r = l->sent.first;
        rc = tarn_stream_take(l->stream, r->publishes, r->n, &l->answered);
        if (rc)
            break;
        queue_take(&l->sent);
        l->answered = 0;
        l->since_ns = tarn_now_ns();
        settle(p, r);
    }
    if (!l->stream)
        return;
    if (rc && rc != TARN_E_AGAIN) {
        give_up_stream(p);
        return;
    }
    watch_stream(p);
    release_held(p);
}

/* --- for the others ----------------------------------------------------------------------------- */

void direct_publish_adopt(struct tarn_publisher *p, struct tarn_stream *s)
{
    struct direct_publish *l = &p->direct;
    l->stream = s;
    l->events = TARN_READABLE;
    if (tarn_watch_new(p->o.loop, tarn_stream_fd(s), l->events, stream_event, p, &l->watch)) {
        l->watch = NULL;
        close_stream(p);
    }
}

static bool is_away(struct tarn_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    bool away = p->stats.away;
    pthread_mutex_unlock(&p->lock);
    return away;
}

void direct_publish_submit(struct tarn_publisher *p, struct tarn_request *r)
{
    struct direct_publish *l = &p->direct;
    /* A replace asks whether the directory is settled, and waits for other answers than its own. */
    bool replaces = any_replace(r->publishes, r->n);
    bool here = l->stream && !l->held.first && !l->with_thread && !is_away(p) && !replaces;
    int rc = here ? tarn_stream_publish(l->stream, r->publishes, r->n) : TARN_E_BUSY;
    if (rc == TARN_E_BUSY) {
        queue_add(&l->held, r);
        release_held(p);
        return;
    }
    if (!l->sent.first)
        l->since_ns = tarn_now_ns();
    r->sent = true;
    queue_add(&l->sent, r);
    if (rc)
        give_up_stream(p);
    else
        watch_stream(p);
}

void tarn_publisher_tick(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    if (l->sent.first && tarn_now_ns() - l->since_ns > p->o.timeout_ms * TARN_NS_PER_MS)
        give_up_stream(p);
}

void direct_publish_stop(struct tarn_publisher *p)
{
    struct direct_publish *l = &p->direct;
    struct request_queue *queues[] = {&l->sent, &l->held};
    if (l->stream)
        close_stream(p);
    for (size_t i = 0; i < 2; i++) {
        struct tarn_request *r;
        while ((r = queue_take(queues[i])))
            cancel_request(r);
    }
}
