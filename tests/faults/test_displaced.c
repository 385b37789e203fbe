/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies displaced by a replace or a remove. The record names such a copy until its node has freed it,
 * whatever process stops between two steps. The copy is settled only when no reader can get it any more
 * (docs/consistency.md, "Displacing copies").
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/redis_relay.h"
#include "tests/world.h"

#define HEARTBEAT_MS (300 * harness_slower())
#define TTL_MS (3 * HEARTBEAT_MS)
#define SOON_MS 10000

static struct harness_node *start_node(struct node_world *w, const char *id,
                                       const struct harness_redis *redis, const char *scrub_s)
{
    return harness_node_start(w->h, id, redis, "--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300",
                              "--redis-timeout-ms", "3000", "--scrub-s", scrub_s, NULL);
}

static int setup(void **state)
{
    node_world(state);
    struct node_world *w = *state;
    w->node = start_node(w, "node0", w->redis, "600");
    w->c = node_connect(w->node->control);
    w->other = start_node(w, "node1", w->redis, "600");
    w->other_c = node_connect(w->other->control);
    return 0;
}

static long long objects(const struct harness_node *n)
{
    return node_pool_figure(n->control, "objects");
}

static bool exists(const struct node_world *w, const char *key)
{
    return directory_field(w->redis, key, "ver")[0] != 0;
}

/* A copy as replies name it, and the parts of the name. */
struct copy {
    char text[160], node[64], slot[16], gen[20];
};

static struct copy parse(const char *text)
{
    struct copy c;
    unsigned long long offset;
    snprintf(c.text, sizeof(c.text), "%s", text);
    assert_int_equal(sscanf(text, "@%63[^/]/cpu0=%llu:%15[0-9]:%19s", c.node, &offset, c.slot, c.gen), 4);
    return c;
}

/* True if the record names the copy as displaced. */
static bool named(const struct node_world *w, const char *key, const struct copy *c)
{
    char field[160];
    snprintf(field, sizeof(field), "-%s/cpu0:%s:%s", c->node, c->slot, c->gen);
    return directory_field(w->redis, key, field)[0] != 0;
}

static long long to_recheck(const struct node_world *w, const char *id)
{
    char key[96];
    snprintf(key, sizeof(key), "tarn:default:recheck:%s", id);
    return harness_redis_integer(w->redis, "SCARD", key, NULL);
}

static bool listed(const struct node_world *w, const char *id)
{
    char key[96];
    snprintf(key, sizeof(key), "tarn:default:node:%s", id);
    return harness_redis_integer(w->redis, "EXISTS", key, NULL) == 1;
}

/* Puts with replace. Returns the only displaced copy that the reply names. */
static struct copy replace(struct node_client *c, const char *key)
{
    struct node_grant g = node_reserve(c, "replace", key, 2000);
    redisReply *r = node_commit(c, &g, "5000");
    if (r->type != REDIS_REPLY_ARRAY)
        fail_msg("COMMIT: %s", r->str);
    assert_int_equal(r->elements, 1);
    struct copy copy = parse(r->element[0]->str);
    freeReplyObject(r);
    return copy;
}

/* The first item of a reply. The caller frees it. */
static redisReply *first(redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY)
        return reply;
    assert_true(reply->elements > 0);
    redisReply *item = reply->element[0];
    reply->element[0] = reply->element[--reply->elements];
    freeReplyObject(reply);
    return item;
}

static long long integer(redisReply *item)
{
    long long value = item->type == REDIS_REPLY_INTEGER ? item->integer : -1;
    if (item->type == REDIS_REPLY_ERROR)
        print_message("%s\n", item->str);
    freeReplyObject(item);
    return value;
}

static long long settled(struct node_client *c, const char *key, const struct copy *copy)
{
    return integer(first(harness_command(c->resp, "SETTLED", key, copy->text, NULL)));
}

static long long delete (struct node_client *c, const char *key)
{
    return integer(first(harness_command(c->resp, "DELETE", key, NULL)));
}

/* Puts v1 on node1, stops node1, and replaces it with v2 on node0. Returns the displaced copy. */
static struct copy replaced_while_stopped(struct node_world *w)
{
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    harness_signal(w->other->process, SIGSTOP);
    return replace(&w->c, "k");
}

