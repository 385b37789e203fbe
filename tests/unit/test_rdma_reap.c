/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How queue pairs end when their device is slow: what waits for it, and what can still be written. The verbs
 * are the stand-in of fake_verbs.h.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma/rdma_link.h"

enum { MEMORY = 8 << 20 };

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    char *memory;
};

static struct fixture begin(void)
{
    struct fixture f = {.n = fake_start("rdma", false, 0), .memory = malloc(MEMORY)};
    assert_non_null(f.memory);
    fill(f.memory, MEMORY, 7);
    f.ops = f.n->ops;
    f.l = fake_link(f.n, true);
    return f;
}

static void end(struct fixture *f)
{
    f->ops->close(f->l);
    fake_stop(f->n);
    free(f->memory);
    assert_true(fake_goes_to(NULL, 0));
}

static int put_all(struct fixture *f, uint64_t bytes)
{
    struct tarn_piece p = {f->memory, bytes, 0, 0};
    struct tarn_work w = fake_work(f->n, 0, &p, 1);
    return run_work(f->ops, f->l, &w, true);
}

/* The link ends, and its memory is the caller's again, before its queue pairs are destroyed. */
static void no_work_waits_until_queue_pairs_are_destroyed(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1)->dead = true;
    struct fixture f = begin();
    struct tarn_link *idle = fake_link(f.n, true);
    int here = atomic_load(&fake.qps);
    fake.stuck = true;
    uint64_t begun = tarn_now_ns();
    assert_int_equal(put_all(&f, 8 << 20), TARN_E_NODE_DOWN);
    f.ops->close(idle);
    fake_detach(f.n, SESSION);
    assert_true(tarn_now_ns() - begun < TARN_NS_PER_S / 2);
    assert_int_equal(atomic_load(&fake.qps), here);
    fake.stuck = false;
    assert_true(fake_goes_to(&fake.qps, 0));
    end(&f);
}

/* After DETACH, a node's queue pairs accept no writes. */
static void a_detached_queue_pair_accepts_no_writes(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1);
    struct fixture f = begin();
    memset(f.n->pool.base, 0, 1 << 20);
    fake.stuck = true;
    fake_detach(f.n, SESSION);
    assert_int_equal(put_all(&f, 1 << 20), TARN_E_NODE_DOWN);
    for (int i = 0; i < 1 << 20; i++)
        assert_int_equal(((char *)f.n->pool.base)[i], 0);
    fake.stuck = false;
    end(&f);
}

static uint32_t running_at_end; /* clients' queue pairs that may still move bytes */

static void count_running(struct tarn_work *w)
{
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < fake.nqps; i++)
        running_at_end += fake.qp[i] && fake.qp[i]->room > 1 && fake.qp[i]->state == IBV_QPS_RTS;
    pthread_mutex_unlock(&fake_lock);
    work_done(w);
}

/* A canceled work ends only when no device touches its memory any more: the caller may free it then. */
static void a_canceled_work_ends_when_no_device_uses_its_memory(void **state)
{
    (void)state;
    for (int put = 0; put < 2; put++) {
        fake_reset();
        fake_add("a", 1);
        fake_add("b", 2);
        struct fixture f = begin();
        fake.held = true;
        struct tarn_piece p = {f.memory, MEMORY, 0, 0};
        struct tarn_work w = fake_work(f.n, 0, &p, 1);
        w.gen += !put;
        w.done = count_running;
        running_at_end = 0;
        submit(f.ops, f.l, &w, put);
        assert_int_equal(f.ops->progress(f.l), 0);
        f.ops->close(f.l);
        assert_int_equal(w.status, TARN_E_CANCELED);
        assert_int_equal(running_at_end, 0);
        fake.held = false;
        f.l = fake_link(f.n, true);
        end(&f);
    }
}

/* A queue pair that does not report its end is destroyed before the work ends, however long that takes. */
static void a_queue_pair_that_does_not_flush_is_destroyed_first(void **state)
{
    (void)state;
    fake_reset();
    fake_add("a", 1);
    struct fixture f = begin();
    fake.held = fake.mute = true;
    struct tarn_piece p = {f.memory, 1 << 20, 0, 0};
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    submit(f.ops, f.l, &w, true);
    assert_int_equal(f.ops->progress(f.l), 0);
    assert_int_equal(atomic_load(&fake.qps), 2);
    f.ops->close(f.l);
    assert_int_equal(w.status, TARN_E_CANCELED);
    assert_int_equal(atomic_load(&fake.qps), 1);
    fake_detach(f.n, SESSION);
    assert_int_equal(atomic_load(&fake.qps), 0);
    fake.held = fake.mute = false;
    f.l = fake_link(f.n, true);
    end(&f);
}

/* A device's objects are freed with its last queue pair. Closing does not wait for that. */
static void closing_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct tarn_rails r;
    fake_reset();
    fake_add("a", 1);
    assert_int_equal(tarn_rails_open(NULL, &r), 0);
    for (int i = 0; i < 3; i++) {
        struct tarn_qp_parts parts = {.cq = ibv_create_cq(r.rail[0].context, 1, NULL, NULL, 0)};
        struct tarn_qp_options o = {.cq = parts.cq, .max_wr = 1, .max_sge = 1};
        struct tarn_endpoint own;
        assert_int_equal(tarn_qp_new(&r.rail[0], &o, &parts.qp, &own), 0);
        fake.stuck = true;
        tarn_rails_retire(&r, &parts);
    }
    tarn_rails_close(&r);
    assert_int_equal(fake_left(), 2 + 6); /* device, domain, and three of each */
    fake.stuck = false;
    assert_true(fake_goes_to(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_work_waits_until_queue_pairs_are_destroyed),
        cmocka_unit_test(a_detached_queue_pair_accepts_no_writes),
        cmocka_unit_test(a_canceled_work_ends_when_no_device_uses_its_memory),
        cmocka_unit_test(a_queue_pair_that_does_not_flush_is_destroyed_first),
        cmocka_unit_test(closing_does_not_wait_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
