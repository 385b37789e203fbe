/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies by the CUDA runtime.
 *
 * A queue is a stream and a ring of pinned memory for lists of pieces, which the kernel reads in place. After
 * every eighth of the ring there is a fence; once it has passed, the ring is free up to there. Large pieces
 * use cudaMemcpyAsync. Small ones are launched as lists, cut to what the kernel accepts. Their order is
 * arbitrary, since pieces of one queue do not overlap.
 *
 * A mark is a number that the GPU writes to host memory after the work before it. Reading it is free,
 * while an event takes 1 us longer to notice and 1.5 us to query. Each launch writes its own mark, because
 * anything between two launches would keep them from overlapping. After other copies, and after a short list
 * with nothing ahead of it, cuStreamWriteValue32 writes it: the kernel would take 1 us longer. Marks do not
 * show errors, so the stream is queried now and then. If the driver lacks that call or no counter is left,
 * marks and fences are events.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/cuda/cuda_runtime.h"
#include "transport/cuda/kernels.h"

/* --- queues ------------------------------------------------------------------------------------- */

#define RING 65536        /* pieces */
#define LIST 8192         /* of one launch, at most; */
#define LIST_LEAST 1024   /* room for this many is waited for */
#define FENCE 8192        /* pieces between fences, at least, */
#define FENCES 8          /* and number of fences */
#define MARKS 256         /* outstanding */
#define ASK_NS 200000     /* interval between queries of the stream */
#define WARM_PAGES 64     /* entries of the longer list that warms up */
#define LARGE (16u << 20) /* pieces of at least this size, and single ones, go to the copy engines */
_Static_assert(FENCES *FENCE >= RING, "a full ring has a fence to wait for, and no more than there are");

struct fence {
    uint64_t end, mark; /* end of the pieces before it; its mark, */
    cudaEvent_t passed; /* or its event, if marks are not written */
};

struct tarn_cuda_queue {
    int device;
    struct tarn_kernel_device kernels;
    cudaStream_t stream;
    struct tarn_cuda_piece *ring;
    uint64_t head, tail, fenced; /* counts of pieces: launched, free again, covered by a fence */
    struct fence fences[FENCES];
    uint32_t first_fence, nfences;
    cudaEvent_t marks[MARKS]; /* used if marks are not written, and by mark_event() */
    CUresult (*write)(CUstream stream, CUdeviceptr to, cuuint32_t value,
                      unsigned flags); /* NULL: marks are events */
    _Atomic uint32_t *written;         /* low half of the last mark that has passed */
    int counter;                       /* the counter in which launches count their blocks; -1: none */
    uint64_t marked, passed, asked_ns;
    uint64_t marked_head;        /* head at the last mark */
    bool is_marked;              /* the last mark is after everything given */
    uint64_t event_marks[MARKS]; /* for mark_event(): the mark that each event was last recorded after */
    cudaError_t broken;          /* the permanent error */
};

static int broken(struct tarn_cuda_queue *q, cudaError_t e, const char *call)
{
    if (tarn_cuda_is_lasting(e))
        q->broken = e;
    return tarn_cuda_failed(e, call, q->device);
}

static cudaError_t make_events(struct tarn_cuda_queue *q)
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; !e && i < FENCES; i++)
        e = cudaEventCreateWithFlags(&q->fences[i].passed, cudaEventDisableTiming);
    for (int i = 0; !e && i < MARKS; i++)
        e = cudaEventCreateWithFlags(&q->marks[i], cudaEventDisableTiming);
    return e;
}

/* The kernels' counters in use by this process's queues. Counters are part of the kernels' code on each
 * device. */
static _Atomic uint64_t *counters_taken(void)
{
    static _Atomic uint64_t taken[TARN_KERNEL_COUNTERS / 64];
    return taken;
}

static int claim_counter(void)
{
    _Atomic uint64_t *taken = counters_taken();
    for (int i = 0; i < TARN_KERNEL_COUNTERS; i++)
        if (!(atomic_fetch_or(&taken[i / 64], 1ull << (i % 64)) >> (i % 64) & 1))
            return i;
    return -1;
}

