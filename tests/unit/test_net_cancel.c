/* SPDX-License-Identifier: Apache-2.0 */
/* Canceling ends waits for sockets and for names, with a descriptor that signals the cancel and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "base/thread.h"

#define LATE_MS 20000
#define SLACK_MS 1500 /* on a busy machine */
#define FILLING 16

/* This program's resolver. It resolves no numbers, and names only when the test allows it. */
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out_p)
{
    (void)host, (void)port, (void)out_p;
    if (!(hints->ai_flags & AI_NUMERICHOST)) {
        pthread_mutex_lock(&names);
        pthread_mutex_unlock(&names);
    }
    return EAI_NONAME;
}

/* --- the waits ---------------------------------------------------------------------------------- */

struct fixture {
    struct tarn_cancel cancel;
    int pair[2];
    struct tarn_addr full, name;
    char folder[64];
    int listener, filling[FILLING], n;
    pthread_mutex_t lock;
    pthread_cond_t never;
};

static int for_a_socket(struct fixture *f)
{
    return tarn_net_wait(f->pair[0], POLLIN, tarn_deadline(LATE_MS), &f->cancel);
}

static int for_room_in_a_backlog(struct fixture *f)
{
    int fd;
    return tarn_net_connect(&f->full, tarn_deadline(LATE_MS), &f->cancel, &fd);
}

static int for_a_name(struct fixture *f)
{
    int fd;
    return tarn_net_connect(&f->name, tarn_deadline(LATE_MS), &f->cancel, &fd);
}

static int in_a_pause(struct fixture *f)
{
    while (tarn_cancel_pause(&f->cancel, tarn_deadline(LATE_MS), LATE_MS)) /* early: another's cancel */
        ;
    return tarn_cancel_fail();
}

static int for_a_condition(struct fixture *f)
{
    pthread_mutex_lock(&f->lock);
    while (tarn_cancel_cond(&f->cancel, &f->never, &f->lock, tarn_deadline(LATE_MS)))
        ;
    pthread_mutex_unlock(&f->lock);
    return tarn_cancel_fail();
}

static int (*const waits[])(struct fixture *) = {for_a_socket, for_room_in_a_backlog, for_a_name, in_a_pause,
                                                 for_a_condition};

/* --- canceling them ----------------------------------------------------------------------------- */

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct sockaddr_un sun = {.sun_family = AF_UNIX};

    snprintf(f->folder, sizeof f->folder, "/tmp/tarn-cancel-XXXXXX");
    if (!mkdtemp(f->folder) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, f->pair))
        return -1;
    f->full.is_unix = true;
    snprintf(f->full.host, sizeof sun.sun_path, "%s/full", f->folder);
    memcpy(sun.sun_path, f->full.host, sizeof sun.sun_path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(f->listener, (struct sockaddr *)&sun, sizeof sun) || listen(f->listener, 0))
        return -1;
    while (f->n < FILLING && tarn_net_connect(&f->full, tarn_deadline(20), NULL, &f->filling[f->n]) == 0)
        f->n++;
    f->name = (struct tarn_addr){.host = "a.name", .port = 1};
    pthread_mutex_init(&f->lock, NULL);
    tarn_cond_init(&f->never);
    f->cancel.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_lock(&names);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    pthread_mutex_unlock(&names);
    while (f->n > 0)
        close(f->filling[--f->n]);
    close(f->listener);
    close(f->pair[0]);
    close(f->pair[1]);
    if (f->cancel.fd >= 0)
        close(f->cancel.fd);
    unlink(f->full.host);
    rmdir(f->folder);
    free(f);
    return 0;
}

static void *cancel_soon(void *arg)
{
    struct tarn_cancel *c = arg;

    poll(NULL, 0, 30);
    atomic_store(&c->on, true);
    if (c->fd >= 0)
        eventfd_write(c->fd, 1);
    return NULL;
}

static void all_end(struct fixture *f)
{
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        pthread_t other;
        uint64_t begun = tarn_now_ns();

        atomic_store(&f->cancel.on, false);
        pthread_create(&other, NULL, cancel_soon, &f->cancel);
        int rc = waits[i](f);
        uint64_t took = tarn_now_ns() - begun;
        pthread_join(other, NULL);
        assert_int_equal(rc, TARN_E_CANCELED);
        assert_string_equal(tarn_last_error(), "canceled by the caller");
        assert_in_range(took, 0, SLACK_MS * TARN_NS_PER_MS);
        assert_int_equal(waits[i](f), TARN_E_CANCELED); /* it stays canceled */
    }
}

static void cancel_ends_waits_with_a_descriptor(void **state)
{
    all_end(*state);
}

static void cancel_ends_waits_without_a_descriptor(void **state)
{
    struct fixture *f = *state;

    close(f->cancel.fd);
    f->cancel.fd = -1;
    all_end(f);
}

/* A worker has one descriptor for all that it runs: another operation's cancel must not end this wait. */
static void a_written_descriptor_alone_ends_no_wait(void **state)
{
    struct fixture *f = *state;
    uint64_t begun = tarn_now_ns();

    eventfd_write(f->cancel.fd, 1);
    assert_int_equal(tarn_net_wait(f->pair[0], POLLIN, tarn_deadline(60), &f->cancel), TARN_E_TIMEOUT);
    assert_true(tarn_now_ns() - begun >= 60 * TARN_NS_PER_MS);
    assert_true(f->cancel.drained);
}

static bool yes(void *arg)
{
    (void)arg;
    return true;
}

static void a_cancel_of_another_operation_ends_the_wait(void **state)
{
    struct fixture *f = *state;

    f->cancel.others = yes;
    assert_int_equal(for_a_socket(f), TARN_E_CANCELED);
}

#define CANCEL_TEST(f_) cmocka_unit_test_setup_teardown(f_, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CANCEL_TEST(cancel_ends_waits_with_a_descriptor),
        CANCEL_TEST(cancel_ends_waits_without_a_descriptor),
        CANCEL_TEST(a_written_descriptor_alone_ends_no_wait),
        CANCEL_TEST(a_cancel_of_another_operation_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
