/* SPDX-License-Identifier: Apache-2.0 */
#include "server/control/admin.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/net.h"
#include "server/control/metrics.h"
#include "server/directory/presence.h"

#define TIMEOUT_S 10
#define REQUEST_MAX 8192

struct tarn_admin {
    struct tarn_node *node;
    struct evhttp *http;
    char address[280];
};

static void reply(struct evhttp_request *request, int code, const char *reason, const char *type,
                  const struct tarn_buf *text)
{
    struct evbuffer *body = evbuffer_new();
    if (!body || text->failed || evbuffer_add(body, text->data, text->bytes)) {
        evhttp_send_error(request, HTTP_INTERNAL, "out of memory");
    } else {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
        evhttp_send_reply(request, code, reason, body);
    }
    if (body)
        evbuffer_free(body);
}

static void metrics(struct evhttp_request *request, void *arg)
{
    const struct tarn_admin *a = arg;
    struct tarn_buf text = {0};
    tarn_metrics_text(a->node, &text);
    reply(request, HTTP_OK, "OK", "text/plain; version=0.0.4", &text);
    tarn_buf_free(&text);
}

/* Healthy: takes puts and has its directory. */
static void health(struct evhttp_request *request, void *arg)
{
    const struct tarn_admin *a = arg;
    struct tarn_publisher_stats p;
    struct tarn_buf text = {0};
    tarn_publisher_stats(a->node->publisher, &p);
    bool ok = !p.away && a->node->state == TARN_NODE_READY;
    tarn_buf_printf(&text, "{\"node\":\"%s\",\"state\":\"%s\",\"redis\":\"%s\"}\n", a->node->id,
                    tarn_node_state_name(a->node), p.away ? "away" : "ok");
    reply(request, ok ? HTTP_OK : HTTP_SERVUNAVAIL, ok ? "OK" : "Service Unavailable", "application/json",
          &text);
    tarn_buf_free(&text);
}

int tarn_admin_start(struct tarn_node *n, const char *address, struct tarn_admin **a_p)
{
    struct tarn_addr addr;
    int fd, rc = tarn_addr_parse(address, "--http", &addr);
    if (!rc)
        rc = tarn_net_listen(&addr, &fd);
    if (rc)
        return rc;
    struct tarn_admin *a = calloc(1, sizeof(*a));
    if (a)
        a->http = evhttp_new(tarn_loop_base(n->loop));
    if (!a || !a->http || evhttp_set_cb(a->http, "/metrics", metrics, a) ||
        evhttp_set_cb(a->http, "/health", health, a) || evhttp_accept_socket(a->http, fd)) {
        close(fd);
        tarn_admin_stop(a);
        return tarn_fail(TARN_E_NO_MEMORY, "--http %s: out of memory", address);
    }
    a->node = n;
    evhttp_set_allowed_methods(a->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_timeout(a->http, TIMEOUT_S);
    evhttp_set_max_headers_size(a->http, REQUEST_MAX);
    evhttp_set_max_body_size(a->http, REQUEST_MAX);
    tarn_addr_format(&addr, a->address, sizeof(a->address));
    *a_p = a;
    return 0;
}

void tarn_admin_stop(struct tarn_admin *a)
{
    if (!a)
        return;
    if (a->http)
        evhttp_free(a->http);
    free(a);
}

const char *tarn_admin_address(const struct tarn_admin *a)
{
    return a->address;
}
