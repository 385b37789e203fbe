/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tcpx/bare.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

enum { PAGE = 4096, STUCK_MS = 60000 };

/* --- a connection ------------------------------------------------------------------------------- */

int bare_open(struct tarn_tcpx_plugin *p, int dev, struct bare *b)
{
    *b = (struct bare){.plugin = p};
    int rc = tarn_tcpx_pair_open(p, dev, -1, STUCK_MS, &b->pair);
    if (rc)
        return rc;
    b->send = b->pair.send;
    b->recv = b->pair.recv;
    b->device = *tarn_tcpx_dial_device(b->pair.accepts);
    if (p->devices[dev].mode == TARN_TCPX_UNPACK)
        b->unpack = b->device.handle;
    return 0;
}

void bare_close(struct bare *b)
{
    tarn_tcpx_pair_close(&b->pair);
    b->send = b->recv = NULL;
}

int bare_wait(struct tarn_tcpx_plugin *p, void *request, uint32_t timeout_ms)
{
    uint64_t end = 0;
    for (;;) {
        int rc = tarn_tcpx_test(p, request);
        if (rc != TARN_E_AGAIN)
            return rc;
        end = end ? end : tarn_deadline(timeout_ms);
        if (tarn_now_ns() > end)
            return TARN_E_AGAIN;
        sched_yield();
    }
}

uint64_t bare_place(const struct bare *b, uint64_t k, uint8_t *to, uint64_t room)
{
    const struct tarn_tcpx_meta *meta = b->unpack->meta;
    const union tarn_tcpx_load *f = meta->mem[k % TARN_TCPX_SLOTS];
    uint64_t n = meta->cnt[k % TARN_TCPX_SLOTS], sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (n > TARN_TCPX_FRAGMENTS || f[i].dst_off > room || f[i].len > room - f[i].dst_off)
            return UINT64_MAX;
        memcpy(to + f[i].dst_off, (const uint8_t *)b->unpack->bounce + f[i].src_off, f[i].len);
        sum += f[i].len;
    }
    return sum == room ? sum : UINT64_MAX;
}

/* --- the loop ----------------------------------------------------------------------------------- */

/* Both ends compute the same list of requests. */
struct walk {
    const struct bare_load *load;
    uint64_t random, message, bytes, at, off;
};

struct request {
    void *request;
    uint64_t off; /* offset of its bytes in the source */
    uint32_t bytes;
};

struct progress {
    uint64_t posted, done; /* requests */
    bool taken;            /* the next request is in the ring but not posted */
    bool more;             /* there may be another request */
};