/* --- displacing and freeing ---------------------------------------------------------------------- */

/* The writer never sends RELEASE. The holder finds the copy at its next heartbeat. */
static void a_holder_frees_the_copies_in_its_recheck_set(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    assert_string_equal(copy.node, "node1");
    assert_true(named(w, "k", &copy));
    assert_int_equal(to_recheck(w, "node1"), 1);
    harness_signal(w->other->process, SIGCONT);
    HARNESS_UNTIL(!objects(w->other) && !named(w, "k", &copy) && !to_recheck(w, "node1"), SOON_MS);
    assert_true(exists(w, "k"));
    harness_passed(w->h);
}

/* The committing node dies, too. The next writer learns which displaced copies are left. */
static void the_next_writer_learns_of_earlier_displaced_copies(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    harness_kill(w->node->process);
    struct harness_node *third = start_node(w, "node2", w->redis, "600");
    struct node_client c = node_connect(third->control);
    struct node_grant g = node_reserve(&c, "replace", "k", 1000);
    redisReply *r = node_commit(&c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, 2);
    assert_true(!strcmp(r->element[0]->str, copy.text) || !strcmp(r->element[1]->str, copy.text));
    freeReplyObject(r);
    node_close(&c);
    harness_passed(w->h);
}

static void a_released_copy_is_out_of_the_record(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    struct copy copy = replace(&w->c, "k");
    redisReply *r = harness_command(w->other_c.resp, "RELEASE", "cpu0", copy.slot, copy.gen, NULL);
    assert_int_equal(integer(first(r)), 1);
    assert_int_equal(objects(w->other), 0);
    HARNESS_UNTIL(!named(w, "k", &copy), SOON_MS);
    assert_true(exists(w, "k"));
    harness_passed(w->h);
}

/* Once the node has answered, other puts need not wait for the copy that it displaced on itself. */
static void a_node_that_replaces_frees_its_own_displaced_copy(void **state)
{
    struct node_world *w = *state;
    struct copy old = replaced_while_stopped(w);
    harness_signal(w->other->process, SIGCONT);
    struct copy next = replace(&w->other_c, "k");
    assert_string_equal(next.node, "node0");
    assert_int_equal(objects(w->other), 1);
    HARNESS_UNTIL(!named(w, "k", &old), SOON_MS);
    assert_string_not_equal(directory_field(w->redis, "k", "@node1/cpu0"), "");
    harness_passed(w->h);
}

static void a_joining_copy_frees_the_older_version_on_its_node(void **state)
{
    struct node_world *w = *state;
    char version[32];
    struct copy old = replaced_while_stopped(w);
    snprintf(version, sizeof(version), "%s", directory_field(w->redis, "k", "ver"));
    /* Without its recheck set, only the join can free it. */
    assert_int_equal(harness_redis_integer(w->redis, "DEL", "tarn:default:recheck:node1", NULL), 1);
    harness_signal(w->other->process, SIGCONT);
    redisReply *r = harness_command(w->other_c.resp, "RESERVE", "*", "replace", version, "0", "0", "", "k",
                                    "2000", "u8", "2000", NULL);
    assert_int_equal(r->element[0]->elements, 4);
    char slot[16];
    snprintf(slot, sizeof(slot), "%lld", r->element[0]->element[2]->integer);
    redisReply *joined = harness_command(w->other_c.resp, "COMMIT", node_deadline(&w->other_c, 5000), "join",
                                         "0", slot, r->element[0]->element[3]->str, NULL);
    assert_int_equal(joined->element[0]->type, REDIS_REPLY_ARRAY);
    freeReplyObject(joined);
    freeReplyObject(r);
    assert_int_equal(objects(w->other), 1);
    HARNESS_UNTIL(!named(w, "k", &old), SOON_MS);
    assert_string_not_equal(directory_field(w->redis, "k", "@node0/cpu0"), "");
    assert_string_not_equal(directory_field(w->redis, "k", "@node1/cpu0"), "");
    harness_passed(w->h);
}

