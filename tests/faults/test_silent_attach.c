/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node answers HELLO but not ATTACH. The client sets that transport aside, not the node. The node is a
 * thread of this program, and the test takes links as gets and puts do.
 */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "client/link.h"
#include "client/peer_node.h"
#include "client/peer_nodes.h"
#include "client/refresh.h"
#include "client/side.h"
#include "tests/harness.h"
#include <tarn/tarn.h>

enum { CONNECTIONS = 64, EPOCH = 7, SHM = 0, TCP = 1 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_MS (2000 * harness_slower())
#else
#define SLACK_MS (1000 * harness_slower())
#endif

struct world {
    struct harness *h;
    struct tarn_client *client;
    struct tarn_peer_node *remote;
    struct sockaddr_un address;
    int listener, stop[2];
    atomic_int hellos;   /* number of HELLOs still to be answered */
    atomic_int attaches; /* number of ATTACHs received */
    pthread_t thread;
};

/* --- the node ----------------------------------------------------------------------------------- */

static void answer_hello(struct world *w, int fd)
{
    char text[128];
    int n =
        snprintf(text, sizeof(text), "*4\r\n$5\r\nepoch\r\n$16\r\n%016x\r\n$6\r\nnow_ns\r\n:1\r\n", EPOCH);
    if (atomic_fetch_sub(&w->hellos, 1) > 0)
        assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* Handles one command. Each arrives whole, because the client waits for the answer before it sends the
 * next one. False: the client hung up. */
static bool serve(struct world *w, int fd)
{
    char text[4096] = "";
    ssize_t n = recv(fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return false;
    if (strstr(text, "HELLO"))
        answer_hello(w, fd);
    if (strstr(text, "ATTACH"))
        atomic_fetch_add(&w->attaches, 1);
    return true;
}

static void *node_main(void *arg)
{
    struct world *w = arg;
    struct pollfd fds[2 + CONNECTIONS] = {{w->stop[0], POLLIN, 0}, {w->listener, POLLIN, 0}};
    nfds_t n = 2;
    while (poll(fds, n, -1) > 0 && !fds[0].revents) {
        for (nfds_t i = 2; i < n; i++)
            if (fds[i].revents && !serve(w, fds[i].fd)) {
                close(fds[i].fd);
                fds[i].fd = -1;
            }
        if (fds[1].revents && n < 2 + CONNECTIONS)
            fds[n++] = (struct pollfd){accept(w->listener, NULL, NULL), POLLIN, 0};
    }
    for (nfds_t i = 2; i < n; i++)
        if (fds[i].fd >= 0)
            close(fds[i].fd);
    return NULL;
}

static void node_start(struct world *w)
{
    struct tarn_node_record record = {.id = "mute", .epoch = EPOCH};
    w->address.sun_family = AF_UNIX;
    snprintf(w->address.sun_path, sizeof(w->address.sun_path), "%s", harness_path(w->h, "mute.sock"));
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(w->listener, (struct sockaddr *)&w->address, sizeof(w->address)), 0);
    assert_int_equal(listen(w->listener, CONNECTIONS), 0);
    assert_int_equal(pipe(w->stop), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, node_main, w), 0);
    snprintf(record.unix_path, sizeof(record.unix_path), "%s", w->address.sun_path);
    snprintf(record.host_id, sizeof(record.host_id), "%s", w->client->host_id);
    assert_int_equal(tarn_peer_node_update(w->client, &record, 0, tarn_now_ns()), 0);
    w->remote = tarn_peer_node_of(w->client, "mute", EPOCH);
}

static int start(void **state, const char *transports)
{
    struct world *w = calloc(1, sizeof(*w));
    w->h = harness_new();
    struct tarn_options o = {
        .size = sizeof(o), .redis = harness_redis_start(w->h, NULL)->url, .transports = transports};
    assert_int_equal(tarn_open(&o, &w->client), 0);
    atomic_store(&w->hellos, 1000);
    node_start(w);
    *state = w;
    return 0;
}

static int start_two(void **state)
{
    return start(state, "shm,tcp");
}

static int start_one(void **state)
{
    return start(state, "shm");
}

static int stop(void **state)
{
    struct world *w = *state;
    tarn_close(w->client);
    assert_int_equal(write(w->stop[1], "", 1), 1);
    pthread_join(w->thread, NULL);
    close(w->listener);
    close(w->stop[0]);
    close(w->stop[1]);
    harness_free(w->h);
    free(w);
    return 0;
}

/* --- the client --------------------------------------------------------------------------------- */

/* Takes a link. Returns the status, and the time that it took. */
static int take(struct world *w, unsigned timeout_ms, int *ms_p)
{
    struct tarn_open_link *l;
    bool fresh;
    uint64_t begun = harness_now_ms();
    int rc =
        tarn_link_take(&w->remote->sides[SHM][0], tarn_deadline(timeout_ms), UINT64_MAX, NULL, &l, &fresh);
    assert_true(rc < 0);
    *ms_p = (int)(harness_now_ms() - begun);
    return rc;
}

static int health(const struct world *w)
{
    return atomic_load(&w->remote->health);
}

static int side_state(const struct world *w)
{
    return atomic_load(&w->remote->sides[SHM][false].state);
}

static void the_transport_is_set_aside_not_the_node(void **state)
{
    struct world *w = *state;
    int ms;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(take(w, 3000, &ms), TARN_E_NOT_REACHABLE);
        assert_in_range(ms, 240, 250 + SLACK_MS);
        assert_non_null(strstr(tarn_last_error(), "shm: ATTACH is not answered, though the node answers"));
        assert_int_equal(health(w), TARN_UP);
        assert_false(tarn_side_usable(&w->remote->sides[SHM][0], tarn_now_ns()));
        assert_true(tarn_side_usable(&w->remote->sides[SHM][1], tarn_now_ns()));
        assert_true(tarn_side_usable(&w->remote->sides[TCP][0], tarn_now_ns()));
        assert_int_equal(take(w, 3000, &ms), TARN_E_NOT_REACHABLE);
        assert_int_equal(atomic_load(&w->attaches), round + 1);
        HARNESS_UNTIL(tarn_side_usable(&w->remote->sides[SHM][0], tarn_now_ns()), 2000 + SLACK_MS);
    }
    harness_passed(w->h);
}

