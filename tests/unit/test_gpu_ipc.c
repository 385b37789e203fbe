/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of cuda_ipc, on the stand-in with delayed copies: a work is done when its copy's mark has passed, the
 * generation is checked at that moment, puts write only into reservations, and a view is of the generation
 * that was there when its hazard was announced.
 */
#include "tests/unit/fake_node.h"

#include "tests/device.h"
#include "tests/harness.h"
#include "tests/standin/cuda_standin.h"

enum { LATE_US = 200 * 1000, SMALL = 5000, LARGE = 400000, LOOKS = 50 };

static const size_t sizes[] = {SMALL, LARGE};

struct fixture {
    struct fake_node *n;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    struct device *d;
    uint8_t *there; /* LARGE bytes of GPU memory */
};

/* The link maps the memory that the descriptors name. The caller keeps the descriptors. */
static struct tarn_link *ipc_link(struct fake_node *n)
{
    char text[TARN_ATTACH_TEXT];
    int fds[56];
    struct tarn_link *l = NULL;
    struct tarn_peer p = fake_peer(text, fds, 0);
    p.local = n->local;
    p.write = true;
    p.nfds = fake_attach(n, SESSION, true, "", text, fds);
    int rc;
    while ((rc = n->ops->connect(&p, &l)) == TARN_INPROGRESS) /* the driver is still starting */
        ;
    if (rc)
        fail_msg("connect: %s", tarn_last_error());
    for (uint32_t i = 0; i < p.nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return l;
}

static struct fixture begin(void)
{
    struct fixture f;
    devices_need(1);
    if (!tarn_standin_delay)
        harness_skip("standin", "only the stand-in is late on demand");
    tarn_standin_delay(0);
    f.n = fake_start("cuda_ipc", false, 0);
    f.ops = f.n->ops;
    f.l = ipc_link(f.n);
    f.d = device_open(0);
    f.there = device_alloc(f.d, LARGE);
    return f;
}

static void end(struct fixture *f)
{
    tarn_standin_delay(0);
    f->ops->close(f->l);
    device_drop(f->d, f->there);
    device_close(f->d);
    fake_stop(f->n);
}

static struct tarn_work work(struct fixture *f, uint32_t slot, struct tarn_piece *p, size_t bytes)
{
    *p = (struct tarn_piece){.addr = f->there, .bytes = bytes};
    struct tarn_work w = fake_work(f->n, slot, p, 1);
    w.gpu = 1;
    return w;
}

/* Waits for the work and returns its status. */
static int outcome(struct fixture *f, struct tarn_work *w)
{
    uint64_t deadline = tarn_deadline(WAIT_MS);
    while (!w->owner) {
        assert_true(tarn_now_ns() < deadline);
        assert_in_range(f->ops->wait(f->l, deadline), 0, 1);
    }
    return w->status;
}

static void a_put_is_done_when_its_copy_is_done(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fixture f = begin();
        struct tarn_piece p;
        uint8_t *bytes = malloc(sizes[i]);
        assert_non_null(bytes);
        fill(bytes, sizes[i], 1);
        device_write(f.d, f.there, bytes, sizes[i]);
        struct tarn_work w = work(&f, 0, &p, sizes[i]);
        tarn_standin_delay(LATE_US);
        uint64_t begun = tarn_now_ns();
        submit(f.ops, f.l, &w, true);
        for (int k = 0; k < LOOKS && tarn_now_ns() - begun < LATE_US * 1000ull / 2; k++) {
            assert_in_range(f.ops->progress(f.l), 0, 1);
            assert_null(w.owner);
        }
        assert_int_equal(outcome(&f, &w), 0);
        assert_memory_equal(f.n->pool.base, bytes, sizes[i]); /* already complete, not a moment later */
        free(bytes);
        end(&f);
    }
}

/* The generation changes while the copy is under way, so the work is stale. */
static void a_generation_is_compared_after_the_copy(void **state)
{
    (void)state;
    for (int put = 0; put < 2; put++)
        for (int i = 0; i < 2; i++) {
            struct fixture f = begin();
            struct tarn_piece p;
            if (!put)
                commit(f.n, 0);
            struct tarn_work w = work(&f, 0, &p, sizes[i]);
            tarn_standin_delay(LATE_US);
            submit(f.ops, f.l, &w, put);
            assert_null(w.owner);
            assert_in_range(f.ops->progress(f.l), 0, 1);
            atomic_fetch_add(&f.n->pool.gen[0], 2);
            assert_int_equal(outcome(&f, &w), TARN_E_STALE);
            end(&f);
        }
}

