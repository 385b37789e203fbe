/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How works are spread over rails and cut into work requests, and what happens when a rail or the node fails.
 * The verbs are the stand-in of fake_verbs.h: this tests what is requested of devices, not what real devices
 * do.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "transport/rdma/rdma_link.h"

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
    fake.vendor = unfenced ? 0xffffff : 0x2c9; /* soft-RoCE: tarn uses no fences; Mellanox */
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

/* Runs a test with and without fences. */
#define BOTH(fn_) \
    cmocka_unit_test(fn_), \
    { \
#fn_ "_without_fences", fn_, without_fences, with_fences, NULL \
    }

static struct fixture begin_empty(void)
{
    struct fixture f = {.n = fake_start("rdma", false, 0)};
    f.ops = f.n->ops;
    f.l = fake_link(f.n, true);
    wait_until(
        (tarn_rdma_lanes_look(tarn_rdma_link(f.l)), tarn_rdma_link(f.l)->joining == 0)); /* all lanes */
    f.memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.memory != MAP_FAILED);
    assert_int_equal(f.ops->map(f.n->local, f.memory, MEMORY), 0);
    return f;
}

static struct fixture begin(void)
{
    struct fixture f = begin_empty();
    fill(f.memory, MEMORY, 7);
    return f;
}

static void end(struct fixture *f)
{
    f->ops->close(f->l);
    assert_int_equal(f->ops->unmap(f->n->local, f->memory, MEMORY), 0);
    fake_stop(f->n);
    munmap(f->memory, MEMORY);
    assert_true(fake_goes_to(NULL, 0));
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
    tarn_rdma_link(f.l)->lanes[0].bytes_ns = 3;
    const uint64_t bytes = 8 << 20;
    assert_int_equal(put_all(&f, bytes), 0); /* the other rail's speed is unknown: use the ports' */
    assert_in_range(a->moved, bytes / 2 - 4096, bytes / 2 + 4096);
    forget_moved();
    tarn_rdma_link(f.l)->lanes[0].bytes_ns = 3;
    tarn_rdma_link(f.l)->lanes[1].bytes_ns = 1;
    assert_int_equal(put_all(&f, bytes), 0);
    assert_in_range(a->moved, bytes / 4 * 3 - 4096, bytes / 4 * 3);
    assert_int_equal(a->moved + b->moved, bytes);
    end(&f);
}

/* Every size around the limits of striping arrives whole, however different the rails are. */
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
                tarn_rdma_link(f.l)->lanes[k].bytes_ns = speeds[s][k];
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

/* As many pieces per request as the device takes, at most 32. */
static void pieces_are_gathered(void **state)
{
    (void)state;
    static const uint32_t sges[] = {1, 3, 16, 30, 32, 40};
    for (size_t i = 0; i < sizeof sges / sizeof *sges; i++) {
        uint32_t one = sges[i] < 32 ? sges[i] : 32, requests = (256 + one - 1) / one;
        fresh();
        struct fake_device *d = fake_add("d", 1);
        fake.max_sge = (int)sges[i];
        struct fixture f = begin();
        struct tarn_piece p = {f.memory, 1024, 4096, 256};
        struct tarn_work w = fake_work(f.n, 0, &p, 1);
        assert_int_equal(run_work(f.ops, f.l, &w, true), 0);
        assert_int_equal(d->wrs, requests);
        assert_int_equal(d->max_sges, one);
        commit(f.n, 0);
        forget_moved();
        w = fake_work(f.n, 0, &p, 1);
        assert_int_equal(run_work(f.ops, f.l, &w, false), 0);
        assert_int_equal(d->wrs, requests + 1); /* and one to read the generation */
        end(&f);
    }
}

