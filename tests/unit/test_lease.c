/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of leases (client/read_lease.h), with times set by the test: no test waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/read_lease.h"

#define MS TARN_NS_PER_MS
#define EPOCH 0x12345678u
#define BEAT 1000u /* ms */
#define TTL (3 * BEAT)
#define T0 (1000 * TARN_NS_PER_S) /* this client's clock */
#define R0 (5000000ull)           /* Redis's, in ms, at T0 */
#define MARGIN (TTL / 100 * MS)
#define SOON (70 * MS) /* more than a few ticks and a rounding */

static uint64_t at(uint64_t ms)
{
    return T0 + ms * MS;
}

/* An immediate answer at `asked` (ms after T0) for a node whose last beat was at `beat` (ms after T0). */
static void listed(struct tarn_read_lease *l, uint64_t asked, uint64_t beat)
{
    const struct tarn_read_lease_answer a = {.epoch = 0xabcd00000000ull | EPOCH,
                                             .left_ms = beat + TTL - asked};
    const struct tarn_directory_state p = {.now_ms = R0 + asked, .beat_ms = R0 + beat, .heartbeat_ms = BEAT};
    assert_false(tarn_read_lease_answered(l, EPOCH, &a, &p, at(asked), at(asked)));
}

static const struct tarn_read_lease_answer no_record;

static struct tarn_directory_state pulse(uint64_t now, uint64_t beat, uint64_t silent, uint64_t resumed)
{
    return (struct tarn_directory_state){.now_ms = R0 + now,
                                         .beat_ms = R0 + beat,
                                         .silent_ms = silent ? R0 + silent : 0,
                                         .resumed_ms = resumed ? R0 + resumed : 0,
                                         .heartbeat_ms = BEAT};
}

static void not_there(struct tarn_read_lease *l, uint64_t asked, struct tarn_directory_state p)
{
    assert_false(tarn_read_lease_answered(l, EPOCH, &no_record, &p, at(asked), at(asked)));
}

/* Redis does not answer. Its last answer was the last one about this lease. */
static enum tarn_read_lease_word unanswered(struct tarn_read_lease *l, uint64_t now_ns)
{
    return tarn_read_lease_unanswered(l, l->sent_ns, now_ns);
}

static void nothing_is_read_before_an_answer(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    assert_false(tarn_read_lease_runs(&l, at(0)));
    assert_false(tarn_read_lease_read(&l, at(0)));
    assert_false(l.used);
}

static void a_lease_ends_before_the_record(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    assert_true(tarn_read_lease_read(&l, at(0)));
    assert_true(l.used);
    assert_true(tarn_read_lease_runs(&l, at(TTL) - MARGIN - SOON));
    assert_false(tarn_read_lease_runs(&l, at(TTL) - MARGIN));
    assert_false(tarn_read_lease_runs(&l, at(TTL)));
    assert_false(tarn_read_lease_runs(&l, UINT64_MAX));
}

/* The answer may come late. The lease counts from the time of the question: the record had at least that long
 * to live then. */
static void a_lease_counts_from_before_the_question(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_read_lease_answer a = {.epoch = EPOCH, .left_ms = TTL};
    const struct tarn_directory_state none = {.now_ms = 0};
    tarn_read_lease_answered(&l, EPOCH, &a, &none, at(0), at(2000));
    assert_true(tarn_read_lease_runs(&l, at(2000)));
    assert_false(tarn_read_lease_runs(&l, at(TTL)));
}

static void a_renewal_moves_the_end(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    assert_true(l.due_ns <= at(TTL - BEAT) && l.due_ns > at(0));
    listed(&l, 1500, 1000);
    assert_true(tarn_read_lease_runs(&l, at(1000 + TTL) - MARGIN - SOON));
    assert_false(tarn_read_lease_runs(&l, at(1000 + TTL)));
}

/* The node no longer beats. Answers do not move the end, and the client does not ask too often. */
static void a_silent_nodes_lease_ends(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    int asked = 0;
    for (uint64_t now = 0; now < TTL; now = (l.due_ns - T0) / MS + 1, asked++) {
        listed(&l, now, 0);
        assert_false(tarn_read_lease_runs(&l, at(TTL)));
    }
    assert_true(asked < 10);
    not_there(&l, TTL, pulse(TTL, TTL - 100, 0, 0));
    assert_true(l.gone);
    assert_false(tarn_read_lease_runs(&l, at(TTL)));
    assert_int_equal(unanswered(&l, at(TTL)), TARN_READ_LEASE_GONE); /* the end is final */
}

/* Someone deleted the record: it does not count as expired before its time. */
static void a_missing_record_does_not_cut_a_lease(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    not_there(&l, 1000, pulse(1000, 900, 0, 0));
    assert_false(l.gone);
    assert_true(tarn_read_lease_runs(&l, at(2000)));
    assert_false(tarn_read_lease_runs(&l, at(TTL)));
}

