/* SPDX-License-Identifier: Apache-2.0 */
/* The sending end: cuts messages into pieces, announces them on the control connection, and sends them. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/tcpx/fixture.h"

enum { PIECE_MIN = 4096, PIECE_SPAN = 61440, WRITE_PIECES = 16, MORE = 64 };

static void cut_into_pieces(struct fixture_comm *c, struct fixture_request *r)
{
    uint64_t off = 0;
    while (off < r->size) {
        uint64_t left = r->size - off, bytes = PIECE_MIN + fixture_random(&c->random) % PIECE_SPAN;
        uint64_t least = (left + FIXTURE_PIECES - r->npieces - 1) / (FIXTURE_PIECES - r->npieces);
        bytes = bytes < least ? least : bytes;
        bytes = bytes > left ? left : bytes;
        r->pieces[r->npieces++] =
            (struct fixture_piece){.dst_off = (uint32_t)off,
                                   .bytes = (uint32_t)bytes,
                                   .socket = (uint32_t)(fixture_random(&c->random) % c->nsockets)};
        off += bytes;
    }
    for (uint32_t i = r->npieces; i > 1; i--) {
        uint32_t with = (uint32_t)(fixture_random(&c->random) % i);
        struct fixture_piece p = r->pieces[i - 1];
        r->pieces[i - 1] = r->pieces[with];
        r->pieces[with] = p;
    }
}

static void put_record(struct fixture_comm *c, struct fixture_request *r)
{
    const uint32_t head[2] = {(uint32_t)r->size, r->npieces};
    size_t bytes = r->npieces * sizeof(r->pieces[0]);
    memcpy(c->buffer + c->buffered, head, sizeof(head));
    memcpy(c->buffer + c->buffered + sizeof(head), r->pieces, bytes);
    c->buffered += (uint32_t)(sizeof(head) + bytes);
    r->record_end = c->control_bytes + c->buffered;
}

/* Fails as the plugin's helper threads do: with only a line in the log. */
static void break_quietly(struct fixture_comm *c, const char *what)
{
    FIXTURE_WARN("helper thread: %s: %s", what, strerror(errno));
    c->stuck = true;
}

static void apply_faults(struct fixture_comm *c, struct fixture_request *r)
{
    const struct fixture_options *o = &fixture_options;
    if (r->number == o->send_exit)
        fixture_exit("send_exit");
    if (r->number == o->send_close)
        fixture_cut_off(c);
    if (r->number == o->helper_error && c->socket[0] >= 0)
        shutdown(c->socket[0], SHUT_RDWR);
    r->lost = o->drop_after && r->number > o->drop_after;
    /* Chunks have no bytes, so the send never ends. */
    if (o->chunk == 0 && r->size)
        c->stuck = true;
}

/* Copies GPU bytes to host memory at isend(). */
static void stage(struct fixture_comm *c, struct fixture_request *r)
{
    if (r->size > r->staging_bytes) {
        fixture_gpu_free_host(r->staging);
        r->staging = fixture_gpu_alloc_host(r->size);
        r->staging_bytes = r->size;
    }
    fixture_gpu_copy(c->context, r->staging, r->data, r->size);
    r->data = r->staging;
}

int fixture_isend(void *send_comm, void *data, int size, int tag, void *mhandle, void **request)
{
    struct fixture_comm *c = send_comm;
    struct fixture_mr *mr = mhandle;
    (void)tag;
    if (!c->sends || size < 0 || !mr || mr->comm != c) {
        fixture_count->refused++;
        return TARN_TCPX_INTERNAL_ERROR;
    }
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
    r->data = data;
    r->size = (uint64_t)size;
    r->number = ++fixture_count->sends;
    fixture_count->sent_from = (uintptr_t)data;
    apply_faults(c, r);
    if (r->data < mr->data || r->data + r->size > mr->data + mr->size) {
        errno = EINVAL;
        break_quietly(c, "send from outside of the registered memory");
    }
    r->size += r->number == fixture_options.send_more ? MORE : 0;
    if (!c->stuck && !r->lost) {
        if (mr->on_gpu && r->size)
            stage(c, r);
        cut_into_pieces(c, r);
        put_record(c, r);
    }
    c->planned = c->posted;
    *request = r;
    fixture_send_progress(c);
    if (fixture_options.isend_ms)
        poll(NULL, 0, (int)fixture_options.isend_ms);
    return TARN_TCPX_SUCCESS;
}

static void flush_records(struct fixture_comm *c)
{
    ssize_t n = c->buffered ? send(c->control, c->buffer, c->buffered, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n <= 0)
        return; /* fixture_peer_is_there() finds errors */
    c->buffered -= (uint32_t)n;
    c->control_bytes += (uint64_t)n;
    memmove(c->buffer, c->buffer + n, c->buffered);
}

static uint32_t gather(struct fixture_comm *c, uint32_t socket, struct iovec iov[WRITE_PIECES])
{
    struct fixture_cursor at = c->cursor[socket];
    struct fixture_request *r;
    struct fixture_piece *piece;
    uint32_t n = 0;
    for (; n < WRITE_PIECES && (piece = fixture_cursor_at(c, &at, socket, &r)); n++) {
        iov[n] = (struct iovec){r->data + piece->dst_off + at.done, piece->bytes - at.done};
        at.done = piece->bytes;
    }
    return n;
}

static void write_socket(struct fixture_comm *c, uint32_t socket)
{
    struct iovec iov[WRITE_PIECES];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = gather(c, socket, iov)};
    struct fixture_request *r;
    if (m.msg_iovlen == 0)
        return;
    ssize_t n = sendmsg(c->socket[socket], &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN)
        break_quietly(c, "send");
    for (size_t left = n > 0 ? (size_t)n : 0; left;) {
        struct fixture_piece *piece = fixture_cursor_at(c, &c->cursor[socket], socket, &r);
        size_t rest = piece->bytes - c->cursor[socket].done, take = left < rest ? left : rest;
        c->cursor[socket].done += (uint32_t)take;
        r->moved += take;
        left -= take;
        fixture_count->bytes_sent += take;
    }
}

void fixture_send_progress(struct fixture_comm *c)
{
    if (c->dead || c->stuck)
        return;
    flush_records(c);
    for (uint32_t s = 0; s < c->nsockets; s++)
        write_socket(c, s);
    for (uint64_t seq = c->tested; seq < c->planned; seq++) {
        struct fixture_request *r = fixture_request_at(c, seq);
        r->done = r->lost || (r->moved == r->size && r->record_end <= c->control_bytes);
    }
}
