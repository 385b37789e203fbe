/* SPDX-License-Identifier: Apache-2.0 */
/* The directory thread; directory_thread.h has the rules. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "server/directory/directory_thread_impl.h"

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

void thread_submit(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    pthread_mutex_lock(&dt->lock);
    queue_add(&dt->queues[r->kind], r);
    pthread_cond_signal(&dt->wake);
    pthread_mutex_unlock(&dt->lock);
}

/* --- giving back -------------------------------------------------------------------------------- */

/* On the control thread: calls what is finished. */
static void give_back(void *arg)
{
    struct tarn_directory_thread *dt = arg;
    struct request_queue done;
    pthread_mutex_lock(&dt->lock);
    done = dt->finished;
    queue_init(&dt->finished);
    struct tarn_stream *stream = dt->new_stream;
    dt->new_stream = NULL;
    dt->posted = false;
    pthread_mutex_unlock(&dt->lock);
    if (stream)
        direct_publish_adopt(dt, stream);
    while (done.first) {
        struct tarn_request *r = done.first;
        done.first = r->next;
        if (r->kind == TARN_REQUEST_PUBLISH)
            dt->direct.with_thread--;
        r->done(r);
    }
}

/* With the lock held. When the post fails the next one takes everything along. */
static void post_give_back(struct tarn_directory_thread *dt)
{
    if (!dt->posted)
        dt->posted = tarn_loop_post(dt->o.loop, give_back, dt) == 0;
}

static void finish_all(struct tarn_directory_thread *dt, struct request_queue *q)
{
    struct tarn_request *r;
    if (!q->first)
        return;
    pthread_mutex_lock(&dt->lock);
    while ((r = queue_take(q)))
        queue_add(&dt->finished, r);
    post_give_back(dt);
    pthread_mutex_unlock(&dt->lock);
}

/* --- the connection of direct publishes -------------------------------------------------------------- */