/* The second node's clock is behind the first one's. After a loss the replaced version must still be the
 * older one. */
static void a_replacing_version_stays_the_newer_one_after_a_loss(void **state)
{
    struct node_world *w = *state;
    char born[32], ahead[32];
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    snprintf(ahead, sizeof(ahead), "%llu", (unsigned long long)tarn_unix_ms() + 1000000);
    assert_int_equal(harness_redis_integer(w->redis, "HSET", OBJECT "k", "born", ahead, NULL), 0);
    replace(&w->c, "k");
    snprintf(born, sizeof(born), "%s", directory_field(w->redis, "k", "born"));
    assert_true(strtoull(born, NULL, 10) == strtoull(ahead, NULL, 10) + 1);
    HARNESS_UNTIL(!objects(w->other), SOON_MS);
    freeReplyObject(harness_redis_call(w->redis, "FLUSHALL", NULL));
    HARNESS_UNTIL(exists(w, "k"), SOON_MS);
    assert_string_equal(directory_field(w->redis, "k", "born"), born);
    harness_passed(w->h);
}

/* Adds a displaced copy of a node that does not exist to the record. Returns the copy. */
static struct copy displaced_of(struct node_world *w, const char *key, int node)
{
    char text[160], object[64];
    snprintf(text, sizeof(text), "-gone%d/cpu0:1:0000000100000002", node);
    snprintf(object, sizeof(object), OBJECT "%s", key);
    harness_redis_integer(w->redis, "HSET", object, text, "0", NULL);
    snprintf(text, sizeof(text), "@gone%d/cpu0=0:1:0000000100000002", node);
    return parse(text);
}

/* --- DELETE ------------------------------------------------------------------------------------- */

static void delete_removes_the_copies_of_other_nodes(void **state)
{
    struct node_world *w = *state;
    assert_int_equal(delete (&w->c, "none"), 0);
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    harness_signal(w->other->process, SIGSTOP);
    for (int i = 0; i < 2; i++) { /* not removed while it may still be read */
        redisReply *r = first(harness_command(w->c.resp, "DELETE", "k", NULL));
        assert_int_equal(r->type, REDIS_REPLY_ARRAY);
        assert_int_equal(r->elements, 2);
        assert_int_equal(r->element[0]->integer, i == 0); /* the object existed only the first time */
        struct copy copy = parse(r->element[1]->str);
        freeReplyObject(r);
        assert_string_equal(copy.node, "node1");
        assert_true(named(w, "k", &copy) && !exists(w, "k"));
        assert_int_equal(to_recheck(w, "node1"), 1);
    }
    harness_signal(w->other->process, SIGCONT);
    HARNESS_UNTIL(!objects(w->other) && !directory_has(w->redis, "k"), SOON_MS);
    assert_int_equal(delete (&w->c, "k"), 0);
    harness_passed(w->h);
}

static void delete_of_the_only_copy_is_done_at_once(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    assert_int_equal(delete (&w->c, "k"), 1);
    assert_int_equal(objects(w->node), 0);
    assert_false(directory_has(w->redis, "k"));
    harness_passed(w->h);
}

/* The key's record is full of displaced copies, so DELETE fails. The record must still lose this node's
 * location, because the copy is freed. */
static void a_refused_delete_leaves_no_void_location(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    assert_string_equal(node_put(&w->c, "absent", "other", 1000), "");
    for (int i = 0; i < 8; i++)
        displaced_of(w, "k", i);
    harness_redis_integer(w->redis, "HSET", OBJECT "k", "@node1/cpu0", "0:1:0000000100000002", NULL);
    redisReply *r = harness_command(w->c.resp, "DELETE", "k", "other", NULL);
    assert_int_equal(r->elements, 2);
    assert_int_equal(r->element[0]->type, REDIS_REPLY_ERROR);
    assert_prefix(r->element[0]->str, "DIRECTORY");
    assert_int_equal(r->element[1]->integer, 1);
    freeReplyObject(r);
    HARNESS_UNTIL(!directory_field(w->redis, "k", "@node0/cpu0")[0], SOON_MS);
    harness_passed(w->h);
}

/* --- copies that are being published ------------------------------------------------------------- */

