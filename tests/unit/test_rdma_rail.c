/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tarn decides about devices, ports, GIDs and routes, and endpoints as text. No device is used: the
 * verbs are the stand-in of fake_verbs.h, and routes are the kernel's own, to loopback addresses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tests/unit/fake_verbs.h"

/* --- endpoints as text -------------------------------------------------------------------------- */

static void same_end(const struct tarn_endpoint *a, const struct tarn_endpoint *b)
{
    assert_int_equal(a->qpn, b->qpn);
    assert_int_equal(a->psn, b->psn);
    assert_int_equal(a->lid, b->lid);
    assert_int_equal(a->roce, b->roce);
    assert_memory_equal(a->gid.raw, b->gid.raw, 16);
    assert_int_equal(a->mtu, b->mtu);
    assert_int_equal(a->reads_out, b->reads_out);
    assert_int_equal(a->reads_in, b->reads_in);
}

static uint64_t seed;

static uint64_t next_random(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static int print_seed(void **state)
{
    (void)state;
    seed = tarn_random64();
    print_message("seed %llu\n", (unsigned long long)seed);
    return 0;
}

static struct tarn_endpoint random_end(void)
{
    struct tarn_endpoint e = {
        .qpn = (uint32_t)next_random() & 0xffffff,
        .psn = (uint32_t)next_random() & 0xffffff,
        .lid = (uint16_t)next_random(),
        .roce = next_random() & 1,
        .mtu = 1 + (uint32_t)(next_random() % 5),
        .reads_out = (uint8_t)next_random(),
        .reads_in = (uint8_t)next_random(),
    };
    for (int i = 0; i < 16; i++)
        e.gid.raw[i] = (uint8_t)next_random();
    return e;
}

static void an_endpoint_survives_formatting_and_parsing(void **state)
{
    (void)state;
    struct tarn_endpoint most = {.qpn = 0xffffff, .psn = 0xffffff, .lid = 0xffff, .roce = true, .mtu = 5};
    most.reads_out = most.reads_in = 255;
    memset(most.gid.raw, 0xff, 16);
    for (int i = 0; i < 2000; i++) {
        struct tarn_endpoint e = i == 0 ? most : random_end(), back;
        char text[TARN_ENDPOINT_TEXT];
        tarn_endpoint_format(&e, text);
        assert_true(strlen(text) < TARN_ENDPOINT_TEXT - 1);
        if (tarn_endpoint_parse(text, strlen(text), &back))
            fail_msg("%s: %s", text, tarn_last_error());
        same_end(&e, &back);
    }
}

#define GID "00000000000000000000ffff0a4d0001"

static void malformed_endpoints_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        ",",
        ",,,,,,,",
        "1,2,3,1," GID ",3,10",          /* too few */
        "1,2,3,1," GID ",3,10,10,1",     /* too many */
        "1,2,3,1," GID ",3,10,10,",      /* one more, empty */
        "1,2,3,1," GID ",3,10,",         /* the last is empty */
        "1000000,2,3,1," GID ",3,10,10", /* 25 bits */
        "1,1000000,3,1," GID ",3,10,10",
        "1,2,10000,1," GID ",3,10,10",
        "1,2,3,2," GID ",3,10,10",
        "1,2,3,1," GID "0,3,10,10", /* a GID of 33 digits */
        "1,2,3,1,0a4d,3,10,10",
        "1,2,3,1,0000000000000000000 ffff0a4d0001,3,10,10",
        "1,2,3,1,-000000000000000000ffff0a4d0001a,3,10,10",
        "1,2,3,1," GID ",0,10,10", /* no MTU has code 0 */
        "1,2,3,1," GID ",6,10,10",
        "1,2,3,1," GID ",3,100,10",
        "1,2,3,1," GID ",3,10,100",
        "-1,2,3,1," GID ",3,10,10",
        "+1,2,3,1," GID ",3,10,10",
        "0x1,2,3,1," GID ",3,10,10",
        " 1,2,3,1," GID ",3,10,10",
        "1,2,3,1," GID ",3,10,10 ",
        "g,2,3,1," GID ",3,10,10",
        "99999999999999999999,2,3,1," GID ",3,10,10",
    };
    struct tarn_endpoint e;
    static const char good[] = "1,2,3,1," GID ",3,10,10";
    assert_int_equal(tarn_endpoint_parse(good, strlen(good), &e), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        /* A separate allocation, so that a read past the end is detected. */
        size_t bytes = strlen(bad[i]);
        char *copy = malloc(bytes ? bytes : 1);
        assert_non_null(copy);
        memcpy(copy, bad[i], bytes);
        if (tarn_endpoint_parse(copy, bytes, &e) != TARN_E_PROTOCOL)
            fail_msg("accepted: %s", bad[i]);
        free(copy);
    }
    for (size_t n = 0; n < sizeof good - 2; n++) /* cut short; the last number may lose a digit */
        assert_int_equal(tarn_endpoint_parse(good, n, &e), TARN_E_PROTOCOL);
}

