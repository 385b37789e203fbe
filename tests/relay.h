/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay between clients and a node's Unix socket. It forwards commands, holds those that a test names,
 * and records their order. The node's socket is renamed, and the relay listens under its name. Replies are
 * forwarded unread, and cut where a test says so. Descriptors in them are lost, so shm and cuda_ipc do not
 * work through it.
 */
#ifndef TARN_TESTS_RELAY_H
#define TARN_TESTS_RELAY_H

#include <stdbool.h>
#include <stddef.h>

struct relay;

/* Replaces the socket at this path. Fails the test on errors. */
struct relay *relay_start(const char *path);
void relay_stop(struct relay *r);
/* The node's own address behind the relay, for harness_call(). */
const char *relay_node(const struct relay *r);

/* From now on, holds commands of this name on all connections, and everything after them on the same
 * connection. NULL: holds nothing, and forwards what is held. */
void relay_hold(struct relay *r, const char *name);
/* Forwards the held commands. Later commands of that name are still held. */
void relay_pass(struct relay *r);
/* From now on, the relay itself answers commands of this name, with these bytes. NULL: answers none. The
 * strings must stay valid. */
void relay_answer(struct relay *r, const char *name, const char *bytes);
/* From now on, forwards only the first `bytes` bytes of replies that follow a command of this name on its
 * connection. NULL: forwards the rest, too. */
void relay_cut(struct relay *r, const char *name, size_t bytes);
/* Closes all connections. New ones are relayed as before. */
void relay_break(struct relay *r);
/* The number of held commands of this name. */
unsigned relay_held(struct relay *r, const char *name);
/* The number of commands of this name forwarded to the node. "" counts all commands. */
unsigned relay_passed(struct relay *r, const char *name);
/* The position of the n-th (from 1) command of this name among all forwarded commands. 0: not yet
 * forwarded. */
unsigned relay_when(struct relay *r, const char *name, unsigned n);
/* Argument i of the held command of this name; 0 is the name; "" if there is none. */
void relay_argument(struct relay *r, const char *name, unsigned i, char *text, size_t bytes);

#endif
