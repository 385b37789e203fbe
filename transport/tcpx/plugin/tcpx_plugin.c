/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, checks and starts a network plugin. tcpx_calls.c has the calls into it. */
#include "transport/tcpx/plugin/tcpx_plugin.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/env.h"
#include "base/error.h"

/* A library that was found, and the outcome. Never freed. */
struct library {
    struct library *next;
    void *handle;
    bool looked; /* its table is there */
    bool begun;  /* init() was called; the result is final */
    struct tarn_reason result;
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
    struct library *l;
    LL_SEARCH_SCALAR(libraries, l, handle, handle);
    if (!l && (l = calloc(1, sizeof(*l)))) {
        l->handle = handle;
        LL_PREPEND(libraries, l);
    }
    return l;
}

/* --- symbols ------------------------------------------------------------------------------------ */

/* The first required member that is NULL. TCPX has no regMrDmaBuf; iflush is never called. */
static const char *hole(const struct tarn_tcpx_plugin *p)
{
    const struct tarn_tcpx_table *c = &p->calls;
    const struct {
        const char *name;
        bool there;
    } needed[] = {
        {"devices", c->devices},
        {"getProperties", c->get_properties.v7},
        {"listen", c->listen},
        {"connect", c->connect.v7},
        {"accept", c->accept.v7},
        {"regMr", c->reg_mr.v6},
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
    static const struct {
        const char *symbol;
        int version;
        size_t bytes;
    } tables[] = {{TARN_TCPX_SYMBOL_V7, 7, sizeof(struct tarn_tcpx_table)},
                  {TARN_TCPX_SYMBOL_V8, 8, sizeof(struct tarn_tcpx_table)},
                  {TARN_TCPX_SYMBOL_V6, 6, TARN_TCPX_TABLE_V6}};
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        const void *table = dlsym(l->handle, tables[i].symbol);
        if (!table)
            continue;
        l->plugin.version = tables[i].version;
        memcpy(&l->plugin.calls, table, tables[i].bytes);
        return true;
    }
    return false;
}

static int broken(const struct tarn_tcpx_plugin *p, const char *name, const char *when)
{
    return tarn_fail(
        TARN_E_VERSION,
        "tcpx plugin %s: %s is NULL in its table of version %d%s: it is broken, name another with "
        "tcpx-plugin",
        p->path, name, p->version, when);
}

static void set_name(struct tarn_tcpx_plugin *p)
{
    snprintf(p->name, sizeof(p->name), "%s", p->calls.name);
    snprintf(p->word, sizeof(p->word), "%s", *p->name ? p->name : "-");
    for (char *c = p->word; *c; c++)
        *c = isgraph((unsigned char)*c) ? *c : '_';
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
    set_name(p);
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

/* Version 6's are the beginning of version 7's. */
static int get_properties(const struct tarn_tcpx_plugin *p, int dev, struct tarn_tcpx_properties_v7 *props)
{
    struct tarn_tcpx_properties_v8 v8 = {0};
    if (p->version < 8)
        return p->calls.get_properties.v7(dev, props);
    int rc = p->calls.get_properties.v8(dev, &v8);
    *props = (struct tarn_tcpx_properties_v7){.name = v8.name,
                                              .pci_path = v8.pci_path,
                                              .memory = v8.memory,
                                              .speed = v8.speed,
                                              .device_type = v8.device_type,
                                              .device_version = v8.device_version};
    return rc;
}

static int add_device(struct tarn_tcpx_plugin *p, int dev)
{
    struct tarn_tcpx_properties_v7 props = {0};
    int rc = get_properties(p, dev, &props);
    if (rc)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "tcpx plugin %s: getProperties(%d) gave %d: its own lines in the log say why",
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
    const char *interfaces = tarn_env_raw(TARN_TCPX_INTERFACES_VARIABLE);
    p->start = TARN_TCPX_AT_DEVICES;
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
    p->start = TARN_TCPX_AT_PROPERTIES;
    for (int dev = 0; dev < n && dev < TARN_TCPX_DEVICES; dev++)
        if ((rc = add_device(p, dev)))
            return rc;
    return 0;
}

static int begin(struct library *l)
{
    struct tarn_tcpx_plugin *p = &l->plugin;
    l->begun = true;
    p->start = TARN_TCPX_AT_INIT;
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
    if (l->begun)
        return tarn_reason_fail(&l->result);
    int rc = l->plugin.gpudirect ? check_driver(&l->plugin) : 0;
    if (rc == 0)
        rc = tarn_tcpx_env(l->plugin.gpudirect, &l->plugin.chunk_bytes);
    if (rc)
        return rc;
    l->plugin.window = tarn_tcpx_env_window();
    l->plugin.wait_ms = tarn_tcpx_env_wait_ms();
    return tarn_reason_keep(&l->result, begin(l));
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
