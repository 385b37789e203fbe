/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Client type: opening, entering and leaving, closing.
 *
 *   open     calls > 0: threads are inside libtarn; holds > 0: views keep the library's memory
 *   close()  sets `closed`: no new call gets in. It waits for calls == 0, then ends the C client, or leaves
 *            that to the last client_unhold(). Whoever ends it takes `lib` away under the GIL first, so it is
 *            done once.
 *   fork     a child has another fork_generation(): nothing of the client is touched there any more, not even
 *            freed.
 */
#include "ext.h"

#include <structmember.h>
#include <time.h>

#define WORKERS_MAX 1024

static unsigned generation;
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;

unsigned fork_generation(void)
{
    return generation;
}

static void forked(void)
{
    generation++;
    pthread_mutex_init(&left_lock, NULL);
    pthread_cond_init(&left, NULL);
}

int client_setup(void)
{
    return pthread_atfork(NULL, NULL, forked);
}

/* --- enter and leave ---------------------------------------------------------------------------- */

int client_enter(struct client *c)
{
    if (c->lib && c->generation != generation)
        return raise_code(EXT_E_FORKED, NULL,
                          "client: it was opened before fork(): open another one in the child process");
    if (c->closed)
        return raise_code(TARN_E_CLOSED, NULL, "client: it was closed: open another one");
    if (!c->lib)
        return raise_code(TARN_E_CLOSED, NULL, "client: it is not open: call Client.__init__() first");
    c->calls++;
    return 0;
}

void tell_left(void)
{
    pthread_mutex_lock(&left_lock);
    pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&left_lock);
}

void client_leave(struct client *c)
{
    c->calls--;
    if (c->closed)
        tell_left();
    if (c->lines)
        lines_give(c->lines, c->logger);
}

void client_hold(struct client *c)
{
    c->holds++;
    Py_INCREF(c);
}

void wait_left(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50 * 1000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&left_lock);
    pthread_cond_timedwait(&left, &left_lock, &until);
    pthread_mutex_unlock(&left_lock);
    Py_END_ALLOW_THREADS
}

bool client_is_over(const struct client *c)
{
    return !c->lib || c->generation != generation;
}

void client_await_end(const struct client *c)
{
    while (c->closing && c->generation == generation)
        wait_left();
}

/* Ends the C client unless it is still used. The object stays. */
static void end_if_unused(struct client *c)
{
    struct tarn_client *lib = c->lib;

    if (!lib || c->calls > 0 || c->holds > 0)
        return;
    c->lib = NULL;
    if (c->generation != generation)
        return;
    c->closing = true;
    Py_BEGIN_ALLOW_THREADS
    tarn_close(lib);
    Py_END_ALLOW_THREADS
    c->closing = false;
    tell_left();
    lines_give(c->lines, c->logger);
}

void client_unhold(struct client *c)
{
    c->holds--;
    if (c->closed)
        end_if_unused(c);
    Py_DECREF(c);
}

/* --- open --------------------------------------------------------------------------------------- */

static int log_to(struct client *c, PyObject *logger, struct tarn_options *o)
{
    if (logger == Py_None)
        return 0;
    if (!PyObject_HasAttrString(logger, "getEffectiveLevel"))
        return raise_type("log", logger, "a logging.Logger");
    PyObject *level = PyObject_CallMethod(logger, "getEffectiveLevel", NULL);
    long n = level ? PyLong_AsLong(level) : -1;
    Py_XDECREF(level);
    if (n == -1 && PyErr_Occurred())
        return -1;
    if (!(c->lines = lines_new())) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(logger);
    c->logger = logger;
    o->log = lines_add;
    o->log_arg = c->lines;
    o->log_level = n > 30 ? TARN_LOG_ERROR : n > 20 ? TARN_LOG_WARN : n > 10 ? TARN_LOG_INFO : TARN_LOG_DEBUG;
    return 0;
}

static int open_lib(struct client *c, const struct tarn_options *o)
{
    struct tarn_client *lib = NULL;
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = tarn_open(o, &lib);
    Py_END_ALLOW_THREADS
    if (rc != 0)
        raise_call(rc, NULL);
    lines_give(c->lines, c->logger);
    if (rc != 0)
        return -1;
    pthread_mutex_init(&c->drain_lock, NULL);
    c->lib = lib;
    c->generation = generation;
    c->timeout_ms = o->timeout_ms;
    return 0;
}

