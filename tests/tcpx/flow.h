/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of the programs test_tcpx_transfer and test_connection, each a function, in the order of
 * docs/tcpx.md, "The flow". They send one message from a client to a server with a network plugin, without
 * tarn's transports.
 *
 *   server                                             client
 *   open, listen                                       open
 *   meet         --- handle, 128 bytes --------------> meet
 *   accept                                             connect
 *   register                                           register, payload to the GPU
 *   hear         <-- tag and length ------------------ tell
 *   receive      <== bytes, by the plugin ============ send
 *   unpack, compare
 *   answer       --- whether they were right --------> hear
 *   outlast      <-- end of the connection ----------- close
 *   close
 *
 * Single arrows are the programs' own TCP connection. Steps print what they do on standard output. A step
 * that fails also prints a sentence and returns -1. Each wait has a deadline.
 */
#ifndef TARN_TESTS_TCPX_FLOW_H
#define TARN_TESTS_TCPX_FLOW_H

#include <stdbool.h>

#include "transport/tcpx/plugin/tcpx_plugin.h"
#include "transport/tcpx/plugin/tcpx_settings.h"

#define FLOW_PORT "12345"
#define FLOW_TAG 42
#define FLOW_BUFFER 4096
#define FLOW_PAYLOAD "Hello from TCPX client!"
#define FLOW_DEVICE 0

struct flow {
    struct tarn_tcpx_settings settings;
    struct tarn_tcpx_plugin *plugin;
    uint32_t timeout_ms;
    uint64_t deadline_ns; /* first for the meeting, then a new one for the rest */
    int control;          /* -1: none */
    uint8_t handle[TARN_TCPX_HANDLE];
    void *listening, *comm, *mr;
    bool sends, accepting; /* accepting: accept was called */
    struct tarn_tcpx_device_handle device;
    /* the buffer; with a GPU also a queue for copies and pinned memory for staging */
    bool gpu;
    void *allocated;
    uint8_t *buffer, *stage;
    struct tarn_cuda_queue *queue;
};

#define SAY(...) flow_say("[DEBUG] " __VA_ARGS__)
void flow_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Reports that a step failed and returns -1. `why` NULL: the last error. */
int flow_fail(const char *step, const char *why);

/* Runs "server [PORT]" or "client HOST [PORT]". Returns the exit status. */
int flow_main(int argc, char **argv, const char *title, int (*server)(struct flow *f),
              int (*client)(struct flow *f));

int flow_listen(struct flow *f);
/* Call once per comm. They poll until the comm is ready. */
int flow_accept(struct flow *f);
int flow_connect(struct flow *f);
int flow_tell(struct flow *f, uint32_t what, uint32_t number);
/* Receives a FLOW_TELL_... and its number. Fails if another one comes or the peer is gone. */
int flow_hear(struct flow *f, uint32_t what, uint32_t *number_p);
/* Waits until the peer, which sends nothing more, has closed its end, or until the deadline. */
void flow_outlast(struct flow *f);
enum { FLOW_TELL_TAG = 1, FLOW_TELL_BYTES, FLOW_TELL_RIGHT, FLOW_TELL_CONNECTED };

int flow_register(struct flow *f, const char *whose);
/* Copy between the buffer and host memory. */
int flow_write(struct flow *f, const void *from, uint32_t bytes);
int flow_read(struct flow *f, void *to, const void *from, uint32_t bytes);
/* Waits until the request is done. */
int flow_wait(struct flow *f, void *request, const char *step);
/* Unpacks the comm's first message, which has this many bytes, to the buffer. */
int flow_unpack(struct flow *f, uint32_t bytes);

#endif
