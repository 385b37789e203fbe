/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by tests of this rule: a key has one value. Once a put has replaced it or a remove has removed it,
 * no read that begins later returns it, whatever process stops, pauses, dies or is cut off. Every test runs
 * over shm and over tcp, in a world of three nodes whose records live 600 ms.
 */
#ifndef TARN_TESTS_ONE_VALUE_H
#define TARN_TESTS_ONE_VALUE_H

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/node_client.h"
#include "tests/router.h"
#include "tests/world.h"

#define BYTES 4096
#define HEARTBEAT_MS (200 * harness_slower())
#define TTL_MS (3 * HEARTBEAT_MS)
#define WATCH_MS 1500 /* how long the test checks that the old value does not come back */

static const struct world_plan plan = {
    .nodes = 3, .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "200", "--scrub-s", "600"}};

static const char *transport; /* of this run of the tests */

static inline int start(void **state)
{
    router_no_unix(false); /* a failed test may have left it on */
    return world_start(state, &plan);
}

static inline struct tarn_client *open_client(const struct world *w)
{
    return world_client(w, transport);
}

static inline int put_on(struct tarn_client *c, const char *node, char byte, uint32_t timeout_ms)
{
    const struct tarn_put_options o = {
        .size = sizeof(o), .flags = TARN_PUT_REPLACE, .place = node, .timeout_ms = timeout_ms};
    return client_put(c, "k", byte, BYTES, &o);
}

static inline int remove_k(struct tarn_client *c, uint32_t timeout_ms)
{
    const struct tarn_key k = key_of("k");
    return tarn_remove(c, &k, 1, NULL, timeout_ms);
}

/* The byte that the client reads, or 0 for a miss or a failure. */
static inline char seen(struct tarn_client *c)
{
    char byte = 0;
    return client_read(c, "k", BYTES, 300, &byte) == 0 ? byte : 0;
}

/* Opens a reader that has k cached from node1. */
static inline struct tarn_client *reader_of_node1(const struct world *w, struct tarn_client *writer)
{
    struct tarn_client *reader = open_client(w);
    if (put_on(writer, "node1", 'a', 0))
        fail_msg("put: %s", tarn_last_error());
    assert_int_equal(client_get(reader, "k", 'a', BYTES), 0);
    return reader;
}

/* Checks that from now on neither the reader nor a new client reads `old`. */
static inline void never(const struct world *w, struct tarn_client *reader, char old)
{
    struct tarn_client *fresh = open_client(w);
    for (uint64_t end = harness_now_ms() + WATCH_MS; harness_now_ms() < end; harness_pause()) {
        assert_int_not_equal(seen(reader), old);
        assert_int_not_equal(seen(fresh), old);
    }
    tarn_close(fresh);
}

static inline void stop_node(const struct world *w, int i)
{
    harness_signal(w->nodes[i]->process, SIGSTOP);
}

static inline void go_on(const struct world *w, int i)
{
    harness_signal(w->nodes[i]->process, SIGCONT);
}

#define CASE(test_) cmocka_unit_test_setup_teardown(test_, start, world_stop)

#endif
