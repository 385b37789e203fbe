/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both halves: is the transport usable here? */
#include "transport/tcpx/tcpx.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

/* Checks that the plugin's file exists; loads nothing. */
int tarn_tcpx_probe(void)
{
    char usual[TARN_TCPX_PATH];
    struct tarn_tcpx_settings settings;
    int rc = tarn_tcpx_settings(&settings);
    const char *path = settings.plugin;
    if (!rc && !path)
        rc = tarn_tcpx_plugin_usual(usual);
    if (rc)
        return rc;
    /* The loader finds names without a slash when they are needed. */
    if (!path || !strchr(path, '/') || access(path, R_OK) == 0)
        return 0;
    return tarn_fail(TARN_E_UNAVAILABLE, TARN_TCPX_PLUGIN_VARIABLE "=%s: %m: name an existing one", path);
}
