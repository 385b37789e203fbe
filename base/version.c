/* SPDX-License-Identifier: Apache-2.0 */
/* The version of this build; the Makefile defines it. */
#include <tarn/tarn.h>

#ifndef TARN_VERSION
#define TARN_VERSION "0.1.0"
#endif

const char *tarn_version(void)
{
    return TARN_VERSION;
}
