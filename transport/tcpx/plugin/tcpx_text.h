/* SPDX-License-Identifier: Apache-2.0 */
/* TCPX: what both halves read and write as text. */
#ifndef TARN_TRANSPORT_TCPX_TEXT_H
#define TARN_TRANSPORT_TCPX_TEXT_H

#include <ctype.h>

#include "transport/tcpx/plugin/tcpx_plugin.h"

#define TARN_TCPX_NAME 64

/* A plugin's name as a word of an ATTACH answer: a handle means something to the same plugin only. */
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