struct committing {
    struct node_client *c;
    struct node_grant g;
    redisReply *reply;
    pthread_t thread;
};

static void *commit(void *arg)
{
    struct committing *k = arg;
    k->reply = node_commit(k->c, &k->g, "60000");
    return NULL;
}

/* Begins a commit of "held" on node1. The relay holds it on its way to Redis. */
static void commit_held(struct node_world *w, struct redis_relay *relay, struct committing *k, char gen[20])
{
    for (int i = 0; i < 3; i++) { /* until puts use their own connection to Redis */
        char key[16];
        snprintf(key, sizeof(key), "warm%d", i);
        assert_string_equal(node_put(&w->other_c, "absent", key, 100), "");
        assert_int_equal(delete (&w->other_c, key), 1);
    }
    k->c = &w->other_c;
    k->g = node_reserve(&w->other_c, "absent", "held", 1000);
    snprintf(gen, 20, "%016llx", strtoull(k->g.gen, NULL, 16) + 1);
    relay->armed = true;
    assert_int_equal(pthread_create(&k->thread, NULL, commit, k), 0);
    HARNESS_UNTIL(!relay->armed, SOON_MS);
}

#define AS_LONG_AS_HELD "60000" /* node1 waits for Redis for as long as a test may hold a commit */

static struct redis_relay *node1_behind_relay(struct node_world *w, const char *redis_timeout_ms)
{
    struct redis_relay *relay = redis_relay_start(w->h, w->redis->unix_path, "o:held");
    struct harness_redis through = *w->redis;
    snprintf(through.url, sizeof(through.url), "unix://%.150s", relay->path);
    w->node = start_node(w, "node0", w->redis, "600");
    w->c = node_connect(w->node->control);
    w->other = harness_node_start(w->h, "node1", &through, "--pool", "cpu0:bytes=16M", "--heartbeat-ms",
                                  "300", "--redis-timeout-ms", redis_timeout_ms, NULL);
    w->other_c = node_connect(w->other->control);
    return relay;
}

static void ends_freed(struct node_world *w, struct redis_relay *relay, struct committing *k)
{
    relay->deliver = true;
    pthread_join(k->thread, NULL);
    freeReplyObject(k->reply);
    HARNESS_UNTIL(!objects(w->other) && !directory_has(w->redis, "held"), SOON_MS);
    HARNESS_UNTIL(to_recheck(w, "node1") == 0, SOON_MS);
    redis_relay_end(relay);
    harness_passed(w->h);
}

static void release_of_a_copy_being_published_is_busy(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = node1_behind_relay(w, AS_LONG_AS_HELD);
    struct committing k = {0};
    struct node_client c = node_connect(w->other->control);
    char gen[20];
    commit_held(w, relay, &k, gen);
    assert_error(first(harness_command(c.resp, "RELEASE", "cpu0", k.g.slot, gen, NULL)), "BUSY");
    node_close(&c);
    ends_freed(w, relay, &k);
}

/* A replace that the directory may have run without an answer: no record names what the key had on that node
 * before, so nobody else can have it freed. It goes before the replace has failed. One that the directory was
 * not asked for changes nothing. */
static void an_unanswered_replace_leaves_no_older_copy(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = node1_behind_relay(w, AS_LONG_AS_HELD);
    struct tarn_client *c = client_open(w->redis->url, (struct tarn_options){.timeout_ms = 10000});
    const struct tarn_put_options first = {.size = sizeof(first), .place = "node1"};
    struct tarn_put_options again = {
        .size = sizeof(again), .place = "node1", .flags = TARN_PUT_REPLACE, .timeout_ms = 1000};
    assert_int_equal(client_put(c, "held", 'a', 100, &first), 0);
    assert_int_equal(client_put(c, "kept", 'a', 100, &first), 0);
    relay->armed = true;
    assert_int_not_equal(client_put(c, "held", 'b', 100, &again), 0);
    assert_false(relay->armed);
    assert_int_equal(objects(w->other), 1);
    assert_int_not_equal(client_put(c, "kept", 'b', 100, &again), 0);
    assert_int_equal(objects(w->other), 1);
    relay->deliver = true;
    HARNESS_UNTIL(!directory_has(w->redis, "held"), SOON_MS);
    tarn_close(c);
    redis_relay_end(relay);
    harness_passed(w->h);
}

