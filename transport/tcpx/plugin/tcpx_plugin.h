/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network plugin that moves tcpx's bytes: finding, checking, starting and calling it.
 *
 * A process starts a plugin once and never unloads it: a second init() always fails, and its threads do not
 * end. So there is one object for each process and library, including failures: a plugin whose init() failed
 * is not asked again. The logger given to init() has no argument. For these reasons the library has
 * process-wide state here, and nowhere else (tcpx_plugin.c, tcpx_log.c).
 *
 * Threads: any thread may open and close. One thread at a time uses a comm and its requests; different comms
 * may be used at once. For GPU memory, its device must be current in the calling thread during listen,
 * connect and reg.
 *
 * Rules of the plugin for TCPX that callers must keep, because it does not check them, or crashes:
 *
 *   - at most TARN_TCPX_REQUESTS requests of a comm at once, and no isend above chunk_bytes
 *   - test() only the oldest request that is not done; consumed() the oldest done one, for every receive
 *   - only the sender knows the size of a received message: the posted size is no limit
 *   - done for a send means handed over; close a comm when the peer says that all has arrived
 *   - one accept for each listen; never close a listening end whose accept has begun and not ended; keep the
 *     buffer of a connect that has begun: both are left to the plugin when the peer does not come
 *   - use own deadlines: requests do not reliably fail when the peer or a socket is gone
 */
#ifndef TARN_TRANSPORT_TCPX_PLUGIN_H
#define TARN_TRANSPORT_TCPX_PLUGIN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/log.h"
#include "transport/tcpx/plugin/tcpx_abi.h"

#define TARN_TCPX_PATH 256
#define TARN_TCPX_NAME 64
#define TARN_TCPX_DEVICES 16
#define TARN_TCPX_GPUS 32
#define TARN_TCPX_REQUESTS 16
#define TARN_TCPX_CHUNK 524288
#define TARN_TCPX_PAGE 4096 /* alignment of registered GPU memory */

enum tarn_tcpx_mode {
    TARN_TCPX_PLAIN,  /* receives end up where they were posted */
    TARN_TCPX_UNPACK, /* receives end up in bounce memory and must be unpacked */
};

struct tarn_tcpx_device {
    char name[32], pci[128]; /* pci "": unknown; then GPU memory cannot be registered */
    enum tarn_tcpx_mode mode;
    bool host, gpu; /* kinds of memory it accepts */
    int speed_mbit;
};

/* What starting a plugin has come to. */
enum tarn_tcpx_start {
    TARN_TCPX_AT_DRIVER,
    TARN_TCPX_AT_INIT,
    TARN_TCPX_AT_DEVICES,
    TARN_TCPX_AT_PROPERTIES
};

/* The right to accept, with bounce memory: exclusive until the first accept has succeeded. */
enum tarn_tcpx_turn { TARN_TCPX_UNTRIED, TARN_TCPX_TAKEN, TARN_TCPX_ANYBODYS };

struct tarn_tcpx_plugin {
    char path[TARN_TCPX_PATH], name[TARN_TCPX_NAME];
    char word[TARN_TCPX_NAME]; /* the name as one word in ATTACH answers: handles are valid only for the same
                                  plugin */
    enum tarn_tcpx_start start;
    int version;          /* of the ABI: 6, 7 or 8 */
    bool gpudirect;       /* it is the plugin for TCPX */
    uint32_t chunk_bytes; /* size of the largest send */
    uint32_t window;      /* requests of a comm at once: what its sockets can queue */
    uint32_t wait_ms;     /* time that accept() itself takes */
    int ndevices;
    struct tarn_tcpx_device devices[TARN_TCPX_DEVICES];
    struct tarn_tcpx_table calls;          /* used by the functions below */
    struct tarn_tcpx_device_handle unused; /* for the sending end, which does not use it */
    /* tcpx_dial.c; the lock guards the fields below and all dials */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct tarn_tcpx_dial *left;                   /* given up and not ended */
    uint32_t dials;                                /* number of threads */
    enum tarn_tcpx_turn turns[1 + TARN_TCPX_GPUS]; /* index 1 + i: GPU i; index 0: no GPU */
};

/* The file of the plugin used by default (tcpx_places.c). UNAVAILABLE: none. Loads nothing. */
int tarn_tcpx_plugin_usual(char path[TARN_TCPX_PATH]);
/* Do the machine's or the user's settings call for TCPX? */
bool tarn_tcpx_is_meant(void);

/*
 * Sets environment variables that the plugin at `path` (as below) will need, as far as known without
 * loading it. Call early: setenv() is unsafe while other threads call getenv(). Does nothing if a variable
 * has a wrong value; starting the plugin then reports it.
 */
void tarn_tcpx_plugin_prepare(const char *path);

/*
 * Opens the plugin at `path`, or the usual one if that is NULL or "". Logs its lines to `log` until
 * tarn_tcpx_plugin_close(). The first call sets missing environment variables (tcpx_env.c); no other
 * thread should call getenv() then. CONFIG: no such plugin, or an environment in which it would hang.
 * UNAVAILABLE: no usual one, no CUDA driver where it needs one, init() failed, no device. VERSION: none of
 * the ABIs.
 */
