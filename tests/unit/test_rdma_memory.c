/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory of the rdma transport: what is registered, when and for how long, and what happens to
 * memory that devices refuse. The verbs are the stand-in of fake_verbs.h, and GPU memory is a range of it:
 * this tests decisions, not a device's behaviour.
 */
#include "tests/unit/fake_node.h"
#include "tests/unit/fake_verbs.h"

#include "base/text.h"
#include "transport/rdma/rdma_link.h"

#define LARGE 100000u /* too large for the link's own buffers */

struct fixture {
    struct fake_node *n;
    struct tarn_link *l;
    struct tarn_local *local;
    char *memory;
    int idle; /* regions alive when nothing is in flight or registered */
};

enum { MEMORY = 4 << 20 };

static struct fixture begin(uint8_t rails)
{
    struct fixture f;
    for (uint8_t i = 0; i < rails; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        fake_add(name, (uint8_t)(1 + i));
    }
    f.n = fake_start("rdma", false, 0);
    f.l = fake_link(f.n, true);
    f.local = f.n->local;
    f.memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.memory != MAP_FAILED);
    fill(f.memory, MEMORY, 7);
    f.idle = fake.mrs;
    return f;
}

static void end(struct fixture *f)
{
    assert_int_equal(fake.mrs, f->idle);
    f->n->ops->close(f->l);
    fake_stop(f->n);
    munmap(f->memory, MEMORY);
    assert_true(fake_goes_to(NULL, 0));
}

/* Puts memory into the slot and checks the pool's bytes. */
static void puts_from(struct fixture *f, uint32_t slot, char *from, uint64_t bytes)
{
    memset((char *)f->n->pool.base + slot * EXTENT, 0, bytes);
    if (put_bytes(f->n, f->l, slot, from, bytes))
        fail_msg("put: %s", tarn_last_error());
    assert_memory_equal((char *)f->n->pool.base + slot * EXTENT, from, bytes);
}

static void gets_into(struct fixture *f, uint32_t slot, char *to, uint64_t bytes)
{
    fill((char *)f->n->pool.base + slot * EXTENT, bytes, slot + 100);
    commit(f->n, slot);
    memset(to, 0, bytes);
    if (get_bytes(f->n, f->l, slot, to, bytes))
        fail_msg("get: %s", tarn_last_error());
    assert_memory_equal((char *)f->n->pool.base + slot * EXTENT, to, bytes);
}

static bool mapped(struct fixture *f, char *addr, uint64_t bytes)
{
    struct tarn_piece p = {.addr = addr, .bytes = bytes};
    return tarn_rdma_mapped(tarn_rdma_local(f->local), &p, 1);
}

static void says(const char *text)
{
    if (!strstr(tarn_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", tarn_last_error(), text);
}

/* --- the caller's registrations ----------------------------------------------------------------- */

static void unregistered_memory_is_registered_for_one_work_only(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(1);
    uint32_t before = fake.nmrs;
    gets_into(&f, 0, f.memory, LARGE);
    assert_int_equal(fake.nmrs, before + 1);
    assert_int_equal(fake.mrs, f.idle);
    puts_from(&f, 1, f.memory, LARGE);
    assert_int_equal(fake.nmrs, before + 2);
    gets_into(&f, 2, f.memory, 4096); /* small: uses the link's own memory */
    assert_int_equal(fake.nmrs, before + 2);
    end(&f);
}

static void registered_memory_is_not_registered_again(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    assert_int_equal(tarn_rdma_map(f.local, f.memory, MEMORY), 0);
    uint32_t before = fake.nmrs;
    gets_into(&f, 0, f.memory, EXTENT);
    gets_into(&f, 1, f.memory + 12345, 999);
    puts_from(&f, 2, f.memory + MEMORY - LARGE, LARGE);
    assert_int_equal(tarn_rdma_map(f.local, f.memory + 4096, 8192), 0); /* nested: costs nothing */
    assert_int_equal(tarn_rdma_map(f.local, f.memory, MEMORY), 0);
    assert_int_equal(fake.nmrs, before);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), TARN_E_INVALID);
    says("not registered");
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory + 4096, 4096), TARN_E_INVALID);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory + 4096, 8192), 0);
    end(&f);
}

/* As if all but the inner range had been remapped: the device's pages differ from the caller's. */
static void change_pages(struct fixture *f, char *pages, char *inner)
{
    struct fake_mr *m = (struct fake_mr *)tarn_rdma_local(f->local)->mappings[0]->region->mr[0];
    memset(pages, 0xee, MEMORY);
    memcpy(pages + (inner - f->memory), inner, LARGE);
    m->memory = pages;
}

