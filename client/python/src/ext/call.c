/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocking calls without the GIL, and Ctrl-C.
 *
 * Python runs the handlers of signals in the main thread, between its own instructions. So libtarn asks about
 * every 50 ms, while a call of the main thread waits, whether a handler has raised; then the call ends. Other
 * threads' calls wait for their deadline.
 */
#include "ext.h"

#include <sys/syscall.h>
#include <unistd.h>

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

/* The lines of a logger may make calls of their own, so the sentence is kept. */
static int keep_why(struct batch *b, int rc, const char *why)
{
    if (rc != 0)
        PyOS_snprintf(b->why, sizeof b->why, "%s", why);
    return rc;
}

int call_plain(struct client *c, plain_fn fn, void *arg, uint32_t timeout_ms, PyObject *key)
{
    int rc;

    if (client_enter(c) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    rc = fn(arg, timeout_ms);
    Py_END_ALLOW_THREADS
    rc = raise_call(rc, key);
    client_leave(c);
    return rc;
}

bool call_failed_whole(int rc, const int32_t *first, size_t stride, size_t n)
{
    for (size_t i = 0; rc != 0 && i < n; i++)
        if (*(const int32_t *)((const char *)first + i * stride) != 0)
            return false;
    return rc != 0;
}

PyObject *codes_of(const int32_t *first, size_t stride, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);

    for (size_t i = 0; list && i < n; i++) {
        PyObject *v = PyLong_FromLong(*(const int32_t *)((const char *)first + i * stride));
        if (!v)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, v);
    }
    return list;
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

/* --- calls -------------------------------------------------------------------------------------- */

/* A handler of a signal that has raised counts more than the outcome. */
static int ended(struct batch *b, int rc)
{
    return PyErr_Occurred() ? EXT_RAISED : keep_why(b, rc, tarn_last_error());
}

int call_get(struct batch *b, const struct tarn_get_options *given)
{
    struct tarn_get_options o = *given;
    int rc;

    if (cuda_after(b, &o.after) < 0)
        return EXT_RAISED;
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_get(b->client->lib, b->items, b->n, &o);
    Py_END_ALLOW_THREADS
    return ended(b, rc);
}

int call_put(struct batch *b, const struct tarn_put_options *given)
{
    struct tarn_put_options o = *given;
    int rc;

    if (cuda_after(b, &o.after) < 0)
        return EXT_RAISED;
    Py_BEGIN_ALLOW_THREADS
    rc = tarn_put(b->client->lib, b->items, b->n, &o);
    Py_END_ALLOW_THREADS
    return ended(b, rc);
}

int call_remove(struct batch *b, const struct tarn_key *keys, size_t n, int32_t *statuses,
                uint32_t timeout_ms)
{
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_remove(b->client->lib, keys, n, statuses, timeout_ms);
    Py_END_ALLOW_THREADS
    return ended(b, rc);
}
