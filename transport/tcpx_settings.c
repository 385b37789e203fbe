/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx_settings.h"

#include <stdlib.h>

#include "base/error.h"

int tarn_tcpx_settings(struct tarn_tcpx_settings *s)
{
    const char *plugin = secure_getenv(TARN_TCPX_PLUGIN_VARIABLE);
    s->plugin = plugin && *plugin ? plugin : NULL;
    return tarn_tcpx_way_parse(secure_getenv(TARN_TCPX_UNPACK_VARIABLE), &s->way);
}

static int put(const char *name, const char *value)
{
    return value && setenv(name, value, 1) ? tarn_fail(TARN_E_NO_MEMORY, "environment: %s: %m", name) : 0;
}

int tarn_tcpx_settings_export(const char *plugin, const char *unpack)
{
    int rc = put(TARN_TCPX_PLUGIN_VARIABLE, plugin);
    return rc ? rc : put(TARN_TCPX_UNPACK_VARIABLE, unpack);
}