static void another_incarnation_ends_a_lease(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_read_lease_answer other = {.epoch = EPOCH + 1, .left_ms = TTL};
    const struct tarn_directory_state p = pulse(1000, 900, 0, 0);
    listed(&l, 0, 0);
    assert_true(tarn_read_lease_answered(&l, EPOCH, &other, &p, at(1000), at(1000)));
    assert_false(tarn_read_lease_runs(&l, at(1000)));
    assert_true(l.gone);
}

static void a_returning_node_is_not_read(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_read_lease_answer returning = {.epoch = EPOCH, .left_ms = TTL, .returning = true};
    const struct tarn_directory_state p = pulse(5000, 4900, 0, 0);
    listed(&l, 0, 0);
    tarn_read_lease_answered(&l, EPOCH, &returning, &p, at(5000), at(5000));
    assert_true(l.gone);
    assert_false(tarn_read_lease_runs(&l, at(5000)));
    listed(&l, 6000, 6000); /* the node has compared its copies */
    assert_false(l.gone);
    assert_true(tarn_read_lease_runs(&l, at(6000)));
    tarn_read_lease_answered(&l, EPOCH, &returning, &p, at(6500),
                             at(6500)); /* counts as dead again, then Redis goes away */
    assert_int_equal(unanswered(&l, at(7000)), TARN_READ_LEASE_GONE);
}

static void a_late_answer_does_not_override_a_newer_one(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_read_lease_answer other = {.epoch = EPOCH + 1, .left_ms = TTL};
    const struct tarn_directory_state p = pulse(1000, 900, 0, 0);
    tarn_read_lease_answered(&l, EPOCH, &other, &p, at(1000), at(1000));
    listed(&l, 900, 0);
    assert_false(tarn_read_lease_runs(&l, at(1000)));
}

/* --- Redis does not answer ---------------------------------------------------------------------- */

static void serve_reads_on_until_redis_answers(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    for (uint64_t now = TTL; now < 20000; now += 250) {
        assert_int_equal(unanswered(&l, at(now)), TARN_READ_LEASE_RUNS);
        assert_true(tarn_read_lease_runs(&l, at(now + 249)));
        assert_false(tarn_read_lease_runs(&l, at(now + 251))); /* each time for a moment only */
    }
    not_there(&l, 20000, pulse(20000, 19500, 0, 0));
    assert_false(tarn_read_lease_runs(&l, at(20000)));
    assert_true(l.gone);
}

/* Redis still answered after the lease had ended, and did not renew it. Then Redis went away. */
static void a_lease_that_ended_while_redis_answered_is_gone(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL), at(TTL + 100)), TARN_READ_LEASE_GONE);
    assert_true(l.gone);
    assert_false(tarn_read_lease_runs(&l, at(TTL + 100)));
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL), at(TTL + 400)), TARN_READ_LEASE_GONE);
    listed(&l, 9000, 9000); /* until Redis says otherwise */
    assert_false(l.gone);
    assert_true(tarn_read_lease_runs(&l, at(9000)));
}

static void a_lease_that_ran_at_the_last_answer_is_read_on(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL) - MARGIN - SOON, at(TTL)), TARN_READ_LEASE_RUNS);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL) - MARGIN - SOON, at(TTL + 9000)),
                     TARN_READ_LEASE_RUNS);
}

/* Continuing to read does not count as an answer from Redis. */
static void reading_on_does_not_count_as_an_answer(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(0), at(TTL)), TARN_READ_LEASE_RUNS);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL + 100), at(TTL + 300)), TARN_READ_LEASE_GONE);
}

/* The client asked nothing for minutes, or was stopped that long, and finds Redis away. Redis may be away for
 * all, so the client reads on. */
static void an_idle_client_reads_on(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);
    for (uint64_t now = 600000; now < 602000; now += 250)
        assert_int_equal(tarn_read_lease_unanswered(&l, at(0), at(now)), TARN_READ_LEASE_RUNS);
}

/* Either the record had nearly expired at Redis's last answer, or no lease was ever granted. */
static void without_a_lease_nothing_is_read_on(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false}, other = {.gone = false};
    listed(&l, TTL - 5, 0);
    assert_int_equal(tarn_read_lease_unanswered(&l, at(TTL - 5), at(TTL)), TARN_READ_LEASE_GONE);
    assert_int_equal(tarn_read_lease_unanswered(&other, 0, at(0)), TARN_READ_LEASE_GONE);
}

static void refuse_does_not_read_on_without_redis(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_read_lease_answer a = {.epoch = EPOCH, .left_ms = TTL, .refuses = true};
    const struct tarn_directory_state p = pulse(0, 0, 0, 0);
    tarn_read_lease_answered(&l, EPOCH, &a, &p, at(0), at(0));
    assert_true(tarn_read_lease_runs(&l, at(1000)));
    assert_int_equal(unanswered(&l, at(TTL)), TARN_READ_LEASE_REFUSED);
    assert_false(tarn_read_lease_runs(&l, at(TTL)));
}