/* The inner registration keeps the outer region alive, but works may use only the inner range. */
static void an_inner_registration_outlives_the_outer(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(1);
    char *inner = f.memory + (1 << 20), *pages = malloc(MEMORY);
    assert_non_null(pages);
    assert_int_equal(tarn_rdma_map(f.local, f.memory, MEMORY), 0);
    assert_int_equal(tarn_rdma_map(f.local, inner, LARGE), 0);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    change_pages(&f, pages, inner);
    uint32_t before = fake.nmrs;
    puts_from(&f, 0, inner, LARGE);
    assert_int_equal(fake.nmrs, before);
    assert_false(mapped(&f, inner - 1, 2));
    gets_into(&f, 1, inner - 2 * LARGE, LARGE); /* may be other memory now: registered again */
    assert_int_equal(fake.nmrs, before + 1);
    /* One work with both: each piece uses its own registration. */
    struct tarn_piece p[] = {{inner - 1000000, LARGE, 0, 0}, {inner, LARGE, 0, 0}};
    struct tarn_work w = fake_work(f.n, 2, p, 2);
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), 0);
    assert_memory_equal((char *)f.n->pool.base + 2 * EXTENT, inner - 1000000, LARGE);
    assert_memory_equal((char *)f.n->pool.base + 2 * EXTENT + LARGE, inner, LARGE);
    assert_int_equal(tarn_rdma_unmap(f.local, inner, LARGE), 0);
    free(pages);
    end(&f);
}

static void a_registration_in_use_stays(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(1);
    assert_int_equal(tarn_rdma_map(f.local, f.memory, LARGE), 0);
    struct tarn_piece p = {f.memory, LARGE, 0, 0};
    commit(f.n, 0);
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    submit(f.n->ops, f.l, &w, false);
    assert_null(w.owner);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, LARGE), TARN_E_BUSY);
    says("drain or cancel first");
    assert_int_equal(tarn_rdma_map(f.local, f.memory, LARGE), 0); /* a second one: it can be unmapped */
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, LARGE), 0);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, LARGE), TARN_E_BUSY);
    assert_int_equal(finish_works(f.n->ops, f.l, &w, 1), 0);
    assert_int_equal(w.status, 0);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, LARGE), 0);
    end(&f);
}

/* Random registrations, compared with the plain rule: a range is registered if it lies inside a
 * registration. */
static void lookups_agree_with_a_list(void **state)
{
    (void)state;
    enum { MOST = 40, PAGE = 4096, PAGES = 60 };
    struct {
        uint32_t from, n;
    } list[MOST];
    uint32_t n = 0;
    uint64_t seed = tarn_random64();
    print_message("seed %llu\n", (unsigned long long)seed);
    srand48((long)seed);
    fake_reset();
    struct fixture f = begin(1);
    for (int i = 0; i < 6000; i++) {
        uint32_t from = (uint32_t)lrand48() % PAGES, size = 1 + (uint32_t)lrand48() % (PAGES - from);
        bool want = false;
        if (n < MOST && lrand48() % 3 == 0 && fake.nmrs < FAKE_MRS) {
            assert_int_equal(tarn_rdma_map(f.local, f.memory + from * PAGE, size * PAGE), 0);
            list[n].from = from, list[n++].n = size;
        } else if (n > 0 && lrand48() % 3 == 0) {
            uint32_t k = (uint32_t)lrand48() % n;
            assert_int_equal(tarn_rdma_unmap(f.local, f.memory + list[k].from * PAGE, list[k].n * PAGE), 0);
            list[k] = list[--n];
        }
        for (uint32_t k = 0; k < n; k++)
            want |= from >= list[k].from && from + size <= list[k].from + list[k].n;
        assert_int_equal(mapped(&f, f.memory + from * PAGE, size * PAGE), want);
    }
    while (n-- > 0)
        assert_int_equal(tarn_rdma_unmap(f.local, f.memory + list[n].from * PAGE, list[n].n * PAGE), 0);
    end(&f);
}

/* --- memory that devices refuse ----------------------------------------------------------------- */

