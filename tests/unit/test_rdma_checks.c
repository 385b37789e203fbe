/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rdma checks: of a work before it is posted, and of a generation when it has arrived (all its bits, for
 * the slot and the pool that the work names). Also memory of the link's own: memory given to one work is
 * given to no other until that work ends.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma/rdma_link.h"

enum { BYTES = 5000, WORKS = 64 };

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
};

static struct tarn_pool_memory pools[2]; /* of the node, which reads them until it is stopped */

/* A node with two pools of the same size that share a table of use times. */
static struct fixture begin(void)
{
    struct fixture f;
    int fd;
    fake_reset();
    fake.vendor = 0x2c9; /* fences are used */
    fake_add("d", 1);
    f.n = fake_make("rdma");
    f.ops = f.n->ops;
    pools[0] = pools[1] = f.n->pool;
    pools[1].name = "other";
    pools[1].base = fake_memory("other", SLOTS * EXTENT, &fd);
    close(fd);
    pools[1].gen = fake_memory("gens", SLOTS * sizeof(uint64_t), &fd);
    close(fd);
    struct tarn_serve serve = {.epoch = EPOCH, .pools = pools, .npools = 2};
    if (f.n->node_ops->serve(&serve, &f.n->half))
        fail_msg("serve: %s", tarn_last_error());
    assert_int_equal(f.ops->local_open(NULL, &f.n->local), 0);
    f.l = fake_link(f.n, true);
    wait_until((tarn_rdma_lanes_look(tarn_rdma_link(f.l)), tarn_rdma_link(f.l)->joining == 0));
    return f;
}

static void end(struct fixture *f)
{
    f->ops->close(f->l);
    f->n->node_ops->stop(f->n->half);
    f->n->half = NULL;
    munmap(pools[1].base, SLOTS * EXTENT);
    munmap(pools[1].gen, SLOTS * sizeof(uint64_t));
    fake_stop(f->n);
    assert_true(fake_goes_to(NULL, 0));
}

static void set_gen(uint32_t pool, uint32_t slot, uint64_t gen)
{
    atomic_store(&pools[pool].gen[slot], gen);
}

/* --- generations -------------------------------------------------------------------------------- */

static void every_bit_of_a_generation_counts(void **state)
{
    (void)state;
    struct fixture f = begin();
    static char data[BYTES];
    struct tarn_piece p = {.addr = data, .bytes = BYTES};
    const uint64_t gen = ((uint64_t)EPOCH << 32) + 0x1234567a;
    for (int bit = -1; bit < 64; bit++) {
        set_gen(0, 3, bit < 0 ? gen : gen ^ 1ull << bit);
        struct tarn_work w = fake_work(f.n, 3, &p, 1);
        w.gen = gen;
        assert_int_equal(run_work(f.ops, f.l, &w, false), bit < 0 ? 0 : TARN_E_STALE);
        w = fake_work(f.n, 3, &p, 1); /* no bytes: only the generation is checked */
        w.gen = gen;
        w.bytes = 0;
        w.npieces = 0;
        assert_int_equal(run_work(f.ops, f.l, &w, false), bit < 0 ? 0 : TARN_E_STALE);
    }
    end(&f);
}

