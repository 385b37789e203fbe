/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of network plugins run in their own processes. A plugin starts once in a process, reads its
 * environment then, and may end the process.
 */
#ifndef TARN_TESTS_TCPX_CHILD_H
#define TARN_TESTS_TCPX_CHILD_H

#include <stddef.h>

#define CHILD_FAILED 99 /* exit status after a failed CHECK */
#define CHILD_SECONDS 300

/*
 * Runs body(arg) in a fork of this process. The result is the child's exit status. Returns the exit status or
 * 128 + signal. `out` gets the child's stdout and stderr, cut to `out_bytes`. The child ends after `seconds`.
 */
int child_run(int (*body)(void *arg), void *arg, unsigned seconds, char *out, size_t out_bytes);

/* For use in the body. If the check fails, prints it with the last error and ends the process. */
#define CHECK(expr_) ((expr_) ? (void)0 : child_fail(#expr_, __FILE__, __LINE__))
_Noreturn void child_fail(const char *what, const char *file, int line);

/* $TARN_BUILD/tests/tcpx/libtcpx-<name>.so; a name with a slash is a path. Valid until the next call. */
const char *child_plugin(const char *name);
/* Selects that plugin for this process and its children, unless the environment names one. */
void child_configure(const char *name);
/* The path of the fake CUDA driver, likewise. */
const char *child_driver(void);

#endif
