/* SPDX-License-Identifier: Apache-2.0 */
/* tarn events: prints one line for each object that appears or disappears, as nodes report it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "client/cli/cli.h"
#include "client/cli/cli_text.h"

struct events_config {
    struct cli_common common;
    int64_t count, for_ms;
};

#define AT(member_) offsetof(struct events_config, member_)

static const struct tarn_option options[] = {
    CLI_COMMON_OPTIONS,
    CLI_INT("count", 'c', AT(count), "0", 0, INT64_MAX, "N", "End after so many events; 0: never."),
    CLI_INT("for-ms", 0, AT(for_ms), "0", 0, INT_MAX, "MS", "End after this time; 0: never."),
};

struct sink {
    const struct cli *c;
    int64_t left; /* events until the command ends; 0: no limit */
};

static int print_line(const char *what, const char *text, const char *node, const char *pool, uint64_t bytes)
{
    char when[16], size[16];
    time_t now = time(NULL);
    struct tm tm;

    if (!localtime_r(&now, &tm) || strftime(when, sizeof when, "%H:%M:%S", &tm) == 0)
        snprintf(when, sizeof when, "?");
    tarn_size_format(bytes, size);
    printf("%s  %-8s  %10s  %s/%s  %s\n", when, what, size, node, pool, text);
    return fflush(stdout) == 0 ? 0 : tarn_fail(TARN_E_SYSTEM, "standard output: %m");
}

/* Returns 1 to stop listening. */
static int print_event(void *arg, const char *what, const struct tarn_key *key, const char *node,
                       const char *pool, uint64_t bytes)
{
    struct sink *s = arg;
    char *text = cli_key_text(key);
    int rc;

    if (!text)
        return tarn_fail(TARN_E_NO_MEMORY, "no memory");
    if (s->c->common->json)
        rc = cli_print_json(json_pack("{s:I, s:s, s:s, s:s, s:s, s:I}", "time_ms", (json_int_t)tarn_unix_ms(),
                                      "event", what, "key", text, "node", node, "pool", pool, "bytes",
                                      (json_int_t)bytes),
                            true);
    else
        rc = print_line(what, text, node, pool, bytes);
    free(text);
    if (rc != 0)
        return rc;
    return s->left > 0 && --s->left == 0;
}

static int run(struct cli *c, const void *config)
{
    const struct events_config *o = config;
    struct sink sink = {c, o->count};
    int rc = cli_want_args(c, 0, 0, "");

    if (rc == 0)
        rc = cli_connect(c);
    do {
        if (rc == 0)
            rc = tarn_events(c->client, o->for_ms ? (uint32_t)o->for_ms : INT_MAX, print_event, &sink);
    } while (rc == 0 && o->for_ms == 0);
    return rc > 0 ? 0 : rc;
}

static const struct tarn_program program = {
    .name = "tarn events",
    .arguments = "",
    .brief = "print objects coming and going",
    .description = "Prints one line for each object that was stored, removed, evicted or has expired, until "
                   "interrupted. With --json each line is a JSON object: time_ms event key node pool bytes.",
    .examples = "tarn events --json | jq -r 'select(.event == \"evicted\") | .key'\n",
    CLI_OPTIONS(options),
};

const struct cli_command cli_events = {&program, sizeof(struct events_config), run};
