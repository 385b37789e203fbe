/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tries a network plugin in two child processes: one accepts, the other connects. Separate processes are
 * needed because a plugin may exit, crash or never return. Both record their progress in shared memory.
 * The parent kills them when neither makes progress for too long.
 */
#ifndef TARN_CLIENT_CLI_TCPX_TRY_H
#define TARN_CLIENT_CLI_TCPX_TRY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_plugin.h"

/* The steps, in order. */
enum cli_tcpx_step {
    CLI_TCPX_FIND,        /* find the library and its table */
    CLI_TCPX_ENVIRONMENT, /* check and complete the environment */
    CLI_TCPX_START,       /* init(), devices() */
    CLI_TCPX_LISTEN,      /* on GPU 0's device if there is a GPU */
    CLI_TCPX_CONNECT,     /* one process accepts, the other connects */
    CLI_TCPX_REGISTER,    /* register a page, of GPU 0 if there is one, at both ends */
    CLI_TCPX_CLOSE,       /* when both processes have got here */
    CLI_TCPX_DONE,
};

enum cli_tcpx_end { CLI_TCPX_RETURNED, CLI_TCPX_EXITED, CLI_TCPX_KILLED, CLI_TCPX_LATE };

/* Calls of connect or accept until the connection was up. */
struct cli_tcpx_calls {
    _Atomic uint32_t begun, returned;
    double ms; /* since the connecting process began to connect */
};

struct cli_tcpx_try {
    _Atomic int step; /* DONE, or the step that failed */
    int at;           /* the failed process's own step: the connecting process may fail to start */
    enum cli_tcpx_end end;
    bool connects;                  /* the failed process is the connecting one */
    int rc;                         /* RETURNED: the step's result */
    int status;                     /* EXITED: exit status; KILLED: signal */
    char error[TARN_SENTENCE];      /* RETURNED: the step's sentence */
    off_t wrote_before;             /* bytes written to stdout and stderr before the step */
    char wrote[200];                /* the step's first line that tells of a failure, else its last */
    char said[512];                 /* the plugin's first warning in the step */
    struct tarn_tcpx_plugin plugin; /* as far as known; its pointers are invalid in this process */
    int device;                     /* the device used */
    bool gpu;                       /* the page is GPU memory */
    void *page;
    double listen_ms;
    struct cli_tcpx_calls accept, connect;
    bool accept_waits; /* accept had not returned when the other process began to connect */
};

/* path NULL: the usual plugin. *t gets the outcome. Fails only if the trial itself cannot run. */
int cli_tcpx_try(const char *path, uint32_t step_ms, struct cli_tcpx_try *t);

#endif
