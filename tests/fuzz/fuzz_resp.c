/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the node's RESP parser with bytes in pieces, as a socket delivers them. The first byte of the input
 * is the size of the pieces. Command handlers rely on the parser: it must accept only arrays of strings
 * within the limits.
 */
#include <stdint.h>
#include <stdlib.h>

#include <tarn/error.h>

#include "base/resp/resp.h"

#define MAX_BYTES 4096
#define MAX_ARGS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void check_request(const redisReply *r)
{
    size_t total = 0;

    demand(r->type == REDIS_REPLY_ARRAY && r->elements <= MAX_ARGS);
    for (size_t i = 0; i < r->elements; i++) {
        demand(r->element[i]->type == REDIS_REPLY_STRING && r->element[i]->str);
        demand(r->element[i]->str[r->element[i]->len] == '\0');
        total += (size_t)r->element[i]->len;
    }
    demand(total <= MAX_BYTES);
}

/* 0, or PROTOCOL when the connection must be closed. */
static int take_requests(struct tarn_resp_parser *p)
{
    for (;;) {
        redisReply *request = NULL;
        int rc = tarn_resp_parser_next(p, &request);
        if (rc != 0) {
            demand(rc == TARN_E_PROTOCOL && !request && *tarn_last_error());
            return rc;
        }
        if (!request)
            return 0;
        check_request(request);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tarn_resp_parser *p = tarn_resp_parser_new(MAX_BYTES, MAX_ARGS);
    size_t piece = bytes ? data[0] + 1u : 1;

    demand(p != NULL);
    for (size_t at = 1; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        if (tarn_resp_parser_feed(p, data + at, n) != 0 || take_requests(p) != 0)
            break;
    }
    tarn_resp_parser_free(p);
    return 0;
}
