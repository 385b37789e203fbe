/* SPDX-License-Identifier: Apache-2.0 */
/* Directory records as text: what is written is read back, and no malformed record does harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "metadata/records.h"

#define TEXT(s_) ((struct tarn_text){s_, sizeof(s_) - 1})
#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

/* A complete object record. Tests change one value and restore it. */
enum { TENSOR = 1, VER = 3, BORN = 5, TTL = 7, PLACE = 8, VALUE = 9 };
static const struct tarn_text good[] = {
    TEXT("tensor"),      TEXT("bf16[2,16,8]"),
    TEXT("ver"),         TEXT("9223372036854775807"),
    TEXT("born"),        TEXT("1764000000000"),
    TEXT("ttl"),         TEXT("60000"),
    TEXT("@node0/cpu0"), TEXT("4096:17:00ab12cd00000002"),
};

static int parse_with(size_t at, struct tarn_text text, struct tarn_record *r)
{
    struct tarn_text fields[COUNT(good)];
    memcpy(fields, good, sizeof fields);
    fields[at] = text;
    return tarn_record_parse(fields, COUNT(fields), r);
}

static void whole_record(void **state)
{
    struct tarn_record r;
    (void)state;
    assert_int_equal(tarn_record_parse(good, COUNT(good), &r), 0);
    assert_int_equal(r.tensor.dtype, TARN_BF16);
    assert_int_equal(r.tensor.ndim, 3);
    assert_int_equal(r.tensor.shape[2], 8);
    assert_int_equal(r.tensor.bytes, 2 * 2 * 16 * 8);
    assert_true(r.version == INT64_MAX);
    assert_true(r.born_ms == 1764000000000);
    assert_int_equal(r.ttl_ms, 60000);
    assert_int_equal(r.nlocations, 1);
    assert_string_equal(r.locations[0].node, "node0");
    assert_string_equal(r.locations[0].pool, "cpu0");
    assert_int_equal(r.locations[0].offset, 4096);
    assert_int_equal(r.locations[0].slot, 17);
    assert_true(r.locations[0].gen == 0x00ab12cd00000002);
}

static void fields_in_any_order_and_unknown_ones(void **state)
{
    const struct tarn_text fields[] = {
        TEXT("@b/p"),   TEXT("0:0:0000000000000002"),
        TEXT("crc"),    TEXT("\x01\xff"),
        TEXT("born"),   TEXT("1"),
        TEXT(""),       TEXT(""),
        TEXT("ver"),    TEXT("7"),
        TEXT("@a/p"),   TEXT("18446744073709551615:4294967295:fffffffffffffffe"),
        TEXT("tensor"), TEXT("f32[]"),
    };
    struct tarn_record r;
    (void)state;
    assert_int_equal(tarn_record_parse(fields, COUNT(fields), &r), 0);
    assert_int_equal(r.tensor.ndim, 0);
    assert_int_equal(r.tensor.bytes, 4);
    assert_int_equal(r.ttl_ms, 0);
    assert_int_equal(r.nlocations, 2);
    assert_true(r.locations[1].offset == UINT64_MAX && r.locations[1].slot == UINT32_MAX);
}

static void zero_length_tensor(void **state)
{
    struct tarn_record r;
    (void)state;
    assert_int_equal(parse_with(TENSOR, TEXT("u8[0]"), &r), 0);
    assert_int_equal(r.tensor.bytes, 0);
    assert_int_equal(r.tensor.ndim, 1);
    assert_int_equal(parse_with(TENSOR, TEXT("f32[9223372036854775808,4,0]"), &r), 0);
    assert_int_equal(r.tensor.bytes, 0);
}

