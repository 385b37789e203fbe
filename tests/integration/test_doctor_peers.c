/* SPDX-License-Identifier: Apache-2.0 */
/* `tarn doctor` with nodes and a Redis that give unexpected answers. A relay stands in front of each. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

#define ENDED_WITH_MISSING 6

static const struct world_plan plan = {.nodes = 1, .args = {"--pool", "cpu0:bytes=16M"}};

static int start(void **state)
{
    return world_start(state, &plan);
}

/* Runs `tarn doctor` by tcp only, because descriptors do not pass the relay. The output must contain the
 * text. */
static void doctor_says(struct world *w, int status, const char *text)
{
    struct harness_process *p;
    int got = harness_run(w->h, &p, "tarn", "doctor", "--redis", w->redis->unix_url, "--transports", "tcp",
                          "--timeout-ms", "1500", NULL);
    const char *out = harness_stdout(p, NULL);
    if (got != status || !strstr(out, text))
        fail_msg("exit %d, want %d and \"%s\" in:\n%s", got, status, text, out);
}

static void a_healthy_node_passes_through_the_relays(void **state)
{
    struct world *w = *state;
    struct relay *node = relay_start(w->nodes[0]->unix_path), *redis = relay_start(w->redis->unix_path);

    doctor_says(w, 0, "all that is needed is there");
    relay_stop(redis);
    relay_stop(node);
    harness_passed(w->h);
}

static void a_node_of_another_version_is_named_with_the_remedy(void **state)
{
    struct world *w = *state;
    struct relay *r = relay_start(w->nodes[0]->unix_path);

    relay_answer(r, "HELLO", "-VERSION HELLO: protocol 1, this node speaks 9\r\n");
    doctor_says(w, ENDED_WITH_MISSING, "node node0: install the same version of tarn on both hosts");
    relay_stop(r);
    harness_passed(w->h);
}

/* The exit status stays 0: doctor reports the version, but nothing is wrong. */
static void another_version_with_the_same_protocol_is_reported(void **state)
{
    struct world *w = *state;
    struct relay *r = relay_start(w->nodes[0]->unix_path);
    char told[200], info[220];

    snprintf(told, sizeof(told),
             "# Node\r\nstate:ready\r\nversion:9.9.9\r\ntime_ms:%llu\r\n# Pools\r\n"
             "pool0:name=cpu0,kind=cpu,room=1000000,evicted=0\r\n",
             (unsigned long long)tarn_unix_ms());
    snprintf(info, sizeof(info), "$%zu\r\n%s\r\n", strlen(told), told);
    relay_answer(r, "INFO", info);
    doctor_says(w, 0, "node node0: update the older of the two");
    doctor_says(w, 0, "has version 9.9.9, this is ");
    doctor_says(w, 0, "node0/cpu0 by tcp    ok  ");
    relay_stop(r);
    harness_passed(w->h);
}

/* A reservation keeps the node draining. Doctor reports that, does not try the node, and still exits with
 * 0. */
static void a_draining_node_is_reported_and_not_tried(void **state)
{
    struct world *w = *state;
    struct node_client c = node_connect(w->nodes[0]->control);

    node_reserve(&c, "absent", "in-flight", 100);
    harness_signal(w->nodes[0]->process, SIGTERM);
    HARNESS_UNTIL(!strcmp(node_info(w->nodes[0]->control, "state"), "draining"), 5000);
    doctor_says(w, 0, "not tried: draining");
    node_close(&c);
    harness_passed(w->h);
}

/* Connections stay in the backlog, because no process accepts them: as behind a firewall that answers for the
 * node. */
static void a_closed_data_port_is_named_with_the_remedy(void **state)
{
    struct world *w = *state;
    struct relay *r = relay_start(w->nodes[0]->unix_path);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char text[100], answer[120];

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &bytes), 0);
    snprintf(text, sizeof(text), "v1 127.0.0.1:%d %032d", ntohs(a.sin_port), 0);
    snprintf(answer, sizeof(answer), "*1\r\n$%zu\r\n%s\r\n", strlen(text), text);
    relay_answer(r, "ATTACH", answer);
    doctor_says(w, ENDED_WITH_MISSING,
                "node0/cpu0 by tcp: open the node's data port in the firewalls between");
    relay_stop(r);
    close(fd);
    harness_passed(w->h);
}

static void different_clocks_are_reported(void **state)
{
    struct world *w = *state;
    struct relay *redis = relay_start(w->redis->unix_path);

    relay_answer(redis, "TIME", "*2\r\n$10\r\n1500000000\r\n$1\r\n0\r\n");
    doctor_says(w, ENDED_WITH_MISSING, "clock of Redis: have both hosts set by the same time servers");
    relay_stop(redis);
    struct relay *node = relay_start(w->nodes[0]->unix_path);
    relay_answer(node, "INFO", "$33\r\n# Node\r\ntime_ms:4000000000000\r\n\r\n\r\n");
    doctor_says(w, ENDED_WITH_MISSING, "clock of node node0: have both hosts set by the same time servers");
    relay_stop(node);
    harness_passed(w->h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_healthy_node_passes_through_the_relays, start, world_stop),
        cmocka_unit_test_setup_teardown(a_node_of_another_version_is_named_with_the_remedy, start,
                                        world_stop),
        cmocka_unit_test_setup_teardown(another_version_with_the_same_protocol_is_reported, start,
                                        world_stop),
        cmocka_unit_test_setup_teardown(a_draining_node_is_reported_and_not_tried, start, world_stop),
        cmocka_unit_test_setup_teardown(a_closed_data_port_is_named_with_the_remedy, start, world_stop),
        cmocka_unit_test_setup_teardown(different_clocks_are_reported, start, world_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
