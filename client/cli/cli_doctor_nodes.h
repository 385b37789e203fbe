/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that nodes answer and that clients can put to and get from each pool. */
#ifndef TARN_CLIENT_CLI_DOCTOR_NODES_H
#define TARN_CLIENT_CLI_DOCTOR_NODES_H

#include "client/cli/cli_checks.h"

void doctor_nodes(struct doctor *d);

#endif
