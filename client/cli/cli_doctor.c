/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn doctor: what this machine and its Redis offer, what of it is needed, and what to do where
 * something is missing. Fails only when something that is needed is missing; hardware that only some
 * transports use is optional.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli_doctor.h"
#include "metadata/redis.h" /* to ask the server about itself */
#include "transport/tcpx/plugin/tcpx_settings.h"

#define NODE_TIMEOUT_MS 2000

static const struct {
    const char *name;
    enum cli_colour colour;
} states[] = {{"ok", CLI_GREEN}, {"optional", CLI_YELLOW}, {"missing", CLI_RED}};

void doctor_check(struct doctor *d, const char *name, enum doctor_state state, const char *needed,
                  const char *remedy, const char *fmt, ...)
{
    char found[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(found, sizeof found, fmt, ap);
    va_end(ap);
    cli_cell(&d->table, "%s", name);
    cli_cell_in(&d->table, states[state].colour, "%s", states[state].name);
    cli_cell(&d->table, "%s", needed);
    cli_cell(&d->table, "%s", found);
    if (state != GOOD)
        tarn_buf_printf(state == MISSING ? &d->needed : &d->optional, "  %s: %s\n", name, remedy);
    json_array_append_new(d->checks, json_pack("{s:s, s:s, s:s, s:s, s:s?}", "name", name, "state",
                                               states[state].name, "needed", needed, "found", found, "remedy",
                                               state == GOOD ? NULL : remedy));
    d->missing += state == MISSING;
}

/* --- the machine -------------------------------------------------------------------------------- */

static void check_kernel(struct doctor *d)
{
    struct utsname u;
    int major = 0, minor = 0;

    if (uname(&u) != 0 || sscanf(u.release, "%d.%d", &major, &minor) != 2)
        snprintf(u.release, sizeof u.release, "unknown");
    doctor_check(d, "kernel", major > 5 || (major == 5 && minor >= 3) ? GOOD : MISSING, "5.3",
                 "tarnd watches its clients with pidfd_open(), which Linux has since 5.3: use a newer kernel",
                 "%s", u.release);
}

static void check_memfd(struct doctor *d)
{
    int fd = memfd_create("tarn-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool works = fd >= 0 && ftruncate(fd, 4096) == 0;

    doctor_check(d, "shared memory", works ? GOOD : MISSING, "memfd_create",
                 "pools are memfds: allow memfd_create in the container's seccomp profile",
                 works ? "works" : "refused: %m");
    if (fd >= 0)
        close(fd);
}

/* A line such as "MemAvailable:  123 kB" of /proc/meminfo, in bytes or as a count; 0 without it. */
static uint64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128], unit[8];
    unsigned long long value = 0, found = 0;
    size_t n = strlen(name);

    while (f && !found && fgets(line, sizeof line, f)) {
        if (strncmp(line, name, n) != 0 || line[n] != ':')
            continue;
        int fields = sscanf(line + n + 1, "%llu %7s", &value, unit);
        found = fields == 2 ? value * 1024 : value;
    }
    if (f)
        fclose(f);
    return found;
}

static void check_memory(struct doctor *d)
{
    uint64_t available = meminfo("MemAvailable"), huge = meminfo("HugePages_Total");
    uint64_t huge_free = meminfo("HugePages_Free"), huge_bytes = meminfo("Hugepagesize");
    struct statvfs s;
    char text[16], free_text[16], pages[48] = "none";

    tarn_size_format(available, text);
    doctor_check(d, "memory", available >= 256 << 20 ? GOOD : OPTIONAL, "256 MiB available",
                 "give tarnd smaller pools", "%s available", text);
    tarn_size_format(huge * huge_bytes, text);
    tarn_size_format(huge_free * huge_bytes, free_text);
    if (huge)
        snprintf(pages, sizeof pages, "%s, %s free", text, free_text);
    doctor_check(d, "huge pages", huge ? GOOD : OPTIONAL, "for speed",
                 "large pools have fewer TLB misses on huge pages: sysctl vm.nr_hugepages=N, N times 2 MiB",
                 "%s", pages);
    if (statvfs("/dev/shm", &s) != 0) {
        doctor_check(d, "/dev/shm", OPTIONAL, "by others",
                     "other programs' shared memory (NCCL, PyTorch) needs it: mount a tmpfs", "not there");
        return;
    }
    uint64_t shm = (uint64_t)s.f_blocks * s.f_frsize;
    tarn_size_format(shm, text);
    tarn_size_format((uint64_t)s.f_bavail * s.f_frsize, free_text);
    doctor_check(d, "/dev/shm", shm >= 64 << 20 ? GOOD : OPTIONAL, "by others",
                 "other programs' shared memory (NCCL, PyTorch) needs it, tarn's pools do not: mount -o "
                 "remount,size=4G "
                 "/dev/shm, or docker run --shm-size=4g",
                 "%s, %s free", text, free_text);
}

