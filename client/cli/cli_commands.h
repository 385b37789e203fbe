/* SPDX-License-Identifier: Apache-2.0 */
/* The commands. Each is defined in its cli_*.c. */
#ifndef TARN_CLIENT_CLI_COMMANDS_H
#define TARN_CLIENT_CLI_COMMANDS_H

#include "client/cli/cli.h"

extern const struct cli_command cli_put, cli_get, cli_ls, cli_stat, cli_rm, cli_pin, cli_unpin, cli_touch,
    cli_ttl, cli_info, cli_ping, cli_drain, cli_config, cli_doctor, cli_top, cli_events;

#endif
