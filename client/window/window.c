/* SPDX-License-Identifier: Apache-2.0 */
/* Lending: windows and leases. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "base/text.h"
#include "client/check.h"
#include "client/client.h"
#include "client/control_conn.h"
#include "client/displaced.h"
#include "client/health.h"
#include "client/op.h"
#include "client/owed_command.h"
#include "client/refresh.h"
#include "client/window/alloc.h"
#include "client/window/lender.h"

/* --- windows ------------------------------------------------------------------------------------ */

/* The window's place in an allocation of one GPU, which peers of this host open as a whole. */
static int take_gpu_memory(const struct tarn_cuda_memory *seen, struct tarn_pool_memory *m)
{
    struct tarn_cuda_device device;
    uintptr_t at = (uintptr_t)m->base;
    if (m->bytes > seen->end - at)
        return tarn_fail(
            TARN_E_INVALID,
            "window: %llu bytes at %p: the allocation has %llu bytes from there on: lend memory of "
            "one allocation",
            (unsigned long long)m->bytes, m->base, (unsigned long long)(seen->end - at));
    m->kind = TARN_POOL_GPU;
    m->device = seen->device;
    m->file_offset = at - seen->begin;
    int rc = tarn_cuda_describe(m->device, &device);
    if (!rc)
        rc = tarn_cuda_export(m->device, (void *)seen->begin, m->handle, &m->allocation);
    if (!rc)
        memcpy(m->uuid, device.uuid, sizeof(m->uuid));
    return rc;
}

/* msync() of nothing to write says whether all of it is mapped. */
static bool is_mapped(void *addr, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    return msync((void *)from, (uintptr_t)addr + bytes - from, MS_ASYNC) == 0 || errno != ENOMEM;
}

static int check_memory(void *addr, uint64_t bytes, struct tarn_pool_memory *m)
{
    struct tarn_cuda_memory seen;
    if (!addr || bytes == 0 || (uintptr_t)addr + bytes < (uintptr_t)addr)
        return tarn_fail(
            TARN_E_INVALID,
            "window: %llu bytes at %p are no range of memory: give an address and at least one byte",
            (unsigned long long)bytes, addr);
    tarn_cuda_memory_of(addr, &seen);
    if (seen.kind == TARN_CUDA_MANAGED)
        return tarn_fail(
            TARN_E_UNSUPPORTED,
            "window: memory at %p is managed by CUDA and has no fixed place: lend memory of the host "
            "or of cudaMalloc()",
            addr);
    if (seen.kind != TARN_CUDA_DEVICE && !is_mapped(addr, bytes))
        return tarn_fail(TARN_E_INVALID,
                         "window: not all of the %llu bytes at %p are mapped: lend memory until after the "
                         "window is closed",
                         (unsigned long long)bytes, addr);
    *m = (struct tarn_pool_memory){
        .name = "window", .kind = TARN_POOL_CPU, .base = addr, .bytes = bytes, .memfd = -1, .touch_fd = -1};
    if (seen.kind == TARN_CUDA_DEVICE)
        return take_gpu_memory(&seen, m);
    return 0;
}

/* Each token is half of a descriptor's; the lender's secret is the other half. */
static int make_tokens(struct tarn_window *w)
{
    int rc = tarn_secret_make(w->tokens[0]);
    return rc ? rc : tarn_secret_make(w->tokens[1]);
}

struct entry {
    struct tarn_window *window;
    const struct tarn_pool_memory *memory;
};

static int add_window(struct tarn_lender *l, void *arg)
{
    const struct entry *e = arg;
    int rc = tarn_lent_add(&l->lent, e->memory, e->window);
    for (uint32_t i = 0; !rc && i < l->host.ntransports; i++)
        l->host.transports[i].ops->lend(l->host.transports[i].half, e->window->index);
    return rc;
}

static int remove_window(struct tarn_lender *l, void *arg)
{
    struct tarn_window *w = arg;
    for (uint32_t i = 0; i < l->host.ntransports; i++)
        l->host.transports[i].ops->withdraw(l->host.transports[i].half, w->index);
    tarn_lent_remove(&l->lent, w);
    return 0;
}