static void read_only_memory_can_be_put(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    fake.readonly = (struct fake_range){f.memory, MEMORY / 2};
    puts_from(&f, 0, f.memory, LARGE);
    assert_ptr_equal(fake.mr[fake.nmrs - 1].memory, f.memory); /* registered in place, not copied */
    struct tarn_piece p = {f.memory, LARGE, 0, 0};
    commit(f.n, 1);
    struct tarn_work w = fake_work(f.n, 1, &p, 1);
    assert_int_equal(run_work(f.n->ops, f.l, &w, false), TARN_E_INVALID);
    says("not all of it is mapped and writable");
    assert_int_equal(tarn_rdma_map(f.local, f.memory, MEMORY), 0); /* registered for puts */
    uint32_t before = fake.nmrs;
    puts_from(&f, 2, f.memory + 4096, LARGE);
    assert_int_equal(fake.nmrs, before);
    w = fake_work(f.n, 1, &p, 1);
    assert_int_equal(run_work(f.n->ops, f.l, &w, false), TARN_E_INVALID);
    gets_into(&f, 3, f.memory + MEMORY - LARGE, LARGE); /* that part is writable: registered for the work */
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    end(&f);
}

/* Memory that cannot be pinned at all (on some kernels, a shared read-only mapping of a file) is put by a
 * copy. */
static void memory_that_cannot_be_pinned_can_be_put(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    fake.alien = (struct fake_range){f.memory, 3 << 20};
    puts_from(&f, 0, f.memory + 77, EXTENT - 5);
    assert_ptr_not_equal(fake.mr[fake.nmrs - 1].memory, f.memory + 77);
    assert_int_equal(fake.mrs, f.idle);
    struct tarn_piece p[3] = {{f.memory + 3, LARGE, 0, 0},
                              {f.memory + MEMORY - LARGE, LARGE, 0, 0},
                              {f.memory + (1 << 20), 5000, 0, 0}};
    struct tarn_work w = fake_work(f.n, 1, p, 3); /* only one piece can be registered */
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), 0);
    char *at = (char *)f.n->pool.base + EXTENT;
    assert_memory_equal(at, p[0].addr, LARGE);
    assert_memory_equal(at + LARGE, p[1].addr, LARGE);
    assert_memory_equal(at + 2 * LARGE, p[2].addr, 5000);
    assert_int_equal(tarn_rdma_map(f.local, f.memory, LARGE), TARN_E_INVALID);
    says("not all of it is mapped");
    end(&f);
}

/* The gaps between pieces need not be mapped. */
static void holes_between_pieces_are_not_touched(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(1);
    char *hole = f.memory + (1 << 20);
    assert_int_equal(mprotect(hole, 8192, PROT_NONE), 0);
    fake.alien = (struct fake_range){hole, 8192};
    struct tarn_piece p[2] = {{hole - LARGE, LARGE, 0, 0}, {hole + 8192, LARGE, 0, 0}};
    struct tarn_work w = fake_work(f.n, 0, p, 2);
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), 0);
    assert_memory_equal(f.n->pool.base, p[0].addr, LARGE);
    assert_memory_equal((char *)f.n->pool.base + LARGE, p[1].addr, LARGE);
    commit(f.n, 0);
    w = fake_work(f.n, 0, p, 2);
    memset(p[0].addr, 0, LARGE);
    assert_int_equal(run_work(f.n->ops, f.l, &w, false), 0);
    assert_memory_equal(f.n->pool.base, p[0].addr, LARGE);
    end(&f);
}

static void a_limit_of_locked_memory_is_named(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    fake.pinned_max = fake.pinned + LARGE + 1; /* enough for one rail, not for both */
    assert_int_equal(tarn_rdma_map(f.local, f.memory, LARGE), TARN_E_SYSTEM);
    says("rdma d1:1: cannot register 100000 bytes: Cannot allocate memory: raise the memlock limit");
    struct tarn_piece p = {f.memory, LARGE, 0, 0};
    struct tarn_work w = fake_work(f.n, 0, &p, 1);
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), TARN_E_SYSTEM);
    fake.pinned_max = 0;
    puts_from(&f, 0, f.memory, LARGE); /* the link still works */
    end(&f);
}

static void devices_limit_the_size_of_regions(void **state)
{
    (void)state;
    fake_reset();
    fake.max_region = (3 << 20) / 2 + 4097; /* an odd size; slices are whole pages */
    struct fixture f = begin(2);
    struct tarn_piece p = {f.memory, MEMORY, 0, 0};
    struct tarn_work w = fake_work(f.n, 0, &p, 1); /* across many slices of the pool */
    assert_int_equal(run_work(f.n->ops, f.l, &w, true), 0);
    assert_memory_equal(f.n->pool.base, f.memory, MEMORY);
    commit(f.n, 0);
    w = fake_work(f.n, 0, &p, 1);
    memset(f.memory, 0, MEMORY);
    assert_int_equal(run_work(f.n->ops, f.l, &w, false), 0);
    assert_memory_equal(f.n->pool.base, f.memory, MEMORY);
    assert_int_equal(tarn_rdma_link(f.l)->pools[0].slice_bytes % 4096, 0);
    assert_in_range(tarn_rdma_link(f.l)->pools[0].slice_bytes, 1, fake.max_region);
    assert_int_equal(tarn_rdma_map(f.local, f.memory, MEMORY), TARN_E_INVALID);
    says("at most 1576961 bytes at once");
    end(&f);
}

