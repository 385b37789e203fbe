/* SPDX-License-Identifier: Apache-2.0 */
/* After the last fault: every key can be removed, removed keys stay removed, and all memory is free. */
#include <poll.h>
#include <string.h>

#include <tarn/tarn.h>

#include "base/clock.h"
#include "tests/harness.h"
#include "tests/history/soak/soak.h"

enum { REMOVE_MS = 30000, FREE_MS = 20000, LOOK_MS = 2000, DEADLINE_MS = 5000, RETRY_MS = 50 };

static bool is_away(int status)
{
    return status == 0 || status == TARN_E_NOT_FOUND;
}

static uint32_t remove_all(struct history_log *log, struct tarn_client *c)
{
    uint64_t deadline = tarn_deadline(REMOVE_MS);
    uint32_t left = 0;
    for (uint32_t key = 0; key < SOAK_KEYS; key++) {
        int status = soak_remove(log, c, key, DEADLINE_MS);
        while (!is_away(status) && tarn_left_ms(deadline)) {
            poll(NULL, 0, RETRY_MS);
            status = soak_remove(log, c, key, DEADLINE_MS);
        }
        if (!is_away(status))
            fprintf(stderr, "remove of key %u: %s\n", key, tarn_last_error());
        left += !is_away(status);
    }
    return left;
}

static void get_all(struct history_log *log, struct tarn_client *c)
{
    for (uint32_t key = 0; key < SOAK_KEYS; key++)
        soak_get(log, c, key, 1, DEADLINE_MS);
}

static bool is_free(struct soak_world *w, struct soak_rest *r)
{
    r->objects = soak_world_held(w, "objects");
    r->bytes = soak_world_held(w, "used");
    r->reserved = soak_world_held(w, "reserved");
    r->records = soak_world_records(w);
    return r->objects == 0 && r->bytes == 0 && r->reserved == 0 && r->records == 0;
}

void soak_end(struct soak_world *w, struct history_log *log, struct soak_rest *r)
{
    struct tarn_options o = {.size = sizeof o, .redis = soak_world_redis(w)};
    struct tarn_client *c;
    *r = (struct soak_rest){0};
    if (tarn_open(&o, &c))
        fail_msg("open: %s", tarn_last_error());
    get_all(log, c);
    r->keys = remove_all(log, c);
    uint64_t begun = harness_now_ms(), look = tarn_deadline(LOOK_MS), deadline = tarn_deadline(FREE_MS);
    while (tarn_left_ms(look)) {
        get_all(log, c);
        harness_pause();
    }
    while (!is_free(w, r) && tarn_left_ms(deadline)) {
        get_all(log, c);
        harness_pause();
    }
    r->took_ms = (uint32_t)(harness_now_ms() - begun);
    tarn_close(c);
}
