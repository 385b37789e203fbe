/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that this Redis can be the directory. */
#ifndef TARN_CLIENT_CLI_DOCTOR_REDIS_H
#define TARN_CLIENT_CLI_DOCTOR_REDIS_H

#include "client/cli/cli_checks.h"

bool doctor_redis(struct doctor *d);

#endif
