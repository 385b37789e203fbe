/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, checks and starts a network plugin. tcpx_calls.c has the calls into it. */
#include "transport/tcpx/plugin/tcpx_plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A library that was found, and the outcome. Never freed. */
struct library {
    struct library *next;
    void *handle;
    bool looked; /* its table is there */
    bool begun;  /* init() was called; status and error are final */
    int status;
    char error[TARN_SENTENCE];
    struct tarn_tcpx_plugin plugin;
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct library *libraries;

/* --- finding ------------------------------------------------------------------------------------ */

/* Is the file itself missing, rather than something it needs? */
static bool missing(const char *name, const char *error)
{
    size_t n = strlen(name);
    return strncmp(error, name, n) == 0 && strstr(error + n, "No such file");
}

/* *handle_p NULL: no such library. */
static int load(const char *name, void **handle_p)
{
    *handle_p = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (*handle_p)
        return 0;
    const char *error = dlerror();
    error = error ? error : "dlopen failed";
    if (missing(name, error))
        return 0;
    if (strstr(error, "libcuda"))
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "tcpx plugin %s: %s: it needs the CUDA driver; install it, or leave tcpx out of the "
                         "transports",
                         name, error);
    return tarn_fail(TARN_E_CONFIG, "tcpx plugin %s: cannot be loaded: %s: name another with tcpx-plugin",
                     name, error);
}

static int find(const char *path, void **handle_p)
{
    char usual[TARN_TCPX_PATH];
    int rc = 0;
    if (!path || !*path) {
        rc = tarn_tcpx_plugin_usual(usual);
        path = usual;
    }
    if (!rc)
        rc = load(path, handle_p);
    return rc || *handle_p ? rc
                           : tarn_fail(TARN_E_CONFIG,
                                       "tcpx plugin %s: no such file: name an existing one with "
                                       "tcpx-plugin, or its folder in LD_LIBRARY_PATH",
                                       path);
}

static struct library *library_of(void *handle)
{
    struct library *l = libraries;
    while (l && l->handle != handle)
        l = l->next;
    if (!l && (l = calloc(1, sizeof(*l)))) {
        l->handle = handle;
        l->next = libraries;
        libraries = l;
    }
    return l;
}

/* --- symbols ------------------------------------------------------------------------------------ */

/* The members with the same arguments as version 7's; others are called through v6 and v8. */
static struct tarn_tcpx_v7 from_v6(const struct tarn_tcpx_v6 *t)
{
    return (struct tarn_tcpx_v7){
        .name = t->name,
        .init = t->init,
        .devices = t->devices,
        .listen = t->listen,
        .reg_mr = t->reg_mr,
        .reg_mr_dmabuf = t->reg_mr_dmabuf,
        .dereg_mr = t->dereg_mr,
        .isend = t->isend,
        .irecv = t->irecv,
        .iflush = t->iflush,
        .test = t->test,
        .close_send = t->close_send,
        .close_recv = t->close_recv,
        .close_listen = t->close_listen,
    };
}

static struct tarn_tcpx_v7 from_v8(const struct tarn_tcpx_v8 *t)
{
    return (struct tarn_tcpx_v7){
        .name = t->name,
        .init = t->init,
        .devices = t->devices,
        .listen = t->listen,
        .connect = t->connect,
        .accept = t->accept,
        .reg_mr_dmabuf = t->reg_mr_dmabuf,
        .dereg_mr = t->dereg_mr,
        .isend = t->isend,
        .irecv = t->irecv,
        .iflush = t->iflush,
        .test = t->test,
        .close_send = t->close_send,
        .close_recv = t->close_recv,
        .close_listen = t->close_listen,
        .irecv_consumed = t->irecv_consumed,
    };
}

/* The first required member that is NULL. TCPX has no regMrDmaBuf; iflush is never called. */
static const char *hole(const struct tarn_tcpx_plugin *p)
{
    const struct tarn_tcpx_v7 *c = &p->calls;
    const bool properties = p->v6   ? p->v6->get_properties != NULL
                            : p->v8 ? p->v8->get_properties != NULL
                                    : c->get_properties != NULL;
    const struct {
        const char *name;
        bool there;
    } needed[] = {
        {"devices", c->devices},
        {"getProperties", properties},
        {"listen", c->listen},
        {"connect", p->v6 ? p->v6->connect != NULL : c->connect != NULL},
        {"accept", p->v6 ? p->v6->accept != NULL : c->accept != NULL},
        {"regMr", p->v8 ? p->v8->reg_mr != NULL : c->reg_mr != NULL},
        {"deregMr", c->dereg_mr},
        {"isend", c->isend},
        {"irecv", c->irecv},
        {"test", c->test},
        {"closeSend", c->close_send},
        {"closeRecv", c->close_recv},
        {"closeListen", c->close_listen},
    };
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!needed[i].there)
            return needed[i].name;
    return NULL;
}