/* Only after a publish that went well: that has loaded the script, and Redis is there. */
static void offer_stream(struct tarn_directory_thread *dt)
{
    struct tarn_stream *stream;
    pthread_mutex_lock(&dt->lock);
    bool wanted = !dt->streams && !dt->stats.away && tarn_now_ns() >= dt->stream_ns;
    pthread_mutex_unlock(&dt->lock);
    if (!wanted)
        return;
    int rc = tarn_stream_open(dt->o.directory, tarn_deadline(dt->o.timeout_ms), &stream);
    pthread_mutex_lock(&dt->lock);
    if (rc) {
        dt->stream_ns = tarn_deadline(STREAM_REST_MS);
    } else {
        dt->new_stream = stream;
        dt->streams = true;
        post_give_back(dt);
    }
    pthread_mutex_unlock(&dt->lock);
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
static void keep_withdrawals(struct tarn_directory_thread *dt, struct round *round)
{
    struct withdrawal **last = &round->withdrawals;
    while (*last)
        last = &(*last)->next;
    pthread_mutex_lock(&dt->lock);
    *last = dt->withdrawals;
    if (!dt->withdrawals)
        dt->withdrawals_last = last;
    dt->withdrawals = round->withdrawals;
    dt->stats.waiting_withdrawals += round->nwithdrawals;
    pthread_mutex_unlock(&dt->lock);
}

static void do_withdrawals(struct tarn_directory_thread *dt, struct round *round)
{
    size_t n = 0;
    if (!round->nwithdrawals)
        return;
    if (dt->stats.silent) {
        keep_withdrawals(dt, round);
        return;
    }
    struct tarn_withdraw *w = calloc(round->nwithdrawals, sizeof(*w));
    for (struct withdrawal *from = round->withdrawals; w && from; from = from->next)
        w[n++] = (struct tarn_withdraw){.key = {from->key, from->key_bytes},
                                        .location = from->location,
                                        .bytes = from->bytes,
                                        .why = from->why};
    bool done = w && withdraw_items(dt, w, n) == 0;
    pthread_mutex_lock(&dt->lock);
    dt->resume_ns = done ? 0 : tarn_deadline(REST_MS);
    pthread_mutex_unlock(&dt->lock);
    if (done)
        free_withdrawals(round->withdrawals);
    else
        keep_withdrawals(dt, round);
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

static void take_withdrawals(struct tarn_directory_thread *dt, struct round *round)
{
    struct withdrawal **last = &dt->withdrawals;
    round->nwithdrawals = 0;
    while (*last && round->nwithdrawals < BATCH_MAX) {
        last = &(*last)->next;
        round->nwithdrawals++;
    }
    round->withdrawals = round->nwithdrawals ? dt->withdrawals : NULL;
    if (!round->nwithdrawals)
        return;
    dt->withdrawals = *last;
    *last = NULL;
    if (!dt->withdrawals)
        dt->withdrawals_last = &dt->withdrawals;
    dt->stats.waiting_withdrawals -= round->nwithdrawals;
}

/* Background withdrawals that Redis may do now. */
static bool withdrawals_wait(const struct tarn_directory_thread *dt)
{
    return dt->withdrawals && !dt->stats.silent && tarn_now_ns() >= dt->resume_ns;
}

static bool work_waits(const struct tarn_directory_thread *dt)
{
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
        if (dt->queues[kind].first)
            return true;
    }
    return withdrawals_wait(dt);
}

/* Waits for a wake-up, or until a refused withdrawal is due again. */
static void sleep_until_work(struct tarn_directory_thread *dt)
{
    if (dt->withdrawals && dt->resume_ns && !dt->stats.silent)
        tarn_cond_wait(&dt->wake, &dt->lock, dt->resume_ns);
    else
        pthread_cond_wait(&dt->wake, &dt->lock);
}

/* Waits for work; false at the end. */
static bool next_round(struct tarn_directory_thread *dt, struct round *round)
{
    pthread_mutex_lock(&dt->lock);
    while (!dt->stopping && !work_waits(dt))
        sleep_until_work(dt);
    bool go_on = !dt->stopping;
    for (int kind = 0; go_on && kind < TARN_REQUEST_KINDS; kind++) {
        bool batched = kind == TARN_REQUEST_PUBLISH;
        bool later = kind == TARN_REQUEST_LEAVE && withdrawals_wait(dt);
        queue_init(&round->queues[kind]);
        if (!later)
            take_requests(&dt->queues[kind], &round->queues[kind], batched ? BATCH_MAX : 0);
    }
    round->nwithdrawals = 0;
    if (go_on && withdrawals_wait(dt))
        take_withdrawals(dt, round);
    pthread_mutex_unlock(&dt->lock);
    return go_on;
}

static void *directory_thread_main(void *arg)
{
    static int (*const work[TARN_REQUEST_KINDS])(struct tarn_directory_thread *, struct tarn_request *) = {
        [TARN_REQUEST_BEAT] = work_beat,       [TARN_REQUEST_RECHECK] = work_recheck,
        [TARN_REQUEST_REMOVE] = work_remove,   [TARN_REQUEST_SETTLED] = work_settled,
        [TARN_REQUEST_RESTORE] = work_restore, [TARN_REQUEST_WITHDRAW] = work_withdraw,
        [TARN_REQUEST_SCAN] = work_scan,       [TARN_REQUEST_LEAVE] = work_leave,
        [TARN_REQUEST_NAMES] = work_names,
    };
    struct tarn_directory_thread *dt = arg;
    struct round round;
    while (next_round(dt, &round)) {
        for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
            struct request_queue *q = &round.queues[kind];
            if (kind == TARN_REQUEST_PUBLISH)
                work_publish(dt, q);
            else if (q->first)
                tarn_reason_keep(&q->first->failure, work[kind](dt, q->first));
            bool published = kind == TARN_REQUEST_PUBLISH && q->first;
            finish_all(dt, q);
            if (published)
                offer_stream(dt);
            if (kind == TARN_REQUEST_WITHDRAW)
                do_withdrawals(dt, &round);
        }
    }
    return NULL;
}

/* --- the control thread's side ------------------------------------------------------------------ */

