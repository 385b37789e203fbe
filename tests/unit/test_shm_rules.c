/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm's rules, each at its worst moment: a generation that changes in the middle of a copy (the memory cannot
 * be accessed until a signal handler has changed it), slots after the end of the table, and hazards of other
 * links.
 */
#include <signal.h>

#include "tests/unit/fake_node.h"

enum { PAGES = 4, PAGE = 4096, HALF = PAGES * PAGE / 2 };

/* Half of this memory is inaccessible. The first access changes the slot's generation, and then continues. */
static struct {
    char *memory;
    struct fake_node *n;
    uint32_t slot, add;
    volatile sig_atomic_t touched;
} trap;

static void on_touch(int signum, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)context;
    if (at < trap.memory || at >= trap.memory + PAGES * PAGE) {
        signal(signum, SIG_DFL);
        return;
    }
    trap.touched++;
    atomic_fetch_add(&trap.n->pool.gen[trap.slot], trap.add);
    mprotect(trap.memory, PAGES * PAGE, PROT_READ | PROT_WRITE);
}

static void set_trap(struct fake_node *n, uint32_t slot, uint32_t add)
{
    struct sigaction a = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, NULL);
    trap.n = n;
    trap.slot = slot;
    trap.add = add;
    trap.touched = 0;
    assert_int_equal(mprotect(trap.memory + HALF, HALF, PROT_NONE), 0);
}

static void a_generation_that_changes_during_a_copy_makes_it_stale(void **state)
{
    (void)state;
    static const uint32_t adds[] = {1, 2, 4}; /* freed; given to another object; given to a third */
    trap.memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(trap.memory != MAP_FAILED);
    for (int put = 0; put < 2; put++)
        for (size_t k = 0; k < 3; k++) {
            struct fake_node *n = fake_start("shm", false, 0);
            struct tarn_link *l = fake_link(n, true);
            struct tarn_piece p = {.addr = trap.memory, .bytes = PAGES * PAGE};
            if (!put)
                commit(n, 5);
            struct tarn_work w = fake_work(n, 5, &p, 1);
            set_trap(n, 5, adds[k]);
            assert_int_equal(run_work(n->ops, l, &w, put), TARN_E_STALE);
            assert_int_equal(trap.touched, 1); /* the copy had begun */
            w = fake_work(n, 5, &p, 1);
            if (tarn_gen_readable(w.gen) != put)
                assert_int_equal(run_work(n->ops, l, &w, put), 0);
            n->ops->close(l);
            fake_stop(n);
        }
    signal(SIGSEGV, SIG_DFL);
    munmap(trap.memory, PAGES * PAGE);
}

static void every_bit_of_a_generation_counts(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *l = fake_link(n, true);
    char data[100];
    const void *addr;
    uint32_t hazard;
    struct tarn_piece p = {.addr = data, .bytes = sizeof data};
    for (int put = 0; put < 2; put++)
        for (int bit = -1; bit < 64; bit++) {
            const uint64_t gen = ((uint64_t)EPOCH << 32) + 0x1234567a + (uint64_t)put;
            int want = bit < 0 ? 0 : TARN_E_STALE;
            atomic_store(&n->pool.gen[3], bit < 0 ? gen : gen ^ 1ull << bit);
            struct tarn_work w = fake_work(n, 3, &p, 1);
            w.gen = gen;
            assert_int_equal(run_work(n->ops, l, &w, put), want);
            if (put)
                continue;
            assert_int_equal(n->ops->view(l, 0, 3, gen, 3 * EXTENT, 10, &addr, &hazard), want);
            if (want == 0)
                n->ops->unview(l, hazard);
            assert_int_equal(atomic_load(&n->hazards->entry[0]), 0);
        }
    n->ops->close(l);
    fake_stop(n);
}

/* Bytes after the table of generations may look like a generation. */
static void a_slot_behind_the_last_is_stale(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *l = fake_link(n, true);
    char data[100];
    const void *addr;
    uint32_t hazard;
    struct tarn_piece p = {.addr = data, .bytes = sizeof data};
    for (uint64_t put = 0; put < 2; put++) {
        struct tarn_work w = fake_work(n, 0, &p, 1);
        w.slot = SLOTS;
        w.gen = put;
        assert_int_equal(run_work(n->ops, l, &w, put), TARN_E_STALE);
    }
    assert_int_equal(n->ops->view(l, 0, SLOTS, 0, 0, 10, &addr, &hazard), TARN_E_STALE);
    n->ops->close(l);
    fake_stop(n);
}

/* The links of a session share a hazard page. A link that closes clears only its own entries. */
static void closing_leaves_the_hazards_of_other_links(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("shm", false, 0);
    struct tarn_link *a = fake_link(n, false), *b = fake_link(n, false);
    const void *addr;
    uint32_t of_a, of_b;
    commit(n, 1);
    commit(n, 2);
    assert_int_equal(n->ops->view(a, 0, 1, atomic_load(&n->pool.gen[1]), EXTENT, 10, &addr, &of_a), 0);
    assert_int_equal(n->ops->view(b, 0, 2, atomic_load(&n->pool.gen[2]), 2 * EXTENT, 10, &addr, &of_b), 0);
    n->ops->close(b);
    assert_int_equal(atomic_load(&n->hazards->entry[of_a]), 1 + 1);
    assert_int_equal(atomic_load(&n->hazards->entry[of_b]), 0);
    n->ops->unview(a, of_a);
    n->ops->close(a);
    fake_stop(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_generation_that_changes_during_a_copy_makes_it_stale),
        cmocka_unit_test(every_bit_of_a_generation_counts),
        cmocka_unit_test(a_slot_behind_the_last_is_stale),
        cmocka_unit_test(closing_leaves_the_hazards_of_other_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