/* The same, when the node gives Redis up before its client gives up. */
static void a_replace_that_redis_does_not_answer_leaves_no_older_copy(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = node1_behind_relay(w, "1000");
    assert_string_equal(node_put(&w->other_c, "absent", "held", 100), "");
    assert_int_equal(objects(w->other), 1);
    relay->armed = true;
    assert_prefix(node_put(&w->other_c, "replace", "held", 100), "TIMEOUT");
    assert_int_equal(objects(w->other), 0);
    relay->deliver = true;
    HARNESS_UNTIL(!directory_has(w->redis, "held"), SOON_MS);
    redis_relay_end(relay);
    harness_passed(w->h);
}

static void beats(const struct node_world *w, int n)
{
    char before[64] = "";
    while (n-- > 0) {
        char now[64];
        do {
            redisReply *r = harness_redis_call(w->redis, "HGET", "tarn:default:directory", "beat", NULL);
            snprintf(now, sizeof(now), "%s", r->str);
            freeReplyObject(r);
            harness_pause();
        } while (!strcmp(now, before));
        memcpy(before, now, sizeof(before));
    }
}

/* A replace that Redis has refused has changed nothing. */
static void a_refused_replace_leaves_the_older_copy(void **state)
{
    struct node_world *w = *state;
    char place[64];
    harness_needs_redis_7(w->redis->address, "Redis 6.0 runs scripts whatever min-replicas-to-write says");
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    snprintf(place, sizeof(place), "%s", directory_field(w->redis, "k", "@node1/cpu0"));
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "min-replicas-to-write", "1", NULL));
    assert_prefix(node_put(&w->other_c, "replace", "k", 1000), "DIRECTORY");
    freeReplyObject(harness_redis_call(w->redis, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));
    beats(w, 3);
    assert_int_equal(objects(w->other), 1);
    assert_string_equal(directory_field(w->redis, "k", "@node1/cpu0"), place);
    harness_passed(w->h);
}

static void recheck_keeps_a_copy_that_is_being_published(void **state)
{
    struct node_world *w = *state;
    struct redis_relay *relay = node1_behind_relay(w, AS_LONG_AS_HELD);
    struct committing k = {0};
    char gen[20], member[64];
    commit_held(w, relay, &k, gen);
    snprintf(member, sizeof(member), "cpu0:%s:%s", k.g.slot, gen);
    harness_redis_integer(w->redis, "SADD", "tarn:default:recheck:node1", member, "cpu0:9:0000000100000002",
                          NULL);
    HARNESS_UNTIL(to_recheck(w, "node1") == 1, SOON_MS); /* only the member of the held commit is left */
    beats(w, 6);
    assert_int_equal(to_recheck(w, "node1"), 1);
    ends_freed(w, relay, &k);
}

/* --- SETTLED ------------------------------------------------------------------------------------ */

static void settled_when_the_holder_has_freed_it(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    assert_int_equal(settled(&w->c, "k", &copy), 0);
    harness_signal(w->other->process, SIGCONT);
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1, SOON_MS);
    assert_int_equal(objects(w->other), 0);
    assert_int_equal(settled(&w->other_c, "k", &copy), 1); /* the holder checks its own store */
    harness_passed(w->h);
}

/* A copy that the record does not name was freed, although its node lives. A location is not a displaced
 * copy yet. */
static void settled_when_the_record_does_not_name_it(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    char text[160];
    snprintf(text, sizeof(text), "@node1/cpu0=%s", directory_field(w->redis, "k", "@node1/cpu0"));
    struct copy live = parse(text);
    assert_int_equal(settled(&w->c, "k", &live), 0);
    assert_int_equal(settled(&w->other_c, "k", &live), 0);
    assert_int_equal(settled(&w->c, "another", &live), 1);
    assert_int_equal(settled(&w->other_c, "another", &live), 0); /* the holder checks its own store */
    assert_error(first(harness_command(w->c.resp, "SETTLED", "k", "node1", NULL)), "INVALID");
    harness_passed(w->h);
}

