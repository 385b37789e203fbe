/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtarn: put tensors into and get them out of the pools of remote nodes.
 *
 * A *key* (1 to TARN_KEY_MAX bytes, any bytes) names an immutable tensor, stored as one extent in a
 * pool of one or more storage nodes. The client finds the extent in the directory (Redis), keeps
 * that descriptor, and moves the bytes itself by the cheapest transport that reaches the pool.
 *
 * Rules that hold for every function
 *   Results   0 or a negative TARN_E_* code; tarn_last_error() has the sentence for it. Functions
 *             that take many items return 0 when every item succeeded, else the first failed
 *             item's code; every item has its own status in any case.
 *   Outputs   are written only on success unless the function says otherwise.
 *   Threads   a client may be used by any number of threads at once. An object made by a call
 *             (hits, put session, view) belongs to one thread at a time, and to its client: after
 *             tarn_close() hits may only be freed, sessions and views are gone.
 *   Time      every call ends inside its deadline: `timeout_ms` of its options, or the client's
 *             default when that is 0. Times out with TARN_E_TIMEOUT.
 *   Memory    blocking calls use the caller's memory only until they return. A submitted
 *             operation uses keys, item array, pieces and buffers until its completion was
 *             drained or tarn_cancel() returned. After tarn_close() nothing touches them.
 *   Structs   with a `size` field: set it to sizeof (the struct), zero the rest, fill what you need
 *             (INVALID when it is not set). `reserved` words are zero.
 *   Output    the library never prints, aborts or exits, and never changes signal dispositions.
 */
#ifndef TARN_TARN_H
#define TARN_TARN_H

#include <stddef.h>
#include <stdint.h>

#include <tarn/error.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

#define TARN_KEY_MAX 1024
#define TARN_DIMS_MAX 8
#define TARN_REPLICAS_MAX 8

struct tarn_client;
struct tarn_hits;
struct tarn_layout; /* layout.h */
struct tarn_put_session;
struct tarn_mr;

/* "MAJOR.MINOR.PATCH" of the library that is loaded. */
const char *tarn_version(void);

/* --- tensors ------------------------------------------------------------------------------------ */

/* X(name, text, bits): element types, with the names safetensors uses in lower case. */
/* clang-format off */
#define TARN_DTYPES(X) \
    X(U8, "u8", 8) X(I8, "i8", 8) X(BOOL, "bool", 8) X(F8_E4M3, "f8_e4m3", 8) X(F8_E5M2, "f8_e5m2", 8) \
    X(U16, "u16", 16) X(I16, "i16", 16) X(F16, "f16", 16) X(BF16, "bf16", 16) \
    X(U32, "u32", 32) X(I32, "i32", 32) X(F32, "f32", 32) \
    X(U64, "u64", 64) X(I64, "i64", 64) X(F64, "f64", 64) X(C64, "c64", 64) X(C128, "c128", 128)
/* clang-format on */

enum tarn_dtype {
#define TARN_DTYPE_ENUM(name_, text_, bits_) TARN_##name_,
    TARN_DTYPES(TARN_DTYPE_ENUM)
#undef TARN_DTYPE_ENUM
        TARN_DTYPE_COUNT,
};

/*
 * What is stored: `bytes` must be the product of shape[0..ndim) and the element size. ndim 0 with
 * bytes equal to one element is a scalar. tarn_bytes() describes plain bytes (u8, one dimension).
 */
struct tarn_tensor {
    uint64_t bytes;
    uint32_t dtype; /* enum tarn_dtype */
    uint32_t ndim;  /* 0..TARN_DIMS_MAX */
    uint64_t shape[TARN_DIMS_MAX];
};

static inline struct tarn_tensor tarn_bytes(uint64_t bytes)
{
    struct tarn_tensor t = {.bytes = bytes, .dtype = TARN_U8, .ndim = 1, .shape = {bytes}};
    return t;
}

/* Element size in bytes; 0 for an unknown dtype. */
uint32_t tarn_dtype_bytes(uint32_t dtype);
/* Name ("bf16") of a dtype, NULL when unknown; and the dtype of a name, TARN_E_INVALID when unknown. */
const char *tarn_dtype_name(uint32_t dtype);
int tarn_dtype_parse(const char *name);
/* 0 when dtype, shape and bytes agree, else TARN_E_INVALID with the expected size in the error text. */
int tarn_tensor_check(const struct tarn_tensor *t);