static void give_counter(int i)
{
    if (i >= 0)
        atomic_fetch_and(&counters_taken()[i / 64], ~(1ull << (i % 64)));
}

/* Looks for the call that writes marks, and tries it. */
static void find_write(struct tarn_cuda_queue *q)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *call = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &call, 12000, cudaEnableDefault, &found);
#else
    cudaError_t e = cudaGetDriverEntryPoint("cuStreamWriteValue32", &call, cudaEnableDefault, &found);
#endif
    q->written = (_Atomic uint32_t *)(q->ring + RING);
    atomic_store(q->written, UINT32_MAX);
    if (!e && found == cudaDriverEntryPointSuccess)
        q->write = (CUresult(*)(CUstream, CUdeviceptr, cuuint32_t, unsigned))call;
    q->counter = claim_counter();
    if (q->write && (q->counter < 0 || q->write(q->stream, (CUdeviceptr)(uintptr_t)q->written, 0, 0) ||
                     cudaStreamSynchronize(q->stream) || atomic_load(q->written)))
        q->write = NULL;
    cudaGetLastError();
}

/* Loads the kernels, for short and long lists and each class of mean size, and triggers the driver's lazy
 * initialization. */
static cudaError_t warm_up(struct tarn_cuda_queue *q)
{
    const struct tarn_kernel_mark none = {0};
    struct tarn_cuda_piece *spare = q->ring + TARN_KERNEL_SHORT + 1;
    cudaError_t e = cudaSuccess;
    for (int i = 0; i <= TARN_KERNEL_SHORT; i++)
        q->ring[i] = (struct tarn_cuda_piece){spare, spare + 1, sizeof(*spare)};
    for (uint32_t n = 1; n <= TARN_KERNEL_SHORT + 1; n += TARN_KERNEL_SHORT)
        for (uint64_t bytes = TARN_CUDA_PIECE_MAX; !e && bytes; bytes /= 2)
            e = tarn_kernel_copy(q->ring, n, n * bytes, &none, &q->kernels, q->stream);
    struct tarn_cuda_pages *nothing = (struct tarn_cuda_pages *)(spare + 2);
    void *base = spare;
    memset(nothing, 0, WARM_PAGES * sizeof(*nothing));
    for (uint32_t n = 1; n <= WARM_PAGES; n += WARM_PAGES - 1)
        for (uint64_t bytes = TARN_CUDA_PIECE_MAX; !e && bytes; bytes /= 2) {
            const struct tarn_cuda_paged buffer = {&base, 1, bytes, bytes};
            e = tarn_kernel_copy_pages(&buffer, nothing, n, 1, 1, false, &none, &q->kernels, q->stream);
        }
    return e ? e : cudaStreamSynchronize(q->stream);
}

static cudaError_t queue_make(struct tarn_cuda_queue *q)
{
    cudaError_t e = tarn_kernel_look(q->device, &q->kernels);
    if (!e)
        e = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking);
    if (!e)
        e = cudaHostAlloc((void **)&q->ring, RING * sizeof(*q->ring) + sizeof(*q->written),
                          cudaHostAllocMapped | cudaHostAllocPortable);
    if (!e)
        e = make_events(q);
    if (!e)
        find_write(q);
    return e ? e : warm_up(q);
}

int tarn_cuda_queue_open(int device, struct tarn_cuda_queue **q_p)
{
    int before, rc = tarn_cuda_enter(device, &before);
    if (rc)
        return rc;
    struct tarn_cuda_queue *q = calloc(1, sizeof(*q));
    if (!q) {
        tarn_cuda_leave(device, before);
        return tarn_fail(TARN_E_NO_MEMORY, "a queue of device %d: out of memory", device);
    }
    q->device = device;
    q->counter = -1;
    cudaError_t e = queue_make(q);
    tarn_cuda_leave(device, before);
    if (e) {
        rc = tarn_cuda_failed(e, "a stream and its events", device);
        tarn_cuda_queue_close(q);
        return rc;
    }
    *q_p = q;
    return 0;
}

