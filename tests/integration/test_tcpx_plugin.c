/* SPDX-License-Identifier: Apache-2.0 */
/* Finding, checking and starting network plugins, their environment, and their log output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/tcpx/child.h"
#include "tests/tcpx/counters.h"
#include "tests/transports.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

#define COUNT(a_) (sizeof(a_) / sizeof *(a_))

/* --- a logger that keeps its lines -------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    unsigned lines;
    char text[16384];
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&heard.lock);
    heard.lines++;
    size_t at = strlen(heard.text);
    snprintf(heard.text + at, sizeof(heard.text) - at, "%s\n", line);
    pthread_mutex_unlock(&heard.lock);
}

static const struct tarn_logger logger = {.level = TARN_LOG_DEBUG, .fn = hear};

static void forget(void)
{
    heard.lines = 0;
    heard.text[0] = '\0';
}

/* --- opening in a process of its own ------------------------------------------------------------ */

struct attempt {
    const char *plugin; /* a name for child_plugin(), or a path with a slash */
    const char *env[8]; /* name, value, ...; "-": unset */
    int (*body)(const struct attempt *a, struct tarn_tcpx_plugin *p);
    int expect; /* the result of opening */
};

static const char *path_of(const struct attempt *a)
{
    return strchr(a->plugin, '/') ? a->plugin : child_plugin(a->plugin);
}

static int attempt_in_child(void *arg)
{
    const struct attempt *a = arg;
    struct tarn_tcpx_plugin *p = NULL;
    for (size_t i = 0; i + 1 < COUNT(a->env) && a->env[i]; i += 2)
        if (strcmp(a->env[i + 1], "-") == 0)
            unsetenv(a->env[i]);
        else
            setenv(a->env[i], a->env[i + 1], 1);
    int rc = tarn_tcpx_plugin_open(path_of(a), &logger, &p);
    printf("%s: %s\n", tarn_error_name(rc), rc ? tarn_last_error() : "");
    CHECK(rc == a->expect);
    CHECK((rc == 0) == (p != NULL));
    return a->body ? a->body(a, p) : 0;
}

/* Fails unless the output contains each of these words (NULL-ended). */
static void attempt(const struct attempt *a, ...)
{
    char out[8192];
    va_list words;
    int status = child_run(attempt_in_child, (void *)a, CHILD_SECONDS, out, sizeof(out));
    if (status)
        fail_msg("%s: status %d: %s", a->plugin, status, out);
    va_start(words, a);
    for (const char *word; (word = va_arg(words, const char *));)
        if (!strstr(out, word))
            fail_msg("%s: \"%s\" is not in: %s", a->plugin, word, out);
    va_end(words);
}

/* --- what is not a plugin ----------------------------------------------------------------------- */

static void a_missing_file_is_reported(void **state)
{
    const struct attempt a = {.plugin = "/nowhere/libtcpx.so", .expect = TARN_E_CONFIG};
    (void)state;
    attempt(&a, "/nowhere/libtcpx.so", "no such file", "tcpx-plugin", NULL);
}

static void a_file_that_is_no_library_is_reported(void **state)
{
    char path[] = "/tmp/tarn-tcpx-XXXXXX";
    const char text[] =
        "not a library at all, and longer than the header of one would be, which is 64 bytes\n";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text)), sizeof(text));
    close(fd);
    const struct attempt a = {.plugin = path, .expect = TARN_E_CONFIG};
    attempt(&a, path, "ELF", "tcpx-plugin", NULL);
    unlink(path);
}

static void a_library_without_the_symbols_is_reported(void **state)
{
    const struct attempt a = {.plugin = "bad-1", .expect = TARN_E_VERSION};
    (void)state;
    attempt(&a, "libtcpx-bad-1.so", "ncclNetPlugin_v7", "install", NULL);
}

