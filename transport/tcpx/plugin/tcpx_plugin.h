/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network plugin that tcpx moves bytes with: found, checked, started once per process, and called.
 *
 * A process starts a plugin once and never unloads it: a second init() fails for ever, and its threads do
 * not end. So what is opened here is one object per process and library, failures included: a plugin whose
 * init() failed fails again, without being asked. The logger that init() takes has no argument. These are
 * the reasons for the only process-wide state of the library (tcpx_plugin.c, tcpx_log.c).
 *
 * Threads: opening and closing from any. Calls on one comm, and on the requests of it, from one thread at a
 * time; different comms at once. GPU memory: its device must be the calling thread's current one in listen,
 * connect and reg.
 *
 * Rules of the plugin for TCPX that callers keep, since it does not check them or dies of them:
 *   - at most TARN_TCPX_REQUESTS requests of a comm at once, and no isend above chunk_bytes
 *   - test() on the oldest request that is not done; consumed() on the oldest that is, for every receive
 *   - what a receive brought is known only to the sender: the size posted is no limit
 *   - done for a send means handed over; a comm is closed when the peer has said that all has arrived
 *   - one accept for one listen; a listening end whose accept was begun and has not ended is never closed,
 *     and a connect that was begun keeps its buffer: both are left to the plugin when the peer does not come
 *   - no request fails because its peer or a socket is gone, for certain: a deadline of one's own
 */
#ifndef TARN_TRANSPORT_TCPX_PLUGIN_H
#define TARN_TRANSPORT_TCPX_PLUGIN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/log.h"
#include "transport/tcpx/plugin/tcpx_abi.h"

#define TARN_TCPX_PATH 256
#define TARN_TCPX_DEVICES 16
#define TARN_TCPX_GPUS 32
#define TARN_TCPX_REQUESTS 16
#define TARN_TCPX_CHUNK 524288
#define TARN_TCPX_PAGE 4096 /* GPU memory is registered at multiples of it */

enum tarn_tcpx_mode {
    TARN_TCPX_PLAIN,  /* receives end up where they were posted */
    TARN_TCPX_UNPACK, /* receives end up in bounce memory and are unpacked from there */
};

struct tarn_tcpx_device {
    char name[32], pci[128]; /* pci "": none, then GPU memory cannot be registered */
    enum tarn_tcpx_mode mode;
    bool host, gpu; /* memory it takes */
    int speed_mbit;
};

/* Who may accept, where there is bounce memory: one until the first accept has ended well. */
enum tarn_tcpx_turn { TARN_TCPX_UNTRIED, TARN_TCPX_TAKEN, TARN_TCPX_ANYBODYS };

struct tarn_tcpx_plugin {
    char path[TARN_TCPX_PATH], name[64];
    int version;          /* of the ABI: 6, 7 or 8 */
    bool gpudirect;       /* it is the plugin for TCPX */
    uint32_t chunk_bytes; /* the largest send */
    uint32_t window;      /* requests of a comm at once: as many as its sockets queue */
    uint32_t wait_ms;     /* that accept() takes by itself */
    int ndevices;
    struct tarn_tcpx_device devices[TARN_TCPX_DEVICES];
    /* what the functions below call; version 6 has no device handles and no consumed */
    struct tarn_tcpx_v7 calls;
    const struct tarn_tcpx_v6 *v6;
    const struct tarn_tcpx_v8 *v8;
    struct tarn_tcpx_device_handle unused; /* for the sending end, which has no device's side */
    /* tcpx_dial.c; the lock is over what follows, and over all dials */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct tarn_tcpx_dial *left, **left_last;      /* given up, and not ended */
    uint32_t dials;                                /* threads */
    enum tarn_tcpx_turn turns[1 + TARN_TCPX_GPUS]; /* of GPU i: 1 + i; 0: without one */
};

/*
 * The file of the plugin that is taken where none is named (tcpx_places.c). UNAVAILABLE: there is none.
 * Nothing is loaded.
 */
int tarn_tcpx_plugin_usual(char path[TARN_TCPX_PATH]);
/* Does something say that this machine, or the user, is to use TCPX? */
bool tarn_tcpx_is_meant(void);

/*
 * Sets the variables of the environment that the plugin at `path` (as below) will need, as far as that is
 * known without loading it: early, since setenv() is not safe while other threads are in getenv(). Where
 * something wrong is set nothing is done: starting the plugin says what.
 */
void tarn_tcpx_plugin_prepare(const char *path);

/*
 * Opens the plugin at `path`, or, where that is NULL or "", the usual one, and logs what it says to `log`
 * until tarn_tcpx_plugin_close(). Sets variables of the environment that are not set (tcpx_env.c) if it is
 * the first: then no other thread should be in getenv(). CONFIG: no such plugin at that path, or an
 * environment under which it would hang. UNAVAILABLE: no usual one, no CUDA driver where it needs one, init()
 * failed, no device. VERSION: none of the ABIs.
 */
