/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tarn doctor tcpx`: checks each thing the tcpx transport needs in a row of its own. The plugin's few
 * result codes have many causes (3 stands for unaligned memory, for a missing RxDM and for a driver that
 * exports no DMA buffers); the rows tell them apart.
 */
#include "client/cli/cli_checks.h"

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "client/cli/cli_tcpx_try.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

#define DRIVER 525  /* the first with CUDA 12 */
#define DONTNEED 97 /* SO_DEVMEM_DONTNEED in those kernels */
#define RUNBOOK "docs/tcpx.md, \"On A3 machines\""
#define SETUP_MS 3000 /* how long a client waits for a connection if TARN_TCPX_STALL_MS is not set */

/* --- how a step ended --------------------------------------------------------------------------- */

static const char *const doing[] = {"finding it",
                                    "checking its environment",
                                    "starting it (init, devices)",
                                    "listening",
                                    "connecting with another process",
                                    "registering memory",
                                    "closing the connection"};

static void calls_text(const struct cli_tcpx_calls *c, const char *name, struct tarn_buf *out)
{
    uint32_t begun = atomic_load(&c->begun), returned = atomic_load(&c->returned);

    tarn_buf_printf(out, ", %s ", name);
    if (begun == 0)
        tarn_buf_printf(out, "not called");
    else if (c->ms > 0)
        tarn_buf_printf(out, "%.1f ms in %u call%s", c->ms, begun, CLI_S(begun));
    else
        tarn_buf_printf(out, "%u call%s %s", begun, CLI_S(begun),
                        returned < begun ? "and no return from the last" : "without a connection");
}

/* What was seen while the connection was set up. */
static void saw(const struct cli_tcpx_try *t, struct tarn_buf *out)
{
    tarn_buf_printf(out, "listen %.1f ms", t->listen_ms);
    calls_text(&t->connect, "connect", out);
    calls_text(&t->accept, "accept", out);
    if (t->accept_waits && t->accept.ms > 0)
        tarn_buf_printf(out, ", which does not return before the peer connects");
}

/* How the failed step failed. */
static void failure(const struct cli_tcpx_try *t, struct tarn_buf *out)
{
    const char *step = doing[t->at];

    if (t->connects)
        tarn_buf_printf(out, "in the process that connects: ");
    switch (t->end) {
    case CLI_TCPX_RETURNED:
        tarn_buf_printf(out, "%s", t->error);
        break;
    case CLI_TCPX_EXITED:
        tarn_buf_printf(out, "the plugin ended the process with status %d while %s", t->status, step);
        break;
    case CLI_TCPX_KILLED:
        tarn_buf_printf(out, "the plugin crashed (%s) while %s", strsignal(t->status), step);
        break;
    case CLI_TCPX_LATE:
        tarn_buf_printf(out, "the plugin did not return from %s in time", step);
        break;
    }
    if (t->at == CLI_TCPX_CONNECT) {
        tarn_buf_printf(out, "; seen: ");
        saw(t, out);
    }
    if (t->said[0])
        tarn_buf_printf(out, "; it said: %s", t->said);
    else if (t->wrote[0])
        tarn_buf_printf(out, "; it wrote: %s", t->wrote);
}

/* One row for a step: passed, failed or not reached. */
static void check_step(struct doctor *d, const struct cli_tcpx_try *t, enum cli_tcpx_step step,
                       const char *name, const char *needed, const char *remedy, const char *good)
{
    struct tarn_buf text = {0};

    if (t->step > (int)step) {
        doctor_check(d, name, GOOD, needed, "", "%s", good);
    } else if (t->step == (int)step) {
        failure(t, &text);
        doctor_check(d, name, MISSING, needed, remedy, "%s", text.failed ? "?" : text.data);
    } else {
        doctor_check(d, name, MISSING, needed, "see the row before it that is missing", "not reached");
    }
    tarn_buf_free(&text);
}

/* --- the plugin --------------------------------------------------------------------------------- */

static const char *find_remedy(const struct cli_tcpx_try *t, const char *path)
{
    char usual[TARN_TCPX_PATH];

    if (t->end != CLI_TCPX_RETURNED)
        return "loading it must not end a process: install another build of it";
    if (t->rc == TARN_E_VERSION)
        return "install a version of it that has ABI 6, 7 or 8, or name another by TARN_TCPX_PLUGIN";
    /* A library that is there: what it needs is missing. */
    if (t->rc == TARN_E_UNAVAILABLE && (path || tarn_tcpx_plugin_usual(usual) == 0))
        return "install the NVIDIA driver; in a container: mount the host's /var/lib/nvidia/lib64, and name "
               "it in LD_LIBRARY_PATH";
    return path ? "name a library that is there: TARN_TCPX_PLUGIN=/path/lib.so, or tarnd --tcpx-plugin"
                : "install the plugin (" RUNBOOK "), or name it: TARN_TCPX_PLUGIN=/path/lib.so";
}

static const char *start_remedy(const struct cli_tcpx_try *t)
{
    bool gpudirect = t->plugin.gpudirect;

    switch (t->end) {
    case CLI_TCPX_EXITED:
        return "it does so when CUDA does not start: see nvidia-smi; else what it wrote says why";
    case CLI_TCPX_KILLED:
        return gpudirect
                   ? "its libraries may not fit the driver or each other: compare versions with " RUNBOOK
                   : "its libraries may not fit each other: see `ldd` of it";
    case CLI_TCPX_LATE:
        return gpudirect ? "give it more with --timeout-ms; else see what RxDM logs"
                         : "give it more with --timeout-ms";
    case CLI_TCPX_RETURNED:
        break;
    }
    if (t->rc == TARN_E_UNAVAILABLE && t->plugin.start == TARN_TCPX_AT_DEVICES)
        return gpudirect
                   ? "name interfaces that are there and up: "
                     "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2,eth3,eth4"
                   : "see `ip -br link`, and in its documentation which devices it takes and what names them";
    return t->rc == TARN_E_UNAVAILABLE && t->plugin.start == TARN_TCPX_AT_DRIVER
               ? "see nvidia-smi: the driver must run before the plugin does"
               : "do what the sentence says";
}

static void check_plugin(struct doctor *d, const struct cli_tcpx_try *t, const char *path)
{
    const struct tarn_tcpx_plugin *p = &t->plugin;
    char abi[160], devices[40];

    check_step(d, t, CLI_TCPX_FIND, "plugin", "NCCL's ABI 6, 7 or 8", find_remedy(t, path), p->path);
    if (t->step == CLI_TCPX_FIND)
        return;
    snprintf(abi, sizeof abi, "version %d, %s", p->version, p->name);
    doctor_check(d, "plugin's ABI", GOOD, "all calls in its table", "", "%s", abi);
    if (t->step == CLI_TCPX_ENVIRONMENT) /* the variable has its own row */
        return;
    snprintf(devices, sizeof devices, "%d device%s", p->ndevices, CLI_S(p->ndevices));
    check_step(d, t, CLI_TCPX_START, "plugin starts", "init, devices", start_remedy(t), devices);
}

static void check_device(struct doctor *d, const struct tarn_tcpx_plugin *p,
                         const struct tarn_tcpx_device *dev)
{
    char title[64];

    snprintf(title, sizeof title, "device %s", dev->name);
    doctor_check(d, title, dev->gpu ? GOOD : OPTIONAL, "for GPU memory",
                 dev->pci[0]    ? "the plugin takes memory of the host only: GPU memory needs another one"
                 : p->gpudirect ? "it is no PCI device: name NICs in NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"
                                : "it is no PCI device: have the plugin take NICs",
                 "%d Mbit/s, %s, takes memory of %s, receives are %s", dev->speed_mbit,
                 dev->pci[0] ? dev->pci : "no PCI path",
                 dev->gpu && dev->host ? "host and GPU"
                 : dev->gpu            ? "the GPU"
                                       : "the host",
                 dev->mode == TARN_TCPX_UNPACK ? "unpacked by tarn" : "placed by the plugin");
}

static const char *connect_remedy(const struct cli_tcpx_try *t)
{
    bool late = t->end == CLI_TCPX_LATE;

    if (!t->plugin.gpudirect)
        return late ? "its devices must reach themselves, and it must accept and connect in processes of one "
                      "host: see its documentation, or give it more with --timeout-ms"
                    : "what it said is the cause: see its documentation";
    return late ? "the control and data interfaces must reach themselves: see CTRL_DEV and SOCKET_IFNAME "
                  "above; a flow steering wait above --timeout-ms is late, too"
                : "start RxDM (" RUNBOOK ") with its sockets in the folder below";
}

/* Which device each GPU connects by. */
static void check_networks(struct doctor *d, const struct tarn_tcpx_plugin *p)
{
    if (p->gpudirect && p->ndevices > 1)
        doctor_check(
            d, "networks of the devices", GOOD, "one at both ends", "",
            "%d devices: where their networks do not reach each other, GPUs behind different ones do not "
            "connect and go by tcp",
            p->ndevices);
}

/* The connection works: is it set up within the time clients wait for one? */
static void check_times(struct doctor *d, const struct cli_tcpx_try *t, uint32_t stall_ms)
{
    struct tarn_buf text = {0};
    double took = t->connect.ms > t->accept.ms ? t->connect.ms : t->accept.ms;
    uint32_t most = (stall_ms ? stall_ms : SETUP_MS) + t->plugin.wait_ms;
    char remedy[200];

    tarn_buf_printf(&text, "%s: ", t->plugin.devices[t->device].name);
    saw(t, &text);
    snprintf(remedy, sizeof remedy,
             "clients give a connection up after %u ms: set " TARN_TCPX_STALL_VARIABLE
             " to %.0f or more for them",
             most, 2 * took);
    doctor_check(d, "connection", took < most ? GOOD : MISSING, "listen, connect, accept", remedy, "%s",
                 text.failed ? "?" : text.data);
    tarn_buf_free(&text);
}

static void check_connection(struct doctor *d, const struct cli_tcpx_try *t, uint32_t stall_ms)
{
    char memory[120];

    if (t->step <= CLI_TCPX_START)
        return;
    if (t->step > CLI_TCPX_CONNECT)
        check_times(d, t, stall_ms);
    else
        check_step(d, t, t->step, "connection", "listen, connect, accept", connect_remedy(t), "");
    snprintf(memory, sizeof memory, "4096 bytes of %s at %p, aligned", t->gpu ? "GPU 0" : "the host",
             t->page);
    check_step(d, t, CLI_TCPX_REGISTER, "registration", "aligned to 4 KiB, DMA buffers",
               t->plugin.gpudirect
                   ? "the address is aligned, so this is no matter of alignment: the DMA buffer is missing. "
                     "RxDM must run "
                     "with get_gpu_fd_* of this GPU (below), and the driver must export DMA buffers"
                   : "what it said is the cause; the address is aligned",
               memory);
    if (t->step == CLI_TCPX_CLOSE)
        check_step(d, t, CLI_TCPX_CLOSE, "closing", "closeSend, closeRecv", "what it said is the cause", "");
}

/* --- the machine -------------------------------------------------------------------------------- */

static void check_driver(struct doctor *d)
{
    char version[32];

    doctor_driver(version);
    doctor_check(d, "NVIDIA driver", strtol(version, NULL, 10) >= DRIVER ? GOOD : OPTIONAL,
                 "525, for CUDA 12",
                 version[0] ? "use a newer one: the plugin for TCPX is built for CUDA 12"
                            : "install it; in a container: docker run --gpus all",
                 "%s", version[0] ? version : "none");
}

/*
 * The plugin for TCPX needs the socket options of Google's kernels; in mainline Linux other options do the
 * same. This probe releases nothing.
 */
static void check_kernel(struct doctor *d)
{
    const uint32_t none[2] = {0, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -1 : setsockopt(fd, SOL_SOCKET, DONTNEED, none, sizeof none);
    bool known = fd >= 0 && (rc == 0 || errno != ENOPROTOOPT);

    doctor_check(d, "kernel's device memory TCP", known ? GOOD : OPTIONAL, "by the plugin for TCPX",
                 "use a Google image for A3 High machines (" RUNBOOK
                 "): Linux has the same under other numbers, since 6.12, and the plugin does not know them",
                 "%s", known ? "there" : "socket option 97 is not known to this kernel");
    if (fd >= 0)
        close(fd);
}

/* --- environment -------------------------------------------------------------------------------- */

/* The first name in the list that no interface begins with; "" if all exist and are up. */
static void find_wrong_interface(const char *list, char wrong[IF_NAMESIZE + 16])
{
    struct if_nameindex *all = if_nameindex();

    wrong[0] = '\0';
    if (!all)
        return;
    for (const char *at = list; *at && !wrong[0];) {
        size_t n = strcspn(at, ",");
        bool there = n == 0;
        for (const struct if_nameindex *i = all; i->if_index && !there; i++)
            there = strncmp(i->if_name, at, n) == 0;
        if (!there)
            snprintf(wrong, IF_NAMESIZE + 16, "%.*s", (int)(n < IF_NAMESIZE ? n : IF_NAMESIZE), at);
        at += n + (at[n] == ',');
    }
    if_freenameindex(all);
}

static bool names_interfaces(const struct tarn_tcpx_variable *v)
{
    bool named = strcmp(v->name, TARN_TCPX_INTERFACES_VARIABLE) == 0 ||
                 strcmp(v->name, TARN_TCPX_CONTROL_VARIABLE) == 0;

    return named && v->value && v->value[0] != '^' && v->value[0] != '=';
}

static void check_variable(struct doctor *d, int rc, const struct tarn_tcpx_variable *v)
{
    char title[80], wrong[IF_NAMESIZE + 16] = "";

    snprintf(title, sizeof title, "$%s", v->name);
    if (names_interfaces(v))
        find_wrong_interface(v->value, wrong);
    if (rc != 0)
        doctor_check(d, title, MISSING, v->what,
                     "the plugin would hang or fail: set it to what the sentence says", "%s",
                     tarn_last_error());
    else if (wrong[0])
        doctor_check(d, title, OPTIONAL, v->what, "name interfaces that are there: see `ip -br link`",
                     "%s: there is no interface \"%s\"", v->value, wrong);
    else if (v->value)
        doctor_check(d, title, GOOD, v->what, "", "%s", v->value);
    else if (v->fill)
        doctor_check(d, title, GOOD, v->what, "", "not set: tarn sets it to %s", v->fill);
    else
        doctor_check(d, title, GOOD, v->what, "", "not set: the plugin chooses");
}

/* Other plugins do not read these variables: report only what tarn itself would refuse. */
static void check_environment(struct doctor *d, bool gpudirect)
{
    struct tarn_tcpx_variable v;
    int rc;

    for (size_t i = 0; (rc = tarn_tcpx_env_at(i, gpudirect, &v)) != TARN_E_NOT_FOUND; i++)
        if (gpudirect || rc != 0)
            check_variable(d, rc, &v);
}

static void check_settings(struct doctor *d, int rc, const struct tarn_tcpx_settings *s)
{
    enum tarn_tcpx_way way;

    if (rc != 0 && tarn_tcpx_way_parse(tarn_env(TARN_TCPX_UNPACK_VARIABLE), &way) == 0)
        doctor_check(d, "$" TARN_TCPX_STALL_VARIABLE, MISSING, "when a connection is given up", "unset it",
                     "%s", tarn_last_error());
    else if (rc != 0)
        doctor_check(d, "unpacking", MISSING, "kernel, d2d or host",
                     "set TARN_TCPX_UNPACK_IMPL to one of them", "%s", tarn_last_error());
    else
        doctor_check(d, "unpacking", GOOD, "kernel, d2d or host", "", "%s", tarn_tcpx_way_name(s->way));
}

/* --- RxDM --------------------------------------------------------------------------------------- */

struct sockets {
    int there, answer;
    int error; /* of the last that did not answer */
};

/* Connects and closes; sends nothing. */
static void try_socket(const char *folder, const char *name, struct sockets *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int n = snprintf(a.sun_path, sizeof a.sun_path, "%s/%s", folder, name);

    s->there++;
    bool fits = n < (int)sizeof a.sun_path;

    if (fd >= 0 && fits && connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        s->answer++;
    else
        s->error = fits ? errno : ENAMETOOLONG;
    if (fd >= 0)
        close(fd);
}

static struct sockets try_sockets(const char *folder, const char *prefix)
{
    struct sockets s = {0};
    DIR *dir = opendir(folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0)
            try_socket(folder, e->d_name, &s);
    if (dir)
        closedir(dir);
    return s;
}

static void check_sockets(struct doctor *d, enum doctor_state missing, const char *folder, const char *prefix,
                          const char *what)
{
    struct sockets s = try_sockets(folder, prefix);
    char title[200];

    snprintf(title, sizeof title, "%.100s/%s", folder, prefix);
    if (s.there == 0)
        doctor_check(
            d, title, missing, what,
            "RxDM makes it: start its container with --uds_path of that folder, and mount the folder here",
            "none");
    else if (s.answer < s.there)
        doctor_check(d, title, missing, what,
                     s.error == ECONNREFUSED ? "left over from a RxDM that has ended: start it again"
                     : s.error == EACCES     ? "closed to this user: see its mode, or run as root"
                                             : "see RxDM's log",
                     "%d, of which %d answer: %s", s.there, s.answer, strerror(s.error));
    else
        doctor_check(d, title, GOOD, what, "", "%d, all answer", s.there);
}

/* If a connection came up, the plugin needs no RxDM. */
static void check_rxdm(struct doctor *d, const struct cli_tcpx_try *t)
{
    static const char *const rows[][2] = {{"get_gpu_fd_", "bounce memory of each GPU"},
                                          {"get_gpu_metadata_", "its size"},
                                          {"rx_rule_manager", "flow steering"}};
    const char *folder = tarn_env_raw(TARN_TCPX_PREFIX_VARIABLE);
    enum doctor_state missing = t->step == CLI_TCPX_DONE ? OPTIONAL : MISSING;

    folder = folder ? folder : "/run/tcpx";
    if (access(folder, X_OK) != 0) {
        doctor_check(d, folder, missing, "RxDM's sockets",
                     errno == EACCES ? "closed to this user: see its mode, or run as root"
                                     : "start RxDM (" RUNBOOK "), and mount that folder into this container",
                     "%s", strerror(errno));
        return;
    }
    for (size_t i = 0; i < CLI_COUNT(rows); i++)
        check_sockets(d, missing, folder, rows[i][0], rows[i][1]);
}

/* --- all ---------------------------------------------------------------------------------------- */

void doctor_tcpx(struct doctor *d)
{
    struct tarn_tcpx_settings s;
    struct cli_tcpx_try t = {0};
    int settings = tarn_tcpx_settings(&s);

    check_settings(d, settings, &s);
    if (cli_tcpx_try(s.plugin, (uint32_t)d->c->common->timeout_ms, &t) != 0) {
        doctor_check(d, "plugin", MISSING, "tried in a process of its own", "see the sentence", "%s",
                     tarn_last_error());
        return;
    }
    bool gpudirect = t.step == CLI_TCPX_FIND || t.plugin.gpudirect;
    check_plugin(d, &t, s.plugin);
    check_environment(d, gpudirect);
    if (gpudirect) {
        check_kernel(d);
        check_driver(d);
    }
    doctor_gpus(d);
    for (int i = 0; i < t.plugin.ndevices; i++)
        check_device(d, &t.plugin, &t.plugin.devices[i]);
    check_networks(d, &t.plugin);
    check_connection(d, &t, settings == 0 ? s.stall_ms : 0);
    if (gpudirect)
        check_rxdm(d, &t);
}