void tarn_cuda_queue_close(struct tarn_cuda_queue *q)
{
    int before;
    if (!q)
        return;
    if (!tarn_cuda_enter(q->device, &before)) {
        if (q->stream)
            cudaStreamSynchronize(q->stream);
        for (int i = 0; i < MARKS; i++)
            if (q->marks[i])
                cudaEventDestroy(q->marks[i]);
        for (int i = 0; i < FENCES; i++)
            if (q->fences[i].passed)
                cudaEventDestroy(q->fences[i].passed);
        if (q->stream)
            cudaStreamDestroy(q->stream);
        if (q->ring)
            cudaFreeHost(q->ring);
        cudaGetLastError();
        tarn_cuda_leave(q->device, before);
    }
    give_counter(q->counter);
    free(q);
}

/* --- copies ------------------------------------------------------------------------------------- */

/* Queries the stream for errors, seldom. */
static int ask(struct tarn_cuda_queue *q)
{
    uint64_t now = tarn_now_ns();
    if (now - q->asked_ns < ASK_NS)
        return TARN_E_AGAIN;
    q->asked_ns = now;
    cudaError_t e = cudaStreamQuery(q->stream);
    return e && e != cudaErrorNotReady ? broken(q, e, "a copy") : TARN_E_AGAIN;
}

/* Notes which marks have been written. */
static void catch_up(struct tarn_cuda_queue *q)
{
    q->passed += atomic_load_explicit(q->written, memory_order_acquire) - (uint32_t)q->passed;
}

static bool has_passed(struct tarn_cuda_queue *q, const struct fence *f)
{
    if (!q->write)
        return cudaEventQuery(f->passed) != cudaErrorNotReady;
    if (q->passed < f->mark)
        catch_up(q);
    return q->passed >= f->mark || ask(q) != TARN_E_AGAIN;
}

/* Frees the ring up to the last passed fence. Leaves errors to the next launch. */
static void reclaim(struct tarn_cuda_queue *q)
{
    while (q->nfences > 0 && has_passed(q, &q->fences[q->first_fence])) {
        q->tail = q->fences[q->first_fence].end;
        q->first_fence = (q->first_fence + 1) % FENCES;
        q->nfences--;
    }
}

static bool is_idle(const struct tarn_cuda_queue *q)
{
    return q->passed == q->marked && q->marked_head == q->head;
}

/* Nothing is in flight: start at the ring's beginning, which is in the CPU's cache. */
static void begin_anew(struct tarn_cuda_queue *q)
{
    q->head = q->tail = q->fenced = q->marked_head = (q->head + RING - 1) / RING * RING;
    q->nfences = 0;
}

struct tarn_cuda_piece *tarn_cuda_list(struct tarn_cuda_queue *q, size_t *room)
{
    if (is_idle(q))
        begin_anew(q);
    uint64_t at = q->head % RING, unused = RING - (q->head - q->tail);
    if (unused < LIST)
        reclaim(q);
    unused = RING - (q->head - q->tail);
    if (unused < LIST_LEAST)
        return NULL;
    unused = unused < LIST ? unused : LIST;
    *room = unused < RING - at ? unused : RING - at;
    return q->ring + at;
}

static int fence(struct tarn_cuda_queue *q)
{
    struct fence *f = &q->fences[(q->first_fence + q->nfences) % FENCES];
    cudaError_t e = q->write ? cudaSuccess : cudaEventRecord(f->passed, q->stream);
    if (e)
        return broken(q, e, "cudaEventRecord");
    f->end = q->fenced = q->head;
    f->mark = q->marked;
    q->nfences++;
    return 0;
}

/* What the next launch, of so many runs, writes at its end. Few runs on an idle queue write nothing. */
static struct tarn_kernel_mark next_mark(const struct tarn_cuda_queue *q, size_t runs)
{
    bool marks = q->write && !(runs <= TARN_KERNEL_SHORT && is_idle(q));
    return (struct tarn_kernel_mark){
        .at = marks ? (uint32_t *)q->written : NULL,
        .number = (uint32_t)(q->marked + 1),
        .counter = (uint32_t)q->counter,
    };
}

/* A launch has used the next n places of the ring. */
static int launched(struct tarn_cuda_queue *q, cudaError_t e, size_t n, const struct tarn_kernel_mark *mark)
{
    if (e)
        return broken(q, e, "the copy kernel");
    q->head += n;
    q->is_marked = mark->at;
    if (q->is_marked) {
        q->marked++;
        q->marked_head = q->head;
    }
    return q->head - q->fenced < FENCE ? 0 : fence(q);
}