/* With very small queues, works wait for room, and completions have room, too. */
static void a_full_queue_is_no_failure(void **state)
{
    (void)state;
    static const struct {
        int wr, cqe;
    } room[] = {{1, 4096}, {2, 4096}, {3, 2}, {4, 4096}, {16, 4096}, {512, 5}, {512, 4096}};
    for (size_t k = 0; k < sizeof room / sizeof *room; k++) {
        fresh();
        fake_add("d", 1);
        fake.max_wr = room[k].wr;
        fake.max_cqe = room[k].cqe;
        struct fixture f = begin();
        struct tarn_work w[TARN_JOBS], more;
        struct tarn_piece p = {f.memory, 40, 400, 50}; /* four requests each */
        for (uint32_t i = 0; i < TARN_JOBS; i++) {
            commit(f.n, i % SLOTS);
            w[i] = fake_work(f.n, i % SLOTS, &p, 1);
            w[i].touch = true;
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
        assert_int_equal(fake.overruns, 0);
        end(&f);
    }
}

/* --- gets and their checks ---------------------------------------------------------------------- */

enum { BATCH = 16, SMALL = 8192 };

/* A batch of gets from these slots, in this order. */
struct batch {
    struct fixture f;
    uint32_t n;
    uint32_t slot[TARN_JOBS];
    struct tarn_work w[TARN_JOBS];
    struct tarn_piece p[TARN_JOBS];
};

/* Slot i is filled with seed i + 1 and committed. */
static void batch_begin(struct batch *b, uint64_t bytes, uint32_t n)
{
    *b = (struct batch){.f = begin_empty(), .n = n};
    for (uint32_t i = 0; i < SLOTS; i++) {
        fill((char *)b->f.n->pool.base + i * EXTENT, bytes < EXTENT ? bytes : EXTENT, i + 1);
        commit(b->f.n, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        b->slot[i] = i;
        b->p[i] = (struct tarn_piece){b->f.memory + i * (MEMORY / n), bytes, 0, 0};
    }
    fake_forget();
}

static void batch_submit(struct batch *b, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        b->w[i] = fake_work(b->f.n, b->slot[i], &b->p[i], 1);
        submit(b->f.ops, b->f.l, &b->w[i], false);
    }
}

static void batch_run(struct batch *b)
{
    batch_submit(b, 0, b->n);
    assert_int_equal(finish_works(b->f.ops, b->f.l, b->w, b->n), 0);
}

/* All gets have their bytes, except the stale one. */
static void batch_expect(const struct batch *b, uint32_t stale)
{
    for (uint32_t i = 0; i < b->n; i++) {
        assert_int_equal(b->w[i].status, i == stale ? TARN_E_STALE : 0);
        if (i != stale)
            assert_memory_equal(b->p[i].addr, (char *)b->f.n->pool.base + b->slot[i] * EXTENT, b->p[i].bytes);
    }
}

static uint64_t gen_at(const struct batch *b, uint32_t slot)
{
    return (uintptr_t)&b->f.n->pool.gen[slot];
}

static bool is_check(const struct batch *b, const struct fake_posted *p)
{
    return p->opcode == IBV_WR_RDMA_READ && p->far >= gen_at(b, 0) && p->far < gen_at(b, SLOTS);
}

static void expect_read(uint32_t i, uint64_t far, uint64_t bytes, unsigned flags, uint32_t call)
{
    assert_true(i < fake.nposted);
    const struct fake_posted *p = &fake.posted[i];
    assert_int_equal(p->opcode, IBV_WR_RDMA_READ);
    assert_int_equal(p->far, far);
    assert_int_equal(p->bytes, bytes);
    assert_int_equal(p->flags, flags);
    assert_int_equal(p->call, call);
}

static const unsigned PLAIN = 0, ASKS = IBV_SEND_SIGNALED, HELD = IBV_SEND_SIGNALED | IBV_SEND_FENCE;

/* With fences, the check follows behind a fence. Without, it is posted when the bytes have arrived. */
static void a_get_is_two_reads(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, SMALL, 1);
    b.slot[0] = 5;
    batch_run(&b);
    batch_expect(&b, UINT32_MAX);
    assert_int_equal(fake.nposted, 2);
    expect_read(0, (uintptr_t)b.f.n->pool.base + 5 * EXTENT, SMALL, unfenced ? ASKS : PLAIN, 1);
    expect_read(1, gen_at(&b, 5), 8, unfenced ? ASKS : HELD, unfenced ? 2 : 1);
    end(&b.f);
}

