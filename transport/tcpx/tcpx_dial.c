/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_dial.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/cuda/cuda.h"

enum {
    DIALS = 512,     /* threads at a time */
    RETRIED = 8,     /* given-up dials that a later dial retries */
    GRACE_MS = 2000, /* how long a given-up dial waits for its peer */
};
#define NAP_NS (500 * 1000)
#define LATE_NAP_NS (20 * TARN_NS_PER_MS)

struct tarn_tcpx_dial {
    struct tarn_tcpx_dial *next; /* in the plugin's list */
    struct tarn_tcpx_plugin *plugin;
    enum tarn_tcpx_dials what;
    int nic, gpu;
    unsigned users; /* its owner, and its thread or the list */
    bool listened, ended;
    bool left;                 /* the owner has given it up */
    struct tarn_reason result; /* once it has ended */
    void *comm;
    uint64_t since_ns; /* when the current phase began */
    bool calling;      /* in accept or connect now */
    bool alone;        /* it has its GPU's turn */
    /* Used by its thread only. */
    _Alignas(void *) uint8_t handle[TARN_TCPX_HANDLE]; /* the plugin keeps pointers in it while connecting */
    void *listening;
    bool begun; /* accept or connect was called and has not ended */
    struct tarn_tcpx_device_handle device;
};

/* --- GPUs --------------------------------------------------------------------------------------- */

int tarn_tcpx_dial_gpu(const struct tarn_tcpx_plugin *p, int nic, int gpu)
{
    int n;
    return gpu < 0 && p->devices[nic].mode == TARN_TCPX_UNPACK && tarn_cuda_count(&n) == 0 ? 0 : gpu;
}

int tarn_tcpx_lend(int gpu, int *before_p)
{
    *before_p = -1;
    return gpu < 0 ? 0 : tarn_cuda_lend(gpu, before_p);
}

void tarn_tcpx_take_back(int gpu, int before)
{
    if (gpu >= 0 && before >= 0)
        tarn_cuda_take_back(before);
}

/* --- what is its owner's and its thread's ------------------------------------------------------- */

static void lock(struct tarn_tcpx_dial *d)
{
    pthread_mutex_lock(&d->plugin->lock);
}

static void unlock(struct tarn_tcpx_dial *d)
{
    pthread_mutex_unlock(&d->plugin->lock);
}

static void unuse(struct tarn_tcpx_dial *d)
{
    lock(d);
    bool last = --d->users == 0;
    unlock(d);
    if (last)
        free(d);
}

static bool is_left(struct tarn_tcpx_dial *d)
{
    lock(d);
    bool left = d->left;
    unlock(d);
    return left;
}

static void note_call(struct tarn_tcpx_dial *d, bool calling)
{
    lock(d);
    d->calling = calling;
    unlock(d);
}

/* --- turns -------------------------------------------------------------------------------------- */

/* Waits for the first accept of its GPU. CANCELED: the owner gave the dial up. */
static int take_turn(struct tarn_tcpx_dial *d)
{
    struct tarn_tcpx_plugin *p = d->plugin;
    enum tarn_tcpx_turn *turn = &p->turns[1 + d->gpu];
    int rc = 0;
    if (d->what != TARN_TCPX_ACCEPTS || p->devices[d->nic].mode != TARN_TCPX_UNPACK)
        return 0;
    lock(d);
    while (*turn == TARN_TCPX_TAKEN && !d->left)
        pthread_cond_wait(&p->changed, &p->lock);
    if (d->left)
        rc = TARN_E_CANCELED;
    else if (*turn == TARN_TCPX_UNTRIED) {
        *turn = TARN_TCPX_TAKEN;
        d->alone = true;
    }
    d->since_ns = tarn_now_ns();
    unlock(d);
    return rc;
}

/* The plugin's lock is held. */
static void give_turn(struct tarn_tcpx_dial *d)
{
    if (!d->alone)
        return;
    d->alone = false;
    d->plugin->turns[1 + d->gpu] = d->result.code ? TARN_TCPX_UNTRIED : TARN_TCPX_ANYBODYS;
    pthread_cond_broadcast(&d->plugin->changed);
}