static void check_limits(struct doctor *d)
{
    struct rlimit lock = {0}, files = {0};
    char text[16];

    getrlimit(RLIMIT_MEMLOCK, &lock);
    getrlimit(RLIMIT_NOFILE, &files);
    tarn_size_format(lock.rlim_cur, text);
    doctor_check(
        d, "memlock limit", lock.rlim_cur == RLIM_INFINITY ? GOOD : OPTIONAL, "unlimited for RDMA",
        "RDMA and pinned GPU buffers lock memory: ulimit -l unlimited, or LimitMEMLOCK=infinity in the "
        "systemd unit",
        "%s", lock.rlim_cur == RLIM_INFINITY ? "unlimited" : text);
    doctor_check(d, "open files limit", files.rlim_cur >= 4096 ? GOOD : OPTIONAL, "4096 for many clients",
                 "a node needs a few descriptors a client: ulimit -n 65536, or LimitNOFILE=65536", "%llu",
                 (unsigned long long)files.rlim_cur);
}

/* --- devices ------------------------------------------------------------------------------------ */

/* Calls fn for each entry of a directory; returns how many there were. */
static int each_entry(const char *path, void (*fn)(struct tarn_buf *, const char *), struct tarn_buf *b)
{
    DIR *dir = opendir(path);
    int n = 0;

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        if (n++)
            tarn_buf_printf(b, ", ");
        fn(b, e->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static void add_gpu(struct tarn_buf *b, const char *name)
{
    char path[400], line[128] = "";

    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", name);
    FILE *f = fopen(path, "re");
    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    const char *model = strncmp(line, "Model:", 6) == 0 ? line + 6 + strspn(line + 6, " \t") : name;
    tarn_buf_printf(b, "%.*s", (int)strcspn(model, "\n"), model);
}

void doctor_gpus(struct doctor *d)
{
    struct tarn_buf gpus = {0};
    bool driver = access("/proc/driver/nvidia/version", R_OK) == 0;
    int n = each_entry("/proc/driver/nvidia/gpus", add_gpu, &gpus);
    bool nodes = access("/dev/nvidiactl", F_OK) == 0;

    if (n && nodes)
        doctor_check(d, "GPU", GOOD, "for GPU pools", "", "%s", gpus.failed ? "?" : gpus.data);
    else
        doctor_check(
            d, "GPU", OPTIONAL, "for GPU pools",
            driver ? "the driver is loaded, but this process does not see a device: docker run --gpus all"
                   : "only GPU pools and buffers use it: install the NVIDIA driver",
            "%s",
            driver  ? "driver without a device node"
            : nodes ? "device nodes without a driver"
                    : "none");
    tarn_buf_free(&gpus);
}

/* --- RDMA --------------------------------------------------------------------------------------- */

struct rdma_check {
    struct doctor *d;
    const char *why; /* tarn can use none; "" when it can */
};

static void check_port(void *arg, const struct cli_rdma_port *p)
{
    struct rdma_check *r = arg;
    char title[100], found[250];

    snprintf(title, sizeof title, "RDMA %s", p->name);
    cli_rdma_port_text(p, found, sizeof found);
    doctor_check(
        r->d, title, p->used ? GOOD : OPTIONAL, "for RDMA",
        !p->active
            ? "bring the link up: `ip link set IF up` on Ethernet; InfiniBand also needs a subnet manager "
              "(opensm, or the switch's)"
        : *r->why ? r->why
        : getenv("TARN_RDMA_DEVICES")
            ? "TARN_RDMA_DEVICES leaves it out, or names a GID that it does not have"
            : "it has no GID (give its interface an address), or /dev/infiniband is "
              "closed to this process",
        "%s%s", found, p->active && !p->used ? ", not used" : "");
}

/* A container sees the devices in sysfs, whether or not it may use them. */
static void check_device_nodes(struct doctor *d)
{
    char path[300];
    int n = 0, open = 0;
    DIR *dir = opendir("/dev/infiniband");

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strncmp(e->d_name, "uverbs", 6) != 0)
            continue;
        snprintf(path, sizeof path, "/dev/infiniband/%.200s", e->d_name);
        open += access(path, R_OK | W_OK) == 0;
        n++;
    }
    if (dir)
        closedir(dir);
    doctor_check(
        d, "/dev/infiniband", n && open == n ? GOOD : OPTIONAL, "for RDMA",
        n ? "this user may not open them: see the group and mode of /dev/infiniband/uverbs*"
          : "load ib_uverbs (modprobe ib_uverbs); in a container: docker run --device=/dev/infiniband "
            "--ulimit memlock=-1",
        "%d device%s, %d may be opened", n, CLI_S(n), open);
}