/* A good text with one changed character is refused, or formats back to the same text. */
static void a_changed_endpoint_is_refused_or_formats_back(void **state)
{
    (void)state;
    static const char letters[] = "0123456789abcdefABCDEFg,- :x";
    for (int i = 0; i < 20000; i++) {
        struct tarn_endpoint e = random_end(), back, again;
        char text[TARN_ENDPOINT_TEXT], second[TARN_ENDPOINT_TEXT];
        tarn_endpoint_format(&e, text);
        size_t bytes = strlen(text);
        text[next_random() % bytes] = letters[next_random() % (sizeof letters - 1)];
        if (tarn_endpoint_parse(text, bytes, &back)) {
            assert_non_null(strstr(tarn_last_error(), "rdma: "));
            continue;
        }
        tarn_endpoint_format(&back, second);
        assert_int_equal(tarn_endpoint_parse(second, strlen(second), &again), 0);
        same_end(&back, &again);
    }
}

/* --- devices ------------------------------------------------------------------------------------ */

static void opens(const char *devices, const char *names)
{
    struct tarn_rails r;
    char got[256] = "";
    if (tarn_rails_open(devices, &r))
        fail_msg("%s: %s", devices ? devices : "all", tarn_last_error());
    for (uint32_t i = 0; i < r.n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "", r.rail[i].name);
    assert_string_equal(got, names);
    tarn_rails_close(&r);
    assert_true(fake_goes_to(NULL, 0));
}

static void refuses(const char *devices, int code, const char *says)
{
    struct tarn_rails r;
    assert_int_equal(tarn_rails_open(devices, &r), code);
    if (!strstr(tarn_last_error(), says))
        fail_msg("\"%s\" does not say \"%s\"", tarn_last_error(), says);
    assert_true(fake_goes_to(NULL, 0));
}

static void all_active_ports_are_rails_the_fastest_first(void **state)
{
    (void)state;
    fake_reset();
    fake_add("slow", 1);
    struct fake_device *two = fake_add("two", 2);
    two->nports = 2;
    two->port[1].speed = 32, two->port[1].width = 2; /* 4 x 25 Gbit/s */
    two->port[2] = two->port[1];
    fake_add("down", 3)->port[1].down = true;
    fake_add("bare", 4)->port[1].ngids = 0;
    fake_add("locked", 5)->closed = true;
    opens(NULL, "two:1 two:2 slow:1");
    opens("", "two:1 two:2 slow:1");
    two->port[1].down = true;
    opens(NULL, "two:2 slow:1");
    opens("two", "two:2");
    opens("slow,two:2", "two:2 slow:1");
}