/* Each is a FORMAT error whose message names the field. */
static const struct {
    size_t at;
    struct tarn_text text;
} damaged[] = {
    {TENSOR, TEXT("")},
    {TENSOR, TEXT("]")},
    {TENSOR, TEXT("bf16")},
    {TENSOR, TEXT("bf16[")},
    {TENSOR, TEXT("bf17[2]")},
    {TENSOR, TEXT("BF16[2]")},
    {TENSOR, TEXT("bf16[2,]")},
    {TENSOR, TEXT("bf16[-1]")},
    {TENSOR, TEXT("bf16[2]x")},
    {TENSOR, TEXT("bf16[1,1,1,1,1,1,1,1,1]")},
    {TENSOR, TEXT("u8[4294967296,4294967296]")},
    {TENSOR, TEXT("bf16[9223372036854775808]")},
    {VER, TEXT("")},
    {VER, TEXT("0")},
    {VER, TEXT("9223372036854775808")},
    {VER, TEXT("-1")},
    {VER, TEXT(" 1")},
    {VER, TEXT("1\0")},
    {BORN, TEXT("0")},
    {BORN, TEXT("1e9")},
    {TTL, TEXT("4294967296")},
    {TTL, TEXT("x")},
    {PLACE, TEXT("@")},
    {PLACE, TEXT("@/")},
    {PLACE, TEXT("@node0")},
    {PLACE, TEXT("@node0/")},
    {PLACE, TEXT("@/cpu0")},
    {PLACE, TEXT("@no de/cpu0")},
    {PLACE, TEXT("@node0/cpu0/x")},
    {PLACE, TEXT("@node0\0/cpu0")},
    {PLACE, TEXT("@0123456789012345678901234567890123456789012345678901234567890123/p")},
    {PLACE, TEXT("@n/01234567890123456789012345678901")},
    {VALUE, TEXT("")},
    {VALUE, TEXT("::")},
    {VALUE, TEXT("4096:17")},
    {VALUE, TEXT("4096:17:2")},
    {VALUE, TEXT("4096:17:00ab12cd00000003")},
    {VALUE, TEXT("4096:17:00ab12cd000000020")},
    {VALUE, TEXT("4096:17:00ab12cd0000000g")},
    {VALUE, TEXT("4096:17:00ab12cd@0000002")},
    {VALUE, TEXT("4096:17:00ab12cd`0000002")},
    {VALUE, TEXT("4096:1/:00ab12cd00000002")},
    {VALUE, TEXT("4096:1::00ab12cd00000002")},
    {VER, TEXT("1a")},
    {VALUE, TEXT("4096:4294967296:00ab12cd00000002")},
    {VALUE, TEXT("18446744073709551616:17:00ab12cd00000002")},
    {VALUE, TEXT("-1:17:00ab12cd00000002")},
};

static void damaged_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(damaged); i++) {
        struct tarn_record r;
        size_t name = damaged[i].at == PLACE ? PLACE : damaged[i].at - 1;
        int rc = parse_with(damaged[i].at, damaged[i].text, &r);
        if (rc != TARN_E_FORMAT)
            fail_msg("case %zu ('%s') gave %d", i, damaged[i].text.data, rc);
        if (damaged[i].at != PLACE && !strstr(tarn_last_error(), good[name].data))
            fail_msg("case %zu: no field in '%s'", i, tarn_last_error());
    }
}

static void missing_fields(void **state)
{
    static const char *const names[] = {"tensor", "ver", "born", NULL, "@<node>/<pool>"};
    (void)state;
    for (size_t gone = 0; gone < COUNT(names); gone++) {
        struct tarn_text fields[COUNT(good)];
        struct tarn_record r;
        size_t n = 0;
        for (size_t i = 0; i < COUNT(good); i++)
            if (i / 2 != gone)
                fields[n++] = good[i];
        int rc = tarn_record_parse(fields, n, &r);
        assert_int_equal(rc, names[gone] ? TARN_E_FORMAT : 0);
        if (names[gone])
            assert_non_null(strstr(tarn_last_error(), names[gone]));
    }
    struct tarn_record r;
    assert_int_equal(tarn_record_parse(good, 0, &r), TARN_E_FORMAT);
    assert_int_equal(tarn_record_parse(good, COUNT(good) - 1, &r), TARN_E_FORMAT);
}

/* If a record has too many copies, the first ones are used. */
static void more_copies_than_room(void **state)
{
    struct tarn_text fields[6 + 2 * 20];
    char names[20][16];
    struct tarn_record r;
    (void)state;
    memcpy(fields, good, 6 * sizeof *fields);
    for (int i = 0; i < 20; i++) {
        int n = snprintf(names[i], sizeof names[i], "@n%d/cpu0", i);
        fields[6 + 2 * i] = (struct tarn_text){names[i], (size_t)n};
        fields[7 + 2 * i] = good[VALUE];
    }
    assert_int_equal(tarn_record_parse(fields, COUNT(fields), &r), 0);
    assert_int_equal(r.nlocations, TARN_REPLICAS_MAX);
    assert_string_equal(r.locations[TARN_REPLICAS_MAX - 1].node, "n7");
}

static void locations_read_back(void **state)
{
    struct tarn_location l = {.offset = UINT64_MAX, .slot = UINT32_MAX, .gen = UINT64_MAX - 1}, back;
    char field[TARN_LOCATION_FIELD], value[TARN_LOCATION_VALUE];
    (void)state;
    memset(l.node, 'n', TARN_NODE_ID_MAX);
    memset(l.pool, 'p', TARN_POOL_NAME_MAX);
    tarn_location_field(&l, field);
    tarn_location_value(&l, value);
    assert_int_equal(tarn_location_parse((struct tarn_text){field, strlen(field)},
                                         (struct tarn_text){value, strlen(value)}, &back),
                     0);
    assert_string_equal(back.node, l.node);
    assert_string_equal(back.pool, l.pool);
    assert_true(back.offset == l.offset && back.slot == l.slot && back.gen == l.gen);
}