static void a_table_with_a_hole_is_reported(void **state)
{
    const struct attempt a = {.plugin = "bad-2", .expect = TARN_E_VERSION};
    (void)state;
    attempt(&a, "libtcpx-bad-2.so", "isend is NULL in its table of version 7, behind init()", NULL);
}

/* This plugin would end the process in init(). */
static void a_driver_that_does_not_start_is_reported(void **state)
{
    const struct attempt a = {
        .plugin = "bad-3", .env = {"FAKE_CUDA_INIT", "100"}, .expect = TARN_E_UNAVAILABLE};
    (void)state;
    attempt(&a, "libtcpx-bad-3.so", "cuInit gave 100", "nvidia-smi", NULL);
    const struct attempt starts = {.plugin = "bad-3", .expect = TARN_E_UNAVAILABLE};
    attempt(&starts, "no device", NULL);
}

/* --- the usual places --------------------------------------------------------------------------- */

struct place {
    const char *files[3];
    const char *nccl; /* NCCL_NET_PLUGIN; %s: the folder */
    bool meant;       /* a setting selects TCPX */
    const char *found, *says;
};

static const struct place places[] = {
    {{"libnccl-net-tcpx.so"}, NULL, false, "libnccl-net-tcpx.so", NULL},
    {{"libnccl-net-tcpx.so", "libnccl-net.so"}, NULL, true, "libnccl-net-tcpx.so", NULL},
    {{"libnccl-net.so"}, NULL, true, "libnccl-net.so", NULL},
    {{"libnccl-net-other.so", "libnccl-net-tcpx.so"}, "other", true, "libnccl-net-other.so", NULL},
    {{"libnccl-net-other.so", "libnccl-net-tcpx.so"}, "other", false, "libnccl-net-tcpx.so", NULL},
    {{"libother.so"}, "libother.so", true, "libother.so", NULL},
    {{"libother.so"}, "%s/libother.so", true, "libother.so", NULL},
    {{"libnccl-net.so"}, "none", true, NULL, "none of libnccl-net-tcpx.so"},
    {{"libnccl-net.so"}, "other", true, NULL, "none of libnccl-net-tcpx.so"},
    /* It may belong to another fabric. */
    {{"libnccl-net.so"}, NULL, false, NULL, "libnccl-net.so is there, but neither"},
    {{"libnccl-net-other.so"}, "other", false, NULL, "libnccl-net-other.so is there, but neither"},
    {{NULL}, NULL, true, NULL, "/var/lib/tcpx/lib64/libnccl-net.so: install"},
};

struct placed {
    const char *folder;
    const struct place *place;
};

/* The loader reads LD_LIBRARY_PATH when a program starts, so this program starts itself again (see
 * main()). */
static int start_again(void *arg)
{
    const struct placed *p = arg;
    char nccl[128];
    setenv("LD_LIBRARY_PATH", p->folder, 1);
    if (p->place->nccl) {
        snprintf(nccl, sizeof(nccl), "%s%s", p->place->nccl[0] == '%' ? p->folder : "",
                 p->place->nccl + (p->place->nccl[0] == '%' ? 2 : 0));
        setenv("NCCL_NET_PLUGIN", nccl, 1);
    }
    if (p->place->meant)
        setenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "eth1", 1);
    execl("/proc/self/exe", "test_tcpx_plugin", "open", NULL);
    return CHILD_FAILED;
}

/* Whether tcpx is used, and what loads it. */
static int open_usual(void)
{
    struct tarn_tcpx_plugin *p;
    int rc = find_transport("tcpx")->probe();
    printf("probe %d %s\n", rc, rc ? tarn_last_error() : "");
    rc = tarn_tcpx_plugin_open(NULL, NULL, &p);
    printf("open %d %s\n", rc, rc ? tarn_last_error() : p->path);
    fflush(stdout);
    _exit(0);
}

