/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: who takes part, and chunks. */
#ifndef TARN_CLIENT_PUT_PLAN_H
#define TARN_CLIENT_PUT_PLAN_H

#include "client/put_job.h"

/* Takes the options and collects the nodes that take part. */
int tarn_put_plan(struct tarn_put *p, const struct tarn_put_options *o);
void tarn_put_unplan(struct tarn_put *p);
/* Checks item i; `pieces`: these, too. */
int tarn_put_check(const struct tarn_item *item, size_t i, bool pieces);
/* Finds or makes the node's part. NULL: out of memory. */
struct tarn_put_node *tarn_put_node_of(struct tarn_put *p, struct tarn_peer_node *node);
/* Gives all control connections back. */
void tarn_put_give_conns(struct tarn_put *p);
/* Chooses another node for a target whose node has refused. False: there is none. */
bool tarn_put_reassign(struct tarn_put *p, struct tarn_target *t);
int tarn_chunk_init(struct tarn_chunk *c, uint32_t replicas);
void tarn_chunk_free(struct tarn_chunk *c);
/* Drops its jobs. */
void tarn_chunk_empty(struct tarn_chunk *c);
/* Adds item i as a job and chooses its targets' nodes. hash: of its key. */
void tarn_chunk_add(struct tarn_put *p, struct tarn_chunk *c, size_t i, uint64_t hash);
/* Has it a key with this hash? */
bool tarn_chunk_has(const struct tarn_chunk *c, uint64_t hash);
/* The job fails with status and this thread's last error, unless it has failed before. */
void tarn_job_fail(struct tarn_put_job *job, int status);

#endif
