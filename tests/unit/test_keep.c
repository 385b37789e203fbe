/* SPDX-License-Identifier: Apache-2.0 */
/* The state directory: what a store takes over from one that was there before, and what it does not. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/store/keep.h"
#include "tests/unit/store_fixture.h"

struct kept {
    char dir[64];
    struct tarn_keep_owner owner;
    struct tarn_keep *keep;
    struct tarn_store *s;
    struct gone gone;
    uint64_t epoch;
    uint32_t pages;
};

static int open_keep(struct kept *k)
{
    static const struct tarn_logger quiet = {.level = TARN_LOG_ERROR};
    uint64_t base = tarn_now_ns();
    k->epoch = EPOCH;
    return tarn_keep_open(k->dir, &k->owner, &quiet, &k->epoch, &base, &k->keep);
}

static void open_store(struct kept *k)
{
    const struct tarn_keep_pool *p = &k->owner.pools[0];
    k->gone = (struct gone){0};
    struct tarn_store_options o = {.epoch = k->epoch,
                                   .node = "n1",
                                   .keep = k->keep,
                                   .tick_base_ns = tarn_now_ns(),
                                   .gone = on_gone,
                                   .arg = &k->gone};
    assert_int_equal(tarn_store_new(&o, &k->s), 0);
    struct tarn_pool_options pool = {.bytes = p->bytes, .slots = p->slots, .align = p->align};
    memcpy(pool.name, p->name, sizeof(pool.name));
    assert_int_equal(tarn_store_add_pool(k->s, &pool), 0);
}

static void start(struct kept *k)
{
    assert_int_equal(open_keep(k), 0);
    open_store(k);
    if (tarn_keep_found(k->keep))
        assert_int_equal(tarn_store_take_over(k->s), 0);
    assert_int_equal(tarn_keep_begin(k->keep), 0);
}

/* As if the process were killed: nothing is told to the state any more. */
static void crash(struct kept *k)
{
    tarn_store_freeze(k->s);
    tarn_store_free(k->s);
    tarn_keep_close(k->keep);
}

static void restart(struct kept *k)
{
    crash(k);
    start(k);
}

static int setup(void **state)
{
    struct kept *k = calloc(1, sizeof(*k));
    snprintf(k->dir, sizeof(k->dir), "/tmp/tarn-keep-XXXXXX");
    assert_non_null(mkdtemp(k->dir));
    snprintf(k->owner.id, sizeof(k->owner.id), "n1");
    k->owner.npools = 1;
    k->owner.pools[0] = (struct tarn_keep_pool){.name = "p", .bytes = MIB, .align = 64, .slots = 1024};
    *state = k;
    start(k);
    return 0;
}

static int teardown(void **state)
{
    struct kept *k = *state;
    char command[128];
    crash(k);
    snprintf(command, sizeof(command), "rm -rf %s", k->dir);
    assert_int_equal(system(command), 0);
    free(k);
    return 0;
}

static void fill(struct kept *k, const struct tarn_grant *g, char byte, size_t bytes)
{
    uint32_t n;
    memset((char *)tarn_store_pools(k->s, &n)[0].base + g->offset, byte, bytes);
}

static bool holds(struct kept *k, const char *key, char byte, size_t bytes)
{
    uint32_t n;
    struct tarn_location l;
    struct tarn_record r;
    const struct tarn_key name = key_of(key);
    if (!tarn_store_find(k->s, &name, &r, &l))
        return false;
    const char *at = (const char *)tarn_store_pools(k->s, &n)[0].base + l.offset;
    assert_int_equal(r.tensor.bytes, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(at[i], byte);
    return true;
}

static void put_filled(struct kept *k, const char *key, char byte, size_t bytes)
{
    struct tarn_grant g;
    struct tarn_publish p;
    struct tarn_reserve r = want(key, bytes);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), 0);
    fill(k, &g, byte, bytes);
    assert_int_equal(tarn_store_commit_begin(k->s, SESSION, g.pool, g.slot, g.gen, &p), 0);
    assert_true(tarn_store_commit_end(k->s, g.pool, g.slot, g.gen, 1).live);
}

