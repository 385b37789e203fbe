/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving end: reads records, reads bytes into bounce pages or their target, and lists fragments. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/tcpx/fixture.h"

enum { READ_FRAGMENTS = 64, MAPPING_MS = 20 };

static _Atomic uint64_t mappings; /* number of mappings of the bounce memory; the last one is valid */
static _Atomic bool mapped;

/* --- bounce memory ------------------------------------------------------------------------------ */

static void *map_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Like the plugin for TCPX it has a race: two threads can both find the mapping missing. */
static uint64_t map_unguarded(void)
{
    if (fixture_options.map_unguarded && !mapped) {
        uint64_t mine = ++mappings;
        poll(NULL, 0, MAPPING_MS);
        mapped = true;
        return mine;
    }
    return mappings;
}

int fixture_bounce_new(struct fixture_comm *c, struct tarn_tcpx_device_handle *device)
{
    bool gpu = fixture_options.gpu;
    size_t bytes = fixture_options.pages * FIXTURE_PAGE;
    if (gpu && !(c->context = fixture_gpu_context()))
        return TARN_TCPX_CUDA_ERROR;
    c->mapping = map_unguarded();
    c->npages = c->nfree = (uint32_t)fixture_options.pages;
    c->free_pages = malloc(c->npages * sizeof(*c->free_pages));
    c->meta = gpu ? fixture_gpu_alloc_host(sizeof(*c->meta)) : map_memory(sizeof(*c->meta));
    c->unpack = gpu ? fixture_gpu_alloc(sizeof(*c->unpack)) : malloc(sizeof(*c->unpack));
    c->shadow = gpu ? fixture_gpu_alloc_host(bytes) : map_memory(bytes);
    c->bounce = gpu ? fixture_gpu_alloc(bytes) : c->shadow;
    if (!c->free_pages || !c->meta || !c->unpack || !c->shadow || !c->bounce)
        fixture_crash("no bounce memory");

    for (uint32_t i = 0; i < c->npages; i++)
        c->free_pages[i] = c->npages - 1 - i;
    const struct tarn_tcpx_unpack unpack = {.meta = c->meta, .bounce = c->bounce};
    if (gpu) { /* via pinned memory: a copy from other memory may return before it is complete */
        memcpy(c->shadow, &unpack, sizeof(unpack));
        fixture_gpu_copy(c->context, c->unpack, c->shadow, sizeof(unpack));
    } else
        *c->unpack = unpack;
    memset(c->meta->cnt, FIXTURE_POISON, sizeof(c->meta->cnt));
    if (device)
        *device = (struct tarn_tcpx_device_handle){.device_type = TARN_TCPX_DEVICE_UNPACK,
                                                   .device_version = (int)fixture_options.version,
                                                   .handle = c->unpack,
                                                   .size = sizeof(*c->unpack),
                                                   .needs_proxy_progress = 1};
    return TARN_TCPX_SUCCESS;
}

void fixture_bounce_free(struct fixture_comm *c)
{
    bool gpu = fixture_options.gpu;
    if (!c->meta)
        return;
    for (uint64_t seq = c->released; seq < c->posted; seq++)
        fixture_count->tokens_dropped += fixture_request_at(c, seq)->nfragments;
    if (gpu) {
        fixture_gpu_free(c->bounce);
        fixture_gpu_free(c->unpack);
        fixture_gpu_free_host(c->shadow);
        fixture_gpu_free_host(c->meta);
    } else {
        munmap(c->shadow, (size_t)c->npages * FIXTURE_PAGE);
        munmap(c->meta, sizeof(*c->meta));
        free(c->unpack);
    }
    free(c->free_pages);
}

/* Copies the pages of these fragments to the GPU, adjacent pages in one copy. */
static void show_gpu(struct fixture_comm *c, const union tarn_tcpx_load *f, uint32_t n)
{
    if (c->bounce == c->shadow)
        return;
    for (uint32_t i = 0, run; i < n; i += run) {
        uint32_t page = f[i].src_off / FIXTURE_PAGE;
        for (run = 1; i + run < n && f[i + run].src_off / FIXTURE_PAGE == page + run; run++)
            ;
        size_t at = (size_t)page * FIXTURE_PAGE;
        fixture_gpu_copy(c->context, c->bounce + at, c->shadow + at, (size_t)run * FIXTURE_PAGE);
    }
}

void fixture_return_pages(struct fixture_request *r)
{
    struct fixture_comm *c = r->comm;
    /* Each chunk of a socket begins a new list of tokens. Tokens of earlier chunks are lost. */
    uint64_t chunk = fixture_options.chunk;
    uint64_t kept = chunk && r->size > chunk ? (r->size - 1) / chunk * chunk : 0;
    for (uint32_t i = r->nfragments; i > 0; i--) {
        const union tarn_tcpx_load *f = &r->fragments[i - 1];
        memset(c->shadow + f->src_off, FIXTURE_POISON, f->len);
        if (f->dst_off < kept) {
            fixture_count->tokens_leaked++;
            continue;
        }
        c->free_pages[c->nfree++] = f->src_off / FIXTURE_PAGE;
        fixture_count->tokens_returned++;
    }
    show_gpu(c, r->fragments, r->nfragments);
    if (c->meta)
        memset(&c->meta->cnt[r->seq % TARN_TCPX_SLOTS], FIXTURE_POISON, sizeof(c->meta->cnt[0]));
}

