/* SPDX-License-Identifier: Apache-2.0 */
/* The directory when Redis fails: each failure gives one error message, within the deadline. */
#include "tests/directory_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SHORT_MS 300 /* for calls that must time out */

/* --- Redis fails -------------------------------------------------------------------------------- */

static int open_code(const char *uri)
{
    struct tarn_directory *d = NULL;
    int rc = tarn_directory_open(uri, NS, NULL, tarn_deadline(2000), NULL, &d);
    tarn_directory_close(d);
    return rc;
}

static void malformed_addresses_are_refused(void **state)
{
    static const char *const bad[] = {
        "secret@host",
        "http://host",
        "rediss://host:6379",
        "redis://",
        "redis://user:secret@",
        "redis://host:0x7",
        "redis://:secret%4@host",
        "redis://host/seven",
        "unix://relative",
        "unix:///s?password=secret",
        "redis://h?db=1",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        int rc = open_code(bad[i]);
        if (rc != TARN_E_CONFIG)
            fail_msg("%s gave %d: %s", bad[i], rc, tarn_last_error());
        if (strstr(tarn_last_error(), "secret") && !strstr(bad[i], "?password"))
            fail_msg("the password is in '%s'", tarn_last_error());
    }
}

static void redis_is_absent(void **state)
{
    struct fixture *f = *state;
    char uri[64];
    snprintf(uri, sizeof uri, "redis://user:secret@127.0.0.1:%u", harness_free_port());
    assert_int_equal(open_code(uri), TARN_E_DIRECTORY);
    assert_said("redis://127.0.0.1:");
    assert_said("refused");
    assert_null(strstr(tarn_last_error(), "secret"));
    snprintf(uri, sizeof uri, "unix://%s", harness_path(f->h, "none.sock"));
    assert_int_equal(open_code(uri), TARN_E_DIRECTORY);
    assert_said("none.sock");
}

static void passwords(void **state)
{
    struct fixture *f = *state;
    char uri[256];
    command(f, "ACL", "SETUSER", "ann", "on", ">p@ss/%", "~*", "+@all");
    snprintf(uri, sizeof uri, "unix://ann:p%%40ss%%2F%%25@%s", f->path);
    assert_int_equal(open_code(uri), 0);
    snprintf(uri, sizeof uri, "unix://ann:secret@%s", f->path);
    assert_int_equal(open_code(uri), TARN_E_AUTH);
    assert_said("WRONGPASS");
    assert_null(strstr(tarn_last_error(), "secret"));
    snprintf(uri, sizeof uri, "unix://secret@%s", f->path);
    assert_int_equal(open_code(uri), TARN_E_AUTH); /* this Redis needs no password */
    snprintf(uri, sizeof uri, "unix://%s?db=99999", f->path);
    assert_int_equal(open_code(uri), TARN_E_DIRECTORY);
    assert_said("DB index");
    command(f, "ACL", "DELUSER", "ann");
}

