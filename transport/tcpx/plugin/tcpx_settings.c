/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/plugin/tcpx_settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/text.h"

enum { SHORTEST_MS = 100, LONGEST_MS = 60000 };

static const char *const way_names[] = {"d2d", "host", "kernel"};
enum { WAYS = sizeof(way_names) / sizeof(way_names[0]) };

const char *tarn_tcpx_way_name(enum tarn_tcpx_way way)
{
    return way_names[way];
}

int tarn_tcpx_way_parse(const char *text, enum tarn_tcpx_way *way_p)
{
    *way_p = TARN_TCPX_WAY_KERNEL;
    if (!text || !*text)
        return 0;
    for (int i = 0; i < WAYS; i++)
        if (!strcmp(text, way_names[i])) {
            *way_p = (enum tarn_tcpx_way)i;
            return 0;
        }
    const char *near = tarn_nearest(text, way_names, WAYS);
    return tarn_fail(
        TARN_E_CONFIG,
        "TARN_TCPX_UNPACK_IMPL=%s: there is no such way to unpack: name d2d, host or kernel%s%s%s", text,
        near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int parse_stall(const char *text, uint32_t *ms_p)
{
    uint64_t ms = 0;
    if (text && (tarn_u64_parse(text, strlen(text), 10, LONGEST_MS, &ms) || ms < SHORTEST_MS))
        return tarn_fail(TARN_E_CONFIG,
                         TARN_TCPX_STALL_VARIABLE "=%.32s: not in %d..%d: unset it, or set it to 3000", text,
                         SHORTEST_MS, LONGEST_MS);
    *ms_p = (uint32_t)ms;
    return 0;
}

int tarn_tcpx_settings(struct tarn_tcpx_settings *s)
{
    s->plugin = tarn_env(TARN_TCPX_PLUGIN_VARIABLE);
    int rc = tarn_tcpx_way_parse(tarn_env(TARN_TCPX_UNPACK_VARIABLE), &s->way);
    return rc ? rc : parse_stall(tarn_env(TARN_TCPX_STALL_VARIABLE), &s->stall_ms);
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
