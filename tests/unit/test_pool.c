/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of pools: there is enough of it, only used memory is taken, it is faulted in, and it is sealed. */
#include <dirent.h>
#include <errno.h>
#include <linux/mman.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "server/store/pool.h"
#include "server/store/populate.h"
#include "tests/unit/store_fixture.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER
#endif
#endif

/* --- memory ------------------------------------------------------------------------------------- */

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_memory_is_checked(void **state)
{
    (void)state;
    char root[] = "/tmp/tarn-test-store-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    write_file(root, "/proc/meminfo",
               "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\nHugePages_Total:      10\n"
               "HugePages_Free:        8\nHugePages_Rsvd:        3\nHugepagesize:       2048 kB\n");
    assert_int_equal(tarn_pool_check_memory(root, "p", 4096 * MIB), 0);
    assert_int_equal(tarn_pool_check_memory(root, "p", 4097 * MIB), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "MemAvailable"));
    assert_int_equal(tarn_pool_check_huge(root, "p", 5 * 2 * MIB), 0);
    assert_int_equal(tarn_pool_check_huge(root, "p", 6 * 2 * MIB), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "vm.nr_hugepages=11"));
    assert_int_equal(tarn_pool_check_huge(root, "p", 3 * MIB), TARN_E_CONFIG);

    write_file(root, "/proc/self/cgroup", "0::/a/b\n"); /* v2: the parent's limit counts, but not its cache */
    write_file(root, "/sys/fs/cgroup/a/memory.max", "1073741824\n");
    write_file(root, "/sys/fs/cgroup/a/memory.current", "536870912\n");
    write_file(root, "/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 268435456\nactive_file 0\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(tarn_pool_check_memory(root, "p", 768 * MIB), 0);
    assert_int_equal(tarn_pool_check_memory(root, "p", 769 * MIB), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "memory.max"));

    write_file(root, "/proc/self/cgroup", "9:name=systemd:/\n4:memory:/c\n"); /* v1 */
    write_file(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(root, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "104857600\n");
    write_file(root, "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "4194304\n");
    assert_int_equal(tarn_pool_check_memory(root, "p", 96 * MIB), 0);
    assert_int_equal(tarn_pool_check_memory(root, "p", 97 * MIB), TARN_E_NO_MEMORY);
    assert_non_null(strstr(tarn_last_error(), "memory.limit_in_bytes"));
    snprintf(command, sizeof(command), "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

static uint64_t resident_bytes(void)
{
    unsigned long long total, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &total, &resident), 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Unused slots take no memory. */
static void test_idle_store_is_small(void **state)
{
    (void)state;
#ifdef THREAD_SANITIZER
    print_message("skipped: the thread sanitizer keeps books of mapped memory\n");
    skip();
#endif
    struct gone gone;
    uint64_t before = resident_bytes();
    struct tarn_store *s = one_pool(&gone, 64 * MIB, 1u << 28);
    put(s, "a", 4096);
    assert_true(resident_bytes() - before < 2 * MIB);
    tarn_store_free(s);
}

/* A client cannot shrink or grow the files that it holds, so no mapping of them ends in SIGBUS. */
static void test_pool_files_are_sealed(void **state)
{
    (void)state;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, MIB, 0);
    uint32_t n;
    const struct tarn_pool_memory *m = tarn_store_pools(s, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ftruncate(m->memfd, 0), -1);
    assert_int_equal(ftruncate(m->memfd, (off_t)(2 * MIB)), -1);
    assert_int_equal(ftruncate(m->gen_fd, 0), -1);
    assert_int_equal(ftruncate(m->touch_fd, 0), -1);
    tarn_store_free(s);
}

static size_t resident_pages(const struct tarn_pool_memory *m)
{
    size_t pages = m->bytes / (size_t)sysconf(_SC_PAGESIZE), n = 0;
    unsigned char *in = malloc(pages);
    assert_int_equal(mincore(m->base, m->bytes, in), 0);
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    free(in);
    return n;
}

/* A thread of lower priority would hold page locks while other threads run, and clients would wait for
 * them. */
static void assert_threads_have_own_priority(void)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *e; (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.')
            assert_int_equal(getpriority(PRIO_PROCESS, (id_t)atoi(e->d_name)), getpriority(PRIO_PROCESS, 0));
    closedir(tasks);
}

static void note_line(void *arg, enum tarn_log_level level, const char *line)
{
    (void)level;
    (void)line;
    assert_threads_have_own_priority();
    sem_post(arg);
}

static struct {
    bool refused; /* requests for huge pages fail */
    int asked;    /* number of such requests; the populate thread writes it */
} huge;

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (advice != MADV_COLLAPSE)
        return __real_madvise(at, bytes, advice);
    huge.asked++;
    errno = EINVAL;
    return huge.refused ? -1 : __real_madvise(at, bytes, advice);
}

/* All memory is faulted in, including an end smaller than a huge page. Written bytes are kept. The kernel is
 * asked once for the huge pages of a small pool: each request can stop the process on a busy host. */
static void memory_comes_in(void)
{
    sem_t logged;
    const struct tarn_logger log = {TARN_LOG_INFO, note_line, &logged};
    const uint64_t bytes = 6 * MIB + 12288, marks[] = {0, 2 * MIB - 1, 2 * MIB, 3 * MIB + 5, bytes - 1};
    struct timespec deadline;
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, bytes, 0);
    struct tarn_populate *p;
    uint32_t n;
    const struct tarn_pool_memory *m = tarn_store_pools(s, &n);
    uint8_t *base = m->base;
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        base[marks[i]] = (uint8_t)(i + 1);
    assert_true(resident_pages(m) < bytes / 4096);

    sem_init(&logged, 0, 0);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 30;
    assert_int_equal(tarn_populate_start(m, n, &log, &p), 0);
    assert_int_equal(sem_timedwait(&logged, &deadline), 0);
    assert_int_equal(tarn_populate_bytes(p, 0), bytes);
    assert_int_equal(resident_pages(m), bytes / 4096);
    tarn_populate_stop(p);
    assert_int_equal(huge.asked, 1);

    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += base[i];
    assert_int_equal(sum, 1 + 2 + 3 + 4 + 5);
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        assert_int_equal(base[marks[i]], i + 1);
    tarn_store_free(s);
}

static void test_a_thread_brings_the_memory_in(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        huge.refused = i == 1;
        huge.asked = 0;
        memory_comes_in();
    }
    huge.refused = false;
}

static void test_population_can_be_stopped(void **state)
{
    (void)state;
    static const struct tarn_logger quiet = {.level = TARN_LOG_ERROR};
    struct gone gone;
    struct tarn_store *s = one_pool(&gone, 512 * MIB, 0);
    struct tarn_populate *p;
    uint32_t n;
    const struct tarn_pool_memory *m = tarn_store_pools(s, &n);
    assert_int_equal(tarn_populate_start(m, n, &quiet, &p), 0);
    tarn_populate_stop(p);
    tarn_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_brings_the_memory_in),
        cmocka_unit_test(test_population_can_be_stopped),
        cmocka_unit_test(test_memory_is_checked),
        cmocka_unit_test(test_idle_store_is_small),
        cmocka_unit_test(test_pool_files_are_sealed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
