/* SPDX-License-Identifier: Apache-2.0 */
/* tarn ls --windows */
#ifndef TARN_CLIENT_CLI_WINDOWS_H
#define TARN_CLIENT_CLI_WINDOWS_H

#include "client/cli/cli.h"

/* Prints the names of leases that match the glob (NULL: all). */
int cli_windows_list(struct cli *c, const char *glob, bool details);

#endif