/* --- open, close -------------------------------------------------------------------------------- */

enum tarn_log_level { TARN_LOG_ERROR, TARN_LOG_WARN, TARN_LOG_INFO, TARN_LOG_DEBUG };

/* `line` is one logfmt line without newline, valid during the call. Called from any thread. */
typedef void (*tarn_log_fn)(void *arg, enum tarn_log_level level, const char *line);

/* Called on the thread of the waiting call. It must not call tarn. */
typedef int (*tarn_interrupt_fn)(void *arg);

struct tarn_options {
    size_t size;
    const char *redis;      /* redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or
                               redis+sentinel://[user[:password]@]host[:port][,host...]/name[/db];
                               NULL: $TARN_REDIS, else redis://127.0.0.1:6379 */
    const char *ns;         /* namespace; NULL: "default" */
    const char *transports; /* comma list in order of preference, e.g. "shm,tcp"; NULL: all */
    const void *reserved;   /* NULL */
    const char *secret;     /* shared secret of the nodes' control connections; NULL: $TARN_SECRET, else
                               the secret that a node has made and published in the directory */
    uint32_t timeout_ms;    /* default deadline of a call; 0: 5000 */
    uint32_t workers;       /* threads for submitted operations; 0: 2. Started at the first submit */
    uint32_t cache_entries; /* descriptors kept; 0: 1048576 */
    uint32_t log_level;     /* enum tarn_log_level */
    tarn_log_fn log;        /* NULL: no logging */
    void *log_arg;
    tarn_interrupt_fn interrupt; /* called about every 50 ms by a blocking call that waits; non-zero ends the
                                    call with CANCELED. tarn_wait, tarn_cancel, tarn_put_abort, tarn_close
                                    and submitted operations do not call it. NULL: none */
    void *interrupt_arg;
    const char *listen; /* "host:port" where peers reach this client's windows (window.h); port 0: a free one.
                           NULL: "127.0.0.1:0" */
};

/*
 * Connects to the directory and learns which nodes there are. `o` may be NULL for all defaults.
 * Errors: DIRECTORY (Redis absent, wrong password, not Redis), CONFIG, UNAVAILABLE, NO_MEMORY.
 */
int tarn_open(const struct tarn_options *o, struct tarn_client **c_p);

/*
 * Cancels what is in flight, waits until no transport can touch the caller's memory any more,
 * gives back views and reservations (open put sessions are aborted and freed), frees the client. NULL
 * is allowed. Must not run beside other calls on the same client.
 */
void tarn_close(struct tarn_client *c);

/* --- memory ------------------------------------------------------------------------------------- */

enum tarn_memory_kind { TARN_MEMORY_HOST, TARN_MEMORY_CUDA };

/*
 * Optional: announces memory that later calls will use. Transports that need registration (RDMA; TCPX for
 * host memory) then register it once, not in each call, and do not copy it. `kind` is enum tarn_memory_kind:
 * CUDA for memory of a GPU. Registering inside an already registered range is allowed and cheap. The caller
 * keeps ownership. When RDMA devices refuse GPU memory, the other transports move it; the reason is logged.
 *
 * The rule: the mapping must outlive the registration. Deregister before munmap(), free() of a large
 * block, mremap() or MAP_FIXED over any part of the range. Devices keep the pages they were given: if the
 * rule is broken, a later call may move bytes of the old pages. Unregistered memory needs no such care: tarn
 * remembers nothing about it between calls, so memory mapped again at the same address is never reached
 * through old pages. The same holds after deregistration, even if an inner range stays registered.
 *
 * Read-only memory (a mapped file) can be registered for puts. If the kernel refuses that, the result is
 * INVALID; puts from it work unregistered, by a copy. Huge pages need nothing special. After fork() the
 * client and its registrations belong to the parent. The child has its own copy of the memory; before
 * Linux 5.12 it lacks the registered pages and must not touch them.
 *
 * Errors of tarn_register: INVALID (no memory there), UNSUPPORTED (this kind, with the reason), SYSTEM
 * (above all the limit of locked memory, ulimit -l), NO_MEMORY.
 * tarn_deregister: TARN_E_BUSY while a submitted operation in flight uses the range. It does not notice all
 * blocking calls of other threads: let them return first.
 */