static void a_named_device_must_be_usable(void **state)
{
    (void)state;
    fake_reset();
    refuses(NULL, TARN_E_UNAVAILABLE, "rdma: no device");
    fake.missing = "libibverbs.so.1: no such file";
    refuses(NULL, TARN_E_UNAVAILABLE, "rdma: no verbs library: libibverbs.so.1: no such file: install");
    fake.missing = NULL;
    struct fake_device *d = fake_add("mlx5_0", 1);
    opens("mlx5_0:1@0", "mlx5_0:1");
    opens("mlx5_0,", "mlx5_0:1");
    refuses("mlx5_1", TARN_E_CONFIG, "\"mlx5_1\": there is none of this name");
    refuses("mlx5_0,mlx5_1", TARN_E_CONFIG, "mlx5_1");
    refuses("mlx5_0:2", TARN_E_UNAVAILABLE, "no active port");
    refuses("mlx5_0@1", TARN_E_UNAVAILABLE, "no active port with that GID");
    refuses("mlx5_0:0", TARN_E_CONFIG, "\"0\" is no port");
    refuses("mlx5_0:x", TARN_E_CONFIG, "must be 1 to 255");
    refuses("mlx5_0@256", TARN_E_CONFIG, "\"256\" is no GID index");
    refuses("mlx5_0@", TARN_E_CONFIG, "is no GID index");
    refuses("01234567890123456789012345678901234567890123456789012345678901234567890123456789", TARN_E_CONFIG,
            "too long");
    d->port[1].down = true;
    refuses(NULL, TARN_E_UNAVAILABLE, "1 devices, but no active port");
    refuses("mlx5_0", TARN_E_UNAVAILABLE, "no active port");
}

/* Like a container without /dev/infiniband. */
static void a_device_that_cannot_be_opened_is_named(void **state)
{
    (void)state;
    fake_reset();
    struct fake_device *a = fake_add("mlx5_0", 1), *b = fake_add("mlx5_1", 2);
    a->closed = true;
    opens(NULL, "mlx5_1:1");
    refuses("mlx5_0", TARN_E_UNAVAILABLE,
            "\"mlx5_0\": cannot be opened: Permission denied: see who may open");
    refuses("mlx5_1,mlx5_0", TARN_E_UNAVAILABLE, "\"mlx5_0\": cannot be opened");
    b->port[1].down = true;
    refuses(NULL, TARN_E_UNAVAILABLE, "\"mlx5_0\": cannot be opened: Permission denied");
    refuses("mlx5_1", TARN_E_UNAVAILABLE, "no active port");
    a->closed = false;
    opens(NULL, "mlx5_0:1");
}

static void a_port_that_goes_down_is_not_active(void **state)
{
    (void)state;
    struct tarn_rails r;
    fake_reset();
    struct fake_device *d = fake_add("d", 1);
    assert_int_equal(tarn_rails_open(NULL, &r), 0);
    assert_true(tarn_rail_active(&r.rail[0]));
    d->port[1].down = true;
    assert_false(tarn_rail_active(&r.rail[0]));
    d->port[1].down = false;
    assert_true(tarn_rail_active(&r.rail[0]));
    tarn_rails_close(&r);
}

/* The limits for soft-RoCE (no fences, small WRITEs) apply to no other device. */
static void limits_for_soft_roce_apply_to_no_other_device(void **state)
{
    (void)state;
    static const uint32_t vendors[] = {0x2c9, 0xffffff};
    for (int soft = 0; soft < 2; soft++) {
        struct tarn_rails r;
        fake_reset();
        fake_add("d", 1);
        fake.vendor = vendors[soft];
        assert_int_equal(tarn_rails_open(NULL, &r), 0);
        assert_int_equal(r.rail[0].fences, !soft);
        assert_int_equal(r.rail[0].max_write, soft ? 64 << 10 : r.rail[0].max_message);
        tarn_rails_close(&r);
    }
}

static void more_ports_than_rails_are_left_out(void **state)
{
    (void)state;
    struct tarn_rails r;
    fake_reset();
    for (uint8_t i = 0; i < FAKE_DEVICES; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        struct fake_device *d = fake_add(name, i);
        d->nports = 2;
        d->port[2] = d->port[1];
    }
    assert_int_equal(tarn_rails_open(NULL, &r), 0);
    assert_int_equal(r.n, TARN_RAILS_MAX);
    tarn_rails_close(&r);
    assert_true(fake_goes_to(NULL, 0));
}

