/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hits of look-ups: there are none after the last one, and hits of nodes that ended or restarted are misses.
 * The memory of a look-up's answer ends at an unmapped page, so that reading past it crashes the test.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/client.h"
#include "client/resolve.h"
#include "tests/node_client.h"
#include "tests/world.h"

enum { KEYS = 5, BYTES = 3000, FENCED_MAX = 16 };

/* --- fenced memory ------------------------------------------------------------------------------ */

/* True in a thread while it runs a look-up. */
static _Thread_local bool fencing;
static struct {
    _Atomic(void *) addr; /* NULL: free; read by all threads */
    void *pages;
    size_t bytes;
} fenced[FENCED_MAX];

void *__real_malloc(size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void __wrap_free(void *p);

/* True for the size of an answer: a header and one struct tarn_resolved for each key. */
static bool is_answer(size_t bytes)
{
    return bytes >= KEYS * sizeof(struct tarn_resolved) && bytes < (KEYS + 1) * sizeof(struct tarn_resolved);
}

void *__wrap_malloc(size_t bytes)
{
    size_t page = 4096, room = (bytes + page - 1) / page * page;
    for (int i = 0; fencing && is_answer(bytes) && i < FENCED_MAX; i++) {
        if (fenced[i].addr)
            continue;
        char *pages = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED || mprotect(pages + room, page, PROT_NONE))
            return NULL;
        fenced[i].pages = pages;
        fenced[i].bytes = room + page;
        void *addr = pages + room - bytes / 16 * 16;
        fenced[i].addr = addr;
        return addr;
    }
    return __real_malloc(bytes);
}

void __wrap_free(void *p)
{
    for (int i = 0; p && i < FENCED_MAX; i++)
        if (fenced[i].addr == p) {
            void *pages = fenced[i].pages;
            size_t bytes = fenced[i].bytes;
            fenced[i].addr = NULL;
            munmap(pages, bytes);
            return;
        }
    __real_free(p);
}

static bool is_fenced(const void *p)
{
    for (int i = 0; i < FENCED_MAX; i++)
        if (fenced[i].addr == p)
            return true;
    return false;
}

/* --- a world ------------------------------------------------------------------------------------ */

static const struct world_plan plan = {.nodes = 1,
                                       .args = {"--pool", "cpu0:bytes=16M", "--heartbeat-ms", "300"},
                                       .client = {.timeout_ms = 5000}};

static int start(void **state)
{
    return world_start_client(state, &plan);
}

static const struct tarn_put_options on_node0 = {
    .size = sizeof on_node0, .flags = TARN_PUT_REPLACE, .place = "node0"};

static struct tarn_hits *look_up(struct world *w, struct tarn_key keys[KEYS], char names[KEYS][8])
{
    struct tarn_hits *hits;
    for (int i = 0; i < KEYS; i++) {
        snprintf(names[i], 8, "k%d", i);
        keys[i] = key_of(names[i]);
    }
    fencing = true;
    int rc = tarn_lookup(w->client, keys, KEYS, NULL, &hits);
    fencing = false;
    if (rc)
        fail_msg("look-up: %s", tarn_last_error());
    assert_true(is_fenced(hits));
    return hits;
}

static void put_keys(struct world *w)
{
    for (int i = 0; i < KEYS; i++) {
        char name[8];
        snprintf(name, sizeof name, "k%d", i);
        assert_int_equal(client_put(w->client, name, (char)('a' + i), BYTES, NULL), 0);
    }
}

/* Gets n keys, starting with number `first`, by the hits starting at `at`. */
static void get_by(struct world *w, const struct tarn_hits *hits, size_t at, int first, int n)
{
    static char data[KEYS][BYTES];
    struct tarn_piece pieces[KEYS];
    struct tarn_item items[KEYS];
    char names[KEYS][8];
    struct tarn_get_options o = {.size = sizeof o, .hits = hits, .hits_first = at};
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "k%d", first + i);
        pieces[i] = (struct tarn_piece){.addr = data[i], .bytes = BYTES};
        items[i] = (struct tarn_item){.key = key_of(names[i]), .pieces = &pieces[i], .npieces = 1};
    }
    if (tarn_get(w->client, items, (size_t)n, &o))
        fail_msg("get: %s", tarn_last_error());
    for (int i = 0; i < n; i++)
        for (int b = 0; b < BYTES; b++)
            assert_int_equal(data[i][b], 'a' + first + i);
}

