/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   OPENING   a dial is under way (tcpx_dial.h)
 *   LEARNING  where its bounce memory and metadata are, which it says in memory of the GPU
 *   READY     with memory to post receives with
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcpx/plugin/tcpx_nic.h"
#include "transport/tcpx/tcpx_comm.h"
#include "transport/tcpx/tcpx_comm_state.h"

enum { PAGE = 4096 };

/* --- new ---------------------------------------------------------------------------------------- */

int tarn_tcpx_comm_new(struct tarn_tcpx_gear *g, int gpu, tarn_tcpx_done_fn done, const uint8_t *handle,
                       struct tarn_tcpx_comm **c_p)
{
    struct tarn_tcpx_comm *c = gpu < TARN_TCPX_GPUS ? calloc(1, sizeof(*c)) : NULL;
    if (!c)
        return tarn_fail(TARN_E_NO_MEMORY, "tcpx: out of memory for a connection, or GPU %d is above %d", gpu,
                         TARN_TCPX_GPUS - 1);
    c->gear = g;
    c->gear_chunk = g->chunk_bytes;
    c->plugin = g->plugin;
    c->done = done;
    c->sends = handle != NULL;
    c->nic = tarn_tcpx_nic(g->plugin, gpu);
    c->gpu = tarn_tcpx_dial_gpu(g->plugin, c->nic, gpu);
    c->plain = g->plugin->devices[c->nic].mode == TARN_TCPX_PLAIN;
    int rc = tarn_tcpx_dial_new(c->plugin, handle ? TARN_TCPX_CONNECTS : TARN_TCPX_ACCEPTS, c->nic, c->gpu,
                                handle, &c->dial);
    if (rc)
        free(c);
    else
        *c_p = c;
    return rc;
}

/* --- learning ----------------------------------------------------------------------------------- */

/* Bytes readable from `at` on, for a mapping: the allocator does not say. */
static uint64_t mapped_bytes(const void *at)
{
    FILE *f = fopen("/proc/self/maps", "re");
    uintptr_t from, to;
    uint64_t bytes = 0;
    char line[512];
    while (f && !bytes && fgets(line, sizeof(line), f))
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2 && (uintptr_t)at >= from &&
            (uintptr_t)at < to)
            bytes = to - (uintptr_t)at;
    if (f)
        fclose(f);
    return bytes;
}

/* Never reads outside the bounce memory, whatever the plugin lists. */
static int note_bounce(struct tarn_tcpx_comm *c)
{
    const uint8_t *pool = c->unpack.bounce;
    struct tarn_cuda_memory m;
    if (!c->unpack.meta || !pool)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx plugin %s: accept gave a device handle without bounce memory: it is broken, name "
            "another with tcpx-plugin",
            c->plugin->name);
    tarn_cuda_memory_of(pool, &m);
    c->bounce = (struct tarn_tcpx_bounce){.kind = m.kind, .device = m.device, .pool = pool};
    c->bounce_bytes = m.kind == TARN_CUDA_DEVICE ? m.end - (uintptr_t)pool : mapped_bytes(pool);
    return 0;
}

static int check_handle(const struct tarn_tcpx_comm *c)
{
    const struct tarn_tcpx_device_handle *d = tarn_tcpx_dial_device(c->dial);
    if (d->device_type == TARN_TCPX_DEVICE_UNPACK && d->device_version == TARN_TCPX_UNPACK_VERSION &&
        d->handle && d->size == sizeof(c->unpack))
        return 0;
    return tarn_fail(
        TARN_E_VERSION,
        "tcpx plugin %s: accept gave a device handle of type %d version %d with %zu bytes, and tarn "
        "knows type 1 version %d with %zu: install a version of the plugin that has these",
        c->plugin->name, d->device_type, d->device_version, d->size, TARN_TCPX_UNPACK_VERSION,
        sizeof(c->unpack));
}

