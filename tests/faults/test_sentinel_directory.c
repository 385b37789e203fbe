/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory with Redis Sentinel: which primary it finds, what it says when it finds none, and that it
 * leaves an old primary that goes on answering.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "metadata/redis.h"
#include "tests/directory_fixture.h"
#include "tests/sentinels.h"

#define SHORT_MS (600 * harness_slower())
#define SLACK_MS (1500 * harness_slower())
#define MOVE_MS 30000

static struct harness *h;
static struct sentinels *s;

static int start_without_passwords(void **state)
{
    (void)state;
    h = harness_new();
    s = sentinels_start(h, NULL, NULL);
    return 0;
}

static int start_with_passwords(void **state)
{
    (void)state;
    h = harness_new();
    s = sentinels_start(h, "r3dis", "s3nt");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    harness_free(h);
    return 0;
}

/* --- sentinels that are none -------------------------------------------------------------------- */

/* Answers every connection with this text, whatever it is asked. */
struct fake {
    const char *_Atomic answer; /* "": never */
    struct tarn_addr addr;
    int fd;
    pthread_t thread;
    atomic_bool ends;
};

static void *answer_all(void *arg)
{
    struct fake *f = arg;
    int fds[64];
    size_t n = 0;
    while (!f->ends && n < COUNT(fds)) {
        if (tarn_net_wait(f->fd, POLLIN, tarn_deadline(20), NULL))
            continue;
        fds[n] = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC);
        const char *text = f->answer;
        if (fds[n] >= 0 && *text && write(fds[n], text, strlen(text)) < 0)
            print_error("a sentinel's answer was not taken\n");
        n += fds[n] >= 0;
    }
    while (n)
        close(fds[--n]);
    return NULL;
}

static void fake_start(struct fake *f, const char *answer)
{
    *f = (struct fake){.answer = answer, .addr = {.host = "127.0.0.1"}};
    assert_int_equal(tarn_net_listen(&f->addr, &f->fd), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, answer_all, f), 0);
}

static void fake_end(struct fake *f)
{
    f->ends = true;
    pthread_join(f->thread, NULL);
    close(f->fd);
}

/* As a sentinel answers: the address, then fields of which one is the config-epoch. */
static const char *answer_of(char out[200], const char *ip, const char *port, const char *epoch)
{
    snprintf(out, 200, "*2\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n*2\r\n$12\r\nconfig-epoch\r\n$%zu\r\n%s\r\n",
             strlen(ip), ip, strlen(port), port, strlen(epoch), epoch);
    return out;
}

static const char *names(char out[200], const struct harness_redis *r, const char *epoch)
{
    char port[8];
    snprintf(port, sizeof port, "%u", r->port);
    return answer_of(out, "127.0.0.1", port, epoch);
}

/* --- finding the primary ------------------------------------------------------------------------ */

static const char *uri_of(const char *hosts, const char *name)
{
    static char uri[300];
    snprintf(uri, sizeof uri, "redis+sentinel://%s/%s", hosts, name);
    return uri;
}

/* Opens it within the deadline, or fails with this code and text in time. */
static void opens_to(const char *uri, int code, const char *says)
{
    struct tarn_directory *d = NULL;
    uint64_t begun = harness_now_ms();
    assert_int_equal(tarn_directory_open(uri, NS, NULL, tarn_deadline(SHORT_MS), NULL, &d), code);
    assert_true(harness_now_ms() - begun < SHORT_MS + SLACK_MS);
    if (code) {
        assert_said(says);
        return;
    }
    char primary[TARN_PRIMARY_TEXT];
    tarn_directory_primary(d, primary);
    assert_string_equal(primary, says);
    tarn_directory_close(d);
}

static const char *server(int i)
{
    return s->servers[i]->address;
}

static void the_primary_is_found(void **state)
{
    char hosts[200];
    (void)state;
    opens_to(s->redis.url, 0, server(0));
    opens_to(uri_of(s->addresses[2], "m"), 0, server(0));
    snprintf(hosts, sizeof hosts, "127.0.0.1:%u,%s", harness_free_port(), s->hosts);
    opens_to(uri_of(hosts, "m"), 0, server(0)); /* the first is down */
}

static void the_command_shows_the_primary(void **state)
{
    struct harness_process *p;
    char now[64];
    (void)state;
    harness_run(h, &p, "tarn", "doctor", "--redis", s->redis.url, NULL);
    snprintf(now, sizeof now, "now at %s", server(0));
    assert_true(holds(harness_stdout(p, NULL), now));
}

