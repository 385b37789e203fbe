/* SPDX-License-Identifier: Apache-2.0 */
/* Checks everything the tcpx transport needs. */
#ifndef TARN_CLIENT_CLI_TCPX_H
#define TARN_CLIENT_CLI_TCPX_H

#include "client/cli/cli_checks.h"

void doctor_tcpx(struct doctor *d);

#endif
