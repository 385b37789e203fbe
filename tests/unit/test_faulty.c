/* SPDX-License-Identifier: Apache-2.0 */
/* Links with injected faults, over both transports, and the text that configures the faults. */
#include "tests/unit/fake_node.h"
#include "transport/faulty/faulty.h"

struct faulty_link {
    struct fake_node *n;
    struct tarn_faulty *f;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    int r; /* connect()'s result */
};

static struct faulty_link begin(const char *transport, const char *text)
{
    struct faulty_link k = {.n = fake_start(transport, false, 0)};
    char answer[TARN_ATTACH_TEXT];
    int fds[56];
    assert_int_equal(tarn_faulty_new(text, &k.f), 0);
    struct tarn_peer p = fake_peer(answer, fds, fake_attach(k.n, SESSION, true, "", answer, fds));
    k.r = tarn_faulty_connect(k.f, k.n->ops, &p, &k.l, &k.ops);
    for (uint32_t i = 0; i < p.nfds && k.r; i++)
        close(fds[i]);
    if (k.r == 0)
        assert_true(k.l->writable);
    return k;
}

static void end(struct faulty_link *k)
{
    if (k->r == 0)
        k->ops->close(k->l);
    tarn_faulty_free(k->f);
    fake_stop(k->n);
}

static int get(struct faulty_link *k, uint32_t slot)
{
    char out[64];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    struct tarn_work w = fake_work(k->n, slot, &p, 1);
    return run_work(k->ops, k->l, &w, false);
}

static void without_a_rule_nothing_changes(void **state)
{
    struct faulty_link k = begin(*state, strcmp(*state, "tcp") ? "tcp:error=1;seed=1" : "shm:error=1");
    assert_ptr_equal(k.ops, k.n->ops);
    commit(k.n, 0);
    assert_int_equal(get(&k, 0), 0);
    end(&k);
}

static void errors_and_stale_occur_at_the_given_rate(void **state)
{
    char text[100];
    snprintf(text, sizeof(text), "%s:error=0.2,stale=0.3;seed=42", (const char *)*state);
    int counts[2][3] = {{0}};
    for (int same = 0; same < 2; same++) {
        struct faulty_link k = begin(*state, text);
        commit(k.n, 0);
        for (int i = 0; i < 2000; i++) {
            int r = get(&k, 0);
            assert_true(r == 0 || r == TARN_E_NODE_DOWN || r == TARN_E_STALE);
            counts[same][r == 0 ? 0 : r == TARN_E_STALE ? 1 : 2]++;
        }
        assert_non_null(strstr(tarn_last_error(), "injected fault"));
        end(&k);
    }
    assert_in_range(counts[0][2], 300, 500);                      /* rate 0.2 */
    assert_in_range(counts[0][1], 380, 580);                      /* rate 0.8 * 0.3 */
    assert_memory_equal(counts[0], counts[1], sizeof(counts[0])); /* the same seed gives the same faults */
}

static void puts_fail_but_are_never_stale(void **state)
{
    char text[100];
    snprintf(text, sizeof(text), "%s:stale=1", (const char *)*state);
    struct faulty_link k = begin(*state, text);
    char in[10] = "123456789";
    struct tarn_piece p = {in, sizeof(in), 0, 0};
    struct tarn_work w = fake_work(k.n, 0, &p, 1);
    assert_int_equal(run_work(k.ops, k.l, &w, true), 0);
    assert_string_equal(k.n->pool.base, in);
    commit(k.n, 0);
    assert_int_equal(get(&k, 0), TARN_E_STALE);
    end(&k);
}

static void a_lost_outcome_comes_behind_the_bytes(void **state)
{
    char text[100], in[10] = "123456789", out[10] = "";
    snprintf(text, sizeof(text), "%s:lose=1", (const char *)*state);
    struct faulty_link k = begin(*state, text);
    struct tarn_piece from = {in, sizeof(in), 0, 0}, to = {out, sizeof(out), 0, 0};
    struct tarn_work w = fake_work(k.n, 0, &from, 1);
    assert_int_equal(run_work(k.ops, k.l, &w, true), TARN_E_NODE_DOWN);
    assert_non_null(strstr(tarn_last_error(), "injected fault: lose"));
    assert_string_equal(k.n->pool.base, in);
    commit(k.n, 0);
    w = fake_work(k.n, 0, &to, 1);
    assert_int_equal(run_work(k.ops, k.l, &w, false), TARN_E_NODE_DOWN);
    assert_string_equal(out, in);
    w = fake_work(k.n, 0, &to, 1);
    w.gen += 2;
    assert_int_equal(run_work(k.ops, k.l, &w, false), TARN_E_STALE);
    end(&k);
}

