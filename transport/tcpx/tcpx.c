/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both halves: is the transport usable here? */
#include "transport/tcpx/tcpx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

/* Checks that the plugin's file exists; loads nothing. */
int tarn_tcpx_probe(char *why, size_t why_bytes)
{
    char usual[TARN_TCPX_PATH];
    struct tarn_tcpx_settings settings;
    int rc = tarn_tcpx_settings(&settings);
    const char *path = settings.plugin;
    if (!rc && !path)
        rc = tarn_tcpx_plugin_usual(usual);
    if (rc) {
        snprintf(why, why_bytes, "%s", tarn_last_error());
        return TARN_E_UNAVAILABLE;
    }
    /* The loader finds names without a slash when they are needed. */
    if (!path || !strchr(path, '/') || access(path, R_OK) == 0)
        return 0;
    snprintf(why, why_bytes, TARN_TCPX_PLUGIN_VARIABLE "=%s: %s: name an existing one", path,
             strerror(errno));
    return TARN_E_UNAVAILABLE;
}
