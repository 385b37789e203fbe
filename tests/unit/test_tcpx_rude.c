/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tcpx node and clients that break the protocol: the node tells them so and sends nothing, and keeps no
 * request that it has no room for.
 */
#include "tests/unit/fake_node.h"

#include "base/net.h"
#include "tests/tcpx/child.h"
#include "transport/tcpx/tcpx_node.h"

/* One connection with messages written by hand. */
struct rude {
    struct fake_node *n;
    struct tarn_tcpx_wire wire;
    char token[TARN_TOKEN + 1];
};

/* Gets the session's token and connects. */
static void dial(struct rude *r, uint64_t session)
{
    struct tarn_attach a = {.session = session, .write = true, .offer = ""};
    char address[256];
    struct tarn_addr at;
    if (fake_attach_here(r->n, &a))
        fail_msg("attach: %s", tarn_last_error());
    assert_int_equal(sscanf(a.text, "v1 %255s %32s", address, r->token), 2);
    assert_int_equal(tarn_addr_parse(address, "address", &at), 0);
    r->wire = (struct tarn_tcpx_wire){.fd = -1};
    assert_int_equal(tarn_net_connect(&at, tarn_deadline(WAIT_MS), NULL, &r->wire.fd), 0);
}

static int setup(void **state)
{
    struct rude *r = calloc(1, sizeof *r);
    assert_non_null(r);
    child_configure("fixture-v7");
    r->n = fake_start("tcpx", false, 0);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rude *r = *state;
    tarn_tcpx_wire_close(&r->wire);
    fake_stop(r->n);
    free(r);
    return 0;
}

static void say(struct rude *r, struct tarn_tcpx_frame f, const void *body)
{
    tarn_tcpx_wire_say(&r->wire, f, body);
    while (r->wire.out.bytes)
        assert_true(tarn_tcpx_wire_flush(&r->wire) >= 0);
}

static struct tarn_tcpx_message next(struct rude *r)
{
    struct tarn_tcpx_message m;
    int rc;
    while ((rc = tarn_tcpx_wire_next(&r->wire, &m)) == 0)
        assert_int_equal(tarn_net_wait(r->wire.fd, POLLIN, tarn_deadline(WAIT_MS), NULL), 0);
    if (rc < 0)
        fail_msg("the node: %s", tarn_last_error());
    return m;
}

/* The node gives the reason and closes the connection. */
static void is_refused(struct rude *r, int status)
{
    struct tarn_tcpx_message m = next(r);
    assert_int_equal(m.frame.op, TARN_TCPX_FAIL);
    assert_int_equal(m.frame.status, status);
    int rc;
    while ((rc = tarn_tcpx_wire_next(&r->wire, &m)) == 0)
        assert_int_equal(tarn_net_wait(r->wire.fd, POLLIN, tarn_deadline(WAIT_MS), NULL), 0);
    assert_int_equal(rc, TARN_E_NODE_DOWN);
    assert_int_equal(fake_pins(r->n), 0);
}

static void say_hello(struct rude *r, uint64_t session)
{
    uint8_t body[TARN_TCPX_BODY] = {0};
    memcpy(body, r->token, TARN_TOKEN);
    say(r, (struct tarn_tcpx_frame){.op = TARN_TCPX_HELLO, .gen = session, .bytes = 1 << 20}, body);
}

/* Opens a lane for puts, but never makes the plugin's connection. */
static void open_lane(struct rude *r)
{
    static const uint8_t body[TARN_TCPX_BODY];
    say(r, (struct tarn_tcpx_frame){.op = TARN_TCPX_OPEN, .flags = TARN_TCPX_PUTS}, body);
}

static void opened_lane(struct rude *r)
{
    dial(r, SESSION);
    say_hello(r, SESSION);
    struct tarn_tcpx_message m = next(r);
    assert_int_equal(m.frame.op, TARN_TCPX_HELLO);
    assert_int_equal(m.frame.status, 0);
    open_lane(r);
    assert_int_equal(next(r).frame.op, TARN_TCPX_HANDLE_IS);
}

