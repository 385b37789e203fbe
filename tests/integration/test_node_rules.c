/* SPDX-License-Identifier: Apache-2.0 */
/* A real tarnd gets commands that a client of this library would not send, or not at that moment. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "transport/transport.h"

/* --- COMMIT ------------------------------------------------------------------------------------- */

enum { ITEMS_MAX = 4096 };

/* Sends COMMIT with the same reservation n times. */
static redisReply *commit_times(struct node_client *c, const struct node_grant *g, size_t n)
{
    struct tarn_command *commit = tarn_resp_command(c->resp, "COMMIT", node_deadline(c, 10000), "put", NULL);
    redisReply *reply;
    for (size_t i = 0; i < n; i++)
        tarn_command_strs(commit, g->pool, g->slot, g->gen, NULL);
    assert_int_equal(tarn_resp_call(c->resp, tarn_deadline(HARNESS_TIMEOUT_MS), commit, &reply), 0);
    return reply;
}

/* A COMMIT with one item too many is refused as a whole, and changes nothing. */
static void a_commit_has_a_limited_number_of_items(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g = node_reserve(&c, "absent", "k", 100);
    assert_error(commit_times(&c, &g, ITEMS_MAX + 1), "INVALID");
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    assert_false(directory_has(w->redis, "k"));
    redisReply *r = commit_times(&c, &g, ITEMS_MAX);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, ITEMS_MAX);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ARRAY);
    assert_prefix(r->element[1]->str, "STALE");
    assert_prefix(r->element[ITEMS_MAX - 1]->str, "STALE");
    freeReplyObject(r);
    assert_true(directory_has(w->redis, "k"));
    node_close(&c);
    harness_passed(w->h);
}

/* A COMMIT that the node reads after its deadline does nothing: the client has reported the put as failed. */
static void a_commit_after_its_deadline_does_nothing(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct node_grant g = node_reserve(&c, "absent", "k", 100);
    assert_error(harness_command(c.resp, "COMMIT", "1", "put", g.pool, g.slot, g.gen, NULL), "TIMEOUT");
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    assert_false(directory_has(w->redis, "k"));
    node_close(&c);
    harness_passed(w->h);
}

/* --- sessions ----------------------------------------------------------------------------------- */

/* The session's hazard page: the last descriptor in the answer to ATTACH. */
static struct tarn_hazard_page *attach(struct tarn_resp *r)
{
    int fds[TARN_RESP_FDS_MAX];
    redisReply *reply = harness_command(r, "ATTACH", "shm", "r", NULL);
    assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    int n = tarn_resp_take_fds(r, fds, TARN_RESP_FDS_MAX);
    assert_true(n >= 4);
    void *page =
        mmap(NULL, sizeof(struct tarn_hazard_page), PROT_READ | PROT_WRITE, MAP_SHARED, fds[n - 1], 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    assert_int_equal(ftruncate(fds[n - 1], 0), -1); /* sealed: no client can shrink it under the node */
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return page;
}

/* A client that has lost its connections keeps its views, as long as it lives. */
static void a_viewed_object_outlives_its_viewers_connections(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    struct tarn_resp *viewer = node_join(w->node->local, "5");
    struct tarn_hazard_page *page = attach(viewer);
    node_must_put(&c, "absent", "viewed", 100);
    const char *location = directory_field(w->redis, "viewed", "@node0/cpu0");
    unsigned slot;
    assert_int_equal(sscanf(location, "%*u:%u:", &slot), 1);
    atomic_store(&page->entry[0], slot + 1);
    atomic_store(&page->used, 1);
    tarn_resp_free(viewer);
    HARNESS_UNTIL(node_figure(w->node->control, "sessions_lingering") == 1, 5000);
    freeReplyObject(harness_command(c.resp, "DELETE", "viewed", NULL));
    uint64_t end = harness_now_ms() + 500; /* time for several ticks that check the page */
    while (harness_now_ms() < end) {
        assert_int_equal(node_pool_figure(w->node->control, "limbo"), 1);
        harness_pause();
    }
    atomic_store(&page->entry[0], 0);
    HARNESS_UNTIL(node_pool_figure(w->node->control, "limbo") == 0, 5000);
    munmap(page, sizeof(*page));
    node_close(&c);
    harness_passed(w->h);
}

/* --- times -------------------------------------------------------------------------------------- */

/* Every command treats an expired object as absent, even between two ticks. */
static void an_expired_object_counts_as_absent(void **state)
{
    struct node_world *w = *state;
    struct node_client c = node_connect(w->node->control);
    for (int i = 0; i < 20; i++) {
        redisReply *r = harness_command(c.resp, "RESERVE", "*", "absent", "5", "15", "0", "", "k", "10", "u8",
                                        "10", NULL);
        assert_int_equal(r->type, REDIS_REPLY_ARRAY);
        assert_int_equal(r->element[0]->type, REDIS_REPLY_ARRAY);
        struct node_grant g = {0};
        snprintf(g.pool, sizeof(g.pool), "%lld", r->element[0]->element[0]->integer);
        snprintf(g.slot, sizeof(g.slot), "%lld", r->element[0]->element[2]->integer);
        snprintf(g.gen, sizeof(g.gen), "%s", r->element[0]->element[3]->str);
        freeReplyObject(r);
        r = node_commit(&c, &g, "5000");
        if (r->type != REDIS_REPLY_ARRAY)
            fail_msg("COMMIT: %s", r->str);
        freeReplyObject(r);
        uint64_t over = tarn_deadline(16);
        while (tarn_now_ns() < over)
            continue;
        r = harness_command(c.resp, "TOUCH", "k", NULL);
        assert_int_equal(r->element[0]->integer, 0);
        freeReplyObject(r);
    }
    node_close(&c);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_NODE(a_commit_has_a_limited_number_of_items),
        WITH_NODE(a_commit_after_its_deadline_does_nothing),
        WITH_NODE(a_viewed_object_outlives_its_viewers_connections),
        WITH_NODE(an_expired_object_counts_as_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