static void tensors_read_back(void **state)
{
    (void)state;
    for (uint32_t dtype = 0; dtype < TARN_DTYPE_COUNT; dtype++) {
        struct tarn_tensor t = {.dtype = dtype, .ndim = dtype % (TARN_DIMS_MAX + 1)};
        char text[TARN_TENSOR_TEXT];
        struct tarn_record r;
        for (uint32_t i = 0; i < t.ndim; i++)
            t.shape[i] = i + 1;
        tarn_tensor_format(&t, text);
        assert_int_equal(parse_with(TENSOR, (struct tarn_text){text, strlen(text)}, &r), 0);
        assert_int_equal(r.tensor.dtype, dtype);
        assert_int_equal(r.tensor.ndim, t.ndim);
        assert_memory_equal(r.tensor.shape, t.shape, t.ndim * sizeof *t.shape);
        assert_int_equal(tarn_tensor_check(&r.tensor), 0);
    }
}

/* --- nodes and pools ---------------------------------------------------------------------------- */

static void node_record(void **state)
{
    const struct tarn_text fields[] = {
        TEXT("epoch"),   TEXT("00000000000000ff"),
        TEXT("host"),    TEXT("h"),
        TEXT("control"), TEXT("127.0.0.1:7700"),
        TEXT("pid"),     TEXT("4294967295"),
        TEXT("pools"),   TEXT("a,b"),
        TEXT("later"),   TEXT("x"),
    };
    struct tarn_node_record n = {.id = "n0"};
    char pools[TARN_POOL_LIST];
    (void)state;
    assert_int_equal(tarn_node_parse(fields, COUNT(fields), &n, pools), 0);
    assert_int_equal(n.epoch, 255);
    assert_true(n.pid == UINT32_MAX);
    assert_string_equal(n.host, "h");
    assert_string_equal(n.control, "127.0.0.1:7700");
    assert_string_equal(pools, "a,b");
}

static void damaged_nodes(void **state)
{
    static char endless[1000];
    memset(endless, 'x', sizeof endless);
    const struct tarn_text cases[][2] = {
        {TEXT("epoch"), TEXT("x")},
        {TEXT("epoch"), TEXT("10000000000000000")},
        {TEXT("pid"), TEXT("-1")},
        {TEXT("started"), TEXT("never")},
        {TEXT("host"), {endless, sizeof endless}},
        {TEXT("hostid"), {endless, 40}},
        {TEXT("state"), TEXT("up\x1b[2J")},
        {TEXT("unix"), TEXT("/a\0b")},
        {TEXT("pools"), {endless, sizeof endless}},
        {TEXT("later"), TEXT("no epoch")},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tarn_node_record n = {.id = "n0"};
        char pools[TARN_POOL_LIST];
        assert_int_equal(tarn_node_parse(cases[i], 2, &n, pools), TARN_E_FORMAT);
    }
}

static void pool_record(void **state)
{
    const struct tarn_text fields[] = {
        TEXT("epoch"),   TEXT("ff"),    TEXT("kind"),       TEXT("cpu"),           TEXT("index"),
        TEXT("3"),       TEXT("tcp"),   TEXT("v1 there"),   TEXT("bytes"),         TEXT("4096"),
        TEXT("free"),    TEXT("1"),     TEXT("transports"), TEXT("rdma,shm,,tcp"), TEXT("shm"),
        TEXT("v1 here"), TEXT("slots"), TEXT("9"),
    };
    struct tarn_pool_record p = {.name = "cpu0"};
    uint64_t epoch;
    (void)state;
    assert_int_equal(tarn_pool_parse(fields, COUNT(fields), &p, &epoch), 0);
    assert_int_equal(epoch, 255);
    assert_int_equal(p.index, 3);
    assert_int_equal(p.bytes, 4096);
    assert_int_equal(p.slots, 9);
    assert_string_equal(p.kind, "cpu");
    assert_string_equal(p.transports, "shm,tcp"); /* rdma is missing: it has no descriptor */
    assert_string_equal(p.fields[0], "v1 here");
    assert_string_equal(p.fields[1], "v1 there");
}

