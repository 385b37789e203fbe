/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network plugin tried out in two processes of their own, one that accepts and one that connects, since it
 * may end a process, crash or never return. They write how far they came to memory that all share, and are
 * killed when neither comes further for too long.
 */
#ifndef TARN_CLIENT_CLI_TCPX_TRY_H
#define TARN_CLIENT_CLI_TCPX_TRY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

/* In this order. */
enum cli_tcpx_step {
    CLI_TCPX_FIND,        /* the library and its table */
    CLI_TCPX_ENVIRONMENT, /* checked and filled in */
    CLI_TCPX_START,       /* init(), devices() */
    CLI_TCPX_LISTEN,      /* that of GPU 0 where there is one */
    CLI_TCPX_CONNECT,     /* the one accepts, the other connects */
    CLI_TCPX_REGISTER,    /* a page, of GPU 0 where there is one, with both ends of that */
    CLI_TCPX_CLOSE,       /* when the other has come here, too */
    CLI_TCPX_DONE,
};

enum cli_tcpx_end { CLI_TCPX_RETURNED, CLI_TCPX_EXITED, CLI_TCPX_KILLED, CLI_TCPX_LATE };

/* The calls of connect or accept until there was a connection. */
struct cli_tcpx_calls {
    _Atomic uint32_t begun, returned;
    double ms; /* since the one that connects has begun to */
};

struct cli_tcpx_try {
    _Atomic int step; /* DONE, or the one that failed */
    int at;           /* the same, of the process that failed: the one that connects may fail to start */
    enum cli_tcpx_end end;
    bool connects;                  /* it is that one */
    int rc;                         /* RETURNED: of the step */
    int status;                     /* EXITED: exit status; KILLED: signal */
    char error[TARN_SENTENCE];      /* RETURNED: its sentence */
    off_t wrote_before;             /* bytes on stdout and stderr before the step */
    char wrote[200];                /* the first line of the step that tells of a failure, else its last */
    char said[512];                 /* the plugin's first warning in the step */
    struct tarn_tcpx_plugin plugin; /* as far as it is known; its pointers mean nothing here */
    int device;                     /* that is connected */
    bool gpu;                       /* the page is GPU memory */
    void *page;
    double listen_ms;
    struct cli_tcpx_calls accept, connect;
    bool accept_waits; /* it had not returned before the other process began to connect */
};

/* NULL path: the usual plugin. What comes of it is in *t; fails only when it cannot be tried at all. */
int cli_tcpx_try(const char *path, uint32_t step_ms, struct cli_tcpx_try *t);

#endif
