/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables of the environment. They are read by name only here, as secure_getenv() does: a process with more
 * rights than its user, such as a set-user-ID program, sees none.
 */
#ifndef TARN_BASE_ENV_H
#define TARN_BASE_ENV_H

/* The variable's value; NULL if it is not set, or empty. */
const char *tarn_env(const char *name);
/* The same, but "" if it is set and empty. */
const char *tarn_env_raw(const char *name);

#endif
