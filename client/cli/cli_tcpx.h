/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network plugin tried out in a process of its own, since it may end the process, crash or never return.
 * The child writes how far it came to memory that both share, and is killed when a step takes too long.
 */
#ifndef TARN_CLIENT_CLI_TCPX_H
#define TARN_CLIENT_CLI_TCPX_H

#include <stdatomic.h>

#include "transport/tcpx/plugin/tcpx_plugin.h"

/* In this order. */
enum cli_tcpx_step {
    CLI_TCPX_FIND,        /* the library and its table */
    CLI_TCPX_ENVIRONMENT, /* checked and filled in */
    CLI_TCPX_START,       /* init(), devices() */
    CLI_TCPX_CONNECT,     /* a device with itself, that of GPU 0 where there is one */
    CLI_TCPX_REGISTER,    /* a page, of GPU 0 where there is one, with both ends of that */
    CLI_TCPX_DONE,
};

enum cli_tcpx_end { CLI_TCPX_RETURNED, CLI_TCPX_EXITED, CLI_TCPX_KILLED, CLI_TCPX_LATE };

struct cli_tcpx_try {
    _Atomic int step; /* DONE, or the one that failed */
    enum cli_tcpx_end end;
    int rc;                         /* RETURNED: of the step */
    int status;                     /* EXITED: exit status; KILLED: signal */
    char error[512];                /* RETURNED: its sentence */
    char wrote[200];                /* the last line on stdout or stderr */
    char said[512];                 /* the plugin's last warning */
    struct tarn_tcpx_plugin plugin; /* as far as it is known; its pointers mean nothing here */
    int device;                     /* that is connected */
    bool gpu;                       /* the page is GPU memory */
    void *page;
};

/* NULL path: the usual plugin. What comes of it is in *t; fails only when it cannot be tried at all. */
int cli_tcpx_try(const char *path, uint32_t step_ms, struct cli_tcpx_try *t);

#endif
