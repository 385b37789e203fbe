/* SPDX-License-Identifier: Apache-2.0 */
/* A node's life: start, heartbeat, end. */
#ifndef TARN_SERVER_NODE_H
#define TARN_SERVER_NODE_H

#include "server/parts.h"

/* Starts everything and writes the node's record. The node answers once its loop runs. It is ready, and calls
 * (*n_p)->ready if that is set, when its first heartbeat has found the record in place. */
int tarn_node_start(const struct tarn_node_config *c, const struct tarn_logger *log, struct tarn_node **n_p);
/* Runs until the node has drained, is stopped or has lost its id. Returns the exit status of the process. */
int tarn_node_run(struct tarn_node *n);
/* Ends everything at once, drained or not. NULL is allowed. */
void tarn_node_free(struct tarn_node *n);

#endif
