/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of network plugins run in processes of their own: a plugin starts once a process, reads its
 * environment then, and may end the process.
 */
#ifndef TARN_TESTS_TCPX_CHILD_H
#define TARN_TESTS_TCPX_CHILD_H

#include <stddef.h>

#define CHILD_FAILED 99 /* exit status of a check that did not hold */
#define CHILD_SECONDS 300

/*
 * Runs body(arg) in a fork of this process and ends that with its result. Returns the exit status, or 128 +
 * signal, and in `out` what was written to stdout and stderr, cut to `out_bytes`. It does not outlive
 * `seconds`.
 */
int child_run(int (*body)(void *arg), void *arg, unsigned seconds, char *out, size_t out_bytes);

/* In the body: says what did not hold, with the last error, and ends the process. */
#define CHECK(expr_) ((expr_) ? (void)0 : child_fail(#expr_, __FILE__, __LINE__))
_Noreturn void child_fail(const char *what, const char *file, int line);

/* $TARN_BUILD/tests/tcpx/libtcpx-<name>.so, until the next call; what has a slash is a path already. */
const char *child_plugin(const char *name);
/* Names that plugin for this process and those that it starts, unless one is named. */
void child_configure(const char *name);
/* The fake CUDA driver, likewise. */
const char *child_driver(void);

#endif