static void look_for(const char *folder, const char *target, const struct place *place)
{
    char path[PATH_MAX], awaited[PATH_MAX + 64], out[4096];
    for (int i = 0; i < 3 && place->files[i]; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, place->files[i]);
        assert_int_equal(symlink(target, path), 0);
    }
    assert_int_equal(child_run(start_again, &(struct placed){folder, place}, CHILD_SECONDS, out, sizeof(out)),
                     0);
    for (int i = 0; i < 3 && place->files[i]; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, place->files[i]);
        unlink(path);
    }
    if (place->found)
        snprintf(awaited, sizeof(awaited), "probe 0 \nopen 0 %s/%s\n", folder, place->found);
    else
        snprintf(awaited, sizeof(awaited), "probe %d tcpx plugin: ", TARN_E_UNAVAILABLE);
    const char *opened = strstr(out, "\nopen ");
    if (!strstr(out, awaited) || !opened ||
        (place->says && !(strstr(out, place->says) && strstr(opened, place->says))))
        fail_msg("place %d: \"%s\"%s%s is not in: %s", (int)(place - places), awaited,
                 place->says ? " with " : "", place->says ? place->says : "", out);
}

static void the_probe_and_the_loader_look_in_the_same_places(void **state)
{
    char folder[] = "/tmp/tarn-tcpx-XXXXXX", target[PATH_MAX];
    (void)state;
    if (access("/usr/local/tcpx/lib64/libnccl-net.so", F_OK) == 0 || access("/run/tcpx", F_OK) == 0 ||
        access("/var/lib/tcpx/lib64/libnccl-net.so", F_OK) == 0 || dlopen("libnccl-net.so", RTLD_LAZY)) {
        print_message("SKIP: this machine has a network plugin of its own\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    assert_non_null(realpath(child_plugin("fixture-v7"), target));
    for (size_t i = 0; i < COUNT(places); i++)
        look_for(folder, target, &places[i]);
    rmdir(folder);
}

/* --- what is a plugin --------------------------------------------------------------------------- */

static int two_devices(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    bool unpacks = !strstr(a->plugin, "v6") && !strstr(a->env[1], "plain");
    CHECK(p->version == a->plugin[strlen(a->plugin) - 1] - '0');
    CHECK(p->ndevices == 2);
    for (int i = 0; i < 2; i++) {
        const struct tarn_tcpx_device *d = &p->devices[i];
        CHECK(d->mode == (unpacks ? TARN_TCPX_UNPACK : TARN_TCPX_PLAIN));
        CHECK(d->host && d->gpu == unpacks);
        CHECK(d->speed_mbit == 200000);
        CHECK(strcmp(d->name, i ? "eth2" : "eth1") == 0);
        CHECK(strcmp(d->pci, i ? "/sys/devices/pci0000:00/0000:00:02.0"
                               : "/sys/devices/pci0000:00/0000:00:01.0") == 0);
    }
    CHECK(strstr(p->path, a->plugin));
    CHECK(strstr(heard.text, "fixture of ABI v"));
    CHECK(p->chunk_bytes == TARN_TCPX_CHUNK);
    return 0;
}

/* Its name and init() are there before init() runs. */
static void a_table_that_init_fills_is_read_again(void **state)
{
    static const char *const names[] = {"fixture-v6", "fixture-v7", "fixture-v8"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct attempt a = {names[i], {"TCPX_FIXTURE", "devices=2,late_table=1"}, two_devices, 0};
        attempt(&a, NULL);
    }
}

static void all_versions_of_the_abi_open(void **state)
{
    static const char *const names[] = {"fixture-v6", "fixture-v7", "fixture-v8"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct attempt unpack = {names[i], {"TCPX_FIXTURE", "devices=2"}, two_devices, 0};
        const struct attempt plain = {names[i], {"TCPX_FIXTURE", "devices=2,plain=1"}, two_devices, 0};
        attempt(&unpack, NULL);
        attempt(&plain, NULL);
    }
}

static int no_gpu_memory(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    (void)a;
    CHECK(p->devices[0].host && !p->devices[0].gpu && p->devices[0].pci[0] == '\0');
    return 0;
}

static void without_a_pci_path_gpu_memory_is_not_offered(void **state)
{
    const struct attempt a = {"fixture-v7", {"TCPX_FIXTURE", "pci=0"}, no_gpu_memory, 0};
    (void)state;
    attempt(&a, NULL);
}

/* Looking for a plugin does not start it, and does not tell whether it would start. */
static int found_in_child(void *arg)
{
    const struct attempt *a = arg;
    const struct tarn_tcpx_plugin *found = NULL;
    struct tarn_tcpx_plugin *p = NULL;
    CHECK(tarn_tcpx_log_add(&logger) == 0);
    for (int i = 0; i < 2; i++) {
        setenv("TCPX_FIXTURE", "init=2", 1);
        CHECK(tarn_tcpx_plugin_find(path_of(a), &found) == 0);
        CHECK(heard.lines == 0 && found->ndevices == 0);
        CHECK(strstr(found->path, a->plugin) && found->name[0]);
        CHECK(found->version == a->plugin[strlen(a->plugin) - 1] - '0');
        CHECK(found->gpudirect == (found->version == 7));
    }
    unsetenv("TCPX_FIXTURE");
    CHECK(tarn_tcpx_plugin_open(path_of(a), &logger, &p) == 0);
    CHECK(p == found && p->ndevices == 1);
    CHECK(tarn_tcpx_plugin_find(path_of(a), &found) == 0);
    CHECK(p == found && p->ndevices == 1);
    CHECK(tarn_tcpx_plugin_find(child_plugin("bad-1"), &found) == TARN_E_VERSION);
    CHECK(tarn_tcpx_plugin_find("/nowhere/libtcpx.so", &found) == TARN_E_CONFIG);
    return 0;
}

static void finding_a_plugin_does_not_start_it(void **state)
{
    static const char *const names[] = {"fixture-v6", "fixture-v7", "fixture-v8"};
    char out[8192];
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct attempt a = {.plugin = names[i]};
        if (child_run(found_in_child, (void *)&a, CHILD_SECONDS, out, sizeof(out)))
            fail_msg("%s: %s", names[i], out);
    }
}

static int open_again(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    struct tarn_tcpx_plugin *again = NULL;
    tarn_tcpx_plugin_close(&logger);
    for (int i = 0; i < 3; i++) {
        int rc = tarn_tcpx_plugin_open(path_of(a), &logger, &again);
        printf("again %s: %s\n", tarn_error_name(rc), rc ? tarn_last_error() : "");
        CHECK(rc == a->expect);
        CHECK(again == p);
    }
    CHECK(!strstr(heard.text, "init twice"));
    return 0;
}

static void *open_one_of_many(void *arg)
{
    const struct tarn_tcpx_plugin *first = arg;
    struct tarn_tcpx_plugin *p = NULL;
    return tarn_tcpx_plugin_open(first->path, &logger, &p) ? NULL : p;
}

static int opened_by_threads(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    pthread_t threads[8];
    void *got;
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, open_one_of_many, p) == 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        CHECK(pthread_join(threads[i], &got) == 0);
        CHECK(got == p);
    }
    return open_again(a, p);
}

