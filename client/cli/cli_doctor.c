/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn doctor: what this machine and its Redis offer, what tarn needs, and what to do if something is
 * missing. Fails only if something necessary is missing. Hardware for only some transports is optional.
 */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/error.h"
#include "client/cli/cli_checks.h"
#include "client/cli/cli_rdma.h"
#include "client/setting.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

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

/* The value of a line of /proc/meminfo such as "MemAvailable:  123 kB", in bytes or as a count; 0 without
 * the line. */
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
                 "remount,size=4G /dev/shm, or docker run --shm-size=4g",
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

/* --- RDMA --------------------------------------------------------------------------------------- */

struct rdma_check {
    struct doctor *d;
    struct tarn_reason why; /* why tarn can use none */
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
        : r->why.code ? r->why.text
        : tarn_setting(NULL, "TARN_RDMA_DEVICES")
            ? "TARN_RDMA_DEVICES leaves it out, or names a GID that it does not have"
            : "it has no GID (give its interface an address), or /dev/infiniband is closed to this process",
        "%s%s", found, p->active && !p->used ? ", not used" : "");
}

/* A container sees devices in sysfs even if it must not use them. */
static void check_device_nodes(struct doctor *d)
{
    size_t n, open = 0;
    glob_t nodes = {0};

    glob("/dev/infiniband/uverbs*", 0, NULL, &nodes);
    n = nodes.gl_pathc;
    for (size_t i = 0; i < n; i++)
        open += access(nodes.gl_pathv[i], R_OK | W_OK) == 0;
    globfree(&nodes);
    doctor_check(
        d, "/dev/infiniband", n && open == n ? GOOD : OPTIONAL, "for RDMA",
        n ? "this user may not open them: see the group and mode of /dev/infiniband/uverbs*"
          : "load ib_uverbs (modprobe ib_uverbs); in a container: docker run --device=/dev/infiniband "
            "--ulimit memlock=-1",
        "%zu device%s, %zu may be opened", n, CLI_S(n), open);
}

/* How GPU memory is registered with the device: by dma-buf or nvidia-peermem. */
static void check_gpudirect(struct doctor *d)
{
    char version[256];

    if (!cli_first_line("/proc/driver/nvidia/version", version, sizeof version))
        return;
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
    struct rdma_check r = {.d = d};

    if (cli_rdma_ports(&r.why, check_port, &r) == 0) {
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
    if (doctor_redis(d))
        doctor_nodes(d);
}

typedef void doctor_fn(struct doctor *d);

/* What checks that alone; NULL: there is no such word. */
static doctor_fn *part(const char *word)
{
    return strcmp(word, "tcpx") == 0         ? doctor_tcpx
           : strcmp(word, "gpu-driven") == 0 ? doctor_gpu_driven
                                             : NULL;
}

static int run(struct cli *c, const void *config)
{
    const struct doctor_config *o = config;
    struct doctor d = {
        .c = c,
        .table = {.align = "llll"},
        .checks = json_array(),
    };
    doctor_fn *check = check_all;
    int rc = cli_want_args(c, 0, 1, "tcpx or gpu-driven");

    if (rc == 0 && c->nargs && !(check = part(c->args[0])))
        rc = tarn_fail(TARN_E_INVALID,
                       "\"%s\": give tcpx or gpu-driven; without them, doctor checks everything else",
                       c->args[0]);
    if (rc == 0)
        rc = tarn_tcpx_settings_export(o->tcpx_plugin, NULL);
    if (rc != 0)
        goto drop_checks;
    cli_row(&d.table, "CHECK", "STATE", "NEEDED", "FOUND", NULL);
    check(&d);
    rc = report(&d);
    c->not_opened = false; /* a row says so */
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
    .arguments = "[tcpx | gpu-driven]",
    .brief = "check what this machine and its Redis offer, and say what to do",
    .description =
        "Looks at the kernel, memory, limits, RDMA NICs, GPUs, transports and Redis. Then it does what a "
        "client does: says HELLO to each node, and puts, gets and removes an object of 64 KiB in each pool "
        "by each transport. Its keys begin with tarn-doctor/; what cannot be removed is gone after a minute. "
        "Pools that are nearly full and nodes that are draining are left out. The exit status is 6 when "
        "something that is needed is missing, not when something optional is.\n\n"
        "With the word tcpx it looks at what the tcpx transport needs: the network plugin, its environment, "
        "RxDM's sockets, the GPUs and the plugin's devices. It starts the plugin in two processes of its "
        "own, which connect with each other by a device and register memory; each step has --timeout-ms, and "
        "the times are shown.\n\n"
        "With the word gpu-driven it looks at what kernels need that read the store by themselves: the "
        "driver, "
        "CUDA, the kernel, each GPU, which other GPUs it reaches, whether it reads memory as that of a CPU "
        "pool, "
        "and the NICs for what it does not reach.",
    CLI_OPTIONS(options),
};

const struct cli_command cli_doctor = {&program, sizeof(struct doctor_config), run};
