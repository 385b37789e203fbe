/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of notifications: many threads push at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/notices.h"

enum { THREADS = 4, EACH = TARN_NOTICES / THREADS, ROUNDS = 200 };

struct pusher {
    struct tarn_notice_ring *ring;
    pthread_barrier_t *start;
    int bell, refused;
    uint64_t number;
};

static void *push(void *arg)
{
    struct pusher *p = arg;
    pthread_barrier_wait(p->start);
    for (uint64_t i = 0; i < EACH; i++) {
        const struct tarn_notify notify = {.tag = p->number << 32 | i};
        const struct tarn_work w = {.pool = 1, .slot = 2, .gen = 4, .notify = &notify};
        p->refused += tarn_notices_push(p->ring, p->bell, &w) != 0;
    }
    return NULL;
}

/* All places are taken, each once, none is refused before, and each thread's keep their order. */
static void fill_once(void)
{
    struct tarn_notice_ring *ring;
    struct pusher all[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t start;
    uint64_t next[THREADS] = {0};
    struct tarn_notice got;
    int fd, bell = eventfd(0, EFD_NONBLOCK);
    assert_int_equal(tarn_notices_new(TARN_NOTICES, &ring, &fd), 0);
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (uint64_t i = 0; i < THREADS; i++) {
        all[i] = (struct pusher){.ring = ring, .start = &start, .bell = bell, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, push, &all[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(all[i].refused, 0);
    }
    const struct tarn_notify notify = {.tag = 1};
    const struct tarn_work w = {.notify = &notify};
    assert_int_equal(tarn_notices_push(ring, bell, &w), TARN_E_AGAIN);
    for (uint64_t n = 0; n < THREADS * EACH; n++) {
        assert_true(tarn_notices_peek(ring, TARN_NOTICES, n, &got));
        assert_true(got.tag >> 32 < THREADS && (uint32_t)got.tag == next[got.tag >> 32]++);
        tarn_notices_pop(ring, TARN_NOTICES, n);
    }
    assert_false(tarn_notices_peek(ring, TARN_NOTICES, THREADS * EACH, &got));
    assert_int_equal(tarn_notices_push(ring, bell, &w), 0);
    pthread_barrier_destroy(&start);
    munmap(ring, tarn_notices_bytes(TARN_NOTICES));
    close(fd);
    close(bell);
}

static void threads_fill_a_ring(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        fill_once();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_fill_a_ring)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
