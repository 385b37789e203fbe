/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rail comes up in its own time: a slow network lookup for one peer on one rail delays nothing else, and
 * a link that ends early leaves nothing behind. The verbs are the stand-in of fake_verbs.h.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma/rdma_link.h"

enum { MEMORY = 8 << 20 };

/* Lookups by device `slow` (NULL: none) or towards `far` take until `until_ns` and then return `error`. */
static struct {
    const struct fake_device *slow;
    union ibv_gid far;
    _Atomic uint64_t until_ns;
    atomic_int error, asking, asked;
} network;

static int resolve(struct fake_device *d, const union ibv_gid *peer)
{
    if (d != network.slow && memcmp(peer, &network.far, sizeof *peer) != 0)
        return 0;
    atomic_fetch_add(&network.asked, 1);
    atomic_fetch_add(&network.asking, 1);
    while (tarn_now_ns() < atomic_load(&network.until_ns))
        poll(NULL, 0, 1);
    atomic_fetch_sub(&network.asking, 1);
    return atomic_load(&network.error);
}

static void fresh(void)
{
    fake_reset();
    memset(&network, 0, sizeof network);
    fake.resolve = resolve;
}

/* Slow lookups wait until release_in(). */
static void hold(void)
{
    atomic_store(&network.until_ns, UINT64_MAX);
}

static void release_in(unsigned ms)
{
    atomic_store(&network.until_ns, tarn_deadline(ms));
}

static uint64_t ms_since(uint64_t begun)
{
    return (tarn_now_ns() - begun) / TARN_NS_PER_MS;
}

static bool is_asking(void)
{
    return atomic_load(&network.asking) > 0;
}

/* --- links -------------------------------------------------------------------------------------- */

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    char *memory;
};

static struct fixture begin(void)
{
    struct fixture f = {.n = fake_start("rdma", false, 0), .memory = malloc(MEMORY)};
    assert_non_null(f.memory);
    fill(f.memory, MEMORY, 7);
    f.ops = f.n->ops;
    return f;
}

static void end(struct fixture *f)
{
    fake_stop(f->n);
    free(f->memory);
    assert_true(fake_goes_to(NULL, 0));
}

static int put_all(struct fixture *f, struct tarn_link *l)
{
    struct tarn_piece p = {f->memory, MEMORY, 0, 0};
    struct tarn_work w = fake_work(f->n, 0, &p, 1);
    memset(f->n->pool.base, 0, MEMORY);
    int rc = run_work(f->ops, l, &w, true);
    assert_memory_equal(f->n->pool.base, f->memory, MEMORY);
    return rc;
}

static void a_link_goes_on_by_the_rail_that_is_up(void **state)
{
    (void)state;
    fresh();
    struct fake_device *quick = fake_add("quick", 1), *slow = fake_add("slow", 2);
    struct fixture f = begin();
    network.slow = slow;
    hold();
    struct tarn_link *l = fake_link(f.n, true);
    assert_int_equal(put_all(&f, l), 0);
    assert_true(is_asking()); /* still waiting for the slow rail */
    assert_int_equal(slow->moved, 0);
    assert_int_equal(quick->moved, MEMORY);
    release_in(0);
    wait_until((tarn_rdma_lanes_look(tarn_rdma_link(l)), tarn_rdma_link(l)->joining == 0));
    assert_int_equal(put_all(&f, l), 0); /* the other rail is used as soon as it is up */
    assert_true(slow->moved >= MEMORY / 4);
    assert_int_equal(tarn_rdma_link(l)->whole_ns, 0);
    f.ops->close(l);
    end(&f);
}

