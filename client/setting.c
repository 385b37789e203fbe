/* SPDX-License-Identifier: Apache-2.0 */
#include "client/setting.h"

#include "base/env.h"

const char *tarn_setting(const char *given, const char *variable)
{
    return given ? given : tarn_env(variable);
}