static void settled_when_another_run_has_the_id(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    harness_kill(w->other->process);
    w->other = start_node(w, "node1", w->redis, "600");
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1 && !named(w, "k", &copy), SOON_MS);
    /* This also works without a sweep. The copy is then out of the record. */
    struct copy older = parse("@node1/cpu0=0:1:0000000100000002");
    harness_redis_integer(w->redis, "HSET", OBJECT "k", "-node1/cpu0:1:0000000100000002", "0", NULL);
    assert_int_equal(settled(&w->c, "k", &older), 1);
    assert_false(named(w, "k", &older));
    assert_true(exists(w, "k"));
    harness_passed(w->h);
}

/* The node counts as gone when its record has expired, but not at the first check: missing nodes may be
 * about to report again. */
static void settled_when_the_record_of_its_node_has_expired(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    while (listed(w, "node1")) {
        long long is = settled(&w->c, "k", &copy);
        assert_true(is == 0 || !listed(w, "node1"));
        harness_pause();
    }
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1, SOON_MS);
    harness_passed(w->h);
}

/* A location may have been published again after a loss. Its node would keep the copy when it comes back. */
static void a_location_is_not_settled_by_expiry(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    char text[160], value[120];
    snprintf(value, sizeof(value), "%s", directory_field(w->redis, "k", "@node1/cpu0"));
    snprintf(text, sizeof(text), "@node1/cpu0=%s", value);
    struct copy live = parse(text);
    harness_signal(w->other->process, SIGSTOP);
    HARNESS_UNTIL(!listed(w, "node1") && !exists(w, "k"), SOON_MS); /* the sweep has removed it */
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    harness_redis_integer(w->redis, "HSET", OBJECT "k", "@node1/cpu0", value, NULL);
    for (uint64_t end = harness_now_ms() + 4 * HEARTBEAT_MS; harness_now_ms() < end; harness_pause())
        assert_int_equal(settled(&w->c, "k", &live), 0);
    harness_passed(w->h);
}

static void a_missing_node_is_checked_twice(void **state)
{
    struct node_world *w = *state;
    struct copy copy = replaced_while_stopped(w);
    HARNESS_UNTIL(!listed(w, "node1"), SOON_MS);
    uint64_t begun = harness_now_ms();
    assert_int_equal(settled(&w->c, "k", &copy), 0);
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1, SOON_MS);
    assert_true(harness_now_ms() - begun >= HEARTBEAT_MS);
    harness_passed(w->h);
}

/* A node that has not checked for a while starts over: its earlier observations no longer count. */
static void checks_of_a_missing_node_start_over_after_a_pause(void **state)
{
    struct node_world *w = *state;
    start_node(w, "node2", w->redis, "600"); /* keeps beating, so that the pause is no silence of all nodes */
    struct copy copy = replaced_while_stopped(w);
    HARNESS_UNTIL(!listed(w, "node1"), SOON_MS);
    assert_int_equal(settled(&w->c, "k", &copy), 0);
    harness_signal(w->node->process, SIGSTOP);
    for (uint64_t end = harness_now_ms() + 2 * HEARTBEAT_MS; harness_now_ms() < end;)
        harness_pause();
    uint64_t on = harness_now_ms();
    harness_signal(w->node->process, SIGCONT);
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1, SOON_MS);
    assert_true(harness_now_ms() - on >= HEARTBEAT_MS);
    harness_passed(w->h);
}

/* Ids that never come back, as those of containers. */
static void displaced_copies_of_any_number_of_missing_nodes_settle(void **state)
{
    struct node_world *w = *state;
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        struct copy copy = displaced_of(w, key, i);
        if (i == 0 || i == 299) /* the first one also waits for the directory to settle */
            HARNESS_UNTIL(settled(&w->c, key, &copy) == 1, SOON_MS);
        else
            settled(&w->c, key, &copy);
    }
    harness_passed(w->h);
}