static void what_is_wrong_is_said(void **state)
{
    char hosts[64];
    (void)state;
    snprintf(hosts, sizeof hosts, "127.0.0.1:%u", harness_free_port());
    opens_to(uri_of(hosts, "m"), TARN_E_DIRECTORY, "no sentinel answers");
    assert_said("Connection refused: start them or correct their addresses");
    assert_said(hosts);
    opens_to(uri_of(s->hosts, "other"), TARN_E_DIRECTORY, "it knows no primary of that name");
    assert_said("SENTINEL MASTERS lists them");
    opens_to(uri_of(server(0), "m"), TARN_E_DIRECTORY, "it is no sentinel: give the addresses of sentinels");
}

/* Alone each ends in time; with a good one behind it, that one answers in the time that is left. */
static void answers_nonsense(const char *answer, int code, const char *says)
{
    struct fake f;
    char at[32], hosts[200];
    fake_start(&f, answer);
    tarn_addr_format(&f.addr, at, sizeof at);
    opens_to(uri_of(at, "m"), code, says);
    snprintf(hosts, sizeof hosts, "%s,%s", at, s->hosts);
    opens_to(uri_of(hosts, "m"), 0, server(0));
    fake_end(&f);
}

static void sentinels_that_answer_nonsense(void **state)
{
    static const char *const none[] = {"+OK\r\n", "*1\r\n$1\r\nh\r\n", "*2\r\n$1\r\nh\r\n:1\r\n"};
    static const char *const bad[][4] = {
        {"", "1", "0", "is no address"},      {"h", "0", "0", "is no address"},
        {"h", "99999", "0", "is no address"}, {"h", "x", "0", "is no address"},
        {"h", "1", "-1", "no config-epoch"},
    };
    char text[200];
    (void)state;
    answers_nonsense("", TARN_E_TIMEOUT, "no answer in time");
    answers_nonsense("hello\r\n", TARN_E_DIRECTORY, "it is no sentinel");
    answers_nonsense("-ERR whatever\r\n", TARN_E_DIRECTORY, "ERR whatever: see the sentinel's log");
    answers_nonsense("*-1\r\n", TARN_E_DIRECTORY, "it knows no primary of that name");
    for (size_t i = 0; i < COUNT(none); i++)
        answers_nonsense(none[i], TARN_E_DIRECTORY, "its answer is no address");
    for (size_t i = 0; i < COUNT(bad); i++)
        answers_nonsense(answer_of(text, bad[i][0], bad[i][1], bad[i][2]), TARN_E_DIRECTORY, bad[i][3]);
}

/* What a sentinel names is believed only if it calls itself a primary. */
static void a_replica_is_no_primary(void **state)
{
    struct fake f;
    char at[32], hosts[200], answer[200];
    (void)state;
    fake_start(&f, names(answer, s->servers[1], "0"));
    tarn_addr_format(&f.addr, at, sizeof at);
    opens_to(uri_of(at, "m"), TARN_E_DIRECTORY, "it is no primary");
    snprintf(hosts, sizeof hosts, "%s,%s", at, s->hosts);
    opens_to(uri_of(hosts, "m"), 0, server(0));
    fake_end(&f);
}

static bool asks_for_leases(struct tarn_directory *d)
{
    struct tarn_read_lease_answer a = {.id = "node0"};
    struct tarn_directory_state state;
    return tarn_directory_leases(d, &a, 1, &state, tarn_deadline(SHORT_MS), NULL) == 0;
}

static bool is_at(struct tarn_directory *d, const struct harness_redis *r)
{
    char primary[TARN_PRIMARY_TEXT];
    tarn_directory_primary(d, primary);
    return !strcmp(primary, r->address);
}

/* It names an earlier primary, which still believes that it is one. It is believed when it is alone. */
static void a_sentinel_that_is_late_is_not_believed(void **state)
{
    struct harness_redis *earlier = harness_redis_start_new(h, NULL);
    struct fake late, good;
    char at[2][32], hosts[80], text[3][200];
    (void)state;
    fake_start(&late, names(text[0], s->servers[0], "2"));
    fake_start(&good, text[0]);
    tarn_addr_format(&late.addr, at[0], sizeof at[0]);
    tarn_addr_format(&good.addr, at[1], sizeof at[1]);
    snprintf(hosts, sizeof hosts, "%s,%s", at[0], at[1]);
    struct tarn_directory *d = open_directory(uri_of(hosts, "m"));
    late.answer = names(text[1], earlier, "1");
    for (uint64_t end = harness_now_ms() + 2500; harness_now_ms() < end; harness_pause()) {
        assert_true(asks_for_leases(d));
        assert_true(is_at(d, s->servers[0]));
    }
    good.answer = text[1];
    HARNESS_UNTIL(asks_for_leases(d) && is_at(d, earlier), PATIENCE_MS);
    tarn_directory_close(d);
    fake_end(&late);
    fake_end(&good);
}

