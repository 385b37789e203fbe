/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How works are spread over rails and cut into work requests, and what becomes of them when a rail or the
 * node fails. The verbs are the stand-in of fake_verbs.h: what is asked of devices is shown here, not what
 * real ones do with it.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma_link.h"

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    char *memory;
};

enum { MEMORY = 16 << 20 };

static bool unfenced;

static void fresh(void)
{
    fake_reset();
    fake.vendor = unfenced ? 0xffffff : 0x2c9; /* soft-RoCE, whose fences are not used; Mellanox */
}

static int without_fences(void **state)
{
    (void)state;
    unfenced = true;
    return 0;
}

static int with_fences(void **state)
{
    (void)state;
    unfenced = false;
    return 0;
}

/* A test with and without fences. */
#define BOTH(fn_) \
    cmocka_unit_test(fn_), \
    { \
#fn_ "_without_fences", fn_, without_fences, with_fences, NULL \
    }

static struct fixture begin(void)
{
    struct fixture f = {.n = fake_start("rdma", false, 0)};
    f.ops = f.n->ops;
    f.l = fake_link(f.n, true);
    f.memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.memory != MAP_FAILED);
    fill(f.memory, MEMORY, 7);
    assert_int_equal(f.ops->map(f.n->local, f.memory, MEMORY), 0);
    return f;
}

static void end(struct fixture *f)
{
    f->ops->close(f->l);
    assert_int_equal(f->ops->unmap(f->n->local, f->memory, MEMORY), 0);
    fake_stop(f->n);
    munmap(f->memory, MEMORY);
    assert_int_equal(fake_left(), 0);
}

static int put_all(struct fixture *f, uint64_t bytes)
{
    struct tarn_piece p = {f->memory, bytes, 0, 0};
    struct tarn_work w = fake_work(f->n, 0, &p, 1);
    return run_work(f->ops, f->l, &w, true);
}

static void forget_moved(void)
{
    for (int i = 0; i < fake.ndevices; i++)
        fake.device[i].moved = fake.device[i].wrs = 0;
}

/* --- spreading ---------------------------------------------------------------------------------- */

static void large_works_are_cut_by_the_speed_of_ports(void **state)
{
    (void)state;
    fresh();
    struct fake_device *slow = fake_add("slow", 1), *fast = fake_add("fast", 2);
    fast->port[1].width = 2; /* 40 Gbit/s beside 10 */
    struct fixture f = begin();
    const uint64_t bytes = 10 << 20;
    assert_int_equal(put_all(&f, bytes), 0);
    assert_memory_equal(f.n->pool.base, f.memory, bytes);
    assert_int_equal(fast->moved + slow->moved, bytes);
    assert_in_range(fast->moved, bytes / 5 * 4 - 4096, bytes / 5 * 4);
    end(&f);
}

static void measured_speed_takes_over(void **state)
{
    (void)state;
    fresh();
    struct fake_device *a = fake_add("a", 1), *b = fake_add("b", 2);
    struct fixture f = begin();
    f.l->lanes[0].bytes_ns = 3;
    const uint64_t bytes = 8 << 20;
    assert_int_equal(put_all(&f, bytes), 0); /* the other is not known yet: as the ports say */
    assert_in_range(a->moved, bytes / 2 - 4096, bytes / 2 + 4096);
    forget_moved();
    f.l->lanes[0].bytes_ns = 3;
    f.l->lanes[1].bytes_ns = 1;
    assert_int_equal(put_all(&f, bytes), 0);
    assert_in_range(a->moved, bytes / 4 * 3 - 4096, bytes / 4 * 3);
    assert_int_equal(a->moved + b->moved, bytes);
    end(&f);
}

