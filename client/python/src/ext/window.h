/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by window.c and lease.c; see window.c. */
#ifndef TARN_PYTHON_WINDOW_H
#define TARN_PYTHON_WINDOW_H

#include "ext.h"

struct lease;

struct window {
    PyObject_HEAD struct client *client;
    struct tarn_window *lib; /* NULL: closed */
    struct batch batch;      /* keeps the memory */
    uintptr_t base;
    uint64_t nbytes;
    unsigned calls; /* of it and its leases, that run now */
    bool closing;
    struct lease *leases;       /* newest first, without references */
    struct window *prev, *next; /* in the client's list */
    PyObject *descriptor;       /* of the lease of all of it; NULL: nobody has asked for one */
};

struct lease {
    PyObject_HEAD struct window *window;
    struct tarn_lease *lib; /* NULL: it has ended */
    unsigned calls;         /* that run now */
    bool recalling;
    struct lease *prev, *next; /* in the window's list */
};

/* Like client_enter() and client_leave(), which they call. Enter fails with Closed or Forked. */
int window_enter(struct window *w);
void window_leave(struct window *w);
/* Closed, once close() of the window or the client has begun: calls that wait end early. */
int window_check_open(const struct window *w);
/* Closed, if a window that such a receive would need is being closed. */
struct operation;
int windows_check_receive(const struct operation *o);
/* Waits until *calls is 0. 0, or libtarn's code or EXT_RAISED, with an exception: BUSY at the deadline. */
int window_await_calls(const unsigned *calls, uint64_t until_ms, const char *what);
/* timeout_ms, or the client's default if it is 0, from now on. */
uint64_t window_until(const struct window *w, uint32_t timeout_ms);
/* Milliseconds left, at least 1 and at most `most`. */
uint32_t window_left(uint64_t until_ms, uint32_t most);
/* __exit__() by `end`: an exception of the with block has precedence over one of `end`. */
PyObject *window_exit(PyObject *self, PyObject *args, int (*end)(PyObject *self, uint32_t timeout_ms));

/* lease(items, write, ttl), a method of Window. */
PyObject *window_lease(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Text of a descriptor, new reference. */
PyObject *lease_text(const struct tarn_lease *lib);
/* The window has been closed, and its leases with it. */
void leases_forget(struct window *w);

#endif