/* How GPU memory would get to the device: by dma-buf or by nvidia-peermem. */
static void check_gpudirect(struct doctor *d)
{
    char version[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "re");

    if (!f)
        return;
    if (!fgets(version, sizeof version, f))
        version[0] = '\0';
    fclose(f);
    bool peermem = access("/sys/module/nvidia_peermem", F_OK) == 0;
    bool open_driver = strstr(version, "Open Kernel Module") != NULL;
    doctor_check(
        d, "GPUDirect RDMA", peermem || open_driver ? GOOD : OPTIONAL, "for GPU memory",
        "modprobe nvidia-peermem, or install the NVIDIA driver's open kernel modules, which export dma-bufs "
        "(Linux 5.12)",
        "%s",
        open_driver ? "dma-buf"
        : peermem   ? "nvidia-peermem"
                    : "neither dma-buf nor nvidia-peermem");
}

static void check_rdma(struct doctor *d)
{
    char why[CLI_RDMA_WHY];
    struct rdma_check r = {.d = d, .why = why};

    if (cli_rdma_ports(why, check_port, &r) == 0) {
        doctor_check(d, "RDMA NIC", OPTIONAL, "for RDMA",
                     "only the rdma transport uses it; without a NIC `rdma link add rxe0 type rxe netdev IF` "
                     "emulates one",
                     "none in /sys/class/infiniband");
        return;
    }
    check_device_nodes(d);
    check_gpudirect(d);
}

/* --- transports --------------------------------------------------------------------------------- */

struct transports {
    struct doctor *d;
    int usable;
};

static int check_transport(void *arg, const char *name, const char *why)
{
    struct transports *t = arg;
    char title[64];

    snprintf(title, sizeof title, "transport %s", name);
    doctor_check(t->d, title, why ? OPTIONAL : GOOD, "one transport", why ? why : "", "%s",
                 why ? "not usable" : "usable");
    t->usable += !why;
    return 0;
}

static void check_transports(struct doctor *d)
{
    struct transports t = {.d = d};

    tarn_transports(check_transport, &t);
    if (!t.usable)
        doctor_check(d, "transports", MISSING, "one transport", "see the reasons of each", "none is usable");
}

/* --- Redis -------------------------------------------------------------------------------------- */

