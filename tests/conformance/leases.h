/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases in the place of a node's objects. The lender (lender.h) plays the directory: a key means a lease. A
 * put has a new lease made, writes it, and has the key mean it: so it replaces all at once. A get reads the
 * lease that the key has meant last, as far as is known, and asks again when that has ended.
 *
 * Any number of threads at once.
 */
#ifndef TARN_TESTS_LEASES_H
#define TARN_TESTS_LEASES_H

#include <tarn/window.h>

struct leases;

struct leases *leases_open(struct tarn_client *c, const char *path);
/* Once the transfers are over. NULL is allowed. */
void leases_close(struct leases *l);

/* As tarn_put() and tarn_get() of one item. STALE: the lease has not ended. */
int leases_put(struct leases *l, const struct tarn_item *item, uint32_t timeout_ms);
int leases_get(struct leases *l, const struct tarn_item *item, uint32_t timeout_ms);
/* Writes the first bytes of a new lease of `bytes` bytes, which no key means. */
int leases_put_part(struct leases *l, uint64_t bytes, const struct tarn_piece *piece);
int leases_submit_get(struct leases *l, const struct tarn_item *item, struct tarn_move *move, uint64_t cookie,
                      tarn_op *op_p);
void leases_remove(struct leases *l, const char *key);
/* How often a get has met a lease that had ended. */
uint64_t leases_stale(const struct leases *l);
const char *leases_path(const struct leases *l);

#endif
