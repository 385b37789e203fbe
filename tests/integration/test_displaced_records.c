/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Displaced copies in the directory: the record names them until their node has freed them, even when the
 * object is replaced or removed.
 */
#include "tests/directory_fixture.h"

#define HOUR_MS 3600000
#define RECORD "tarn:" NS ":o:k"

/* A text field of the record; "" if it is missing. Valid until the next call. */
static const char *field(const struct fixture *f, const char *name)
{
    static char text[128];
    redisReply *r = harness_call(f->address, "HGET", RECORD, name, NULL);
    snprintf(text, sizeof text, "%s", r->type == REDIS_REPLY_STRING ? r->str : "");
    freeReplyObject(r);
    return text;
}

static bool names(const struct fixture *f, const char *name)
{
    return field(f, name)[0] != 0;
}

static struct tarn_removal remove_key(struct fixture *f, const struct tarn_location *freed)
{
    struct tarn_removal r = {.key = key_of("k")};
    if (freed)
        r.freed = *freed;
    int rc = tarn_directory_remove(f->d, &r, 1, soon());
    assert_int_equal(rc, r.status == TARN_E_DIRECTORY ? TARN_E_DIRECTORY : 0);
    return r;
}

/* Version 1 on node0 and node1, replaced by version 2 on node2. */
static void replaced(struct fixture *f)
{
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_JOIN, 1, "node1", 4), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, 2, "node2", 6), 0);
}

#define NODE0 "-node0/cpu0:1:0000000000000002"
#define NODE1 "-node1/cpu0:1:0000000000000004"
#define NODE2 "-node2/cpu0:2:0000000000000006"

static bool answers(const struct tarn_publish *p, const char *node, uint64_t gen)
{
    for (uint32_t i = 0; i < p->nnamed; i++)
        if (!strcmp(p->displaced[i].node, node) && p->displaced[i].gen == gen)
            return p->displaced[i].offset > 0 && !strcmp(p->displaced[i].pool, "cpu0");
    return false;
}

/* --- publish ------------------------------------------------------------------------------------ */

static void replace_names_the_copies_of_other_nodes(void **state)
{
    struct fixture *f = *state;
    replaced(f);
    assert_string_equal(field(f, NODE0), "4096");
    assert_string_equal(field(f, NODE1), "4096");
    assert_false(names(f, "@node0/cpu0"));
    struct found found = look(f->d, "k");
    assert_int_equal(found.status, 0);
    assert_int_equal(found.record.version, 2);
    assert_int_equal(found.record.nlocations, 1);
}

/* The next writer finds displaced copies that an earlier one left. Its own old copy is not named: the node
 * frees it when the answer comes. */
static void displaced_copies_stay_through_the_next_replace(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish next = copy_of("k", TARN_PUBLISH_REPLACE, 3, "node2", 8);
    replaced(f);
    assert_int_equal(publish(f->d, &next), 0);
    assert_int_equal(next.nnamed, 2);
    assert_int_equal(next.ndisplaced, 3);
    assert_true(answers(&next, "node0", 2) && answers(&next, "node1", 4));
    assert_int_equal(next.displaced[2].gen, 6);
    assert_true(names(f, NODE0) && names(f, NODE1) && !names(f, NODE2));
}

/* A node's own displaced copy is still readable after the script, so it is named until it is withdrawn. */
static void own_displaced_copy_stays_until_it_is_freed(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish next = copy_of("k", TARN_PUBLISH_REPLACE, 3, "node0", 8);
    replaced(f);
    assert_int_equal(publish(f->d, &next), 0);
    assert_int_equal(next.nnamed, 3);
    assert_true(answers(&next, "node0", 2) && answers(&next, "node1", 4) && answers(&next, "node2", 6));
    assert_true(names(f, NODE0));
    assert_true(withdraw(f->d, "k", location("node0", 4096, 2)));
    assert_false(names(f, NODE0));
    assert_int_equal(look(f->d, "k").record.locations[0].gen, 8);
}

/* A repeated publish gets the first answer again. */
static void a_repeated_publish_gets_the_same_answer(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish again = copy_of("k", TARN_PUBLISH_REPLACE, 2, "node2", 6);
    replaced(f);
    assert_int_equal(publish(f->d, &again), 0);
    assert_int_equal(again.nnamed, 2);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, 3, "node3", 8), 0);
    assert_int_equal(publish(f->d, &again), 0);
    assert_true(answers(&again, "node2", 6)); /* it was displaced in the meantime */
    assert_int_equal(look(f->d, "k").record.version, 3);
}

static void born_grows_with_every_replace(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish behind = copy_of("k", TARN_PUBLISH_REPLACE, 2, "node1", 4);
    struct tarn_publish joins = copy_of("k", TARN_PUBLISH_JOIN, 2, "node2", 6);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1000, "node0", 2), 0);
    assert_int_equal(publish(f->d, &behind), 0);
    assert_true(behind.record.born_ms == 1764000001001);
    assert_true(look(f->d, "k").record.born_ms == 1764000001001);
    assert_int_equal(publish(f->d, &joins), 0);
    assert_true(joins.record.born_ms == 1764000001001);
    /* A born_ms that is already ahead is not changed. */
    struct tarn_publish ahead = copy_of("k", TARN_PUBLISH_REPLACE, 5000, "node1", 8);
    assert_int_equal(publish(f->d, &ahead), 0);
    assert_true(ahead.record.born_ms == 1764000005000);
}