/* All bytes come first, then the generations. Neighbouring slots share one request, behind one fence. */
static void gets_are_checked_together(void **state)
{
    (void)state;
    static const uint32_t slots[][BATCH] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},           /* one check */
        {80, 79, 78, 77, 76, 75, 74, 73, 72, 71, 70, 69, 68, 67, 66, 65}, /* one */
        {1, 2, 3, 3, 2, 1, 0, 9, 10, 11, 10, 9, 50, 49, 50, 127}, /* 1-3, 3-0, 9-11, 10-9, 50-49, 50, 127 */
        {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}, /* one each */
    };
    static const uint32_t checks[] = {1, 1, 7, BATCH};
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t stale = 0; stale <= BATCH; stale++) {
            struct batch b;
            fresh();
            fake_add("d", 1);
            batch_begin(&b, SMALL, BATCH);
            memcpy(b.slot, slots[k], sizeof slots[k]);
            batch_submit(&b, 0, BATCH);
            if (stale < BATCH && k != 2)
                commit(b.f.n, b.slot[stale]);
            assert_int_equal(finish_works(b.f.ops, b.f.l, b.w, BATCH), 0);
            batch_expect(&b, k != 2 ? stale : BATCH);
            assert_int_equal(fake.nposted, BATCH + checks[k]);
            for (uint32_t i = 0; i < BATCH; i++)
                expect_read(i, (uintptr_t)b.f.n->pool.base + b.slot[i] * EXTENT, SMALL,
                            unfenced && i == BATCH - 1 ? ASKS : PLAIN, 1);
            for (uint32_t i = BATCH; i < fake.nposted; i++) {
                const struct fake_posted *p = &fake.posted[i];
                bool first = i == BATCH, last = i == fake.nposted - 1;
                assert_true(is_check(&b, p));
                assert_int_equal(p->call, unfenced ? 2 : 1);
                assert_int_equal(p->flags & IBV_SEND_FENCE, first && !unfenced ? IBV_SEND_FENCE : 0);
                assert_int_equal(p->flags & IBV_SEND_SIGNALED, last ? IBV_SEND_SIGNALED : 0);
            }
            end(&b.f);
        }
}

/* Requests behind a fence wait. While gets are under way, other gets are checked without a fence, when their
 * bytes have arrived. */
static void no_fence_behind_other_gets(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, SMALL, BATCH);
    fake.held = true;
    for (uint32_t i = 0; i < BATCH; i++) {
        batch_submit(&b, i, i + 1);
        assert_int_equal(b.f.ops->progress(b.f.l), 0);
    }
    assert_int_equal(fake.nposted, unfenced ? BATCH : BATCH + 1);
    fake.held = false;
    assert_int_equal(finish_works(b.f.ops, b.f.l, b.w, BATCH), 0);
    batch_expect(&b, UINT32_MAX);
    uint32_t fences = 0, checks = 0;
    for (uint32_t i = 0; i < fake.nposted; i++) {
        fences += (fake.posted[i].flags & IBV_SEND_FENCE) != 0;
        checks += is_check(&b, &fake.posted[i]);
    }
    assert_int_equal(fences, unfenced ? 0 : 1); /* the first get's, which was alone */
    assert_int_equal(checks, unfenced ? 1 : 2);
    end(&b.f);
}

/* Requests are signaled every 4 MiB, so the first gets need not wait for the last. No fence between them. */
static void large_batches_are_split(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, EXTENT, BATCH);
    batch_run(&b);
    batch_expect(&b, UINT32_MAX);
    assert_int_equal(fake.nposted, BATCH + 1);
    for (uint32_t i = 0; i < BATCH; i++)
        expect_read(i, (uintptr_t)b.f.n->pool.base + i * EXTENT, EXTENT, i % 4 == 3 ? ASKS : PLAIN,
                    i / 4 + 1);
    expect_read(BATCH, gen_at(&b, 0), 8 * BATCH, ASKS, 5);
    end(&b.f);
}

static struct batch *watched;
static uint32_t replaced;

/* Replaces the object just before its first byte is read. */
static void replace(const struct ibv_send_wr *wr)
{
    uint64_t from = (uintptr_t)watched->f.n->pool.base + watched->slot[replaced] * EXTENT;
    if (wr->wr.rdma.remote_addr >= from && wr->wr.rdma.remote_addr < from + watched->p[replaced].bytes)
        commit(watched->f.n, watched->slot[replaced]);
}