int tarn_window_new(struct tarn_client *c, void *addr, uint64_t bytes, struct tarn_window **w_p)
{
    struct tarn_pool_memory memory;
    struct tarn_lender *lender;
    int rc = tarn_client_enter(c);
    if (!rc)
        rc = tarn_out_check("window", w_p);
    if (!rc)
        rc = check_memory(addr, bytes, &memory);
    if (!rc)
        rc = tarn_lender_of(c, &lender);
    if (rc)
        return rc;
    memory.memfd = tarn_window_file_take(addr, bytes, &memory.file_offset);
    struct tarn_window *w = calloc(1, sizeof(*w));
    if (!w) {
        tarn_window_file_give(memory.memfd);
        return tarn_fail(TARN_E_NO_MEMORY, "window: out of memory");
    }
    w->lender = lender;
    w->notice_fd = -1;
    rc = tarn_client_eventfd(&w->notice_fd);
    struct entry entry = {w, &memory};
    if (!rc)
        rc = make_tokens(w);
    if (!rc)
        rc = tarn_lender_run(lender, add_window, &entry);
    if (rc) {
        if (w->notice_fd >= 0)
            close(w->notice_fd);
        free(w);
        tarn_window_file_give(memory.memfd);
        return rc;
    }
    *w_p = w;
    return 0;
}

/* --- their ends --------------------------------------------------------------------------------- */

/* Takes the name of a lease that has ended from its node. One that does not answer is told later. */
static void say_unlend(const struct tarn_lease_name *n, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_command command = {.n = 0};
    redisReply *reply;
    uint64_t soon = tarn_now_ns() + tarn_peer_node_patience(n->node);
    tarn_command_strs(&command, "UNLEND", n->name, NULL);
    int rc = atomic_load(&n->node->health) == TARN_UP
                 ? tarn_control_conn_call(n->node, &command, soon < deadline_ns ? soon : deadline_ns, cancel,
                                          &reply)
                 : TARN_E_NODE_DOWN;
    if (rc == TARN_E_NODE_DOWN || rc == TARN_E_TIMEOUT || rc == TARN_E_CANCELED || rc == TARN_E_BUSY) {
        tarn_owed_command_add(n->node, &command);
        return;
    }
    tarn_command_free(&command);
    if (!rc)
        freeReplyObject(reply);
}

/* Frees a lease that has ended. */
static void end_lease(struct tarn_lease *l, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_lease_name *n;
    LL_FOREACH (l->names, n)
        say_unlend(n, deadline_ns, cancel);
    tarn_lease_free(l);
}

int tarn_recall(struct tarn_lease *l, uint32_t timeout_ms)
{
    if (!l)
        return tarn_fail(TARN_E_INVALID, "recall: NULL: pass what tarn_lease() made");
    struct tarn_client *c = l->window->lender->client;
    struct tarn_cancel own;
    int rc = tarn_client_enter(c);
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    struct tarn_cancel *cancel = tarn_client_cancel(c, &own);
    if (!rc)
        rc = tarn_lent_forward_check(&l->window->lender->lent, l->window, l);
    if (!rc)
        rc = tarn_lender_recall(l, deadline, cancel);
    if (!rc)
        end_lease(l, deadline, cancel);
    return rc;
}

int tarn_window_close(struct tarn_window *w, uint32_t timeout_ms)
{
    if (!w)
        return tarn_fail(TARN_E_INVALID, "window: NULL: pass what tarn_window_new() made");
    struct tarn_client *c = w->lender->client;
    struct tarn_cancel own, *cancel = tarn_client_cancel(c, &own);
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    int rc = tarn_client_enter(c);
    if (!rc && tarn_lent_receives(&w->lender->lent, w))
        rc = tarn_fail(TARN_E_BUSY, "window %u: a receive into it is under way: cancel it, or wait for it",
                       w->index);
    if (!rc)
        rc = tarn_lent_forward_check(&w->lender->lent, w, NULL);
    while (!rc && w->leases) {
        struct tarn_lease *lease = w->leases;
        rc = tarn_lender_recall(lease, deadline, cancel);
        if (!rc)
            end_lease(lease, deadline, cancel);
    }
    if (rc)
        return rc;
    return tarn_lender_run(w->lender, remove_window, w);
}

/* --- leases ------------------------------------------------------------------------------------- */

static int check_run(const struct tarn_window *w, uint32_t i, const struct tarn_run *r)
{
    uint64_t room = w->lender->lent.pools[w->index].bytes, count = r->count ? r->count : 1;
    uint64_t stride = r->stride ? r->stride : r->bytes, span;
    if (r->bytes && !__builtin_mul_overflow(count - 1, stride, &span) &&
        !__builtin_add_overflow(span, r->bytes, &span) && r->offset <= room && span <= room - r->offset)
        return 0;
    return tarn_fail(
        TARN_E_INVALID,
        "lease: run %u: %llu x %llu bytes from %llu on: give some bytes inside of the window, which has %llu",
        i, (unsigned long long)count, (unsigned long long)r->bytes, (unsigned long long)r->offset,
        (unsigned long long)room);
}

