/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that the environment may give: the one place where libtarn reads its variables. */
#ifndef TARN_CLIENT_SETTING_H
#define TARN_CLIENT_SETTING_H

/* What the caller has given; else the variable's value, where it is set and not empty; else NULL. */
const char *tarn_setting(const char *given, const char *variable);

#endif
