/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma over a wire: a client ends, or falls silent, in the middle of a put. The node gives its extents to
 * others at once, while writes that the client has queued may still arrive. The next owners' bytes, put by
 * tcp and not over the wire, must stay intact.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/node_client.h"
#include "tests/rdma.h"

#define SLOW "300" /* Mbit/s: the queued writes take more than a second */
#define BIG (14u * MIB)
#define NEXT (4u * MIB)

enum { WRITERS = 4, OWNERS = 15 }; /* each group fills almost the whole pool */

static const char *self;

static const struct world_plan plan = {
    .nodes = 1,
    .args = {"--pool", "cpu0:bytes=64M", "--heartbeat-ms", "300", "--rdma-devices", "far0"},
    .client = {.transports = "rdma", .timeout_ms = 3000}};

static int start(void **state)
{
    rdma_need(true);
    setenv("TARN_RDMA_DEVICES", "rxe0", 1);
    return world_start(state, &plan);
}

/* Hides the node's Unix path: new connections use TCP, as from another host. Existing ones are kept. */
static void hide_path(struct world *w, bool hide)
{
    const char *path = w->nodes[0]->unix_path;
    char away[160];
    snprintf(away, sizeof(away), "%s.away", path);
    assert_int_equal(rename(hide ? path : away, hide ? away : path), 0);
}

static bool moved(unsigned long long bytes, unsigned ms)
{
    unsigned long long from = rail_bytes(0);
    for (uint64_t until = harness_now_ms() + ms; harness_now_ms() < until; harness_pause())
        if (rail_bytes(0) > from + bytes)
            return true;
    return false;
}

/* Starts a writer and returns when its packets are moving. */
static struct harness_process *writer(struct world *w)
{
    const char *argv[] = {self, "--peer", w->redis->url, NULL};
    struct harness_process *p = harness_spawn(w->h, "writer", argv);
    assert_non_null(harness_wait_line(p, "ready", HARNESS_TIMEOUT_MS));
    assert_true(moved(MIB, 10000));
    return p;
}

/* A stopped writer whose device continues alone. If its queue pair has failed by then, tries another
 * writer. */
static struct harness_process *stopped_writer(struct world *w)
{
    for (int i = 0; i < 10; i++) {
        struct harness_process *p = writer(w);
        harness_signal(p, SIGSTOP);
        if (moved(2 * MIB, 500))
            return p;
        harness_kill(p);
    }
    fail_msg("no writer's device went on without it");
    return NULL;
}

static struct tarn_client *tcp_client(struct world *w)
{
    struct tarn_client *c = world_client(w, "tcp");
    assert_int_equal(marked_put(c, "first", 0, 1, 8), 0); /* opens the client's connections */
    return c;
}

static void next_owners_come(struct tarn_client *c, uint32_t round)
{
    for (uint32_t k = 0; k < OWNERS; k++)
        if (marked_put(c, "next", k, round, NEXT))
            fail_msg("put %u: %s", k, tarn_last_error());
}

static void next_owners_have_theirs(struct tarn_client *c, uint32_t round)
{
    for (uint32_t k = 0; k < OWNERS; k++) {
        int64_t version;
        int status = marked_get(c, "next", k, NEXT, &version);
        if (status)
            fail_msg("get %u: %s", k, tarn_last_error());
        assert_int_equal(version, round);
    }
}

static void next_owners_go(struct tarn_client *c)
{
    for (uint32_t k = 0; k < OWNERS; k++) {
        char name[16];
        snprintf(name, sizeof(name), "next%u", k);
        struct tarn_key key = key_of(name);
        assert_int_equal(tarn_remove(c, &key, 1, NULL, 0), 0);
    }
}