/* Fills the lease's runs, which are the whole window if there are none. */
static int take_runs(const struct tarn_window *w, const struct tarn_run *runs, uint32_t n,
                     struct tarn_lease *l)
{
    const struct tarn_pool_memory *m = &w->lender->lent.pools[w->index];
    const struct tarn_run whole = {.bytes = m->bytes};
    if (!tarn_runs_new(&l->runs, n ? n : 1))
        return tarn_fail(TARN_E_NO_MEMORY, "lease: out of memory for %u runs", n);
    for (uint32_t i = 0; i < l->runs.n; i++) {
        const struct tarn_run *r = n ? &runs[i] : &whole;
        int rc = check_run(w, i, r);
        if (rc)
            return rc;
        l->runs.piece[i] = (struct tarn_piece){
            .addr = (char *)m->base + r->offset, .bytes = r->bytes, .stride = r->stride, .count = r->count};
    }
    return tarn_runs_count(&l->runs)
               ? 0
               : tarn_fail(TARN_E_INVALID,
                           "lease: the runs have more than 2^64 bytes: lease fewer at a time");
}

static int check_lease(const struct tarn_window *w, const struct tarn_run *runs, uint32_t n,
                       const struct tarn_lease_options *o)
{
    if (!w)
        return tarn_fail(TARN_E_INVALID, "lease: no window: pass what tarn_window_new() made");
    if (n > TARN_RUNS_MAX)
        return tarn_fail(TARN_E_INVALID, "lease: %u runs: at most %d: lease fewer at a time", n,
                         TARN_RUNS_MAX);
    if (n && !runs)
        return tarn_fail(TARN_E_INVALID, "lease: runs is NULL");
    return tarn_flags_check("lease", o->flags, TARN_LEASE_WRITE);
}

int tarn_lease(struct tarn_window *w, const struct tarn_run *runs, uint32_t n,
               const struct tarn_lease_options *given, struct tarn_lease **l_p)
{
    struct tarn_lease_options o;
    int rc = tarn_options_copy(&o, sizeof(o), given);
    if (!rc)
        rc = tarn_out_check("lease", l_p);
    if (!rc)
        rc = check_lease(w, runs, n, &o);
    if (!rc)
        rc = tarn_client_enter(w->lender->client);
    if (rc)
        return rc;
    struct tarn_lease *l = calloc(1, sizeof(*l));
    if (!l)
        return tarn_fail(TARN_E_NO_MEMORY, "lease: out of memory");
    l->write = o.flags & TARN_LEASE_WRITE;
    l->ends_ns = o.ttl_ms ? tarn_deadline(o.ttl_ms) : 0;
    rc = take_runs(w, runs, n, l);
    if (!rc)
        rc = tarn_lent_begin(&w->lender->lent, w, l);
    if (rc) {
        tarn_lease_free(l);
        return rc;
    }
    *l_p = l;
    return 0;
}

int tarn_lease_descriptor(const struct tarn_lease *l, char text[TARN_DESCRIPTOR_MAX])
{
    if (!l || !text)
        return tarn_fail(TARN_E_INVALID,
                         "descriptor: NULL: pass what tarn_lease() made, and room for the text");
    const struct tarn_lender *lender = l->window->lender;
    const struct tarn_client *c = lender->client;
    struct tarn_descriptor d = {
        .epoch = lender->epoch,
        .gen = l->gen,
        .bytes = l->runs.bytes,
        .window = l->window->index,
        .slot = l->slot,
        .gpu = lender->lent.pools[l->window->index].kind == TARN_POOL_GPU,
        .write = l->write,
    };
    snprintf(d.ns, sizeof(d.ns), "%s", tarn_directory_ns(c->directory));
    snprintf(d.address, sizeof(d.address), "%s", lender->address);
    snprintf(d.unix_path, sizeof(d.unix_path), "%s", lender->unix_path);
    snprintf(d.host_id, sizeof(d.host_id), "%s", c->host_id);
    snprintf(d.token, sizeof(d.token), "%s%s", lender->secret, l->window->tokens[l->write]);
    return tarn_descriptor_format(&d, text);
}

/* --- names -------------------------------------------------------------------------------------- */

static struct tarn_lease_name *name_new(struct tarn_peer_node *node, const char *name)
{
    struct tarn_lease_name *n = calloc(1, sizeof(*n));
    if (!n || !(n->name = strdup(name))) {
        free(n);
        tarn_fail(TARN_E_NO_MEMORY, "publish: out of memory");
        return NULL;
    }
    n->node = node;
    return n;
}

