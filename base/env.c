/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include <stdlib.h>

const char *tarn_env_raw(const char *name)
{
    return secure_getenv(name);
}

const char *tarn_env(const char *name)
{
    const char *value = tarn_env_raw(name);
    return value && *value ? value : NULL;
}
