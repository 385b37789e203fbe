/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a wait early: a cancel. */
#ifndef TARN_CLIENT_STOP_H
#define TARN_CLIENT_STOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What ends a wait early: a submitted operation's flag, and the eventfd that is written after setting it.
 * Where one thread runs several operations, the wait of one holds up the cancel of another: so that ends it,
 * too. */
struct tarn_stop {
    const _Atomic bool *flag; /* NULL: nothing does */
    int fd;                   /* -1: none */
    bool (*others)(void *of); /* has one of the others been canceled? NULL: there are none */
    void *of;
};

static inline bool tarn_stopped(const struct tarn_stop *s)
{
    return (s->flag && atomic_load(s->flag)) || (s->others && s->others(s->of));
}

/* For tarn_net_stop_by(): arg is a struct tarn_stop. */
bool tarn_stop_seen(void *arg);
/* Waits for that many ms: true. False when the deadline has come, or what it belongs to is to stop. s may be
 * NULL. */
bool tarn_stop_pause(const struct tarn_stop *s, uint64_t deadline_ns, int ms);
/* Makes the eventfd unreadable again; look at the flags afterwards. */
void tarn_stop_drain(int fd);

#endif