static int say_lend(const struct tarn_lease_name *n, uint32_t ttl_ms, const char *descriptor,
                    uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_command command = {.n = 0};
    redisReply *reply;
    tarn_command_strs(&command, "LEND", n->name, NULL);
    tarn_command_u64(&command, ttl_ms);
    tarn_command_str(&command, descriptor);
    int rc = tarn_control_conn_call(n->node, &command, deadline_ns, cancel, &reply);
    tarn_command_free(&command);
    if (!rc)
        freeReplyObject(reply);
    return rc;
}

int tarn_lease_publish(struct tarn_lease *l, const char *name, uint32_t ttl_ms, uint32_t timeout_ms)
{
    char text[TARN_DESCRIPTOR_MAX];
    int rc = tarn_lease_descriptor(l, text);
    if (!rc && !name)
        rc = tarn_fail(TARN_E_INVALID, "publish: name is NULL");
    if (rc)
        return rc;
    struct tarn_lender *lender = l->window->lender;
    struct tarn_client *c = lender->client;
    struct tarn_cancel own, *cancel = tarn_client_cancel(c, &own);
    uint64_t deadline = tarn_client_deadline(c, timeout_ms);
    rc = tarn_client_enter(c);
    struct tarn_peer_node *node = rc ? NULL : tarn_peer_nodes_any(c, NULL);
    if (!rc && !node)
        rc = tarn_peer_nodes_none(c);
    struct tarn_lease_name *n = rc ? NULL : name_new(node, name);
    if (!n)
        return rc ? rc : TARN_E_NO_MEMORY;
    rc = say_lend(n, ttl_ms, text, deadline, cancel);
    if (rc) {
        tarn_lease_name_free(n);
        return rc;
    }
    pthread_mutex_lock(&lender->lent.lock);
    LL_PREPEND(l->names, n);
    pthread_mutex_unlock(&lender->lent.lock);
    return 0;
}

/* --- notifications ------------------------------------------------------------------------------ */

int tarn_notification_next(struct tarn_window *w, uint32_t timeout_ms, struct tarn_notification *out)
{
    int rc = tarn_out_check("notification", out);
    if (!rc && !w)
        rc = tarn_fail(TARN_E_INVALID, "notification: no window: pass what tarn_window_new() made");
    if (!rc)
        rc = tarn_client_enter(w->lender->client);
    if (rc)
        return rc;
    struct tarn_client *c = w->lender->client;
    struct tarn_cancel own;
    return tarn_lent_next(&w->lender->lent, w, tarn_client_deadline(c, timeout_ms),
                          tarn_client_cancel(c, &own), out);
}

int tarn_notification_fd(const struct tarn_window *w)
{
    return w ? w->notice_fd
             : tarn_fail(TARN_E_INVALID, "notification: no window: pass what tarn_window_new() made");
}

static int enter_expect(const struct tarn_lease *l)
{
    return l ? tarn_client_enter(l->window->lender->client)
             : tarn_fail(TARN_E_INVALID, "expect: no lease: pass what tarn_lease() made");
}

int tarn_expect(struct tarn_lease *l, uint64_t tag, uint32_t n, uint32_t timeout_ms)
{
    struct tarn_cancel own;
    int rc = enter_expect(l);
    if (rc)
        return rc;
    struct tarn_client *c = l->window->lender->client;
    return tarn_lent_expect(&l->window->lender->lent, l, tag, n, tarn_client_deadline(c, timeout_ms),
                            tarn_client_cancel(c, &own));
}

static int run_expect(void *arg, uint64_t deadline_ns, struct tarn_cancel *cancel)
{
    struct tarn_lent_expecting *e = arg;
    return tarn_lent_expect_look(&e->lease->window->lender->lent, e, deadline_ns, cancel);
}

int tarn_submit_expect(struct tarn_lease *l, uint64_t tag, uint32_t n, uint32_t timeout_ms, uint64_t cookie,
                       tarn_op *op_p)
{
    int rc = enter_expect(l);
    if (rc)
        return rc;
    struct tarn_lender *lender = l->window->lender;
    struct tarn_lent_expecting *e = malloc(sizeof(*e));
    if (!e)
        return tarn_fail(TARN_E_NO_MEMORY, "expect: out of memory");
    *e = (struct tarn_lent_expecting){.client = lender->client, .lease = l, .tag = tag, .n = n};
    const struct tarn_op_task t = {.kind = TARN_OP_EXPECT,
                                   .timeout_ms = timeout_ms,
                                   .cookie = cookie,
                                   .run = run_expect,
                                   .arg = e,
                                   .parks = true,
                                   .id_p = &e->op};
    struct tarn_reason why;
    tarn_lent_expect_begin(&lender->lent, e);
    if (tarn_reason_keep(&why, tarn_op_submit(lender->client, &t, op_p))) {
        tarn_lent_expect_end(&lender->lent, e);
        free(e);
    }
    return tarn_reason_fail(&why);
}
