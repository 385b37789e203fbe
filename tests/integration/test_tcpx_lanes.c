/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link has a lane for each pair of node pool and client memory that it moved bytes between, up to a limit.
 * A work that needs one more lane ends the link, unless works are under way. The next link starts again
 * without lanes.
 */
#define SLOTS 8u
#define EXTENT (2ull << 20)
#define POOLS 70u
#include "tests/unit/fake_node.h"

#include "tests/tcpx/scene.h"
#include "transport/tcpx/tcpx.h"

enum { BYTES = 300000 };

static uint8_t memory[BYTES];

static int get_from(struct fake_node *n, struct tarn_link *l, uint32_t pool)
{
    const struct tarn_piece piece = {.addr = memory, .bytes = BYTES};
    struct tarn_work w = fake_work(n, 0, &piece, 1);
    w.pool = pool;
    memset(memory, 0, BYTES);
    int rc = run_work(n->ops, l, &w, false);
    CHECK(rc || memcmp(memory, n->pool.base, BYTES) == 0);
    return rc;
}

static int gets_from_many_pools(struct tarn_tcpx_plugin *p)
{
    setenv("TARN_TCPX_PLUGIN", p->path, 1);
    struct fake_node *n = fake_start("tcpx", false, 0);
    struct tarn_link *l = fake_link(n, false);
    fill(n->pool.base, EXTENT, 1);
    commit(n, 0);
    for (uint32_t pool = 0; pool < TARN_TCPX_LANES; pool++)
        CHECK(get_from(n, l, pool) == 0);
    CHECK(get_from(n, l, 5) == 0);

    /* Works are under way: they continue. */
    const struct tarn_piece piece = {.addr = memory, .bytes = BYTES};
    struct tarn_work first = fake_work(n, 0, &piece, 1), other = first;
    submit(n->ops, l, &first, false);
    other.pool = TARN_TCPX_LANES;
    CHECK(n->ops->get(l, &other) == TARN_E_NOT_REACHABLE);
    CHECK(finish_works(n->ops, l, &first, 1) == 0 && first.status == 0);

    /* Nothing is under way: the link ends as if it were too old, which is not a failure of the node. */
    CHECK(get_from(n, l, TARN_TCPX_LANES) == TARN_E_NODE_DOWN);
    n->ops->close(l);
    wait_until(scene_counters(p)->comms == 0);
    l = fake_link(n, false);
    CHECK(get_from(n, l, TARN_TCPX_LANES) == 0);
    n->ops->close(l);
    fake_stop(n);
    CHECK(scene_counters(p)->comms == 0 && scene_counters(p)->regs == 0 && scene_counters(p)->refused == 0);
    return 0;
}

static void a_link_that_is_full_ends(void **state)
{
    const struct scene s = {.plugin = "fixture-v6", .sockets = "1", .body = gets_from_many_pools};
    (void)state;
    scene_play(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_link_that_is_full_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
