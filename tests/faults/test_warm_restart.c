/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node with a state directory is killed at random moments while clients put, replace, remove, read and
 * view, and is started again. Nobody may read a byte of another object, and no value older than one whose put
 * has returned 0.
 *
 * RESTART_KILLS  how many kills (6)
 * RESTART_SEED   of their moments; without it another one at each run, which the test prints
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "tests/world.h"

enum { KEYS = 96, WRITERS = 2, READERS = 3, WORDS = 4096, BYTES = WORDS * 8 };

/* Of a key: the values whose put began, and below which value nothing may be read any more. One writer has
 * it. */
struct key_state {
    _Atomic uint64_t begun, oldest;
};

struct load {
    struct world *w;
    struct key_state keys[KEYS];
    atomic_bool stop;
    _Atomic uint64_t reads, puts, views, wrong, stale, changed;
};

struct worker {
    struct load *load;
    const char *transports;
    pthread_t thread;
    unsigned number, seed;
};

static void name_of(int key, char out[16])
{
    snprintf(out, 16, "key%d", key);
}

/* Every word of an object says which key and value it is. */
static uint64_t word_of(int key, uint64_t value)
{
    return (uint64_t)key << 48 | value;
}

static void check(struct load *l, int key, const uint64_t *words, size_t n, uint64_t oldest)
{
    uint64_t value = words[0] & 0xffffffffffff;
    for (size_t i = 0; i < n; i++) {
        if (words[i] != word_of(key, value)) {
            atomic_fetch_add(&l->wrong, 1);
            return;
        }
    }
    if (value < oldest)
        atomic_fetch_add(&l->stale, 1);
    if (value > atomic_load(&l->keys[key].begun))
        atomic_fetch_add(&l->wrong, 1);
}