static void flip(const struct kept *k, const char *file, off_t at)
{
    char path[96], byte;
    snprintf(path, sizeof(path), "%s/%s", k->dir, file);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x5a;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* --- what is taken over --------------------------------------------------------------------------- */

static void live_objects_are_there_again_as_they_were(void **state)
{
    struct kept *k = *state;
    char longer[1001];
    memset(longer, 'k', 1000);
    longer[1000] = 0;
    put_filled(k, "a", 1, 100);
    put_filled(k, "empty", 0, 0);
    put_filled(k, longer, 2, 5000);
    struct tarn_key a = key_of("a");
    struct tarn_location before, after;
    assert_true(tarn_store_pin(k->s, &a, 0));
    assert_true(tarn_store_find(k->s, &a, NULL, &before));
    restart(k);
    assert_true(tarn_store_find(k->s, &a, NULL, &after));
    assert_int_equal(after.gen, before.gen);
    assert_int_equal(after.offset, before.offset);
    assert_int_equal(tarn_store_pinned(k->s, &a), -1);
    assert_true(holds(k, "a", 1, 100));
    assert_true(holds(k, "empty", 0, 0));
    assert_true(holds(k, longer, 2, 5000));
    assert_int_equal(stats(k->s).objects, 3);
    restart(k);
    assert_int_equal(stats(k->s).objects, 3);
}

static void what_was_not_committed_is_void(void **state)
{
    struct kept *k = *state;
    struct tarn_grant reserved, publishing;
    struct tarn_publish p;
    struct tarn_reserve r = want("r", 100), q = want("q", 100);
    assert_int_equal(tarn_store_reserve(k->s, &r, &reserved), 0);
    assert_int_equal(tarn_store_reserve(k->s, &q, &publishing), 0);
    assert_int_equal(tarn_store_commit_begin(k->s, SESSION, 0, publishing.slot, publishing.gen, &p), 0);
    restart(k);
    assert_false(has(k->s, "r") || has(k->s, "q"));
    assert_true(gen_at(k->s, &reserved) > reserved.gen);
    assert_int_equal(gen_at(k->s, &publishing), publishing.gen + 2);
}

/* Redis may have run the publish. Then nobody learns of the older copy any more. */
static void what_a_commit_under_way_may_have_replaced_is_void(void **state)
{
    struct kept *k = *state;
    struct tarn_grant g;
    struct tarn_publish p;
    put_filled(k, "a", 1, 100);
    put_filled(k, "b", 2, 100);
    struct tarn_reserve r = want("a", 100);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), 0);
    assert_int_equal(tarn_store_commit_begin(k->s, SESSION, 0, g.slot, g.gen, &p), 0);
    restart(k);
    assert_false(has(k->s, "a"));
    assert_true(holds(k, "b", 2, 100));
}

static void removed_and_replaced_objects_do_not_come_back(void **state)
{
    struct kept *k = *state;
    struct tarn_key a = key_of("a");
    put_filled(k, "a", 1, 100);
    put_filled(k, "b", 2, 100);
    put_filled(k, "b", 3, 200);
    assert_true(tarn_store_remove(k->s, &a, TARN_LEFT_REMOVED));
    restart(k);
    assert_false(has(k->s, "a"));
    assert_true(holds(k, "b", 3, 200));
    assert_int_equal(stats(k->s).used, 256);
}

/* --- extents that others may still use ------------------------------------------------------------ */

/* A process that reserved may write late, as long as it lives. */
static void reserved_extents_wait_for_their_writers(void **state)
{
    struct kept *k = *state;
    struct tarn_grant g;
    struct tarn_reserve r = want("r", MIB);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), 0);
    restart(k);
    tarn_store_tick(k->s);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), TARN_E_FULL);
    tarn_store_writers_gone(k->s);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), 0);
}

static void add_page(void *arg, void *page)
{
    struct kept *k = arg;
    k->pages++;
    assert_int_equal(tarn_store_hazard_add(k->s, page), 0);
}

/* The process was killed while it wrote the record of slot 0 anew. */
static void tear(const struct kept *k)
{
    char path[96];
    const uint64_t none = 0;
    snprintf(path, sizeof(path), "%s/0.records", k->dir);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &none, sizeof(none), 0), sizeof(none));
    close(fd);
}

