/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: posted calls, watches, timers, and freeing each of them from its own callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/loop.h"

#define THREADS 4
#define POSTS 2000

static int setup(void **state)
{
    return tarn_loop_new((struct tarn_loop **)state);
}

static int teardown(void **state)
{
    tarn_loop_free(*state);
    return 0;
}

/* --- posted calls ------------------------------------------------------------------------------- */

/* Each thread posts its numbers in order. The last call of all threads stops the loop. */
struct poster {
    struct tarn_loop *loop;
    int *threads_left; /* used only in the loop's thread */
    int next;
    int calls;
    int failed;
};

static void posted(void *arg)
{
    struct poster *p = arg;
    if (++p->calls == POSTS && --*p->threads_left == 0)
        tarn_loop_stop(p->loop);
}

static void *poster_main(void *arg)
{
    struct poster *p = arg;
    for (int i = 0; i < POSTS; i++)
        p->failed |= tarn_loop_post(p->loop, posted, p) != 0;
    return NULL;
}

static void posts_from_many_threads(void **state)
{
    struct poster posters[THREADS];
    pthread_t threads[THREADS];
    int left = THREADS;

    for (int i = 0; i < THREADS; i++) {
        posters[i] = (struct poster){.loop = *state, .threads_left = &left};
        assert_int_equal(pthread_create(&threads[i], NULL, poster_main, &posters[i]), 0);
    }
    tarn_loop_run(*state);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(posters[i].calls, POSTS);
        assert_false(posters[i].failed);
    }
}

struct step {
    struct tarn_loop *loop;
    char *trace;
    char name;
    struct step *then;
};

static void on_step(void *arg)
{
    struct step *s = arg;
    strncat(s->trace, &s->name, 1);
    if (s->then)
        tarn_loop_post(s->loop, on_step, s->then);
}

static void posts_run_in_order_and_before_run_returns(void **state)
{
    struct tarn_loop *l = *state;
    char trace[16] = "";
    struct step last = {l, trace, 'd', NULL}, c = {l, trace, 'c', &last}, b = {l, trace, 'b', NULL},
                a = {l, trace, 'a', &c};

    assert_int_equal(tarn_loop_post(l, on_step, &a), 0);
    tarn_loop_stop(l);
    assert_int_equal(tarn_loop_post(l, on_step, &b), 0);
    tarn_loop_run(l); /* already stopped: runs only posted calls, and what those post */
    assert_string_equal(trace, "abcd");

    /* The loop can run again. */
    trace[0] = '\0';
    tarn_loop_post(l, on_step, &b);
    tarn_loop_stop(l);
    tarn_loop_run(l);
    assert_string_equal(trace, "b");
    tarn_loop_post(l, on_step, &b); /* never runs, but must not leak */
}

static void *stopper_main(void *arg)
{
    tarn_loop_stop(arg);
    return NULL;
}

static void stop_from_another_thread(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, stopper_main, *state), 0);
    tarn_loop_run(*state);
    pthread_join(thread, NULL);
}

/* --- watches ------------------------------------------------------------------------------------ */

struct side {
    struct tarn_loop *loop;
    struct tarn_watch *watch;
    struct tarn_watch *timer;
    int fd, peer;
    int reads, writes, ticks;
};

static void on_side(void *arg, int events)
{
    struct side *s = arg;
    char byte;

    if (events & TARN_READABLE) {
        assert_int_equal(read(s->fd, &byte, 1), 1);
        s->reads++;
        if (s->reads == 3) /* level-triggered: remaining bytes are reported again */
            assert_int_equal(tarn_watch_set(s->watch, TARN_WRITABLE), 0);
    }
    if (events & TARN_WRITABLE) {
        s->writes++;
        tarn_watch_free(s->watch);
        s->watch = NULL;
        tarn_loop_stop(s->loop);
    }
}

static void watch_changes_and_frees_itself(void **state)
{
    struct side s = {.loop = *state};
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    s.fd = pair[0];
    assert_int_equal(tarn_watch_new(*state, s.fd, TARN_READABLE, on_side, &s, &s.watch), 0);
    assert_int_equal(write(pair[1], "abcde", 5), 5);
    tarn_loop_run(*state);
    assert_int_equal(s.reads, 3);
    assert_int_equal(s.writes, 1);
    assert_null(s.watch);
    close(pair[0]);
    close(pair[1]);
}

static void on_tick_resume(void *arg)
{
    struct side *s = arg;

    if (++s->ticks < 3) {
        assert_int_equal(s->reads, 0); /* paused although readable */
        return;
    }
    assert_int_equal(tarn_watch_set(s->watch, TARN_READABLE | TARN_WRITABLE), 0);
    tarn_watch_free(s->timer);
    s->timer = NULL;
}

static void paused_watch_is_silent(void **state)
{
    struct side s = {.loop = *state};
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    s.fd = pair[0];
    assert_int_equal(tarn_watch_new(*state, s.fd, 0, on_side, &s, &s.watch), 0);
    assert_int_equal(tarn_timer_new(*state, 2, on_tick_resume, &s, &s.timer), 0);
    assert_int_equal(write(pair[1], "a", 1), 1);
    tarn_loop_run(*state);
    assert_int_equal(s.reads, 1);
    assert_int_equal(s.ticks, 3);
    assert_null(s.watch);
    close(pair[0]);
    close(pair[1]);
}

static void hangup_is_readable(void **state)
{
    struct side s = {.loop = *state};
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    s.fd = pair[0];
    s.reads = 2;
    assert_int_equal(write(pair[1], "a", 1), 1);
    close(pair[1]);
    assert_int_equal(tarn_watch_new(*state, s.fd, TARN_READABLE, on_side, &s, &s.watch), 0);
    tarn_loop_run(*state);
    assert_int_equal(s.reads, 3);
    close(pair[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(posts_from_many_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(posts_run_in_order_and_before_run_returns, setup, teardown),
        cmocka_unit_test_setup_teardown(stop_from_another_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(watch_changes_and_frees_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(paused_watch_is_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(hangup_is_readable, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