static void an_object_replaced_under_a_get_is_a_miss(void **state)
{
    (void)state;
    for (replaced = 0; replaced < BATCH; replaced++) {
        struct batch b;
        fresh();
        fake_add("d", 1);
        batch_begin(&b, SMALL, BATCH);
        watched = &b;
        fake.before = replace;
        batch_run(&b);
        batch_expect(&b, replaced);
        end(&b.f);
    }
}

static const struct fake_device *late;
static uint64_t late_far;

/* Replaces the object when one rail has yet to read this part. */
static void replace_late(const struct ibv_send_wr *wr)
{
    if (wr->wr.rdma.remote_addr == late_far)
        commit(watched->f.n, 0);
}

/* Each rail checks after its own bytes. Whichever rail is last, the get is stale. */
static void each_rail_checks_its_own_part(void **state)
{
    (void)state;
    const uint64_t bytes = 4 * EXTENT;
    struct fake_device *d[3];
    for (int k = 0; k < 3; k++) {
        struct batch b;
        fresh();
        for (uint8_t i = 0; i < 3; i++) {
            char name[8];
            snprintf(name, sizeof name, "d%u", i);
            d[i] = fake_add(name, i);
        }
        batch_begin(&b, bytes, 1);
        batch_run(&b);
        assert_int_equal(b.w[0].status, 0);
        late = d[k];
        late_far = 0;
        uint32_t checks = 0;
        for (uint32_t i = 0; i < fake.nposted; i++) {
            const struct fake_posted *p = &fake.posted[i];
            checks += is_check(&b, p);
            if (p->device == late && !is_check(&b, p))
                late_far = p->far;
        }
        assert_int_equal(checks, 3);
        assert_true(late_far);
        for (int i = 0; i < 3; i++)
            tarn_rdma_link(b.f.l)->lanes[i].bytes_ns = 0; /* cut in the same way */
        watched = &b;
        fake.before = replace_late;
        batch_run(&b);
        assert_int_equal(b.w[0].status, TARN_E_STALE);
        end(&b.f);
    }
}

/* Whatever request of a chain fails, all its gets end. The error names the memory at fault. */
static void a_failure_ends_all_gets_of_the_chain(void **state)
{
    (void)state;
    static const enum ibv_wc_status causes[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
                                                IBV_WC_LOC_PROT_ERR, IBV_WC_GENERAL_ERR};
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t at = 0; at <= BATCH; at++) {
            struct batch b;
            fresh();
            fake_add("d", 1);
            batch_begin(&b, SMALL, BATCH);
            for (uint32_t i = 0; i < BATCH; i++)
                b.slot[i] = (i * 7 + 3) % SLOTS; /* no neighbours */
            fake.fail_status = causes[k];
            fake.fail_far =
                at < BATCH ? (uintptr_t)b.f.n->pool.base + b.slot[at] * EXTENT : gen_at(&b, b.slot[9]);
            batch_submit(&b, 0, BATCH);
            assert_int_equal(finish_works(b.f.ops, b.f.l, b.w, BATCH), TARN_E_NODE_DOWN);
            for (uint32_t i = 0; i < BATCH; i++) {
                bool fault = causes[k] == IBV_WC_LOC_PROT_ERR && i == at;
                assert_ptr_equal(b.w[i].owner, &b.w[i]);
                assert_int_equal(b.w[i].status, fault ? TARN_E_INVALID : TARN_E_NODE_DOWN);
            }
            end(&b.f);
        }
}

/* Gets of no bytes post only checks, in their turn. */
static void empty_gets_post_only_checks(void **state)
{
    (void)state;
    for (uint32_t stale = 0; stale <= BATCH; stale++)
        for (uint32_t k = 0; k < 3; k++) { /* all empty, then every other one */
            struct batch b;
            fresh();
            fake_add("d", 1);
            batch_begin(&b, 4096, BATCH);
            for (uint32_t i = 0; i < BATCH; i++)
                if (k == 0 || i % 2 == k - 1)
                    b.p[i].bytes = 0;
            batch_submit(&b, 0, BATCH);
            if (stale < BATCH)
                commit(b.f.n, stale);
            assert_int_equal(finish_works(b.f.ops, b.f.l, b.w, BATCH), 0);
            batch_expect(&b, stale);
            end(&b.f);
        }
}

