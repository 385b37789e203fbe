/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tarn doctor gpu-driven: what kernels need that read the store by themselves (docs/gpu-driven.md). Most of
 * it is needed by hit tables; what only serves RDMA is optional.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <tarn/device.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli_checks.h"
#include "client/cli/cli_version.h"
#include "transport/cuda/cuda.h"

#define CUDA_NEEDED 12020
#define NIC_NEEDED 5 /* ConnectX-5 */

/* --- software ----------------------------------------------------------------------------------- */

static void check_kernel(struct doctor *d)
{
    struct utsname u;

    if (uname(&u) != 0)
        snprintf(u.release, sizeof u.release, "unknown");
    doctor_check(d, "kernel", cli_version_reaches(u.release, 5, 15) ? GOOD : MISSING, "5.15",
                 "use a newer kernel", "%s", u.release);
}

/* A container may hide the driver's version; then CUDA's tells enough. */
static void check_driver(struct doctor *d, int cuda)
{
    char version[32];

    doctor_driver(version);
    if (!version[0] && cuda > 0) {
        doctor_check(d, "NVIDIA driver", cuda >= CUDA_NEEDED ? GOOD : MISSING, "535", "use a newer one",
                     "there; /proc/driver/nvidia/version, with its version, is not");
        return;
    }
    doctor_check(d, "NVIDIA driver", cli_version_reaches(version, 535, 0) ? GOOD : MISSING, "535",
                 version[0] ? "use a newer one" : "install it; in a container: docker run --gpus all", "%s",
                 version[0] ? version : "none");
}

static void check_cuda(struct doctor *d, int driver, int runtime)
{
    const struct {
        const char *name, *remedy;
        int version;
    } rows[] = {
        {"CUDA of the driver", "use a newer driver", driver},
        {"CUDA of this build", "install a newer CUDA toolkit and build again: make CUDA=auto", runtime},
    };

    for (size_t i = 0; i < CLI_COUNT(rows); i++)
        doctor_check(d, rows[i].name, rows[i].version >= CUDA_NEEDED ? GOOD : MISSING, "12.2", rows[i].remedy,
                     rows[i].version ? "%d.%d" : "none", rows[i].version / 1000, rows[i].version % 1000 / 10);
}

/* --- GPUs --------------------------------------------------------------------------------------- */

static int host_nodes(void)
{
    glob_t nodes = {0};

    glob("/sys/devices/system/node/node[0-9]*", 0, NULL, &nodes);
    int n = (int)nodes.gl_pathc;
    globfree(&nodes);
    return n;
}

/* -1: sysfs does not tell. */
static int numa_node(const char *pci)
{
    char path[100], line[16];

    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
    return cli_first_line(path, line, sizeof line) && line[0] ? (int)strtol(line, NULL, 10) : -1;
}

static void check_place(struct doctor *d, int device)
{
    struct tarn_cuda_device cuda = {.name = "unknown"};
    char title[40], pci[TARN_CUDA_PCI] = "unknown", where[40] = "";

    tarn_cuda_describe(device, &cuda);
    tarn_cuda_pci(device, pci);
    int node = numa_node(pci);
    if (node >= 0)
        snprintf(where, sizeof where, ", NUMA node %d", node);
    snprintf(title, sizeof title, "GPU %d", device);
    doctor_check(
        d, title, node >= 0 || host_nodes() < 2 ? GOOD : OPTIONAL, "its NUMA node",
        "sysfs does not tell its NUMA node, so nothing is placed near it: see `nvidia-smi topo -m`, and "
        "run the process there by numactl",
        "%s, PCI %s%s", cuda.name, pci, where);
}

