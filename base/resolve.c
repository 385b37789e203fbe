/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numeric addresses are converted in place. A detached thread looks up a name; caller and thread share one
 * reference-counted request, and the last to drop it frees it. A caller whose deadline passes returns at
 * once; the thread goes on waiting for the name server.
 */
#include "base/resolve.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

struct request {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int references;
    bool done;
    int result; /* of getaddrinfo */
    struct addrinfo *found;
    char port[6];
    char host[];
};

static int look_up(const char *host, const char *port, int flags, struct addrinfo **out_p)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    return getaddrinfo(host, port, &hints, out_p);
}

static struct request *request_new(const char *host, const char *port)
{
    size_t host_bytes = strlen(host) + 1;
    struct request *r = calloc(1, sizeof *r + host_bytes);
    if (!r)
        return NULL;

    tarn_cond_init(&r->answered);
    pthread_mutex_init(&r->lock, NULL);
    memcpy(r->host, host, host_bytes);
    snprintf(r->port, sizeof r->port, "%s", port);
    r->references = 1;
    return r;
}

static void request_drop(struct request *r)
{
    pthread_mutex_lock(&r->lock);
    bool last = --r->references == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return;
    if (r->found)
        freeaddrinfo(r->found);
    pthread_cond_destroy(&r->answered);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void *resolver_main(void *arg)
{
    struct request *r = arg;
    struct addrinfo *found = NULL;
    int result = look_up(r->host, r->port, 0, &found);

    pthread_mutex_lock(&r->lock);
    r->result = result;
    r->found = result == 0 ? found : NULL;
    r->done = true;
    pthread_cond_signal(&r->answered);
    pthread_mutex_unlock(&r->lock);
    request_drop(r);
    return NULL;
}

static int start_resolver(struct request *r)
{
    r->references++;
    int failed = tarn_thread_detached(resolver_main, r);
    if (failed) {
        r->references--;
        return tarn_fail(TARN_E_SYSTEM, "%s: cannot start a thread to look up its address: %s", r->host,
                         strerror(failed));
    }
    return 0;
}

/* Waits for the answer and takes it from the request. */
static int wait_for_answer(struct request *r, uint64_t deadline_ns, struct tarn_cancel *cancel,
                           struct addrinfo **out_p)
{
    int result = 0;
    bool done;

    pthread_mutex_lock(&r->lock);
    while (!r->done && tarn_cancel_cond(cancel, &r->answered, &r->lock, deadline_ns))
        ;
    done = r->done;
    if (done) {
        result = r->result;
        *out_p = r->found;
        r->found = NULL;
    }
    pthread_mutex_unlock(&r->lock);

    if (!done && tarn_canceled(cancel))
        return tarn_cancel_fail();
    if (!done)
        return tarn_fail(TARN_E_TIMEOUT, "%s: the name server did not answer in time", r->host);
    if (result != 0)
        return tarn_fail(TARN_E_NODE_DOWN, "%s: no address found: %s: check the host name", r->host,
                         gai_strerror(result));
    return 0;
}

int tarn_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct tarn_cancel *cancel,
                 struct addrinfo **out_p)
{
    char port_text[6];
    int rc;

    snprintf(port_text, sizeof port_text, "%u", port);
    if (look_up(host, port_text, AI_NUMERICHOST, out_p) == 0)
        return 0;

    struct request *r = request_new(host, port_text);
    if (!r)
        return tarn_fail(TARN_E_NO_MEMORY, "%s: out of memory looking up its address", host);
    rc = start_resolver(r);
    if (rc == 0)
        rc = wait_for_answer(r, deadline_ns, cancel, out_p);
    request_drop(r);
    return rc;
}