/* Between two times as the primary a Redis may have missed what its successor was told. */
static void a_primary_that_is_one_again_is_another_directory(void **state)
{
    struct tarn_node_record record = node("node0", 5);
    struct beaten first, next;
    struct fake f;
    char at[32], text[2][200];
    (void)state;
    fake_start(&f, names(text[0], s->servers[0], "2"));
    tarn_addr_format(&f.addr, at, sizeof at);
    struct tarn_directory *d = open_directory(uri_of(at, "m"));
    first = beat(d, &record);
    assert_int_equal(first.rc, 0);
    next = beat_again(d, &record, &first.b);
    assert_false(next.b.other);
    f.answer = names(text[1], s->servers[0], "4");
    HARNESS_UNTIL((next = beat_again(d, &record, &first.b)).rc == 0 && next.b.other, PATIENCE_MS);
    assert_true(next.b.state.lost);
    assert_string_not_equal(next.b.state.run, first.b.state.run);
    tarn_directory_close(d);
    fake_end(&f);
    freeReplyObject(harness_redis_call(s->servers[0], "FLUSHALL", NULL));
}

/* Sentinels that are down harm nobody who is connected. */
static void without_sentinels_connections_are_used_on(void **state)
{
    struct tarn_directory *d = open_directory(s->redis.url);
    (void)state;
    for (int i = 0; i < SENTINELS; i++)
        harness_signal(s->processes[i], SIGSTOP);
    for (uint64_t end = harness_now_ms() + 3000; harness_now_ms() < end; harness_pause()) {
        struct tarn_read_lease_answer a = {.id = "node0"};
        struct tarn_directory_state state_;
        uint64_t begun = harness_now_ms();
        assert_int_equal(tarn_directory_leases(d, &a, 1, &state_, tarn_deadline(SHORT_MS), NULL), 0);
        assert_true(harness_now_ms() - begun < 200 + SLACK_MS);
    }
    for (int i = 0; i < SENTINELS; i++)
        harness_signal(s->processes[i], SIGCONT);
    tarn_directory_close(d);
}

static void passwords(void **state)
{
    char uri[300];
    (void)state;
    opens_to(s->redis.url, 0, server(0));
    snprintf(uri, sizeof uri, "redis+sentinel://:r3dis@%s/m?sentinel_password=wr0ng", s->hosts);
    opens_to(uri, TARN_E_AUTH, "correct sentinel_user and sentinel_password");
    assert_null(strstr(tarn_last_error(), "wr0ng"));
    snprintf(uri, sizeof uri, "redis+sentinel://:r3dis@%s/m?sentinel_user=nobody&sentinel_password=s3nt",
             s->hosts);
    opens_to(uri, TARN_E_AUTH, "correct sentinel_user and sentinel_password");
    snprintf(uri, sizeof uri, "redis+sentinel://:r3dis@%s/m", s->hosts);
    opens_to(uri, TARN_E_AUTH, "put ?sentinel_password= into the Redis URI");
    snprintf(uri, sizeof uri, "redis+sentinel://:wr0ng@%s/m?sentinel_password=s3nt", s->hosts);
    opens_to(uri, TARN_E_AUTH, "correct user and password in the Redis URI");
    assert_null(strstr(tarn_last_error(), "wr0ng"));
    assert_null(strstr(tarn_last_error(), "s3nt@"));
}

/* Gives a user of all sentinels these rights only. */
static void let(const char *user, const char *right, const char *other)
{
    for (int i = 0; i < SENTINELS; i++) {
        struct tarn_resp *r = harness_connect(s->addresses[i]);
        freeReplyObject(harness_command(r, "AUTH", s->password, NULL));
        redisReply *reply = harness_command(r, "ACL", "SETUSER", user, "on", ">pw", "resetchannels", "-@all",
                                            right, other, NULL);
        assert_int_equal(reply->type, REDIS_REPLY_STATUS);
        freeReplyObject(reply);
        tarn_resp_free(r);
    }
}

