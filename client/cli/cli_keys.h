/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys for commands that work on several. */
#ifndef TARN_CLIENT_CLI_KEYS_H
#define TARN_CLIENT_CLI_KEYS_H

#include "client/cli/cli.h"

/* A list of keys, with what a command notes for each. */
struct cli_key {
    char *bytes, *text; /* the key with a zero byte behind it; the key as text */
    struct tarn_key key;
    int32_t status;
    struct tarn_tensor tensor;
};
struct cli_keys {
    struct cli_key *all;
    size_t n, room;
};

int cli_keys_add(struct cli_keys *k, const struct tarn_key *key);
/* Adds the keys that match the glob. Afterwards k is sorted by text and has each key once. */
int cli_keys_list(struct cli *c, const char *glob, struct cli_keys *k);
void cli_keys_free(struct cli_keys *k);

#endif