static void limits_and_speed_come_from_the_port(void **state)
{
    (void)state;
    struct tarn_rails r;
    fake_reset();
    struct fake_device *d = fake_add("d", 1);
    static const struct {
        uint8_t speed, width;
        uint32_t mbit;
    } cases[] = {{1, 1, 2500},     {4, 2, 40000},    {32, 2, 100000}, {64, 2, 200000},
                 {128, 2, 400000}, {128, 4, 800000}, {99, 2, 0},      {32, 99, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        d->port[1].speed = cases[i].speed;
        d->port[1].width = cases[i].width;
        assert_int_equal(tarn_rails_open(NULL, &r), 0);
        assert_int_equal(r.rail[0].speed, cases[i].mbit);
        assert_int_equal(r.rail[0].max_sge, fake.max_sge);
        assert_int_equal(r.rail[0].max_wr, 512);
        assert_int_equal(r.rail[0].max_reads_out, 16);
        assert_int_equal(r.rail[0].mtu, IBV_MTU_1024);
        tarn_rails_close(&r);
    }
}

/* --- GIDs --------------------------------------------------------------------------------------- */

static union ibv_gid v6(uint8_t first, uint8_t second, uint8_t last)
{
    return (union ibv_gid){.raw = {[0] = first, [1] = second, [15] = last}};
}

static uint8_t chosen_gid(const char *devices)
{
    struct tarn_rails r;
    if (tarn_rails_open(devices, &r))
        fail_msg("%s", tarn_last_error());
    uint8_t index = r.rail[0].gid_index;
    const struct fake_port *p = &fake.device[0].port[1];
    assert_memory_equal(r.rail[0].gid.raw, p->gid[index].gid.raw, 16);
    tarn_rails_close(&r);
    return index;
}

static void the_best_gid_is_chosen(void **state)
{
    (void)state;
    fake_reset();
    struct fake_port *p = &fake_add("d", 1)->port[1];
    p->ngids = 6;
    p->gid[0].gid = v6(0xfe, 0x80, 1), p->gid[0].v1 = true;
    p->gid[1].gid = v6(0xfe, 0x80, 1);
    p->gid[2].gid = fake_v4(10, 0, 0, 1), p->gid[2].v1 = true;
    p->gid[3].gid = fake_v4(10, 0, 0, 1);
    p->gid[4].gid = v6(0xfd, 0x77, 1), p->gid[4].v1 = true;
    p->gid[5].gid = v6(0xfd, 0x77, 1);
    assert_int_equal(chosen_gid(NULL), 3); /* RoCE v2, IPv4 */
    p->gid[3].missing = true;
    assert_int_equal(chosen_gid(NULL), 5); /* RoCE v2, IPv6 */
    p->gid[5].missing = true;
    assert_int_equal(chosen_gid(NULL), 1); /* link-local */
    p->gid[1].missing = true;
    assert_int_equal(chosen_gid(NULL), 2); /* RoCE v1 */
    p->gid[2].missing = true;
    assert_int_equal(chosen_gid(NULL), 4);
    p->gid[4].missing = true;
    assert_int_equal(chosen_gid(NULL), 0);
    assert_int_equal(chosen_gid("d@0"), 0);
    p->gid[3].missing = p->gid[5].missing = false;
    assert_int_equal(chosen_gid("d@5"), 5); /* named in the setting */
    refuses("d@4", TARN_E_UNAVAILABLE, "with that GID");
}

static void of_equal_gids_the_first_is_chosen(void **state)
{
    (void)state;
    fake_reset();
    struct fake_port *p = &fake_add("d", 1)->port[1];
    p->ngids = 3;
    p->gid[1].gid = fake_v4(10, 0, 0, 1);
    p->gid[2].gid = fake_v4(10, 0, 0, 2);
    assert_int_equal(chosen_gid(NULL), 0);
    p->infiniband = true; /* on InfiniBand the form of a GID means nothing */
    p->gid[0].gid = v6(0xfe, 0x80, 1);
    assert_int_equal(chosen_gid(NULL), 0);
}

/* --- which rail reaches which end --------------------------------------------------------------- */

static void rail(struct tarn_rails *r, bool roce, union ibv_gid gid)
{
    r->rail[r->n++] = (struct tarn_rail){.roce = roce, .gid = gid};
}

/* Index of the rail; -1: none. */
static int reaching(const struct tarn_rails *r, bool roce, union ibv_gid gid, uint32_t prefer)
{
    struct tarn_endpoint e = {.roce = roce, .gid = gid};
    const struct tarn_rail *found = tarn_rail_reaching(r, &e, prefer);
    return found ? (int)(found - r->rail) : -1;
}

static void the_route_decides_on_ethernet(void **state)
{
    (void)state;
    struct tarn_rails r = {0};
    rail(&r, true, fake_v4(10, 99, 0, 1));
    rail(&r, true, v6(0, 0, 1)); /* ::1 */
    rail(&r, true, fake_v4(127, 0, 0, 1));
    rail(&r, true, fake_v4(127, 0, 0, 9));
    for (uint32_t prefer = 0; prefer < 9; prefer++) {
        assert_int_equal(reaching(&r, true, fake_v4(127, 0, 0, 5), prefer), 2); /* the kernel sends from .1 */
        assert_int_equal(reaching(&r, true, fake_v4(127, 0, 0, 9), prefer), 3); /* the same port */
        assert_int_equal(reaching(&r, true, v6(0, 0, 1), prefer), 1);           /* the same family */
    }
    struct tarn_rails other = {0};
    rail(&other, true, fake_v4(10, 99, 0, 1));
    assert_int_equal(reaching(&other, true, fake_v4(127, 0, 0, 5), 0), -1); /* the route leads elsewhere */
    assert_int_equal(reaching(&other, true, v6(0xfd, 0x77, 1), 0), -1);     /* another family */
}

static void the_subnet_decides_on_infiniband(void **state)
{
    (void)state;
    struct tarn_rails r = {0};
    assert_int_equal(reaching(&r, false, v6(0xfe, 0x80, 9), 0), -1);
    rail(&r, true, v6(0xfe, 0x80, 1)); /* Ethernet never reaches InfiniBand */
    assert_int_equal(reaching(&r, false, v6(0xfe, 0x80, 9), 0), -1);
    rail(&r, false, v6(0xfe, 0xc0, 2));
    rail(&r, false, v6(0xfe, 0x80, 3));
    assert_int_equal(reaching(&r, false, v6(0xfe, 0x80, 9), 0), 2);
    assert_int_equal(reaching(&r, false, v6(0xfe, 0xc0, 9), 0), 1);
    assert_int_equal(reaching(&r, false, v6(0xfe, 0xc0, 9), 2), 1);
    assert_true(reaching(&r, false, v6(0xfd, 0, 9), 0) > 0); /* perhaps through a router */
}

/* The client's k-th rail uses the node's k-th, so that all rails are used. */
static void equal_rails_are_used_in_turn(void **state)
{
    (void)state;
    struct tarn_rails r = {0};
    for (uint8_t i = 0; i < 4; i++)
        rail(&r, false, v6(0xfe, 0x80, (uint8_t)(1 + i)));
    for (uint32_t prefer = 0; prefer < 8; prefer++)
        assert_int_equal(reaching(&r, false, v6(0xfe, 0x80, 99), prefer), prefer % 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(an_endpoint_survives_formatting_and_parsing, print_seed),
        cmocka_unit_test(malformed_endpoints_are_refused),
        cmocka_unit_test_setup(a_changed_endpoint_is_refused_or_formats_back, print_seed),
        cmocka_unit_test(all_active_ports_are_rails_the_fastest_first),
        cmocka_unit_test(a_named_device_must_be_usable),
        cmocka_unit_test(a_device_that_cannot_be_opened_is_named),
        cmocka_unit_test(a_port_that_goes_down_is_not_active),
        cmocka_unit_test(more_ports_than_rails_are_left_out),
        cmocka_unit_test(limits_for_soft_roce_apply_to_no_other_device),
        cmocka_unit_test(limits_and_speed_come_from_the_port),
        cmocka_unit_test(the_best_gid_is_chosen),
        cmocka_unit_test(of_equal_gids_the_first_is_chosen),
        cmocka_unit_test(the_route_decides_on_ethernet),
        cmocka_unit_test(the_subnet_decides_on_infiniband),
        cmocka_unit_test(equal_rails_are_used_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
