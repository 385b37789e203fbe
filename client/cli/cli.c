/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/option/option_value.h"
#include "client/check.h"

#define BYTES_A_SECOND (64ull << 20) /* a slower request may time out */

int cli_exit_status(int code)
{
    switch (tarn_error_class(code)) {
    case TARN_CLASS_NONE:
        return 0;
    case TARN_CLASS_MISS:
        return 1;
    case TARN_CLASS_REQUEST:
        return 2;
    case TARN_CLASS_RETRY:
        return 3;
    case TARN_CLASS_RECONNECT:
        return 4;
    case TARN_CLASS_RELOCATE:
        return 5;
    case TARN_CLASS_FATAL:
        return 6;
    }
    return 6;
}

const char *cli_status_name(int32_t status)
{
    return status == TARN_E_CANCELED ? "NOT_TRIED" : tarn_error_name(status);
}

json_t *cli_json_text(const char *text)
{
    json_t *string = text ? json_string(text) : json_null();
    struct tarn_buf escaped = {0};

    if (string)
        return string;
    for (; *text; text++)
        tarn_buf_printf(&escaped, (unsigned char)*text < 0x80 ? "%c" : "%%%02X", (unsigned char)*text);
    if (!escaped.failed)
        string = json_string(escaped.data);
    tarn_buf_free(&escaped);
    return string;
}

static enum tarn_option_source source_of(const struct cli *c, const char *option)
{
    for (size_t i = 0; i < c->program->noptions; i++)
        if (strcmp(c->program->options[i].name, option) == 0)
            return c->sources[i];
    return TARN_FROM_DEFAULT;
}

/* Names an environment variable that may be the cause, since these are easily forgotten; "" if none. */
static void environment(const struct cli *c, int code, char out[192])
{
    static const struct {
        int code;
        bool opening; /* only while the client is opened */
        const char *option;
    } causes[] = {
        {TARN_E_NOT_FOUND, false, "ns"},
        {TARN_E_NODE_DOWN, false, "ns"},
        {TARN_E_NOT_REACHABLE, false, "transports"},
        {TARN_E_UNAVAILABLE, true, "transports"},
        {TARN_E_CONFIG, true, "transports"},
        {TARN_E_TIMEOUT, false, "timeout-ms"},
    };
    char name[TARN_OPTION_NAME_MAX];

    out[0] = '\0';
    for (size_t i = 0; c->sources && i < CLI_COUNT(causes); i++) {
        if (causes[i].code != code || (causes[i].opening && !c->not_opened) ||
            source_of(c, causes[i].option) != TARN_FROM_ENV)
            continue;
        tarn_option_env_name(&(struct tarn_option){.name = causes[i].option}, name);
        snprintf(out, 192, "; %s=%.90s is set in the environment", name, tarn_env(name));
    }
}

/* Prints one line. False: no memory. */
static bool print_json_error(const struct cli *c, int code, const char *message)
{
    json_t *o = json_pack("{s:{s:s, s:s, s:o}}", "error", "command", c->name, "code", tarn_error_name(code),
                          "message", cli_json_text(message));
    bool printed = o && json_dumpf(o, stderr, JSON_COMPACT) == 0;

    json_decref(o);
    if (printed)
        fputc('\n', stderr);
    return printed;
}

int cli_error(struct cli *c, int code, const char *fmt, ...)
{
    struct tarn_buf sentence = {0};
    char cause[192];
    va_list ap;

    va_start(ap, fmt);
    tarn_buf_vprintf(&sentence, fmt, ap);
    va_end(ap);
    environment(c, code, cause);
    tarn_buf_printf(&sentence, "%s", cause);
    if (!sentence.failed)
        tarn_one_line(sentence.data);
    const char *said = sentence.failed ? tarn_strerror(code) : sentence.data;
    if (!c->json || !print_json_error(c, code, said))
        fprintf(stderr, "%s: %s\n", c->name, said);
    tarn_buf_free(&sentence);
    if (c->first_error == 0)
        c->first_error = code;
    return code;
}

/* The library writes keys as 'key', and long ones shorter. */
static bool names_key(const char *sentence, const struct tarn_key *key)
{
    char name[96], quoted[100];

    snprintf(quoted, sizeof quoted, "'%s'", tarn_key_text(key, name));
    return strstr(sentence, quoted);
}

void cli_item_error(struct cli *c, int code, const struct tarn_key *key, const struct tarn_reason *batch,
                    const char *remedy)
{
    char text[TARN_KEY_TEXT] = "";

    tarn_key_escape(key, text, sizeof text);
    if (names_key(batch->text, key))
        cli_error(c, code, "%s%s", batch->text, remedy);
    else if (code == batch->code && *batch->text && !strstr(batch->text, "key '"))
        cli_error(c, code, "%s: %s%s", text, batch->text, remedy);
    else
        cli_error(c, code, "%s: %s%s", text, tarn_strerror(code), remedy);
}

int cli_connect(struct cli *c)
{
    return cli_connect_with(c, source_of(c, "secret") == TARN_FROM_FLAG ? c->common->secret : NULL);
}

int cli_connect_with(struct cli *c, const char *secret)
{
    /* The library reads the environment itself and then names the variable in its sentences. */
    struct tarn_options o = {
        .size = sizeof o,
        .redis = source_of(c, "redis") == TARN_FROM_FLAG ? c->common->redis : NULL,
        .ns = c->common->ns,
        .transports = c->common->transports,
        .secret = secret,
        .timeout_ms = (uint32_t)c->common->timeout_ms,
    };

    int rc = tarn_open(&o, &c->client);
    c->not_opened = rc != 0;
    return rc;
}

int cli_want_args(const struct cli *c, int least, int most, const char *what)
{
    if (c->nargs < least)
        return tarn_fail(TARN_E_INVALID, "%s is missing: see `%s --help`", what, c->name);
    if (c->nargs > most)
        return tarn_fail(TARN_E_INVALID, "too many arguments (\"%s\"): see `%s --help`", c->args[most],
                         c->name);
    return 0;
}

uint32_t cli_timeout(const struct cli *c, uint64_t bytes)
{
    uint64_t ms = (uint64_t)c->common->timeout_ms + bytes / BYTES_A_SECOND * 1000;

    return ms < INT_MAX ? (uint32_t)ms : INT_MAX;
}