static int launch(struct tarn_cuda_queue *q, size_t n, uint64_t bytes)
{
    struct tarn_kernel_mark mark = next_mark(q, n);
    cudaError_t e =
        tarn_kernel_copy(q->ring + q->head % RING, (uint32_t)n, bytes, &mark, &q->kernels, q->stream);
    return launched(q, e, n, &mark);
}

static int launch_pages(struct tarn_cuda_queue *q, const struct tarn_cuda_paged *buffer, size_t n, bool put)
{
    const struct tarn_cuda_pages *entries = (const struct tarn_cuda_pages *)(q->ring + q->head % RING);
    uint32_t most = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        most = entries[i].n > most ? entries[i].n : most;
        total += entries[i].n;
    }
    struct tarn_kernel_mark mark = next_mark(q, total * buffer->nbases);
    cudaError_t e = tarn_kernel_copy_pages(buffer, entries, (uint32_t)n, most * buffer->nbases,
                                           total * buffer->nbases, put, &mark, &q->kernels, q->stream);
    size_t places = (n * sizeof(*entries) + sizeof(q->ring[0]) - 1) / sizeof(q->ring[0]);
    return launched(q, e, places, &mark);
}

static int begin(struct tarn_cuda_queue *q, int *before)
{
    if (q->passed == q->marked) /* it was idle: no reason to ask soon */
        q->asked_ns = tarn_now_ns();
    return q->broken ? tarn_cuda_failed(q->broken, "CUDA", q->device) : tarn_cuda_enter(q->device, before);
}

int tarn_cuda_start(struct tarn_cuda_queue *q, size_t n, uint64_t bytes)
{
    int before, rc = begin(q, &before);
    if (rc)
        return rc;
    rc = launch(q, n, bytes);
    tarn_cuda_leave(q->device, before);
    return rc;
}