int tarn_directory_thread_start(const struct tarn_directory_thread_options *o,
                                struct tarn_directory_thread **dt_p)
{
    struct tarn_directory_thread *dt = calloc(1, sizeof(*dt));
    if (!dt)
        return tarn_fail(TARN_E_NO_MEMORY, "directory thread: out of memory");
    dt->o = *o;
    dt->living = (struct tarn_living){.directory = o->directory,
                                      .self = o->node,
                                      .pools = o->pools,
                                      .npools = o->npools,
                                      .fresh_ns = o->ttl_ms * TARN_NS_PER_MS / 3,
                                      .heartbeat_ms = o->heartbeat_ms,
                                      .ttl_ms = o->ttl_ms};
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++)
        queue_init(&dt->queues[kind]);
    queue_init(&dt->finished);
    queue_init(&dt->direct.sent);
    queue_init(&dt->direct.held);
    dt->withdrawals_last = &dt->withdrawals;
    pthread_mutex_init(&dt->lock, NULL);
    if (o->claimed.id[0])
        settled_note(dt, &(struct tarn_beat){.state = o->claimed});
    tarn_cond_init(&dt->wake);
    int err = tarn_thread_start(&dt->thread, directory_thread_main, dt);
    if (err) {
        pthread_cond_destroy(&dt->wake);
        pthread_mutex_destroy(&dt->lock);
        free(dt);
        return tarn_fail(TARN_E_SYSTEM, "directory thread: %s: allow more threads", strerror(err));
    }
    *dt_p = dt;
    return 0;
}

void tarn_directory_thread_stop(struct tarn_directory_thread *dt)
{
    if (!dt)
        return;
    pthread_mutex_lock(&dt->lock);
    dt->stopping = true;
    pthread_cond_signal(&dt->wake);
    pthread_mutex_unlock(&dt->lock);
    pthread_join(dt->thread, NULL);
    give_back(dt);
    direct_publish_stop(dt);
    for (int kind = 0; kind < TARN_REQUEST_KINDS; kind++) {
        struct tarn_request *r;
        while ((r = queue_take(&dt->queues[kind])))
            cancel_request(r);
    }
    free_withdrawals(dt->withdrawals);
    tarn_living_free(&dt->living);
    pthread_cond_destroy(&dt->wake);
    pthread_mutex_destroy(&dt->lock);
    free(dt);
}

void tarn_directory_thread_submit(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    r->failure.code = r->partly.code = 0;
    r->seen = r->withdrawn = r->restored = 0;
    r->sent = r->asked = r->given_up = r->unsure = false;
    if (r->kind == TARN_REQUEST_PUBLISH)
        direct_publish_submit(dt, r);
    else
        thread_submit(dt, r);
}

bool tarn_directory_thread_cancel(struct tarn_directory_thread *dt, struct tarn_request *r)
{
    r->given_up = true;
    if (r->sent)
        return false;
    if (r->kind == TARN_REQUEST_PUBLISH && queue_remove(&dt->direct.held, r))
        return true;
    pthread_mutex_lock(&dt->lock);
    bool found = queue_remove(&dt->queues[r->kind], r);
    pthread_mutex_unlock(&dt->lock);
    if (found && r->kind == TARN_REQUEST_PUBLISH)
        dt->direct.with_thread--;
    return found;
}

void tarn_directory_thread_withdraw(struct tarn_directory_thread *dt, const struct tarn_key *key,
                                    const struct tarn_location *l, uint64_t bytes, const char *why)
{
    struct withdrawal *w = malloc(sizeof(*w) + key->bytes);
    if (w) {
        *w = (struct withdrawal){.location = *l, .bytes = bytes, .why = why, .key_bytes = key->bytes};
        memcpy(w->key, key->data, key->bytes);
    }
    pthread_mutex_lock(&dt->lock);
    if (!w || dt->stats.waiting_withdrawals >= WITHDRAWALS_MAX) {
        dt->doubts = true;
        free(w);
    } else {
        *dt->withdrawals_last = w;
        dt->withdrawals_last = &w->next;
        dt->stats.waiting_withdrawals++;
        pthread_cond_signal(&dt->wake);
    }
    pthread_mutex_unlock(&dt->lock);
}

bool tarn_directory_thread_doubts(struct tarn_directory_thread *dt)
{
    pthread_mutex_lock(&dt->lock);
    bool doubts = dt->doubts;
    dt->doubts = false;
    pthread_mutex_unlock(&dt->lock);
    return doubts;
}

void tarn_directory_thread_stats(struct tarn_directory_thread *dt, struct tarn_directory_thread_stats *out)
{
    pthread_mutex_lock(&dt->lock);
    *out = dt->stats;
    memcpy(out->directory, dt->directory.id, sizeof(out->directory));
    pthread_mutex_unlock(&dt->lock);
    out->unsettled = settled_why(dt);
}
