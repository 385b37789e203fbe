/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcpx transport moves registered memory, and a node's pool, without a copy: which memory the plugin is
 * told of, and when, and that it is told of no other. Memory lent to the plugin is not given back while the
 * plugin may still touch it. The fixture touches it until its closeRecv() returns.
 */
#define SLOTS 8u
#define EXTENT (2ull << 20)
#include "tests/unit/fake_node.h"

#include <pthread.h>

#include "tests/tcpx/scene.h"

enum { BYTES = 300000, REGISTERED = 1 << 20 };

static struct {
    struct tarn_tcpx_plugin *p;
    struct fixture_counters *count;
    struct fake_node *node;
    const struct tarn_transport_ops *ops;
    struct tarn_link *link;
    uint8_t *memory; /* 2 * REGISTERED bytes */
} it;

/* Slot 0 has an object. The other slots are for puts. */
static void begin(struct tarn_tcpx_plugin *p)
{
    setenv("TARN_TCPX_PLUGIN", p->path, 1);
    it.p = p;
    it.count = scene_counters(p);
    it.node = fake_start("tcpx", false, 0);
    it.ops = it.node->ops;
    it.link = fake_link(it.node, true);
    it.memory = malloc(2 * REGISTERED);
    CHECK(it.memory);
    memset(it.memory, 0, 2 * REGISTERED);
    fill(it.node->pool.base, EXTENT, 1);
    commit(it.node, 0);
}

static void end(void)
{
    if (it.link)
        it.ops->close(it.link);
    wait_until(fake_pins(it.node) == 0);
    fake_stop(it.node);
    CHECK(it.count->comms == 0 && it.count->regs == 0 && it.count->requests == 0 && it.count->refused == 0);
    free(it.memory);
}

static bool is_plain(void)
{
    return it.p->devices[0].mode == TARN_TCPX_PLAIN;
}

static bool within(uint64_t at, const void *from, uint64_t bytes)
{
    return at >= (uintptr_t)from && at - (uintptr_t)from < bytes;
}

static bool received_in_place(void)
{
    return within(it.count->received_at, it.memory, 2 * REGISTERED);
}

static bool sent_from_place(void)
{
    return within(it.count->sent_from, it.memory, 2 * REGISTERED);
}

static bool received_in_pool(void)
{
    return within(it.count->received_at, it.node->pool.base, it.node->pool.bytes);
}

static void map(uint64_t bytes)
{
    CHECK(it.ops->map(it.node->local, it.memory, bytes) == 0);
}

static int unmap(uint64_t bytes)
{
    return it.ops->unmap(it.node->local, it.memory, bytes);
}

/* Gets slot 0 and checks every byte, also those around. Returns true if it was received in place. */
static bool get(const struct tarn_piece *pieces, uint32_t n)
{
    const uint8_t *from = it.node->pool.base;
    memset(it.memory, 0x5a, 2 * REGISTERED);
    struct tarn_work w = fake_work(it.node, 0, pieces, n);
    CHECK(run_work(it.ops, it.link, &w, false) == 0);
    uint64_t all = 0, set = 0;
    for (uint32_t i = 0; i < n; from += pieces[i++].bytes) {
        CHECK(memcmp(pieces[i].addr, from, pieces[i].bytes) == 0);
        for (uint64_t k = 0; k < pieces[i].bytes; k++)
            set += from[k] == 0x5a;
        all += pieces[i].bytes;
    }
    for (uint64_t k = 0; k < 2 * REGISTERED; k++)
        set -= it.memory[k] == 0x5a;
    CHECK(-set == 2 * REGISTERED - all);
    return received_in_place();
}

static bool get_one(uint64_t offset, uint64_t bytes)
{
    const struct tarn_piece p = {.addr = it.memory + offset, .bytes = bytes};
    return get(&p, 1);
}

static void put_one(uint64_t offset, uint64_t bytes)
{
    fill(it.memory, 2 * REGISTERED, offset + bytes);
    CHECK(put_bytes(it.node, it.link, 1, it.memory + offset, bytes) == 0);
    CHECK(memcmp((uint8_t *)it.node->pool.base + EXTENT, it.memory + offset, bytes) == 0);
    CHECK(received_in_pool() == is_plain());
}

/* --- what the plugin is told of ----------------------------------------------------------------- */

