/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocking calls without the GIL, and Ctrl-C.
 *
 * Python runs the handlers of signals in the main thread, between its own instructions. So what the main
 * thread has called ends when a handler raises:
 *
 *   gets, puts, removes  are submitted, waited for in slices, and canceled. Gets of few bytes are tried with
 *                        TARN_GET_NOW before: objects in shared memory, or that a GPU of this host copies,
 *                        are there at once
 *   all others           are asked by libtarn whether they are interrupted, while they wait
 *
 * Other threads' calls wait for their deadline.
 */
#include "ext.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNALS_MS 50
#define QUICK_BYTES (256ull << 20)    /* copied within a moment, */
#define QUICK_GPU_BYTES (16ull << 30) /* by a GPU */

bool in_main_thread(void)
{
    static pthread_t main_thread;
    static _Atomic unsigned known_in; /* 1 more than the fork_generation() that it is known in */

    if (known_in == fork_generation() + 1)
        return pthread_equal(main_thread, pthread_self());
    if (syscall(SYS_gettid) != getpid())
        return false;
    main_thread = pthread_self();
    known_in = fork_generation() + 1;
    return true;
}

int interrupted(void *unused)
{
    (void)unused;
    if (!in_main_thread())
        return 0;
    PyGILState_STATE gil = PyGILState_Ensure();
    int rc = PyErr_Occurred() ? -1 : PyErr_CheckSignals();
    PyGILState_Release(gil);
    return rc;
}

static void keep_why(int rc, char why[WHY_BYTES])
{
    if (rc != 0)
        snprintf(why, WHY_BYTES, "%s", tarn_last_error());
}

int call_plain(plain_fn fn, void *arg, uint32_t timeout_ms, char why[WHY_BYTES])
{
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = fn(arg, timeout_ms);
    keep_why(rc, why);
    Py_END_ALLOW_THREADS
    return PyErr_Occurred() ? EXT_RAISED : rc;
}

/* --- submitted ---------------------------------------------------------------------------------- */

int ops_take(struct client *c)
{
    struct tarn_completion done[OPS_TAKE_MAX];

    pthread_mutex_lock(&c->drain_lock);
    int n = tarn_drain(c->lib, done, OPS_TAKE_MAX);
    for (int i = 0; i < n; i++) {
        struct op *op = (struct op *)(uintptr_t)done[i].cookie;
        op->done = done[i];
        op->complete = true;
    }
    pthread_mutex_unlock(&c->drain_lock);
    return n;
}

/* If another thread has drained it, it is complete once that thread has released the lock. */
bool op_complete(struct client *c, struct op *op)
{
    pthread_mutex_lock(&c->drain_lock);
    bool complete = op->complete;
    pthread_mutex_unlock(&c->drain_lock);
    return complete;
}

int op_wait(struct client *c, struct op *op, uint32_t ms)
{
    struct tarn_completion done;

    if (op_complete(c, op))
        return 0;
    int rc = tarn_wait(c->lib, op->id, ms, &done);
    if (rc == TARN_E_NOT_FOUND && op_complete(c, op))
        return 0;
    if (rc == 0) {
        pthread_mutex_lock(&c->drain_lock);
        op->done = done;
        op->complete = true;
        pthread_mutex_unlock(&c->drain_lock);
    }
    return rc;
}

int op_finish(struct client *c, struct op *op, char why[WHY_BYTES])
{
    bool raised = false;
    int rc;

    do {
        Py_BEGIN_ALLOW_THREADS
        rc = op_wait(c, op, SIGNALS_MS);
        Py_END_ALLOW_THREADS
        if (rc == TARN_E_TIMEOUT && !raised && PyErr_CheckSignals() < 0) {
            raised = true;
            Py_BEGIN_ALLOW_THREADS
            tarn_cancel(c->lib, op->id);
            Py_END_ALLOW_THREADS
        }
    } while (rc == TARN_E_TIMEOUT);
    if (raised) {
        if (rc == 0 && op->done.hits)
            tarn_hits_free(op->done.hits);
        return EXT_RAISED;
    }
    if (rc == 0)
        rc = op->done.status;
    if (rc != 0)
        snprintf(why, WHY_BYTES, "%s", op->done.error);
    return rc;
}

