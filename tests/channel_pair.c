/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/channel_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char last_error[512];

void channel_end_open(const char *redis, const char *transports, const struct tarn_options *given,
                      struct channel_end *e)
{
    struct tarn_options o = given ? *given : (struct tarn_options){0};
    o.transports = transports;
    e->client = client_open(redis, o);
    assert_int_equal(tarn_window_alloc(CHANNEL_ROOM, 0, (void **)&e->memory), 0);
    memset(e->memory, 0xee, CHANNEL_ROOM);
    if (tarn_window_new(e->client, e->memory, CHANNEL_ROOM, &e->window))
        fail_msg("window: %s", tarn_last_error());
}

void channel_end_close(struct channel_end *e)
{
    tarn_close(e->client);
    tarn_window_free(e->memory);
    memset(e, 0, sizeof(*e));
}

void channel_connect(struct channel_end *from, struct channel_end *to)
{
    char address[TARN_CHANNEL_ADDRESS_MAX];
    if (tarn_channel_listen(to->client) || tarn_channel_address(to->client, address, NULL))
        fail_msg("listen: %s", tarn_last_error());
    if (tarn_channel_connect(from->client, address, "hello", 5, 0, &from->channel))
        fail_msg("connect: %s", tarn_last_error());
    if (tarn_channel_accept(to->client, 0, &to->channel))
        fail_msg("accept: %s", tarn_last_error());
}

static int start(void **state, const char *transports)
{
    static const struct world_plan plan = {.nodes = 0};
    struct channel_pair *p = calloc(1, sizeof(*p));
    void *w;
    assert_non_null(p);
    assert_int_equal(world_start(&w, &plan), 0);
    p->w = w;
    p->transports = transports;
    channel_end_open(p->w->redis->url, transports, NULL, &p->a);
    channel_end_open(p->w->redis->url, transports, NULL, &p->b);
    channel_connect(&p->a, &p->b);
    *state = p;
    return 0;
}

int channel_start_tcp(void **state)
{
    return start(state, "tcp");
}

int channel_start_shm(void **state)
{
    return start(state, "shm");
}

int channel_stop(void **state)
{
    struct channel_pair *p = *state;
    void *w = p->w;
    channel_end_close(&p->a);
    channel_end_close(&p->b);
    free(p);
    return world_stop(&w);
}

/* --- a peer in a process of its own ------------------------------------------------------------- */

struct harness_process *channel_peer_start(const struct channel_pair *p, const char *role, size_t number)
{
    char address[TARN_CHANNEL_ADDRESS_MAX], text[24], name[40];
    static unsigned started;
    assert_int_equal(tarn_channel_address(p->b.client, address, NULL), 0);
    snprintf(text, sizeof(text), "%zu", number);
    snprintf(name, sizeof(name), "peer%u", ++started);
    const char *const argv[] = {
        "/proc/self/exe", "peer", p->w->redis->url, p->transports, address, role, text, NULL};
    struct harness_process *peer = harness_spawn(p->w->h, name, argv);
    if (!harness_wait_line(peer, "ready", HARNESS_TIMEOUT_MS))
        fail_msg("the peer has ended: %s", harness_log(peer));
    return peer;
}

bool channel_peer_is(int argc, char **argv, struct channel_end *e)
{
    if (argc != 7 || strcmp(argv[1], "peer"))
        return false;
    channel_end_open(argv[2], argv[3], NULL, e);
    if (tarn_channel_connect(e->client, argv[4], NULL, 0, 0, &e->channel)) {
        fprintf(stderr, "connect: %s\n", tarn_last_error());
        exit(255);
    }
    return true;
}

/* --- messages ----------------------------------------------------------------------------------- */

static struct tarn_channel_options options(uint32_t timeout_ms)
{
    return (struct tarn_channel_options){.size = sizeof(struct tarn_channel_options),
                                         .timeout_ms = timeout_ms};
}

int channel_send(const struct channel_end *e, uint64_t tag, void *addr, uint64_t bytes, uint32_t timeout_ms)
{
    const struct tarn_piece piece = {.addr = addr, .bytes = bytes};
    const struct tarn_channel_options o = options(timeout_ms);
    return tarn_send(e->channel, tag, &piece, 1, &o);
}

int channel_recv(const struct channel_end *e, uint64_t tag, void *addr, uint64_t bytes, uint32_t timeout_ms,
                 uint64_t *bytes_p)
{
    const struct tarn_piece piece = {.addr = addr, .bytes = bytes};
    const struct tarn_channel_options o = options(timeout_ms);
    return tarn_recv(e->channel, tag, &piece, 1, &o, bytes_p);
}

tarn_op channel_submit_send(const struct channel_end *e, uint64_t tag, const struct tarn_piece *piece,
                            uint32_t timeout_ms)
{
    const struct tarn_channel_options o = options(timeout_ms);
    tarn_op op;
    if (tarn_submit_send(e->channel, tag, piece, 1, &o, tag, &op))
        fail_msg("submit: %s", tarn_last_error());
    return op;
}

tarn_op channel_submit_recv(const struct channel_end *e, uint64_t tag, const struct tarn_piece *piece,
                            uint32_t timeout_ms, uint64_t *bytes_p)
{
    const struct tarn_channel_options o = options(timeout_ms);
    tarn_op op;
    if (tarn_submit_recv(e->channel, tag, piece, 1, &o, bytes_p, tag, &op))
        fail_msg("submit: %s", tarn_last_error());
    return op;
}

int channel_done(const struct channel_end *e, tarn_op op)
{
    struct tarn_completion done;
    if (tarn_wait(e->client, op, 60000, &done))
        fail_msg("wait: %s", tarn_last_error());
    snprintf(last_error, sizeof(last_error), "%s", done.error);
    return done.status;
}

const char *channel_error(void)
{
    return last_error;
}

unsigned channel_info(const struct channel_end *e, const char *name)
{
    char path[TARN_CHANNEL_ADDRESS_MAX], at[TARN_CHANNEL_ADDRESS_MAX + 8], line[64];
    unsigned value = UINT32_MAX;
    assert_int_equal(tarn_channel_address(e->client, NULL, path), 0);
    snprintf(at, sizeof(at), "unix:%s", path);
    redisReply *reply = harness_call(at, "INFO", NULL);
    snprintf(line, sizeof(line), "\n%s:", name);
    const char *found = reply->str ? strstr(reply->str, line) : NULL;
    if (found)
        value = (unsigned)strtoul(found + strlen(line), NULL, 10);
    freeReplyObject(reply);
    return value;
}

/* --- bytes -------------------------------------------------------------------------------------- */

static unsigned char byte_at(size_t i, unsigned seed)
{
    return (unsigned char)(i * 7 + i / 251 + seed * 31 + seed / 256);
}

void channel_fill(unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = byte_at(i, seed);
}

bool channel_filled(const unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte_at(i, seed))
            return false;
    return true;
}