/* The handle's bytes arrive like a message of one fragment. */
static int begin_learning(struct tarn_tcpx_comm *c)
{
    struct tarn_tcpx_fragments *f = &c->gear->list;
    struct tarn_cuda_memory m;
    const void *handle = tarn_tcpx_dial_device(c->dial)->handle;
    struct tarn_tcpx_bounce from = {.pool = handle};
    struct tarn_tcpx_into to = {.kind = TARN_CUDA_HOST,
                                .device = -1,
                                .pieces = &c->unpack_piece,
                                .npieces = 1,
                                .bytes = sizeof(c->unpack)};
    tarn_cuda_memory_of(handle, &m);
    int rc = m.kind == TARN_CUDA_DEVICE ? tarn_cuda_settle(m.device) : 0; /* the plugin copied it there */
    if (rc)
        return rc;
    from.kind = m.kind;
    from.device = m.device;
    c->unpack_piece = (struct tarn_piece){.addr = &c->unpack, .bytes = sizeof(c->unpack)};
    f->n = 0;
    tarn_tcpx_fragments_add(f, (struct tarn_tcpx_fragment){.bytes = sizeof(c->unpack)});
    rc = tarn_tcpx_fragments_check(f, sizeof(c->unpack), sizeof(c->unpack), 0);
    return rc ? rc : tarn_tcpx_comm_unpack(c, f, &from, &to, &c->unpack_ticket);
}

/* --- memory of receives ------------------------------------------------------------------------- */