static void after_a_silence_of_all_a_node_is_read_on_for_a_moment(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 900, 900);
    unanswered(&l, at(4000));
    /* All nodes were silent from 1000 on. The first beats again at 9000. */
    not_there(&l, 9100, pulse(9100, 9000, 1000, 9000));
    assert_false(l.gone);
    assert_true(tarn_read_lease_runs(&l, at(9000 + 2 * BEAT) - MARGIN - SOON));
    assert_false(tarn_read_lease_runs(&l, at(9000 + 2 * BEAT)));
    not_there(&l, 9000 + 2 * BEAT, pulse(9000 + 2 * BEAT, 10900, 1000, 9000));
    assert_true(l.gone);
}

/* Redis was back for a moment, but no node has beaten yet. */
static void a_node_is_read_on_when_redis_is_away_twice(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 900, 900);
    assert_int_equal(unanswered(&l, at(4000)), TARN_READ_LEASE_RUNS);
    not_there(&l, 9000, pulse(9000, 1000, 0, 0));
    for (uint64_t now = 9100; now < 15000; now += 250)
        assert_int_equal(tarn_read_lease_unanswered(&l, at(9000), at(now)), TARN_READ_LEASE_RUNS);
}

/* Redis answers this client before any node has beaten. */
static void a_continuing_silence_counts(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 900, 900);
    unanswered(&l, at(4000));
    not_there(&l, 9000, pulse(9000, 1000, 0, 0));
    assert_false(l.gone);
    assert_true(tarn_read_lease_runs(&l, at(9000)));
    not_there(&l, 9500, pulse(9500, 9400, 0, 0)); /* no silence: an old one was forgotten */
    assert_true(l.gone);
}

/* This node was dead before the others fell silent. */
static void a_silence_that_came_later_does_not_count(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 0, 0);                                   /* the last beat; the lease ends at 3000 */
    not_there(&l, 9100, pulse(9100, 9000, 1500, 9000)); /* displaced copies settle until 3500 */
    assert_true(l.gone);
    assert_false(tarn_read_lease_runs(&l, at(9100)));
}

static void a_silence_long_ago_does_not_count(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    listed(&l, 900, 900);
    unanswered(&l, at(4000));
    not_there(&l, 20000, pulse(20000, 19900, 1000, 9000));
    assert_true(l.gone);
}

static void missing_information_is_no_silence(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false};
    const struct tarn_directory_state none = {.now_ms = R0 + 9000};
    listed(&l, 900, 900);
    unanswered(&l, at(4000));
    not_there(&l, 9000, none);
    assert_true(l.gone);
}

/* A client starts just before a record expires. The time between two heartbeats of other nodes is not a
 * silence. */
static void a_record_first_seen_at_its_end_is_not_read_on(void **state)
{
    (void)state;
    struct tarn_read_lease l = {.gone = false}, unknown = {.gone = false};
    const struct tarn_read_lease_answer a = {.epoch = EPOCH, .left_ms = 100};
    const struct tarn_directory_state others = pulse(TTL - 100, TTL - 300, 0, 0), none = {.now_ms = 0};
    tarn_read_lease_answered(&l, EPOCH, &a, &others, at(TTL - 100), at(TTL - 100));
    tarn_read_lease_answered(&unknown, EPOCH, &a, &none, at(TTL - 100),
                             at(TTL - 100)); /* from a list of nodes */
    assert_true(tarn_read_lease_runs(&l, at(TTL - 100)) && tarn_read_lease_runs(&unknown, at(TTL - 100)));
    not_there(&l, TTL, pulse(TTL, TTL - 300, 0, 0));
    not_there(&unknown, TTL, pulse(TTL, TTL - 300, 0, 0));
    assert_true(l.gone && unknown.gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_before_an_answer),
        cmocka_unit_test(a_lease_ends_before_the_record),
        cmocka_unit_test(a_lease_counts_from_before_the_question),
        cmocka_unit_test(a_renewal_moves_the_end),
        cmocka_unit_test(a_silent_nodes_lease_ends),
        cmocka_unit_test(a_missing_record_does_not_cut_a_lease),
        cmocka_unit_test(another_incarnation_ends_a_lease),
        cmocka_unit_test(a_returning_node_is_not_read),
        cmocka_unit_test(a_late_answer_does_not_override_a_newer_one),
        cmocka_unit_test(serve_reads_on_until_redis_answers),
        cmocka_unit_test(a_lease_that_ended_while_redis_answered_is_gone),
        cmocka_unit_test(a_lease_that_ran_at_the_last_answer_is_read_on),
        cmocka_unit_test(reading_on_does_not_count_as_an_answer),
        cmocka_unit_test(an_idle_client_reads_on),
        cmocka_unit_test(without_a_lease_nothing_is_read_on),
        cmocka_unit_test(refuse_does_not_read_on_without_redis),
        cmocka_unit_test(after_a_silence_of_all_a_node_is_read_on_for_a_moment),
        cmocka_unit_test(a_node_is_read_on_when_redis_is_away_twice),
        cmocka_unit_test(a_continuing_silence_counts),
        cmocka_unit_test(a_silence_that_came_later_does_not_count),
        cmocka_unit_test(a_silence_long_ago_does_not_count),
        cmocka_unit_test(missing_information_is_no_silence),
        cmocka_unit_test(a_record_first_seen_at_its_end_is_not_read_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