static void a_delay_delays_every_work(void **state)
{
    char text[100];
    snprintf(text, sizeof(text), "%s:delay=30", (const char *)*state);
    struct faulty_link k = begin(*state, text);
    enum { N = 10 };
    struct tarn_work w[2 * N];
    char data[N][100], out[N][100];
    struct tarn_piece p[2 * N];
    assert_false(k.ops->caps & TARN_CAP_SHARED);
    uint64_t begun = tarn_now_ns();
    for (uint32_t i = 0; i < N; i++) {
        fill(data[i], 100, i);
        p[i] = (struct tarn_piece){data[i], 100, 0, 0};
        w[i] = fake_work(k.n, i, &p[i], 1);
        assert_int_equal(k.ops->put(k.l, &w[i]), TARN_INPROGRESS);
    }
    assert_int_equal(finish_works(k.ops, k.l, w, N), 0);
    assert_true(tarn_now_ns() - begun >= 30 * TARN_NS_PER_MS);
    begun = tarn_now_ns();
    for (uint32_t i = 0; i < N; i++) {
        commit(k.n, i);
        p[N + i] = (struct tarn_piece){out[i], 100, 0, 0};
        w[N + i] = fake_work(k.n, i, &p[N + i], 1);
        w[N + i].gen += i == 3 ? 2 : 0;
        assert_int_equal(k.ops->get(k.l, &w[N + i]), TARN_INPROGRESS);
    }
    for (uint32_t i = 0; i < N; i++)
        while (!w[N + i].owner) {
            assert_true(tarn_now_ns() - begun < WAIT_MS * TARN_NS_PER_MS);
            assert_in_range(k.ops->wait(k.l, tarn_deadline(WAIT_MS)), 0, 1);
        }
    assert_true(tarn_now_ns() - begun >= 30 * TARN_NS_PER_MS);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(w[i].status, 0);
        assert_int_equal(w[N + i].status, i == 3 ? TARN_E_STALE : 0);
        if (i != 3)
            assert_memory_equal(data[i], out[i], 100);
    }
    end(&k);
}

static void dropped_works_end_with_close(void **state)
{
    char text[100], out[10];
    struct tarn_piece p = {out, sizeof(out), 0, 0};
    for (int delayed = 0; delayed < 2; delayed++) {
        snprintf(text, sizeof(text), "%s:%s", (const char *)*state, delayed ? "delay=3600000" : "drop=1");
        struct faulty_link k = begin(*state, text);
        commit(k.n, 0);
        struct tarn_work w[3];
        for (int i = 0; i < 3; i++) {
            w[i] = fake_work(k.n, 0, &p, 1);
            assert_int_equal(k.ops->get(k.l, &w[i]), TARN_INPROGRESS);
        }
        short events;
        assert_true(k.ops->wait_fd(k.l, &events) >= 0); /* a descriptor to wait on */
        uint64_t begun = tarn_now_ns();
        assert_int_equal(k.ops->wait(k.l, tarn_deadline(20)), 0);
        assert_true(tarn_now_ns() - begun >= 10 * TARN_NS_PER_MS);
        for (int i = 0; i < 3; i++)
            assert_null(w[i].owner);
        end(&k);
        for (int i = 0; i < 3; i++)
            assert_int_equal(w[i].status, TARN_E_CANCELED);
    }
}

static void refuse_fails_every_connection(void **state)
{
    char text[100];
    snprintf(text, sizeof(text), "%s:refuse=1", (const char *)*state);
    struct faulty_link k = begin(*state, text);
    assert_int_equal(k.r, TARN_E_NODE_DOWN);
    end(&k);
}

