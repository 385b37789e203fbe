/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of object records. The input has fields and values separated by newlines. A get must be
 * able to use an accepted record without further checks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "metadata/directory.h"

#define TEXTS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* Each text has its own memory, so that the sanitizer detects reads past its end. */
static size_t split(const uint8_t *data, size_t bytes, struct tarn_text *texts)
{
    const char *at = (const char *)data, *end = at + bytes;
    size_t n = 0;

    while (at < end && n < TEXTS_MAX) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        char *copy = malloc(length ? length : 1);
        demand(copy != NULL);
        memcpy(copy, at, length);
        texts[n++] = (struct tarn_text){copy, length};
        at += length + 1;
    }
    return n;
}

static void check_record(const struct tarn_record *r)
{
    demand(tarn_tensor_check(&r->tensor) == 0);
    demand(r->version != 0 && r->version <= INT64_MAX);
    demand(r->nlocations >= 1 && r->nlocations <= TARN_REPLICAS_MAX);
    for (uint32_t i = 0; i < r->nlocations; i++) {
        const struct tarn_location *l = &r->locations[i];
        demand(*l->node && memchr(l->node, 0, sizeof l->node));
        demand(*l->pool && memchr(l->pool, 0, sizeof l->pool));
        demand(l->gen % 2 == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tarn_text texts[TEXTS_MAX];
    size_t n = split(data, bytes, texts);
    struct tarn_record r;

    memset(&r, 0xa5, sizeof r);
    int rc = tarn_record_parse(texts, n, &r);
    if (rc == 0)
        check_record(&r);
    else
        demand(rc == TARN_E_NOT_FOUND || (rc == TARN_E_FORMAT && *tarn_last_error()));
    for (size_t i = 0; i < n; i++)
        free((void *)texts[i].data);
    return 0;
}