static void a_plugin_starts_once_per_process(void **state)
{
    const struct attempt a = {"fixture-v7", {NULL}, opened_by_threads, 0};
    (void)state;
    attempt(&a, "again OK", NULL);
}

static void a_failed_start_is_not_repeated(void **state)
{
    const struct attempt a = {"fixture-v7", {"TCPX_FIXTURE", "init=2"}, open_again, TARN_E_UNAVAILABLE};
    (void)state;
    attempt(&a, "UNAVAILABLE: tcpx plugin", "init gave 2", "again UNAVAILABLE: tcpx plugin", "new process",
            NULL);
}

static void a_missing_device_is_reported(void **state)
{
    const struct attempt a = {"fixture-v7",
                              {"TCPX_FIXTURE", "devices=0", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "eth7"},
                              open_again,
                              TARN_E_UNAVAILABLE};
    (void)state;
    attempt(&a, "no device", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "eth7", NULL);
}

static void another_version_of_unpacking_is_reported(void **state)
{
    static const char *const names[] = {"fixture-v7", "fixture-v8"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct attempt a = {names[i], {"TCPX_FIXTURE", "version=8"}, NULL, TARN_E_VERSION};
        attempt(&a, "type 1 version 8", NULL);
    }
}

static int large_memory(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    uint8_t handle[TARN_TCPX_HANDLE];
    void *listening, *comm = NULL, *mr;
    CHECK(tarn_tcpx_listen(p, 0, handle, &listening) == 0);
    while (!comm)
        CHECK(tarn_tcpx_connect(p, 0, handle, &comm) == 0);
    int rc = tarn_tcpx_reg(p, comm, (void *)4096, 1ull << 31, TARN_TCPX_HOST, &mr);
    CHECK(rc == (strcmp(a->plugin, "fixture-v8") == 0 ? 0 : TARN_E_INVALID));
    CHECK(rc == 0 || strstr(tarn_last_error(), "in parts"));
    CHECK(tarn_tcpx_reg(p, comm, (void *)4096, (1ull << 31) - 1, TARN_TCPX_HOST, &mr) == 0);
    return 0;
}

