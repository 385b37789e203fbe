/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcpx/tcpx_fragments.h"

#include <string.h>

#include "base/error.h"

#define LL(x_) ((unsigned long long)(x_))

int tarn_tcpx_fragments_add(struct tarn_tcpx_fragments *f, struct tarn_tcpx_fragment fragment)
{
    if (f->n == TARN_TCPX_FRAGMENTS)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: a message came in more than %d fragments: send smaller messages or raise the MTU",
            TARN_TCPX_FRAGMENTS);
    f->at[f->n++] = fragment;
    return 0;
}

/* Reads each entry once, so the checked values are the ones used, whatever the plugin writes meanwhile. */
int tarn_tcpx_fragments_read(struct tarn_tcpx_fragments *f, const struct tarn_tcpx_meta *meta, uint64_t k,
                             uint64_t expected, uint64_t pool_bytes)
{
    uint32_t slot = (uint32_t)(k % TARN_TCPX_SLOTS);
    uint64_t cnt = meta->cnt[slot];
    if (cnt > TARN_TCPX_FRAGMENTS)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: slot %u of the plugin's metadata has %llu fragments, and the layout has room for %d: "
            "use a plugin of device version %d",
            slot, LL(cnt), TARN_TCPX_FRAGMENTS, TARN_TCPX_UNPACK_VERSION);
    f->n = (uint32_t)cnt;
    for (uint32_t i = 0; i < f->n; i++) {
        union tarn_tcpx_load m = meta->mem[slot][i];
        f->at[i] = (struct tarn_tcpx_fragment){m.src_off, m.dst_off, m.len, false};
    }
    return tarn_tcpx_fragments_check(f, expected, pool_bytes, 0);
}

/* --- checks ------------------------------------------------------------------------------------- */

/* Is [offset, +bytes) outside [0, size)? Avoids a sum that could wrap. */
static bool is_beyond(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset > size || bytes > size - offset;
}

static int check_one(const struct tarn_tcpx_fragment *g, uint32_t i, uint64_t expected, uint64_t room)
{
    const char *of = g->linear ? "linear buffer" : "bounce memory";
    if (g->bytes == 0)
        return tarn_fail(TARN_E_PROTOCOL,
                         "tcpx: fragment %u has no bytes: the list is damaged, connect again", i);
    if (is_beyond(g->dst, g->bytes, expected))
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: fragment %u is %u bytes for offset %llu of a message of %llu bytes: sender and "
            "receiver are not at the same message, connect again",
            i, g->bytes, LL(g->dst), LL(expected));
    if (is_beyond(g->src, g->bytes, room))
        return tarn_fail(TARN_E_PROTOCOL,
                         "tcpx: fragment %u is %u bytes at offset %llu of the %s, which has %llu bytes: the "
                         "list is of another connection's, connect again",
                         i, g->bytes, LL(g->src), of, LL(room));
    return 0;
}

static int check_sum(struct tarn_tcpx_fragments *f, uint64_t expected)
{
    uint64_t sum = 0; /* 2048 times 32 bits cannot wrap */
    f->linear_bytes = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        sum += f->at[i].bytes;
        f->linear_bytes += f->at[i].linear ? f->at[i].bytes : 0;
    }
    if (sum != expected)
        return tarn_fail(
            TARN_E_PROTOCOL,
            "tcpx: the %u fragments are %llu bytes, and the sender announced %llu: sender and receiver "
            "are not at the same message, connect again",
            f->n, LL(sum), LL(expected));
    return 0;
}

/* Sorted, inside the message, and equal to its size in total: a gap would imply an overlap. */
static int check_overlaps(const struct tarn_tcpx_fragments *f)
{
    for (uint32_t i = 1; i < f->n; i++) {
        const struct tarn_tcpx_fragment *a = &f->at[i - 1], *b = &f->at[i];
        if (b->dst < a->dst + a->bytes)
            return tarn_fail(
                TARN_E_PROTOCOL,
                "tcpx: fragments of %u bytes for offset %llu and of %u for offset %llu overlap: the "
                "list is damaged, connect again",
                a->bytes, LL(a->dst), b->bytes, LL(b->dst));
    }
    return 0;
}

/* --- order -------------------------------------------------------------------------------------- */

/* Merges the sorted neighbours [0, mid) and [mid, n). */
static void merge_stretches(struct tarn_tcpx_fragment *at, struct tarn_tcpx_fragment *spare, uint32_t mid,
                            uint32_t n)
{
    uint32_t left = 0, right = mid, out = 0;
    if (at[mid - 1].dst <= at[mid].dst)
        return;
    memcpy(spare, at, mid * sizeof(*at));
    while (left < mid && right < n)
        at[out++] = spare[left].dst <= at[right].dst ? spare[left++] : at[right++];
    memcpy(at + out, spare + left, (mid - left) * sizeof(*at));
}

/*
 * Sorts by offset in the message. One socket delivers fragments in order, several deliver sorted
 * stretches. Merge sort leaves these alone, is O(n log n) and, unlike qsort(), allocates nothing.
 */
static void sort(struct tarn_tcpx_fragments *f)
{
    for (uint32_t width = 1; width < f->n; width *= 2)
        for (uint32_t at = 0; at + width < f->n; at += 2 * width) {
            uint32_t left = f->n - at;
            merge_stretches(f->at + at, f->spare, width, left < 2 * width ? left : 2 * width);
        }
}

/* For a sorted list that covers the message: joins fragments that are adjacent in both memories. */
static void join(struct tarn_tcpx_fragments *f)
{
    uint32_t out = 0;
    for (uint32_t i = 1; i < f->n; i++) {
        struct tarn_tcpx_fragment *last = &f->at[out], *next = &f->at[i];
        if (last->src + last->bytes == next->src && last->linear == next->linear)
            last->bytes += next->bytes;
        else
            f->at[++out] = *next;
    }
    f->n = f->n ? out + 1 : 0;
}

int tarn_tcpx_fragments_check(struct tarn_tcpx_fragments *f, uint64_t expected, uint64_t pool_bytes,
                              uint64_t linear_bytes)
{
    if (expected > TARN_TCPX_MESSAGE_MAX)
        return tarn_fail(TARN_E_INVALID, "tcpx: a message of %llu bytes: the plugins' interface ends at %u",
                         LL(expected), TARN_TCPX_MESSAGE_MAX);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < f->n; i++)
        rc = check_one(&f->at[i], i, expected, f->at[i].linear ? linear_bytes : pool_bytes);
    if (!rc)
        rc = check_sum(f, expected);
    if (rc)
        return rc;
    sort(f);
    rc = check_overlaps(f);
    if (rc)
        return rc;
    join(f);
    f->bytes = expected;
    return 0;
}

/* --- cutting ------------------------------------------------------------------------------------ */

size_t tarn_tcpx_cut_next(struct tarn_tcpx_cut *c, struct tarn_cuda_piece *out, size_t max)
{
    size_t n = 0;
    while (n < max && c->n > 0) {
        const uint8_t *from = (c->at->linear ? c->linear : c->pool) + c->at->src + c->done;
        void *to;
        uint64_t bytes = tarn_cursor_next(&c->cursor, c->pieces, c->npieces, c->at->bytes - c->done, &to);
        if (bytes == 0)
            break;
        out[n++] = (struct tarn_cuda_piece){from, to, bytes};
        c->done += (uint32_t)bytes;
        if (c->done < c->at->bytes)
            continue;
        c->at++;
        c->n--;
        c->done = 0;
    }
    return n;
}
