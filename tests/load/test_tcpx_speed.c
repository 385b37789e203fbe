/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the speed of the tcpx transport with a bare loop of isend, irecv and test over the same plugin.
 * Both use the same messages and the same window, with both ends in one process, and run in turn. Only the
 * ratio of the speeds means something.
 *
 * The bare loop uses memory that is registered with the plugin, so tarn's caller registers its memory too.
 * The speed with unregistered memory is also shown. Both use the same amount of memory, because a loop within
 * the processor's cache would be faster.
 *
 * As a test it detects only a speed that is far too low. TCPX_SPEED=10 (make bench-tcpx) takes ten rounds and
 * requires 90 %, over the fixture plugin or over the plugin of TARN_TCPX_PLUGIN.
 */
#define SLOTS 16u
#define EXTENT (2ull << 20)
#include "tests/unit/fake_node.h"

#include "tests/tcpx/scene.h"

enum { FLYING = 8, ROUNDS_MAX = 100 };

static const struct tarn_transport_ops *ops;
static uint32_t works = 32; /* in one measurement; each has EXTENT bytes */

/* --- bare loop and transport -------------------------------------------------------------------- */

static double bare_rate(struct tarn_tcpx_plugin *p, bool gather)
{
    const struct bare_load load = {.messages = works,
                                   .bytes = EXTENT,
                                   .places = FLYING,
                                   .chunk = p->chunk_bytes,
                                   .window = p->window,
                                   .gather = gather};
    struct bare_result result = {0};
    struct bare b;
    CHECK(bare_open(p, 0, &b) == 0);
    CHECK(bare_run(&b, &load, &result) == 0);
    bare_close(&b);
    CHECK(result.wrong == 0 && result.bytes == works * EXTENT);
    return (double)result.bytes / result.seconds;
}

static double tarn_rate(struct fake_node *n, struct tarn_link *l, bool put, uint8_t *memory)
{
    struct tarn_work w[FLYING];
    struct tarn_piece pieces[FLYING];
    uint32_t begun = 0, done = 0;
    uint64_t start = tarn_now_ns();
    for (uint32_t i = 0; i < FLYING; i++)
        w[i].owner = w;
    while (done < works) {
        for (uint32_t i = 0; i < FLYING && begun < works; i++) {
            if (!w[i].owner)
                continue;
            pieces[i] = (struct tarn_piece){.addr = memory + i * EXTENT, .bytes = EXTENT};
            w[i] = fake_work(n, put ? FLYING + i : i, &pieces[i], 1);
            submit(ops, l, &w[i], put);
            begun++;
        }
        CHECK(ops->wait(l, tarn_deadline(20000)) >= 0);
        done = begun;
        for (uint32_t i = 0; i < FLYING; i++) {
            done -= !w[i].owner;
            CHECK(!w[i].owner || w[i].status == 0);
        }
    }
    return (double)(works * EXTENT) / ((double)(tarn_now_ns() - start) / 1e9);
}

/* --- rounds ------------------------------------------------------------------------------------- */

/* Gets and puts are parts of the bare loop's rate, with registered and unregistered memory of the caller. */
struct rates {
    double bare[ROUNDS_MAX];
    struct {
        double get[ROUNDS_MAX], put[ROUNDS_MAX];
    } registered, unregistered;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), ascending);
    return v[n / 2];
}

static void take_round(struct rates *t, int r, struct tarn_tcpx_plugin *p, struct fake_node *n,
                       struct tarn_link *l, uint8_t *memory)
{
    double bare = t->bare[r] = bare_rate(p, false);
    CHECK(ops->map(n->local, memory, FLYING * EXTENT) == 0);
    t->registered.get[r] = tarn_rate(n, l, false, memory) / bare;
    t->registered.put[r] = tarn_rate(n, l, true, memory) / bare;
    CHECK(ops->unmap(n->local, memory, FLYING * EXTENT) == 0);
    t->unregistered.get[r] = tarn_rate(n, l, false, memory) / bare;
    t->unregistered.put[r] = tarn_rate(n, l, true, memory) / bare_rate(p, true);
}

static int measure(struct tarn_tcpx_plugin *p)
{
    static struct rates t;
    const char *text = getenv("TCPX_SPEED");
    int rounds = text ? atoi(text) : 3;
    works = text ? 4 * works : works;
    uint8_t *memory = malloc(FLYING * EXTENT);
    CHECK(memory && rounds > 0 && rounds <= ROUNDS_MAX);
    setenv("TARN_TCPX_PLUGIN", p->path, 1);
    struct fake_node *n = fake_start("tcpx", false, 0);
    struct tarn_link *l = fake_link(n, true);
    ops = n->ops;
    for (uint32_t i = 0; i < FLYING; i++)
        commit(n, i);
    memset(memory, 1, FLYING * EXTENT);
    for (int put = 0; put < 2; put++) /* warms up: connects and touches all memory */
        tarn_rate(n, l, put, memory);
    for (int r = 0; r < rounds; r++)
        take_round(&t, r, p, n, l, memory);
    ops->close(l);
    fake_stop(n);
    free(memory);
    double get = median(t.registered.get, rounds), put = median(t.registered.put, rounds);
    printf(
        "random: %s, messages of %u bytes, window %u: bare %.0f MB/s; gets %.2f of it, puts %.2f; of memory "
        "that is not registered gets %.2f, puts %.2f of a loop that copies it to such, too\n",
        p->name, p->chunk_bytes, p->window, median(t.bare, rounds) / 1e6, get, put,
        median(t.unregistered.get, rounds), median(t.unregistered.put, rounds));
    CHECK((get < put ? get : put) >= (text ? 0.9 : 0.2));
    return 0;
}

static int measure_given(void *arg)
{
    struct tarn_tcpx_plugin *p;
    CHECK(tarn_tcpx_plugin_open(arg, NULL, &p) == 0);
    return measure(p);
}

/* Runs one row. Each row is a test, so that a slow row does not hide the others. */
static void play(const char *plugin, const char *sockets)
{
    const struct scene s = {.plugin = plugin, .sockets = sockets, .body = measure};
    scene_play(&s);
}

static void one_socket_is_as_fast_as_a_bare_loop(void **state)
{
    (void)state;
    play("fixture-v7", "1");
}

static void four_sockets_are_as_fast_as_a_bare_loop(void **state)
{
    (void)state;
    play("fixture-v7", "4");
}

static void a_plain_plugin_is_as_fast_as_a_bare_loop(void **state)
{
    (void)state;
    play("fixture-v6", "4");
}

static void the_given_plugin_is_as_fast_as_a_bare_loop(void **state)
{
    char out[16384], *path = getenv("TARN_TCPX_PLUGIN");
    int status = child_run(measure_given, path, 3600, out, sizeof(out));
    (void)state;
    print_message("%s", out);
    if (status != 0)
        fail_msg("TARN_TCPX_PLUGIN=%s: status %d", path, status);
}

int main(void)
{
    const struct CMUnitTest fixtures[] = {
        cmocka_unit_test(one_socket_is_as_fast_as_a_bare_loop),
        cmocka_unit_test(four_sockets_are_as_fast_as_a_bare_loop),
        cmocka_unit_test(a_plain_plugin_is_as_fast_as_a_bare_loop),
    };
    const struct CMUnitTest given[] = {cmocka_unit_test(the_given_plugin_is_as_fast_as_a_bare_loop)};
    const char *path = getenv("TARN_TCPX_PLUGIN");
    if (getenv("TCPX_SPEED") && path && *path)
        return cmocka_run_group_tests(given, NULL, NULL);
    return cmocka_run_group_tests(fixtures, NULL, NULL);
}
