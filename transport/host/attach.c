/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ATTACH and DETACH. A transport may answer an ATTACH later: rdma resolves the client's address and joins
 * queue pairs. Only the connection waits for that, not the control thread.
 */
#include "transport/host/commands.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utlist.h>

#include "base/container.h"
#include "base/error.h"

/* One ATTACH, from the command to its answer. */
struct tarn_attaching {
    struct tarn_waiter waiter;
    struct tarn_attaching *prev, *next;
    struct tarn_host *host;
    struct tarn_conn *conn; /* NULL once it is gone */
    const struct tarn_host_transport *transport;
    char offer[TARN_OFFER_TEXT];
    struct tarn_attach a;
};

static void reply(struct tarn_conn *c, const struct tarn_attach *a)
{
    tarn_conn_send_fds(c, a);
    tarn_resp_add_array(&c->out, 2);
    tarn_resp_add_string(&c->out, a->text, strlen(a->text));
    tarn_resp_add_integer(&c->out, a->nfds);
}

static void attaching_free(struct tarn_attaching *at)
{
    DL_DELETE(at->host->attaching, at);
    free(at);
}

/* On the control thread again. What nobody will use is taken back. */
static void answered(void *arg)
{
    struct tarn_attaching *at = arg;
    struct tarn_conn *c = at->conn;
    if (c && at->a.result.code) {
        tarn_reply_failure(c, tarn_reason_fail(&at->a.result));
    } else if (c) {
        reply(c, &at->a);
    } else if (!at->a.result.code) {
        at->transport->ops->detach_link(at->transport->half, at->a.session, at->a.link);
    }
    attaching_free(at);
    if (c)
        tarn_conn_resume(c);
}

/* On the transport's thread. Without memory to post it the connection waits until its client gives up. */
static void attached(struct tarn_attach *a)
{
    struct tarn_attaching *at = TARN_CONTAINER_OF(a, struct tarn_attaching, a);
    tarn_loop_post(at->host->loop, answered, at);
}

static void conn_gone(struct tarn_waiter *w)
{
    struct tarn_attaching *at = TARN_CONTAINER_OF(w, struct tarn_attaching, waiter);
    at->conn = NULL;
    atomic_store(&at->a.gone, true);
}

static int parse(redisReply **args, size_t n, struct tarn_attaching *at)
{
    at->a.write = !strcasecmp(args[2]->str, "w");
    if (!at->a.write && strcasecmp(args[2]->str, "r"))
        return tarn_fail(TARN_E_INVALID, "ATTACH %s: access is r or w", args[1]->str);
    if (n > 3 && args[3]->len >= sizeof(at->offer))
        return tarn_fail(TARN_E_INVALID, "ATTACH %s: an offer of %zu bytes: at most %zu", args[1]->str,
                         (size_t)args[3]->len, sizeof(at->offer) - 1);
    if (n > 3)
        memcpy(at->offer, args[3]->str, args[3]->len + 1);
    at->a.offer = at->offer;
    return 0;
}

int tarn_command_attach(struct tarn_conn *c, size_t n, redisReply **args)
{
    struct tarn_attaching *at = calloc(1, sizeof(*at));
    if (!at)
        return tarn_fail(TARN_E_NO_MEMORY, "ATTACH: out of memory");
    at->waiter.gone = conn_gone;
    at->host = c->host;
    at->conn = c;
    at->a.local = c->local;
    at->a.done = attached;
    DL_APPEND(c->host->attaching, at);
    int rc = parse(args, n, at);
    if (!rc)
        rc = tarn_session_attach(c->session, args[1]->str, &at->a, &at->transport);
    if (rc == TARN_INPROGRESS) {
        tarn_conn_wait(c, &at->waiter);
        return 0;
    }
    if (!rc)
        reply(c, &at->a);
    attaching_free(at);
    return rc;
}

int tarn_command_detach(struct tarn_conn *c, size_t n, redisReply **args)
{
    uint64_t link;
    int rc = tarn_arg_u64(args[2], "link", 16, UINT64_MAX, &link);
    (void)n;
    if (!rc)
        rc = tarn_session_detach_link(c->session, args[1]->str, link);
    if (!rc)
        tarn_resp_add_simple(&c->out, "OK");
    return rc;
}

void tarn_attaching_free(struct tarn_host *h)
{
    while (h->attaching)
        attaching_free(h->attaching);
}