/* Continues after a submit that returned rc. */
static int finish_submit(struct client *c, struct op *op, int rc, char why[WHY_BYTES])
{
    if (rc != 0) {
        keep_why(rc, why);
        return rc;
    }
    return op_finish(c, op, why);
}

/* --- get ---------------------------------------------------------------------------------------- */

static int get_blocking(struct batch *b, const struct tarn_get_options *o, char why[WHY_BYTES])
{
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_get(b->client->lib, b->items, b->n, o);
    keep_why(rc, why);
    Py_END_ALLOW_THREADS
    return PyErr_Occurred() ? EXT_RAISED : rc;
}

static int get_submitted(struct client *c, struct tarn_item *items, size_t n,
                         const struct tarn_get_options *o, char why[WHY_BYTES])
{
    struct op op = {0};
    int rc = tarn_submit_get(c->lib, items, n, o, (uint64_t)(uintptr_t)&op, &op.id);

    return finish_submit(c, &op, rc, why);
}

/* Finds the range of items that were left for later; false: none. */
static bool left_over(const struct batch *b, size_t *begin, size_t *end)
{
    *begin = *end = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (b->items[i].status != TARN_E_AGAIN)
            continue;
        if (*end == 0)
            *begin = i;
        *end = i + 1;
    }
    return *end > 0;
}

int call_get(struct batch *b, const struct tarn_get_options *given, char why[WHY_BYTES])
{
    struct tarn_get_options o = *given;
    size_t begin = 0, end = b->n;

    if (cuda_after(b, &o.after) < 0)
        return EXT_RAISED;
    if (!in_main_thread())
        return get_blocking(b, &o, why);
    bool to_gpu = b->n > 0 && b->values[0].device != HOST_MEMORY;
    if (b->bytes <= (to_gpu ? QUICK_GPU_BYTES : QUICK_BYTES) && cuda_is_quiet(b)) {
        o.after = NULL;
        o.flags |= TARN_GET_NOW;
        int rc = get_blocking(b, &o, why);
        if (rc == 0 || rc == EXT_RAISED || !left_over(b, &begin, &end))
            return rc;
        o.flags &= ~(uint32_t)TARN_GET_NOW;
        o.hits_first = begin;
    }
    return get_submitted(b->client, b->items + begin, end - begin, &o, why);
}

/* --- the others --------------------------------------------------------------------------------- */

int call_put(struct batch *b, const struct tarn_put_options *given, char why[WHY_BYTES])
{
    struct tarn_put_options o = *given;
    struct client *c = b->client;
    struct op op = {0};
    int rc;

    if (cuda_after(b, &o.after) < 0)
        return EXT_RAISED;
    if (in_main_thread()) {
        rc = tarn_submit_put(c->lib, b->items, b->n, &o, (uint64_t)(uintptr_t)&op, &op.id);
        return finish_submit(c, &op, rc, why);
    }
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_put(c->lib, b->items, b->n, &o);
    keep_why(rc, why);
    Py_END_ALLOW_THREADS
    return rc;
}

int call_lookup(struct client *c, const struct tarn_key *keys, size_t n, uint32_t timeout_ms,
                struct tarn_hits **hits, char why[WHY_BYTES])
{
    struct tarn_lookup_options o = {.size = sizeof o, .timeout_ms = timeout_ms};
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_lookup(c->lib, keys, n, &o, hits);
    keep_why(rc, why);
    Py_END_ALLOW_THREADS
    if (!PyErr_Occurred())
        return rc;
    if (rc == 0)
        tarn_hits_free(*hits);
    return EXT_RAISED;
}

int call_remove(struct client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                uint32_t timeout_ms, char why[WHY_BYTES])
{
    struct op op = {0};
    int rc;

    if (in_main_thread()) {
        rc = tarn_submit_remove(c->lib, keys, n, statuses, timeout_ms, (uint64_t)(uintptr_t)&op, &op.id);
        return finish_submit(c, &op, rc, why);
    }
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_remove(c->lib, keys, n, statuses, timeout_ms);
    keep_why(rc, why);
    Py_END_ALLOW_THREADS
    return rc;
}