static void a_put_writes_only_into_its_reservation(void **state)
{
    (void)state;
    static const int off[] = {-2, 2, 4, 1, -1}; /* wrong generations; the last two are readable ones */
    struct fixture f = begin();
    uint8_t *before = malloc(EXTENT);
    assert_non_null(before);
    fill(f.n->pool.base, EXTENT, 3);
    memcpy(before, f.n->pool.base, EXTENT);
    atomic_store(&f.n->pool.gen[0], ((uint64_t)EPOCH << 32) + 101);
    for (size_t k = 0; k < sizeof off / sizeof *off; k++) {
        struct tarn_piece p;
        struct tarn_work w = work(&f, 0, &p, SMALL);
        w.gen += (uint64_t)(int64_t)off[k];
        submit(f.ops, f.l, &w, true);
        assert_int_equal(outcome(&f, &w), TARN_E_STALE);
        assert_memory_equal(f.n->pool.base, before, EXTENT);
    }
    commit(f.n, 0); /* the slot holds an object now */
    struct tarn_piece p;
    struct tarn_work w = work(&f, 0, &p, SMALL);
    submit(f.ops, f.l, &w, true);
    assert_int_equal(outcome(&f, &w), TARN_E_STALE);
    assert_memory_equal(f.n->pool.base, before, EXTENT);
    free(before);
    end(&f);
}

/* Generations of other objects in the slot, and of the same counter in another epoch: view() refuses them. */
static void a_view_shows_only_its_generation(void **state)
{
    (void)state;
    struct fixture f = begin();
    const void *addr = NULL;
    uint32_t hazard;
    fill(f.n->pool.base, EXTENT, 3);
    commit(f.n, 0);
    uint64_t gen = atomic_load(&f.n->pool.gen[0]);
    const uint64_t others[] = {gen - 2, gen + 2, gen + 1, gen ^ 1ull << 32};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        assert_int_equal(f.ops->view(f.l, 0, 0, others[k], 0, SMALL, &addr, &hazard), TARN_E_STALE);
        assert_null(addr);
        assert_int_equal(atomic_load(&f.n->hazards->entry[0]), 0);
    }
    assert_int_equal(f.ops->view(f.l, 0, 0, gen, 0, SMALL, &addr, &hazard), 0);
    assert_int_equal(atomic_load(&f.n->hazards->entry[hazard]), 0 * SLOTS + 0 + 1);
    assert_memory_equal(addr, f.n->pool.base, SMALL);
    f.ops->unview(f.l, hazard);
    assert_int_equal(atomic_load(&f.n->hazards->entry[hazard]), 0);
    end(&f);
}

/* Works outside the pool, or in an unknown pool, move nothing. */
static void ranges_lie_in_the_pool(void **state)
{
    (void)state;
    struct fixture f = begin();
    const void *addr;
    uint32_t hazard;
    const uint64_t all = SLOTS * EXTENT;
    const struct {
        uint32_t pool, slot;
        uint64_t offset;
    } wrong[] = {{1, 0, 0},       {63, 0, 0},
                 {64, 0, 0},      {UINT32_MAX, 0, 0},
                 {0, SLOTS, 0},   {0, 0, all - SMALL + 1},
                 {0, 0, all + 1}, {0, 0, UINT64_MAX - 10}};
    for (int put = 0; put < 2; put++) {
        if (!put)
            commit(f.n, 0);
        else
            commit(f.n, 0), assert_int_equal(atomic_load(&f.n->pool.gen[0]) & 1, 1);
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            struct tarn_piece p;
            struct tarn_work w = work(&f, 0, &p, SMALL);
            w.pool = wrong[k].pool;
            w.slot = wrong[k].slot;
            if (w.slot == SLOTS)
                w.gen = put; /* a value that may follow the table of generations */
            w.offset = wrong[k].offset;
            submit(f.ops, f.l, &w, put);
            assert_int_equal(outcome(&f, &w), TARN_E_STALE);
            assert_int_equal(f.ops->view(f.l, w.pool, w.slot, w.gen & ~1ull, w.offset, SMALL, &addr, &hazard),
                             TARN_E_STALE);
        }
    }
    end(&f);
}

/* Copies submitted to a GPU complete before close() returns. */
static void closing_waits_for_copies(void **state)
{
    (void)state;
    struct fixture f = begin();
    struct tarn_piece p;
    struct tarn_link *l = ipc_link(f.n);
    device_set(f.d, f.there, 7, LARGE);
    struct tarn_work w = work(&f, 0, &p, LARGE);
    tarn_standin_delay(LATE_US);
    submit(f.ops, l, &w, true);
    assert_in_range(f.ops->progress(l), 0, 1);
    f.ops->close(l);
    assert_non_null(w.owner);
    uint8_t *then = malloc(LARGE);
    assert_non_null(then);
    memcpy(then, f.n->pool.base, LARGE);
    tarn_standin_delay(0);
    device_set(f.d, f.there, 8, LARGE); /* runs after the copy on that GPU */
    assert_memory_equal(f.n->pool.base, then, LARGE);
    assert_int_equal(then[0], 7);
    assert_int_equal(then[LARGE - 1], 7);
    free(then);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_put_is_done_when_its_copy_is_done),
        cmocka_unit_test(a_generation_is_compared_after_the_copy),
        cmocka_unit_test(a_put_writes_only_into_its_reservation),
        cmocka_unit_test(a_view_shows_only_its_generation),
        cmocka_unit_test(ranges_lie_in_the_pool),
        cmocka_unit_test(closing_waits_for_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