/* All nodes were silent just now. A missing node may only not have reported yet. */
static void nothing_is_settled_by_expiry_after_a_silence_of_all(void **state)
{
    struct node_world *w = *state;
    char later[32];
    struct copy copy = replaced_while_stopped(w);
    snprintf(later, sizeof(later), "%llu", (unsigned long long)tarn_unix_ms() + 3600000);
    harness_redis_integer(w->redis, "HSET", "tarn:default:directory", "resumed", later, NULL);
    HARNESS_UNTIL(!listed(w, "node1"), SOON_MS);
    for (uint64_t end = harness_now_ms() + TTL_MS; harness_now_ms() < end;)
        assert_int_equal(settled(&w->c, "k", &copy), 0);
    harness_redis_integer(w->redis, "HSET", "tarn:default:directory", "resumed", "1", NULL);
    HARNESS_UNTIL(settled(&w->c, "k", &copy) == 1, SOON_MS);
    harness_passed(w->h);
}

/* --- AGAIN -------------------------------------------------------------------------------------- */

/* A new directory may lack nodes that live but have not reported yet. */
static void an_unsettled_directory_displaces_nothing(void **state)
{
    struct node_world *w = *state;
    struct copy none = parse("@node9/cpu0=0:1:0000000100000002");
    harness_redis_integer(w->redis, "DEL", "tarn:default:directory", NULL);
    w->node = start_node(w, "node0", w->redis, "600");
    w->c = node_connect(w->node->control);
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    assert_string_equal(node_put(&w->c, "absent", "away", 1000), "");
    struct node_grant g = node_reserve(&w->c, "replace", "k", 2000);
    assert_error(node_commit(&w->c, &g, "5000"), "AGAIN");
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 1);
    assert_int_equal(settled(&w->c, "k", &none), 0);
    harness_redis_integer(w->redis, "HSET", OBJECT "away", "@node9/cpu0", "0:1:0000000100000002", NULL);
    assert_error(first(harness_command(w->c.resp, "DELETE", "away", NULL)), "AGAIN");
    assert_int_equal(objects(w->node), 1); /* the local copy is freed all the same */
    HARNESS_UNTIL(!directory_field(w->redis, "away", "@node0/cpu0")[0], SOON_MS);
    assert_true(exists(w, "away")); /* the other copy may be newer than the freed one */
    for (bool done = false; !done;) {
        redisReply *r = node_commit(&w->c, &g, "5000");
        done = r->type == REDIS_REPLY_ARRAY;
        if (!done)
            assert_prefix(r->str, "AGAIN");
        freeReplyObject(r);
        harness_pause();
    }
    assert_int_equal(objects(w->node), 1);
    assert_int_equal(node_pool_figure(w->node->control, "reserved"), 0);
    harness_passed(w->h);
}

/* The commit is published, but the holder of the old copy cannot be told. Repeating the commit completes
 * it. */
static void a_commit_that_was_published_is_committed_again(void **state)
{
    struct node_world *w = *state;
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    harness_signal(w->other->process, SIGSTOP);
    struct node_grant g = node_reserve(&w->c, "replace", "k", 2000);
    freeReplyObject(harness_redis_call(w->redis, "SET", "tarn:default:recheck:node1", "no set", NULL));
    for (int i = 0; i < 2; i++) {
        assert_error(node_commit(&w->c, &g, "5000"), "AGAIN");
        assert_string_not_equal(directory_field(w->redis, "k", "@node0/cpu0"), "");
        assert_int_equal(objects(w->node), 1);
    }
    harness_redis_integer(w->redis, "DEL", "tarn:default:recheck:node1", NULL);
    redisReply *r = node_commit(&w->c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, 1);
    freeReplyObject(r);
    assert_int_equal(to_recheck(w, "node1"), 1);
    assert_int_equal(objects(w->node), 1);
    assert_error(node_commit(&w->c, &g, "5000"), "STALE"); /* the commit is complete */
    harness_passed(w->h);
}

/* Nodes withdraw freed copies a little later. A put waits for that, within its deadline. The names here
 * belong to a node that is listed but never answers, so no sweep of the other two nodes removes them. */
