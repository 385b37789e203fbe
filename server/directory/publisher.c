/* SPDX-License-Identifier: Apache-2.0 */
/* The directory thread; publisher.h says what it promises. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "server/directory/publisher_impl.h"

#define BATCH_MAX 1024
#define WITHDRAWALS_MAX 65536
#define STREAM_REST_MS 1000 /* between tries of opening the connection of direct publishes */
#define REST_MS 250         /* between tries of background withdrawals that Redis refuses */

/* A location to withdraw in the background. */
struct withdrawal {
    struct withdrawal *next;
    struct tarn_location location;
    uint64_t bytes;
    const char *why;
    size_t key_bytes;
    char key[];
};

/* What one round works on. */
struct round {
    struct request_queue queues[TARN_REQUEST_KINDS];
    struct withdrawal *withdrawals;
    size_t nwithdrawals;
};

/* --- queues ------------------------------------------------------------------------------------- */

void queue_init(struct request_queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

void queue_add(struct request_queue *q, struct tarn_request *r)
{
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
}

struct tarn_request *queue_take(struct request_queue *q)
{
    struct tarn_request *r = q->first;
    if (r && !(q->first = r->next))
        q->last = &q->first;
    return r;
}

bool queue_remove(struct request_queue *q, const struct tarn_request *r)
{
    for (struct tarn_request **at = &q->first; *at; at = &(*at)->next) {
        if (*at != r)
            continue;
        *at = r->next;
        if (!*at)
            q->last = at;
        return true;
    }
    return false;
}

void cancel_request(struct tarn_request *r)
{
    for (size_t i = 0; r->publishes && i < r->n; i++)
        r->publishes[i].status = TARN_E_CANCELED;
    r->failure = (struct tarn_reason){TARN_E_CANCELED, "the node ends"};
    r->done(r);
}

void thread_submit(struct tarn_publisher *p, struct tarn_request *r)
{
    pthread_mutex_lock(&p->lock);
    queue_add(&p->queues[r->kind], r);
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* --- giving back -------------------------------------------------------------------------------- */

/* On the control thread: calls what is finished. */
static void give_back(void *arg)
{
    struct tarn_publisher *p = arg;
    struct request_queue done;
    pthread_mutex_lock(&p->lock);
    done = p->finished;
    queue_init(&p->finished);
    struct tarn_stream *stream = p->new_stream;
    p->new_stream = NULL;
    p->posted = false;
    pthread_mutex_unlock(&p->lock);
    if (stream)
        direct_publish_adopt(p, stream);
    while (done.first) {
        struct tarn_request *r = done.first;
        done.first = r->next;
        if (r->kind == TARN_REQUEST_PUBLISH)
            p->direct.with_thread--;
        r->done(r);
    }
}

/* With the lock held. When the post fails the next one takes everything along. */
static void post_give_back(struct tarn_publisher *p)
{
    if (!p->posted)
        p->posted = tarn_loop_post(p->o.loop, give_back, p) == 0;
}

static void finish_all(struct tarn_publisher *p, struct request_queue *q)
{
    struct tarn_request *r;
    if (!q->first)
        return;
    pthread_mutex_lock(&p->lock);
    while ((r = queue_take(q)))
        queue_add(&p->finished, r);
    post_give_back(p);
    pthread_mutex_unlock(&p->lock);
}

/* --- the connection of direct publishes -------------------------------------------------------------- */

/* Only after a publish that went well: that has loaded the script, and Redis is there. */
static void offer_stream(struct tarn_publisher *p)
{
    struct tarn_stream *stream;
    pthread_mutex_lock(&p->lock);
    bool wanted = !p->streams && !p->stats.away && tarn_now_ns() >= p->stream_ns;
    pthread_mutex_unlock(&p->lock);
    if (!wanted)
        return;
    int rc = tarn_stream_open(p->o.directory, tarn_deadline(p->o.timeout_ms), &stream);
    pthread_mutex_lock(&p->lock);
    if (rc) {
        p->stream_ns = tarn_deadline(STREAM_REST_MS);
    } else {
        p->new_stream = stream;
        p->streams = true;
        post_give_back(p);
    }
    pthread_mutex_unlock(&p->lock);
}

/* --- background withdrawals ---------------------------------------------------------------------- */

static void free_withdrawals(struct withdrawal *w)
{
    while (w) {
        struct withdrawal *next = w->next;
        free(w);
        w = next;
    }
}

/* Puts a round's background withdrawals back in front, for another try. */
static void keep_withdrawals(struct tarn_publisher *p, struct round *round)
{
    struct withdrawal **last = &round->withdrawals;
    while (*last)
        last = &(*last)->next;
    pthread_mutex_lock(&p->lock);
    *last = p->withdrawals;
    if (!p->withdrawals)
        p->withdrawals_last = last;
    p->withdrawals = round->withdrawals;
    p->stats.waiting_withdrawals += round->nwithdrawals;
    pthread_mutex_unlock(&p->lock);
}

static void do_withdrawals(struct tarn_publisher *p, struct round *round)
{
    size_t n = 0;
    if (!round->nwithdrawals)
        return;
    if (p->stats.silent) {
        keep_withdrawals(p, round);
        return;
    }
    struct tarn_withdraw *w = calloc(round->nwithdrawals, sizeof(*w));
    for (struct withdrawal *from = round->withdrawals; w && from; from = from->next)
        w[n++] = (struct tarn_withdraw){.key = {from->key, from->key_bytes},
                                        .location = from->location,
                                        .bytes = from->bytes,
                                        .why = from->why};
    bool done = w && withdraw_items(p, w, n) == 0;
    pthread_mutex_lock(&p->lock);
    p->resume_ns = done ? 0 : tarn_deadline(REST_MS);
    pthread_mutex_unlock(&p->lock);
    if (done)
        free_withdrawals(round->withdrawals);
    else
        keep_withdrawals(p, round);
    free(w);
}

/* --- rounds ------------------------------------------------------------------------------------- */

/* Moves requests while their items fit a batch; the first always does. */
static void take_requests(struct request_queue *from, struct request_queue *to, size_t max_items)
{
    size_t n = 0;
    queue_init(to);
    while (from->first && (n == 0 || n + from->first->n <= max_items)) {
        n += from->first->n;
        queue_add(to, queue_take(from));
    }
}

static void take_withdrawals(struct tarn_publisher *p, struct round *round)
{
    struct withdrawal **last = &p->withdrawals;
    round->nwithdrawals = 0;
    while (*last && round->nwithdrawals < BATCH_MAX) {
        last = &(*last)->next;
        round->nwithdrawals++;
    }
    round->withdrawals = round->nwithdrawals ? p->withdrawals : NULL;
    if (!round->nwithdrawals)
        return;
    p->withdrawals = *last;
    *last = NULL;
    if (!p->withdrawals)
        p->withdrawals_last = &p->withdrawals;
    p->stats.waiting_withdrawals -= round->nwithdrawals;
}

/* Background withdrawals that Redis may do now. */
static bool withdrawals_wait(const struct tarn_publisher *p)
{
    return p->withdrawals && !p->stats.silent && tarn_now_ns() >= p->resume_ns;
}

static bool work_waits(const struct tarn_publisher *p)
{
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
        if (p->queues[kind].first)
            return true;
    }
    return withdrawals_wait(p);
}

/* Until somebody wakes it, or a refused withdrawal is to be tried again. */
static void sleep_until_work(struct tarn_publisher *p)
{
    if (p->withdrawals && p->resume_ns && !p->stats.silent)
        tarn_cond_wait(&p->wake, &p->lock, p->resume_ns);
    else
        pthread_cond_wait(&p->wake, &p->lock);
}

/* Waits for work; false at the end. */
static bool next_round(struct tarn_publisher *p, struct round *round)
{
    pthread_mutex_lock(&p->lock);
    while (!p->stopping && !work_waits(p))
        sleep_until_work(p);
    bool go_on = !p->stopping;
    for (int kind = 0; go_on && kind < TARN_REQUEST_KINDS; kind++) {
        bool batched = kind == TARN_REQUEST_PUBLISH;
        bool later = kind == TARN_REQUEST_LEAVE && withdrawals_wait(p);
        queue_init(&round->queues[kind]);
        if (!later)
            take_requests(&p->queues[kind], &round->queues[kind], batched ? BATCH_MAX : 0);
    }
    round->nwithdrawals = 0;
    if (go_on && withdrawals_wait(p))
        take_withdrawals(p, round);
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *publisher_thread(void *arg)
{
    static int (*const work[TARN_REQUEST_KINDS])(struct tarn_publisher *, struct tarn_request *) = {
        [TARN_REQUEST_BEAT] = work_beat,       [TARN_REQUEST_RECHECK] = work_recheck,
        [TARN_REQUEST_REMOVE] = work_remove,   [TARN_REQUEST_SETTLED] = work_settled,
        [TARN_REQUEST_RESTORE] = work_restore, [TARN_REQUEST_WITHDRAW] = work_withdraw,
        [TARN_REQUEST_SCAN] = work_scan,       [TARN_REQUEST_LEAVE] = work_leave,
    };
    struct tarn_publisher *p = arg;
    struct round round;
    while (next_round(p, &round)) {
        for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
            struct request_queue *q = &round.queues[kind];
            if (kind == TARN_REQUEST_PUBLISH)
                work_publish(p, q);
            else if (q->first)
                tarn_reason_keep(&q->first->failure, work[kind](p, q->first));
            bool published = kind == TARN_REQUEST_PUBLISH && q->first;
            finish_all(p, q);
            if (published)
                offer_stream(p);
            if (kind == TARN_REQUEST_WITHDRAW)
                do_withdrawals(p, &round);
        }
    }
    return NULL;
}

/* --- the control thread's side ------------------------------------------------------------------ */

int tarn_publisher_start(const struct tarn_publisher_options *o, struct tarn_publisher **p_p)
{
    struct tarn_publisher *p = calloc(1, sizeof(*p));
    if (!p)
        return tarn_fail(TARN_E_NO_MEMORY, "directory thread: out of memory");
    p->o = *o;
    p->living = (struct tarn_living){.directory = o->directory,
                                     .self = o->node,
                                     .pools = o->pools,
                                     .npools = o->npools,
                                     .fresh_ns = o->ttl_ms * TARN_NS_PER_MS / 3,
                                     .heartbeat_ms = o->heartbeat_ms,
                                     .ttl_ms = o->ttl_ms};
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++)
        queue_init(&p->queues[kind]);
    queue_init(&p->finished);
    queue_init(&p->direct.sent);
    queue_init(&p->direct.held);
    p->withdrawals_last = &p->withdrawals;
    pthread_mutex_init(&p->lock, NULL);
    if (o->claimed.id[0])
        settled_note(p, &(struct tarn_beat){.state = o->claimed});
    tarn_cond_init(&p->wake);
    int err = tarn_thread_start(&p->thread, publisher_thread, p);
    if (err) {
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return tarn_fail(TARN_E_SYSTEM, "directory thread: %s: allow more threads", strerror(err));
    }
    *p_p = p;
    return 0;
}

