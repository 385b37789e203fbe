/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RESP2, the Redis protocol, spoken with Redis and between nodes and clients. hiredis parses replies; the
 * sockets are ours, so that file descriptors can travel on Unix sockets and every wait has a deadline.
 *
 * struct tarn_resp is the client side, for one thread at a time: append any number of commands, then read one
 * reply for each, in order. After a failure the connection is useless and must be freed, unless an append
 * fails with NO_MEMORY. struct tarn_resp_parser is the non-blocking half for servers.
 */
#ifndef TARN_BASE_RESP_H
#define TARN_BASE_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hiredis/hiredis.h>

#include "base/buf.h"
#include "base/net.h"
#include "base/resp/command.h"
#include "base/resp/resp_encode.h"

#define TARN_RESP_FDS_MAX 64

/* The count of an array, as this hiredis gives it to createArray. */
#if HIREDIS_MAJOR >= 1
typedef size_t tarn_resp_count;
#else
typedef int tarn_resp_count;
#endif

struct tarn_resp;

/* As tarn_net_connect(), errno as well. */
int tarn_resp_connect(const struct tarn_addr *a, uint64_t deadline_ns, struct tarn_cancel *cancel,
                      struct tarn_resp **r_p);
/* Why the connection is useless, without the peer's name, which the last error begins with; "": it is not. */
const char *tarn_resp_cause(const struct tarn_resp *r);
void tarn_resp_free(struct tarn_resp *r);
/*
 * For poll(). Readable without an outstanding command: the peer closed. A read or a long flush may already
 * have received further replies, which poll() does not show: so have one command outstanding at a time.
 */
int tarn_resp_fd(const struct tarn_resp *r);
/* The parser of its replies, for resp_arena.h only. */
redisReader *tarn_resp_reader(struct tarn_resp *r);
/* True when the peer has closed or sent something unasked; for pooled connections. */
bool tarn_resp_dead(const struct tarn_resp *r);

/* Queues a command. NO_MEMORY only, as the next one. */
int tarn_resp_append_command(struct tarn_resp *r, const struct tarn_command *c);
/* Queues a command of strings; the last argument is NULL. */
int tarn_resp_append_strs(struct tarn_resp *r, ...) __attribute__((sentinel));
/* The connection's own command, emptied and begun with these strings, for the next
 * tarn_resp_append_command() or tarn_resp_call(). The last argument is NULL. */
struct tarn_command *tarn_resp_command(struct tarn_resp *r, ...) __attribute__((sentinel));
/* Sends what is queued. Reads replies meanwhile, so that long pipelines cannot dead-lock. */
int tarn_resp_flush(struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel);
/*
 * Flushes, then returns the next reply; the caller frees it with freeReplyObject(). RESP errors are
 * replies, not failures. NODE_DOWN: closed or reset. TIMEOUT. CANCELED. PROTOCOL: not RESP.
 */
int tarn_resp_read(struct tarn_resp *r, uint64_t deadline_ns, struct tarn_cancel *cancel,
                   redisReply **reply_p);
/*
 * The same without waiting, for event loops. tarn_resp_try: AGAIN, without a sentence: no whole reply yet;
 * look again when the socket is readable.
 * tarn_resp_push sends what the socket takes; tarn_resp_try reports its failures.
 */
int tarn_resp_try(struct tarn_resp *r, redisReply **reply_p);
void tarn_resp_push(struct tarn_resp *r);
bool tarn_resp_unsent(const struct tarn_resp *r);
/* Queues a command and reads its reply. Nothing cancels it. */
int tarn_resp_call(struct tarn_resp *r, uint64_t deadline_ns, const struct tarn_command *c,
                   redisReply **reply_p);

/* Takes up to max descriptors that came with replies so far; the caller owns them. Returns how many. */
int tarn_resp_take_fds(struct tarn_resp *r, int *fds, int max);

/* Turns an error reply ("EXISTS the key ...") of `who` into code and last error; 0 for other replies. */
int tarn_resp_error(const redisReply *reply, const char *who, int unknown);

/* --- server side -------------------------------------------------------------------------------- */

struct tarn_resp_parser;

/* A request may take at most max_bytes and max_args; larger ones are PROTOCOL before they are stored. */
struct tarn_resp_parser *tarn_resp_parser_new(size_t max_bytes, size_t max_args);
/* Other limits from the next request on. */
void tarn_resp_parser_limit(struct tarn_resp_parser *p, size_t max_bytes, size_t max_args);
void tarn_resp_parser_free(struct tarn_resp_parser *p);
/* Bytes received and not yet returned as requests. */
size_t tarn_resp_parser_holds(const struct tarn_resp_parser *p);
/* Feeds received bytes. */
int tarn_resp_parser_feed(struct tarn_resp_parser *p, const void *data, size_t bytes);
/* The next complete request, an array of strings that is the parser's until the next call, or NULL in
 * *request_p when more bytes are needed. PROTOCOL (with a sentence) when the bytes are no request; the
 * connection must then be closed. */
int tarn_resp_parser_next(struct tarn_resp_parser *p, redisReply **request_p);

#endif
