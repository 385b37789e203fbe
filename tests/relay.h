/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands between clients and a node's Unix socket: it passes commands on, holds back those that a test names,
 * and remembers in which order they went. The node's socket is renamed, and the relay listens under its name.
 * Answers go back unread; descriptors that come with them are lost, so shm and cuda_ipc do not work through
 * it.
 */
#ifndef TARN_TESTS_RELAY_H
#define TARN_TESTS_RELAY_H

#include <stdbool.h>
#include <stddef.h>

struct relay;

/* Takes the place of the socket at this path. Fails the test when it cannot. */
struct relay *relay_start(const char *path);
void relay_stop(struct relay *r);
/* The node past the relay, for harness_call(). */
const char *relay_node(const struct relay *r);

/* From now on commands of this name stay here, on all connections, with all that follows on theirs; NULL:
 * none do, and those that are here go on. */
void relay_hold(struct relay *r, const char *name);
/* Passes on those of the held name that are here now; later ones stay. */
void relay_pass(struct relay *r);
/* From now on commands of this name end here, answered with these bytes; NULL: none do. Both stay the test's.
 */
void relay_answer(struct relay *r, const char *name, const char *bytes);
/* How many commands of this name are here. */
unsigned relay_held(struct relay *r, const char *name);
/* How many have gone on to the node; "" counts all. */
unsigned relay_passed(struct relay *r, const char *name);
/* When the n-th of this name went on, as a number that grows with each command; 0: it has not. n begins
 * with 1. */
unsigned relay_when(struct relay *r, const char *name, unsigned n);
/* Argument i of the command of this name that is held, "" when there is none; 0 is the name. */
void relay_argument(struct relay *r, const char *name, unsigned i, char *text, size_t bytes);

#endif