static struct tarn_tcpx_frame request(uint8_t op, uint64_t tag)
{
    return (struct tarn_tcpx_frame){.op = op, .tag = tag, .gen = ((uint64_t)EPOCH << 32) + 1, .bytes = 8};
}

static void hello_comes_first(void **state)
{
    struct rude *r = *state;
    dial(r, SESSION);
    open_lane(r);
    is_refused(r, TARN_E_PROTOCOL);
}

static void a_token_is_good_for_its_session(void **state)
{
    struct rude *r = *state;
    dial(r, SESSION);
    struct tarn_attach other = {.session = SESSION + 1, .offer = ""};
    assert_int_equal(fake_attach_here(r->n, &other), 0);
    say_hello(r, SESSION + 1);
    struct tarn_tcpx_message m = next(r);
    assert_int_equal(m.frame.op, TARN_TCPX_HELLO);
    assert_int_equal(m.frame.status, TARN_E_AUTH);
    is_refused(r, TARN_E_AUTH);
}

static void a_lane_takes_a_limited_number_of_requests(void **state)
{
    struct rude *r = *state;
    opened_lane(r);
    for (uint64_t i = 0; i <= TARN_TCPX_OPS; i++)
        say(r, request(TARN_TCPX_PUT, i), NULL);
    is_refused(r, TARN_E_PROTOCOL);
}

static void a_lane_goes_one_way(void **state)
{
    struct rude *r = *state;
    opened_lane(r);
    say(r, request(TARN_TCPX_GET, 0), NULL);
    is_refused(r, TARN_E_PROTOCOL);
}

static int no_lease(void *arg, uint64_t session, bool write, uint32_t pool, uint32_t slot, uint64_t gen,
                    uint64_t offset, uint64_t bytes, struct tarn_pinned *p)
{
    (void)arg, (void)session, (void)write, (void)pool, (void)slot, (void)gen, (void)offset, (void)bytes,
        (void)p;
    return TARN_E_STALE;
}

/* From now on it is a lender's. */
static void lend(const struct rude *r)
{
    r->n->half->serve.guard.pin_lease = no_lease;
}

static void tell(struct rude *r, uint32_t lane, uint32_t bytes)
{
    const struct tarn_notice notice = {.bytes = bytes};
    say(r, (struct tarn_tcpx_frame){.op = TARN_TCPX_TELL, .lane = lane}, &notice);
}

static void nodes_are_not_told_anything(void **state)
{
    struct rude *r = *state;
    opened_lane(r);
    tell(r, 0, 1);
    is_refused(r, TARN_E_PROTOCOL);
}

static void a_lender_is_told_on_a_lane(void **state)
{
    struct rude *r = *state;
    lend(r);
    opened_lane(r);
    tell(r, 1, 1);
    is_refused(r, TARN_E_PROTOCOL);
}

static void a_notification_has_a_put(void **state)
{
    struct rude *r = *state;
    lend(r);
    opened_lane(r);
    tell(r, 0, 1);
    say(r, request(TARN_TCPX_PUT, 0), NULL);
    tell(r, 0, TARN_NOTIFY_MAX);
    tell(r, 0, 1);
    is_refused(r, TARN_E_PROTOCOL);
}

static void a_notification_has_a_limited_size(void **state)
{
    struct rude *r = *state;
    lend(r);
    opened_lane(r);
    tell(r, 0, TARN_NOTIFY_MAX + 1);
    is_refused(r, TARN_E_PROTOCOL);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(hello_comes_first),
        CASE(a_token_is_good_for_its_session),
        CASE(a_lane_takes_a_limited_number_of_requests),
        CASE(a_lane_goes_one_way),
        CASE(nodes_are_not_told_anything),
        CASE(a_lender_is_told_on_a_lane),
        CASE(a_notification_has_a_put),
        CASE(a_notification_has_a_limited_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