static void sizes_keep_to_the_abi(void **state)
{
    static const char *const names[] = {"fixture-v6", "fixture-v7", "fixture-v8"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct attempt a = {names[i], {NULL}, large_memory, 0};
        attempt(&a, NULL);
    }
}

/* --- environment -------------------------------------------------------------------------------- */

/* The refusal comes before init(), so the same process can continue with a better value. */
static int mend(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    CHECK(!strstr(heard.text, "fixture of ABI"));
    unsetenv(a->env[0]);
    CHECK(tarn_tcpx_plugin_open(path_of(a), &logger, &p) == 0);
    return 0;
}

static void values_that_hang_the_plugin_are_refused(void **state)
{
    static const char *const bad[][2] = {
        {"NCCL_DYNAMIC_CHUNK_SIZE", "0"},
        {"NCCL_DYNAMIC_CHUNK_SIZE", "-1"},
        {"NCCL_DYNAMIC_CHUNK_SIZE", ""},
        {"NCCL_DYNAMIC_CHUNK_SIZE", "512K"},
        {"NCCL_DYNAMIC_CHUNK_SIZE", "4095"},
        {"NCCL_DYNAMIC_CHUNK_SIZE", "99999999999999999999"},
        {"NCCL_SOCKET_NTHREADS", "0"},
        {"NCCL_SOCKET_NTHREADS", "17"},
        {"NCCL_NSOCKS_PERTHREAD", "0"},
        {"NCCL_NSOCKS_PERTHREAD", "nine"},
        {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "60000000"},
        {"NCCL_GPUDIRECTTCPX_FORCE_ACK", "yes"},
        {"NCCL_GPUDIRECTTCPX_RECV_SYNC", "2"},
        {"NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT", "true"},
        {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "run/tcpx"},
        {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX",
         "/run/tcpx/a/folder/so/deep/that/no/socket/in/it/could/have/a/name/short/enough"},
    };
    char shown[160];
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        const struct attempt a = {"fixture-v7", {bad[i][0], bad[i][1]}, mend, TARN_E_CONFIG};
        snprintf(shown, sizeof(shown), "%s=%.16s", bad[i][0], bad[i][1]);
        attempt(&a, shown, ": not ", strstr(bad[i][0], "PREFIX") ? "name the folder" : "set it to", NULL);
    }
}

static int shows_environment(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    extern char **environ;
    (void)a;
    for (char **e = environ; *e; e++)
        if (strncmp(*e, "NCCL_", 5) == 0)
            printf("%s.\n", *e);
    printf("chunk %u.\n", p->chunk_bytes);
    return 0;
}