/* Every size around the limits of striping arrives whole, however unequal the rails. */
static void no_byte_is_lost_or_moved_twice(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1,      4095,    4096,    524287,  524288,  524289,  786431,
                                     786432, 1048575, 1048577, 1572865, 3000001, 8388608, 15728639};
    static const double speeds[][3] = {{1, 1, 1}, {1, 100, 1}, {1e-6, 1, 1e6}, {5, 3, 2}};
    fresh();
    for (uint8_t i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        fake_add(name, i);
    }
    struct fixture f = begin();
    for (size_t s = 0; s < 4; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int k = 0; k < 3; k++)
                f.l->lanes[k].bytes_ns = speeds[s][k];
            forget_moved();
            memset(f.n->pool.base, 0, sizes[i] + 1);
            assert_int_equal(put_all(&f, sizes[i]), 0);
            assert_memory_equal(f.n->pool.base, f.memory, sizes[i]);
            assert_int_equal(((char *)f.n->pool.base)[sizes[i]], 0);
            assert_int_equal(fake.device[0].moved + fake.device[1].moved + fake.device[2].moved, sizes[i]);
        }
    end(&f);
}

static void small_works_are_spread(void **state)
{
    (void)state;
    fresh();
    struct fake_device *a = fake_add("a", 1), *b = fake_add("b", 2);
    struct fixture f = begin();
    struct tarn_work w[64];
    struct tarn_piece p[64];
    for (uint32_t i = 0; i < 64; i++) {
        p[i] = (struct tarn_piece){f.memory + i * 65536, 65536, 0, 0};
        w[i] = fake_work(f.n, i, &p[i], 1);
        submit(f.ops, f.l, &w[i], true);
    }
    assert_int_equal(finish_works(f.ops, f.l, w, 64), 0);
    assert_int_equal(a->moved, 32 * 65536);
    assert_int_equal(b->moved, 32 * 65536);
    assert_int_equal(a->wrs, 32);
    end(&f);
}

/* --- work requests ------------------------------------------------------------------------------ */

static void pieces_are_gathered(void **state)
{
    (void)state;
    fresh();
    struct fake_device *d = fake_add("d", 1);
    struct fixture f = begin();
    struct tarn_piece p = {f.memory, 1024, 4096, 256};
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    assert_int_equal(run_work(f.ops, f.l, &w, true), 0);
    assert_int_equal(d->wrs, 256 / FAKE_SGES);
    assert_int_equal(d->max_sges, FAKE_SGES);
    commit(f.n, 0);
    forget_moved();
    w = fake_work(f.n, 0, &p, 1);
    assert_int_equal(run_work(f.ops, f.l, &w, false), 0);
    assert_int_equal(d->wrs, 256 / FAKE_SGES + 1); /* and one that reads the generation */
    end(&f);
}

static void a_full_queue_is_no_failure(void **state)
{
    (void)state;
    fresh();
    fake_add("d", 1);
    fake.max_wr = 16;
    struct fixture f = begin();
    struct tarn_work w[TARN_JOBS], more;
    struct tarn_piece p = {f.memory, 40, 400, 50}; /* four requests each, and one that reads the generation */
    for (uint32_t i = 0; i < TARN_JOBS; i++) {
        commit(f.n, i % SLOTS);
        w[i] = fake_work(f.n, i % SLOTS, &p, 1);
        submit(f.ops, f.l, &w[i], false);
        assert_null(w[i].owner);
    }
    more = fake_work(f.n, 0, &p, 1);
    assert_int_equal(f.ops->get(f.l, &more), TARN_E_AGAIN);
    assert_int_equal(finish_works(f.ops, f.l, w, TARN_JOBS), 0);
    for (uint32_t i = 0; i < TARN_JOBS; i++)
        assert_int_equal(w[i].status, 0);
    more = fake_work(f.n, 0, &p, 1);
    assert_int_equal(run_work(f.ops, f.l, &more, false), 0);
    end(&f);
}

/* --- keys --------------------------------------------------------------------------------------- */

static void a_readers_keys_cannot_write(void **state)
{
    (void)state;
    fresh();
    fake_add("a", 1);
    fake_add("b", 2);
    struct fixture f = begin();
    struct tarn_link *reader = fake_link(f.n, false);
    assert_false(f.ops->writable(reader));
    char bytes[10];
    assert_int_equal(put_bytes(f.n, reader, 0, bytes, sizeof bytes), TARN_E_NOT_REACHABLE);
    uint64_t arena = (uintptr_t)f.n->pool.base, gen = (uintptr_t)f.n->pool.gen;
    for (int k = 0; k < 2; k++) {
        uint32_t key = reader->lanes[k].pools[0].slices[0];
        assert_non_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_READ, NULL));
        assert_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_WRITE, NULL));
        key = f.l->lanes[k].pools[0].slices[0];
        assert_non_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_WRITE, NULL));
        key = f.l->lanes[k].pools[0].gen; /* nobody's */
        assert_null(fake_memory_of(key, gen, 8, IBV_ACCESS_REMOTE_WRITE, NULL));
    }
    f.ops->close(reader);
    end(&f);
}