/* This process has the page, so it lives: an object in a view keeps its extent, and its bytes. */
static void keeps_the_view(struct kept *k, bool torn)
{
    int fd;
    put_filled(k, "v", 7, MIB);
    assert_int_equal(tarn_keep_page_new(k->keep, getpid(), sizeof(struct tarn_hazard_page), &fd), 0);
    struct tarn_hazard_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(page != MAP_FAILED);
    atomic_store(&page->entry[0], 1); /* pool 0, slot 0 */
    atomic_store(&page->used, 1);
    crash(k);
    if (torn)
        tear(k);
    assert_int_equal(open_keep(k), 0);
    open_store(k);
    assert_int_equal(tarn_keep_pages(k->keep, sizeof(*page), add_page, k), 0);
    assert_int_equal(k->pages, 1);
    assert_int_equal(tarn_store_take_over(k->s), 0);
    struct tarn_reserve r = want("w", MIB);
    struct tarn_grant g;
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), TARN_E_FULL);
    atomic_store(&page->entry[0], 0);
    assert_int_equal(tarn_store_reserve(k->s, &r, &g), 0);
    munmap(page, sizeof(*page));
    close(fd);
}

static void views_outlive_the_node(void **state)
{
    keeps_the_view(*state, false);
}

static void views_outlive_a_record_that_is_not_whole(void **state)
{
    keeps_the_view(*state, true);
}

/* --- damage --------------------------------------------------------------------------------------- */

/* Whatever byte of the record is wrong: the object is there as it was, or it is not there. */
static void a_damaged_record_is_void(void **state)
{
    struct kept *k = *state;
    unsigned dropped = 0;
    for (off_t at = 0; at < (off_t)sizeof(struct tarn_kept); at++) {
        put_filled(k, "a", 1, 100);
        struct tarn_location l;
        const struct tarn_key a = key_of("a");
        assert_true(tarn_store_find(k->s, &a, NULL, &l));
        crash(k);
        flip(k, "0.records", (off_t)(l.slot * sizeof(struct tarn_kept)) + at);
        start(k);
        dropped += !holds(k, "a", 1, 100);
        tarn_store_tick(k->s);
    }
    assert_true(dropped >= offsetof(struct tarn_kept, key)); /* all but what is behind the key */
    assert_int_equal(stats(k->s).used - 128 * stats(k->s).objects, 128 * stats(k->s).limbo);
}

static void a_record_of_another_generation_is_void(void **state)
{
    struct kept *k = *state;
    put_filled(k, "a", 1, 100);
    crash(k);
    flip(k, "0.gen", 1);
    start(k);
    assert_false(has(k->s, "a"));
}

static void a_damaged_or_foreign_state_is_empty(void **state)
{
    struct kept *k = *state;
    char path[96];
    snprintf(path, sizeof(path), "%s/node", k->dir);
    struct stat st;
    for (off_t at = 0; stat(path, &st) == 0 && at < st.st_size; at += 7) {
        put_filled(k, "a", 1, 100);
        crash(k);
        flip(k, "node", at);
        start(k);
        assert_false(tarn_keep_found(k->keep));
        assert_false(has(k->s, "a"));
    }
}

static void files_of_other_sizes_are_no_state(void **state)
{
    struct kept *k = *state;
    static const char *const files[] = {"node", "0.arena", "0.gen", "0.touch"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[96];
        put_filled(k, "a", 1, 100);
        crash(k);
        snprintf(path, sizeof(path), "%s/%s", k->dir, files[i]);
        assert_int_equal(truncate(path, 64), 0);
        start(k);
        assert_false(tarn_keep_found(k->keep));
        assert_false(has(k->s, "a"));
    }
    put_filled(k, "a", 1, 100);
    crash(k);
    char path[96];
    snprintf(path, sizeof(path), "%s/0.records", k->dir);
    assert_int_equal(truncate(path, 64), 0);
    start(k);
    assert_false(has(k->s, "a"));
}