static void check_peers(struct doctor *d, int device, int ngpus)
{
    struct tarn_buf reached = {0}, others = {0};
    char title[40];

    for (int i = 0; i < ngpus; i++) {
        struct tarn_buf *b = tarn_cuda_reaches(device, i) ? &reached : &others;
        if (i != device)
            tarn_buf_printf(b, "%s%d", b->bytes ? " " : "", i);
    }
    snprintf(title, sizeof title, "GPU %d reaches GPUs", device);
    bool failed = reached.failed || others.failed;
    doctor_check(
        d, title, others.bytes ? OPTIONAL : GOOD, "for pools of other GPUs",
        "without peer access tables say NOT_REACHABLE of objects there: see `nvidia-smi topo -p2p r`",
        "%s%s%s",
        failed          ? "?"
        : reached.bytes ? reached.data
                        : "none",
        others.bytes ? ", not " : "", others.bytes && !failed ? others.data : "");
    tarn_buf_free(&reached);
    tarn_buf_free(&others);
}

/* --- reading a CPU pool ------------------------------------------------------------------------- */

enum { ROW = 64, GEN_AT = 128, GEN = 6, PENDING = 1 };

/* A table of one page, in pinned memory. */
struct probe {
    struct tarn_half page[2];
    uint64_t until;
    uint32_t news, row;
    int32_t status;
    uint8_t used, told, got[ROW];
};

/* Memory as a client has that of a CPU pool: it cannot be written. NULL: refused. */
static void *map_pool(size_t bytes)
{
    uint8_t page[GEN_AT + sizeof(uint32_t)];
    int fd = memfd_create("tarn-doctor", MFD_CLOEXEC);
    void *at = MAP_FAILED;

    memset(page, 'r', sizeof page);
    memcpy(page + GEN_AT, &(uint32_t){GEN}, sizeof(uint32_t));
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && write(fd, page, sizeof page) == (ssize_t)sizeof page)
        at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

/* Waits for the row, and then for the kernel's end. */
static int await(const struct probe *p, int device, uint64_t deadline_ns)
{
    const struct timespec nap = {0, TARN_NS_PER_MS};

    while (__atomic_load_n(&p->status, __ATOMIC_ACQUIRE) == PENDING) {
        if (tarn_now_ns() >= deadline_ns)
            return tarn_fail(TARN_E_TIMEOUT,
                             "a small kernel has not run in time: give it more with --timeout-ms");
        nanosleep(&nap, NULL);
    }
    return tarn_cuda_settle(device);
}

static int read_row(struct probe *p, const uint8_t *pool, int device, uint64_t deadline_ns)
{
    const struct tarn_dev_table table = {.pages = p->page,
                                         .used = &p->used,
                                         .told = &p->told,
                                         .until = &p->until,
                                         .news = &p->news,
                                         .npages = 1,
                                         .row_bytes = ROW,
                                         .rows_per_page = 1};
    const struct tarn_cuda_rows rows = {&p->row, 1, p->got, ROW, &p->status};

    *p = (struct probe){
        .page = {{(uintptr_t)pool, 1ull << 32 | ROW}, {(uintptr_t)pool + GEN_AT, 1ull << 32 | GEN}},
        .until = UINT64_MAX,
        .status = PENDING};
    int rc = tarn_cuda_gather_ready(device);
    if (!rc)
        rc = tarn_cuda_gather(device, &table, &rows, NULL);
    if (!rc)
        rc = await(p, device, deadline_ns);
    if (!rc && (p->status || memcmp(p->got, pool, ROW) != 0))
        rc = tarn_fail(TARN_E_UNAVAILABLE, "a kernel has read other bytes, status %d", p->status);
    return rc;
}

/* On failure the memory stays: a kernel may still come. */
static int try_row(int device, uint64_t deadline_ns)
{
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pool = map_pool(bytes);
    struct probe *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (!pool || p == MAP_FAILED)
        return tarn_fail(TARN_E_SYSTEM, "memory: %m");
    int rc = tarn_cuda_pin(p, bytes, true);
    if (!rc)
        rc = tarn_cuda_pin(pool, bytes, false);
    if (!rc)
        rc = read_row(p, pool, device, deadline_ns);
    if (rc)
        return rc;
    tarn_cuda_unpin(pool);
    tarn_cuda_unpin(p);
    munmap(pool, bytes);
    munmap(p, bytes);
    return 0;
}

