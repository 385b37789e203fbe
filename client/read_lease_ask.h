/* SPDX-License-Identifier: Apache-2.0 */
/* Asking Redis about leases. */
#ifndef TARN_CLIENT_READ_LEASE_ASK_H
#define TARN_CLIENT_READ_LEASE_ASK_H

#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "client/read_lease.h"
#include "metadata/directory.h"

struct tarn_client;
struct tarn_peer_node;

void tarn_read_leases_init(struct tarn_client *c);
int tarn_read_leases_start(struct tarn_client *c);
void tarn_read_leases_stop(struct tarn_client *c);
void tarn_read_leases_free(struct tarn_client *c);
/* May a get that begins in ahead_ns read from the node? Does not wait. After ASK a question is on its way. */
enum tarn_read_lease_word tarn_read_lease_word_in(struct tarn_peer_node *node, uint64_t ahead_ns);
/* The same for one that begins now. */
static inline enum tarn_read_lease_word tarn_read_lease_word(struct tarn_peer_node *node)
{
    return tarn_read_lease_word_in(node, 0);
}
/* After ASK: waits until a question is answered or Redis counts as away. */
void tarn_read_lease_wait(struct tarn_client *c, uint64_t deadline_ns, struct tarn_cancel *cancel);
/* DIRECTORY, with the sentence for REFUSED. */
int tarn_read_lease_refusal(struct tarn_peer_node *node);
/* Takes the lease from a node's record, which a refresh has read; the refresh began at sent_ns. */
void tarn_read_lease_listed(struct tarn_peer_node *node, const struct tarn_node_record *n, uint64_t sent_ns);
/* A descriptor names the node: all later questions include it. */
void tarn_read_lease_named(struct tarn_peer_node *node);

#endif