static void views_pass_through(void **state)
{
    (void)state;
    struct faulty_link k = begin("shm", "shm:error=1;tcp:drop=1");
    const void *addr;
    uint32_t hazard;
    commit(k.n, 2);
    strcpy((char *)k.n->pool.base + 2 * EXTENT, "here");
    assert_true(k.ops->caps & TARN_CAP_SHARED);
    assert_int_equal(k.ops->view(k.l, 0, 2, atomic_load(&k.n->pool.gen[2]), 2 * EXTENT, 5, &addr, &hazard),
                     0);
    assert_string_equal(addr, "here");
    k.ops->unview(k.l, hazard);
    k.ops->touch(k.l, 0, 2);
    assert_int_equal(get(&k, 2), TARN_E_NODE_DOWN);
    end(&k);
}

static void a_node_that_dies_ends_delayed_works(void **state)
{
    (void)state;
    struct fake_node *n = fake_start("tcp", true, 0);
    struct tarn_faulty *f;
    const struct tarn_transport_ops *ops;
    struct tarn_link *l;
    char answer[TARN_ATTACH_TEXT], out[10];
    int fds[56];
    assert_int_equal(tarn_faulty_new("tcp:drop=0.5;seed=3", &f), 0);
    struct tarn_peer p = fake_peer(answer, fds, fake_attach(n, SESSION, false, "", answer, fds));
    assert_int_equal(tarn_faulty_connect(f, n->ops, &p, &l, &ops), 0);
    fake_kill(n);
    struct tarn_piece piece = {out, sizeof(out), 0, 0};
    struct tarn_work w[20];
    for (int i = 0; i < 20; i++) {
        w[i] = fake_work(n, 0, &piece, 1);
        submit(ops, l, &w[i], false);
    }
    assert_int_equal(finish_works(ops, l, w, 20), TARN_E_NODE_DOWN);
    for (int i = 0; i < 20; i++)
        assert_int_equal(w[i].status, TARN_E_NODE_DOWN);
    ops->close(l);
    tarn_faulty_free(f);
    fake_stop(n);
}

static void malformed_texts_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *text, *says;
    } bad[] = {
        {"tpc:error=1", "did you mean \"tcp\""},
        {"error=1", "TRANSPORT:SETTING=VALUE"},
        {"tcp:eror=1", "eror=1"},
        {"tcp:error=1.5", "error=1.5"},
        {"tcp:error=", "error="},
        {"tcp:error", "\"error\""},
        {"tcp:error=-1", "error=-1"},
        {"tcp:delay=x", "delay=x"},
        {"seed=abc", "seed=abc"},
        {"tcp:drop=1;tcp:drop=1", "twice"},
        {":", "transport"},
        {"tcp:drop=0x", "drop=0x"},
        {"tcp:error=nan", "error=nan"},
        {"tcp:error=.1,,stale=1", "\"\""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tarn_faulty *f = NULL;
        assert_int_equal(tarn_faulty_new(bad[i].text, &f), TARN_E_CONFIG);
        assert_null(f);
        if (!strstr(tarn_last_error(), bad[i].says))
            fail_msg("\"%s\" does not say %s", tarn_last_error(), bad[i].says);
    }
    const char *good[] = {"",
                          ";",
                          "seed=7",
                          "tcp:",
                          "tcp:delay=0.5;;shm:error=0;",
                          "tcp:delay=5,error=0.01;shm:stale=0.1;seed=7"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct tarn_faulty *f;
        assert_int_equal(tarn_faulty_new(good[i], &f), 0);
        tarn_faulty_free(f);
    }
}

#define CASE(_f) \
    {#_f " (shm)", _f, NULL, NULL, "shm"}, \
    { \
#_f " (tcp)", _f, NULL, NULL, "tcp" \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(without_a_rule_nothing_changes),
        CASE(errors_and_stale_occur_at_the_given_rate),
        CASE(puts_fail_but_are_never_stale),
        CASE(a_lost_outcome_comes_behind_the_bytes),
        CASE(a_delay_delays_every_work),
        CASE(dropped_works_end_with_close),
        CASE(refuse_fails_every_connection),
        cmocka_unit_test(views_pass_through),
        cmocka_unit_test(a_node_that_dies_ends_delayed_works),
        cmocka_unit_test(malformed_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
