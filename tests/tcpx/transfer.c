/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcpx_transfer server [PORT] | client HOST [PORT]: sends 23 bytes from the client's GPU to the
 * server's. The server compares them and tells the client the result. Only then does the client close its
 * end, so it does not have to guess how long the bytes take to arrive. The server closes last: a send whose
 * receiver is gone fails, even one that had arrived.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tests/tcpx/flow.h"

enum { BYTES = sizeof(FLOW_PAYLOAD) - 1 };

static void hex_dump(const uint8_t *p, uint32_t bytes)
{
    char line[128];
    for (uint32_t at = 0; at < bytes; at += 16) {
        int n = snprintf(line, sizeof(line), "%04x ", at);
        for (uint32_t i = at; i < at + 16 && i < bytes; i++)
            n += snprintf(line + n, sizeof(line) - (size_t)n, " %02x", p[i]);
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  ");
        for (uint32_t i = at; i < at + 16 && i < bytes; i++)
            line[n++] = isprint(p[i]) ? (char)p[i] : '.';
        line[n] = '\0';
        SAY("%s", line);
    }
}

static int compare(struct flow *f)
{
    uint8_t got[BYTES], zeros[BYTES] = {0};
    if (flow_read(f, got, f->buffer, BYTES))
        return -1;
    hex_dump(got, BYTES);
    if (memcmp(got, FLOW_PAYLOAD, BYTES) == 0) {
        SAY("Received data matches expected payload");
        return 0;
    }
    return flow_fail("payload mismatch",
                     memcmp(got, zeros, BYTES) == 0
                         ? "all zeros: the sender has closed early, or its payload did not get to its GPU"
                         : "other bytes than were sent: look at the descriptors above");
}

static int receive(struct flow *f)
{
    uint32_t tag, bytes;
    void *request;
    if (flow_hear(f, FLOW_TELL_TAG, &tag) || flow_hear(f, FLOW_TELL_BYTES, &bytes))
        return -1;
    SAY("Header: tag=%u, bytes=%u", tag, bytes);
    if (tag != FLOW_TAG || bytes != BYTES)
        return flow_fail("header", "not tag 42 and 23 bytes: the client is another program");
    SAY("Waiting for client data, expected bytes=%u", bytes);
    if (tarn_tcpx_irecv(f->plugin, f->comm, f->buffer, bytes, f->mr, &request))
        return flow_fail("irecv", NULL);
    if (flow_wait(f, request, "test (receive)") || flow_unpack(f, bytes))
        return -1;
    return tarn_tcpx_consumed(f->plugin, f->comm, request) ? flow_fail("irecvConsumed", NULL) : compare(f);
}

static int serve(struct flow *f)
{
    if (flow_accept(f) || flow_register(f, "server receive"))
        return -1;
    int rc = receive(f);
    if (flow_tell(f, FLOW_TELL_RIGHT, rc == 0))
        return -1;
    flow_outlast(f);
    return rc;
}

static int deliver(struct flow *f)
{
    void *request;
    uint32_t right;
    if (flow_write(f, FLOW_PAYLOAD, BYTES) || flow_tell(f, FLOW_TELL_TAG, FLOW_TAG) ||
        flow_tell(f, FLOW_TELL_BYTES, BYTES))
        return -1;
    SAY("Sending %d bytes", BYTES);
    if (tarn_tcpx_isend(f->plugin, f->comm, f->buffer, BYTES, f->mr, &request))
        return flow_fail("isend", NULL);
    if (flow_wait(f, request, "test (send)") || flow_hear(f, FLOW_TELL_RIGHT, &right))
        return -1;
    return right ? 0 : flow_fail("server", "it did not get what was sent: its own output says why");
}

static int call(struct flow *f)
{
    return flow_connect(f) || flow_register(f, "client send") ? -1 : deliver(f);
}

int main(int argc, char **argv)
{
    return flow_main(argc, argv, "TCPX GPU-to-GPU transfer test", serve, call);
}