struct end {
    struct bare *b;
    const struct bare_load *load;
    uint8_t *source; /* 2 * load->bytes, for any offset up to load->bytes; or all places */
    uint8_t *memory; /* gather: `window` chunks; receive: `window` chunks, or all places */
    void *mr;
    struct request ring[TARN_TCPX_REQUESTS];
    struct bare_result result;
    int status;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static bool next_request(struct walk *w, struct request *r)
{
    const struct bare_load *l = w->load;
    if (w->at == w->bytes && w->message) {
        if (w->message == l->messages)
            return false;
        w->at = w->bytes = 0;
    }
    if (w->at == 0) {
        w->message++;
        w->bytes = l->seed ? next_random(&w->random) % (l->bytes + 1) : l->bytes;
        w->off = l->seed ? next_random(&w->random) % (l->bytes + 1) : 0;
        if (l->places)
            w->off = (w->message - 1) % l->places * l->bytes;
    }
    uint64_t left = w->bytes - w->at;
    r->bytes = left > l->chunk ? l->chunk : (uint32_t)left;
    r->off = w->off + w->at;
    w->at += r->bytes;
    return true;
}

/* Where the n-th request is received. */
static uint8_t *place_of(const struct end *e, uint64_t n, const struct request *r)
{
    return e->memory + (e->load->places ? r->off : n % e->load->window * e->load->chunk);
}

/* r->request is NULL if there is no room now. */
static int post(struct end *e, bool sends, uint64_t n, struct request *r)
{
    struct bare *b = e->b;
    uint8_t *from = e->source + r->off;
    if (sends && e->load->gather)
        from = memcpy(e->memory + n % e->load->window * e->load->chunk, from, r->bytes);
    if (sends)
        return tarn_tcpx_isend(b->plugin, b->send, from, r->bytes, e->mr, &r->request);
    uint8_t *to = b->unpack ? e->memory : place_of(e, n, r);
    return tarn_tcpx_irecv(b->plugin, b->recv, to, r->bytes, e->mr, &r->request);
}

/* Takes a receive that is done: copies it out of the bounce memory and compares it. */
static int take(struct end *e, uint64_t n, const struct request *r)
{
    struct bare *b = e->b;
    uint8_t *to = place_of(e, n, r);
    uint64_t k = b->received++;
    bool right = true;
    if (b->unpack && !e->load->discard)
        right = bare_place(b, k, to, r->bytes) == r->bytes;
    if (right && e->load->seed && !e->load->discard)
        right = memcmp(to, e->source + r->off, r->bytes) == 0;
    e->result.wrong += !right;
    return tarn_tcpx_consumed(b->plugin, b->recv, r->request);
}

/* Posts requests until the window is full or the plugin has no room. */
static int post_some(struct end *e, bool sends, struct walk *w, struct progress *at)
{
    while (at->posted - at->done < e->load->window) {
        struct request *r = &e->ring[at->posted % e->load->window];
        if (!at->taken && !(at->taken = next_request(w, r)))
            break;
        int rc = post(e, sends, at->posted, r);
        if (rc || !r->request)
            return rc;
        at->posted++;
        at->taken = false;
    }
    at->more = at->taken || at->posted - at->done == e->load->window;
    return 0;
}

static int end_oldest(struct end *e, bool sends, struct progress *at)
{
    struct request *oldest = &e->ring[at->done % e->load->window];
    int rc = bare_wait(e->b->plugin, oldest->request, STUCK_MS);
    if (rc == 0 && !sends)
        rc = take(e, at->done, oldest);
    e->result.bytes += oldest->bytes;
    at->done++;
    return rc;
}

static int run_end(struct end *e, bool sends)
{
    struct walk w = {.load = e->load, .random = e->load->seed};
    struct progress at = {.more = true};
    uint64_t late = tarn_deadline(STUCK_MS);
    int rc = 0;
    while (rc == 0 && (at.more || at.done < at.posted)) {
        rc = post_some(e, sends, &w, &at);
        if (rc == 0 && at.done < at.posted) {
            rc = end_oldest(e, sends, &at);
            late = tarn_deadline(STUCK_MS);
        } else if (rc == 0 && at.more && tarn_now_ns() > late) {
            rc = tarn_fail(TARN_E_TIMEOUT, "bare loop: no room for a request within %d ms", STUCK_MS);
        }
    }
    e->result.requests = at.done;
    return rc;
}

static void *run_sender(void *arg)
{
    struct end *e = arg;
    e->status = run_end(e, true);
    return NULL;
}

static int run_both(struct end *sender, struct end *receiver)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_sender, sender))
        return tarn_fail(TARN_E_SYSTEM, "bare loop: no thread");
    int rc = run_end(receiver, false);
    pthread_join(thread, NULL);
    if (sender->status)
        return tarn_fail(sender->status, "bare loop: the sender failed");
    return rc;
}

static void fill(uint8_t *p, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = next_random(&seed);
        memcpy(p + i, &v, 8);
    }
}

int bare_run(struct bare *b, const struct bare_load *load, struct bare_result *result)
{
    struct end sender = {.b = b, .load = load}, receiver = {.b = b, .load = load};
    uint64_t places = load->places * load->bytes, ring = (uint64_t)load->chunk * load->window;
    uint64_t source_bytes = ((places ? places : 2 * load->bytes) + PAGE) / PAGE * PAGE;
    uint64_t target_bytes = ((places ? places : ring) + PAGE) / PAGE * PAGE;
    uint64_t ring_bytes = (ring + PAGE) / PAGE * PAGE;
    int type = b->unpack ? TARN_TCPX_CUDA : TARN_TCPX_HOST, rc;
    sender.source = receiver.source = aligned_alloc(PAGE, source_bytes);
    receiver.memory = aligned_alloc(PAGE, target_bytes);
    sender.memory = aligned_alloc(PAGE, ring_bytes);
    if (!sender.source || !receiver.memory || !sender.memory) {
        rc = tarn_fail(TARN_E_NO_MEMORY, "bare loop: no memory");
        goto free_memory;
    }
    fill(sender.source, source_bytes, load->seed ? load->seed : 1);
    memset(receiver.memory, 0, target_bytes);
    memset(sender.memory, 0, ring_bytes);

    rc = tarn_tcpx_reg(b->plugin, b->send, load->gather ? sender.memory : sender.source,
                       load->gather ? ring_bytes : source_bytes, type, &sender.mr);
    if (rc)
        goto free_memory;
    rc = tarn_tcpx_reg(b->plugin, b->recv, receiver.memory, target_bytes, type, &receiver.mr);
    if (rc)
        goto dereg_sender;
    uint64_t start = tarn_now_ns();
    rc = run_both(&sender, &receiver);
    *result = receiver.result;
    result->seconds = (double)(tarn_now_ns() - start) / 1e9;
    tarn_tcpx_dereg(b->plugin, b->recv, receiver.mr);
dereg_sender:
    tarn_tcpx_dereg(b->plugin, b->send, sender.mr);
free_memory:
    free(sender.source);
    free(sender.memory);
    free(receiver.memory);
    return rc;
}
