/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs test_tcpx_transfer and test_connection do, a function a step, in the order of
 * docs/tcpx.md, "The flow": one message from a client to a server, by a network plugin and nothing else of
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
 *   answer       --- whether they were right --------> hear; only then are comms closed
 *
 * The arrows with one line are a TCP connection of the programs' own. Steps print what they do on standard
 * output; those that fail print a sentence, too, and return -1. Each wait ends at a deadline.
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
    uint64_t deadline_ns; /* for the two to meet; then anew for the rest */
    int control;          /* -1: none */
    uint8_t handle[TARN_TCPX_HANDLE];
    void *listening, *comm, *mr;
    bool sends, accepting; /* accept was called */
    struct tarn_tcpx_device_handle device;
    /* the buffer; with a GPU also what copies to and from it, and pinned memory by way of which */
    bool gpu;
    void *allocated;
    uint8_t *buffer, *stage;
    struct tarn_cuda_queue *queue;
};

#define SAY(...) flow_say("[DEBUG] " __VA_ARGS__)
void flow_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A step that failed: -1. Without `why` the last error. */
int flow_fail(const char *step, const char *why);

/* "server [PORT]" or "client HOST [PORT]". Runs one of them; the exit status. */
int flow_main(int argc, char **argv, const char *title, int (*server)(struct flow *f),
              int (*client)(struct flow *f));

int flow_listen(struct flow *f);
/* Once per comm, polled until it is there. */
int flow_accept(struct flow *f);
int flow_connect(struct flow *f);
int flow_tell(struct flow *f, uint32_t what, uint32_t number);
/* FLOW_TELL_... and its number; fails when it is another or the peer is gone. */
int flow_hear(struct flow *f, uint32_t what, uint32_t *number_p);
enum { FLOW_TELL_TAG = 1, FLOW_TELL_BYTES, FLOW_TELL_RIGHT, FLOW_TELL_CONNECTED };

int flow_register(struct flow *f, const char *whose);
/* Between the buffer and host memory. */
int flow_write(struct flow *f, const void *from, uint32_t bytes);
int flow_read(struct flow *f, void *to, const void *from, uint32_t bytes);
/* Until the request is done. */
int flow_wait(struct flow *f, void *request, const char *step);
/* The message of so many bytes that came as the comm's first, to the buffer. */
int flow_unpack(struct flow *f, uint32_t bytes);

#endif
