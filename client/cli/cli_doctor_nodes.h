/* SPDX-License-Identifier: Apache-2.0 */
/* Do the nodes answer, and does each pool take and give what a client moves? */
#ifndef TARN_CLIENT_CLI_DOCTOR_NODES_H
#define TARN_CLIENT_CLI_DOCTOR_NODES_H

#include "client/cli/cli_checks.h"

void doctor_nodes(struct doctor *d);

#endif