/* Reads the table as it is now: some plugins export only its name and init(), which fills in the rest. */
static bool read_table(struct library *l)
{
    struct tarn_tcpx_plugin *p = &l->plugin;
    const struct tarn_tcpx_v7 *v7 = dlsym(l->handle, TARN_TCPX_SYMBOL_V7);
    if (v7) {
        p->version = 7;
        p->calls = *v7;
    } else if ((p->v8 = dlsym(l->handle, TARN_TCPX_SYMBOL_V8))) {
        p->version = 8;
        p->calls = from_v8(p->v8);
    } else if ((p->v6 = dlsym(l->handle, TARN_TCPX_SYMBOL_V6))) {
        p->version = 6;
        p->calls = from_v6(p->v6);
    } else {
        return false;
    }
    return true;
}

static int broken(const struct tarn_tcpx_plugin *p, const char *name, const char *when)
{
    return tarn_fail(
        TARN_E_VERSION,
        "tcpx plugin %s: %s is NULL in its table of version %d%s: it is broken, name another with "
        "tcpx-plugin",
        p->path, name, p->version, when);
}

static int take_symbols(struct library *l)
{
    struct tarn_tcpx_plugin *p = &l->plugin;
    struct link_map *map;
    if (l->looked)
        return 0;
    *p = (struct tarn_tcpx_plugin){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    bool known = dlinfo(l->handle, RTLD_DI_LINKMAP, &map) == 0;
    snprintf(p->path, sizeof(p->path), "%s", known ? map->l_name : "?");
    if (!read_table(l))
        return tarn_fail(TARN_E_VERSION,
                         "tcpx plugin %s: has none of ncclNetPlugin_v7, _v8 and _v6: install a version of it "
                         "that has, or name another with tcpx-plugin",
                         p->path);
    if (!p->calls.name || !p->calls.init)
        return broken(p, p->calls.name ? "init" : "name", "");
    snprintf(p->name, sizeof(p->name), "%s", p->calls.name);
    p->gpudirect = strncmp(p->name, "GPUDirectTCPX", 13) == 0;
    l->looked = true;
    return 0;
}

/* --- starting ----------------------------------------------------------------------------------- */

/* The plugin for TCPX ends the process if the driver it was linked to does not start. */
static int check_driver(const struct tarn_tcpx_plugin *p)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver)
        return 0;
    int (*cu_init)(unsigned int) = (int (*)(unsigned int))dlsym(driver, "cuInit");
    int rc = cu_init ? cu_init(0) : 0;
    dlclose(driver);
    return rc ? tarn_fail(
                    TARN_E_UNAVAILABLE,
                    "tcpx plugin %s: the CUDA driver does not start (cuInit gave %d), and the plugin would "
                    "end the process: see nvidia-smi, or leave tcpx out of the transports",
                    p->path, rc)
              : 0;
}

static void describe(struct tarn_tcpx_device *d, int dev, const struct tarn_tcpx_properties_v7 *props)
{
    if (props->name)
        snprintf(d->name, sizeof(d->name), "%s", props->name);
    else
        snprintf(d->name, sizeof(d->name), "device %d", dev);
    snprintf(d->pci, sizeof(d->pci), "%s", props->pci_path ? props->pci_path : "");
    d->mode = props->device_type == TARN_TCPX_DEVICE_UNPACK ? TARN_TCPX_UNPACK : TARN_TCPX_PLAIN;
    d->host = props->memory & TARN_TCPX_HOST;
    d->gpu = (props->memory & TARN_TCPX_CUDA) && props->pci_path;
    d->speed_mbit = props->speed;
}

/* Converts any version's properties to version 7's. */
static int get_properties(const struct tarn_tcpx_plugin *p, int dev, struct tarn_tcpx_properties_v7 *props)
{
    struct tarn_tcpx_properties_v6 v6 = {0};
    struct tarn_tcpx_properties_v8 v8 = {0};
    int rc;
    if (p->version == 7)
        return p->calls.get_properties(dev, props);
    if (p->v6) {
        rc = p->v6->get_properties(dev, &v6);
        *props = (struct tarn_tcpx_properties_v7){
            .name = v6.name, .pci_path = v6.pci_path, .memory = v6.memory, .speed = v6.speed};
    } else {
        rc = p->v8->get_properties(dev, &v8);
        *props = (struct tarn_tcpx_properties_v7){.name = v8.name,
                                                  .pci_path = v8.pci_path,
                                                  .memory = v8.memory,
                                                  .speed = v8.speed,
                                                  .device_type = v8.device_type,
                                                  .device_version = v8.device_version};
    }
    return rc;
}