static int moves_in_place(struct tarn_tcpx_plugin *p)
{
    begin(p);
    bool plain = is_plain();
    CHECK(!get_one(0, BYTES));
    put_one(0, BYTES);
    CHECK(!sent_from_place());
    uint64_t regs = it.count->regs;

    map(REGISTERED);
    CHECK(get_one(0, BYTES) == plain);
    CHECK(get_one(77, 3 * BYTES) == plain);
    CHECK(get_one(REGISTERED - BYTES, BYTES) == plain);
    CHECK(!get_one(REGISTERED - BYTES + 1, BYTES)); /* partly outside the registration */
    CHECK(!get_one(REGISTERED, BYTES));
    put_one(77, 3 * BYTES);
    CHECK(sent_from_place());
    put_one(REGISTERED - BYTES + 1, BYTES);
    CHECK(!sent_from_place());
    CHECK(it.count->regs == regs + 1 + plain); /* once per comm */

    CHECK(unmap(REGISTERED) == 0);
    CHECK(it.count->regs == regs); /* at once, because the link is idle */
    CHECK(!get_one(0, BYTES));
    put_one(0, BYTES);
    CHECK(!sent_from_place());
    CHECK(it.count->regs == regs);
    map(2 * REGISTERED);
    CHECK(get_one(REGISTERED - BYTES + 1, BYTES) == plain);
    end(); /* with the memory still registered */
    return 0;
}

static int puts_pieces_together(struct tarn_tcpx_plugin *p)
{
    begin(p);
    struct tarn_piece touch[2] = {{.addr = it.memory, .bytes = BYTES / 2},
                                  {.addr = it.memory + BYTES / 2, .bytes = BYTES / 3}};
    struct tarn_piece apart[2] = {{.addr = it.memory, .bytes = BYTES / 2},
                                  {.addr = it.memory + BYTES, .bytes = BYTES / 3}};
    struct tarn_piece mixed[3] = {{.addr = it.memory + 1, .bytes = p->chunk_bytes},
                                  {.addr = it.memory + REGISTERED, .bytes = 10},
                                  {.addr = it.memory + REGISTERED + 11, .bytes = 5}};
    map(2 * REGISTERED);
    CHECK(get(touch, 2));
    CHECK(!get(apart, 2));
    CHECK(!get(mixed, 3)); /* its last message is copied */
    CHECK(it.count->received_at != 0);
    struct tarn_work w = fake_work(it.node, 1, mixed, 3);
    CHECK(run_work(it.ops, it.link, &w, true) == 0);
    const uint8_t *there = (uint8_t *)it.node->pool.base + EXTENT;
    for (int i = 0; i < 3; there += mixed[i++].bytes)
        CHECK(memcmp(there, mixed[i].addr, mixed[i].bytes) == 0);
    end();
    return 0;
}

/* Memory that the plugin refuses is copied instead. The plugin is not asked again. */
static int goes_round_what_is_refused(struct tarn_tcpx_plugin *p)
{
    begin(p);
    bool put = strstr(getenv("TCPX_FIXTURE"), "reg_error=4");
    if (put)
        put_one(0, BYTES);
    else
        CHECK(!get_one(0, BYTES));
    map(REGISTERED);
    for (int i = 0; i < 2; i++) {
        if (put)
            put_one(0, BYTES);
        CHECK(put ? !sent_from_place() : !get_one(0, BYTES));
    }
    CHECK(it.count->refused == 1);
    it.count->refused = 0;
    end();
    return 0;
}

static void registered_memory_is_moved_in_place(void **state)
{
    static const struct scene scenes[] = {
        {.plugin = "fixture-v6", .sockets = "2", .body = moves_in_place},
        {.plugin = "fixture-v7", .sockets = "1", .options = "plain=1", .body = moves_in_place},
        {.plugin = "fixture-v7", .sockets = "4", .body = moves_in_place},
        {.plugin = "fixture-v6", .sockets = "1", .body = puts_pieces_together},
        {.plugin = "fixture-v6", .options = "reg_error=3", .body = goes_round_what_is_refused},
        {.plugin = "fixture-v6", .options = "reg_error=4", .body = goes_round_what_is_refused},
    };
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        scene_play(&scenes[i]);
}

/* --- until when --------------------------------------------------------------------------------- */