/* --- use times ---------------------------------------------------------------------------------- */

static uint32_t touches(const struct fixture *f)
{
    uint64_t first = (uintptr_t)f->n->pool.touch;
    uint32_t n = 0;
    for (uint32_t i = 0; i < fake.nposted; i++) {
        const struct fake_posted *p = &fake.posted[i];
        n += p->opcode == IBV_WR_RDMA_WRITE && p->far >= first && p->far < first + SLOTS * 4;
    }
    return n;
}

static void batch_touch(struct batch *b)
{
    fake_forget();
    for (uint32_t i = 0; i < b->n; i++) {
        b->w[i] = fake_work(b->f.n, b->slot[i], &b->p[i], 1);
        b->w[i].touch = true;
        submit(b->f.ops, b->f.l, &b->w[i], false);
    }
    assert_int_equal(finish_works(b->f.ops, b->f.l, b->w, b->n), 0);
}

/* Moves the link's clock as if it had made no get for a while. */
static void rest(struct fixture *f)
{
    tarn_rdma_link(f->l)->tick_base_ns -= TARN_NS_PER_S / 10;
    assert_int_equal(f->ops->progress(f->l), 0); /* posts what is due */
    assert_int_equal(f->ops->progress(f->l), 0); /* runs it */
}

/* One request for neighbouring slots, after all others. The next comes after a second. */
static void slots_are_touched_once_a_second(void **state)
{
    (void)state;
    for (uint32_t falling = 0; falling < 2; falling++) {
        struct batch b;
        fresh();
        fake_add("d", 1);
        batch_begin(&b, 4096, 100);
        for (uint32_t i = 0; i < b.n; i++)
            b.slot[i] = 10 + (falling ? b.n - 1 - i : i);
        batch_touch(&b);
        rest(&b.f);
        assert_in_range(touches(&b.f), 1, b.n / 16);
        for (uint32_t i = 0; i < SLOTS; i++)
            assert_in_range(b.f.n->pool.touch[i], i < 10 || i >= 110 ? 0 : 99, i < 10 || i >= 110 ? 0 : 3000);
        batch_touch(&b);
        b.f.ops->touch(b.f.l, 0, 50);
        rest(&b.f);
        assert_int_equal(touches(&b.f), 0);
        tarn_rdma_link(b.f.l)->tick_base_ns -= TARN_NS_PER_S;
        batch_touch(&b);
        rest(&b.f);
        assert_in_range(touches(&b.f), 1, b.n / 16);
        assert_true(b.f.n->pool.touch[50] >= 199);
        end(&b.f);
    }
}

/* No touch is lost when many are due at once. */
static void scattered_slots_are_touched(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, 4096, 64);
    for (uint32_t i = 0; i < b.n; i++)
        b.slot[i] = i * 2;
    batch_touch(&b);
    rest(&b.f);
    assert_int_equal(touches(&b.f), 64);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(b.f.n->pool.touch[i] != 0, i % 2 == 0);
    end(&b.f);
}

/* A get waits neither for its own touch nor for those of the gets just before it. */
static void touches_are_delayed(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, 4096, 20);
    for (int k = 0; k < 3; k++) {
        b.slot[0] = (uint32_t)k * 2;
        b.n = 1;
        batch_touch(&b);
        assert_int_equal(touches(&b.f), 0);
    }
    assert_int_equal(b.f.ops->progress(b.f.l), 0);
    assert_int_equal(touches(&b.f), 0);
    tarn_rdma_link(b.f.l)->tick_base_ns -= TARN_NS_PER_S / 10;
    b.n = 1;
    batch_touch(&b); /* posts them, too */
    assert_int_equal(touches(&b.f), 3);
    rest(&b.f);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(b.f.n->pool.touch[i] != 0, i % 2 == 0);
    assert_int_equal(tarn_rdma_link(b.f.l)->lanes[0].room, tarn_rdma_link(b.f.l)->lanes[0].depth);
    end(&b.f);
}

