/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as text, both ways, without Redis or allocations. Anybody may have written what the parsers read,
 * so they take any bytes. They skip unknown fields, so that later versions can add some. KEYS.md has the
 * layout.
 */
#ifndef TARN_METADATA_RECORDS_H
#define TARN_METADATA_RECORDS_H

#include "base/text.h"
#include "metadata/directory.h"

#define TARN_TENSOR_TEXT (16 + TARN_SHAPE_TEXT)                                 /* "bf16[2,16,8]" */
#define TARN_LOCATION_FIELD (1 + TARN_NODE_ID_MAX + 1 + TARN_POOL_NAME_MAX + 1) /* "@node0/cpu0" */
#define TARN_LOCATION_VALUE (20 + 1 + 10 + 1 + 16 + 1)                          /* "4096:17:00ab...02" */
#define TARN_POOL_LIST (TARN_POOLS_MAX * (TARN_POOL_NAME_MAX + 1) + 1)          /* "cpu0,cpu1" */

void tarn_tensor_format(const struct tarn_tensor *t, char out[TARN_TENSOR_TEXT]);
void tarn_location_field(const struct tarn_location *l, char out[TARN_LOCATION_FIELD]);
void tarn_location_value(const struct tarn_location *l, char out[TARN_LOCATION_VALUE]);

/* "@node/pool" and "offset:slot:gen". FORMAT. */
int tarn_location_parse(struct tarn_text field, struct tarn_text value, struct tarn_location *l);
/* Both in one text, with '=' between, as commands name copies. */
#define TARN_COPY_TEXT (TARN_LOCATION_FIELD + TARN_LOCATION_VALUE)
void tarn_copy_format(const struct tarn_location *l, char out[TARN_COPY_TEXT]);
int tarn_copy_parse(struct tarn_text text, struct tarn_location *l);

/* A displaced copy: "-node/pool:slot:gen" and "offset". */
#define TARN_DISPLACED_FIELD (TARN_LOCATION_FIELD + TARN_LOCATION_VALUE)
void tarn_displaced_field(const struct tarn_location *l, char out[TARN_DISPLACED_FIELD]);
int tarn_displaced_parse(struct tarn_text field, struct tarn_text value, struct tarn_location *l);
/* "pool:slot:gen", as a recheck set has it; node and offset stay. */
int tarn_member_parse(struct tarn_text member, struct tarn_location *l);

/*
 * A node's record; `pools` gets the comma list of its pools' names, npools stays 0. FORMAT.
 * `id` is not among the fields and stays as it is.
 */
int tarn_node_parse(const struct tarn_text *fields, size_t n, struct tarn_node_record *node,
                    char pools[TARN_POOL_LIST]);

/*
 * A pool's record and its epoch. `transports` gets those that have a descriptor field and fit into `fields`.
 * `name` stays as it is. FORMAT.
 */
int tarn_pool_parse(const struct tarn_text *fields, size_t n, struct tarn_pool_record *p, uint64_t *epoch);

/* 16 hex digits, as epochs are written. */
#define TARN_EPOCH_TEXT 17
void tarn_epoch_format(uint64_t epoch, char out[TARN_EPOCH_TEXT]);

bool tarn_name_valid(const char *text, size_t bytes, size_t max);

#endif