static int add_device(struct tarn_tcpx_plugin *p, int dev)
{
    struct tarn_tcpx_properties_v7 props = {0};
    int rc = get_properties(p, dev, &props);
    if (rc)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "tcpx plugin %s: getProperties(%d) gave %d: its own lines in the log "
                         "say why",
                         p->path, dev, rc);
    bool unpack = props.device_type == TARN_TCPX_DEVICE_UNPACK;
    if ((!unpack && props.device_type != TARN_TCPX_DEVICE_HOST) ||
        (unpack && props.device_version != TARN_TCPX_UNPACK_VERSION))
        return tarn_fail(TARN_E_VERSION,
                         "tcpx plugin %s: device %d has type %d version %d, and tarn knows type 0, and 1 in "
                         "version %d: install a version of the plugin that has these",
                         p->path, dev, props.device_type, props.device_version, TARN_TCPX_UNPACK_VERSION);
    if (unpack && !p->calls.irecv_consumed)
        return tarn_fail(
            TARN_E_VERSION,
            "tcpx plugin %s: device %d wants receives unpacked, and irecvConsumed is NULL: it is "
            "broken, name another with tcpx-plugin",
            p->path, dev);
    describe(&p->devices[p->ndevices++], dev, &props);
    return 0;
}

static int add_devices(struct tarn_tcpx_plugin *p)
{
    const char *interfaces = getenv(TARN_TCPX_INTERFACES_VARIABLE);
    int n = 0, rc = p->calls.devices(&n);
    if ((rc || n <= 0) && !p->gpudirect)
        return tarn_fail(
            TARN_E_UNAVAILABLE,
            "tcpx plugin %s: no device (devices gave %d): its own lines in the log say why, and its "
            "documentation which devices it takes",
            p->path, rc);
    if (rc || n <= 0)
        return tarn_fail(
            TARN_E_UNAVAILABLE,
            "tcpx plugin %s: no device (devices gave %d): NCCL_GPUDIRECTTCPX_SOCKET_IFNAME names the "
            "interfaces it may use and is %.128s; they must be there and up",
            p->path, rc, interfaces ? interfaces : "not set");
    for (int dev = 0; dev < n && dev < TARN_TCPX_DEVICES; dev++)
        if ((rc = add_device(p, dev)))
            return rc;
    return 0;
}

static int begin(struct library *l)
{
    struct tarn_tcpx_plugin *p = &l->plugin;
    l->begun = true;
    int rc = p->calls.init(tarn_tcpx_log_line);
    if (rc)
        return tarn_fail(
            TARN_E_UNAVAILABLE,
            "tcpx plugin %s: init gave %d: its own lines in the log say why; it can be started again "
            "only in a new process",
            p->path, rc);
    read_table(l);
    const char *name = hole(p);
    return name ? broken(p, name, ", behind init()") : add_devices(p);
}

static int start(struct library *l)
{
    if (l->begun) {
        if (l->status)
            tarn_last_error_set(l->error);
        return l->status;
    }
    int rc = l->plugin.gpudirect ? check_driver(&l->plugin) : 0;
    if (rc == 0)
        rc = tarn_tcpx_env(l->plugin.gpudirect, &l->plugin.chunk_bytes);
    if (rc)
        return rc;
    l->plugin.window = tarn_tcpx_env_window();
    l->plugin.wait_ms = tarn_tcpx_env_wait_ms();
    l->status = begin(l);
    if (l->status)
        snprintf(l->error, sizeof(l->error), "%s", tarn_last_error());
    return l->status;
}

void tarn_tcpx_plugin_prepare(const char *path)
{
    char usual[TARN_TCPX_PATH];
    uint32_t chunk_bytes;
    pthread_mutex_lock(&opening);
    if (path && *path)
        tarn_tcpx_env(tarn_tcpx_is_meant(), &chunk_bytes);
    else if (tarn_tcpx_plugin_usual(usual) == 0)
        tarn_tcpx_env(true, &chunk_bytes);
    pthread_mutex_unlock(&opening);
}

/* Finds a library with a table that can be started. */
static int look(const char *path, struct library **l_p)
{
    void *handle;
    int rc = find(path, &handle);
    if (rc)
        return rc;
    *l_p = library_of(handle);
    return *l_p ? take_symbols(*l_p) : tarn_fail(TARN_E_NO_MEMORY, "tcpx plugin: no memory to describe it");
}

int tarn_tcpx_plugin_find(const char *path, const struct tarn_tcpx_plugin **p_p)
{
    struct library *l;
    pthread_mutex_lock(&opening);
    int rc = look(path, &l);
    pthread_mutex_unlock(&opening);
    if (rc == 0)
        *p_p = &l->plugin;
    return rc;
}

static int open_locked(const char *path, struct tarn_tcpx_plugin **p_p)
{
    struct library *l;
    int rc = look(path, &l);
    if (rc == 0)
        rc = start(l);
    if (rc == 0)
        *p_p = &l->plugin;
    return rc;
}

int tarn_tcpx_plugin_open(const char *path, const struct tarn_logger *log, struct tarn_tcpx_plugin **p_p)
{
    int rc = tarn_tcpx_log_add(log);
    if (rc)
        return rc;
    pthread_mutex_lock(&opening);
    rc = open_locked(path, p_p);
    pthread_mutex_unlock(&opening);
    if (rc)
        tarn_tcpx_log_remove(log);
    return rc;
}

void tarn_tcpx_plugin_close(const struct tarn_logger *log)
{
    tarn_tcpx_log_remove(log);
}
