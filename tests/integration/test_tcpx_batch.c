/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcpx's own connection needs few system calls: gets in flight share requests and answers, messages that
 * arrive together are read at once, and an answer does not wait for the bytes it announces. What is held back
 * ends with its link.
 */
#define SLOTS 8u
#define EXTENT (2ull << 20)
#include "tests/unit/fake_node.h"

#include "tests/tcpx/scene.h"
#include "transport/tcpx/tcpx.h"

enum { FLYING = 8, GETS = 64 };

static uint8_t memory[FLYING * EXTENT];

/* --- calls of links (the linker redirects them here: Makefile) ----------------------------------- */

static _Atomic uint64_t said[TARN_TCPX_UP + 1]; /* sends whose last message is of that type */
static _Atomic uint64_t reads;
static struct fixture_counters *counters;
static _Atomic uint64_t sends_at_answer; /* the plugin's sends when the last answers went */

ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap___recv_chk(int fd, void *data, size_t bytes, size_t room, int flags);

ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    struct tarn_tcpx_frame f = {0};
    if (bytes >= sizeof(f))
        memcpy(&f, (const char *)data + bytes - sizeof(f), sizeof(f));
    if (f.magic == TARN_TCPX_MAGIC && f.op <= TARN_TCPX_UP)
        said[f.op]++;
    if (f.magic == TARN_TCPX_MAGIC && f.op == TARN_TCPX_ANSWER && counters)
        sends_at_answer = counters->sends;
    return __real_send(fd, data, bytes, flags);
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    reads++;
    return __real_recv(fd, data, bytes, flags);
}

ssize_t __wrap___recv_chk(int fd, void *data, size_t bytes, size_t room, int flags)
{
    (void)room;
    return __wrap_recv(fd, data, bytes, flags);
}

/* --- gets that fly together --------------------------------------------------------------------- */

struct flight {
    struct fake_node *n;
    struct tarn_link *l;
    struct tarn_work w[FLYING];
    struct tarn_piece pieces[FLYING];
    uint32_t begun;
};

static struct flight *take_off(struct tarn_tcpx_plugin *p, bool forked)
{
    struct flight *f = calloc(1, sizeof(*f));
    CHECK(f);
    setenv("TARN_TCPX_PLUGIN", p->path, 1);
    f->n = fake_start("tcpx", forked, 0);
    f->l = fake_link(f->n, false);
    fill(f->n->pool.base, FLYING * EXTENT, 1);
    for (uint32_t i = 0; i < FLYING; i++)
        commit(f->n, i);
    return f;
}

static void land(struct flight *f)
{
    f->n->ops->close(f->l);
    fake_stop(f->n);
    free(f);
}

static void begin(struct flight *f, uint32_t i)
{
    f->pieces[i] = (struct tarn_piece){.addr = memory + i * EXTENT, .bytes = EXTENT};
    f->w[i] = fake_work(f->n, i, &f->pieces[i], 1);
    submit(f->n->ops, f->l, &f->w[i], false);
    f->begun++;
}

/* Each get that ends is followed by another until `gets` have begun. */
static void fly(struct flight *f, uint32_t gets)
{
    for (uint32_t i = 0; i < FLYING; i++)
        begin(f, i);
    while (f->begun < gets) {
        CHECK(f->n->ops->wait(f->l, tarn_deadline(SCENE_LATE_MS)) >= 0);
        for (uint32_t i = 0; i < FLYING && f->begun < gets; i++)
            if (f->w[i].owner) {
                CHECK(f->w[i].status == 0);
                begin(f, i);
            }
    }
}

static int gets_in_flight(struct tarn_tcpx_plugin *p)
{
    struct flight *f = take_off(p, false);
    fly(f, GETS);
    CHECK(finish_works(f->n->ops, f->l, f->w, FLYING) == 0);
    CHECK(memcmp(memory, f->n->pool.base, FLYING * EXTENT) == 0);
    CHECK(said[TARN_TCPX_GET] > 0 && said[TARN_TCPX_GET] <= GETS / 2);
    CHECK(said[TARN_TCPX_ANSWER] > 0 && said[TARN_TCPX_ANSWER] <= GETS / 2);
    land(f);
    return 0;
}

static void gets_share_questions_and_answers(void **state)
{
    static const struct scene scenes[] = {
        {.plugin = "fixture-v6", .sockets = "4", .body = gets_in_flight},
        {.plugin = "fixture-v7", .sockets = "1", .body = gets_in_flight},
    };
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        scene_play(&scenes[i]);
}

/* --- the first answer --------------------------------------------------------------------------- */

