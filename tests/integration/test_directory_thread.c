/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory thread and direct publishes on a real Redis: which publishes the control thread sends itself,
 * which go to the directory thread, and that both together keep one order.
 */
#include "tests/integration/directory_thread_rig.h"

#include <signal.h>
#include <time.h>

#define ROUNDS 400

static void test_after_the_first_publishes_go_directly(void **state)
{
    struct rig g;
    rig_start(&g, *state, 5000);
    assert_int_equal(publish_one(&g, "a", TARN_PUBLISH_ABSENT, 1), 0);
    assert_int_equal(direct(&g), 0);
    warm_up(&g);
    uint64_t before = direct(&g);
    assert_int_equal(publish_one(&g, "b", TARN_PUBLISH_ABSENT, 2), 0);
    assert_int_equal(publish_one(&g, "c", TARN_PUBLISH_ABSENT, 3), 0);
    assert_int_equal(direct(&g), before + 2);
    assert_int_equal(look(g.f->d, "b").record.version, 2);
    assert_int_equal(look(g.f->d, "c").record.locations[0].gen, 6);
    rig_stop(&g);
}

/* The directory thread decides about a record in the way: a live copy stays, a dead one is replaced. */
static void test_a_record_in_the_way(void **state)
{
    struct rig g;
    rig_start(&g, *state, 5000);
    warm_up(&g);
    uint64_t before = direct(&g);
    g.gen[10] = 20;
    assert_int_equal(publish_one(&g, "taken", TARN_PUBLISH_ABSENT, 10), 0);
    assert_int_equal(direct(&g), before + 1);
    assert_int_equal(publish_one(&g, "taken", TARN_PUBLISH_ABSENT, 11), TARN_E_EXISTS);
    assert_int_equal(look(g.f->d, "taken").record.version, 10);
    g.gen[10] = 22;
    assert_int_equal(publish_one(&g, "taken", TARN_PUBLISH_ABSENT, 12), 0);
    assert_int_equal(look(g.f->d, "taken").record.version, 12);
    assert_int_equal(direct(&g), before + 1);
    assert_int_equal(publish_one(&g, "free", TARN_PUBLISH_ABSENT, 13), 0);
    assert_int_equal(direct(&g), before + 2);
    rig_stop(&g);
}

static void test_redis_forgets_the_script(void **state)
{
    struct rig g;
    rig_start(&g, *state, 5000);
    warm_up(&g);
    uint64_t before = direct(&g);
    command(g.f, "SCRIPT", "FLUSH");
    assert_int_equal(publish_one(&g, "a", TARN_PUBLISH_ABSENT, 1), 0);
    assert_int_equal(direct(&g), before);
    assert_int_equal(publish_one(&g, "b", TARN_PUBLISH_ABSENT, 2), 0);
    assert_int_equal(direct(&g), before + 1);
    assert_int_equal(look(g.f->d, "a").record.version, 1);
    rig_stop(&g);
}