static void closing_writes_delayed_touches(void **state)
{
    (void)state;
    struct batch b;
    fresh();
    fake_add("d", 1);
    batch_begin(&b, 4096, 20);
    for (uint32_t i = 0; i < b.n; i++)
        b.slot[i] = i * 3;
    batch_touch(&b);
    assert_int_equal(b.f.n->pool.touch[3], 0);
    b.f.ops->close(b.f.l);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(b.f.n->pool.touch[i] != 0, i < 60 && i % 3 == 0);
    b.f.l = fake_link(b.f.n, true);
    end(&b.f);
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
    assert_false(reader->writable);
    char bytes[10];
    assert_int_equal(put_bytes(f.n, reader, 0, bytes, sizeof bytes), TARN_E_NOT_REACHABLE);
    uint64_t arena = (uintptr_t)f.n->pool.base, gen = (uintptr_t)f.n->pool.gen;
    for (int k = 0; k < 2; k++) {
        uint32_t key = tarn_rdma_link(reader)->lanes[k].pools[0].slices[0];
        assert_non_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_READ, NULL));
        assert_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_WRITE, NULL));
        key = tarn_rdma_link(f.l)->lanes[k].pools[0].slices[0];
        assert_non_null(fake_memory_of(key, arena, 8, IBV_ACCESS_REMOTE_WRITE, NULL));
        key = tarn_rdma_link(f.l)->lanes[k].pools[0].gen; /* no client may write generations */
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
    struct tarn_link *later = fake_link(f.n, true); /* links do not use rail b for a while */
    assert_int_equal(tarn_rdma_link(later)->nlanes, 1);
    assert_string_equal(tarn_rdma_link(later)->lanes[0].rail->name, "a:1");
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
    struct tarn_piece p = {f.memory, 10, 0, 0};
    struct tarn_work later = fake_work(f.n, 0, &p, 1);
    assert_int_equal(f.ops->put(f.l, &later), TARN_E_AGAIN); /* until progress() reports the link's end */
    end(&f);
}

static void a_put_without_queue_pairs_at_the_node_fails(void **state)
{
    (void)state;
    fresh();
    fake_add("a", 1);
    fake_add("b", 2);
    struct fixture f = begin();
    int here = atomic_load(&fake.qps);
    fake_detach(f.n, SESSION);
    assert_true(fake_goes_to(&fake.qps, here - 2));
    char *before = malloc(4 << 20);
    assert_non_null(before);
    memcpy(before, f.n->pool.base, 4 << 20);
    assert_int_equal(put_all(&f, 4 << 20), TARN_E_NODE_DOWN); /* nothing was written */
    assert_memory_equal(before, f.n->pool.base, 4 << 20);
    free(before);
    end(&f);
}

/* Closing ends what is in flight. Link and node half start and stop many times. */
static void closed_links_leave_no_resources(void **state)
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
        uint64_t id = l->id;
        f.ops->close(l);
        assert_int_equal(w.status, TARN_E_CANCELED);
        f.n->node_ops->detach_link(f.n->half, SESSION, id);
        assert_true(fake_goes_to(NULL, left));
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
        BOTH(a_get_is_two_reads),
        BOTH(gets_are_checked_together),
        BOTH(no_fence_behind_other_gets),
        BOTH(large_batches_are_split),
        BOTH(an_object_replaced_under_a_get_is_a_miss),
        BOTH(each_rail_checks_its_own_part),
        BOTH(a_failure_ends_all_gets_of_the_chain),
        BOTH(empty_gets_post_only_checks),
        BOTH(slots_are_touched_once_a_second),
        BOTH(scattered_slots_are_touched),
        BOTH(touches_are_delayed),
        BOTH(closing_writes_delayed_touches),
        BOTH(a_readers_keys_cannot_write),
        BOTH(gets_go_on_without_a_rail_that_failed),
        BOTH(puts_on_a_rail_that_failed_end_with_the_link),
        BOTH(a_put_without_queue_pairs_at_the_node_fails),
        BOTH(closed_links_leave_no_resources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