static int one_get(struct tarn_tcpx_plugin *p)
{
    struct flight *f = take_off(p, false);
    counters = scene_counters(p);
    uint64_t before = counters->sends;
    begin(f, 0);
    CHECK(finish_works(f->n->ops, f->l, f->w, 1) == 0 && f->w[0].status == 0);
    CHECK(said[TARN_TCPX_ANSWER] == 1 && sends_at_answer == before && counters->sends > before);
    land(f);
    return 0;
}

static void an_answer_goes_before_its_bytes(void **state)
{
    const struct scene s = {.plugin = "fixture-v6", .sockets = "1", .body = one_get};
    (void)state;
    scene_play(&s);
}

/* --- the end of the node ------------------------------------------------------------------------ */

static int node_ends(struct tarn_tcpx_plugin *p)
{
    struct flight *f = take_off(p, true);
    fly(f, FLYING + 2); /* the last gets are held back, or just requested */
    fake_kill(f->n);
    CHECK(finish_works(f->n->ops, f->l, f->w, FLYING) < 0);
    for (uint32_t i = 0; i < FLYING; i++) {
        int status = f->w[i].status;
        CHECK(f->w[i].owner);
        CHECK(status == TARN_E_NODE_DOWN || status == TARN_E_UNAVAILABLE || (status == 0 && i > 1));
    }
    land(f);
    return 0;
}

static void all_gets_end_with_the_node(void **state)
{
    const struct scene s = {.plugin = "fixture-v6", .sockets = "1", .body = node_ends};
    (void)state;
    scene_play(&s);
}

static int link_ends(struct tarn_tcpx_plugin *p)
{
    struct flight *f = take_off(p, false);
    counters = scene_counters(p);
    begin(f, 0);
    while (counters->receives == 0) /* answered: waits only for bytes, which never come */
        CHECK(f->n->ops->progress(f->l) >= 0);
    fake_detach(f->n, SESSION);
    CHECK(finish_works(f->n->ops, f->l, f->w, 1) == TARN_E_NODE_DOWN && f->w[0].status == TARN_E_NODE_DOWN);
    land(f);
    return 0;
}

static void the_end_of_a_link_is_noticed_while_bytes_are_awaited(void **state)
{
    const struct scene s = {
        .plugin = "fixture-v6", .options = "recv_hang=1,recv_deaf=1", .sockets = "1", .body = link_ends};
    (void)state;
    scene_setenv("TARN_TCPX_STALL_MS", "60000");
    scene_play(&s);
    scene_setenv("TARN_TCPX_STALL_MS", NULL);
}

/* --- one end by itself -------------------------------------------------------------------------- */

static void messages_that_came_together_are_read_at_once(void **state)
{
    enum { MESSAGES = 40 };
    struct tarn_tcpx_wire from = {0}, to = {0};
    struct tarn_tcpx_message m;
    int pair[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    from.fd = pair[0];
    to.fd = pair[1];
    uint64_t sends = said[TARN_TCPX_GET];
    for (uint64_t i = 0; i < MESSAGES; i++)
        tarn_tcpx_wire_say(&from, (struct tarn_tcpx_frame){.op = TARN_TCPX_GET, .tag = i}, NULL);
    assert_int_equal(tarn_tcpx_wire_flush(&from), 1);
    assert_int_equal(said[TARN_TCPX_GET] - sends, 1);
    uint64_t before = reads;
    for (uint64_t i = 0; i < MESSAGES; i++) {
        assert_int_equal(tarn_tcpx_wire_next(&to, &m), 1);
        assert_int_equal(m.frame.tag, i);
    }
    assert_int_equal(tarn_tcpx_wire_next(&to, &m), 0);
    assert_int_equal(reads - before, 1);

    /* Later messages are found, and so is the end. */
    assert_int_equal(tarn_tcpx_wire_next(&to, &m), 0);
    tarn_tcpx_wire_say(&from, (struct tarn_tcpx_frame){.op = TARN_TCPX_GET, .tag = MESSAGES}, NULL);
    assert_int_equal(tarn_tcpx_wire_flush(&from), 1);
    tarn_tcpx_wire_close(&from);
    assert_int_equal(tarn_tcpx_wire_next(&to, &m), 1);
    assert_int_equal(m.frame.tag, MESSAGES);
    assert_int_equal(tarn_tcpx_wire_next(&to, &m), 0);
    assert_int_equal(tarn_tcpx_wire_next(&to, &m), TARN_E_NODE_DOWN);
    tarn_tcpx_wire_close(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gets_share_questions_and_answers),
        cmocka_unit_test(an_answer_goes_before_its_bytes),
        cmocka_unit_test(all_gets_end_with_the_node),
        cmocka_unit_test(the_end_of_a_link_is_noticed_while_bytes_are_awaited),
        cmocka_unit_test(messages_that_came_together_are_read_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