static bool find_program(const char *name, char out[300])
{
    const char *path = getenv("PATH");
    char *copy = strdup(path ? path : "/usr/bin:/bin"), *rest = copy;
    bool found = false;

    for (char *dir; copy && !found && (dir = strsep(&rest, ":"));) {
        int n = snprintf(out, 300, "%s/%s", *dir ? dir : ".", name);
        found = n < 300 && access(out, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* The value of a line "name:value" in INFO's text. */
static bool info_value(const char *info, const char *name, char out[64])
{
    size_t n = strlen(name);

    for (const char *line = info; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            snprintf(out, 64, "%.*s", (int)strcspn(line + n + 1, "\r\n"), line + n + 1);
            return true;
        }
    }
    return false;
}

static void check_redis_info(struct doctor *d, const char *info)
{
    char version[64] = "?", policy[64] = "?", mode[64] = "?";

    info_value(info, "redis_version", version);
    info_value(info, "maxmemory_policy", policy);
    info_value(info, "redis_mode", mode);
    doctor_check(d, "Redis version", strtol(version, NULL, 10) >= 5 ? GOOD : MISSING, "5.0",
                 "scripts and pipelines are tested with Redis 5 and later: use a newer one", "%s (%s)",
                 version, mode);
    bool keeps = strcmp(policy, "noeviction") == 0;
    doctor_check(
        d, "Redis eviction", keeps ? GOOD : OPTIONAL, "noeviction",
        "Redis may drop records of tensors that are still stored; nodes put them back, gets miss until then: "
        "CONFIG SET maxmemory-policy noeviction",
        "%s", policy);
}

static int append_info(void *arg, struct tarn_resp *r)
{
    const char *argv[] = {"INFO"};

    (void)arg;
    return tarn_resp_append(r, 1, argv, NULL);
}

static int take_info(void *arg, size_t i, const redisReply *reply)
{
    struct doctor *d = arg;

    (void)i;
    if (reply->type == REDIS_REPLY_STRING)
        check_redis_info(d, reply->str);
    else
        doctor_check(d, "Redis version", OPTIONAL, "5.0", "allow this user the command INFO",
                     "INFO is refused");
    return 0;
}

static void ask_redis(struct doctor *d, struct tarn_directory *dir)
{
    struct tarn_pipeline p = {.n = 1, .append = append_info, .reply = take_info, .arg = d};

    if (tarn_redis_run(dir, d->deadline_ns, &p) != 0)
        doctor_check(d, "Redis version", MISSING, "5.0", "see the sentence", "%s", tarn_last_error());
}

/* Redis is needed when it was named; else tarnd can start one of its own, given the program. */
static bool check_redis(struct doctor *d)
{
    const struct cli_common *o = d->c->common;
    struct tarn_directory *dir = NULL;
    char program[300];
    bool found = find_program("redis-server", program);

    doctor_check(d, "redis-server", found ? GOOD : OPTIONAL, "to run without a Redis",
                 "install it (apt-get install redis-server), or give tarnd --redis", "%s",
                 found ? program : "not in PATH");
    int rc = tarn_directory_open(o->redis, o->ns, NULL, d->deadline_ns, &dir);
    if (rc != 0) {
        bool absent = !o->redis && (rc == TARN_E_DIRECTORY || rc == TARN_E_TIMEOUT);
        doctor_check(
            d, "Redis", absent && found ? OPTIONAL : MISSING, "the directory",
            rc == TARN_E_DIRECTORY
                ? "start redis-server, or tarnd without --redis, which starts one and prints its address; "
                  "then give --redis"
                : "do what the sentence says",
            "%s", tarn_last_error());
        return false;
    }
    doctor_check(d, "Redis", GOOD, "the directory", "", "%s", tarn_directory_address(dir));
    ask_redis(d, dir);
    tarn_directory_close(dir);
    return true;
}

/* --- nodes -------------------------------------------------------------------------------------- */

static int ping(const struct tarn_node_info *n)
{
    const char *argv[] = {"PING"};
    struct tarn_resp *r = NULL;
    redisReply *reply = NULL;
    struct tarn_addr a;
    uint64_t deadline = tarn_deadline(NODE_TIMEOUT_MS);
    int rc = tarn_addr_parse(n->control, "control address", &a);

    if (rc == 0)
        rc = tarn_resp_connect(&a, deadline, &r);
    if (rc == 0)
        rc = tarn_resp_call(r, deadline, 1, argv, NULL, &reply);
    if (reply)
        freeReplyObject(reply);
    tarn_resp_free(r);
    return rc;
}

static int check_node(void *arg, const struct tarn_node_info *n)
{
    struct doctor *d = arg;
    char title[100];
    uint32_t reached = 0;

    snprintf(title, sizeof title, "node %s", n->id);
    for (uint32_t i = 0; i < n->npools; i++)
        reached += n->pools[i].transport != NULL;
    if (ping(n) != 0)
        doctor_check(d, title, MISSING, "answers", "see whether it runs, and whether a firewall is between",
                     "%s", tarn_last_error());
    else if (reached < n->npools)
        doctor_check(d, title, MISSING, "all pools reached",
                     "compare `tarn info` here and on the node's host",
                     "answers at %s, %u of %u pools are reached", n->control, reached, n->npools);
    else
        doctor_check(d, title, GOOD, "answers", "", "answers at %s, %u pool%s", n->control, n->npools,
                     CLI_S(n->npools));
    return 0;
}

static void check_nodes(struct doctor *d)
{
    size_t before = json_array_size(d->checks);
    int rc = cli_connect(d->c);

    if (rc == 0)
        rc = tarn_nodes(d->c->client, cli_timeout(d->c, 0), check_node, d);
    if (rc != 0)
        doctor_check(d, "nodes", MISSING, "listed by Redis", "see the sentence", "%s", tarn_last_error());
    else if (json_array_size(d->checks) == before)
        doctor_check(d, "nodes", OPTIONAL, "one to store anything",
                     "start tarnd with the same --redis and --ns", "none");
}

/* --- the command -------------------------------------------------------------------------------- */

static int report(struct doctor *d)
{
    struct tarn_buf out = {0};
    bool failed = d->table.failed || d->needed.failed || d->optional.failed;

    cli_table_print(&d->table, cli_coloured(), &out);
    if (d->optional.bytes)
        tarn_buf_printf(&out, "\nif you want it:\n%s", d->optional.data);
    if (d->needed.bytes)
        tarn_buf_printf(&out, "\nwhat to do:\n%s", d->needed.data);
    tarn_buf_printf(&out, "\n%s\n",
                    d->missing ? "something needed is missing" : "all that is needed is there");
    out.failed |= failed;
    if (!d->c->common->json && !(d->c->common->quiet && !d->missing))
        return cli_print(&out);
    tarn_buf_free(&out);
    if (d->c->common->json)
        return cli_print_json(json_pack("{s:b, s:O}", "ok", d->missing == 0, "checks", d->checks), false);
    return 0;
}

struct doctor_config {
    struct cli_common common;
    char *tcpx_plugin;
};

static void check_all(struct doctor *d)
{
    check_kernel(d);
    check_memfd(d);
    check_memory(d);
    check_limits(d);
    check_rdma(d);
    doctor_gpus(d);
    check_transports(d);
    if (check_redis(d))
        check_nodes(d);
}

static int run(struct cli *c, const void *config)
{
    const struct doctor_config *o = config;
    struct doctor d = {
        .c = c,
        .table = {.align = "llll"},
        .checks = json_array(),
        .deadline_ns = tarn_deadline((uint32_t)c->common->timeout_ms),
    };
    int rc = cli_want_args(c, 0, 1, "tcpx");

    if (rc == 0 && c->nargs && strcmp(c->args[0], "tcpx") != 0)
        rc = tarn_fail(TARN_E_INVALID, "\"%s\": doctor knows tcpx, and without a word looks at all but it",
                       c->args[0]);
    if (rc == 0)
        rc = tarn_tcpx_settings_export(o->tcpx_plugin, NULL);
    if (rc != 0)
        goto drop_checks;
    for (const char *const *h = (const char *const[]){"CHECK", "STATE", "NEEDED", "FOUND", NULL}; *h; h++)
        cli_cell(&d.table, "%s", *h);
    if (c->nargs)
        doctor_tcpx(&d);
    else
        check_all(&d);
    rc = report(&d);
    if (rc == 0 && d.missing)
        rc = tarn_fail(TARN_E_UNAVAILABLE, "%zu thing%s that tarn needs %s missing: see what to do",
                       d.missing, CLI_S(d.missing), d.missing == 1 ? "is" : "are");
    tarn_buf_free(&d.needed);
    tarn_buf_free(&d.optional);
drop_checks:
    json_decref(d.checks);
    return rc;
}

static const struct tarn_option options[] = {
    CLI_COMMON_OPTIONS,
    {.name = "tcpx-plugin",
     .type = TARN_OPT_STRING,
     .offset = offsetof(struct doctor_config, tcpx_plugin),
     .unit = "PATH",
     .help = "Network plugin that `tarn doctor tcpx` tries, as that of tarnd."},
};

static const struct tarn_program program = {
    .name = "tarn doctor",
    .arguments = "[tcpx]",
    .brief = "check what this machine and its Redis offer, and say what to do",
    .description =
        "Looks at the kernel, memory, limits, RDMA NICs, GPUs, transports, Redis and the nodes. The exit "
        "status is 6 when something that is needed is missing, not when something optional is.\n\n"
        "With the word tcpx it looks at what the tcpx transport needs: the network plugin, its environment, "
        "RxDM's sockets, the GPUs and the plugin's devices. It starts the plugin in a process of its own, "
        "where "
        "it connects a device with itself and registers memory; each step has --timeout-ms.",
    .options = options,
    .noptions = CLI_COUNT(options),
};

const struct cli_command cli_doctor = {&program, sizeof(struct doctor_config), run};
