/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events and streams of the application's GPUs: what an operation waits for, and what waits for an operation.
 *
 * A stream that waits for an operation is held at a gate, two words of pinned memory: the client opens it
 * when the operation is complete, whatever came of it, and the stream says when it has passed. It must not go
 * on sooner, say behind the first copy: a get whose copy turns out to be stale is tried again, and a stream
 * that had gone on would have read bytes of which the completion then says that they are right.
 *
 * A gate is used again when its stream has passed it, each time with another ticket. All of them lie in one
 * page, which is pinned when the first stream is to wait. If streams have not all passed when the client is
 * closed, the page is left to the process: they still look at it.
 *
 * A call of CUDA may wait for streams that are held, so none is made under q->lock, which opens gates; but to
 * pin the page, when none is held yet.
 */
#include "client/op.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SPIN_NS (100 * 1000)
#define NAP_MAX_NS (500 * 1000)

/* --- events ------------------------------------------------------------------------------------- */

int tarn_event_late(void)
{
    return tarn_fail(TARN_E_TIMEOUT, "the deadline passed before the event to wait for: raise timeout_ms or "
                                     "look at what it was recorded behind");
}

uint64_t tarn_event_nap_ns(uint64_t waited_ns)
{
    uint64_t nap = waited_ns / 32;

    return waited_ns < SPIN_NS ? 0 : nap < NAP_MAX_NS ? nap : NAP_MAX_NS;
}

int tarn_event_wait(void *event, uint64_t deadline_ns)
{
    uint64_t begun = tarn_now_ns(), now = begun;
    int rc;

    while ((rc = tarn_cuda_passed(event)) == TARN_E_AGAIN && now < deadline_ns) {
        struct timespec nap = {0, (long)tarn_event_nap_ns(now - begun)};
        if (nap.tv_nsec > 0)
            nanosleep(&nap, NULL);
        else
            sched_yield();
        now = tarn_now_ns();
    }
    return rc == TARN_E_AGAIN ? tarn_event_late() : rc;
}

/* --- gates -------------------------------------------------------------------------------------- */

#define PAGE_BYTES (TARN_GATES * sizeof(struct tarn_cuda_gate))

static int page_make(struct tarn_gates *g)
{
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return tarn_fail(TARN_E_NO_MEMORY, "stream wait: out of memory");
    int rc = tarn_cuda_pin(page, PAGE_BYTES, true);
    if (rc != 0) {
        munmap(page, PAGE_BYTES);
        return rc;
    }
    g->page = page;
    return 0;
}

static bool has_passed(struct tarn_gates *g, uint32_t i)
{
    return __atomic_load_n(&g->page[i].passed, __ATOMIC_ACQUIRE) == g->all[i].ticket;
}

void tarn_gates_free(struct tarn_gates *g)
{
    bool idle = g->page != NULL;

    for (uint32_t i = 0; idle && i < TARN_GATES; i++)
        idle = has_passed(g, i);
    if (!idle)
        return;
    tarn_cuda_unpin(g->page);
    munmap(g->page, PAGE_BYTES);
}

/* One that its stream has passed, for the operation; TARN_GATES: there is none. */
static uint32_t gate_take(struct tarn_gates *g, struct tarn_operation *op)
{
    uint32_t i = 0;

    while (i < TARN_GATES && !(has_passed(g, i) && g->page[i].open == g->all[i].ticket))
        i++;
    if (i < TARN_GATES) {
        g->all[i].ticket++;
        g->all[i].next = op->gate;
        op->gate = i + 1;
    }
    return i;
}

void tarn_gates_open(struct tarn_gates *g, struct tarn_operation *op)
{
    for (; op->gate; op->gate = g->all[op->gate - 1].next)
        __atomic_store_n(&g->page[op->gate - 1].open, g->all[op->gate - 1].ticket, __ATOMIC_RELEASE);
}

/* --- waiting for an operation ------------------------------------------------------------------- */

struct turn {
    struct tarn_cuda_gate *gate;
    uint32_t ticket;
    bool earlier; /* the keeper is to come by earlier than it meant to */
};

/* A gate for the operation, or TARN_INPROGRESS when it needs none: it is complete. The lock is held. */
static int gate_for(struct tarn_ops_queue *q, tarn_op id, struct turn *t)
{
    struct tarn_operation *op;

    HASH_FIND(hh, q->all, &id, sizeof id, op);
    if (!op)
        return tarn_fail(TARN_E_NOT_FOUND,
                         "stream wait: no such operation, or its completion was taken already");
    int rc = q->gates.page ? 0 : page_make(&q->gates);
    if (rc != 0 || op->state == TARN_OP_DONE)
        return rc ? rc : TARN_INPROGRESS;
    uint32_t i = gate_take(&q->gates, op);
    if (i == TARN_GATES)
        return tarn_fail(TARN_E_BUSY, "stream wait: streams are to wait %d times already", TARN_GATES);
    *t = (struct turn){&q->gates.page[i], q->gates.all[i].ticket, op->deadline_ns < q->alarm_ns};
    if (t->earlier)
        q->alarm_ns = op->deadline_ns;
    return 0;
}

int tarn_stream_wait(struct tarn_client *c, tarn_op id, void *stream)
{
    struct turn t = {0};
    int rc = tarn_client_enter(c);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&c->ops->lock);
    rc = gate_for(c->ops, id, &t);
    pthread_mutex_unlock(&c->ops->lock);
    if (rc != 0)
        return rc == TARN_INPROGRESS ? 0 : rc;
    if (t.earlier)
        tarn_monitor_alarm(c);
    rc = tarn_cuda_hold(stream, t.gate, t.ticket);
    if (rc != 0) /* no stream is at this gate */
        __atomic_store_n(&t.gate->passed, t.ticket, __ATOMIC_RELEASE);
    return rc;
}
