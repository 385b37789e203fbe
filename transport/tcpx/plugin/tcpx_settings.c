/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/plugin/tcpx_settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

enum { SHORTEST_MS = 100, LONGEST_MS = 60000 };

static int parse_stall(const char *text, uint32_t *ms_p)
{
    uint64_t ms = 0;
    if (text && *text && (tarn_u64_parse(text, strlen(text), 10, LONGEST_MS, &ms) || ms < SHORTEST_MS))
        return tarn_fail(TARN_E_CONFIG,
                         TARN_TCPX_STALL_VARIABLE "=%.32s: not in %d..%d: unset it, or set it to 3000", text,
                         SHORTEST_MS, LONGEST_MS);
    *ms_p = (uint32_t)ms;
    return 0;
}

int tarn_tcpx_settings(struct tarn_tcpx_settings *s)
{
    const char *plugin = secure_getenv(TARN_TCPX_PLUGIN_VARIABLE);
    s->plugin = plugin && *plugin ? plugin : NULL;
    int rc = tarn_tcpx_way_parse(secure_getenv(TARN_TCPX_UNPACK_VARIABLE), &s->way);
    return rc ? rc : parse_stall(secure_getenv(TARN_TCPX_STALL_VARIABLE), &s->stall_ms);
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
