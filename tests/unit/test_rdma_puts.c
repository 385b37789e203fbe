/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a put over rdma is done: all its strips are in the pool, whichever rails they used. Devices that run
 * no requests for a while stand for slow rails.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma/rdma_link.h"

enum { RAILS = 3, BYTES = 6 << 20, ROUNDS = 200 };

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    char *memory;
};

static struct fixture begin(void)
{
    fake_reset();
    for (uint8_t i = 0; i < RAILS; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        fake_add(name, (uint8_t)(i + 1));
    }
    struct fixture f = {.n = fake_start("rdma", false, 0)};
    f.ops = f.n->ops;
    f.l = fake_link(f.n, true);
    wait_until(
        (tarn_rdma_lanes_look(tarn_rdma_link(f.l)), tarn_rdma_link(f.l)->joining == 0)); /* all lanes */
    f.memory = malloc(BYTES);
    assert_non_null(f.memory);
    fill(f.memory, BYTES, 11);
    return f;
}

static void end(struct fixture *f)
{
    f->ops->close(f->l);
    free(f->memory);
    fake_stop(f->n);
    assert_true(fake_goes_to(NULL, 0));
}

/* Makes progress. The work must not be done afterwards. */
static void is_not_done(struct fixture *f, const struct tarn_work *w)
{
    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(f->ops->progress(f->l), 0);
        assert_null(w->owner);
    }
}

static void a_work_waits_for_its_slowest_rail(void **state)
{
    (void)state;
    for (int put = 1; put >= 0; put--)
        for (int slow = 0; slow < RAILS; slow++) {
            struct fixture f = begin();
            struct tarn_piece p = {.addr = f.memory, .bytes = BYTES};
            if (!put) {
                fill(f.n->pool.base, BYTES, 12);
                commit(f.n, 0);
            }
            struct tarn_work w = fake_work(f.n, 0, &p, 1);
            fake.device[slow].held = true;
            submit(f.ops, f.l, &w, put);
            is_not_done(&f, &w);
            for (int k = 0; k < RAILS; k++)
                assert_int_equal(fake.device[k].moved > 0, k != slow);
            fake.device[slow].held = false;
            assert_int_equal(finish_works(f.ops, f.l, &w, 1), 0);
            assert_int_equal(w.status, 0);
            assert_memory_equal(f.memory, f.n->pool.base, BYTES);
            end(&f);
        }
}

/* The rails complete one after the other. The put is not done before the last. */
static void a_put_is_not_done_before_its_last_rail(void **state)
{
    (void)state;
    struct fixture f = begin();
    struct tarn_piece p = {.addr = f.memory, .bytes = BYTES};
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    for (int k = 0; k < RAILS; k++)
        fake.device[k].held = true;
    submit(f.ops, f.l, &w, true);
    for (int k = 0; k < RAILS; k++) {
        is_not_done(&f, &w);
        fake.device[k].held = false;
    }
    assert_int_equal(finish_works(f.ops, f.l, &w, 1), 0);
    assert_int_equal(w.status, 0);
    assert_memory_equal(f.memory, f.n->pool.base, BYTES);
    end(&f);
}

/* A put fails if one strip fails, whatever the strip still under way does. */
static void a_put_fails_when_one_strip_fails(void **state)
{
    (void)state;
    for (int lost = 0; lost < RAILS; lost++) {
        struct fixture f = begin();
        struct tarn_piece p = {.addr = f.memory, .bytes = BYTES};
        struct tarn_work w = fake_work(f.n, 0, &p, 1);
        fake.device[lost].dead = true;
        submit(f.ops, f.l, &w, true);
        assert_int_equal(finish_works(f.ops, f.l, &w, 1), TARN_E_NODE_DOWN);
        assert_int_equal(w.status, TARN_E_NODE_DOWN);
        assert_int_equal(f.ops->progress(f.l), TARN_E_NODE_DOWN);
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_work_waits_for_its_slowest_rail),
        cmocka_unit_test(a_put_is_not_done_before_its_last_rail),
        cmocka_unit_test(a_put_fails_when_one_strip_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