int tarn_tcpx_plugin_open(const char *path, const struct tarn_logger *log, struct tarn_tcpx_plugin **p_p);
/*
 * As far as that goes without starting it: the library is loaded, and path, name, version and gpudirect are
 * known. It may be asked whether there is one.
 */
int tarn_tcpx_plugin_find(const char *path, const struct tarn_tcpx_plugin **p_p);
/* Nothing is logged to `log` any more. The plugin stays. */
void tarn_tcpx_plugin_close(const struct tarn_logger *log);

/* --- calls (tcpx_calls.c) ----------------------------------------------------------------------- */

/*
 * Errors: NODE_DOWN when the plugin names a system or remote error, else UNAVAILABLE; the sentence has the
 * call and the plugin's result. Out parameters that are not ready yet are NULL and the result 0: call again.
 */
int tarn_tcpx_listen(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **listen_p);
/* The same buffer each time: the plugin keeps its state in it. It is the peer's word that it is sane. */
int tarn_tcpx_connect(struct tarn_tcpx_plugin *p, int dev, uint8_t handle[TARN_TCPX_HANDLE], void **comm_p);
/* `device` is filled in by the plugin, in mode UNPACK; it lives as long as the comm. */
int tarn_tcpx_accept(struct tarn_tcpx_plugin *p, void *listen_comm, struct tarn_tcpx_device_handle *device,
                     void **comm_p);
/* type: TARN_TCPX_HOST or TARN_TCPX_CUDA. INVALID: too large for the ABI, or GPU memory that is not aligned.
 */
int tarn_tcpx_reg(struct tarn_tcpx_plugin *p, void *comm, void *data, uint64_t bytes, int type, void **mr_p);
int tarn_tcpx_dereg(struct tarn_tcpx_plugin *p, void *comm, void *mr);
/* NULL in *request_p: no room now. `data` lies in what was registered. */
int tarn_tcpx_isend(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p);
int tarn_tcpx_irecv(struct tarn_tcpx_plugin *p, void *comm, void *data, uint32_t bytes, void *mr,
                    void **request_p);
/* TARN_E_AGAIN, without a sentence: not done yet. */
int tarn_tcpx_test(struct tarn_tcpx_plugin *p, void *request);
/* A receive of so many bytes. PROTOCOL: the plugin tells another size. */
int tarn_tcpx_test_recv(struct tarn_tcpx_plugin *p, void *request, uint32_t bytes);
/* The bounce memory of a receive that is done is the plugin's again. Nothing to do in version 6. */
int tarn_tcpx_consumed(struct tarn_tcpx_plugin *p, void *comm, void *request);
int tarn_tcpx_close_send(struct tarn_tcpx_plugin *p, void *comm);
int tarn_tcpx_close_recv(struct tarn_tcpx_plugin *p, void *comm);
int tarn_tcpx_close_listen(struct tarn_tcpx_plugin *p, void *comm);

/* --- environment (tcpx_env.c) ------------------------------------------------------------------- */

/*
 * Checks the plugin's variables and sets those that are not set; gpudirect: it is the plugin for TCPX, and
 * also gets those that other users of NCCL in the process would see. CONFIG names the variable, its value and
 * a better one.
 */
int tarn_tcpx_env(bool gpudirect, uint32_t *chunk_bytes_p);
/* Requests of a comm at once, by what was set there. */
uint32_t tarn_tcpx_env_window(void);
/* How long accept() waits after a connection has come. */
uint32_t tarn_tcpx_env_wait_ms(void);

#define TARN_TCPX_PREFIX_VARIABLE "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"
#define TARN_TCPX_INTERFACES_VARIABLE "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"
#define TARN_TCPX_CONTROL_VARIABLE "NCCL_GPUDIRECTTCPX_CTRL_DEV"

/* One that the plugin reads. */
struct tarn_tcpx_variable {
    const char *name;
    const char *value; /* NULL: it is not set */
    const char *fill;  /* what it is set to then; NULL: nothing, the plugin chooses */
    const char *what;  /* it is for */
};
/* The i-th, as it is now. CONFIG: *v is filled in, and the value is refused. NOT_FOUND: there are no more. */
int tarn_tcpx_env_at(size_t i, bool gpudirect, struct tarn_tcpx_variable *v);

/* --- what the plugin says (tcpx_log.c) ---------------------------------------------------------- */

/*
 * Lines go to the logger that was added first and is still there. Of each place in the plugin's source that
 * logs, TARN_TCPX_LOG_BURST lines a window come through; the next one then says how many were left out.
 */
#define TARN_TCPX_LOG_BURST 5
#define TARN_TCPX_LOG_WINDOW_MS 10000
struct tarn_tcpx_limit {
    uint64_t window_end_ns;
    uint32_t lines;
    uint64_t left_out;
};
/* May a line be said now? *left_out: how many could not since the last one. */
bool tarn_tcpx_limit_pass(struct tarn_tcpx_limit *l, uint64_t now_ns, uint64_t *left_out);

/* NULL is allowed. */
int tarn_tcpx_log_add(const struct tarn_logger *log);
void tarn_tcpx_log_remove(const struct tarn_logger *log);
/* What init() is given. */
void tarn_tcpx_log_line(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
