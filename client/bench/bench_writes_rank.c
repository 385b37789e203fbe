/* SPDX-License-Identifier: Apache-2.0 */
/* What both ranks of `tarn-bench ring --peer` do (bench_writes.h): messages, and the verification of parts.
 */
#include <string.h>

#include "base/error.h"
#include "client/bench/bench_writes.h"

#define TAG 1

/* --- messages ----------------------------------------------------------------------------------- */

static int interrupted(void *arg)
{
    (void)arg;
    return bench_interrupted();
}

int bench_writes_client(const struct bench_env *e, const char *transports, struct tarn_client **c_p)
{
    const struct tarn_options o = {.size = sizeof o,
                                   .redis = e->directory_uri,
                                   .transports = transports,
                                   .timeout_ms = BENCH_WRITES_PATIENCE_MS,
                                   .interrupt = interrupted,
                                   .listen = e->listen};

    return tarn_open(&o, c_p);
}

int bench_writes_send(struct tarn_channel *ch, const void *message, size_t bytes)
{
    const struct tarn_channel_options o = {.size = sizeof o, .timeout_ms = BENCH_WRITES_PATIENCE_MS};
    const struct tarn_piece piece = {.addr = (void *)(uintptr_t)message, .bytes = bytes};

    return tarn_send(ch, TAG, &piece, 1, &o);
}

int bench_writes_receive(struct tarn_channel *ch, void *message, size_t bytes)
{
    const struct tarn_channel_options o = {.size = sizeof o, .timeout_ms = BENCH_WRITES_ANSWER_MS};
    const struct tarn_piece piece = {.addr = message, .bytes = bytes};
    uint64_t got = 0;
    int rc = tarn_recv(ch, TAG, &piece, 1, &o, &got);

    if (rc == 0 && got != bytes)
        return tarn_fail(TARN_E_PROTOCOL,
                         "a message of %llu bytes, not %zu: run the same build at both ranks",
                         (unsigned long long)got, bytes);
    return rc;
}

/* --- landing ------------------------------------------------------------------------------------ */

int bench_landing_take(struct bench_landing *l, uint64_t count, uint64_t as)
{
    uint64_t slot = (count - 1) % l->shape.slots;

    if (count <= l->verified || count > l->last || count > l->verified + l->shape.slots || l->landed[slot])
        return tarn_fail(
            TARN_E_INVALID, "part %llu came again, or is not due: %llu of %llu have come without a gap",
            (unsigned long long)count, (unsigned long long)l->verified, (unsigned long long)l->last);
    uint64_t at = bench_pattern_check(l->memory + slot * l->shape.bytes, l->shape.bytes, as, 0);
    if (at != UINT64_MAX)
        return tarn_fail(TARN_E_INVALID, "part %llu: byte %llu of %u is wrong", (unsigned long long)count,
                         (unsigned long long)at, l->shape.bytes);
    l->landed[slot] = true;
    while (l->landed[l->verified % l->shape.slots]) {
        l->landed[l->verified % l->shape.slots] = false;
        l->verified++;
    }
    return 0;
}

const struct bench_wire_ops *bench_wire_beside(const char *transport)
{
    return strcmp(transport, "rdma") == 0  ? &bench_wire_verbs
           : strcmp(transport, "tcp") == 0 ? &bench_wire_sockets
                                           : NULL;
}