int tarn_cuda_start_pages(struct tarn_cuda_queue *q, const struct tarn_cuda_paged *buffer, size_t n, bool put)
{
    int before, rc = begin(q, &before);
    if (rc)
        return rc;
    rc = launch_pages(q, buffer, n, put);
    tarn_cuda_leave(q->device, before);
    return rc;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Takes small pieces from the first on, as many as fit in one list. *n: their number in the list. */
static size_t fill_list(struct tarn_cuda_piece *list, size_t room, const struct tarn_cuda_piece *pieces,
                        size_t count, size_t *n, uint64_t *bytes)
{
    size_t i = 0;
    *n = 0;
    *bytes = 0;
    for (; i < count && pieces[i].bytes < LARGE; i++) {
        const struct tarn_cuda_piece *p = &pieces[i];
        if ((p->bytes + TARN_CUDA_PIECE_MAX - 1) / TARN_CUDA_PIECE_MAX > room - *n)
            break;
        for (uint64_t at = 0, take; at < p->bytes; at += take) {
            take = min_size(p->bytes - at, TARN_CUDA_PIECE_MAX);
            list[(*n)++] = (struct tarn_cuda_piece){(const char *)p->from + at, (char *)p->to + at, take};
        }
        *bytes += p->bytes;
    }
    return i;
}

static uint64_t left_of(const void *addr)
{
    struct tarn_cuda_memory m;
    tarn_cuda_memory_of(addr, &m);
    return m.kind == TARN_CUDA_HOST ? 0 : m.end - (uintptr_t)addr;
}

/* The copy engines accept no range that spans allocations: one copy for each pair of allocations. */
static cudaError_t copy_each(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *p)
{
    cudaError_t e = cudaSuccess;
    for (uint64_t at = 0, take; !e && at < p->bytes; at += take) {
        const char *from = (const char *)p->from + at;
        char *to = (char *)p->to + at;
        take = min_size(p->bytes - at, min_size(left_of(from), left_of(to)));
        e = take ? cudaMemcpyAsync(to, from, take, cudaMemcpyDefault, q->stream) : cudaErrorInvalidValue;
    }
    return e;
}

static int copy_large(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *p)
{
    q->is_marked = false;
    cudaError_t e = cudaMemcpyAsync(p->to, p->from, p->bytes, cudaMemcpyDefault, q->stream);
    if (e == cudaErrorInvalidValue) {
        cudaGetLastError();
        e = copy_each(q, p);
    }
    return e ? broken(q, e, "cudaMemcpyAsync") : 0;
}

/* Copies pieces with one launch. Takes none if there is no room; a piece that exceeds the rest of the ring
 * goes to the copy engines. */
static int copy_list(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t count,
                     size_t *taken)
{
    size_t room, n;
    uint64_t bytes;
    struct tarn_cuda_piece *list = tarn_cuda_list(q, &room);
    *taken = list ? fill_list(list, room, pieces, count, &n, &bytes) : 0;
    if (list && *taken == 0) {
        *taken = 1;
        return copy_large(q, &pieces[0]);
    }
    return list && n ? launch(q, n, bytes) : 0;
}

static int copy_some(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    int rc = 0;
    for (size_t some = 1; !rc && some && *taken < n; *taken += some) {
        some = 1;
        rc = pieces[*taken].bytes >= LARGE || n == 1 ? copy_large(q, &pieces[*taken])
                                                     : copy_list(q, pieces + *taken, n - *taken, &some);
    }
    return rc;
}

int tarn_cuda_copy(struct tarn_cuda_queue *q, const struct tarn_cuda_piece *pieces, size_t n, size_t *taken)
{
    int before, rc = begin(q, &before);
    *taken = 0;
    if (rc)
        return rc;
    rc = copy_some(q, pieces, n, taken);
    tarn_cuda_leave(q->device, before);
    return rc;
}

static cudaError_t give_mark(struct tarn_cuda_queue *q)
{
    if (!q->write)
        return cudaEventRecord(q->marks[q->marked % MARKS], q->stream);
    CUresult r = q->write(q->stream, (CUdeviceptr)(uintptr_t)q->written, (uint32_t)(q->marked + 1), 0);
    return (cudaError_t)r; /* both number their errors alike */
}

int tarn_cuda_mark(struct tarn_cuda_queue *q, uint64_t *mark_p)
{
    int before, rc = !q->write && q->marked - q->passed == MARKS ? TARN_E_AGAIN : 0;
    if (q->is_marked) {
        *mark_p = q->marked;
        return 0;
    }
    if (!rc)
        rc = tarn_cuda_enter(q->device, &before);
    if (rc)
        return rc;
    cudaError_t e = give_mark(q);
    tarn_cuda_leave(q->device, before);
    if (e)
        return broken(q, e, q->write ? "cuStreamWriteValue32" : "cudaEventRecord");
    q->marked_head = q->head;
    q->is_marked = q->write;
    *mark_p = ++q->marked;
    return 0;
}

static int poll_events(struct tarn_cuda_queue *q, uint64_t mark)
{
    while (q->passed < mark) {
        cudaError_t e = cudaEventQuery(q->marks[q->passed % MARKS]);
        if (e == cudaErrorNotReady)
            return TARN_E_AGAIN;
        if (e)
            return broken(q, e, "a copy");
        q->passed++;
    }
    return 0;
}

int tarn_cuda_poll(struct tarn_cuda_queue *q, uint64_t mark)
{
    if (!q->write)
        return poll_events(q, mark);
    if (q->passed < mark)
        catch_up(q);
    return q->passed < mark ? ask(q) : 0;
}

void *tarn_cuda_mark_event(struct tarn_cuda_queue *q)
{
    int before;
    size_t i = (q->marked - 1) % MARKS;
    if (!q->write || q->event_marks[i] == q->marked) /* several works may end with the same mark */
        return q->marks[i];
    if (q->event_marks[i] > q->passed || tarn_cuda_enter(q->device, &before))
        return NULL;
    cudaError_t e = cudaEventRecord(q->marks[i], q->stream);
    tarn_cuda_leave(q->device, before);
    if (e) {
        broken(q, e, "cudaEventRecord");
        return NULL;
    }
    q->event_marks[i] = q->marked;
    return q->marks[i];
}
