/* SPDX-License-Identifier: Apache-2.0 */
/* How a real verbs stack handles different kinds of memory. Needs a device (tests/rdma-vm has one). */
#include "tests/unit/fake_node.h"

#include "tests/harness.h"

enum { BYTES = 4 << 20 };

struct fixture {
    struct fake_node *n;
    struct tarn_link *l;
};

static struct fixture begin(void)
{
    if (find_transport("rdma")->probe())
        harness_skip("rdma", tarn_last_error());
    struct fixture f = {.n = fake_start("rdma", true, 0)};
    f.l = fake_link(f.n, true);
    return f;
}

static void end(struct fixture *f)
{
    f->n->ops->close(f->l);
    fake_stop(f->n);
}

static void puts_from(struct fixture *f, char *from, uint64_t bytes)
{
    memset(f->n->pool.base, 0, bytes);
    if (put_bytes(f->n, f->l, 0, from, bytes))
        fail_msg("put: %s", tarn_last_error());
    assert_memory_equal(f->n->pool.base, from, bytes);
}

static void gets_into(struct fixture *f, char *to, uint64_t bytes, uint64_t seed)
{
    fill(f->n->pool.base, bytes, seed);
    commit(f->n, 0);
    if (get_bytes(f->n, f->l, 0, to, bytes))
        fail_msg("get: %s", tarn_last_error());
    assert_memory_equal(f->n->pool.base, to, bytes);
    commit(f->n, 0);
}

/* A private and a shared read-only mapping of a file. Puts at odd offsets work. A get is refused and changes
 * nothing. */
static void puts_from_a_file_mapped_for_reading_work(void **state)
{
    (void)state;
    struct fixture f = begin();
    int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
    char *rw = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(rw != MAP_FAILED);
    fill(rw, BYTES, 5);
    for (int shared = 0; shared < 2; shared++) {
        char *file = mmap(NULL, BYTES, PROT_READ, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        assert_true(file != MAP_FAILED);
        puts_from(&f, file, BYTES);
        puts_from(&f, file + 12345, BYTES - 54321);
        commit(f.n, 0);
        assert_int_equal(get_bytes(f.n, f.l, 0, file, BYTES), TARN_E_INVALID);
        commit(f.n, 0);
        assert_memory_equal(file, rw, BYTES);
        int rc = f.n->ops->map(f.n->local, file, BYTES); /* depends on the kernel */
        print_message("           %s mapping is %s\n", shared ? "shared" : "private",
                      rc ? tarn_last_error() : "registered");
        puts_from(&f, file, BYTES);
        if (rc == 0)
            assert_int_equal(f.n->ops->unmap(f.n->local, file, BYTES), 0);
        munmap(file, BYTES);
    }
    munmap(rw, BYTES);
    close(fd);
    end(&f);
}

static void huge_pages(void **state)
{
    (void)state;
    struct fixture f = begin();
    char *m = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (m == MAP_FAILED) {
        end(&f);
        harness_skip("hugepages", "there are none: sysctl vm.nr_hugepages=2");
    }
    for (int registered = 0; registered < 2; registered++) {
        if (registered)
            assert_int_equal(f.n->ops->map(f.n->local, m, BYTES), 0);
        fill(m, BYTES, 3);
        puts_from(&f, m, BYTES);
        gets_into(&f, m + 77, BYTES - 100, 4);
    }
    assert_int_equal(f.n->ops->unmap(f.n->local, m, BYTES), 0);
    munmap(m, BYTES);
    end(&f);
}

/* A child that wrote to its copy of the memory is alive, and later has ended. */
static void registered_memory_stays_with_the_parent(void **state)
{
    (void)state;
    struct fixture f = begin();
    char *m = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int to_child[2], from_child[2];
    char byte = 0;
    assert_true(m != MAP_FAILED && pipe(to_child) == 0 && pipe(from_child) == 0);
    fill(m, BYTES, 1);
    assert_int_equal(f.n->ops->map(f.n->local, m, BYTES), 0);
    puts_from(&f, m, BYTES);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        memset(m, 0x11, BYTES);
        bool told = write(from_child[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1;
        _exit(told && m[0] == 0x11 && m[BYTES - 1] == 0x11 ? 0 : 1);
    }
    assert_int_equal(read(from_child[0], &byte, 1), 1);
    fill(m, BYTES, 2);
    puts_from(&f, m, BYTES);
    gets_into(&f, m, BYTES, 3);
    assert_int_equal(write(to_child[1], &byte, 1), 1);
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    gets_into(&f, m, BYTES, 4);
    assert_int_equal(f.n->ops->unmap(f.n->local, m, BYTES), 0);
    munmap(m, BYTES);
    for (int i = 0; i < 2; i++) {
        close(to_child[i]);
        close(from_child[i]);
    }
    end(&f);
}

static int note_rdma(void *arg, const char *name, const char *why)
{
    if (strcmp(name, "rdma") == 0)
        snprintf(arg, 256, "%s", why ? why : "usable");
    return 0;
}

/* What `tarn info` and `tarn doctor` report about the transport. */
static void only_devices_named_in_the_environment_are_usable(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"rxe0", "usable"},
                                           {"rxe0:1@0", "usable"},
                                           {"rxe9", "\"rxe9\": there is none of this name"},
                                           {"rxe0,rxe9", "\"rxe9\": there is none of this name"},
                                           {"rxe0:2", "\"rxe0\": no active port"},
                                           {"rxe0@200", "no active port with that GID"}};
    char text[256];
    struct fixture f = begin();
    end(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("TARN_RDMA_DEVICES", cases[i][0], 1);
        text[0] = '\0';
        tarn_transports(note_rdma, text);
        if (!strstr(text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], text);
    }
    unsetenv("TARN_RDMA_DEVICES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_from_a_file_mapped_for_reading_work),
        cmocka_unit_test(huge_pages),
        cmocka_unit_test(registered_memory_stays_with_the_parent),
        cmocka_unit_test(only_devices_named_in_the_environment_are_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