static void put_one(struct load *l, struct tarn_client *c, int key, uint64_t *words)
{
    struct key_state *k = &l->keys[key];
    uint64_t value = atomic_fetch_add(&k->begun, 1) + 1;
    char name[16];
    name_of(key, name);
    for (int i = 0; i < WORDS; i++)
        words[i] = word_of(key, value);
    struct tarn_piece piece = {.addr = words, .bytes = BYTES};
    struct tarn_item item = {
        .key = key_of(name), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    if (tarn_put(c, &item, 1, &replacing) == 0)
        atomic_store(&k->oldest, value);
    atomic_fetch_add(&l->puts, 1);
}

static void remove_one(struct load *l, struct tarn_client *c, int key)
{
    struct key_state *k = &l->keys[key];
    char name[16];
    name_of(key, name);
    const struct tarn_key text = key_of(name);
    int32_t status;
    if (tarn_remove(c, &text, 1, &status, 0) == 0 && status == 0)
        atomic_store(&k->oldest, atomic_load(&k->begun) + 1);
}

static void *write_all(void *arg)
{
    struct worker *me = arg;
    struct tarn_client *c = world_client(me->load->w, me->transports);
    uint64_t *words = malloc(BYTES);
    while (!atomic_load(&me->load->stop)) {
        int key = rand_r(&me->seed) % (KEYS / WRITERS) * WRITERS + (int)me->number;
        if (rand_r(&me->seed) % 8 == 0)
            remove_one(me->load, c, key);
        else
            put_one(me->load, c, key, words);
    }
    free(words);
    tarn_close(c);
    return NULL;
}

static void read_one(struct load *l, struct tarn_client *c, int key, uint64_t *words)
{
    char name[16];
    name_of(key, name);
    uint64_t oldest = atomic_load(&l->keys[key].oldest);
    struct tarn_piece piece = {.addr = words, .bytes = BYTES};
    struct tarn_item item = {
        .key = key_of(name), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    if (tarn_get(c, &item, 1, NULL))
        return;
    check(l, key, words, WORDS, oldest);
    atomic_fetch_add(&l->reads, 1);
}

/* Looks at the bytes for a while: across a restart, too. */
static void view_one(struct load *l, struct tarn_client *c, int key, unsigned *seed)
{
    char name[16];
    struct tarn_view v;
    name_of(key, name);
    const struct tarn_key text = key_of(name);
    uint64_t oldest = atomic_load(&l->keys[key].oldest);
    if (tarn_view(c, &text, 0, &v))
        return;
    check(l, key, v.addr, WORDS, oldest);
    uint64_t first = *(const volatile uint64_t *)v.addr,
             until = harness_now_ms() + (unsigned)rand_r(seed) % 400;
    while (harness_now_ms() < until && !atomic_load(&l->stop)) {
        harness_pause();
        for (int i = 0; i < WORDS; i += 64)
            atomic_fetch_add(&l->changed, ((const volatile uint64_t *)v.addr)[i] != first);
    }
    tarn_release(c, &v);
    atomic_fetch_add(&l->views, 1);
}

static void *read_all(void *arg)
{
    struct worker *me = arg;
    struct tarn_client *c = world_client(me->load->w, me->transports);
    uint64_t *words = malloc(BYTES);
    while (!atomic_load(&me->load->stop)) {
        int key = rand_r(&me->seed) % KEYS;
        if (me->number == 0)
            view_one(me->load, c, key, &me->seed);
        else
            read_one(me->load, c, key, words);
    }
    free(words);
    tarn_close(c);
    return NULL;
}

static const char *const ways[] = {"shm", "tcp", NULL};

static void start_workers(struct load *l, struct worker *all, unsigned seed)
{
    for (unsigned i = 0; i < WRITERS + READERS; i++) {
        bool writes = i < WRITERS;
        unsigned number = writes ? i : i - WRITERS;
        all[i] =
            (struct worker){.load = l, .number = number, .seed = seed + i, .transports = ways[number % 2]};
        assert_int_equal(pthread_create(&all[i].thread, NULL, writes ? write_all : read_all, &all[i]), 0);
    }
}

static void pause_for(uint64_t ms)
{
    for (uint64_t until = harness_now_ms() + ms; harness_now_ms() < until;)
        harness_pause();
}

/* Half of the pauses are so short that the node dies while it starts or comes back. */
static void kill_and_start(struct world *w, const char *const *args, int kills, unsigned *seed)
{
    struct harness_node *node = harness_node_startv(w->h, "kept", w->redis, args);
    for (int i = 0; i < kills; i++) {
        unsigned ms = (unsigned)rand_r(seed) % (rand_r(seed) % 2 ? 60 : 1200);
        pause_for(ms);
        harness_kill(node->process);
        if (rand_r(seed) % 8 == 0) /* until its record has expired */
            pause_for(1000);
        node = harness_node_startv(w->h, "kept", w->redis, args);
    }
}

static void nobody_reads_old_or_foreign_bytes(void **state)
{
    struct world *w = *state;
    const char *kills = getenv("RESTART_KILLS"), *given = getenv("RESTART_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)tarn_random64();
    const char *const args[] = {"--pool",
                                "cpu0:bytes=2M",
                                "--heartbeat-ms",
                                "200",
                                "--redis-timeout-ms",
                                "1000",
                                "--state-dir",
                                harness_path(w->h, "state"),
                                NULL};
    struct load *l = calloc(1, sizeof(*l));
    struct worker workers[WRITERS + READERS];
    print_message("RESTART_SEED=%u\n", seed);
    l->w = w;
    start_workers(l, workers, seed);
    kill_and_start(w, args, kills ? atoi(kills) : 6, &seed);
    atomic_store(&l->stop, true);
    for (unsigned i = 0; i < WRITERS + READERS; i++)
        pthread_join(workers[i].thread, NULL);
    print_message("%llu puts, %llu reads, %llu views\n", (unsigned long long)l->puts,
                  (unsigned long long)l->reads, (unsigned long long)l->views);
    assert_int_equal(l->wrong, 0);
    assert_int_equal(l->stale, 0);
    assert_int_equal(l->changed, 0);
    assert_true(l->reads > 0 && l->puts > 0);
    free(l);
    harness_passed(w->h);
}

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=2M", "--heartbeat-ms", "200"}, .client = {.timeout_ms = 1000}};

static int start(void **state)
{
    return world_start(state, &plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_reads_old_or_foreign_bytes, start, world_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