int tarn_tcpx_plugin_open(const char *path, const struct tarn_logger *log, struct tarn_tcpx_plugin **p_p);
/*
 * The same without starting it: loads the library and finds path, name, version and gpudirect. Answers
 * whether there is a plugin.
 */
int tarn_tcpx_plugin_find(const char *path, const struct tarn_tcpx_plugin **p_p);
/* Logs nothing more to `log`. The plugin stays loaded. */
void tarn_tcpx_plugin_close(const struct tarn_logger *log);

/* --- calls (tcpx_calls.c) ----------------------------------------------------------------------- */

/*
 * Errors: NODE_DOWN if the plugin reports a system or remote error, else UNAVAILABLE. The sentence has the
 * call and the plugin's result. If an out parameter is not ready, it is NULL and the result is 0: call
 * again.
 */
int tarn_tcpx_listen(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **listen_p);
/* Use the same buffer each time: the plugin keeps its state in it. The handle's content is trusted to be
 * the peer's. */
int tarn_tcpx_connect(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **comm_p);
/* In mode UNPACK the plugin fills in `device`, valid as long as the comm. */
int tarn_tcpx_accept(struct tarn_tcpx_plugin *p, void *listen_comm, struct tarn_tcpx_device_handle *device,
                     void **comm_p);
/* type: TARN_TCPX_HOST or TARN_TCPX_CUDA. INVALID: too large for the ABI, or unaligned GPU memory. */
int tarn_tcpx_reg(struct tarn_tcpx_plugin *p, void *comm, void *data, uint64_t bytes, int type, void **mr_p);
int tarn_tcpx_dereg(struct tarn_tcpx_plugin *p, void *comm, void *mr);
/* *request_p NULL: no room now. `data` lies in registered memory. */
int tarn_tcpx_isend(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p);
int tarn_tcpx_irecv(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p);
/* TARN_E_AGAIN, without a sentence: not done yet. */
int tarn_tcpx_test(struct tarn_tcpx_plugin *p, void *request);
/* For a receive of this size. PROTOCOL: the plugin reports another size. */
int tarn_tcpx_test_recv(struct tarn_tcpx_plugin *p, void *request, uint32_t bytes);
/* Gives a completed receive's bounce memory back to the plugin. Does nothing in version 6. */
int tarn_tcpx_consumed(struct tarn_tcpx_plugin *p, void *comm, void *request);
int tarn_tcpx_close_send(struct tarn_tcpx_plugin *p, void *comm);
int tarn_tcpx_close_recv(struct tarn_tcpx_plugin *p, void *comm);
int tarn_tcpx_close_listen(struct tarn_tcpx_plugin *p, void *comm);

/* --- environment (tcpx_env.c) ------------------------------------------------------------------- */

/*
 * Checks the plugin's variables and sets missing ones. gpudirect: it is the plugin for TCPX; then also
 * sets those that other users of NCCL in the process see. CONFIG names the variable, its value and a
 * better one.
 */
int tarn_tcpx_env(bool gpudirect, uint32_t *chunk_bytes_p);
/* Requests of a comm at once, from the environment. */
uint32_t tarn_tcpx_env_window(void);
/* How long accept() waits after a connection has come. */
uint32_t tarn_tcpx_env_wait_ms(void);

#define TARN_TCPX_PREFIX_VARIABLE "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"
#define TARN_TCPX_INTERFACES_VARIABLE "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"
#define TARN_TCPX_CONTROL_VARIABLE "NCCL_GPUDIRECTTCPX_CTRL_DEV"

/* One variable that the plugin reads. */
struct tarn_tcpx_variable {
    const char *name;
    const char *value; /* NULL: it is not set */
    const char *fill;  /* the value to set then; NULL: left to the plugin */
    const char *what;  /* its purpose */
};
/* The i-th variable as it is now. CONFIG: *v is filled in, and its value is refused. NOT_FOUND: no more. */
int tarn_tcpx_env_at(size_t i, bool gpudirect, struct tarn_tcpx_variable *v);

/* --- what the plugin says (tcpx_log.c) ---------------------------------------------------------- */

/*
 * Lines go to the earliest-added logger that is still there. Each logging place in the plugin's source
 * gets TARN_TCPX_LOG_BURST lines a window. The next line then says how many were left out.
 */
#define TARN_TCPX_LOG_BURST 5
#define TARN_TCPX_LOG_WINDOW_MS 10000
struct tarn_tcpx_limit {
    uint64_t window_end_ns;
    uint32_t lines;
    uint64_t left_out;
};
/* May a line be logged now? *left_out: lines suppressed since the last one. */
bool tarn_tcpx_limit_pass(struct tarn_tcpx_limit *l, uint64_t now_ns, uint64_t *left_out);

/* NULL is allowed. */
int tarn_tcpx_log_add(const struct tarn_logger *log);
void tarn_tcpx_log_remove(const struct tarn_logger *log);
/* The logging function given to init(). */
void tarn_tcpx_log_line(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