/* --- tests -------------------------------------------------------------------------------------- */

static void positions_behind_the_last_hit_are_misses(void **state)
{
    struct world *w = *state;
    struct tarn_key keys[KEYS];
    char names[KEYS][8];
    struct tarn_tensor t;
    put_keys(w);
    struct tarn_hits *hits = look_up(w, keys, names);
    assert_int_equal(tarn_hits_count(hits), KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        assert_int_equal(tarn_hits_state(hits, i), TARN_STATE_HIT);
        assert_int_equal(tarn_hits_tensor(hits, i, &t), 0);
        assert_int_equal(t.bytes, BYTES);
    }
    static const size_t behind[] = {KEYS, KEYS + 1, KEYS + 12, 1 << 20, SIZE_MAX};
    for (size_t k = 0; k < sizeof behind / sizeof *behind; k++) {
        assert_int_equal(tarn_hits_state(hits, behind[k]), TARN_STATE_MISS);
        assert_int_equal(tarn_hits_tensor(hits, behind[k], &t), TARN_E_NOT_FOUND);
    }
    get_by(w, hits, 0, 0, KEYS);
    get_by(w, hits, 3, 3, 2);
    get_by(w, hits, KEYS, 0, KEYS); /* keys without a hit are looked up */
    get_by(w, hits, SIZE_MAX - 8, 0, KEYS);
    tarn_hits_free(hits);
    assert_int_equal(tarn_hits_count(NULL), 0);
    assert_int_equal(tarn_hits_state(NULL, 0), TARN_STATE_MISS);
    harness_passed(w->h);
}

/* The node's earlier run is paused and its memory still mapped here. Its successor has a new version of
 * the key. */
static void a_hit_on_a_restarted_node_is_a_miss(void **state)
{
    struct world *w = *state;
    struct tarn_key keys[KEYS];
    char names[KEYS][8];
    struct tarn_view view = {0};
    put_keys(w);
    struct tarn_hits *hits = look_up(w, keys, names);
    get_by(w, hits, 0, 0, KEYS); /* maps the node's memory */
    struct harness_process *before = w->nodes[0]->process;
    harness_signal(before, SIGSTOP);
    HARNESS_UNTIL(!world_lists(w, "node0"), 10000);
    assert_int_equal(unlink(w->nodes[0]->unix_path), 0); /* the paused run still listens there */
    w->nodes[0] = world_node(w, "node0");
    struct tarn_client *other = world_client(w, NULL);
    HARNESS_UNTIL(client_put(other, "k0", 'a', BYTES, &on_node0) == 0, 10000);
    assert_int_equal(client_put(other, "new", 'n', BYTES, &on_node0), 0);
    HARNESS_UNTIL(client_get(w->client, "new", 'n', BYTES) == 0, 10000); /* now it knows the new run */
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(tarn_hits_state(hits, i), TARN_STATE_MISS);
    assert_int_equal(client_put(other, "k0", 'A', BYTES, &on_node0), 0);
    assert_int_equal(client_get(w->client, "k0", 'A', BYTES), 0);
    char data[BYTES];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};
    struct tarn_item item = {.key = keys[0], .pieces = &piece, .npieces = 1};
    struct tarn_get_options o = {.size = sizeof o, .hits = hits};
    assert_int_equal(tarn_get(w->client, &item, 1, &o), 0);
    assert_int_equal(data[0], 'A');
    assert_int_equal(data[BYTES - 1], 'A');
    assert_int_equal(tarn_view(w->client, &keys[0], 0, &view), 0);
    assert_int_equal(*(const char *)view.addr, 'A');
    tarn_release(w->client, &view);
    char byte;
    int status = client_read(w->client, "k1", BYTES, 0, &byte);
    assert_true(status == TARN_E_NOT_FOUND || status == TARN_E_NODE_DOWN);
    tarn_hits_free(hits);
    tarn_close(other);
    harness_kill(before);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, world_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(positions_behind_the_last_hit_are_misses),
        CASE(a_hit_on_a_restarted_node_is_a_miss),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