int tarn_register(struct tarn_client *c, void *addr, uint64_t bytes, uint32_t kind, struct tarn_mr **mr_p);
int tarn_deregister(struct tarn_client *c, struct tarn_mr *mr);

/* --- keys, pieces, items ------------------------------------------------------------------------ */

struct tarn_key {
    const void *data;
    size_t bytes; /* 1..TARN_KEY_MAX */
};

/*
 * `count` runs of `bytes` bytes at addr, addr + stride, addr + 2 * stride, ... A paged KV block is
 * one piece a layer or one strided piece in all. count 0 counts as 1 and stride 0 as `bytes`, so
 * {addr, bytes} is a plain buffer. With a stride smaller than `bytes`, runs overlap: a put stores each run as
 * it lies there; after a get, bytes shared by two runs come from one of them.
 */
struct tarn_piece {
    void *addr;
    uint64_t bytes;
    uint64_t stride;
    uint64_t count;
};

/*
 * One object of a get or put. The pieces, in order, make up the byte range that begins at `offset`
 * of the object. Or, with a layout, the pages.
 *   put: offset must be 0; the pieces' total must be tensor.bytes.
 *   get: the pieces' total must be the object's size, or, with TARN_GET_RANGE, the range
 *        [offset, offset + total) must lie inside the object; else SIZE.
 */
struct tarn_item {
    struct tarn_key key;
    const struct tarn_piece *pieces;
    uint32_t npieces; /* of pieces, or of pages */
    int32_t status;   /* out */
    uint64_t offset;
    struct tarn_tensor tensor;        /* put: in. get: out, also set when the status is SIZE */
    const struct tarn_layout *layout; /* layout.h; NULL: none. Otherwise `pieces` does not count, and */
    const uint32_t *pages;            /* these are the numbers of pages, in host memory */
};

/* --- GPUs --------------------------------------------------------------------------------------- */

/*
 * Memory. Pieces may lie in host memory (pageable, pinned, managed) or in memory of a GPU, at any address and
 * alignment, also inside an allocation; tarn asks CUDA which. All pieces of an item must be in host memory,
 * or all in memory of one GPU. If the first piece is a GPU's and a later one is not, the item is INVALID. If
 * the first piece is the host's, tarn does not check the others: the CPU reads or writes them, so a GPU's
 * address among them is a fault. Items of one call may lie in different memories. Managed memory counts as
 * host memory.
 *
 * Order. tarn copies on its own streams. They wait for no stream of the application, not even the default
 * stream, and tarn never synchronises a device. So, without an event:
 *   put   kernels and copies that write the pieces must have ended before the call (or the submit);
 *   get   kernels and copies that use the buffers must have ended before the call (or the submit).
 * `after` in the options lifts this: record an event behind that work, and tarn touches the pieces only once
 * the event has passed. The host polls it, so it may belong to any GPU and stream. It must be recorded before
 * the call (CUDA reports an unrecorded event as passed), and must stay until the call returns or the
 * completion arrives. A submitted operation waits for it without holding up others; its deadline and
 * tarn_cancel() apply meanwhile.
 *
 * Once a call has returned or a completion was drained with status 0, work launched on any stream finds the
 * bytes of a get, and may change the pieces of a put.
 *
 * tarn_stream_wait() makes a stream, instead of the host, wait for a get's copies. The stream always goes on
 * behind them, even if there is no such key, the deadline passed or the operation was canceled: the buffers
 * then hold anything. Only the completion tells whether the bytes are the object's, so look at it before
 * using what the kernels made of them. Until then kernels may read the buffers, not write them. A copy that a
 * stream waits for is not repeated: the item ends with STALE if the object was replaced meanwhile, with STALE
 * or BUSY if the copy failed; get it again. (Without a waiting stream the get itself repeats such a copy
 * once.)
 *
 * Memory freed before the completion: if GPU memory is gone when the operation begins, the status is INVALID.
 * Later, the rules of cudaMemcpyAsync apply: cudaFree() waits for copies in flight, other allocators may not,
 * and a fault makes the GPU useless to the process. tarn_close() frees CUDA memory, which may wait for all
 * work of the GPU: do not call it while a stream waits for the calling thread.
 */

/* --- look-up ------------------------------------------------------------------------------------ */