static int speaks_of_sockets(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    printf("%s\n", heard.text);
    return shows_environment(a, p);
}

static void unset_variables_get_a_value(void **state)
{
    const struct attempt a = {"fixture-v7", {NULL}, speaks_of_sockets, 0};
    (void)state;
    attempt(&a, "NCCL_DYNAMIC_CHUNK_SIZE=524288.", "NCCL_SOCKET_NTHREADS=1.", "NCCL_NSOCKS_PERTHREAD=4.",
            "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx.", "STEERING_WAIT_MICROS=50000.",
            "NCCL_GPUDIRECTTCPX_FORCE_ACK=0.", "NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT=1.",
            "chunk 524288.", "v7, 4 sockets", NULL);
}

static void set_variables_keep_their_values(void **state)
{
    const struct attempt a = {"fixture-v7",
                              {"NCCL_DYNAMIC_CHUNK_SIZE", "65536", "NCCL_NSOCKS_PERTHREAD", "2",
                               "NCCL_GPUDIRECTTCPX_FORCE_ACK", "1"},
                              speaks_of_sockets,
                              0};
    const struct attempt large = {"fixture-v7", {"NCCL_DYNAMIC_CHUNK_SIZE", "4194304"}, shows_environment, 0};
    (void)state;
    attempt(&a, "NCCL_DYNAMIC_CHUNK_SIZE=65536.", "chunk 65536.", "NCCL_NSOCKS_PERTHREAD=2.",
            "NCCL_GPUDIRECTTCPX_FORCE_ACK=1.", "v7, 2 sockets", NULL);
    attempt(&large, "NCCL_DYNAMIC_CHUNK_SIZE=4194304.", "chunk 524288.", NULL);
}

static int leaves_others_alone(const struct attempt *a, struct tarn_tcpx_plugin *p)
{
    (void)a, (void)p;
    CHECK(!getenv("NCCL_SOCKET_NTHREADS") && !getenv("NCCL_NSOCKS_PERTHREAD"));
    CHECK(getenv("NCCL_DYNAMIC_CHUNK_SIZE"));
    return 0;
}

/* NCCL in the same process would use these variables, too. */
static void shared_names_are_set_for_tcpx_only(void **state)
{
    const struct attempt a = {"fixture-v6", {NULL}, leaves_others_alone, 0};
    (void)state;
    attempt(&a, NULL);
}

static void keep_environment(char *text, size_t bytes)
{
    extern char **environ;
    size_t at = 0;
    for (char **e = environ; *e; e++)
        at += (size_t)snprintf(text + at, bytes - at, "%s\n", *e);
    CHECK(at < bytes);
}

struct early {
    const char *plugin;
    bool meant, shared; /* shared: is set early */
};

/* Other threads may already run when the plugin is started. */
static int prepares(void *arg)
{
    static char before[65536], after[65536];
    const struct early *a = arg;
    const struct tarn_transport_ops *tcpx = find_transport("tcpx");
    struct tarn_local *local;
    struct tarn_tcpx_plugin *p;
    CHECK(setenv("TARN_TCPX_PLUGIN", child_plugin(a->plugin), 1) == 0);
    if (a->meant)
        CHECK(setenv("NCCL_GPUDIRECTTCPX_CTRL_DEV", "lo", 1) == 0);
    CHECK(tcpx->local_open(NULL, &local) == 0);
    CHECK(getenv("NCCL_DYNAMIC_CHUNK_SIZE") && getenv("NCCL_GPUDIRECTTCPX_FORCE_ACK"));
    CHECK(!getenv("NCCL_SOCKET_NTHREADS") == !a->shared && !getenv("NCCL_NSOCKS_PERTHREAD") == !a->shared);
    keep_environment(before, sizeof(before));
    CHECK(tarn_tcpx_plugin_open(child_plugin(a->plugin), NULL, &p) == 0);
    keep_environment(after, sizeof(after));
    CHECK((strcmp(before, after) == 0) == (a->shared || !p->gpudirect));
    tcpx->local_close(local);
    return 0;
}

