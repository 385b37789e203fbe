/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory transport's table, for the registry, and its node half, which the table in shm.c names.
 */
#ifndef TARN_TRANSPORT_SHM_H
#define TARN_TRANSPORT_SHM_H

#include "transport/transport.h"

enum { TARN_SHM_FDS = 3 }; /* of a pool in an ATTACH answer: arena, gen, touch */

extern const struct tarn_transport_ops tarn_shm_ops;

int tarn_shm_serve(const struct tarn_serve *serve, struct tarn_node_half **s_p);
bool tarn_shm_serves(const struct tarn_node_half *s, uint32_t pool);
void tarn_shm_describe(const struct tarn_node_half *s, uint32_t pool, char *text, size_t text_bytes);
int tarn_shm_attach(struct tarn_node_half *s, struct tarn_attach *a);
void tarn_shm_detach(struct tarn_node_half *s, uint64_t session);
void tarn_shm_stop(struct tarn_node_half *s);

#endif