static void killed_writer_never_hits_the_next_owner(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = tcp_client(w);
    for (uint32_t round = 1; round <= 2; round++) {
        int queue_pairs = rdma_objects().qp;
        rail(w->h, "limit", 0, SLOW);
        hide_path(w, true);
        struct harness_process *p = writer(w);
        hide_path(w, false);
        harness_signal(p, SIGKILL);
        HARNESS_UNTIL(node_pool_figure(w->nodes[0]->local, "reserved") == 0, 10000);
        next_owners_come(c, round);
        next_owners_have_theirs(c, round);
        harness_wait(p, HARNESS_TIMEOUT_MS);
        HARNESS_UNTIL(rdma_objects().qp == queue_pairs, 10000);
        next_owners_have_theirs(c, round);
        next_owners_go(c);
        rail(w->h, "free", 0, NULL);
    }
    tarn_close(c);
    harness_passed(w->h);
}

/*
 * The client's host is cut off except for the rail. Its process does nothing, but its device works on through
 * two seconds of queued writes. Only the end of the node's queue pair stops them.
 */
static void a_cut_off_writer_never_hits_the_next_owner(void **state)
{
    struct world *w = *state;
    struct tarn_client *c = tcp_client(w);
    char filter[64];
    snprintf(filter, sizeof(filter), "( dport = %s )", strrchr(w->nodes[0]->control, ':'));
    for (uint32_t round = 1; round <= 2; round++) {
        int queue_pairs = rdma_objects().qp;
        rail(w->h, "limit", 0, SLOW);
        hide_path(w, true);
        struct harness_process *p = stopped_writer(w);
        assert_int_equal(harness_run(w->h, NULL, "ss", "-K", "-t", "-n", filter, NULL), 0);
        hide_path(w, false);
        HARNESS_UNTIL(node_pool_figure(w->nodes[0]->local, "reserved") == 0, 2000);
        next_owners_come(c, round);
        next_owners_have_theirs(c, round);
        harness_kill(p);
        HARNESS_UNTIL(rdma_objects().qp == queue_pairs, 10000);
        next_owners_have_theirs(c, round);
        next_owners_go(c);
        rail(w->h, "free", 0, NULL);
    }
    tarn_close(c);
    harness_passed(w->h);
}

/* --- the other process -------------------------------------------------------------------------- */

static struct tarn_client *client;
static atomic_int ready;

/* Writes a reservation repeatedly. When that fails, continues with another reservation. */
static void *write_reservations(void *arg)
{
    char *data = arg, key[16];
    struct tarn_piece first = {.addr = data, .bytes = 8}, all = {.addr = data, .bytes = BIG};
    snprintf(key, sizeof(key), "half%c", *data);
    struct tarn_item item = {.key = key_of(key), .tensor = tarn_bytes(BIG)};
    for (;;) {
        struct tarn_put_session *s;
        if (tarn_put_begin(client, &item, 1, NULL, &s))
            continue;
        if (tarn_put_write(s, 0, 0, &first, 1, 0) == 0 && atomic_fetch_add(&ready, 1) == WRITERS - 1)
            dprintf(STDOUT_FILENO, "ready\n");
        while (tarn_put_write(s, 0, 0, &all, 1, 20000) == 0)
            ;
        tarn_put_abort(s);
    }
    return NULL;
}

/* test_rdma_writers --peer REDIS: works until it is killed. */
static int peer_main(const char *redis)
{
    pthread_t threads[WRITERS];
    client = client_open(redis, plan.client);
    for (int i = 0; i < WRITERS; i++) {
        char *data = malloc(BIG);
        if (!data)
            return 1;
        memset(data, 'a' + i, BIG);
        if (pthread_create(&threads[i], NULL, write_reservations, data))
            return 1;
    }
    return pthread_join(threads[0], NULL);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, rdma_stop)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--peer") == 0)
        return peer_main(argv[2]);
    const struct CMUnitTest tests[] = {
        CASE(killed_writer_never_hits_the_next_owner),
        CASE(a_cut_off_writer_never_hits_the_next_owner),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