static void other_settings_begin_an_empty_state(void **state)
{
    struct kept *k = *state;
    put_filled(k, "a", 1, 100);
    crash(k);
    k->owner.pools[0].bytes = 2 * MIB;
    start(k);
    assert_false(tarn_keep_found(k->keep));
    assert_int_equal(stats(k->s).free, 2 * MIB);
    put_filled(k, "a", 1, 100);
    crash(k);
    snprintf(k->owner.ns, sizeof(k->owner.ns), "other");
    start(k);
    assert_false(has(k->s, "a"));
}

/* --- refusals ------------------------------------------------------------------------------------- */

static void refuses(struct kept *k, int code, const char *words)
{
    struct tarn_keep *mine = k->keep;
    assert_int_equal(open_keep(k), code);
    k->keep = mine;
    if (!strstr(tarn_last_error(), words))
        fail_msg("%s", tarn_last_error());
}

static void a_directory_is_one_nodes_own(void **state)
{
    struct kept *k = *state;
    char path[96];
    refuses(k, TARN_E_BUSY, "another node runs with it");
    snprintf(path, sizeof(path), "%s/letter.txt", k->dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    refuses(k, TARN_E_CONFIG, "letter.txt");
    unlink(path);
    chmod(k->dir, 0755);
    refuses(k, TARN_E_CONFIG, "mode 0755");
    chmod(k->dir, 0700);
}

static void a_long_path_is_refused(void **state)
{
    const struct kept *k = *state;
    char path[256];
    uint64_t epoch = 1, base = 0;
    struct tarn_keep *keep = NULL;
    const struct tarn_logger quiet = {0};
    snprintf(path, sizeof(path), "%s/", k->dir);
    size_t n = strlen(path);
    memset(path + n, 'x', sizeof(path) - n - 1);
    path[sizeof(path) - 1] = 0;
    assert_int_equal(tarn_keep_open(path, &k->owner, &quiet, &epoch, &base, &keep), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "255 bytes: at most 199"));
    path[200] = 0;
    assert_int_equal(tarn_keep_open(path, &k->owner, &quiet, &epoch, &base, &keep), TARN_E_CONFIG);
}

static void a_full_file_system_is_an_error(void **state)
{
    struct kept *k = *state;
    crash(k);
    k->owner.pools[0].bytes = 1ull << 50;
    assert_int_equal(open_keep(k), 0);
    struct tarn_pool_memory m;
    assert_int_equal(tarn_keep_pool_open(k->keep, 0, "p", &m), TARN_E_CONFIG);
    assert_non_null(strstr(tarn_last_error(), "make room"));
    tarn_keep_close(k->keep);
    k->owner.pools[0].bytes = MIB;
    start(k);
}

static void presence_is_the_last_whole_one(void **state)
{
    struct kept *k = *state;
    uint64_t out = 0;
    for (uint64_t i = 1; i <= 3; i++)
        tarn_keep_set_presence(k->keep, &i, sizeof(i));
    restart(k);
    assert_true(tarn_keep_presence(k->keep, &out, sizeof(out)));
    assert_int_equal(out, 3);
    flip(k, "presence", 16); /* the third is in the first place */
    assert_true(tarn_keep_presence(k->keep, &out, sizeof(out)));
    assert_int_equal(out, 2);
}

#define KEPT(test_) cmocka_unit_test_setup_teardown(test_, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KEPT(live_objects_are_there_again_as_they_were),
        KEPT(what_was_not_committed_is_void),
        KEPT(what_a_commit_under_way_may_have_replaced_is_void),
        KEPT(removed_and_replaced_objects_do_not_come_back),
        KEPT(reserved_extents_wait_for_their_writers),
        KEPT(views_outlive_the_node),
        KEPT(views_outlive_a_record_that_is_not_whole),
        KEPT(a_damaged_record_is_void),
        KEPT(a_record_of_another_generation_is_void),
        KEPT(a_damaged_or_foreign_state_is_empty),
        KEPT(files_of_other_sizes_are_no_state),
        KEPT(other_settings_begin_an_empty_state),
        KEPT(a_directory_is_one_nodes_own),
        KEPT(a_long_path_is_refused),
        KEPT(a_full_file_system_is_an_error),
        KEPT(presence_is_the_last_whole_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
