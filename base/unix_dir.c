/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unix_dir.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"

int tarn_unix_path(const char *name, char *path, size_t bytes)
{
    const char *runtime = tarn_env("XDG_RUNTIME_DIR");
    if (runtime && runtime[0] == '/' && access(runtime, W_OK) == 0)
        return snprintf(path, bytes, "%s/tarn/%s.sock", runtime, name);
    return snprintf(path, bytes, "/tmp/tarn-%d/%s.sock", (int)geteuid(), name);
}

int tarn_unix_dir_check(const char *dir, const char *remedy)
{
    struct stat st;
    if (lstat(dir, &st))
        return tarn_fail(TARN_E_SYSTEM, "%s: %m: %s", dir, remedy);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return tarn_fail(TARN_E_CONFIG,
                         "%s: is not a directory that only this user may write to: remove it, or %s", dir,
                         remedy);
    return 0;
}
