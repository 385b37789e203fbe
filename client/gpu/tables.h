/* SPDX-License-Identifier: Apache-2.0 */
/* A client's hit tables (include/tarn/table.h). */
#ifndef TARN_CLIENT_GPU_TABLES_H
#define TARN_CLIENT_GPU_TABLES_H

struct tarn_client;

/* Frees those that are left. */
void tarn_tables_close(struct tarn_client *c);

#endif