enum tarn_state {
    TARN_STATE_MISS, /* also while it is being written */
    TARN_STATE_HIT,
    TARN_STATE_NODE_DOWN, /* in the directory, but no node that holds it answers */
};

struct tarn_lookup_options {
    size_t size;
    uint32_t timeout_ms;
    uint32_t stride; /* match_prefix: keys a page; a page counts when all its keys hit. 0: 1 */
};

/*
 * Looks up n keys in one round trip to the directory, whatever n. Keys that the client knows, on nodes whose
 * memory it has mapped (shm, after a get from that node), cost none: it looks at the slots, as a get does,
 * and while Redis is away it finds them as long as gets do. The hits hold the descriptors, so that gets given
 * these hits ask the directory nothing; they stay valid until tarn_hits_free().
 * A missing key is a state, not an error. Errors: DIRECTORY, TIMEOUT, INVALID.
 */
int tarn_lookup(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                const struct tarn_lookup_options *o, struct tarn_hits **hits_p);

/*
 * The same for a chain of keys: *pages_p becomes the number of leading pages (stride keys each) that
 * are readable, counted linearly from 0; hits past the end of that run are reported, too.
 */
int tarn_match_prefix(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                      const struct tarn_lookup_options *o, struct tarn_hits **hits_p, size_t *pages_p);

size_t tarn_hits_count(const struct tarn_hits *h);
enum tarn_state tarn_hits_state(const struct tarn_hits *h, size_t i);
/* What hit i holds; TARN_E_NOT_FOUND when it is no hit. */
int tarn_hits_tensor(const struct tarn_hits *h, size_t i, struct tarn_tensor *t);
void tarn_hits_free(struct tarn_hits *h);

/* --- get, put ----------------------------------------------------------------------------------- */

enum {
    TARN_GET_RANGE = 1 << 0,    /* items may ask for a part of the object */
    TARN_GET_NO_TOUCH = 1 << 1, /* do not count as use for eviction */
    TARN_GET_NOW = 1 << 2, /* tarn_get() waits for nobody: it gets items that it knows to be in shared memory
                              or in reach of this host's GPUs. From the first other item on, the rest ends
                              with AGAIN, untried */
};

struct tarn_get_options {
    size_t size;
    uint32_t timeout_ms;
    uint32_t flags;               /* TARN_GET_* */
    const struct tarn_hits *hits; /* item i has the descriptor of hit hits_first + i; NULL: look up */
    size_t hits_first;
    void *after; /* a cudaEvent_t: the buffers are not touched before it (see GPUs above); NULL: none */
};

/*
 * Gets n objects. An item's buffers hold the object's bytes exactly when its status is 0; after any
 * other status their content is undefined. Item statuses: NOT_FOUND (miss), SIZE, NODE_DOWN,
 * NOT_REACHABLE, BUSY, DIRECTORY, TIMEOUT, INVALID; STALE only where a stream waits (see GPUs above), AGAIN
 * only with TARN_GET_NOW. Never returns bytes of another object, nor of two versions.
 *
 * A key is a regular register. While a put with TARN_PUT_REPLACE or a remove of it runs, a get may find the
 * old version, the new one or none; a later get may find the old version after an earlier one found the new.
 * Once that call has returned 0, no get that begins later finds the old version, whatever the client has
 * cached (docs/consistency.md has the exceptions). A get may always miss, e.g. when a copy's node has left
 * the directory because it is dead, paused or cut off.
 *
 * A client reads from a node only while it knows that the node's record in Redis lives. It asks Redis about
 * its nodes about once in a heartbeat, in the background; the first get after a pause waits for the answer.
 * While Redis does not answer, gets of cached descriptors go on or end with DIRECTORY, as the node's option
 * --when-cut-off says (docs/consistency.md has both).
 */
int tarn_get(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_get_options *o);

enum {
    TARN_PUT_REPLACE = 1 << 0, /* take the place of an existing object instead of EXISTS */
    TARN_PUT_PIN = 1 << 1,     /* never evict; removed only by tarn_remove or ttl */
    /* Each item continues the one before it, as the blocks of a prompt do: the later ones are of no use
     * without the earlier ones. Nodes then evict a chain from its end, and keep long those that were
     * continued often. The end of a chain that is longer than a pool is FULL. */
    TARN_PUT_CHAIN = 1 << 2,
};

