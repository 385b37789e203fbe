/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands that play traces share: reading of traces, and of their options. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/option/option.h"
#include "base/option/option_print.h"
#include "client/bench/bench.h"

int bench_trace_open(struct bench_trace *t, const char *path)
{
    *t = (struct bench_trace){.path = path};
    if (!path)
        return tarn_fail(TARN_E_CONFIG, "no trace: give --trace FILE");
    t->file = fopen(path, "re");
    return t->file ? 0 : tarn_fail(TARN_E_CONFIG, "--trace %s: %m", path);
}

static int take_ids(struct bench_trace *t, const json_t *ids)
{
    if (!json_is_array(ids))
        return tarn_fail(TARN_E_FORMAT, "%s: request %llu has no list \"hash_ids\"", t->path,
                         (unsigned long long)t->requests);
    t->n = json_array_size(ids);
    if (t->n > t->room) {
        free(t->ids);
        t->room = 2 * t->n;
        t->ids = calloc(t->room, sizeof *t->ids);
    }
    if (!t->ids && t->n) {
        t->room = 0;
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory for a request of %zu blocks", t->path, t->n);
    }
    for (size_t i = 0; i < t->n; i++)
        t->ids[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
    return 0;
}

int bench_trace_next(struct bench_trace *t, bool *more)
{
    char *text = NULL;
    size_t room = 0;
    json_error_t why;

    *more = getline(&text, &room, t->file) > 0;
    json_t *line = *more ? json_loads(text, 0, &why) : NULL;
    free(text);
    if (!*more)
        return 0;
    t->requests++;
    if (!line)
        return tarn_fail(TARN_E_FORMAT, "%s: request %llu is no JSON: %s", t->path,
                         (unsigned long long)t->requests, why.text);
    t->ms = json_number_value(json_object_get(line, "timestamp"));
    int rc = take_ids(t, json_object_get(line, "hash_ids"));
    json_decref(line);
    return rc;
}

void bench_trace_close(struct bench_trace *t)
{
    if (t->file)
        fclose(t->file);
    free(t->ids);
}

int bench_program_main(const struct tarn_program *p, int argc, char **argv, void *config, const bool *help,
                       int (*run)(const void *config))
{
    struct tarn_options_parsed parsed = {0};
    struct tarn_buf text = {0};
    int status = 2;

    if (tarn_options_parse(p, argc, argv, config, &parsed) != 0) {
        fprintf(stderr, "%s: %s\n", p->name, tarn_last_error());
    } else if (*help) {
        tarn_options_help(p, &text);
        status = text.failed || fputs(text.data, stdout) < 0;
    } else if (parsed.nargs) {
        fprintf(stderr, "%s: what is \"%s\"? All is given by options\n", p->name, parsed.args[0]);
    } else {
        status = run(config);
    }
    tarn_buf_free(&text);
    tarn_options_free(p, config, &parsed);
    return status;
}
