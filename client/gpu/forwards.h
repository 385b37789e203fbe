/* SPDX-License-Identifier: Apache-2.0 */
/* A client's forwardings (include/tarn/forward.h). */
#ifndef TARN_CLIENT_GPU_FORWARDS_H
#define TARN_CLIENT_GPU_FORWARDS_H

struct tarn_client;

/* Frees those that are left. */
void tarn_forwards_close(struct tarn_client *c);

#endif