/* The rail rests for a while: a link made meanwhile does without it. */
static void a_link_does_without_a_rail_that_does_not_come_up(void **state)
{
    (void)state;
    fresh();
    fake_add("quick", 1);
    struct fixture f;
    network.slow = fake_add("slow", 2);
    network.error = ETIMEDOUT;
    f = begin();
    hold();
    struct tarn_link *l = fake_link(f.n, true);
    release_in(0);
    wait_until((tarn_rdma_lanes_look(tarn_rdma_link(l)), tarn_rdma_link(l)->joining == 0));
    assert_true(tarn_rdma_link(l)->whole_ns > tarn_now_ns() && tarn_rdma_link(l)->whole_ns < UINT64_MAX);
    assert_int_equal(put_all(&f, l), 0);
    struct tarn_link *later = fake_link(f.n, true);
    assert_int_equal(tarn_rdma_link(later)->nlanes, 1);
    f.ops->close(later);
    f.ops->close(l);
    end(&f);
}

/* connect() returns in between. If no rail comes up, it gives the network's reason. */
static void a_link_without_a_rail_is_not_connected(void **state)
{
    (void)state;
    char text[TARN_ATTACH_TEXT], offer[TARN_OFFER_TEXT];
    int fds[56], rc;
    fresh();
    fake_add("a", 1);
    struct fixture f = begin();
    network.slow = &fake.device[0];
    network.error = EHOSTUNREACH;
    hold();
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, fds, 0);
    p.local = f.n->local;
    assert_int_equal(f.ops->offer(&p, offer, &l), 0);
    fake_attach(f.n, SESSION, false, offer, text, fds);
    assert_int_equal(f.ops->connect(&p, &l), TARN_INPROGRESS);
    wait_until(is_asking());
    assert_int_equal(f.ops->connect(&p, &l), TARN_INPROGRESS);
    release_in(0);
    while ((rc = f.ops->connect(&p, &l)) == TARN_INPROGRESS)
        ;
    assert_int_equal(rc, TARN_E_NOT_REACHABLE);
    assert_null(l);
    assert_non_null(strstr(tarn_last_error(), "No route to host"));
    network.error = 0;
    l = fake_link(f.n, true); /* that did not make the rail rest */
    assert_int_equal(put_all(&f, l), 0);
    f.ops->close(l);
    end(&f);
}

/* Only closing the devices waits for the network. */
static void links_and_devices_are_closed_while_rails_come_up(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fresh();
        fake_add("quick", 1);
        network.slow = fake_add("slow", 2);
        network.error = i ? ETIMEDOUT : 0;
        struct fixture f = begin();
        hold();
        struct tarn_link *l[8];
        for (int k = 0; k < 8; k++) {
            l[k] = fake_link(f.n, true);
            assert_int_equal(tarn_rdma_link(l[k])->joining, 1);
        }
        assert_int_equal(put_all(&f, l[0]), 0);
        for (int k = 0; k < 8; k++)
            f.ops->close(l[k]);
        fake_detach(f.n, SESSION);
        assert_true(is_asking()); /* still waiting */
        assert_int_equal(atomic_load(&network.asked), 1);
        release_in(100);
        end(&f);
    }
}

static void the_end_does_not_wait_for_ever_for_a_device(void **state)
{
    (void)state;
    fresh();
    fake_add("quick", 1);
    network.slow = fake_add("slow", 2);
    struct fixture f = begin();
    hold();
    f.ops->close(fake_link(f.n, true));
    assert_true(is_asking());
    uint64_t begun = tarn_now_ns();
    fake_stop(f.n);
    free(f.memory);
    assert_true(ms_since(begun) < 10000);
    assert_true(fake_left() > 0);
    release_in(0);
    assert_true(fake_goes_to(NULL, 0));
}

/* --- roads -------------------------------------------------------------------------------------- */

struct roads {
    struct tarn_rails rails;
    struct ibv_cq *cq;
};

static void open_roads(struct roads *r)
{
    fresh();
    fake_add("a", 1);
    network.far = fake_v4(127, 0, 0, 99);
    assert_int_equal(tarn_rails_open(NULL, &r->rails), 0);
    r->cq = ibv_create_cq(r->rails.rail[0].context, 8, NULL, NULL, 0);
}

static void close_roads(struct roads *r)
{
    tarn_rails_retire(&r->rails, &(struct tarn_qp_parts){.cq = r->cq});
    tarn_rails_close(&r->rails);
    assert_true(fake_goes_to(NULL, 0));
}

