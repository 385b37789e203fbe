/* SPDX-License-Identifier: Apache-2.0 */
/* Where this user's Unix sockets are. */
#ifndef TARN_BASE_UNIX_DIR_H
#define TARN_BASE_UNIX_DIR_H

#include <stddef.h>

#define TARN_UNIX_PATH_MAX 107 /* bytes of a Unix socket's path */

/* The path of a socket of that name: in $XDG_RUNTIME_DIR/tarn, else in /tmp/tarn-UID. Returns its length,
 * which may exceed `bytes`. */
int tarn_unix_path(const char *name, char *path, size_t bytes);
/* Fails unless only this user may write to the directory: nobody else may put a socket where others look for
 * ours. `remedy` ends the sentence. */
int tarn_unix_dir_check(const char *dir, const char *remedy);

#endif