/* --- requests ----------------------------------------------------------------------------------- */

int fixture_irecv(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
    struct fixture_comm *c = recv_comm;
    struct fixture_mr *mr = n == 1 ? mhandles[0] : NULL;
    (void)tags;
    if (c->sends || !mr || mr->comm != c || sizes[0] < 0) {
        fixture_count->refused++;
        return TARN_TCPX_INTERNAL_ERROR;
    }
    if (fixture_unpacks() && !c->meta)
        fixture_crash("a receive on a comm that was accepted without a device handle");
    *request = NULL;
    if (fixture_has_no_room())
        return TARN_TCPX_SUCCESS;
    struct fixture_request *r = fixture_request_new(c);
    if (!r) {
        FIXTURE_WARN("unable to allocate requests");
        fixture_count->refused++;
        return TARN_TCPX_INTERNAL_ERROR;
    }
    r->mr = mr;
    r->data = data[0];
    r->posted = (uint64_t)sizes[0];
    r->number = ++fixture_count->receives;
    fixture_count->received_at = (uintptr_t)data[0];
    if (r->number == fixture_options.recv_exit)
        fixture_exit("recv_exit");
    if (r->number == fixture_options.recv_close)
        fixture_cut_off(c);
    *request = r;
    fixture_receive_progress(c);
    return TARN_TCPX_SUCCESS;
}

/* Takes the next record. False: it is incomplete. */
static bool take_record(struct fixture_comm *c)
{
    uint32_t head[2];
    if (c->buffered < sizeof(head) || c->planned == c->posted)
        return false;
    memcpy(head, c->buffer, sizeof(head));
    if (head[1] > FIXTURE_PIECES)
        fixture_exit("a control message that is none");
    uint32_t bytes = (uint32_t)sizeof(head) + head[1] * (uint32_t)sizeof(struct fixture_piece);
    if (c->buffered < bytes)
        return false;
    struct fixture_request *r = fixture_request_at(c, c->planned++);
    r->size = head[0];
    r->refused = fixture_options.tell_sizes == 1 && r->size > r->posted;
    c->stuck |= r->refused;
    r->npieces = head[1];
    memcpy(r->pieces, c->buffer + sizeof(head), bytes - sizeof(head));
    c->buffered -= bytes;
    memmove(c->buffer, c->buffer + bytes, c->buffered);
    return true;
}

static void read_records(struct fixture_comm *c)
{
    ssize_t n = 0;
    while (take_record(c))
        ;
    if (c->buffered < sizeof(c->buffer))
        n = recv(c->control, c->buffer + c->buffered, sizeof(c->buffer) - c->buffered, MSG_DONTWAIT);
    if (n > 0)
        c->buffered += (uint32_t)n;
    else if (c->buffered < sizeof(c->buffer) && (n == 0 || errno != EAGAIN)) {
        FIXTURE_WARN("Connection closed by remote peer");
        c->stuck = fixture_options.recv_deaf;
        c->dead = !c->stuck;
    }
    while (take_record(c))
        ;
}

/* --- bytes -------------------------------------------------------------------------------------- */

/* Plans fragments for the next bytes, at most `bytes`. Returns how many the free pages allow. */
static uint32_t plan_fragments(struct fixture_comm *c, uint64_t bytes, struct iovec iov[READ_FRAGMENTS])
{
    const struct fixture_options *o = &fixture_options;
    uint32_t n = 0;
    for (; n < READ_FRAGMENTS && n < c->nfree && bytes; n++) {
        uint64_t len = o->cut_min + fixture_random(&c->random) % (o->cut_max - o->cut_min + 1);
        len = len > bytes ? bytes : len;
        uint8_t *page = c->shadow + (uint64_t)c->free_pages[c->nfree - 1 - n] * FIXTURE_PAGE;
        iov[n] = (struct iovec){page + fixture_random(&c->random) % (FIXTURE_PAGE - len + 1), len};
        bytes -= len;
    }
    return n;
}

static void add_fragment(struct fixture_request *r, const uint8_t *at, uint32_t len, uint64_t dst_off)
{
    struct fixture_comm *c = r->comm;
    if (r->nfragments == TARN_TCPX_FRAGMENTS)
        fixture_exit("more than 2048 fragments");
    uint32_t src_off = (uint32_t)(at - c->shadow);
    r->fragments[r->nfragments++] =
        (union tarn_tcpx_load){.src_off = src_off, .len = len, .dst_off = dst_off};
    c->nfree--;
    fixture_count->tokens_taken++;
}