static void over_tcp_with_password_and_database(void **state)
{
    struct harness *h = harness_new();
    struct harness_redis *r = harness_redis_start_new(h, "secret");
    char uri[200];
    (void)state;
    assert_int_equal(open_code(r->unix_url), TARN_E_AUTH);
    assert_said("NOAUTH");
    snprintf(uri, sizeof uri, "%s/3", r->url);
    struct tarn_directory *d = open_directory(uri);
    assert_null(strstr(tarn_directory_address(d), "secret"));
    assert_int_equal(put(d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(look(d, "k").status, 0);
    assert_int_equal(harness_redis_integer(r, "DBSIZE", NULL), 0);
    tarn_directory_close(d);
    d = open_directory(r->url);
    assert_int_equal(look(d, "k").status, TARN_E_NOT_FOUND);
    tarn_directory_close(d);
    harness_passed(h);
    harness_free(h);
}

/* What the directory of objects needs; deploy/redis-acl.conf has all that nodes and clients need. */
#define CLIENT_RIGHTS \
    "+auth", "+ping", "+select", "+hgetall", "+pttl", "+time", "+smembers", "+scan", "+subscribe"
#define NODE_RIGHTS \
    CLIENT_RIGHTS, "+evalsha", "+script|load", "+info", "+publish", "+hget", "+hset", "+hdel", "+hkeys", \
        "+del", "+pexpire", "+sadd", "+srem", "+srandmember", "+exists", "+pttl", "+time", "+client|info", \
        "+client|kill"

static int no_object(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    (void)arg, (void)key, (void)r;
    return 0;
}

static int no_node(void *arg, const struct tarn_node_record *n)
{
    (void)arg, (void)n;
    return 0;
}

static int no_event(void *arg, const char *what, const struct tarn_key *key, const char *node_id,
                    const char *pool, uint64_t bytes)
{
    (void)arg, (void)what, (void)key, (void)node_id, (void)pool, (void)bytes;
    return 0;
}

static void rights(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    char uri[256];
    harness_needs_redis_7(f->address, "Redis 6.0 has no rights on channels");
    command(f, "ACL", "SETUSER", "node", "on", ">p", "~tarn:*", "&tarn:*", NODE_RIGHTS);
    command(f, "ACL", "SETUSER", "client", "on", ">p", "~tarn:*", "&tarn:*", CLIENT_RIGHTS);
    snprintf(uri, sizeof uri, "unix://node:p@%s", f->path);
    struct tarn_directory *as_node = open_directory(uri);
    snprintf(uri, sizeof uri, "unix://client:p@%s", f->path);
    struct tarn_directory *as_client = open_directory(uri);

    assert_int_equal(beat(as_node, &n).rc, 0);
    assert_int_equal(put(as_node, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(as_node, "k", TARN_PUBLISH_REPLACE, 2, "node0", 4), 0);
    assert_int_equal(put(as_node, "k", TARN_PUBLISH_ABSENT, 2, "node1", 6), 0);
    assert_true(withdraw(as_node, "k", location("node1", 8192, 6)));
    assert_int_equal(look(as_client, "k").record.version, 2);
    assert_int_equal(tarn_directory_scan(as_client, NULL, soon(), NULL, no_object, NULL), 0);
    assert_int_equal(tarn_directory_nodes(as_client, soon(), NULL, no_node, NULL), 0);
    assert_int_equal(tarn_directory_events(as_client, tarn_deadline(500), NULL, no_event, NULL), 0);
    assert_true(withdraw(as_node, "k", location("node0", 8192, 4)));
    assert_int_equal(tarn_directory_leave(as_node, &n, soon()), 0);

    assert_int_equal(put(as_client, "k2", TARN_PUBLISH_ABSENT, 1, "node0", 2), TARN_E_AUTH);
    assert_said("NOPERM");
    tarn_directory_close(as_client);
    tarn_directory_close(as_node);
    command(f, "ACL", "DELUSER", "node", "client");
}

/* Every change of the directory is a script: there is no other way to fall back to. */
static void no_right_to_run_scripts(void **state)
{
    struct fixture *f = *state;
    struct tarn_node_record n = node("node0", 5);
    char uri[256];
    snprintf(uri, sizeof uri, "unix://ann:p@%s", f->path);
    command(f, "ACL", "SETUSER", "ann", "on", ">p", "~tarn:*", "+@all", "-@scripting");
    struct tarn_directory *d = open_directory(uri);
    assert_int_equal(beat(d, &n).rc, TARN_E_AUTH);
    assert_int_equal(put(d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), TARN_E_AUTH);
    assert_said("grant the user what metadata/KEYS.md lists");
    assert_int_equal(look(d, "k").status, TARN_E_NOT_FOUND);
    tarn_directory_close(d);
    command(f, "ACL", "DELUSER", "ann");
}

/* A publish succeeds even if its event cannot be announced. */
static void no_right_to_announce(void **state)
{
    struct fixture *f = *state;
    char uri[256];
    harness_needs_redis_7(f->address, "Redis 6.0 has no rights on channels");
    snprintf(uri, sizeof uri, "unix://ann:p@%s", f->path);
    command(f, "ACL", "SETUSER", "ann", "on", ">p", "~tarn:*", "resetchannels", "+@all");
    struct tarn_directory *d = open_directory(uri);
    assert_int_equal(put(d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(look(d, "k").status, 0);
    tarn_directory_close(d);
    command(f, "ACL", "DELUSER", "ann");
}

/* Idle pooled connections must not cause a failure after Redis restarts. */
static void restart_goes_unnoticed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    harness_kill(f->redis);
    struct tarn_key key = key_of("k");
    struct found found = {.status = 1};
    assert_int_equal(tarn_directory_lookup(f->d, &key, 1, soon(), NULL, take_one, &found), TARN_E_DIRECTORY);
    assert_int_equal(found.calls, 0);
    assert_said("unix://");
    start_redis(f);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    harness_kill(f->redis);
    start_redis(f);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0); /* the scripts are gone, too */
    assert_int_equal(look(f->d, "k").status, 0);
}

static void scripts_are_loaded_again(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish p[3] = {
        copy_of("a", TARN_PUBLISH_ABSENT, 1, "node0", 2),
        copy_of("b", TARN_PUBLISH_ABSENT, 2, "node0", 4),
        copy_of("c", TARN_PUBLISH_ABSENT, 3, "node0", 6),
    };
    assert_int_equal(put(f->d, "a", TARN_PUBLISH_ABSENT, 9, "node0", 2), 0);
    command(f, "SCRIPT", "FLUSH");
    assert_int_equal(tarn_directory_publish(f->d, p, COUNT(p), soon()), 0);
    assert_int_equal(p[0].status, TARN_E_EXISTS);
    assert_int_equal(p[1].status, 0);
    assert_int_equal(p[2].status, 0);
    assert_int_equal(look(f->d, "c").record.version, 3);
}

static void redis_is_paused(void **state)
{
    struct fixture *f = *state;
    struct tarn_key key = key_of("k");
    struct found found = {.status = 1};
    struct tarn_publish p = copy_of("k", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    struct tarn_directory *d = NULL;
    harness_signal(f->redis, SIGSTOP);
    uint64_t start = harness_now_ms();
    int looked = tarn_directory_lookup(f->d, &key, 1, tarn_deadline(SHORT_MS), NULL, take_one, &found);
    int published = tarn_directory_publish(f->d, &p, 1, tarn_deadline(SHORT_MS));
    int opened = tarn_directory_open(f->uri, NS, NULL, tarn_deadline(SHORT_MS), NULL, &d);
    uint64_t took = harness_now_ms() - start;
    harness_signal(f->redis, SIGCONT);
    assert_int_equal(looked, TARN_E_TIMEOUT);
    assert_int_equal(published, TARN_E_TIMEOUT);
    assert_int_equal(p.status, TARN_E_DIRECTORY);
    assert_int_equal(opened, TARN_E_TIMEOUT);
    assert_said("paused");
    assert_int_equal(found.calls, 0);
    assert_in_range(took, 3 * SHORT_MS, 3 * SHORT_MS + 2000);
    /* The late answers to those calls must not be taken for answers to these. */
    assert_int_equal(look(f->d, "other").status, TARN_E_NOT_FOUND);
    assert_int_equal(put(f->d, "k2", TARN_PUBLISH_ABSENT, 5, "node0", 2), 0);
    assert_int_equal(look(f->d, "k2").record.version, 5);
}

static void redis_is_full(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    command(f, "CONFIG", "SET", "maxmemory", "1");
    int rc = put(f->d, "k2", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    char said[256];
    snprintf(said, sizeof said, "%s", tarn_last_error());
    struct tarn_node_record n = node("node0", 5);
    int beaten = beat(f->d, &n).rc;
    int looked = look(f->d, "k").status;
    bool withdrawn = withdraw(f->d, "k", location("node0", 4096, 2)); /* frees memory: must work */
    command(f, "CONFIG", "SET", "maxmemory", "0");
    assert_int_equal(rc, TARN_E_DIRECTORY);
    assert_true(holds(said, "OOM") && holds(said, "maxmemory"));
    assert_int_equal(beaten, TARN_E_DIRECTORY);
    assert_int_equal(looked, 0);
    assert_true(withdrawn);
}

static void redis_is_read_only(void **state)
{
    struct fixture *f = *state;
    char port[8];
    snprintf(port, sizeof port, "%u", harness_free_port());
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    command(f, "REPLICAOF", "127.0.0.1", port);
    struct tarn_withdraw w = {.key = key_of("k"), .location = location("node0", 4096, 2)};
    int published = put(f->d, "k2", TARN_PUBLISH_ABSENT, 1, "node0", 2);
    bool said = holds(tarn_last_error(), "READONLY") && holds(tarn_last_error(), "primary");
    int withdrawn = tarn_directory_withdraw(f->d, &w, 1, soon());
    int looked = look(f->d, "k").status;
    command(f, "REPLICAOF", "NO", "ONE");
    assert_int_equal(published, TARN_E_DIRECTORY);
    assert_true(said);
    assert_int_equal(withdrawn, TARN_E_DIRECTORY);
    assert_false(w.removed);
    assert_int_equal(looked, 0);
    assert_int_equal(look(f->d, "k2").status, TARN_E_NOT_FOUND);
}

/* --- answers that are not from Redis ------------------------------------------------------------ */

struct impostor {
    int fd;
    char uri[160];
    const char *answers[2]; /* the second may be NULL */
    pthread_t thread;
};

/* Sends its answers to one connection, whatever is asked, and closes it. */
static void *answer_one(void *arg)
{
    const struct impostor *im = arg;
    char asked[256];
    int fd = accept(im->fd, NULL, NULL);
    for (int i = 0; i < 2 && im->answers[i] && fd >= 0 && read(fd, asked, sizeof asked) > 0; i++)
        (void)!write(fd, im->answers[i], strlen(im->answers[i]));
    close(fd);
    return NULL;
}

static void impostor_begin(const struct fixture *f, struct impostor *im)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    im->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(im->fd >= 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", harness_path(f->h, "impostor.sock"));
    snprintf(im->uri, sizeof im->uri, "unix://%s", at.sun_path);
    unlink(at.sun_path);
    assert_int_equal(bind(im->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(im->fd, 1), 0);
    assert_int_equal(pthread_create(&im->thread, NULL, answer_one, im), 0);
}

static void impostor_end(struct impostor *im)
{
    assert_int_equal(pthread_join(im->thread, NULL), 0);
    close(im->fd);
}

static int open_impostor(const struct fixture *f, const char *answer)
{
    struct impostor im = {.answers = {answer}};
    impostor_begin(f, &im);
    int rc = open_code(im.uri);
    impostor_end(&im);
    return rc;
}

static void unusual_answers_are_explained(void **state)
{
    const struct fixture *f = *state;
    assert_int_equal(open_impostor(f, "HTTP/1.1 400 Bad Request\r\n\r\n"), TARN_E_DIRECTORY);
    assert_said("does not speak");
    assert_int_equal(open_impostor(f, "-LOADING Redis is loading the dataset in memory\r\n"),
                     TARN_E_DIRECTORY);
    assert_said("try again");
    assert_int_equal(open_impostor(f, "-MISCONF Redis is configured to save RDB snapshots\r\n"),
                     TARN_E_DIRECTORY);
    assert_said("snapshots");
    assert_int_equal(open_impostor(f, "-ERR max number of clients reached\r\n"), TARN_E_DIRECTORY);
    assert_said("maxclients");
    assert_int_equal(open_impostor(f, ""), TARN_E_DIRECTORY);
    assert_said("closed");
}

/* Redis gives the time as strings. Any other form counts as no time: nothing is calm or aged by it. */
static void a_malformed_time_counts_as_no_time(void **state)
{
    struct impostor im = {.answers = {"+PONG\r\n", "*0\r\n$0\r\n\r\n*2\r\n:1764000000\r\n:0\r\n"}};
    struct tarn_directory_state s;
    impostor_begin(*state, &im);
    struct tarn_directory *d = open_directory(im.uri);
    assert_int_equal(tarn_directory_look(d, tarn_deadline(2000), &s), 0);
    assert_true(s.now_ms == 0);
    assert_false(tarn_directory_aged(&s, 0));
    tarn_directory_close(d);
    impostor_end(&im);
}

#define TEST(name_) cmocka_unit_test_setup(name_, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(malformed_addresses_are_refused),
        TEST(redis_is_absent),
        TEST(passwords),
        TEST(over_tcp_with_password_and_database),
        TEST(rights),
        TEST(no_right_to_run_scripts),
        TEST(no_right_to_announce),
        TEST(restart_goes_unnoticed),
        TEST(scripts_are_loaded_again),
        TEST(redis_is_paused),
        TEST(redis_is_full),
        TEST(redis_is_read_only),
        TEST(unusual_answers_are_explained),
        TEST(a_malformed_time_counts_as_no_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