/* --- calls -------------------------------------------------------------------------------------- */

static int open_listening(struct tarn_tcpx_dial *d)
{
    int before, rc = tarn_tcpx_lend(d->gpu, &before);
    if (!rc)
        rc = tarn_tcpx_listen(d->plugin, d->nic, d->handle, &d->listening);
    tarn_tcpx_take_back(d->gpu, before);
    lock(d);
    d->listened = rc == 0;
    d->since_ns = tarn_now_ns();
    unlock(d);
    return rc;
}

/* AGAIN: not yet. Any other result ends the dial. */
static int join_once(struct tarn_tcpx_dial *d, void **comm_p)
{
    int before, rc = tarn_tcpx_lend(d->gpu, &before);
    *comm_p = NULL;
    d->begun = true;
    note_call(d, true);
    if (!rc && d->what == TARN_TCPX_CONNECTS)
        rc = tarn_tcpx_connect(d->plugin, d->nic, d->handle, comm_p);
    else if (!rc)
        rc = tarn_tcpx_accept(d->plugin, d->listening, &d->device, comm_p);
    note_call(d, false);
    tarn_tcpx_take_back(d->gpu, before);
    if (!rc && !*comm_p)
        return TARN_E_AGAIN;
    d->begun = false;
    return rc;
}

/* Repeats until it has ended, or was given up long enough ago. A dial that others wait for continues. */
static int join(struct tarn_tcpx_dial *d, void **comm_p)
{
    uint64_t grace = 0;
    int rc = take_turn(d);
    while (!rc && (rc = join_once(d, comm_p)) == TARN_E_AGAIN) {
        bool left = is_left(d);
        if (left && !grace)
            grace = tarn_deadline(GRACE_MS);
        if (left && tarn_now_ns() > grace && !d->alone)
            break;
        nanosleep(&(struct timespec){.tv_nsec = left ? LATE_NAP_NS : NAP_NS}, NULL);
        rc = 0;
    }
    return rc;
}

static void close_unwanted(struct tarn_tcpx_dial *d, void *comm)
{
    if (comm && d->what == TARN_TCPX_CONNECTS)
        tarn_tcpx_close_send(d->plugin, comm);
    else if (comm)
        tarn_tcpx_close_recv(d->plugin, comm);
}

/* --- the thread --------------------------------------------------------------------------------- */

static void leave_to_others(struct tarn_tcpx_dial *d)
{
    struct tarn_tcpx_plugin *p = d->plugin;
    lock(d);
    d->users++;
    LL_APPEND(p->left, d);
    unlock(d);
}

static void end(struct tarn_tcpx_dial *d, int rc, void *comm)
{
    struct tarn_reason result;
    tarn_reason_keep(&result, rc);
    if (d->listening && !d->begun) {
        tarn_tcpx_close_listen(d->plugin, d->listening);
        d->listening = NULL;
    }
    lock(d);
    d->result = result;
    d->ended = true;
    bool left = d->left;
    d->comm = left ? NULL : comm;
    give_turn(d);
    unlock(d);
    if (left && rc == TARN_E_AGAIN)
        leave_to_others(d);
    else if (left)
        close_unwanted(d, comm);
}

/* Retries the oldest given-up dials, whose peers may have come by now. */
static void retry_left(struct tarn_tcpx_plugin *p)
{
    for (int i = 0; i < RETRIED; i++) {
        void *comm = NULL;
        pthread_mutex_lock(&p->lock);
        struct tarn_tcpx_dial *d = p->left;
        if (d)
            LL_DELETE(p->left, d);
        pthread_mutex_unlock(&p->lock);
        if (!d)
            return;
        end(d, join_once(d, &comm), comm);
        unuse(d);
    }
}

