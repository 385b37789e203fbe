/* SPDX-License-Identifier: Apache-2.0 */
/* Puts of several chunks: which of them are committed at once. COMMITs are held until the put's deadline. */
#include <string.h>

#include "tests/node_client.h"
#include "tests/relay.h"
#include "tests/world.h"

enum { BYTES = 100, WAIT_MS = 10000, TIMEOUT_MS = 2000 };

static const struct world_plan plan = {
    .nodes = 1, .args = {"--pool", "cpu0:bytes=16M"}, .client = {.timeout_ms = 10000, .transports = "tcp"}};

static struct relay *relay;

static int start(void **state)
{
    int rc = world_start(state, &plan);
    struct world *w = *state;
    relay = relay_start(w->nodes[0]->unix_path);
    w->client = world_client(w, "tcp");
    assert_int_equal(client_put(w->client, "first", 'f', BYTES, NULL), 0); /* opens its connections */
    return rc;
}

static int stop(void **state)
{
    struct world *w = *state;
    relay_hold(relay, NULL);
    tarn_close(w->client);
    w->client = NULL;
    relay_stop(relay);
    return world_stop(state);
}

/* Puts items i = 0 to n-1, whose keys are those of i % keys, and returns how many COMMITs the node did not
 * get in time. */
static unsigned commits_of(struct world *w, int n, int keys)
{
    const struct tarn_put_options o = {
        .size = sizeof o, .flags = TARN_PUT_REPLACE, .timeout_ms = TIMEOUT_MS * harness_slower()};
    static char data[BYTES], names[256][8];
    static struct tarn_item items[256];
    struct tarn_piece piece = {.addr = data, .bytes = BYTES};

    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i % keys);
        items[i] = (struct tarn_item){
            .key = key_of(names[i]), .pieces = &piece, .npieces = 1, .tensor = tarn_bytes(BYTES)};
    }
    relay_hold(relay, "COMMIT");
    assert_int_equal(tarn_put(w->client, items, (size_t)n, &o), TARN_E_TIMEOUT);
    unsigned held = relay_held(relay, "COMMIT");
    relay_hold(relay, NULL);
    for (int i = 0; i < n; i++)
        assert_int_equal(items[i].status, TARN_E_TIMEOUT);
    HARNESS_UNTIL(node_pool_figure(relay_node(relay), "reserved") == 0, WAIT_MS);
    assert_int_equal(client_get(w->client, "k0", 0, BYTES), TARN_E_NOT_FOUND);
    return held;
}

static void two_chunks_are_committed_at_once(void **state)
{
    struct world *w = *state;
    assert_int_equal(commits_of(w, 256, 256), 2);
    harness_passed(w->h);
}

/* Else the earlier value could be the one that stays. */
static void chunks_with_a_key_in_common_are_committed_one_after_the_other(void **state)
{
    struct world *w = *state;
    assert_int_equal(commits_of(w, 2, 1), 1);
    assert_int_equal(commits_of(w, 5, 2), 1);
    harness_passed(w->h);
}

#define CASE(fn_) cmocka_unit_test_setup_teardown(fn_, start, stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(two_chunks_are_committed_at_once),
        CASE(chunks_with_a_key_in_common_are_committed_one_after_the_other),
    };
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
