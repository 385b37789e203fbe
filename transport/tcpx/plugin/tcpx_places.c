/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the network plugin if the user named none. All callers ask here, so the doctor shows what the
 * transport uses.
 *
 * Nothing is loaded to find out, because plugins start threads and load drivers. So this file searches the
 * loader's folders itself, except those known only to the loader's cache (/etc/ld.so.conf).
 *
 * File names of TCPX's own are accepted anywhere. A name that NCCL uses for any fabric is accepted only if
 * settings call for TCPX, since containers ship plugins for InfiniBand under it.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

#define ANY_FABRIC "libnccl-net.so"
#define NCCL_VARIABLE "NCCL_NET_PLUGIN"
#define RXDM "/run/tcpx"

static const char *const own[] = {"libnccl-net-tcpx.so", "/usr/local/tcpx/lib64/libnccl-net.so",
                                  "/var/lib/tcpx/lib64/libnccl-net.so"};
enum { OWN = sizeof(own) / sizeof(own[0]) };

static bool is_there(const char *folder, const char *name, char path[TARN_TCPX_PATH])
{
    int n = snprintf(path, TARN_TCPX_PATH, "%s%s%s", folder, *folder ? "/" : "", name);
    return n < TARN_TCPX_PATH && access(path, R_OK) == 0;
}

/* The system's folders and LD_LIBRARY_PATH as of the process's start. NULL: unknown. */
static Dl_serinfo *loader_folders(void)
{
    void *self = dlopen(NULL, RTLD_LAZY);
    Dl_serinfo size, *list = NULL;
    if (!self)
        return NULL;
    if (dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0 && (list = malloc(size.dls_size)) &&
        (dlinfo(self, RTLD_DI_SERINFOSIZE, list) || dlinfo(self, RTLD_DI_SERINFO, list))) {
        free(list);
        list = NULL;
    }
    dlclose(self);
    return list;
}

static bool search(const char *name, char path[TARN_TCPX_PATH])
{
    if (strchr(name, '/'))
        return is_there("", name, path);
    Dl_serinfo *list = loader_folders();
    bool found = false;
    for (unsigned i = 0; list && i < list->dls_cnt && !found; i++)
        found = is_there(list->dls_serpath[i].dls_name, name, path);
    free(list);
    return found;
}

/* Looks only at variables that tarn never sets: those that it sets are inherited by other processes. */
bool tarn_tcpx_is_meant(void)
{
    return tarn_env_raw(TARN_TCPX_INTERFACES_VARIABLE) || tarn_env_raw(TARN_TCPX_CONTROL_VARIABLE) ||
           access(RXDM, F_OK) == 0;
}

/* Reads the variable as NCCL does: a library, the end of its name, or "none". */
static bool search_any_fabric(const char *named, char path[TARN_TCPX_PATH])
{
    char name[TARN_TCPX_PATH];
    if (!named)
        return search(ANY_FABRIC, path);
    if (strcmp(named, "none") == 0)
        return false;
    if (search(named, path))
        return true;
    int n = snprintf(name, sizeof(name), "libnccl-net-%s.so", named);
    return !strchr(named, '/') && n < (int)sizeof(name) && search(name, path);
}

int tarn_tcpx_plugin_usual(char path[TARN_TCPX_PATH])
{
    const char *named = tarn_env(NCCL_VARIABLE);
    bool meant = tarn_tcpx_is_meant();
    if (meant && named && search_any_fabric(named, path))
        return 0;
    for (int i = 0; i < OWN; i++)
        if (search(own[i], path))
            return 0;
    bool there = search_any_fabric(named, path);
    if (meant && there)
        return 0;
    if (there)
        return tarn_fail(TARN_E_UNAVAILABLE,
                         "tcpx plugin: %.80s is there, but neither " TARN_TCPX_INTERFACES_VARIABLE
                         " nor " RXDM
                         " says that it is for TCPX: name it with TARN_TCPX_PLUGIN if it is meant",
                         path);
    return tarn_fail(
        TARN_E_UNAVAILABLE,
        "tcpx plugin: none of %s, %s and %s: install TCPX, or name a plugin with TARN_TCPX_PLUGIN", own[0],
        own[1], own[2]);
}