static void test_redis_ends_the_connection(void **state)
{
    struct rig g;
    rig_start(&g, *state, 5000);
    warm_up(&g);
    command(g.f, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    assert_int_equal(publish_one(&g, "a", TARN_PUBLISH_ABSENT, 1), 0);
    assert_int_equal(look(g.f->d, "a").record.version, 1);
    warm_up(&g);
    rig_stop(&g);
}

static void resume_redis(void *arg)
{
    harness_signal(((struct rig *)arg)->f->redis, SIGCONT);
}

/* A publish that Redis does not answer in time fails, and does not run when Redis resumes. The directory
 * thread asks for a sweep. */
static void test_redis_keeps_silent(void **state)
{
    struct rig g;
    rig_start(&g, *state, 200);
    warm_up(&g);
    tarn_directory_thread_doubts(g.dt);
    harness_signal(g.f->redis, SIGSTOP);
    assert_int_equal(publish_one(&g, "k", TARN_PUBLISH_REPLACE, 1), TARN_E_TIMEOUT);
    assert_true(tarn_directory_thread_doubts(g.dt));
    harness_signal(g.f->redis, SIGCONT);
    assert_int_equal(publish_one(&g, "k", TARN_PUBLISH_REPLACE, 2), 0);
    warm_up(&g);
    assert_int_equal(look(g.f->d, "k").record.version, 2);
    rig_stop(&g);
}

/* A publish that was sent cannot be canceled: it ends with its answer. */
static void test_a_sent_publish_cannot_be_canceled(void **state)
{
    struct rig g;
    struct asked a;
    struct tarn_watch *soon_after;
    rig_start(&g, *state, 5000);
    warm_up(&g);
    harness_signal(g.f->redis, SIGSTOP);
    submit(&g, &a, "a", TARN_PUBLISH_ABSENT, 1);
    assert_false(tarn_directory_thread_cancel(g.dt, &a.request));
    assert_int_equal(tarn_timer_new(g.loop, 100, resume_redis, &g, &soon_after), 0);
    tarn_loop_run(g.loop);
    assert_true(a.done);
    assert_int_equal(a.publish.status, 0);
    tarn_watch_free(soon_after);
    rig_stop(&g);
}

/* A publish that timed out is not run again when the connection is lost. Its outcome is unknown. */
static void test_an_abandoned_request_is_not_run_again(void **state)
{
    struct rig g;
    struct asked a;
    rig_start(&g, *state, 200);
    warm_up(&g);
    tarn_directory_thread_doubts(g.dt);
    harness_signal(g.f->redis, SIGSTOP);
    submit(&g, &a, "a", TARN_PUBLISH_ABSENT, 1);
    assert_false(tarn_directory_thread_cancel(g.dt, &a.request));
    tarn_loop_run(g.loop);
    harness_signal(g.f->redis, SIGCONT);
    assert_true(a.done);
    assert_int_equal(a.request.failure.code, TARN_E_TIMEOUT);
    assert_true(tarn_directory_thread_doubts(g.dt));
    rig_stop(&g);
}

static int given_back;

static void count_given_back(struct tarn_request *r)
{
    given_back += r->failure.code != 0;
}

static void test_the_end_answers_every_request(void **state)
{
    struct rig g;
    struct asked a, b;
    struct tarn_withdraw w = {.key = key_of("k"), .location = location("n1", 4096, 2)};
    struct tarn_request withdraws[2];
    given_back = 0;
    for (int i = 0; i < 2; i++)
        withdraws[i] = (struct tarn_request){
            .kind = TARN_REQUEST_WITHDRAW, .done = count_given_back, .n = 1, .withdraws = &w};
    rig_start(&g, *state, 500);
    warm_up(&g);
    harness_signal(g.f->redis, SIGSTOP);
    submit(&g, &a, "a", TARN_PUBLISH_ABSENT, 1);
    submit(&g, &b, "b", TARN_PUBLISH_ABSENT, 2);
    for (int i = 0; i < 2; i++) /* the directory thread is busy with the first */
        tarn_directory_thread_submit(g.dt, &withdraws[i]);
    rig_stop(&g);
    harness_signal(g.f->redis, SIGCONT);
    assert_int_equal(given_back, 2);
    assert_true(a.done && b.done);
    assert_int_equal(a.request.failure.code, TARN_E_CANCELED);
    assert_int_equal(b.publish.status, TARN_E_CANCELED);
}

/*
 * Bursts of replaces of one key, while Redis forgets the script and closes connections. Whichever side runs
 * them, the last one completed is the one in the directory.
 */
static void test_both_sides_keep_one_order(void **state)
{
    struct rig g;
    struct asked burst[6];
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    rig_start(&g, *state, 5000);
    for (int round = 0; round < ROUNDS; round++) {
        int n = 1 + rand() % 6, trouble = rand() % 8;
        if (round % 40 == 0)
            warm_up(&g);
        for (int i = 0; i < n; i++) {
            submit_next(&g, &burst[i]);
            if (trouble == 0 && i == n / 2)
                command(g.f, "SCRIPT", "FLUSH");
            if (trouble == 1 && i == n / 2)
                command(g.f, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
        }
        g.more = rand() % 8;
        tarn_loop_run(g.loop);
        assert_int_equal(look(g.f->d, "k").record.version, g.last_done);
    }
    rig_stop(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_after_the_first_publishes_go_directly, empty),
        cmocka_unit_test_setup(test_a_record_in_the_way, empty),
        cmocka_unit_test_setup(test_redis_forgets_the_script, empty),
        cmocka_unit_test_setup(test_redis_ends_the_connection, empty),
        cmocka_unit_test_setup(test_redis_keeps_silent, empty),
        cmocka_unit_test_setup(test_a_sent_publish_cannot_be_canceled, empty),
        cmocka_unit_test_setup(test_an_abandoned_request_is_not_run_again, empty),
        cmocka_unit_test_setup(test_the_end_answers_every_request, empty),
        cmocka_unit_test_setup(test_both_sides_keep_one_order, empty),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