void tarn_publisher_stop(struct tarn_publisher *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    give_back(p);
    direct_publish_stop(p);
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
        struct tarn_request *r;
        while ((r = queue_take(&p->queues[kind])))
            cancel_request(r);
    }
    free_withdrawals(p->withdrawals);
    tarn_living_free(&p->living);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void tarn_publisher_submit(struct tarn_publisher *p, struct tarn_request *r)
{
    r->failure.code = r->partly.code = 0;
    r->seen = r->withdrawn = r->restored = 0;
    r->sent = r->asked = r->given_up = r->unsure = false;
    if (r->kind == TARN_REQUEST_PUBLISH)
        direct_publish_submit(p, r);
    else
        thread_submit(p, r);
}

bool tarn_publisher_cancel(struct tarn_publisher *p, struct tarn_request *r)
{
    r->given_up = true;
    if (r->sent)
        return false;
    if (r->kind == TARN_REQUEST_PUBLISH && queue_remove(&p->direct.held, r))
        return true;
    pthread_mutex_lock(&p->lock);
    bool found = queue_remove(&p->queues[r->kind], r);
    pthread_mutex_unlock(&p->lock);
    if (found && r->kind == TARN_REQUEST_PUBLISH)
        p->direct.with_thread--;
    return found;
}

void tarn_publisher_withdraw(struct tarn_publisher *p, const struct tarn_key *key,
                             const struct tarn_location *l, uint64_t bytes, const char *why)
{
    struct withdrawal *w = malloc(sizeof(*w) + key->bytes);
    if (w) {
        *w = (struct withdrawal){.location = *l, .bytes = bytes, .why = why, .key_bytes = key->bytes};
        memcpy(w->key, key->data, key->bytes);
    }
    pthread_mutex_lock(&p->lock);
    if (!w || p->stats.waiting_withdrawals >= WITHDRAWALS_MAX) {
        p->doubts = true;
        free(w);
    } else {
        *p->withdrawals_last = w;
        p->withdrawals_last = &w->next;
        p->stats.waiting_withdrawals++;
        pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

bool tarn_publisher_doubts(struct tarn_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    bool doubts = p->doubts;
    p->doubts = false;
    pthread_mutex_unlock(&p->lock);
    return doubts;
}

void tarn_publisher_stats(struct tarn_publisher *p, struct tarn_publisher_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    memcpy(out->directory, p->directory.id, sizeof(out->directory));
    pthread_mutex_unlock(&p->lock);
    out->unsettled = settled_why(p);
}
