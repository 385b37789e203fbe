/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that the environment gives when the caller does not. */
#ifndef TARN_CLIENT_SETTING_H
#define TARN_CLIENT_SETTING_H

/* The given value; else the variable's, if that is set and not empty; else NULL. */
const char *tarn_setting(const char *given, const char *variable);

#endif