struct tarn_put_options {
    size_t size;
    uint32_t timeout_ms;
    uint32_t flags;    /* TARN_PUT_* */
    uint32_t ttl_ms;   /* the object vanishes about this long after its commit; 0: never */
    uint32_t replicas; /* copies on distinct nodes; 0: 1 */
    const char *place; /* NULL: rendezvous over all nodes; "local": nodes on this host;
                          "NODE" or "NODE/POOL": that one */
    void *after;       /* a cudaEvent_t: the pieces are not read before it (see GPUs above); NULL: none.
                          INVALID for tarn_put_begin() */
    /* With TARN_PUT_CHAIN: the object that the first item continues, say the last one that
     * tarn_match_prefix() found; NULL: none. Like the items' keys, it stays the caller's until the call or
     * operation has ended. */
    const struct tarn_key *continues;
};

/*
 * Puts n objects, each for itself. An object becomes readable in one step, after all its bytes are in place.
 * Item statuses: EXISTS (the stored object stays), IN_DOUBT, FULL, TOO_LARGE, INVALID, NODE_DOWN, BUSY,
 * DIRECTORY, TIMEOUT.
 *
 * With TARN_PUT_REPLACE, 0 means that no get that begins later, by any client on any host, returns an older
 * value. Nodes that answer give up old copies at once. For a node that does not answer, the put waits until
 * its record has expired (4 of its heartbeats). If the deadline comes first, the status is IN_DOUBT: the new
 * value is in place, and the sentence names the node where an old value may still be read until that node
 * answers or its record expires. While a replace runs, gets may return either value, see tarn_get().
 *
 * Just after Redis has lost its data, or when the first node has just begun to use it, a replacing put waits
 * until the living nodes have told what they hold (3 heartbeats, longer while they publish it), or ends with
 * DIRECTORY. The same holds at a node that was cut off and still compares what it holds.
 *
 * Without TARN_PUT_REPLACE, 0 means that the directory had no such key. Just after Redis has lost its data, a
 * key may be missing only until its node publishes it again: then the value born later stays, by the clocks
 * of the nodes. If that matters, replace. IN_DOUBT then concerns a value that was replaced or removed
 * earlier.
 *
 * With replicas, 0 means that all copies were in place. A put that fails on the way takes its copies back; a
 * replacing put leaves those already stored, since they are the key's only ones ("stored with 1 of 2
 * copies"). A failed put may have taken effect, or may still take effect while nodes finish what they read.
 */
int tarn_put(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *o);

/* --- layer-wise put ----------------------------------------------------------------------------- */

/*
 * Reserves room for n objects (keys and tensors of `items`; pieces are ignored). Write ranges in any order,
 * each layer when it is ready; commit makes each object readable in one step. An item that could not be
 * reserved has its status set, and commit skips it. The session is created if at least one item was reserved.
 */
int tarn_put_begin(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *o,
                   struct tarn_put_session **s_p);
/* Writes the pieces to [offset, offset + total) of item i. Blocking; ranges may be written twice. */
int tarn_put_write(struct tarn_put_session *s, size_t i, uint64_t offset, const struct tarn_piece *pieces,
                   uint32_t npieces, uint32_t timeout_ms);
/* Publishes all reserved items and frees the session. statuses (n of them) may be NULL. */
int tarn_put_commit(struct tarn_put_session *s, int32_t *statuses, uint32_t timeout_ms);
/* Gives the room back and frees the session; nothing becomes readable. */
void tarn_put_abort(struct tarn_put_session *s);

/* --- submit and complete ------------------------------------------------------------------------ */

typedef uint64_t tarn_op; /* 0 is never an operation */

struct tarn_completion {
    tarn_op op;
    uint64_t cookie;        /* as given at submit */
    int32_t status;         /* what the blocking call would have returned; CANCELED after tarn_cancel */
    uint32_t kind;          /* enum tarn_op_kind */
    struct tarn_hits *hits; /* look-ups: owned by the caller now */
    char error[512];        /* sentence for a non-zero status */
    uint64_t reserved[2];
};

enum tarn_op_kind {
    TARN_OP_GET = 1,
    TARN_OP_PUT,
    TARN_OP_LOOKUP,
    TARN_OP_REMOVE,
    TARN_OP_READ,
    TARN_OP_WRITE,
    TARN_OP_SEND,
    TARN_OP_RECV,
    TARN_OP_EXPECT,
    TARN_OP_REACH,
    TARN_OP_CONNECT
};

