/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: each program (or subcommand) has one table. The parser, the environment names, the configuration
 * file, --help, --print-conf, the man page and docs/options.md come from it.
 *
 * Order: default, configuration file, environment, flag; the last wins. For an option named
 * "heartbeat-ms" the flag is --heartbeat-ms VALUE (or =VALUE), the variable TARN_HEARTBEAT_MS, the
 * file line "heartbeat-ms = VALUE" (# begins a comment). A BOOL flag takes no value (--json) and has
 * a --no- form. A LIST may be given several times and replaces the lower source's list. Unknown names
 * in any of the three (variables: only with `env_check`) fail with the nearest name.
 */
#ifndef TARN_BASE_OPTION_H
#define TARN_BASE_OPTION_H

#include "base/option/option_table.h"

/*
 * Fills `config`, which the caller has zeroed. An option named "config" names the configuration file.
 * Returns CONFIG on any error. Call tarn_options_free() in any case; config owns its strings.
 */
int tarn_options_parse(const struct tarn_program *p, int argc, char **argv, void *config,
                       struct tarn_options_parsed *out);
void tarn_options_free(const struct tarn_program *p, void *config, struct tarn_options_parsed *parsed);

#endif
