/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole node in the test's own process, with rdma and tcp, so that it uses the test's verbs (fake_verbs.h).
 * Redis is a separate process.
 */
#ifndef TARN_TESTS_NODE_HERE_H
#define TARN_TESTS_NODE_HERE_H

#include <pthread.h>
#include <semaphore.h>

#include "base/error.h"
#include "base/option/option.h"
#include "server/node.h"
#include "tests/harness.h"

struct here {
    struct harness *h;
    struct harness_redis *redis;
    struct tarn_node_config config;
    struct tarn_options_parsed parsed;
    struct tarn_node *node;
    pthread_t thread;
};

static inline void *run_node(void *arg)
{
    tarn_node_run(arg);
    return NULL;
}

static sem_t here_ready;

static inline void post_ready(struct tarn_node *n)
{
    (void)n;
    sem_post(&here_ready);
}

/* Waits until clients find the node: a slow start outlives the record that it writes. first: use its Redis;
 * NULL: start a new one. */
static inline void start_here_as(struct here *e, const char *id, const struct here *first)
{
    *e = (struct here){.h = harness_new()};
    e->redis = first ? first->redis : harness_redis_start(e->h, NULL);
    char *argv[] = {(char *)(uintptr_t) "tarnd",
                    (char *)(uintptr_t) "--id",
                    (char *)(uintptr_t)id,
                    (char *)(uintptr_t) "--listen",
                    (char *)(uintptr_t) "127.0.0.1:0",
                    (char *)(uintptr_t) "--data-port",
                    (char *)(uintptr_t) "0",
                    (char *)(uintptr_t) "--unix",
                    (char *)(uintptr_t)harness_path(e->h, "here.sock"),
                    (char *)(uintptr_t) "--redis",
                    (char *)(uintptr_t)e->redis->url,
                    (char *)(uintptr_t) "--pool",
                    (char *)(uintptr_t) "cpu0:bytes=16M",
                    (char *)(uintptr_t) "--transports",
                    (char *)(uintptr_t) "rdma,tcp",
                    NULL};
    if (tarn_options_parse(&tarn_node_program, 15, argv, &e->config, &e->parsed) ||
        tarn_node_config_check(&e->config) || tarn_node_start(&e->config, &(struct tarn_logger){0}, &e->node))
        fail_msg("node: %s", tarn_last_error());
    sem_init(&here_ready, 0, 0);
    e->node->ready = post_ready;
    assert_int_equal(pthread_create(&e->thread, NULL, run_node, e->node), 0);
    HARNESS_UNTIL(sem_trywait(&here_ready) == 0, 10000);
}

static inline void start_here(struct here *e)
{
    start_here_as(e, "here", NULL);
}

static inline void stop_here(struct here *e)
{
    tarn_loop_stop(e->node->host.loop);
    pthread_join(e->thread, NULL);
    tarn_node_free(e->node);
    tarn_options_free(&tarn_node_program, &e->config, &e->parsed);
    harness_passed(e->h);
    harness_free(e->h);
}

#endif