/*
 * Like the blocking calls, but they return at once; exactly one completion follows each success. The options
 * are copied; everything that they and the items point to must stay (see Memory above).
 */
int tarn_submit_get(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_get_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_put(struct tarn_client *c, struct tarn_item *items, size_t n,
                    const struct tarn_put_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_lookup(struct tarn_client *c, const struct tarn_key *keys, size_t n,
                       const struct tarn_lookup_options *o, uint64_t cookie, tarn_op *op_p);
int tarn_submit_remove(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                       uint32_t timeout_ms, uint64_t cookie, tarn_op *op_p);

/* Readable while completions wait. Owned by the client: poll it, never read or close it. */
int tarn_event_fd(struct tarn_client *c);
/* Takes up to max waiting completions; returns how many (0 when none). Never blocks. */
int tarn_drain(struct tarn_client *c, struct tarn_completion *out, int max);
/* Waits for one operation and takes its completion. TIMEOUT leaves the operation running. */
int tarn_wait(struct tarn_client *c, tarn_op op, uint32_t timeout_ms, struct tarn_completion *out);
/*
 * Ends an operation early. Returns when no transport touches its memory any more. Drain its completion
 * afterwards (CANCELED, or how it had ended before). NOT_FOUND: unknown or drained.
 */
int tarn_cancel(struct tarn_client *c, tarn_op op);

/*
 * Makes work that is launched on a CUDA stream (cudaStream_t) from now on wait for the copies of a get, so
 * that kernels that use its buffers can be launched before the bytes arrive. Call it with the stream's device
 * current, for any number of streams. It returns once all copies have been given to GPUs: microseconds after
 * the submit, but not before the event in `after` has passed. If no GPU of this process copies straight to
 * the buffers (TCP, pageable memory, all puts), it returns when the operation is complete, and the stream
 * need not wait. See GPUs above for what the stream finds.
 *
 * Errors: NOT_FOUND (unknown or drained), TIMEOUT (the operation's deadline has passed; it ends by itself),
 * INVALID (no such stream). After an error the stream does not wait: launch nothing that uses the buffers
 * before the completion.
 */
int tarn_stream_wait(struct tarn_client *c, tarn_op op, void *stream);

/* --- views -------------------------------------------------------------------------------------- */

/*
 * A read-only pointer straight into a pool on this host. The object's bytes stay as they are until
 * tarn_release(), whatever is evicted, replaced or removed meanwhile. NOT_REACHABLE: no copy is on this host,
 * or only in memory of a GPU that this process does not see. AGAIN: this client holds too many views of the
 * node.
 *
 * In a GPU pool, addr is for kernels and copies of that GPU (and of GPUs with peer access to it), not for the
 * CPU. Release the view when they have ended: tarn does not wait for them. CUDA cannot write-protect such
 * memory: writing to it would change the object for everyone.
 */
struct tarn_view {
    const void *addr;
    struct tarn_tensor tensor;
    uint32_t kind;  /* enum tarn_memory_kind of what addr points to */
    int32_t device; /* TARN_MEMORY_CUDA: which GPU, as this process counts them; else -1 */
    uint64_t opaque[3];
};

int tarn_view(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms, struct tarn_view *v);
void tarn_release(struct tarn_client *c, struct tarn_view *v);

/* --- management --------------------------------------------------------------------------------- */

/*
 * Removes objects, all copies. statuses (n of them; may be NULL): 0, NOT_FOUND, IN_DOUBT, DIRECTORY,
 * NODE_DOWN, ... 0: no get that begins later returns the object, as after a replacing put. IN_DOUBT: it is
 * gone from the directory, but an old copy may still be read on the node that the sentence names. DIRECTORY:
 * Redis does not answer, or has just lost its data. NOT_FOUND: a directory with all its data has no such
 * object; the promise of 0 holds, too, since the call waits for copies replaced or removed earlier. A failed
 * remove may have taken effect, or may do so later if a node was held up: it then removes what was put
 * meanwhile.
 */
int tarn_remove(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                uint32_t timeout_ms);

/* Marks objects as used now. Unknown keys are ignored. */
int tarn_touch(struct tarn_client *c, const struct tarn_key *keys, size_t n);

/* Keeps an object from eviction for ttl_ms (0: until unpinned). */
int tarn_pin(struct tarn_client *c, const struct tarn_key *key, uint32_t ttl_ms, uint32_t timeout_ms);
int tarn_unpin(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms);

/*
 * For how many more milliseconds each of n objects is pinned, as their nodes say: 0 if it is not,
 * TARN_PINNED_FOREVER until it is unpinned, or a negative code: NOT_FOUND, NODE_DOWN, ... The longest of
 * several copies counts. Returns the first code of a node that did not answer, or why no node could be asked.
 */
#define TARN_PINNED_FOREVER INT64_MAX
int tarn_pinned(struct tarn_client *c, const struct tarn_key *keys, size_t n, int64_t *ms,
                uint32_t timeout_ms);

struct tarn_copy {
    const char *node;      /* node id */
    const char *pool;      /* pool name */
    const char *transport; /* what a get from here would use; NULL when nothing reaches it */
    uint64_t offset;
    uint64_t gen;
    uint32_t slot;
    uint64_t reserved[2];
};

/* What the directory says of one object. Pointers are valid during the callback. */
struct tarn_object {
    struct tarn_key key;
    struct tarn_tensor tensor;
    uint64_t version; /* random, new with every put */
    uint64_t born_ms; /* Unix time of the commit */
    uint32_t ttl_ms;  /* 0: none */
    uint32_t ncopies;
    const struct tarn_copy *copies;
};

/* Return 0 to go on, anything else to stop; that value is then returned by the call. */
typedef int (*tarn_object_fn)(void *arg, const struct tarn_object *o);

/* One object, asked afresh from the directory. NOT_FOUND when there is none. */
int tarn_stat(struct tarn_client *c, const struct tarn_key *key, uint32_t timeout_ms, tarn_object_fn fn,
              void *arg);

/*
 * Every object whose escaped key matches the glob (NULL: all), in no order; an object may be seen
 * twice or not at all when it comes or goes meanwhile.
 */
int tarn_list(struct tarn_client *c, const char *match, uint32_t timeout_ms, tarn_object_fn fn, void *arg);

struct tarn_pool_info {
    const char *name, *kind;
    uint64_t bytes, free_bytes, objects;
    const char *transport; /* what this client would use; NULL: none reaches it */
    uint64_t reserved[2];
};

struct tarn_node_info {
    const char *id, *host, *control, *unix_path, *version, *state;
    uint64_t epoch, started_ms;
    int same_host; /* its Unix socket answered */
    uint32_t npools;
    const struct tarn_pool_info *pools;
};

typedef int (*tarn_node_fn)(void *arg, const struct tarn_node_info *n);

/* Every node of the namespace, asked afresh from the directory. */
int tarn_nodes(struct tarn_client *c, uint32_t timeout_ms, tarn_node_fn fn, void *arg);

/* Every transport in order of preference; why is NULL when usable, else one sentence. Needs no client. */
typedef int (*tarn_transport_fn)(void *arg, const char *name, const char *why);
int tarn_transports(tarn_transport_fn fn, void *arg);

/*
 * Objects coming and going, as nodes report them, until the callback returns non-zero (returned)
 * or timeout_ms passed (0 returned). `what`: stored, removed, evicted, expired.
 */
typedef int (*tarn_event_fn)(void *arg, const char *what, const struct tarn_key *key, const char *node,
                             const char *pool, uint64_t bytes);
int tarn_events(struct tarn_client *c, uint32_t timeout_ms, tarn_event_fn fn, void *arg);

/* directory_round_trips: those of calls, not the background questions about nodes. */
struct tarn_stats {
    size_t size;
    uint64_t gets, get_bytes, misses, stale, puts, put_bytes, errors;
    uint64_t directory_round_trips, cached_descriptors, failovers;
};
int tarn_client_stats(struct tarn_client *c, struct tarn_stats *out);

/* Escapes a binary key to printable text as shown in the directory and by `tarn ls`, and back.
 * Rules in docs/protocol.md. Both return the length without the final NUL, or TARN_E_INVALID. */
int tarn_key_escape(const struct tarn_key *key, char *out, size_t out_bytes);
int tarn_key_unescape(const char *text, void *out, size_t out_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
