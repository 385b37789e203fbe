/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of a node a client maps: none that could shrink under the mapping, which would end the client.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/harness.h"
#include "transport/share.h"

enum { BYTES = sizeof(struct tarn_hazard_page) };

static const struct tarn_link a_link = {.transport = "shm", .node = "node0"};

/* Closes the file. */
static int maps(int fd)
{
    struct tarn_share_hazards h = {0};
    int rc = tarn_share_hazards_map(&a_link, fd, &h);
    if (!rc)
        tarn_share_hazards_unmap(&h);
    close(fd);
    return rc;
}

static int memfd(off_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int file(struct harness *h, const char *name, mode_t mode)
{
    int fd = open(harness_path(h, name), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    return fd;
}

static void memfds_are_sealed_and_large_enough(void **state)
{
    (void)state;
    assert_int_equal(maps(memfd(BYTES, F_SEAL_SHRINK)), 0);
    assert_int_equal(maps(memfd(BYTES, F_SEAL_GROW)), TARN_E_PROTOCOL);
    assert_non_null(strstr(tarn_last_error(), "not sealed against shrinking"));
    assert_int_equal(maps(memfd(BYTES - 1, F_SEAL_SHRINK)), TARN_E_PROTOCOL);
}

static void files_are_private_and_of_a_user_who_could_end_this_process(void **state)
{
    struct harness *h = harness_new();
    (void)state;
    assert_int_equal(maps(file(h, "kept", 0600)), 0);
    assert_int_equal(maps(file(h, "readable", 0640)), TARN_E_PROTOCOL);
    int fd = file(h, "unlinked", 0600);
    assert_int_equal(unlink(harness_path(h, "unlinked")), 0);
    assert_int_equal(maps(fd), TARN_E_PROTOCOL);
    fd = file(h, "others", 0600);
    if (fchown(fd, 65534, (gid_t)-1) == 0)
        assert_int_equal(maps(fd), TARN_E_PROTOCOL);
    else
        close(fd);
    harness_passed(h);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memfds_are_sealed_and_large_enough),
        cmocka_unit_test(files_are_private_and_of_a_user_who_could_end_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