/* --- GPU memory: decisions only, no GPU --------------------------------------------------------- */

static struct tarn_memory gpu_memory(struct fixture *f, int dmabuf)
{
    fake.gpu = (struct fake_range){f->memory, MEMORY};
    return (struct tarn_memory){.kind = TARN_MEMORY_CUDA,
                                .addr = f->memory,
                                .bytes = MEMORY,
                                .dmabuf = dmabuf,
                                .why = {TARN_E_UNSUPPORTED, "not exported"}};
}

static void gpu_memory_goes_by_dmabuf(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    struct tarn_memory m = gpu_memory(&f, 3);
    fake.peermem = true; /* dma-buf is still tried first */
    assert_int_equal(tarn_rdma_map_memory(tarn_rdma_local(f.local), &m), 0);
    for (int k = 0; k < 2; k++)
        assert_true(((struct fake_mr *)tarn_rdma_local(f.local)->mappings[0]->region->mr[k])->dmabuf);
    puts_from(&f, 0, f.memory + 5, LARGE);
    assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    end(&f);
}

static void gpu_memory_goes_by_peermem_without_dmabuf(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    fake.peermem = true;
    for (int fd = -1; fd <= 3; fd += 4) { /* not exported; exported, but refused by the device */
        struct tarn_memory m = gpu_memory(&f, fd);
        fake.dmabuf_error = EOPNOTSUPP;
        assert_int_equal(tarn_rdma_map_memory(tarn_rdma_local(f.local), &m), 0);
        assert_false(((struct fake_mr *)tarn_rdma_local(f.local)->mappings[0]->region->mr[1])->dmabuf);
        assert_int_equal(tarn_rdma_unmap(f.local, f.memory, MEMORY), 0);
    }
    end(&f);
}

static void unreachable_gpu_memory_is_refused_with_both_reasons(void **state)
{
    (void)state;
    fake_reset();
    struct fixture f = begin(2);
    struct tarn_memory m = gpu_memory(&f, 3);
    fake.dmabuf_error = EOPNOTSUPP;
    assert_int_equal(tarn_rdma_map_memory(tarn_rdma_local(f.local), &m), TARN_E_UNSUPPORTED);
    says("dma-buf: Operation not supported; peermem: Bad address: load nvidia-peermem");
    m.dmabuf = -1;
    assert_int_equal(tarn_rdma_map_memory(tarn_rdma_local(f.local), &m), TARN_E_UNSUPPORTED);
    says("dma-buf: not exported; peermem: Bad address");
    end(&f);
}

/* --- fork --------------------------------------------------------------------------------------- */

/* Kernels before 5.12 do not keep registered pages with the parent at fork(), so verbs must be told. On later
 * kernels that would only take the pages from the child. */
static void verbs_prepare_for_forks_only_where_needed(void **state)
{
    (void)state;
    static const enum ibv_fork_status all[] = {IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};
    for (int i = 0; i < 3; i++) {
        struct tarn_local *local = NULL;
        fake_reset();
        fake.fork_status = all[i];
        assert_int_equal(tarn_rdma_local_open(NULL, &local), TARN_E_UNAVAILABLE);
        assert_int_equal(fake.forked, all[i] == IBV_FORK_DISABLED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unregistered_memory_is_registered_for_one_work_only),
        cmocka_unit_test(registered_memory_is_not_registered_again),
        cmocka_unit_test(an_inner_registration_outlives_the_outer),
        cmocka_unit_test(a_registration_in_use_stays),
        cmocka_unit_test(lookups_agree_with_a_list),
        cmocka_unit_test(read_only_memory_can_be_put),
        cmocka_unit_test(memory_that_cannot_be_pinned_can_be_put),
        cmocka_unit_test(holes_between_pieces_are_not_touched),
        cmocka_unit_test(a_limit_of_locked_memory_is_named),
        cmocka_unit_test(devices_limit_the_size_of_regions),
        cmocka_unit_test(gpu_memory_goes_by_dmabuf),
        cmocka_unit_test(gpu_memory_goes_by_peermem_without_dmabuf),
        cmocka_unit_test(unreachable_gpu_memory_is_refused_with_both_reasons),
        cmocka_unit_test(verbs_prepare_for_forks_only_where_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