static void opening_a_client_sets_the_plugins_variables(void **state)
{
    static const struct early cases[] = {
        {"fixture-v7", true, true}, {"fixture-v7", false, false}, {"fixture-v6", false, false}};
    char out[8192];
    (void)state;
    if (access("/run/tcpx", F_OK) == 0)
        skip();
    for (size_t i = 0; i < COUNT(cases); i++)
        if (child_run(prepares, (void *)&cases[i], CHILD_SECONDS, out, sizeof(out)))
            fail_msg("case %zu: %s", i, out);
}

/* A wrong value is reported by the start, not here. */
static int prepares_nothing(void *arg)
{
    struct tarn_tcpx_plugin *p;
    (void)arg;
    CHECK(setenv("NCCL_DYNAMIC_CHUNK_SIZE", "0", 1) == 0);
    tarn_tcpx_plugin_prepare(child_plugin("fixture-v7"));
    CHECK(!getenv("NCCL_GPUDIRECTTCPX_FORCE_ACK"));
    CHECK(tarn_tcpx_plugin_open(child_plugin("fixture-v7"), NULL, &p) == TARN_E_CONFIG);
    return 0;
}

static void a_wrong_value_is_not_reported_before_it_is_used(void **state)
{
    char out[8192];
    (void)state;
    if (child_run(prepares_nothing, NULL, CHILD_SECONDS, out, sizeof(out)))
        fail_msg("%s", out);
}

/* --- logging ------------------------------------------------------------------------------------ */

static void a_window_lets_some_lines_through(void **state)
{
    struct tarn_tcpx_limit l = {0};
    uint64_t left_out = 77, window = TARN_TCPX_LOG_WINDOW_MS * TARN_NS_PER_MS, start = 1000;
    (void)state;
    for (uint64_t i = 0; i < TARN_TCPX_LOG_BURST; i++) {
        assert_true(tarn_tcpx_limit_pass(&l, start + i, &left_out));
        assert_int_equal(left_out, 0);
    }
    for (uint64_t i = 0; i < 1000; i++)
        assert_false(tarn_tcpx_limit_pass(&l, start + window - 1, &left_out));
    assert_true(tarn_tcpx_limit_pass(&l, start + window, &left_out));
    assert_int_equal(left_out, 1000);
    assert_true(tarn_tcpx_limit_pass(&l, start + window + 1, &left_out));
    assert_int_equal(left_out, 0);
}

static void *flood(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1300000; i++)
        tarn_tcpx_log_line(TARN_TCPX_LOG_WARN, 0, "net.cc", 1, "receive %d into host memory", i);
    return NULL;
}

/* As many lines as a minute of receives into host memory logs, from two threads. */
static void a_flood_becomes_a_few_lines_and_a_count(void **state)
{
    pthread_t thread;
    unsigned long long left_out = 0;
    (void)state;
    forget();
    assert_int_equal(tarn_tcpx_log_add(&logger), 0);
    assert_int_equal(pthread_create(&thread, NULL, flood, NULL), 0);
    flood(NULL);
    pthread_join(thread, NULL);
    unsigned flooded = heard.lines;
    tarn_tcpx_log_line(TARN_TCPX_LOG_ABORT, 0, "net.cc", 2, "a word of another \"place\"");
    assert_int_equal(heard.lines, flooded + 1);
    assert_non_null(
        strstr(heard.text, "level=error at=tcpx_plugin msg=\"a word of another 'place'\" where=net.cc:2"));
    tarn_tcpx_log_remove(&logger);
    assert_true(heard.lines <= 100); /* a slow machine sees several windows */

    for (const char *at = heard.text; (at = strstr(at, "left_out=")); at += 9)
        left_out += strtoull(at + 9, NULL, 10);
    assert_int_equal(left_out + flooded, 2600000);

    /* The count is reported once. */
    forget();
    assert_int_equal(tarn_tcpx_log_add(&logger), 0);
    tarn_tcpx_log_remove(&logger);
    assert_int_equal(heard.lines, 0);
}