/* UNPACK: a page that the plugin only asks the kind of. PLAIN: room for all requests at once. */
static int memory_open(struct tarn_tcpx_comm *c)
{
    uint8_t unused[TARN_CUDA_HANDLE];
    int before, rc = 0, type = c->plain ? TARN_TCPX_HOST : TARN_TCPX_CUDA;
    c->memory_bytes = c->plain ? (uint64_t)TARN_TCPX_REQUESTS * c->gear_chunk : PAGE;
    c->memory_gpu = !c->plain && c->gpu >= 0;
    if (c->memory_gpu) { /* small allocations are not page-aligned */
        rc = tarn_cuda_alloc(c->gpu, c->memory_bytes + PAGE, &c->memory_gpu_at, unused);
        c->memory = (uint8_t *)(((uintptr_t)c->memory_gpu_at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    } else {
        void *at = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return tarn_fail(TARN_E_NO_MEMORY, "tcpx: %llu bytes for receives: %m",
                             (unsigned long long)c->memory_bytes);
        c->memory = at;
    }
    if (!rc && c->plain && c->gpu >= 0 && !(rc = tarn_cuda_pin(c->memory, c->memory_bytes, true)))
        c->memory_pinned = true;
    if (rc)
        return rc;
    if (c->plain) {
        c->bounce = (struct tarn_tcpx_bounce){
            .kind = c->memory_pinned ? TARN_CUDA_PINNED : TARN_CUDA_HOST, .device = -1, .pool = c->memory};
        c->bounce_bytes = c->memory_bytes;
    }
    rc = tarn_tcpx_lend(c->gpu, &before);
    if (!rc)
        rc = tarn_tcpx_reg(c->plugin, c->comm, c->memory, c->memory_bytes, type, &c->memory_mr);
    tarn_tcpx_take_back(c->gpu, before);
    return rc;
}

static void memory_close(struct tarn_tcpx_comm *c)
{
    if (!c->memory)
        return;
    if (c->memory_pinned)
        tarn_cuda_unpin(c->memory);
    if (c->memory_gpu)
        tarn_cuda_free(c->gpu, c->memory_gpu_at);
    else
        munmap(c->memory, c->memory_bytes);
}

/* --- set-up ------------------------------------------------------------------------------------- */

static int open_receiver(struct tarn_tcpx_comm *c)
{
    int rc = tarn_tcpx_comm_unpacker(c);
    if (!rc && !c->plain)
        rc = check_handle(c);
    if (!rc && !c->plain)
        rc = begin_learning(c);
    return rc;
}

static int learn(struct tarn_tcpx_comm *c)
{
    int rc = c->plain ? 0 : tarn_tcpx_comm_unpacked(c, c->unpack_ticket);
    if (!rc && !c->plain)
        rc = note_bounce(c);
    return rc ? rc : memory_open(c);
}

int tarn_tcpx_comm_handle(struct tarn_tcpx_comm *c, uint8_t handle[TARN_TCPX_HANDLE])
{
    return tarn_tcpx_dial_handle(c->dial, handle);
}

static int late(struct tarn_tcpx_comm *c)
{
    uint8_t unused[TARN_TCPX_HANDLE];
    bool listens = !c->sends && tarn_tcpx_dial_handle(c->dial, unused) == TARN_E_AGAIN;
    return tarn_fail(
        TARN_E_UNAVAILABLE,
        "tcpx plugin %s: %s has not ended within %u ms: does the peer reach this host over the interfaces of "
        "%s? the plugin's lines in the log may say more",
        c->plugin->name,
        c->sends  ? "connect"
        : listens ? "listen"
                  : "accept",
        c->gear->setup_ms, c->plugin->gpudirect ? TARN_TCPX_INTERFACES_VARIABLE : "the plugin");
}

/* Polls the dial. AGAIN: not yet. */
static int dialled(struct tarn_tcpx_comm *c)
{
    uint64_t since;
    int rc = c->comm ? 0 : tarn_tcpx_dial_poll(c->dial, &c->comm, &since);
    bool too_late = rc == TARN_E_AGAIN && tarn_now_ns() > since + c->gear->setup_ms * TARN_NS_PER_MS;
    return too_late ? late(c) : rc;
}

int tarn_tcpx_comm_poll(struct tarn_tcpx_comm *c)
{
    int rc = 0;
    if (c->state == TARN_TCPX_READY)
        return 0;
    if (c->state == TARN_TCPX_FAILED)
        return TARN_E_UNAVAILABLE;
    if (c->state == TARN_TCPX_OPENING) {
        rc = dialled(c);
        if (!rc && !c->sends)
            rc = open_receiver(c);
        if (!rc)
            c->state = c->sends ? TARN_TCPX_READY : TARN_TCPX_LEARNING;
    }
    if (!rc && c->state == TARN_TCPX_LEARNING && (rc = learn(c)) == 0)
        c->state = TARN_TCPX_READY;
    if (rc && rc != TARN_E_AGAIN)
        c->state = TARN_TCPX_FAILED;
    return rc;
}

/* Work of the GPU counts as over even if it failed. */
static bool is_unpacking(struct tarn_tcpx_comm *c)
{
    uint64_t ticket = c->unpack_ticket;
    for (uint64_t k = c->ended; k < c->begun; k++)
        if (c->ring[k % TARN_TCPX_REQUESTS].ticket > ticket)
            ticket = c->ring[k % TARN_TCPX_REQUESTS].ticket;
    return c->has_unpacker && ticket && tarn_tcpx_comm_unpacked(c, ticket) == TARN_E_AGAIN;
}

int tarn_tcpx_comm_close(struct tarn_tcpx_comm *c)
{
    if (!c)
        return 0;
    if (is_unpacking(c))
        return TARN_E_AGAIN;
    tarn_tcpx_ranges_close(c);
    if (c->memory_mr)
        tarn_tcpx_dereg(c->plugin, c->comm, c->memory_mr);
    if (c->comm && c->sends)
        tarn_tcpx_close_send(c->plugin, c->comm);
    else if (c->comm)
        tarn_tcpx_close_recv(c->plugin, c->comm);
    tarn_tcpx_dial_leave(c->dial);
    memory_close(c);
    for (uint64_t k = c->ended; k < c->posted; k++)
        tarn_tcpx_mapping_unuse(c->ring[k % TARN_TCPX_REQUESTS].mapping);
    free(c);
    return 0;
}
