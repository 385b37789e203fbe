/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli_checks.h"

#include <glob.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define SKEW_MS 1000

static const struct {
    const char *name;
    enum cli_colour colour;
} states[] = {{"ok", CLI_GREEN}, {"optional", CLI_YELLOW}, {"missing", CLI_RED}};

/* One line: the name or the remedy may be text of a node or a plugin. */
static void add_remedy(struct tarn_buf *remedies, const char *name, const char *remedy)
{
    size_t at = remedies->bytes;

    tarn_buf_printf(remedies, "  %s: %s", name, remedy);
    if (!remedies->failed)
        tarn_one_line(remedies->data + at);
    tarn_buf_printf(remedies, "\n");
}

void doctor_check(struct doctor *d, const char *name, enum doctor_state state, const char *needed,
                  const char *remedy, const char *fmt, ...)
{
    char found[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(found, sizeof found, fmt, ap);
    va_end(ap);
    cli_cell(&d->table, "%s", name);
    cli_cell_in(&d->table, states[state].colour, "%s", states[state].name);
    cli_row(&d->table, needed, found, NULL);
    if (state != GOOD)
        add_remedy(state == MISSING ? &d->needed : &d->optional, name, remedy);
    json_array_append_new(d->checks,
                          json_pack("{s:o, s:s, s:s, s:o, s:o}", "name", cli_json_text(name), "state",
                                    states[state].name, "needed", needed, "found", cli_json_text(found),
                                    "remedy", cli_json_text(state == GOOD ? NULL : remedy)));
    d->missing += state == MISSING;
}

/* --- clocks ------------------------------------------------------------------------------------- */

void doctor_clock(struct doctor *d, const char *whose, uint64_t told_ms, uint64_t asked_ms)
{
    uint64_t now = tarn_unix_ms();
    char title[100];

    snprintf(title, sizeof title, "clock of %s", whose);
    /* The clock was read between these two moments. */
    uint64_t behind = told_ms < asked_ms ? asked_ms - told_ms : 0;
    uint64_t ahead = told_ms > now ? told_ms - now : 0;
    uint64_t off = behind + ahead;
    doctor_check(
        d, title, off <= SKEW_MS ? GOOD : MISSING, "within 1 s of this host's",
        "have both hosts set by the same time servers (chronyc tracking, timedatectl): after a loss of Redis "
        "these clocks say which of two values is the younger one",
        off <= SKEW_MS ? "alike" : "%" PRIu64 ".%" PRIu64 " s %s", off / 1000, off / 100 % 10,
        behind ? "behind" : "ahead");
}

/* --- devices ------------------------------------------------------------------------------------ */

/* Adds the models, comma-separated, and returns their number. */
static size_t list_gpus(struct tarn_buf *b)
{
    char path[400], line[128];
    glob_t gpus = {0};

    glob("/proc/driver/nvidia/gpus/*", 0, NULL, &gpus);
    for (size_t i = 0; i < gpus.gl_pathc; i++) {
        const char *name = strrchr(gpus.gl_pathv[i], '/') + 1;
        snprintf(path, sizeof path, "%s/information", gpus.gl_pathv[i]);
        cli_first_line(path, line, sizeof line);
        const char *model = strncmp(line, "Model:", 6) == 0 ? line + 6 + strspn(line + 6, " \t") : name;
        tarn_buf_printf(b, "%s%s", i ? ", " : "", model);
    }
    size_t n = gpus.gl_pathc;
    globfree(&gpus);
    return n;
}

void doctor_driver(char version[32])
{
    char line[256];

    version[0] = '\0';
    cli_first_line("/proc/driver/nvidia/version", line, sizeof line);
    for (char *rest = line, *word; !version[0] && (word = strsep(&rest, " \t"));)
        if (word[0] >= '1' && word[0] <= '9' && strchr(word, '.'))
            snprintf(version, 32, "%s", word);
}

void doctor_gpus(struct doctor *d)
{
    struct tarn_buf gpus = {0};
    bool driver = access("/proc/driver/nvidia/version", R_OK) == 0;
    size_t n = list_gpus(&gpus);
    bool nodes = access("/dev/nvidiactl", F_OK) == 0;

    if (n && nodes)
        doctor_check(d, "GPU", GOOD, "for GPU pools", "", "%s", gpus.failed ? "?" : gpus.data);
    else
        doctor_check(
            d, "GPU", OPTIONAL, "for GPU pools",
            driver ? "the driver is loaded, but this process does not see a device: docker run --gpus all"
                   : "only GPU pools and buffers use it: install the NVIDIA driver",
            "%s",
            driver  ? "driver without a device node"
            : nodes ? "device nodes without a driver"
                    : "none");
    tarn_buf_free(&gpus);
}
