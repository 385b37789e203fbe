/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key has one value (one_value.h) when the directory loses it, and when its writer dies, fails, or does not
 * reach the node that holds the old value.
 */
#include "tests/faults/one_value.h"

/* --- the writer is cut off from the holder ------------------------------------------------------ */

struct cut {
    struct router *router;
    struct relay *relay;
};

/* Opens a client whose connection to node1 can be cut. Other connections are not affected. */
static struct tarn_client *open_cut(const struct world *w, struct cut *cut)
{
    cut->router = router_start(1);
    cut->relay = router_add(cut->router, "127.0.0.1:0", w->nodes[1]->control);
    router_route(w->nodes[1]->control, relay_address(cut->relay));
    router_no_unix(true);
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(client_get(c, "k", 'a', BYTES), 0);
    relay_set(cut->relay, &(struct relay_state){.cut = RELAY_BOTH});
    return c;
}

static void heal(const struct world *w, struct cut *cut)
{
    relay_set(cut->relay, NULL);
    router_no_unix(false);
    router_route(w->nodes[1]->control, w->nodes[1]->control);
}

static void replaced_by_a_writer_that_does_not_reach_the_node(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = open_client(w), *reader = reader_of_node1(w, other);
    struct cut cut;
    struct tarn_client *writer = open_cut(w, &cut);
    if (put_on(writer, "node0", 'b', 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    heal(w, &cut);
    never(w, reader, 'a');
    tarn_close(writer);
    tarn_close(reader);
    tarn_close(other);
    router_stop(cut.router);
    harness_passed(w->h);
}

static void removed_by_a_writer_that_does_not_reach_the_node(void **state)
{
    struct world *w = *state;
    struct tarn_client *other = open_client(w), *reader = reader_of_node1(w, other);
    struct cut cut;
    struct tarn_client *writer = open_cut(w, &cut);
    if (remove_k(writer, 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    heal(w, &cut);
    never(w, reader, 'a');
    tarn_close(writer);
    tarn_close(reader);
    tarn_close(other);
    router_stop(cut.router);
    harness_passed(w->h);
}

/* --- the directory is lost ---------------------------------------------------------------------- */

static void flush(const struct world *w)
{
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
}

static void removed_from_an_empty_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    flush(w);
    if (remove_k(writer, 0))
        fail_msg("%s", tarn_last_error());
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* A client that has never seen the key gets NOT_FOUND only if that is final: the node may be too late to
 * publish the key again. */
static void removed_from_an_empty_directory_by_a_new_client(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer),
                       *stranger = open_client(w);
    flush(w);
    int rc = remove_k(stranger, 0);
    assert_true(rc == 0 || rc == TARN_E_DIRECTORY || rc == TARN_E_NOT_FOUND);
    if (rc != TARN_E_DIRECTORY)
        never(w, reader, 'a');
    tarn_close(stranger);
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* The node with the old value is stopped while the directory is lost. If the put returns 0, that must stay
 * true. */
static void replaced_in_an_empty_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    stop_node(w, 1);
    flush(w);
    int rc = put_on(writer, "node0", 'b', 0);
    if (rc && rc != TARN_E_DIRECTORY && rc != TARN_E_IN_DOUBT)
        fail_msg("%d: %s", rc, tarn_last_error());
    go_on(w, 1);
    if (!rc)
        never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

static void a_short_deadline_after_a_loss_fails_with_directory(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    flush(w);
    /* Until a node has noticed the loss, a remove may return 0 only if it succeeded. */
    HARNESS_UNTIL(world_lists(w, "node0"), 3000);
    int rc = remove_k(writer, TTL_MS / 4);
    if (rc && rc != TARN_E_DIRECTORY && rc != TARN_E_TIMEOUT && rc != TARN_E_NODE_DOWN)
        fail_msg("%d: %s", rc, tarn_last_error());
    if (rc == TARN_E_DIRECTORY)
        assert_true(strstr(tarn_last_error(), "director") || strstr(tarn_last_error(), "Redis"));
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* --- writers that die or fail ------------------------------------------------------------------- */

/* The writer dies between the COMMITs of its two copies. Soon all readers agree. */
static void writer_dies_between_its_copies(void **state)
{
    struct world *w = *state;
    struct tarn_client *writer = open_client(w), *reader = reader_of_node1(w, writer);
    struct node_client raw = node_connect(w->nodes[0]->control);
    assert_string_equal(node_put(&raw, "replace", "k", BYTES), "");
    node_close(&raw);
    HARNESS_UNTIL(node_pool_figure(w->nodes[1]->control, "objects") == 0, 2 * HEARTBEAT_MS + 2000);
    never(w, reader, 'a');
    tarn_close(reader);
    tarn_close(writer);
    harness_passed(w->h);
}

/* Replaces the key with two copies while one of three nodes is killed or stopped at the commit. */
static void replace_without(struct world *w, int victim, bool killed)
{
    const struct tarn_put_options o = {.size = sizeof(o), .flags = TARN_PUT_REPLACE, .replicas = 2};
    struct tarn_client *writer = open_client(w);
    char old = (char)('a' + 2 * victim), bytes[BYTES];
    struct tarn_piece piece = {.addr = bytes, .bytes = BYTES};
    struct tarn_item item = {.key = key_of("k"), .tensor = tarn_bytes(BYTES)};
    struct tarn_put_session *s;
    if (client_put(writer, "k", old, BYTES, &o))
        fail_msg("%s", tarn_last_error());
    assert_int_equal(tarn_put_begin(writer, &item, 1, &o, &s), 0);
    memset(bytes, old + 1, BYTES);
    assert_int_equal(tarn_put_write(s, 0, 0, &piece, 1, 0), 0);
    if (killed)
        harness_kill(w->nodes[victim]->process);
    else
        stop_node(w, victim);
    int rc = tarn_put_commit(s, NULL, 2000);
    struct tarn_client *fresh = open_client(w);
    char byte = 0, id[16];
    HARNESS_UNTIL(client_read(fresh, "k", BYTES, 1000, &byte) == 0, TTL_MS + 3000);
    assert_true(byte == old + 1 || (rc && byte == old));
    tarn_close(fresh);
    tarn_close(writer);
    snprintf(id, sizeof(id), "node%d", victim);
    if (killed)
        w->nodes[victim] = world_node(w, id);
    else
        go_on(w, victim);
}

/* A replace with two copies fails on one of its nodes. The key keeps its old or gets its new value. */
static void failed_replace_keeps_the_key(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 6; i++)
        replace_without(w, i % 3, i < 3);
    harness_passed(w->h);
}

/* ------------------------------------------------------------------------------------------------ */

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(removed_from_an_empty_directory),
        CASE(removed_from_an_empty_directory_by_a_new_client),
        CASE(replaced_in_an_empty_directory),
        CASE(a_short_deadline_after_a_loss_fails_with_directory),
        CASE(writer_dies_between_its_copies),
        CASE(failed_replace_keeps_the_key),
        CASE(replaced_by_a_writer_that_does_not_reach_the_node),
        CASE(removed_by_a_writer_that_does_not_reach_the_node),
    };
    transport = "shm";
    int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
    transport = "tcp";
    return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
