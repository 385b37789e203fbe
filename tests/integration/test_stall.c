/* SPDX-License-Identifier: Apache-2.0 */
/* The tests' stall meter (tests/stall.h): it tells how long a process was stopped. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/harness.h"
#include "tests/stall.h"

enum { STOPPED_MS = 200 };

/* In the child: runs until it notices the stop. Returns 0 if the meter's result fits. */
static int measure(int out)
{
    struct stalls *s = stalls_start(NULL, NULL);
    uint64_t begun = tarn_now_ns(), last = begun, now = begun;
    if (write(out, "x", 1) != 1)
        return 1;
    while (now - last < STOPPED_MS / 2 * TARN_NS_PER_MS && now - begun < 10 * TARN_NS_PER_S) {
        last = now;
        now = tarn_now_ns();
    }
    uint64_t stalled = stalls_within(s, last, now), gap = now - last;
    uint64_t half = stalls_within(s, last + gap / 2, now);
    stalls_stop(s);
    return stalled < STOPPED_MS * 3 / 4 * TARN_NS_PER_MS || stalled > gap || half > gap / 2 + 1;
}

static void stops_are_measured(void **state)
{
    (void)state;
    int fds[2], status = -1;
    char byte;
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(measure(fds[1]));
    assert_int_equal(read(fds[0], &byte, 1), 1);
    kill(child, SIGSTOP);
    poll(NULL, 0, STOPPED_MS); /* the stall */
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stops_are_measured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