static void restore_of_a_displaced_copy_is_refused(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish old = copy_of("k", TARN_PUBLISH_RESTORE, 1, "node0", 2);
    replaced(f);
    old.record.born_ms += 1000000; /* whatever born_ms it claims */
    assert_int_equal(publish(f->d, &old), TARN_E_EXISTS);
    assert_true(withdraw(f->d, "k", location("node2", 8192, 6)));
    assert_int_equal(publish(f->d, &old), TARN_E_EXISTS); /* even if no other copy is left */
    old.replaces = 2;
    assert_int_equal(publish(f->d, &old), TARN_E_EXISTS);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_RESTORE, 5, "node5", 10), 0);
}

static void a_record_names_eight_displaced_copies(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish one_more = copy_of("k", TARN_PUBLISH_REPLACE, 10, "node10", 20);
    for (uint64_t v = 1; v <= 9; v++) {
        char id[16];
        snprintf(id, sizeof id, "node%d", (int)v);
        assert_int_equal(put(f->d, "k", TARN_PUBLISH_REPLACE, v, id, 2 * v), 0);
    }
    assert_int_equal(publish(f->d, &one_more), TARN_E_AGAIN);
    assert_said("8 displaced copies");
    assert_int_equal(look(f->d, "k").record.version, 9);
    assert_int_equal(remove_key(f, NULL).status, TARN_E_DIRECTORY);
    assert_int_equal(look(f->d, "k").status, 0);
    assert_true(withdraw(f->d, "k", location("node3", 3 * 4096, 6)));
    assert_int_equal(publish(f->d, &one_more), 0);
    assert_int_equal(one_more.nnamed, 8);
}

/* --- withdraw ----------------------------------------------------------------------------------- */

static int count_all(void *arg, const struct tarn_key *key, const struct tarn_record *r)
{
    (void)key, (void)r;
    ++*(size_t *)arg;
    return 0;
}

static int sum_copies(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                      uint32_t nlocations, uint32_t n)
{
    assert_int_equal(key->bytes, 1);
    for (uint32_t i = 0; i < n; i++)
        *(size_t *)arg += (i < nlocations ? 100 : 1) * copies[i].gen;
    return 0;
}

static size_t swept(struct fixture *f)
{
    uint64_t cursor = 0;
    size_t sum = 0;
    do
        assert_int_equal(tarn_directory_scan_page(f->d, 100, &cursor, soon(), sum_copies, &sum), 0);
    while (cursor);
    return sum;
}

/* Withdrawing the last location removes the object but keeps the displaced copies. Only sweeps see those. */
static void withdraw_keeps_displaced_copies(void **state)
{
    struct fixture *f = *state;
    size_t objects = 0;
    replaced(f);
    assert_int_equal(swept(f), 600 + 2 + 4);
    assert_true(withdraw(f->d, "k", location("node2", 8192, 6)));
    assert_true(names(f, NODE0) && names(f, NODE1) && !names(f, "ver") && !names(f, "tensor"));
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(tarn_directory_scan(f->d, NULL, soon(), NULL, count_all, &objects), 0);
    assert_int_equal(objects, 0);
    assert_int_equal(swept(f), 2 + 4);
    assert_in_range(command(f, "PTTL", RECORD), HOUR_MS - 60000, HOUR_MS);
    assert_true(withdraw(f->d, "k", location("node0", 4096, 2)));
    assert_false(withdraw(f->d, "k", location("node0", 4096, 2)));
    assert_true(withdraw(f->d, "k", location("node1", 4096, 4)));
    assert_int_equal(command(f, "EXISTS", RECORD), 0);
}

static void withdraw_of_a_displaced_copy_leaves_the_object(void **state)
{
    struct fixture *f = *state;
    replaced(f);
    assert_false(withdraw(f->d, "k", location("node0", 4096, 8))); /* another copy in that slot */
    assert_true(withdraw(f->d, "k", location("node0", 4096, 2)));
    assert_true(withdraw(f->d, "k", location("node1", 4096, 4)));
    assert_int_equal(look(f->d, "k").record.version, 2);
    assert_int_equal(command(f, "HLEN", RECORD), 4);
    assert_int_equal(command(f, "PTTL", RECORD), -1);
}

/* Leftover displaced copies expire after an hour. A new object in the record gets its own time to live. */
static void a_publish_ends_the_expiry(void **state)
{
    struct fixture *f = *state;
    struct tarn_publish next = copy_of("k", TARN_PUBLISH_ABSENT, 3, "node3", 8);
    replaced(f);
    assert_true(withdraw(f->d, "k", location("node2", 8192, 6)));
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_JOIN, 2, "node3", 8), TARN_E_EXISTS);
    assert_int_equal(publish(f->d, &next), 0);
    assert_true(answers(&next, "node0", 2) && answers(&next, "node1", 4));
    assert_int_equal(command(f, "PTTL", RECORD), -1);
    struct tarn_publish brief = copy_of("k", TARN_PUBLISH_REPLACE, 4, "node3", 10);
    brief.record.born_ms = tarn_unix_ms();
    brief.record.ttl_ms = 1000;
    assert_int_equal(publish(f->d, &brief), 0);
    assert_in_range(command(f, "PTTL", RECORD), HOUR_MS - 60000, HOUR_MS); /* names displaced copies */
}