static void damaged_pools(void **state)
{
    static char endless[1000];
    memset(endless, 'x', sizeof endless);
    const struct tarn_text cases[][4] = {
        {TEXT("index"), TEXT("16"), TEXT("epoch"), TEXT("1")},
        {TEXT("bytes"), TEXT("18446744073709551615"), TEXT("epoch"), TEXT("1")},
        {TEXT("kind"), TEXT("endless tape"), TEXT("epoch"), TEXT("1")},
        {TEXT("transports"), TEXT("shm"), TEXT("shm"), {endless, TARN_FIELD_MAX}},
        {TEXT("slots"), TEXT("4294967296"), TEXT("epoch"), TEXT("1")},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tarn_pool_record p = {.name = "cpu0"};
        uint64_t epoch;
        assert_int_equal(tarn_pool_parse(cases[i], 4, &p, &epoch), TARN_E_FORMAT);
    }
}

static void too_many_transports(void **state)
{
    const struct tarn_text fields[] = {
        TEXT("transports"), TEXT("a,b,c,d,e,f"), TEXT("a"), TEXT("1"), TEXT("b"), TEXT("2"), TEXT("c"),
        TEXT("3"),          TEXT("d"),           TEXT("4"), TEXT("e"), TEXT("5"), TEXT("f"), TEXT("6"),
    };
    struct tarn_pool_record p = {.name = "cpu0"};
    uint64_t epoch;
    (void)state;
    assert_int_equal(tarn_pool_parse(fields, COUNT(fields), &p, &epoch), 0);
    assert_string_equal(p.transports, "a,b,c,d");
    assert_string_equal(p.fields[3], "4");
}

/* --- any bytes ---------------------------------------------------------------------------------- */

/* Cuts, changes and doubles bytes of good texts. Only the sanitizers check the result. */
static struct tarn_text mutate(struct tarn_text t, unsigned *seed, char *room, size_t room_bytes)
{
    size_t n = t.bytes < room_bytes ? t.bytes : room_bytes;
    memcpy(room, t.data, n);
    if (rand_r(seed) % 3 == 0)
        n = n ? (size_t)rand_r(seed) % n : 0;
    for (int changes = rand_r(seed) % 3; changes && n; changes--)
        room[(size_t)rand_r(seed) % n] = (char)rand_r(seed);
    return (struct tarn_text){room, n};
}

static void mutated_records(void **state)
{
    static const char *const extra[] = {"epoch", "transports", "shm", "pools", "host", "index", "@", "@a/b"};
    unsigned seed = (unsigned)tarn_random64();
    (void)state;
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        struct tarn_text fields[COUNT(good)];
        char *room[COUNT(good)];
        for (size_t i = 0; i < COUNT(good); i++) {
            const char *e = extra[(size_t)rand_r(&seed) % COUNT(extra)];
            struct tarn_text t = rand_r(&seed) % 4 ? good[i] : (struct tarn_text){e, strlen(e)};
            room[i] = malloc(t.bytes ? t.bytes : 1); /* so that a read past the end is detected */
            assert_non_null(room[i]);
            fields[i] = mutate(t, &seed, room[i], t.bytes);
        }
        size_t n = (size_t)rand_r(&seed) % (COUNT(good) + 1);
        struct tarn_record r;
        struct tarn_node_record node = {.id = "n"};
        struct tarn_pool_record pool = {.name = "p"};
        char pools[TARN_POOL_LIST];
        uint64_t epoch;
        int rc = tarn_record_parse(fields, n, &r);
        assert_true(rc == 0 || rc == TARN_E_FORMAT || rc == TARN_E_NOT_FOUND);
        if (rc == 0)
            assert_true(r.nlocations >= 1 && r.version && tarn_tensor_check(&r.tensor) == 0);
        rc = tarn_node_parse(fields, n, &node, pools);
        assert_true(rc == 0 || rc == TARN_E_FORMAT);
        rc = tarn_pool_parse(fields, n, &pool, &epoch);
        assert_true(rc == 0 || rc == TARN_E_FORMAT);
        for (size_t i = 0; i < COUNT(good); i++)
            free(room[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_record),        cmocka_unit_test(fields_in_any_order_and_unknown_ones),
        cmocka_unit_test(zero_length_tensor),  cmocka_unit_test(damaged_values),
        cmocka_unit_test(missing_fields),      cmocka_unit_test(more_copies_than_room),
        cmocka_unit_test(locations_read_back), cmocka_unit_test(tensors_read_back),
        cmocka_unit_test(node_record),         cmocka_unit_test(damaged_nodes),
        cmocka_unit_test(pool_record),         cmocka_unit_test(damaged_pools),
        cmocka_unit_test(too_many_transports), cmocka_unit_test(mutated_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