static void *take_in_vain(void *arg)
{
    int ms;
    assert_int_equal(take(arg, 3000, &ms), TARN_E_NOT_REACHABLE);
    return NULL;
}

static void no_call_waits_for_the_retry_of_another_call(void **state)
{
    struct world *w = *state;
    pthread_t other;
    int ms;
    assert_int_equal(take(w, 3000, &ms), TARN_E_NOT_REACHABLE);
    HARNESS_UNTIL(tarn_side_usable(&w->remote->sides[SHM][0], tarn_now_ns()), 2000 + SLACK_MS);
    assert_int_equal(pthread_create(&other, NULL, take_in_vain, w), 0);
    HARNESS_UNTIL(atomic_load(&w->attaches) == 2, 2000);
    assert_false(tarn_side_usable(&w->remote->sides[SHM][0], tarn_now_ns()));
    assert_int_equal(take(w, 3000, &ms), TARN_E_NOT_REACHABLE);
    assert_true(ms < 200); /* the other thread's take needs 250 ms */
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&w->attaches), 2);
    harness_passed(w->h);
}

/* Each short call leaves time for another transport. Together they wait no longer than a patient call. */
static void short_calls_together_set_a_transport_aside(void **state)
{
    struct world *w = *state;
    uint64_t begun = harness_now_ms();
    int ms, rc;
    while ((rc = take(w, 100, &ms)) == TARN_E_BUSY) {
        assert_in_range(ms, 40, 60 + SLACK_MS);
        assert_int_equal(side_state(w), TARN_SIDE_UNKNOWN);
        assert_int_equal(health(w), TARN_UP);
        assert_true(harness_now_ms() - begun < 500 + SLACK_MS);
    }
    assert_int_equal(rc, TARN_E_NOT_REACHABLE);
    assert_true(atomic_load(&w->attaches) > 1);
    harness_passed(w->h);
}

/* A node that answers nothing is set aside itself. Nothing is recorded about the transport. */
static void a_silent_node_is_set_aside_itself(void **state)
{
    struct world *w = *state;
    int ms;
    atomic_store(&w->hellos, 1);
    assert_int_equal(take(w, 3000, &ms), TARN_E_TIMEOUT);
    assert_in_range(ms, 490, 500 + SLACK_MS);
    assert_int_equal(health(w), TARN_SLOW);
    assert_int_equal(side_state(w), TARN_SIDE_UNKNOWN);
    harness_passed(w->h);
}

static void the_only_transport_gets_the_whole_deadline(void **state)
{
    struct world *w = *state;
    int ms;
    assert_int_equal(take(w, 600, &ms), TARN_E_TIMEOUT);
    assert_in_range(ms, 590, 600 + SLACK_MS);
    assert_int_equal(side_state(w), TARN_SIDE_UNKNOWN);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_transport_is_set_aside_not_the_node, start_two, stop),
        cmocka_unit_test_setup_teardown(no_call_waits_for_the_retry_of_another_call, start_two, stop),
        cmocka_unit_test_setup_teardown(short_calls_together_set_a_transport_aside, start_two, stop),
        cmocka_unit_test_setup_teardown(a_silent_node_is_set_aside_itself, start_two, stop),
        cmocka_unit_test_setup_teardown(the_only_transport_gets_the_whole_deadline, start_one, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
