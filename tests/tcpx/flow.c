/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tcpx/flow.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/net.h"
#include "base/text.h"
#include "transport/tcpx/tcpx_unpack.h"

enum { MAGIC = 0x58504354, VERSION = 1, TIMEOUT_MS = 60000 };

/* --- words -------------------------------------------------------------------------------------- */

void flow_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

int flow_fail(const char *step, const char *why)
{
    flow_say("[ERROR] %s: %s", step, why ? why : tarn_last_error());
    return -1;
}

static int told(const char *step, int rc)
{
    return rc ? flow_fail(step, NULL) : 0;
}

static void hear_plugin(void *arg, enum tarn_log_level level, const char *line)
{
    (void)arg, (void)level;
    flow_say("[PLUGIN] %s", line);
}

static const struct tarn_logger logger = {.level = TARN_LOG_WARN, .fn = hear_plugin};

/* --- the programs' own connection --------------------------------------------------------------- */

/* Sends or receives all bytes. */
static int move(struct flow *f, void *p, size_t bytes, bool out)
{
    for (size_t at = 0; at < bytes;) {
        if (tarn_net_wait(f->control, out ? POLLOUT : POLLIN, f->deadline_ns, NULL))
            return flow_fail("bootstrap connection", NULL);
        ssize_t n = out ? send(f->control, (char *)p + at, bytes - at, MSG_NOSIGNAL)
                        : recv(f->control, (char *)p + at, bytes - at, 0);
        if (n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return flow_fail("bootstrap connection", "the peer has closed it: its own output says why");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return flow_fail("bootstrap connection", strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int flow_tell(struct flow *f, uint32_t what, uint32_t number)
{
    uint32_t words[4] = {MAGIC, VERSION, what, number};
    return move(f, words, sizeof(words), true);
}

int flow_hear(struct flow *f, uint32_t what, uint32_t *number_p)
{
    uint32_t words[4];
    if (move(f, words, sizeof(words), false))
        return -1;
    if (words[0] != MAGIC || words[1] != VERSION || words[2] != what)
        return flow_fail("bootstrap connection", "the peer is not this program, or at another step of it");
    *number_p = words[3];
    return 0;
}

void flow_outlast(struct flow *f)
{
    (void)tarn_net_wait(f->control, POLLIN, f->deadline_ns, NULL);
}

static int parse_port(const char *text, uint16_t *port)
{
    uint64_t n;
    if (tarn_u64_parse(text, strlen(text), 10, 65535, &n))
        return flow_fail("port", "it is none: name one of 1 to 65535, or 0 for a free one");
    *port = (uint16_t)n;
    return 0;
}

static int meet_as_server(struct flow *f, const char *port)
{
    struct tarn_addr any = {.host = "::"}, v4 = {.host = "0.0.0.0"};
    int listening;
    if (parse_port(port, &any.port))
        return -1;
    v4.port = any.port;
    if (tarn_net_listen(&any, &listening) && tarn_net_listen(&v4, &listening))
        return flow_fail("bootstrap connection", NULL);
    SAY("Waiting for the client at port %u", any.port ? any.port : v4.port);
    int rc = tarn_net_wait(listening, POLLIN, f->deadline_ns, NULL);
    if (rc == 0)
        f->control = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    close(listening);
    return rc               ? flow_fail("no client came", NULL)
           : f->control < 0 ? flow_fail("bootstrap connection", strerror(errno))
                            : 0;
}

/* The server may be started after the client. */
static int meet_as_client(struct flow *f, const char *host, const char *port)
{
    struct tarn_addr a = {.port = 0};
    if (parse_port(port, &a.port))
        return -1;
    snprintf(a.host, sizeof(a.host), "%s", host);
    SAY("Connecting to server at %s", host);
    int rc;
    while ((rc = tarn_net_connect(&a, f->deadline_ns, NULL, &f->control)) == TARN_E_NODE_DOWN &&
           tarn_now_ns() < f->deadline_ns)
        poll(NULL, 0, 50);
    return told("bootstrap connection", rc);
}

/* --- comms -------------------------------------------------------------------------------------- */

/* Checks deadline and peer. Plugins have no deadlines and do not always notice that the peer is gone. */
static bool in_time(const struct flow *f, const char *step)
{
    char byte;
    const char *why = tarn_now_ns() >= f->deadline_ns ? "the deadline has passed" : NULL;
    if (!why && recv(f->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        why = "the peer has gone: its own output says why";
    if (why)
        flow_fail(step, why);
    return !why;
}

int flow_listen(struct flow *f)
{
    if (told("listen", tarn_tcpx_listen(f->plugin, FLOW_DEVICE, f->handle, &f->listening)))
        return -1;
    SAY("Listening on device %d", FLOW_DEVICE);
    return 0;
}

int flow_accept(struct flow *f)
{
    if (move(f, f->handle, sizeof(f->handle), true))
        return -1;
    f->accepting = true;
    while (!f->comm) {
        if (!in_time(f, "accept") ||
            told("accept", tarn_tcpx_accept(f->plugin, f->listening, &f->device, &f->comm)))
            return -1;
        sched_yield();
    }
    SAY("Connection accepted; recv_comm=%p", f->comm);
    return 0;
}

int flow_connect(struct flow *f)
{
    f->sends = true;
    if (move(f, f->handle, sizeof(f->handle), false))
        return -1;
    while (!f->comm) {
        if (!in_time(f, "connect") ||
            told("connect", tarn_tcpx_connect(f->plugin, FLOW_DEVICE, f->handle, &f->comm)))
            return -1;
        sched_yield();
    }
    SAY("Connection established; send_comm=%p", f->comm);
    return 0;
}

int flow_wait(struct flow *f, void *request, const char *step)
{
    int rc;
    while ((rc = tarn_tcpx_test(f->plugin, request)) == TARN_E_AGAIN) {
        if (!in_time(f, step))
            return -1;
        sched_yield();
    }
    return told(step, rc);
}

/* --- memory ------------------------------------------------------------------------------------- */

static bool unpacks(const struct flow *f)
{
    return f->plugin->devices[FLOW_DEVICE].mode == TARN_TCPX_UNPACK;
}

static int allocate_gpu(struct flow *f)
{
    uint8_t handle[TARN_CUDA_HANDLE];
    int before, rc = tarn_cuda_alloc(0, 2 * FLOW_BUFFER, &f->allocated, handle);
    if (rc == 0)
        rc = tarn_cuda_lend(0, &before);
    if (rc == 0)
        rc = tarn_cuda_queue_open(0, &f->queue);
    f->stage = mmap(NULL, FLOW_BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rc == 0 && f->stage == MAP_FAILED)
        rc = tarn_fail(TARN_E_NO_MEMORY, "no memory to copy through");
    if (rc == 0)
        rc = tarn_cuda_pin(f->stage, FLOW_BUFFER, true);
    return told("GPU memory", rc);
}

/* Allocates twice the needed size, so that the buffer can be aligned to 4 KiB. */
static int allocate(struct flow *f)
{
    int n = 0;
    const char *memory = getenv("TCPX_TEST_MEMORY");
    if (memory && strcmp(memory, "host") == 0)
        tarn_fail(TARN_E_UNAVAILABLE, "TCPX_TEST_MEMORY=host");
    else
        f->gpu = unpacks(f) && tarn_cuda_count(&n) == 0 && n > 0;
    if (f->gpu) {
        if (allocate_gpu(f))
            return -1;
    } else {
        if (unpacks(f))
            SAY("No GPU (%s): memory of the host stands for it", tarn_last_error());
        f->allocated = calloc(2, FLOW_BUFFER);
        if (!f->allocated)
            return flow_fail("memory", strerror(errno));
    }
    uintptr_t at = (uintptr_t)f->allocated;
    f->buffer = (uint8_t *)((at + TARN_TCPX_PAGE - 1) / TARN_TCPX_PAGE * TARN_TCPX_PAGE);
    return 0;
}

/* Allocates before the other calls of the plugin, which need the GPU to be the thread's current one. */
static int open_all(struct flow *f)
{
    int rc = tarn_tcpx_settings(&f->settings);
    if (rc == 0)
        rc = tarn_tcpx_plugin_open(f->settings.plugin, &logger, &f->plugin);
    if (told("plugin", rc))
        return -1;
    SAY("Plugin %s, ABI %d, %s: %d device%s, the first is %s", f->plugin->name, f->plugin->version,
        f->plugin->path, f->plugin->ndevices, f->plugin->ndevices == 1 ? "" : "s",
        f->plugin->devices[0].name);
    return allocate(f);
}

int flow_register(struct flow *f, const char *whose)
{
    int type = unpacks(f) ? TARN_TCPX_CUDA : TARN_TCPX_HOST;
    if (told("regMr", tarn_tcpx_reg(f->plugin, f->comm, f->buffer, FLOW_BUFFER, type, &f->mr)))
        return -1;
    SAY("Registered %s buffer ptr=%p, bytes=%d", whose, (void *)f->buffer, FLOW_BUFFER);
    return 0;
}

static int copy(struct flow *f, void *to, const void *from, uint32_t bytes)
{
    struct tarn_cuda_piece piece = {from, to, bytes};
    uint64_t mark;
    size_t taken = 0;
    int rc = 0;
    while (rc == 0 && taken == 0)
        rc = tarn_cuda_copy(f->queue, &piece, 1, &taken);
    if (rc == 0)
        rc = tarn_cuda_mark(f->queue, &mark);
    while (rc == 0 && (rc = tarn_cuda_poll(f->queue, mark)) == TARN_E_AGAIN)
        rc = in_time(f, "copy") ? 0 : TARN_E_TIMEOUT;
    return told("copy between GPU and host", rc);
}

int flow_write(struct flow *f, const void *from, uint32_t bytes)
{
    memcpy(f->gpu ? f->stage : f->buffer, from, bytes);
    return f->gpu ? copy(f, f->buffer, f->stage, bytes) : 0;
}

int flow_read(struct flow *f, void *to, const void *from, uint32_t bytes)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of(from, &m);
    bool there = m.kind == TARN_CUDA_DEVICE;
    if (there && copy(f, f->stage, from, bytes))
        return -1;
    memcpy(to, there ? f->stage : from, bytes);
    return 0;
}

/* --- unpacking ---------------------------------------------------------------------------------- */

static void say_list(const struct tarn_tcpx_meta *meta)
{
    SAY("Request metadata: frag_count=%llu", (unsigned long long)meta->cnt[0]);
    for (uint64_t i = 0; i < meta->cnt[0] && i < TARN_TCPX_FRAGMENTS; i++)
        SAY("descriptor[%llu] src_off=%u len=%u dst_off=%llu", (unsigned long long)i, meta->mem[0][i].src_off,
            meta->mem[0][i].len, (unsigned long long)meta->mem[0][i].dst_off);
}

static const char *way_words(enum tarn_tcpx_way way)
{
    static const char *const words[] = {"device unpack (D2D copies)", "unpack by way of the host",
                                        "device unpack (kernel)"};
    return words[way];
}

/* Upper bound for the size of the bounce memory: the rest of the GPU's allocation. */
static uint64_t pool_bytes(const void *pool)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of(pool, &m);
    return m.kind == TARN_CUDA_DEVICE ? m.end - (uintptr_t)pool : UINT64_MAX;
}

static int run_unpack(struct flow *f, const struct tarn_tcpx_fragments *list, const void *pool)
{
    struct tarn_cuda_memory from, to;
    struct tarn_tcpx_unpacker *u;
    uint64_t ticket;
    tarn_cuda_memory_of(pool, &from);
    tarn_cuda_memory_of(f->buffer, &to);
    struct tarn_piece piece = {f->buffer, FLOW_BUFFER, 0, 1};
    struct tarn_tcpx_bounce bounce = {from.kind, from.device, pool, NULL};
    struct tarn_tcpx_into into = {to.kind, to.device, &piece, 1, FLOW_BUFFER, 0};
    int rc = tarn_tcpx_unpack_open(f->settings.way, f->gpu ? 0 : -1, FLOW_BUFFER, 1, &u);
    if (told("unpack", rc))
        return -1;
    rc = tarn_tcpx_unpack_start(u, list, &bounce, &into, &ticket);
    while (rc == 0 && (rc = tarn_tcpx_unpack_poll(u, ticket)) == TARN_E_AGAIN)
        rc = in_time(f, "unpack") ? 0 : TARN_E_TIMEOUT;
    tarn_tcpx_unpack_close(u);
    return told("unpack", rc);
}

int flow_unpack(struct flow *f, uint32_t bytes)
{
    static struct tarn_tcpx_fragments list;
    struct tarn_tcpx_unpack unpack;
    if (!unpacks(f)) {
        SAY("The plugin has placed the bytes itself");
        return 0;
    }
    if (flow_read(f, &unpack, f->device.handle, sizeof(unpack)))
        return -1;
    say_list(unpack.meta);
    if (told("metadata", tarn_tcpx_fragments_read(&list, unpack.meta, 0, bytes, pool_bytes(unpack.bounce))))
        return -1;
    SAY("Launching %s, total_bytes=%u", way_words(f->settings.way), bytes);
    if (run_unpack(f, &list, unpack.bounce))
        return -1;
    SAY("Device unpack completed successfully");
    return 0;
}

/* --- the program -------------------------------------------------------------------------------- */

/* A listening end whose accept has not ended is never closed (transport/tcpx/plugin/tcpx_plugin.h). */
static void close_all(struct flow *f)
{
    if (f->mr)
        tarn_tcpx_dereg(f->plugin, f->comm, f->mr);
    if (f->comm && f->sends)
        tarn_tcpx_close_send(f->plugin, f->comm);
    else if (f->comm)
        tarn_tcpx_close_recv(f->plugin, f->comm);
    if (f->listening && (f->comm || !f->accepting))
        tarn_tcpx_close_listen(f->plugin, f->listening);
    if (f->gpu) {
        tarn_cuda_queue_close(f->queue);
        tarn_cuda_free(0, f->allocated);
    } else {
        free(f->allocated);
    }
    if (f->control >= 0)
        close(f->control);
}

static int run(struct flow *f, const char *host, const char *port, int (*body)(struct flow *f))
{
    int rc = open_all(f);
    if (rc == 0 && !host)
        rc = flow_listen(f);
    if (rc == 0)
        rc = host ? meet_as_client(f, host, port) : meet_as_server(f, port);
    f->deadline_ns = tarn_deadline(f->timeout_ms);
    if (rc == 0)
        rc = body(f);
    close_all(f);
    return rc;
}

int flow_main(int argc, char **argv, const char *title, int (*server)(struct flow *f),
              int (*client)(struct flow *f))
{
    bool serves = argc > 1 && strcmp(argv[1], "server") == 0;
    bool calls = argc > 2 && strcmp(argv[1], "client") == 0;
    int used = serves ? 2 : 3;
    if ((!serves && !calls) || argc > used + 1) {
        fprintf(stderr, "usage: %s server [PORT] | client HOST [PORT]\n", argv[0]);
        return 2;
    }
    const char *port = argc > used ? argv[used] : FLOW_PORT, *timeout = getenv("TCPX_TEST_TIMEOUT_MS");
    struct flow f = {.control = -1, .timeout_ms = TIMEOUT_MS};
    if (timeout)
        f.timeout_ms = (uint32_t)strtoul(timeout, NULL, 10);
    f.deadline_ns = tarn_deadline(f.timeout_ms);
    SAY("=== %s ===", title);
    SAY("Running in %s mode", serves ? "SERVER" : "CLIENT");
    int rc = run(&f, serves ? NULL : argv[2], port, serves ? server : client);
    SAY("%s", rc ? "\u2717 Test FAILED" : "\u2713 Test PASSED");
    return rc ? 1 : 0;
}