static void *run(void *arg)
{
    struct tarn_tcpx_dial *d = arg;
    struct tarn_tcpx_plugin *p = d->plugin;
    void *comm = NULL;
    int rc = d->what == TARN_TCPX_CONNECTS ? 0 : open_listening(d);
    if (!rc)
        rc = join(d, &comm);
    end(d, rc, comm);
    unuse(d);
    retry_left(p);
    pthread_mutex_lock(&p->lock);
    p->dials--;
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int start(struct tarn_tcpx_dial *d)
{
    int error = tarn_thread_detached(run, d);
    return error ? tarn_fail(TARN_E_UNAVAILABLE,
                             "tcpx: a thread to connect by: %s: raise the limit of threads", strerror(error))
                 : 0;
}

/* --- the owner ---------------------------------------------------------------------------------- */

static int count(struct tarn_tcpx_plugin *p)
{
    pthread_mutex_lock(&p->lock);
    bool room = p->dials < DIALS;
    p->dials += room;
    pthread_mutex_unlock(&p->lock);
    return room
               ? 0
               : tarn_fail(TARN_E_UNAVAILABLE,
                           "tcpx plugin %s: %d connections are being set up, and none of them ends: do their "
                           "peers reach this host? restart this process if they are gone",
                           p->name, DIALS);
}

int tarn_tcpx_dial_new(struct tarn_tcpx_plugin *p, enum tarn_tcpx_dials what, int nic, int gpu,
                       const uint8_t *handle, struct tarn_tcpx_dial **d_p)
{
    int rc = count(p);
    if (rc)
        return rc;
    struct tarn_tcpx_dial *d = calloc(1, sizeof(*d));
    if (d)
        *d = (struct tarn_tcpx_dial){
            .plugin = p, .what = what, .nic = nic, .gpu = gpu, .users = 2, .since_ns = tarn_now_ns()};
    if (d && handle)
        memcpy(d->handle, handle, TARN_TCPX_HANDLE);
    rc = d ? start(d) : tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a connection");
    if (rc) {
        free(d);
        pthread_mutex_lock(&p->lock);
        p->dials--;
        pthread_mutex_unlock(&p->lock);
        return rc;
    }
    *d_p = d;
    return 0;
}

int tarn_tcpx_dial_handle(struct tarn_tcpx_dial *d, uint8_t handle[TARN_TCPX_HANDLE])
{
    lock(d);
    bool listened = d->listened, ended = d->ended;
    if (listened)
        memcpy(handle, d->handle, TARN_TCPX_HANDLE);
    unlock(d);
    return listened ? 0 : ended ? tarn_reason_fail(&d->result) : TARN_E_AGAIN;
}

int tarn_tcpx_dial_poll(struct tarn_tcpx_dial *d, void **comm_p, uint64_t *since_ns)
{
    lock(d);
    bool ended = d->ended;
    *comm_p = d->comm;
    d->comm = NULL;
    *since_ns = d->since_ns;
    unlock(d);
    return ended ? tarn_reason_fail(&d->result) : TARN_E_AGAIN;
}

const struct tarn_tcpx_device_handle *tarn_tcpx_dial_device(const struct tarn_tcpx_dial *d)
{
    return &d->device;
}

/* Makes an accept return whose peer may be gone, by connecting to it. */
static void rouse(const struct tarn_tcpx_dial *d, const uint8_t handle[TARN_TCPX_HANDLE])
{
    struct tarn_tcpx_dial *other;
    if (tarn_tcpx_dial_new(d->plugin, TARN_TCPX_CONNECTS, d->nic, d->gpu, handle, &other) == 0)
        tarn_tcpx_dial_leave(other);
}

void tarn_tcpx_dial_leave(struct tarn_tcpx_dial *d)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    if (!d)
        return;
    lock(d);
    bool stuck = d->what == TARN_TCPX_ACCEPTS && (d->calling || d->alone);
    void *comm = d->comm;
    d->comm = NULL;
    d->left = true;
    if (stuck)
        memcpy(handle, d->handle, sizeof(handle));
    pthread_cond_broadcast(&d->plugin->changed);
    unlock(d);
    if (stuck)
        rouse(d, handle);
    close_unwanted(d, comm);
    unuse(d);
}