static struct tarn_join *join_to(struct roads *r, uint8_t address, struct ibv_qp **qp_p)
{
    struct tarn_qp_options o = {.cq = r->cq, .max_wr = 2, .max_sge = 1};
    struct tarn_endpoint own, peer;
    assert_int_equal(tarn_qp_new(&r->rails.rail[0], &o, qp_p, &own), 0);
    peer = own;
    peer.gid = fake_v4(127, 0, 0, address);
    struct tarn_join *j = tarn_join_begin(&r->rails, &r->rails.rail[0], *qp_p, &own, &peer);
    assert_non_null(j);
    return j;
}

enum { QUEUED = 10 };

/* A peer that does not answer delays no other peer. One lookup serves all joins that wait for it. */
static void peers_do_not_wait_for_each_other(void **state)
{
    (void)state;
    struct roads r;
    struct tarn_join *far[QUEUED], *near;
    struct ibv_qp *qp[QUEUED + 1];
    int rc;
    open_roads(&r);
    network.error = ETIMEDOUT;
    hold();
    for (int i = 0; i < QUEUED; i++)
        far[i] = join_to(&r, 99, &qp[i]);
    near = join_to(&r, 1, &qp[QUEUED]);
    wait_until(tarn_join_over(near, &rc));
    assert_int_equal(rc, 0);
    wait_until(is_asking()); /* still waiting */
    release_in(0);
    for (int i = 0; i < QUEUED; i++) {
        wait_until(tarn_join_over(far[i], &rc));
        assert_int_equal(rc, TARN_E_NOT_REACHABLE);
        assert_non_null(strstr(tarn_last_error(), "Connection timed out"));
    }
    assert_int_equal(atomic_load(&network.asked), 1);
    for (int i = 0; i <= QUEUED; i++)
        ibv_destroy_qp(qp[i]);
    close_roads(&r);
}

/* Joins that wait behind a successful one are joined, too, except abandoned ones. */
static void abandoned_joins_are_not_made(void **state)
{
    (void)state;
    struct roads r;
    struct tarn_join *j[QUEUED];
    struct ibv_qp *qp[QUEUED];
    int rc;
    open_roads(&r);
    hold();
    for (int i = 0; i < QUEUED; i++)
        j[i] = join_to(&r, 99, &qp[i]);
    wait_until(is_asking());
    for (int i = 0; i < QUEUED; i += 2)
        tarn_join_abandon(&r.rails, j[i], &(struct tarn_qp_parts){.qp = qp[i]});
    release_in(0);
    for (int i = 1; i < QUEUED; i += 2) {
        wait_until(tarn_join_over(j[i], &rc));
        assert_int_equal(rc, 0);
        ibv_destroy_qp(qp[i]);
    }
    assert_true(fake_goes_to(&fake.qps, 0));
    assert_int_equal(atomic_load(&network.asked), 1 + QUEUED / 2);
    struct tarn_join *late = join_to(&r, 99, &qp[0]); /* over before it is abandoned */
    uint64_t seen = 0;
    tarn_joins_wait(&r.rails, &seen, 0);
    while (atomic_load(&network.asked) < 2 + QUEUED / 2 || is_asking())
        poll(NULL, 0, 1);
    tarn_join_abandon(&r.rails, late, &(struct tarn_qp_parts){.qp = qp[0]});
    assert_true(fake_goes_to(&fake.qps, 0));
    close_roads(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_goes_on_by_the_rail_that_is_up),
        cmocka_unit_test(a_link_does_without_a_rail_that_does_not_come_up),
        cmocka_unit_test(a_link_without_a_rail_is_not_connected),
        cmocka_unit_test(links_and_devices_are_closed_while_rails_come_up),
        cmocka_unit_test(the_end_does_not_wait_for_ever_for_a_device),
        cmocka_unit_test(peers_do_not_wait_for_each_other),
        cmocka_unit_test(abandoned_joins_are_not_made),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
