/* SPDX-License-Identifier: Apache-2.0 */
/* TCPX: text that both halves read and write. */
#ifndef TARN_TRANSPORT_TCPX_TEXT_H
#define TARN_TRANSPORT_TCPX_TEXT_H

#include <ctype.h>

#include "transport/tcpx/plugin/tcpx_plugin.h"

#define TARN_TCPX_NAME 64

/* A plugin's name as one word in ATTACH answers: a handle is valid only for the same plugin. */
static inline void tarn_tcpx_name(const struct tarn_tcpx_plugin *p, char name[TARN_TCPX_NAME])
{
    size_t i = 0;
    for (; i < TARN_TCPX_NAME - 1 && p->name[i]; i++)
        name[i] = isgraph((unsigned char)p->name[i]) ? p->name[i] : '_';
    name[i] = '\0';
    if (i == 0)
        name[i] = '-', name[i + 1] = '\0';
}

#endif
