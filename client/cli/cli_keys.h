/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys for commands that work on several. */
#ifndef TARN_CLIENT_CLI_KEYS_H
#define TARN_CLIENT_CLI_KEYS_H

#include "client/cli/cli_text.h"

/* A list of keys, with what a command notes for each. */
struct cli_key {
    char *bytes, *text; /* the key with a zero byte behind it; the key as text */
    struct tarn_key key;
    int32_t status;
    struct tarn_tensor tensor;
    uint64_t born_ms;
    int64_t pinned_ms;
    char *copies; /* their places, as text; may be NULL */
    json_t *json; /* may be NULL */
};
struct cli_keys {
    struct cli_key *all;
    size_t n, room;
};

int cli_keys_add(struct cli_keys *k, const struct tarn_key *key);
/* Sorts by text and leaves each key once: a listing may see a key twice if it comes or goes meanwhile. */
void cli_keys_sort(struct cli_keys *k);
/* Adds the keys that match the glob, and sorts. */
int cli_keys_list(struct cli *c, const char *glob, struct cli_keys *k);
void cli_keys_free(struct cli_keys *k);

#endif