/* Makes progress until the work is posted or has failed. */
static void post(struct tarn_work *w, bool put)
{
    uint64_t before = put ? it.count->sends : it.count->receives, late = tarn_deadline(SCENE_LATE_MS);
    submit(it.ops, it.link, w, put);
    while (!w->owner && (put ? it.count->sends : it.count->receives) == before) {
        CHECK(tarn_now_ns() < late && (it.ops->progress(it.link) >= 0 || w->owner));
        sched_yield();
    }
}

static int is_busy_meanwhile(struct tarn_tcpx_plugin *p)
{
    begin(p);
    struct tarn_piece piece = {.addr = it.memory, .bytes = BYTES};
    struct tarn_work w = fake_work(it.node, 0, &piece, 1);
    map(REGISTERED);
    CHECK(unmap(REGISTERED - 1) == TARN_E_INVALID);
    post(&w, false);
    CHECK(received_in_place());
    CHECK(unmap(REGISTERED) == TARN_E_BUSY);
    CHECK(finish_works(it.ops, it.link, &w, 1) == 0 && w.status == 0);
    CHECK(unmap(REGISTERED) == 0); /* a finished operation holds nothing */
    end();
    return 0;
}

/* The second get's message is larger than announced. If the plugin refuses it, nothing is written after the
 * posted bytes. If the plugin only reports the size, the get fails. */
static int more_than_was_announced_is_refused(struct tarn_tcpx_plugin *p)
{
    begin(p);
    bool refuses = strstr(getenv("TCPX_FIXTURE"), "tell_sizes=1");
    struct tarn_piece piece = {.addr = it.memory, .bytes = BYTES};
    struct tarn_work w = fake_work(it.node, 0, &piece, 1);
    CHECK(!get_one(0, BYTES));
    map(REGISTERED);
    memset(it.memory, 'x', REGISTERED);
    post(&w, false);
    finish_works(it.ops, it.link, &w, 1);
    CHECK(received_in_place());
    CHECK(w.status == (refuses ? TARN_E_UNAVAILABLE : TARN_E_PROTOCOL));
    CHECK(strstr(tarn_last_error(),
                 refuses ? "test gave 3" : "brought 300064 bytes, and the sender announced 300000"));
    for (uint64_t i = BYTES; refuses && i < REGISTERED; i++)
        CHECK(it.memory[i] == 'x');
    it.count->refused = 0;
    end();
    return 0;
}

static void take_back(struct tarn_work *w)
{
    CHECK(unmap(REGISTERED) == 0);
    memset(it.memory, 'x', REGISTERED);
    w->owner = w;
}

/* The second get fails or is canceled. */
static int is_the_callers_again(struct tarn_tcpx_plugin *p)
{
    begin(p);
    struct tarn_piece piece = {.addr = it.memory, .bytes = BYTES};
    CHECK(!get_one(0, BYTES));
    struct tarn_work w = fake_work(it.node, 0, &piece, 1);
    w.done = take_back;
    map(REGISTERED);
    post(&w, false);
    CHECK(w.owner || received_in_place());
    if (strstr(getenv("TCPX_FIXTURE"), "close_ms=100")) { /* canceled */
        it.ops->close(it.link);
        CHECK(w.owner && w.status == TARN_E_CANCELED);
    } else { /* or fails after a while */
        finish_works(it.ops, it.link, &w, 1);
        CHECK(w.owner && (w.status == TARN_E_UNAVAILABLE || w.status == TARN_E_NODE_DOWN));
        it.count->refused = 0; /* expected */
        it.ops->close(it.link);
    }
    it.link = NULL;
    for (uint64_t i = 0; i < REGISTERED; i++)
        CHECK(it.memory[i] == 'x');
    end();
    return 0;
}

/* The node has received and answered the put, but the plugin still reads the memory: the put is not done. */
static int is_the_plugins_while_it_sends(struct tarn_tcpx_plugin *p)
{
    begin(p);
    struct tarn_piece piece = {.addr = it.memory, .bytes = BYTES};
    struct tarn_work w = fake_work(it.node, 1, &piece, 1);
    w.done = take_back;
    map(REGISTERED);
    post(&w, true);
    wait_until(fake_pins(it.node) == 0);
    for (uint64_t never = tarn_deadline(SCENE_NEVER_MS); tarn_now_ns() < never; sched_yield())
        CHECK(it.ops->progress(it.link) >= 0);
    CHECK(!w.owner);
    CHECK(unmap(REGISTERED) == TARN_E_BUSY);
    it.ops->close(it.link);
    it.link = NULL;
    CHECK(w.owner && w.status == TARN_E_CANCELED);
    end();
    return 0;
}