/* docs/sentinel.md says which rights users need. */
static void rights(void **state)
{
    char uri[300];
    (void)state;
    let("able", "+sentinel|master", "+sentinel|get-master-addr-by-name");
    let("unable", "+sentinel|master", NULL);
    snprintf(uri, sizeof uri, "redis+sentinel://:r3dis@%s/m?sentinel_user=able&sentinel_password=pw",
             s->hosts);
    opens_to(uri, 0, server(0));
    snprintf(uri, sizeof uri, "redis+sentinel://:r3dis@%s/m?sentinel_user=unable&sentinel_password=pw",
             s->hosts);
    opens_to(uri, TARN_E_AUTH, "grant that user what docs/sentinel.md lists");
    freeReplyObject(harness_redis_call(s->servers[0], "ACL", "SETUSER", "able", "on", ">pw", "-@all", "+ping",
                                       "+role", NULL));
    freeReplyObject(
        harness_redis_call(s->servers[0], "ACL", "SETUSER", "unable", "on", ">pw", "-@all", "+ping", NULL));
    snprintf(uri, sizeof uri, "redis+sentinel://able:pw@%s/m?sentinel_password=s3nt", s->hosts);
    opens_to(uri, 0, server(0));
    snprintf(uri, sizeof uri, "redis+sentinel://unable:pw@%s/m?sentinel_password=s3nt", s->hosts);
    opens_to(uri, TARN_E_AUTH, "grant the user what metadata/KEYS.md lists");
}

/* --- leaving a primary -------------------------------------------------------------------------- */