/* --- remove ------------------------------------------------------------------------------------- */

static void remove_leaves_displaced_copies_only(void **state)
{
    struct fixture *f = *state;
    struct tarn_location own = location("node1", 4096, 4);
    assert_int_equal(remove_key(f, NULL).status, TARN_E_NOT_FOUND);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_ABSENT, 1, "node0", 2), 0);
    assert_int_equal(put(f->d, "k", TARN_PUBLISH_JOIN, 1, "node1", 4), 0);
    struct tarn_removal r = remove_key(f, &own);
    assert_int_equal(r.status, 0);
    assert_int_equal(r.ndisplaced, 1);
    assert_string_equal(r.displaced[0].node, "node0");
    assert_true(r.displaced[0].gen == 2 && r.displaced[0].slot == 1 && r.displaced[0].offset == 4096);
    assert_int_equal(look(f->d, "k").status, TARN_E_NOT_FOUND);
    assert_int_equal(command(f, "HLEN", RECORD), 1);
    assert_in_range(command(f, "PTTL", RECORD), HOUR_MS - 60000, HOUR_MS);
    r = remove_key(f, NULL); /* the object is gone, but its copy may still be read */
    assert_int_equal(r.status, TARN_E_NOT_FOUND);
    assert_int_equal(r.ndisplaced, 1);
    assert_true(withdraw(f->d, "k", location("node0", 4096, 2)));
    assert_int_equal(remove_key(f, NULL).status, TARN_E_NOT_FOUND);
}

/* Only the copy that the node says it freed is taken out. Another copy of that node may be on its way. */
static void remove_takes_out_only_the_freed_copy(void **state)
{
    struct fixture *f = *state;
    struct tarn_location other = location("node0", 4096, 8), own = location("node0", 4096, 2);
    replaced(f);
    struct tarn_removal r = remove_key(f, &other);
    assert_int_equal(r.ndisplaced, 3);
    r = remove_key(f, &own);
    assert_int_equal(r.ndisplaced, 2);
    assert_true(!names(f, NODE0) && names(f, NODE1) && names(f, NODE2));
}

/* --- recheck sets ------------------------------------------------------------------------------- */

static void recheck_sets_keep_unfinished_copies(void **state)
{
    struct fixture *f = *state;
    struct tarn_location l[3] = {location("node0", 4096, 2), location("node0", 8192, 4),
                                 location("node1", 0, 6)};
    struct tarn_location found[8];
    size_t n = 8;
    assert_int_equal(tarn_directory_recheck(f->d, "node0", NULL, 0, found, &n, soon()), 0);
    assert_int_equal(n, 0);
    assert_int_equal(tarn_directory_recheck_add(f->d, l, 3, soon()), 0);
    assert_int_equal(tarn_directory_recheck_add(f->d, l, 3, soon()), 0);
    assert_in_range(command(f, "PTTL", "tarn:" NS ":recheck:node0"), HOUR_MS - 60000, HOUR_MS);
    command(f, "SADD", "tarn:" NS ":recheck:node0", "what is this");
    n = 8;
    assert_int_equal(tarn_directory_recheck(f->d, "node0", NULL, 0, found, &n, soon()), 0);
    assert_int_equal(n, 2);
    n = 8;
    assert_int_equal(tarn_directory_recheck(f->d, "node0", l, 1, found, &n, soon()), 0);
    assert_int_equal(n, 1);
    assert_string_equal(found[0].node, "node0");
    assert_string_equal(found[0].pool, "cpu0");
    assert_true(found[0].slot == 2 && found[0].gen == 4);
    n = 1;
    assert_int_equal(tarn_directory_recheck(f->d, "node1", NULL, 0, found, &n, soon()), 0);
    assert_true(n == 1 && found[0].gen == 6);
}

#define TEST(name_) cmocka_unit_test_setup(name_, empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(replace_names_the_copies_of_other_nodes),
        TEST(displaced_copies_stay_through_the_next_replace),
        TEST(own_displaced_copy_stays_until_it_is_freed),
        TEST(a_repeated_publish_gets_the_same_answer),
        TEST(born_grows_with_every_replace),
        TEST(restore_of_a_displaced_copy_is_refused),
        TEST(a_record_names_eight_displaced_copies),
        TEST(withdraw_keeps_displaced_copies),
        TEST(withdraw_of_a_displaced_copy_leaves_the_object),
        TEST(a_publish_ends_the_expiry),
        TEST(remove_leaves_displaced_copies_only),
        TEST(remove_takes_out_only_the_freed_copy),
        TEST(recheck_sets_keep_unfinished_copies),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
