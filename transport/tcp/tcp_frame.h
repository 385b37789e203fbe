/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a TCP data connection as they are on the wire. docs/protocol.md has their meaning. */
#ifndef TARN_TRANSPORT_TCP_FRAME_H
#define TARN_TRANSPORT_TCP_FRAME_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/window.h>

#include "transport/node_tokens.h"

#define TARN_TCP_MAGIC 0x4e524154u /* "TARN" */
#define TARN_TCP_VERSION 1

enum tarn_tcp_op {
    TARN_TCP_HELLO = 1,
    TARN_TCP_GET = 2,
    TARN_TCP_PUT = 3,
    TARN_TCP_NO_TOUCH = 0x40, /* set in a GET that does not count as use */
    TARN_TCP_ANSWER = 0x80,   /* set in answers */
};

/*
 * A PUT to a window may end with a *notification*, its tag and then its data: the last `status` bytes of its
 * `bytes`. The lender is told of it when all bytes are in place; AGAIN: they are, but it had no room to be
 * told.
 *
 * The answer to a GET from a window has a *verdict* behind its payload: the same frame again, with the status
 * that counts. A lease may end while its bytes are on their way; what is left of the payload is zeros then.
 */
#define TARN_TCP_TAG sizeof(uint64_t)
#define TARN_TCP_NOTICE_MAX (TARN_TCP_TAG + TARN_NOTIFY_MAX)

struct tarn_tcp_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t op;
    uint16_t pool;
    uint32_t slot;
    int32_t status;
    uint64_t gen;
    uint64_t offset;
    uint64_t bytes;
    uint64_t tag;
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian and used in place");
static_assert(sizeof(struct tarn_tcp_frame) == 48, "wire format");
static_assert(offsetof(struct tarn_tcp_frame, pool) == 6, "wire format");
static_assert(offsetof(struct tarn_tcp_frame, status) == 12, "wire format");
static_assert(offsetof(struct tarn_tcp_frame, gen) == 16, "wire format");
static_assert(offsetof(struct tarn_tcp_frame, tag) == 40, "wire format");

/* HELLO with its token, as one message. */
struct tarn_tcp_hello {
    struct tarn_tcp_frame frame;
    char token[TARN_TOKEN];
};
static_assert(sizeof(struct tarn_tcp_hello) == 80, "wire format");

#endif