static void lines_go_to_the_present_loggers(void **state)
{
    static const struct tarn_logger quiet = {.level = TARN_LOG_ERROR, .fn = hear};
    (void)state;
    forget();
    tarn_tcpx_log_line(TARN_TCPX_LOG_WARN, 0, "a.cc", 10, "no logger");
    assert_int_equal(heard.lines, 0);
    assert_int_equal(tarn_tcpx_log_add(NULL), 0);
    assert_int_equal(tarn_tcpx_log_add(&quiet), 0);
    assert_int_equal(tarn_tcpx_log_add(&logger), 0);
    tarn_tcpx_log_line(TARN_TCPX_LOG_WARN, 0, "a.cc", 20, "below the level of the first");
    assert_int_equal(heard.lines, 0);
    tarn_tcpx_log_remove(&quiet);
    tarn_tcpx_log_line(TARN_TCPX_LOG_INFO, 0, NULL, 30, "heard %d", 1);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.text, "level=debug at=tcpx_plugin msg=\"heard 1\""));
    tarn_tcpx_log_remove(&logger);
    tarn_tcpx_log_line(TARN_TCPX_LOG_WARN, 0, "a.cc", 40, "no logger again");
    tarn_tcpx_log_remove(&logger);
    assert_int_equal(heard.lines, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_file_is_reported),
        cmocka_unit_test(a_file_that_is_no_library_is_reported),
        cmocka_unit_test(a_library_without_the_symbols_is_reported),
        cmocka_unit_test(a_table_with_a_hole_is_reported),
        cmocka_unit_test(a_driver_that_does_not_start_is_reported),
        cmocka_unit_test(the_probe_and_the_loader_look_in_the_same_places),
        cmocka_unit_test(a_table_that_init_fills_is_read_again),
        cmocka_unit_test(all_versions_of_the_abi_open),
        cmocka_unit_test(without_a_pci_path_gpu_memory_is_not_offered),
        cmocka_unit_test(finding_a_plugin_does_not_start_it),
        cmocka_unit_test(a_plugin_starts_once_per_process),
        cmocka_unit_test(a_failed_start_is_not_repeated),
        cmocka_unit_test(a_missing_device_is_reported),
        cmocka_unit_test(another_version_of_unpacking_is_reported),
        cmocka_unit_test(sizes_keep_to_the_abi),
        cmocka_unit_test(values_that_hang_the_plugin_are_refused),
        cmocka_unit_test(unset_variables_get_a_value),
        cmocka_unit_test(set_variables_keep_their_values),
        cmocka_unit_test(shared_names_are_set_for_tcpx_only),
        cmocka_unit_test(opening_a_client_sets_the_plugins_variables),
        cmocka_unit_test(a_wrong_value_is_not_reported_before_it_is_used),
        cmocka_unit_test(a_window_lets_some_lines_through),
        cmocka_unit_test(a_flood_becomes_a_few_lines_and_a_count),
        cmocka_unit_test(lines_go_to_the_present_loggers),
    };
    if (argc == 2 && strcmp(argv[1], "open") == 0)
        return open_usual();
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    /* These variables must not come from the environment of the run. */
    static const char *const names[] = {"NCCL_DYNAMIC_CHUNK_SIZE",
                                        "NCCL_SOCKET_NTHREADS",
                                        "NCCL_NSOCKS_PERTHREAD",
                                        "TCPX_FIXTURE",
                                        "TCPX_FIXTURE_COUNTERS",
                                        "NCCL_NET_PLUGIN",
                                        "NCCL_GPUDIRECTTCPX_CTRL_DEV",
                                        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME",
                                        "TARN_TCPX_PLUGIN"};
    for (size_t i = 0; i < COUNT(names); i++)
        unsetenv(names[i]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
