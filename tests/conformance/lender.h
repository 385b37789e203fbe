/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that lends a window to the conformance suite. It listens at a Unix socket of packets: a
 * connection takes one command and gives one answer, which begins with a status.
 *
 *   LEASE bytes runs r|rw [key version]   -> id descriptor   of `runs` runs (0: a few), filled if there is a
 * key NAME id key                           the key means that lease; the one that it meant is recalled LOOK
 * key                              -> id bytes descriptor, or NOT_FOUND REMOVE key recalls what it means
 *   END id                                recalls it, but keeps its memory as it is
 *   RECALL id                             recalls it, if need be, and gives its memory back
 *   HOLDS id offset bytes key version     are those bytes of the lease this content? else PROTOCOL
 *   SHOWS id key version                  is each byte of that version or the next? else PROTOCOL
 *   NEXT round ms                         -> tag   takes a notification and looks at the bytes that its data,
 *                                         "offset bytes", names: version `tag` of "told"; else PROTOCOL
 *   ENOUGH round                          a NEXT of that round ends once nothing waits to be taken
 *   RESET                                 recalls all, and looks at the whole window
 *
 * Bytes that nobody has on lease are IDLE. Each lease finds out whether they still are: PROTOCOL says that a
 * write came late, or went beside its runs. Recalled memory is leased again as soon as there is use for it.
 */
#ifndef TARN_TESTS_LENDER_H
#define TARN_TESTS_LENDER_H

#include <stdbool.h>

enum { LENDER_TEXT = 1024, LENDER_ROOM = 64 << 20 };

/* Runs it. gpu: the window is memory of GPU 0. Prints "ready". Returns the exit status. */
int lender_main(const char *path, const char *redis, bool gpu);
/* Gives it a command. Returns the answer's status; `rest` (NULL: not wanted) gets what follows it. */
int lender_ask(const char *path, char rest[LENDER_TEXT], const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
