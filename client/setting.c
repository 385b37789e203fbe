/* SPDX-License-Identifier: Apache-2.0 */
#include "client/setting.h"

#include <stdlib.h>

const char *tarn_setting(const char *given, const char *variable)
{
    const char *env = given ? NULL : secure_getenv(variable);
    return env && *env ? env : given;
}