static void a_put_waits_while_its_record_names_too_many_displaced_copies(void **state)
{
    enum { MOST = 8 };
    struct node_world *w = *state;
    char names[MOST][64];
    assert_string_equal(node_put(&w->other_c, "absent", "k", 1000), "");
    harness_redis_integer(w->redis, "HSET", "tarn:default:node:silent", "epoch", "0000000000000001", NULL);
    for (int i = 0; i < MOST; i++) {
        snprintf(names[i], sizeof(names[i]), "-silent/cpu0:%d:0000000100000002", i);
        harness_redis_integer(w->redis, "HSET", "tarn:default:o:k", names[i], "0", NULL);
    }
    struct node_grant g = node_reserve(&w->c, "replace", "k", 2000);
    assert_error(node_commit(&w->c, &g, "5000"), "AGAIN");
    assert_int_equal(objects(w->node), 0);
    for (int i = 0; i < MOST; i++)
        harness_redis_integer(w->redis, "HDEL", "tarn:default:o:k", names[i], NULL);
    redisReply *r = node_commit(&w->c, &g, "5000");
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_int_equal(r->elements, 1);
    freeReplyObject(r);
    assert_int_equal(objects(w->node), 1);
    harness_passed(w->h);
}

/* --- sweeps ------------------------------------------------------------------------------------- */

static void a_sweep_removes_displaced_copies_of_earlier_runs(void **state)
{
    struct node_world *w = *state;
    w->node = start_node(w, "node0", w->redis, "1");
    w->other = start_node(w, "node1", w->redis, "600");
    w->c = node_connect(w->node->control);
    assert_string_equal(node_put(&w->c, "absent", "k", 1000), "");
    harness_redis_integer(w->redis, "HSET", OBJECT "k", "-node1/cpu0:1:0000000100000002", "0",
                          "-node0/cpu0:1:0000000100000002", "0", NULL);
    harness_redis_integer(w->redis, "HSET", OBJECT "none", "-node1/cpu0:1:0000000100000002", "0", NULL);
    HARNESS_UNTIL(!directory_has(w->redis, "none"), SOON_MS);
    HARNESS_UNTIL(harness_redis_integer(w->redis, "HLEN", OBJECT "k", NULL) == 4, SOON_MS);
    assert_true(exists(w, "k"));
    harness_passed(w->h);
}

#define TEST(test_) cmocka_unit_test_setup_teardown(test_, setup, node_world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_holder_frees_the_copies_in_its_recheck_set),
        TEST(the_next_writer_learns_of_earlier_displaced_copies),
        TEST(a_released_copy_is_out_of_the_record),
        TEST(a_node_that_replaces_frees_its_own_displaced_copy),
        TEST(a_joining_copy_frees_the_older_version_on_its_node),
        TEST(a_replacing_version_stays_the_newer_one_after_a_loss),
        TEST(delete_removes_the_copies_of_other_nodes),
        TEST(delete_of_the_only_copy_is_done_at_once),
        TEST(a_refused_delete_leaves_no_void_location),
        WITH_REDIS(an_unanswered_replace_leaves_no_older_copy),
        WITH_REDIS(a_replace_that_redis_does_not_answer_leaves_no_older_copy),
        TEST(a_refused_replace_leaves_the_older_copy),
        WITH_REDIS(release_of_a_copy_being_published_is_busy),
        WITH_REDIS(recheck_keeps_a_copy_that_is_being_published),
        TEST(settled_when_the_holder_has_freed_it),
        TEST(settled_when_the_record_does_not_name_it),
        TEST(settled_when_another_run_has_the_id),
        TEST(settled_when_the_record_of_its_node_has_expired),
        TEST(a_location_is_not_settled_by_expiry),
        TEST(a_missing_node_is_checked_twice),
        TEST(checks_of_a_missing_node_start_over_after_a_pause),
        TEST(displaced_copies_of_any_number_of_missing_nodes_settle),
        TEST(nothing_is_settled_by_expiry_after_a_silence_of_all),
        WITH_REDIS(an_unsettled_directory_displaces_nothing),
        TEST(a_commit_that_was_published_is_committed_again),
        TEST(a_put_waits_while_its_record_names_too_many_displaced_copies),
        WITH_REDIS(a_sweep_removes_displaced_copies_of_earlier_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