/* True: the plugin places the bytes itself (and logs a warning). */
static bool places_itself(const struct fixture_request *r)
{
    return !r->comm->meta || r->mr->type == TARN_TCPX_HOST;
}

void fixture_write_late(struct fixture_comm *c)
{
    poll(NULL, 0, (int)fixture_options.close_ms);
    for (uint64_t seq = c->tested; seq < c->posted; seq++)
        if (places_itself(fixture_request_at(c, seq)))
            memset(fixture_request_at(c, seq)->data, FIXTURE_POISON, 64);
}

static void blank(const struct iovec *iov, size_t bytes)
{
    for (size_t len; bytes; bytes -= len, iov++) {
        len = iov->iov_len < bytes ? iov->iov_len : bytes;
        memset(iov->iov_base, 0, len);
    }
}

static ssize_t read_piece(struct fixture_comm *c, uint32_t socket, struct fixture_request *r,
                          const struct fixture_piece *piece)
{
    uint32_t done = c->cursor[socket].done;
    struct iovec iov[READ_FRAGMENTS] = {{r->data + piece->dst_off + done, piece->bytes - done}};
    bool plain = places_itself(r);
    uint32_t n = plain ? 1 : plan_fragments(c, piece->bytes - done, iov);
    if (n == 0)
        return 0; /* no free page */
    if (plain && fixture_abi != 6)
        FIXTURE_WARN("receive of %u bytes into host memory", piece->bytes - done);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t got = recvmsg(c->socket[socket], &m, MSG_DONTWAIT);
    if (got == 0)
        errno = ECONNRESET;
    if (got <= 0)
        return errno == EAGAIN ? 0 : -1;
    size_t left = (size_t)got;
    if (r->number == fixture_options.bad_bytes || (!plain && c->mapping != mappings))
        blank(iov, left);
    uint32_t before = r->nfragments;
    for (uint32_t i = 0; !plain && left; i++) {
        size_t len = iov[i].iov_len < left ? iov[i].iov_len : left;
        add_fragment(r, iov[i].iov_base, (uint32_t)len, piece->dst_off + done);
        done += (uint32_t)len;
        left -= len;
    }
    show_gpu(c, r->fragments + before, r->nfragments - before);
    return got;
}

static void read_socket(struct fixture_comm *c, uint32_t socket)
{
    struct fixture_request *r;
    struct fixture_piece *piece = fixture_cursor_at(c, &c->cursor[socket], socket, &r);
    if (!piece)
        return;
    ssize_t n = read_piece(c, socket, r, piece);
    if (n < 0) {
        FIXTURE_WARN("helper thread: receive: %s", strerror(errno));
        c->stuck = true;
        return;
    }
    c->cursor[socket].done += (uint32_t)n;
    r->moved += (uint64_t)n;
    fixture_count->bytes_received += (uint64_t)n;
}

void fixture_receive_progress(struct fixture_comm *c)
{
    if (c->dead || (c->stuck && fixture_options.recv_deaf))
        return;
    read_records(c);
    if (c->dead || c->stuck)
        return;
    if (c->planned - c->tested > FIXTURE_QUEUED * c->nsockets)
        FIXTURE_WARN("No free space for recv task");
    uint32_t first = (uint32_t)(fixture_random(&c->random) % c->nsockets);
    for (uint32_t s = 0; s < c->nsockets && !c->stuck; s++)
        read_socket(c, (first + s) % c->nsockets);
    for (uint64_t seq = c->tested; seq < c->planned; seq++) {
        struct fixture_request *r = fixture_request_at(c, seq);
        if (r->moved != r->size || r->done)
            continue;
        if (r->ready_ns == 0)
            r->ready_ns = fixture_now_ns() + fixture_options.delay_ms * 1000000;
        r->done = fixture_options.delay_ms == 0 || fixture_now_ns() >= r->ready_ns;
    }
}

void fixture_publish(struct fixture_request *r)
{
    const struct fixture_options *o = &fixture_options;
    struct fixture_comm *c = r->comm;
    uint64_t slot = r->seq % TARN_TCPX_SLOTS;
    if (!c->meta)
        return;
    union tarn_tcpx_load *mem = c->meta->mem[slot];
    memcpy(mem, r->fragments, r->nfragments * sizeof(*mem));
    c->meta->cnt[slot] = r->nfragments;
    if (r->nfragments == 0)
        return;
    union tarn_tcpx_load *last = &mem[r->nfragments - 1];
    if (r->number == o->bad_dst)
        last->dst_off = UINT64_MAX - 8;
    if (r->number == o->bad_src)
        last->src_off = UINT32_MAX - 8;
    if (r->number == o->bad_sum)
        last->len--;
    if (r->number == o->bad_count)
        c->meta->cnt[slot] = TARN_TCPX_FRAGMENTS + 1;
    atomic_thread_fence(memory_order_release);
}