/* The client of a put goes while the node receives it. The extent may be reused once its pin is gone. */
static int is_the_stores_again(struct tarn_tcpx_plugin *p)
{
    begin(p);
    uint8_t *extent = (uint8_t *)it.node->pool.base + EXTENT;
    struct tarn_piece piece = {.addr = it.memory, .bytes = BYTES};
    struct tarn_work w = fake_work(it.node, 1, &piece, 1);
    post(&w, true);
    wait_until(it.count->receives == 1);
    CHECK(received_in_pool());
    if (strstr(getenv("TCPX_FIXTURE"), "hang")) { /* otherwise the node's plugin fails */
        CHECK(fake_pins(it.node) == 1);
        it.ops->close(it.link);
    }
    wait_until(fake_pins(it.node) == 0);
    memset(extent, 'x', EXTENT);
    if (!strstr(getenv("TCPX_FIXTURE"), "hang"))
        it.ops->close(it.link);
    it.link = NULL;
    wait_until(it.count->comms == 0);
    it.count->refused = 0;
    for (uint64_t i = 0; i < EXTENT; i++)
        CHECK(extent[i] == 'x');
    end();
    return 0;
}

static void lent_memory_is_returned_when_nothing_touches_it(void **state)
{
    static const struct scene scenes[] = {
        {.plugin = "fixture-v6", .options = "delay_ms=50", .body = is_busy_meanwhile},
        {.plugin = "fixture-v6",
         .options = "send_more=2,tell_sizes=1",
         .body = more_than_was_announced_is_refused},
        {.plugin = "fixture-v6",
         .options = "send_more=2,tell_sizes=2",
         .body = more_than_was_announced_is_refused},
        {.plugin = "fixture-v6", .options = "recv_hang=2,close_ms=100", .body = is_the_callers_again},
        {.plugin = "fixture-v7", .options = "plain=1,recv_hang=2,close_ms=50", .body = is_the_callers_again},
        {.plugin = "fixture-v6", .options = "recv_error=2,close_ms=50", .body = is_the_callers_again},
        {.plugin = "fixture-v6", .options = "drop_after=1,close_ms=50", .body = is_the_callers_again},
        {.plugin = "fixture-v6", .options = "send_close=2,close_ms=50", .body = is_the_callers_again},
        {.plugin = "fixture-v6", .options = "helper_error=2,close_ms=50", .body = is_the_callers_again},
        {.plugin = "fixture-v7", .options = "send_hang=1", .body = is_the_plugins_while_it_sends},
        {.plugin = "fixture-v6", .options = "recv_hang=1,close_ms=300", .body = is_the_stores_again},
        {.plugin = "fixture-v6", .options = "recv_error=1,close_ms=300", .body = is_the_stores_again},
    };
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        scene_play(&scenes[i]);
}

/* --- from other threads ------------------------------------------------------------------------- */

static atomic_bool over;

static void *maps_and_unmaps(void *arg)
{
    (void)arg;
    while (!over) {
        map(REGISTERED);
        sched_yield();
        int rc;
        while ((rc = unmap(REGISTERED)) == TARN_E_BUSY)
            sched_yield();
        CHECK(rc == 0);
    }
    return NULL;
}

static int is_mapped_meanwhile(struct tarn_tcpx_plugin *p)
{
    pthread_t thread;
    begin(p);
    CHECK(pthread_create(&thread, NULL, maps_and_unmaps, NULL) == 0);
    uint32_t in_place = 0;
    uint64_t late = tarn_deadline(SCENE_LATE_MS);
    for (uint32_t i = 0; (i < 40 || in_place == 0 || in_place == i) && tarn_now_ns() < late; i++) {
        in_place += get_one(0, BYTES);
        put_one(0, BYTES);
    }
    CHECK(in_place > 0);
    over = true;
    CHECK(pthread_join(thread, NULL) == 0);
    end();
    return 0;
}

static void other_threads_register_and_deregister(void **state)
{
    const struct scene s = {.plugin = "fixture-v6", .sockets = "2", .body = is_mapped_meanwhile};
    (void)state;
    scene_play(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_memory_is_moved_in_place),
        cmocka_unit_test(lent_memory_is_returned_when_nothing_touches_it),
        cmocka_unit_test(other_threads_register_and_deregister),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