/* Slots 0 to n-1 of both pools in turn, posted by one call. Each is checked by its own generation. */
static void equal_slots_of_two_pools_are_checked_separately(void **state)
{
    (void)state;
    enum { N = 16 };
    for (int stale = 0; stale < 2; stale++) {
        struct fixture f = begin();
        static char data[N][BYTES];
        struct tarn_piece p[N];
        struct tarn_work w[N];
        for (uint32_t i = 0; i < SLOTS; i++) {
            set_gen(0, i, ((uint64_t)EPOCH << 32) + 100 + 2 * i);
            set_gen(1, i, ((uint64_t)EPOCH << 32) + 100 + 2 * i + (stale ? 2 : 0));
        }
        for (uint32_t i = 0; i < N; i++) {
            p[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
            w[i] = fake_work(f.n, i, &p[i], 1);
            w[i].pool = i % 2;
            submit(f.ops, f.l, &w[i], false);
        }
        assert_int_equal(finish_works(f.ops, f.l, w, N), 0);
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(w[i].status, stale && i % 2 ? TARN_E_STALE : 0);
        end(&f);
    }
}

/* --- works -------------------------------------------------------------------------------------- */

static void works_outside_of_a_pool_are_not_posted(void **state)
{
    (void)state;
    struct fixture f = begin();
    static char data[BYTES];
    const uint64_t all = SLOTS * EXTENT;
    const struct {
        uint32_t pool, slot;
        uint64_t offset;
    } wrong[] = {{2, 0, 0},          {UINT32_MAX, 0, 0},      {0, SLOTS, 0},
                 {0, UINT32_MAX, 0}, {0, 0, all - BYTES + 1}, {0, 0, all},
                 {0, 0, all + 1},    {0, 0, UINT64_MAX - 10}};
    fake_forget();
    for (int put = 0; put < 2; put++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            struct tarn_piece p = {.addr = data, .bytes = BYTES};
            struct tarn_work w = fake_work(f.n, 0, &p, 1);
            w.pool = wrong[k].pool;
            w.slot = wrong[k].slot;
            w.offset = wrong[k].offset;
            w.gen = put;
            assert_int_equal(run_work(f.ops, f.l, &w, put), TARN_E_STALE);
        }
    assert_int_equal(fake.nposted, 0);
    end(&f);
}

/* Gets need an object's generation, and puts a reservation's. Other works are refused without a request. */
static void the_kind_of_generation_fits_the_work(void **state)
{
    (void)state;
    struct fixture f = begin();
    static char data[BYTES];
    fake_forget();
    for (uint64_t odd = 0; odd < 2; odd++) {
        struct tarn_piece p = {.addr = data, .bytes = BYTES};
        set_gen(0, 0, ((uint64_t)EPOCH << 32) + 100 + odd);
        struct tarn_work w = fake_work(f.n, 0, &p, 1);
        assert_int_equal(run_work(f.ops, f.l, &w, !odd), TARN_E_STALE);
        w = fake_work(f.n, 0, &p, 1);
        w.bytes = 0;
        w.npieces = 0;
        assert_int_equal(run_work(f.ops, f.l, &w, !odd), TARN_E_STALE);
    }
    assert_int_equal(fake.nposted, 0);
    end(&f);
}

/* --- memory of the link ------------------------------------------------------------------------- */

/* More small works than the link's own memory has room for, none ended before all are posted. */
static void no_two_works_share_memory(void **state)
{
    (void)state;
    static char in[WORKS + 8][BYTES], out[WORKS + 8][BYTES];
    enum { N = WORKS + 8 };
    struct fixture f = begin();
    for (int put = 1; put >= 0; put--) {
        struct tarn_piece p[N];
        struct tarn_work w[N];
        fake.held = true;
        for (uint32_t i = 0; i < N; i++) {
            if (put)
                fill(in[i], BYTES, i);
            p[i] = (struct tarn_piece){.addr = put ? in[i] : out[i], .bytes = BYTES};
            w[i] = fake_work(f.n, i, &p[i], 1);
            submit(f.ops, f.l, &w[i], put);
            assert_null(w[i].owner);
            assert_int_equal(f.ops->progress(f.l), 0);
        }
        fake.held = false;
        assert_int_equal(finish_works(f.ops, f.l, w, N), 0);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(w[i].status, 0);
            if (put)
                assert_memory_equal((char *)f.n->pool.base + i * EXTENT, in[i], BYTES);
            else
                assert_memory_equal(out[i], in[i], BYTES);
            commit(f.n, i);
        }
    }
    end(&f);
}

/* --- the node's links --------------------------------------------------------------------------- */

static int queue_pairs(void)
{
    int n = 0;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < fake.nqps; i++)
        n += fake.qp[i] && fake.qp[i]->room == 1 && fake.qp[i]->state == IBV_QPS_RTS;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

/* Only a link's own session can end it by its number. The end of another session leaves the link. */
static void a_link_is_detached_by_its_session(void **state)
{
    (void)state;
    struct fixture f = begin();
    struct tarn_link *second = fake_link(f.n, true);
    uint64_t id = second->id;
    assert_int_equal(queue_pairs(), 2);
    f.n->node_ops->detach_link(f.n->half, SESSION + 1, id);
    assert_int_equal(queue_pairs(), 2);
    f.n->node_ops->detach_link(f.n->half, SESSION, id + 100);
    f.n->node_ops->detach_link(f.n->half, SESSION, 0);
    assert_int_equal(queue_pairs(), 2);
    f.n->node_ops->detach_link(f.n->half, SESSION, id);
    assert_int_equal(queue_pairs(), 1); /* gone when detach_link() returns */
    f.n->node_ops->detach(f.n->half, SESSION + 1);
    assert_int_equal(queue_pairs(), 1);
    f.n->node_ops->detach(f.n->half, SESSION);
    assert_int_equal(queue_pairs(), 0);
    f.ops->close(second);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_a_generation_counts),
        cmocka_unit_test(equal_slots_of_two_pools_are_checked_separately),
        cmocka_unit_test(works_outside_of_a_pool_are_not_posted),
        cmocka_unit_test(the_kind_of_generation_fits_the_work),
        cmocka_unit_test(no_two_works_share_memory),
        cmocka_unit_test(a_link_is_detached_by_its_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