static void check_pool(struct doctor *d, int device)
{
    uint64_t deadline = tarn_now_ns() + (uint64_t)d->c->common->timeout_ms * TARN_NS_PER_MS;
    char title[40];
    int rc = try_row(device, deadline);

    snprintf(title, sizeof title, "GPU %d reads CPU pools", device);
    doctor_check(
        d, title, rc ? MISSING : GOOD, "memory registered read-only",
        "a CPU pool is registered with CUDA read-only, which this GPU and driver must allow: see the "
        "sentence, and `ulimit -l`",
        "%s", rc ? tarn_last_error() : "works: a kernel has read some");
}

static void check_gpus(struct doctor *d)
{
    int n;

    if (tarn_cuda_count(&n)) {
        doctor_check(d, "GPU", MISSING, "one", "see the sentence", "%s", tarn_last_error());
        return;
    }
    for (int i = 0; i < n; i++) {
        check_place(d, i);
        check_pool(d, i);
        if (n > 1)
            check_peers(d, i, n);
    }
}

/* --- RDMA, for what no GPU of this host reaches ------------------------------------------------- */

static unsigned read_id(const char *device, const char *file)
{
    char path[300], line[16];

    snprintf(path, sizeof path, "%s/device/%s", device, file);
    cli_first_line(path, line, sizeof line);
    return (unsigned)strtoul(line, NULL, 16);
}

static void check_nic(struct doctor *d, const char *path)
{
    unsigned vendor = read_id(path, "vendor"), device = read_id(path, "device");
    const char *model;
    int generation = 0;
    char title[100], found[100];

    model = cli_nic_model(vendor, device, &generation);
    snprintf(title, sizeof title, "NIC %.80s", strrchr(path, '/') + 1);
    if (model)
        snprintf(found, sizeof found, "%s", model);
    else if (vendor)
        snprintf(found, sizeof found, "of PCI id %04x:%04x", vendor, device);
    else
        snprintf(found, sizeof found, "emulated: it is no PCI device");
    doctor_check(d, title, generation >= NIC_NEEDED ? GOOD : OPTIONAL, "ConnectX-5, for proxied RDMA",
                 "proxied RDMA is meant for ConnectX-5 and later; nothing else needs it", "%s", found);
}

/* The driver tells its version if it is OFED's. */
static void read_ofed(char *version, int bytes)
{
    if (cli_first_line("/sys/module/mlx5_core/version", version, bytes) && version[0])
        return;
    FILE *f = popen("ofed_info -s 2>/dev/null", "re");
    version[0] = '\0';
    if (f && !fgets(version, bytes, f))
        version[0] = '\0';
    if (f)
        pclose(f);
    version[strcspn(version, ":\n")] = '\0';
}

static void check_rdma(struct doctor *d)
{
    char version[100];
    glob_t nics = {0};

    glob("/sys/class/infiniband/*", 0, NULL, &nics);
    if (nics.gl_pathc == 0)
        doctor_check(d, "RDMA NIC", OPTIONAL, "ConnectX-5, for proxied RDMA",
                     "only what lies on other hosts needs it", "none in /sys/class/infiniband");
    for (size_t i = 0; i < nics.gl_pathc; i++)
        check_nic(d, nics.gl_pathv[i]);
    globfree(&nics);
    read_ofed(version, sizeof version);
    doctor_check(d, "OFED", cli_version_reaches(version, 5, 9) ? GOOD : OPTIONAL, "5.9, for proxied RDMA",
                 "only proxied RDMA needs it: install MLNX_OFED or DOCA-OFED", "%s",
                 version[0] ? version : "none");
}

/* --- all ---------------------------------------------------------------------------------------- */

void doctor_gpu_driven(struct doctor *d)
{
    int driver, runtime;

    tarn_cuda_versions(&driver, &runtime);
    check_kernel(d);
    check_driver(d, driver);
    check_cuda(d, driver, runtime);
    check_gpus(d);
    check_rdma(d);
}