static int client_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"uri", "ns", "transports", "secret", "timeout", "workers", "log", "listen", NULL};
    struct client *c = (struct client *)self;
    struct tarn_options o = {.size = sizeof o, .timeout_ms = 5000, .interrupt = interrupted};
    PyObject *arg[8] = {NULL}, *logger;

    if (c->lib || c->closed || c->lines)
        return raise_code(TARN_E_INVALID, NULL, "client: it is open already: make a new Client");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOOOOOO:Client", names, &arg[0], &arg[1], &arg[2],
                                     &arg[3], &arg[4], &arg[5], &arg[6], &arg[7]))
        return -1;
    const char **texts[] = {&o.redis, &o.ns, &o.transports, &o.secret};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (args_text(arg[i], names[i], texts[i]) < 0)
            return -1;
    logger = arg[6] ? arg[6] : Py_None;
    if (args_text(arg[7], "listen", &o.listen) < 0 || args_seconds(arg[4], "timeout", &o.timeout_ms) < 0 ||
        args_number(arg[5], "workers", 0, WORKERS_MAX, &o.workers) < 0 || log_to(c, logger, &o) < 0)
        return -1;
    return open_lib(c, &o);
}

/* --- close -------------------------------------------------------------------------------------- */

static PyObject *client_close(PyObject *self, PyObject *unused)
{
    struct client *c = (struct client *)self;

    (void)unused;
    c->closed = true;
    operations_cancel(c);
    while (c->generation == generation && (c->calls > 0 || c->closing)) {
        wait_left();
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
    end_if_unused(c);
    Py_RETURN_NONE;
}

static PyObject *client_begin(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (client_enter((struct client *)self) < 0)
        return NULL;
    client_leave((struct client *)self);
    Py_INCREF(self);
    return self;
}

static PyObject *client_end(PyObject *self, PyObject *args)
{
    (void)args;
    return client_close(self, NULL);
}

static void client_dealloc(PyObject *self)
{
    struct client *c = (struct client *)self;

    if (c->weakrefs)
        PyObject_ClearWeakRefs(self);
    c->closed = true;
    end_if_unused(c); /* nobody is inside or holds it, since both have references */
    if (c->generation == generation || !c->logger)
        lines_free(c->lines);
    Py_CLEAR(c->logger);
    Py_TYPE(self)->tp_free(self);
}

/* --- the type ----------------------------------------------------------------------------------- */

static PyObject *get_timeout(PyObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(((struct client *)self)->timeout_ms / 1e3);
}

static PyMemberDef members[] = {
    {"_calls", T_UINT, offsetof(struct client, calls), READONLY, "Calls that run now."},
    {"closed", T_BOOL, offsetof(struct client, closed), READONLY, "True from the beginning of close() on."},
    {0},
};

static PyGetSetDef properties[] = {
    {"timeout", get_timeout, NULL, "Default deadline of a call, seconds.", NULL},
    {0},
};

static PyObject *client_stats(PyObject *self, PyObject *unused)
{
    struct client *c = (struct client *)self;
    struct tarn_stats s = {.size = sizeof s};

    (void)unused;
    if (client_enter(c) < 0)
        return NULL;
    int rc = raise_call(tarn_client_stats(c->lib, &s), NULL);
    client_leave(c);
    if (rc < 0)
        return NULL;
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsK}", "gets", s.gets, "get_bytes", s.get_bytes, "misses",
                         s.misses, "stale", s.stale, "puts", s.puts, "put_bytes", s.put_bytes, "errors",
                         s.errors, "directory_round_trips", s.directory_round_trips, "cached_descriptors",
                         s.cached_descriptors, "failovers", s.failovers);
}

static PyMethodDef base_methods[] = {
    {"close", client_close, METH_NOARGS,
     "Refuses new calls, waits for those that run, ends the client. Views keep it until they are gone."},
    {"__enter__", client_begin, METH_NOARGS, NULL},
    {"__exit__", client_end, METH_VARARGS, NULL},
    {"stats", client_stats, METH_NOARGS, "This client's counters, a dict of int."},
    {0},
};

PyTypeObject client_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tarn._tarn.Client",
    .tp_doc = "The C part of tarn.Client.",
    .tp_basicsize = sizeof(struct client),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = client_init,
    .tp_dealloc = client_dealloc,
    .tp_weaklistoffset = offsetof(struct client, weakrefs),
    .tp_methods = base_methods,
    .tp_members = members,
    .tp_getset = properties,
};