/* --- failures ----------------------------------------------------------------------------------- */

static void gets_go_on_without_a_rail_that_failed(void **state)
{
    (void)state;
    fresh();
    struct fake_device *a = fake_add("a", 1), *b = fake_add("b", 2);
    struct fixture f = begin();
    fill(f.n->pool.base, 8 << 20, 3);
    commit(f.n, 0);
    b->dead = true;
    struct tarn_piece p = {f.memory, 8 << 20, 0, 0};
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    assert_int_equal(run_work(f.ops, f.l, &w, false), 0);
    assert_memory_equal(f.memory, f.n->pool.base, 8 << 20);
    assert_int_equal(b->moved, 0);
    assert_true(a->moved > 8 << 20);                /* and the generations */
    struct tarn_link *later = fake_link(f.n, true); /* for a while links do without it */
    assert_int_equal(later->nlanes, 1);
    assert_string_equal(later->lanes[0].rail->name, "a:1");
    f.ops->close(later);
    end(&f);
}

static void puts_on_a_rail_that_failed_end_with_the_link(void **state)
{
    (void)state;
    fresh();
    fake_add("a", 1);
    fake_add("b", 2)->dead = true;
    struct fixture f = begin();
    assert_int_equal(put_all(&f, 8 << 20), TARN_E_NODE_DOWN);
    assert_int_equal(put_all(&f, 10), TARN_E_AGAIN); /* until progress() has said that the link is over */
    end(&f);
}

static void without_queue_pairs_at_the_node_all_ends(void **state)
{
    (void)state;
    fresh();
    fake_add("a", 1);
    fake_add("b", 2);
    struct fixture f = begin();
    int here = fake.qps;
    fake_detach(f.n, SESSION);
    assert_int_equal(fake.qps, here - 2);
    char *before = malloc(4 << 20);
    assert_non_null(before);
    memcpy(before, f.n->pool.base, 4 << 20);
    assert_int_equal(put_all(&f, 4 << 20), TARN_E_NODE_DOWN); /* and nothing was written */
    assert_memory_equal(before, f.n->pool.base, 4 << 20);
    free(before);
    end(&f);
}

/* Closing takes back what is in flight; a link and its node's half come and go many times. */
static void nothing_is_left_behind(void **state)
{
    (void)state;
    fresh();
    fake_add("a", 1);
    fake_add("b", 2);
    struct fixture f = begin();
    int left = fake_left();
    for (int i = 0; i < 200; i++) {
        struct tarn_link *l = fake_link(f.n, i & 1);
        struct tarn_piece p = {f.memory, 1 << 20, 0, 0};
        struct tarn_work w = fake_work(f.n, 5, &p, 1);
        w.gen &= ~1ull;
        submit(f.ops, l, &w, false);
        uint64_t id = f.ops->link_id(l);
        f.ops->close(l);
        assert_int_equal(w.status, TARN_E_CANCELED);
        f.ops->detach_link(f.n->server, SESSION, id);
        assert_int_equal(fake_left(), left);
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(large_works_are_cut_by_the_speed_of_ports),
        BOTH(measured_speed_takes_over),
        BOTH(no_byte_is_lost_or_moved_twice),
        BOTH(small_works_are_spread),
        BOTH(pieces_are_gathered),
        BOTH(a_full_queue_is_no_failure),
        BOTH(a_readers_keys_cannot_write),
        BOTH(gets_go_on_without_a_rail_that_failed),
        BOTH(puts_on_a_rail_that_failed_end_with_the_link),
        BOTH(without_queue_pairs_at_the_node_all_ends),
        BOTH(nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
