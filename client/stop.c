/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that a cancel ends. */
#include "client/stop.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"

void tarn_stop_drain(int fd)
{
    uint64_t n;

    while (read(fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}

bool tarn_stop_seen(void *arg)
{
    const struct tarn_stop *s = arg;

    tarn_stop_drain(s->fd);
    return tarn_stopped(s);
}

bool tarn_stop_pause(const struct tarn_stop *s, uint64_t deadline_ns, int ms)
{
    struct pollfd fd = {s ? s->fd : -1, POLLIN, 0};
    int left = tarn_left_ms(deadline_ns);

    if (poll(&fd, 1, left < ms ? left : ms) > 0) /* perhaps of an earlier cancel; the flag is what counts */
        tarn_stop_drain(s->fd);
    return !(s && tarn_stopped(s)) && tarn_now_ns() < deadline_ns;
}
