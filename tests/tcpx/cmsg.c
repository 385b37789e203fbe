/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tcpx/cmsg.h"

#include <string.h>

#include "base/error.h"

struct devmem_cmsg {
    uint32_t offset, size, token;
};
_Static_assert(sizeof(struct devmem_cmsg) == 12, "of the kernels that TCPX runs on");

struct dmabuf_cmsg {
    uint64_t offset;
    uint32_t size, token, dmabuf, flags;
};
_Static_assert(sizeof(struct dmabuf_cmsg) == 24, "of linux/uio.h");

static const struct {
    int linear, device;
    size_t bytes;
} dialects[] = {
    [RECEIVED_DEVMEM] = {98, 99, sizeof(struct devmem_cmsg)},
    [RECEIVED_DMABUF] = {78, 79, sizeof(struct dmabuf_cmsg)},
};

void received_begin(struct received *r, enum received_dialect dialect, uint32_t dmabuf)
{
    r->dialect = dialect;
    r->dmabuf = dmabuf;
    r->bytes = r->linear = 0;
    r->list.n = 0;
    r->ntokens = 0;
}

static bool is_ours(const struct received *r, const struct cmsghdr *c)
{
    return c->cmsg_level == SOL_SOCKET &&
           (c->cmsg_type == dialects[r->dialect].linear || c->cmsg_type == dialects[r->dialect].device);
}

/* Reads either dialect into the wider one. The contents may be unaligned. CMSG_FIRSTHDR does not check that
 * they are complete. */
static int read_one(const struct received *r, const struct msghdr *m, const struct cmsghdr *c,
                    struct dmabuf_cmsg *d)
{
    struct devmem_cmsg v;
    size_t want = dialects[r->dialect].bytes;
    size_t at = (size_t)((const uint8_t *)c - (const uint8_t *)m->msg_control);
    if (c->cmsg_len < CMSG_LEN(want) || CMSG_LEN(want) > m->msg_controllen - at)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: a control message of type %d has %zu bytes, and a fragment takes %zu: the kernel "
            "speaks another dialect",
            c->cmsg_type, (size_t)c->cmsg_len - (size_t)CMSG_LEN(0), want);
    if (r->dialect == RECEIVED_DMABUF) {
        memcpy(d, CMSG_DATA(c), sizeof(*d));
    } else {
        memcpy(&v, CMSG_DATA(c), sizeof(v));
        *d = (struct dmabuf_cmsg){v.offset, v.size, v.token, r->dmabuf, 0};
    }
    return 0;
}

static int keep_token(struct received *r, uint32_t token)
{
    if (r->ntokens == TARN_TCPX_FRAGMENTS)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: a message came in more than %d fragments: send smaller messages or raise the MTU",
            TARN_TCPX_FRAGMENTS);
    r->tokens[r->ntokens++] = token;
    return 0;
}

static int add_one(struct received *r, const struct dmabuf_cmsg *d, bool linear)
{
    if (!linear && d->dmabuf != r->dmabuf)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: a fragment lies in dma-buf %u, and the receive queue was given %u: another process "
            "has bound the queue",
            d->dmabuf, r->dmabuf);
    struct tarn_tcpx_fragment g = {linear ? r->linear : d->offset, r->bytes, d->size, linear};
    int rc = tarn_tcpx_fragments_add(&r->list, g);
    if (rc)
        return rc;
    r->bytes += d->size;
    r->linear += linear ? d->size : 0;
    return 0;
}

/* Keeps all tokens before any fragment is checked, so that no token is lost. */
static int add_tokens(struct received *r, const struct msghdr *m)
{
    int rc = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); !rc && c; c = CMSG_NXTHDR((struct msghdr *)m, c)) {
        struct dmabuf_cmsg d;
        if (!is_ours(r, c) || c->cmsg_type == dialects[r->dialect].linear)
            continue;
        rc = read_one(r, m, c, &d);
        if (!rc)
            rc = keep_token(r, d.token);
    }
    return rc;
}

/* Sets *any if there was a fragment. */
static int add_fragments(struct received *r, const struct msghdr *m, bool *any)
{
    int rc = 0;
    *any = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); !rc && c; c = CMSG_NXTHDR((struct msghdr *)m, c)) {
        struct dmabuf_cmsg d;
        if (!is_ours(r, c))
            continue;
        *any = true;
        rc = read_one(r, m, c, &d);
        if (!rc)
            rc = add_one(r, &d, c->cmsg_type == dialects[r->dialect].linear);
    }
    return rc;
}

static uint64_t iov_bytes(const struct msghdr *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++)
        sum += m->msg_iov[i].iov_len;
    return sum;
}

int received_add(struct received *r, const struct msghdr *m, size_t bytes)
{
    uint64_t bytes_before = r->bytes, linear_before = r->linear;
    bool any;
    int rc = add_tokens(r, m);
    if (rc)
        return rc;
    if (m->msg_flags & MSG_CTRUNC)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: recvmsg() had more control messages than fit: fragments are lost; give it room for "
            "%zu bytes more for each page of its iovec",
            (size_t)CMSG_SPACE(dialects[r->dialect].bytes));
    rc = add_fragments(r, m, &any);
    if (!rc && !any)
        rc = add_one(r, &(struct dmabuf_cmsg){.size = (uint32_t)bytes}, true);
    if (rc)
        return rc;
    if (r->bytes - bytes_before != bytes)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: recvmsg() returned %zu and its control messages name %llu bytes: fragments are lost",
            bytes, (unsigned long long)(r->bytes - bytes_before));
    if (r->linear - linear_before > iov_bytes(m))
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: %llu bytes are said to be in an iovec of %llu: the kernel speaks another dialect",
            (unsigned long long)(r->linear - linear_before), (unsigned long long)iov_bytes(m));
    return 0;
}

int received_end(struct received *r, uint64_t expected, uint64_t pool_bytes)
{
    return tarn_tcpx_fragments_check(&r->list, expected, pool_bytes, r->linear);
}
