/* SPDX-License-Identifier: Apache-2.0 */
/* A client's proxies (include/tarn/proxy.h). */
#ifndef TARN_CLIENT_GPU_PROXIES_H
#define TARN_CLIENT_GPU_PROXIES_H

struct tarn_client;
struct tarn_table;

/* Frees those that are left. */
void tarn_proxies_close(struct tarn_client *c);
/* The table is about to be freed: takes it from the proxies that use it, and waits until none does. */
void tarn_proxies_leave(struct tarn_client *c, const struct tarn_table *t);

#endif