/* A refused write makes the next call ask. */
static void a_refusal_makes_it_ask_again(void **state)
{
    struct tarn_directory *d = open_directory(s->redis.url);
    (void)state;
    assert_int_equal(put(d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    freeReplyObject(harness_redis_call(s->servers[0], "REPLICAOF", "127.0.0.1", "1", NULL));
    struct tarn_publish p = copy_of("k2", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    assert_int_equal(publish(d, &p), TARN_E_DIRECTORY);
    assert_said("sentinels may be changing the primary: try again");
    assert_int_equal(publish(d, &p), TARN_E_DIRECTORY);
    assert_said("it is no primary");
    freeReplyObject(harness_redis_call(s->servers[0], "REPLICAOF", "NO", "ONE", NULL));
    assert_int_equal(publish(d, &p), 0);
    tarn_directory_close(d);
}

struct listener {
    pthread_t thread;
    struct tarn_directory *d;
    atomic_int heard;
    int rc;
};

static int hear(void *arg, const char *what, const struct tarn_key *key, const char *node_id,
                const char *pool, uint64_t bytes)
{
    struct listener *l = arg;
    (void)what, (void)key, (void)node_id, (void)pool, (void)bytes;
    return ++l->heard == 2 ? 42 : 0;
}

static void *listen_to(void *arg)
{
    struct listener *l = arg;
    l->rc = tarn_directory_events(l->d, tarn_deadline(4 * MOVE_MS), NULL, hear, l);
    return NULL;
}

static bool subscribed(int i)
{
    redisReply *r = harness_redis_call(s->servers[i], "PUBSUB", "NUMSUB", "tarn:" NS ":events", NULL);
    bool yes = r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->integer == 1;
    freeReplyObject(r);
    return yes;
}

static void publish_event(int i)
{
    freeReplyObject(
        harness_redis_call(s->servers[i], "PUBLISH", "tarn:" NS ":events", "stored k n p 1", NULL));
}

/* Of look-ups and scripts, all that a directory does. */
static long long calls_of(int i)
{
    redisReply *r = harness_redis_call(s->servers[i], "INFO", "commandstats", NULL);
    const char *const names_[] = {"cmdstat_evalsha:calls=", "cmdstat_hgetall:calls="};
    long long n = 0;
    for (size_t k = 0; k < COUNT(names_); k++) {
        const char *at = strstr(r->str, names_[k]);
        n += at ? atoll(at + strlen(names_[k])) : 0;
    }
    freeReplyObject(r);
    return n;
}

/* A node that beats, publishes and has a stream to the primary. */
struct member {
    struct tarn_directory *d;
    struct tarn_node_record record;
    struct beaten last;
    struct tarn_stream *stream;
};

static void member_start(struct member *m, const char *id)
{
    m->d = open_directory(s->redis.url);
    m->record = node(id, 5);
    m->last = beat(m->d, &m->record);
    assert_int_equal(m->last.rc, 0);
    assert_int_equal(put(m->d, id, TARN_PUBLISH_ABSENT, 1, id, 2), 0);
    assert_int_equal(tarn_stream_open(m->d, soon(), &m->stream), 0);
}

static void member_stop(struct member *m)
{
    tarn_stream_close(m->stream);
    tarn_directory_close(m->d);
}

/* The next beat goes to the new primary, and finds another directory there. The one behind it is the first
 * that was at the new primary from its begin on. */
static void moves_by_a_beat(struct member *m)
{
    struct tarn_directory_state now;
    m->last = beat_again(m->d, &m->record, &m->last.b);
    assert_int_equal(m->last.rc, 0);
    assert_true(is_at(m->d, s->servers[1]));
    assert_true(m->last.b.other);
    m->last = beat_again(m->d, &m->record, &m->last.b);
    assert_false(m->last.b.other);
    assert_int_equal(tarn_directory_look(m->d, soon(), &now), 0);
    assert_string_equal(now.id, m->last.b.state.id);
}

/* Until it has beaten at the new primary, it does not take any directory for the one that it knows. */
static void moves_by_leases(struct member *m)
{
    struct tarn_directory_state now;
    HARNESS_UNTIL(asks_for_leases(m->d) && is_at(m->d, s->servers[1]), 5000);
    assert_int_equal(tarn_directory_look(m->d, soon(), &now), 0);
    assert_string_equal(now.id, "");
}

static void *look_once(void *arg)
{
    look(arg, "k");
    return NULL;
}

/* Two look-ups at once take two connections from the pool. */
static void look_twice_at_once(struct tarn_directory *d, int i)
{
    pthread_t threads[2];
    freeReplyObject(harness_redis_call(s->servers[i], "CLIENT", "PAUSE", "300", NULL));
    for (int t = 0; t < 2; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, look_once, d), 0);
    for (int t = 0; t < 2; t++)
        pthread_join(threads[t], NULL);
}

static void publishes_nothing_on_its_stream(struct member *m)
{
    struct tarn_publish p = copy_of("lost", TARN_PUBLISH_ABSENT, 1, "node0", 4);
    assert_int_equal(tarn_stream_publish(m->stream, &p, 1), TARN_E_DIRECTORY);
    assert_said("another primary");
}

/* Stops the primary until another has taken its place. It goes on as if nothing had happened. */
static void make_stale(void)
{
    harness_signal(s->servers[0]->process, SIGSTOP);
    HARNESS_UNTIL(sentinels_name(s) == 1, MOVE_MS);
    HARNESS_UNTIL(sentinels_role_is(s, 1, "master"), MOVE_MS);
    harness_signal(s->servers[0]->process, SIGCONT);
    assert_true(sentinels_role_is(s, 0, "master"));
}

static void an_old_primary_that_goes_on_is_left(void **state)
{
    struct member a, b;
    struct listener l = {.d = open_directory(s->redis.url)};
    struct tarn_directory *idle = open_directory(s->redis.url);
    (void)state;
    member_start(&a, "node0");
    member_start(&b, "node1");
    assert_int_equal(pthread_create(&l.thread, NULL, listen_to, &l), 0);
    HARNESS_UNTIL(subscribed(0), PATIENCE_MS);
    publish_event(0);
    HARNESS_UNTIL(l.heard == 1, PATIENCE_MS);
    look_twice_at_once(a.d, 0);
    make_stale();
    long long before = calls_of(0);
    moves_by_a_beat(&a);
    publishes_nothing_on_its_stream(&a);
    moves_by_leases(&b);
    publishes_nothing_on_its_stream(&b);
    look(idle, "k"); /* its connection is still open, and nobody has asked for 5 s */
    assert_true(is_at(idle, s->servers[1]));
    look_twice_at_once(a.d, 1);
    assert_int_equal(calls_of(0), before);
    HARNESS_UNTIL(subscribed(1), 5000);
    publish_event(1);
    pthread_join(l.thread, NULL);
    assert_int_equal(l.rc, 42);
    member_stop(&a);
    member_stop(&b);
    tarn_directory_close(l.d);
    tarn_directory_close(idle);
    harness_passed(h);
}

int main(void)
{
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(the_primary_is_found),
        cmocka_unit_test(the_command_shows_the_primary),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(sentinels_that_answer_nonsense),
        cmocka_unit_test(a_replica_is_no_primary),
        cmocka_unit_test(a_sentinel_that_is_late_is_not_believed),
        cmocka_unit_test(a_primary_that_is_one_again_is_another_directory),
        cmocka_unit_test(without_sentinels_connections_are_used_on),
        cmocka_unit_test(a_refusal_makes_it_ask_again),
        cmocka_unit_test(an_old_primary_that_goes_on_is_left), /* last: server 1 is the primary then */
    };
    const struct CMUnitTest guarded[] = {cmocka_unit_test(passwords), cmocka_unit_test(rights)};
    int failed = cmocka_run_group_tests(plain, start_without_passwords, stop);
    return failed + cmocka_run_group_tests(guarded, start_with_passwords, stop);
}
