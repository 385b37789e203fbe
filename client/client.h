/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside libtarn. Data flows one way:
 *
 *   tarn_get/put/...  ->  resolve, place (which copy, which node)  ->  flight (works on links)
 *                                                                  ->  call   (control commands)
 *   and below these: remote (what the client knows of a node), cache (descriptors).
 *
 * Blocking calls run on the caller's thread from beginning to end; op_run.c's workers run the same code
 * for submitted operations. Two threads of the client's own look after health (monitor.c), one after leases
 * (lease_ask.c).
 *
 * Lock order: client.nodes_lock -> remote.lock -> client.monitor.lock; cache shards, leases, op queue, the list of
 * put sessions and verdicts are leaves. No lock is held across anything that waits for a peer.
 */
#ifndef TARN_CLIENT_CLIENT_H
#define TARN_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/resp/resp.h"
#include "base/text.h"
#include "client/lease.h"
#include "client/patience.h"
#include "metadata/directory.h"
#include "transport/seen.h"
#include "transport/transport.h"

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define TARN_TRANSPORTS_MAX 8
#define TARN_STRIPES 8
#define TARN_PROTOCOL "1"
#define TARN_SENTENCE 512 /* as long as a last error may be */

struct tarn_client;
struct tarn_remote;

/* What ends a wait early: a submitted operation's flag, and the eventfd that is written after setting it. Where
 * one thread runs several operations, the wait of one holds up the cancel of another: so that ends it, too. */
struct tarn_stop {
    const _Atomic bool *flag; /* NULL: nothing does */
    int fd;                   /* -1: none */
    bool (*others)(void *of); /* has one of the others been canceled? NULL: there are none */
    void *of;
};

static inline bool tarn_stopped(const struct tarn_stop *s)
{
    return (s->flag && atomic_load(s->flag)) || (s->others && s->others(s->of));
}

/* For tarn_net_stop_by(): arg is a struct tarn_stop. */
bool tarn_stop_seen(void *arg);
/* Waits for that many ms: true. False when the deadline has come, or what it belongs to is to stop. s may be NULL. */
bool tarn_stop_pause(const struct tarn_stop *s, uint64_t deadline_ns, int ms);
/* Makes the eventfd unreadable again; look at the flags afterwards. */
void tarn_stop_drain(int fd);

/* The first failed item of a batch, and its sentence for tarn_last_error(). */
struct tarn_verdict {
    size_t index;
    int code; /* 0: none failed */
    char text[TARN_SENTENCE];
};

/* Notes item i's failure with the thread's last error as its sentence. */
void tarn_verdict_note(struct tarn_verdict *v, size_t i, int code);
/* The same with a sentence "<verb> key '<key>': ..."; formats nothing unless it is the first failure. */
void tarn_verdict_say(struct tarn_verdict *v, size_t i, int code, const char *verb,
                      const struct tarn_key *key, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Leaves the sentence as the thread's last error and returns the code. */
int tarn_verdict_end(const struct tarn_verdict *v);

/* --- descriptors and their cache (cache.c) ------------------------------------------------------ */

struct tarn_loc {
    struct tarn_remote *remote;
    uint64_t offset, gen;
    uint32_t pool, slot;
};

/* The same object in the same place: pools of a node count slots and generations each on their own. */
static inline bool tarn_loc_same(const struct tarn_loc *a, const struct tarn_loc *b)
{
    return a->remote == b->remote && a->pool == b->pool && a->slot == b->slot && a->gen == b->gen;
}

/* The work that gets `bytes` bytes of an item from there. flags: TARN_GET_*; gpu: as tarn_pieces_gpu() says.
 */
static inline struct tarn_work tarn_work_of(const struct tarn_item *item, const struct tarn_loc *l,
                                            uint64_t bytes, uint32_t flags, uint32_t gpu)
{
    return (struct tarn_work){.pool = l->pool,
                              .slot = l->slot,
                              .gen = l->gen,
                              .offset = l->offset + item->offset,
                              .bytes = bytes,
                              .pieces = item->pieces,
                              .npieces = item->npieces,
                              .touch = !(flags & TARN_GET_NO_TOUCH),
                              .gpu = gpu};
}

/* Where an object is, for this client. Copied by value, up to the last location in use. */
struct tarn_desc {
    struct tarn_tensor tensor;
    uint32_t nlocs;
    uint32_t nlost; /* copies on nodes that the directory does not have */
    struct tarn_loc locs[TARN_REPLICAS_MAX];
};

static inline size_t tarn_desc_bytes(const struct tarn_desc *d)
{
    return offsetof(struct tarn_desc, locs) + d->nlocs * sizeof d->locs[0];
}

struct tarn_cache;

static inline uint64_t tarn_key_hash(const struct tarn_key *k)
{
    return tarn_hash(k->data, k->bytes, 0);
}

/* At most about `entries` descriptors; the least recently used go first (second chance). */
int tarn_cache_new(uint32_t entries, struct tarn_cache **c_p);
void tarn_cache_free(struct tarn_cache *c);
bool tarn_cache_find(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, struct tarn_desc *d);
/* Out of memory only means that the entry is not kept. */
void tarn_cache_set(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_desc *d);
/* Drops the key's entry; with a location, only an entry that has it. */
void tarn_cache_drop(struct tarn_cache *c, const struct tarn_key *k, uint64_t hash, const struct tarn_loc *l);
uint64_t tarn_cache_count(struct tarn_cache *c);

/* --- nodes (remote.c) --------------------------------------------------------------------------- */

enum tarn_health {
    TARN_UP,
    TARN_SLOW, /* did not answer in time: only links that do not need it (shared memory) are used */
    TARN_GONE, /* its connection broke, or another incarnation has its place: nothing is used */
};

/* A link and the table to call it by (the transport's, or the fault decorator's). */
struct tarn_linked {
    struct tarn_linked *next;
    const struct tarn_transport_ops *ops;
    bool write;
    struct tarn_link *link;
    _Atomic uint32_t views; /* of a shared link */
};

enum tarn_side_state {
    TARN_SIDE_UNKNOWN,
    TARN_SIDE_OPENING,
    TARN_SIDE_SHARED,
    TARN_SIDE_POOLED,
    TARN_SIDE_UNREACHABLE
};

/*
 * One transport to a node, for gets or for puts. A shared link is entered by counting oneself in,
 * then reading the pointer; whoever retires it takes the pointer away, then waits for the counts.
 */
struct tarn_side {
    _Atomic int state;
    _Atomic(struct tarn_linked *) shared; /* POOLED: for views alone, once there has been one */
    struct tarn_linked *idle, *retired; /* remote.lock */
    uint32_t nidle;
    uint64_t retry_ns;  /* UNREACHABLE: not tried again before */
    uint64_t silent_ns; /* since then no ATTACH has been answered; 0: the last one was */
    int code;           /* why the last attempt said that it is UNREACHABLE; 0: it did not */
    char why[192];
    struct {
        _Alignas(64) _Atomic uint32_t n;
    } busy[TARN_STRIPES];
};

struct tarn_remote_pool {
    char name[TARN_POOL_NAME_MAX + 1];
    uint32_t index;
    uint64_t bytes;
};

/* A control connection with at most one command outstanding. */
struct tarn_call {
    struct tarn_call *next;
    struct tarn_resp *resp;
    struct tarn_remote *remote;
    bool local;  /* Unix socket */
    bool owed;   /* a reply is outstanding */
    bool grants; /* ... and it answers RESERVE */
    bool greets; /* HELLO's answer comes before it */
    bool refused; /* HELLO was, or another incarnation has answered */
    uint64_t since_ns, hello_ns;
};

/* One incarnation of a node. Lives until the client is closed. */
struct tarn_remote {
    UT_hash_handle hh;
    struct tarn_client *client;
    struct {
        char id[TARN_NODE_ID_MAX + 1];
        uint32_t epoch; /* low half of the node's epoch = high half of its generations */
    } key;
    _Atomic int health;
    _Atomic bool suspect;    /* set aside a moment ago; the keeper has not asked it yet */
    _Atomic bool doubted;    /* up, but a call had no answer in its time; the keeper is to ask it */
    _Atomic bool listed;     /* in the directory when last asked */
    _Atomic bool superseded; /* another incarnation is there now */
    _Atomic bool local;      /* its Unix socket answered: same host */
    _Atomic bool near;       /* the same host by its record, and its Unix socket has not said otherwise */
    _Atomic bool draining;
    struct tarn_lease lease; /* until when it may be read from */
    _Atomic uint8_t
        pool_transports[TARN_POOLS_MAX]; /* by index; bit t: the client's transport t serves the pool */
    _Atomic uint64_t asked_ns; /* unlisted: when the directory was last asked about it */
    struct tarn_patience patience; /* by how long it takes to answer HELLO */
    uint64_t pass;             /* of the refresh that last saw it; nodes_lock */

    /* written by a refresh under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a side left OPENING, or the keeper has judged a suspect */
    char control[280], unix_path[108], host_id[40];
    uint32_t npools;
    struct tarn_remote_pool pools[TARN_POOLS_MAX];

    /* this host's clock at the node's tick 0, how much too late that may be, when it was found */
    uint64_t tick_base_ns, tick_error_ns, tick_learned_ns;
    struct tarn_call *idle_calls;
    uint32_t nidle_calls;
    struct tarn_call *watch;       /* idle connection whose end shows the node's; monitor.lock */
    _Atomic uint32_t errands;      /* not run yet */
    uint64_t probe_ns, backoff_ns; /* keeper only */
    struct tarn_side sides[TARN_TRANSPORTS_MAX][2]; /* [transport][write] */
};

/* Another incarnation has its place, or the directory has said that it is not there: its copies are none. */
static inline bool tarn_remote_gone(const struct tarn_remote *r)
{
    return atomic_load(&r->superseded) || atomic_load(&r->lease.gone);
}

/* The incarnation (id, low half of epoch); made when it is new. NULL: out of memory. */
struct tarn_remote *tarn_remote_of(struct tarn_client *c, const char *id, uint32_t epoch);
/* Reads the node table from the directory. */
int tarn_remotes_refresh(struct tarn_client *c, uint64_t deadline_ns);
/* Applies one record that was asked for at sent_ns (also used by a refresh). */
int tarn_remote_update(struct tarn_client *c, const struct tarn_node_record *n, uint64_t pass, uint64_t sent_ns);
/* Index of the pool by name, or -1. */
int tarn_remote_pool(struct tarn_remote *r, const char *name);
/* Its name by index; "" when unknown. */
void tarn_remote_pool_name(struct tarn_remote *r, uint32_t index, char out[TARN_POOL_NAME_MAX + 1]);
/* May transport t move memory of that kind (tarn_pieces_gpu) to or from the pool? */
bool tarn_remote_moves(const struct tarn_remote *r, int t, uint32_t pool, uint32_t gpu);
/* Sets the node aside: no get or put waits for it again until the keeper has seen it answer. */
void tarn_remote_aside(struct tarn_remote *r, enum tarn_health h, const char *why);
/* How long it may keep silent before another copy or node is tried. */
uint64_t tarn_remote_patience(const struct tarn_remote *r);
/* It answered after so long. */
void tarn_remote_answered(struct tarn_remote *r, uint64_t rtt_ns);
/* It did not answer what it was asked at since_ns, as the last error says: aside after its patience, else
 * doubted. */
void tarn_remote_silent(struct tarn_remote *r, uint64_t since_ns);
/* A call ran out of time, which may be the node's doing: the keeper finds out. */
void tarn_remote_doubt(struct tarn_remote *r);
/* A moment of this host's clock as nanoseconds since the node's tick 0; HELLO was answered before. */
uint64_t tarn_remote_clock(struct tarn_remote *r, uint64_t when_ns);
/* Waits until the keeper has asked a suspect node (which takes a moment, or the patience for each suspect that
 * keeps silent): is it up? Does not wait for nodes that are known to be down. stop may be NULL. */
bool tarn_remote_settled(struct tarn_remote *r, uint64_t deadline_ns, const struct tarn_stop *stop);
/* The keeper's word on a suspect. */
void tarn_remote_judged(struct tarn_remote *r, bool up);
/* "n1 (127.0.0.1:7700)" for sentences. */
const char *tarn_remote_text(struct tarn_remote *r, char out[352]);
/* Frees a remote and all it holds; at close. */
void tarn_remote_free(struct tarn_remote *r);
/* Its pools, whatever they hold, are void: links are taken out of use (closed when nobody is inside). */
void tarn_remote_retire(struct tarn_remote *r);
/* Closes what was retired and is no longer in use; false when something still is. */
bool tarn_remote_reap(struct tarn_remote *r);

/* --- control commands (call.c) ------------------------------------------------------------------ */

/* A connection on which HELLO was answered by this incarnation. NODE_DOWN, TIMEOUT (and the node is set
 * aside); AUTH, VERSION. local_only: over the Unix socket or NOT_REACHABLE. */
int tarn_call_take(struct tarn_remote *r, bool local_only, uint64_t deadline_ns, const struct tarn_stop *stop,
                   struct tarn_call **call_p);
/* The same with a patience for each step. */
int tarn_call_take_in(struct tarn_remote *r, bool local_only, struct tarn_steps *steps,
                      const struct tarn_stop *stop, struct tarn_call **call_p);
/* The same, and a new one over TCP has not had its HELLO answered: that is sent with the command that follows, and
 * its failure is that of tarn_call_reply(), with call->refused set. */
int tarn_call_take_early(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                         struct tarn_call **call_p);
/* A new one, never from the pool; does not judge the node's health. */
int tarn_call_connect(struct tarn_remote *r, struct tarn_steps *steps, const struct tarn_stop *stop,
                      struct tarn_call **call_p);
/* Back to the pool; a connection that still owes a reply is looked after by the keeper. NULL is allowed. */
void tarn_call_give(struct tarn_call *call);
/* The same for one that this thread needs again in a moment: it is not made the one that is watched. */
void tarn_call_rest(struct tarn_call *call);
void tarn_call_drop(struct tarn_call *call);
int tarn_call_send(struct tarn_call *call, int argc, const char *const *argv, const size_t *lens,
                   uint64_t deadline_ns);
/* Waits for the reply; an error reply to the whole command is a failure. stop may be NULL. */
int tarn_call_reply(struct tarn_call *call, uint64_t deadline_ns, const struct tarn_stop *stop,
                    redisReply **reply_p);

/* Arguments of a command being put together. */
struct tarn_words {
    const char **argv;
    size_t *lens;
    char *text; /* numbers */
    int n, max;
    size_t text_bytes, text_room;
};
/* Room for `max` arguments and `text` bytes of formatted ones. */
int tarn_words_init(struct tarn_words *a, int max, size_t text);
void tarn_words_add(struct tarn_words *a, const void *data, size_t bytes);
void tarn_words_str(struct tarn_words *a, const char *s);
/* Copies the text. */
void tarn_words_text(struct tarn_words *a, const char *s);
void tarn_words_u64(struct tarn_words *a, uint64_t v);
void tarn_words_gen(struct tarn_words *a, uint64_t gen);
void tarn_words_free(struct tarn_words *a);
int tarn_words_send(const struct tarn_words *a, struct tarn_call *call, uint64_t deadline_ns);
/* Sends and waits. A node set aside a moment ago is waited for, one known to be down is NODE_DOWN. */
int tarn_words_call(const struct tarn_words *a, struct tarn_remote *r, uint64_t deadline_ns,
                    const struct tarn_stop *stop, redisReply **reply_p);

/* --- memory (memory.c) -------------------------------------------------------------------------- */

/* How many of the items lie in memory of GPUs; 0 when the first does not, the others are not looked at then. */
size_t tarn_items_on_gpus(const struct tarn_item *items, size_t n);

/* --- events of the application's GPUs (stream.c) -------------------------------------------------- */

/* Waits until the event (cudaEvent_t) has passed; TIMEOUT, or why it never will. */
int tarn_event_wait(void *event, uint64_t deadline_ns);
/* TIMEOUT, in words. */
int tarn_event_late(void);
/* How long to leave events alone between two looks, having waited so long: 0 at first. */
uint64_t tarn_event_nap_ns(uint64_t waited_ns);

/* Says at debug level which way an item's bytes are about to take. */
void tarn_tell_route(struct tarn_remote *r, const char *verb, const struct tarn_key *key, uint32_t pool, int t,
                     uint32_t gpu);

/* --- links (link.c) ----------------------------------------------------------------------------- */

/*
 * Makes transport t to the node usable. 0 with *l_p NULL: its link is shared, enter it; 0 with a link:
 * the caller's own until tarn_link_give or tarn_link_close. A node that is down or silent is set aside;
 * other errors but BUSY mark the side unreachable for a while. Where no other transport comes after t,
 * what does not reach the node is waited for until the deadline; TIMEOUT then says what it was. patience_ns: of
 * each step. stop may be NULL.
 */
int tarn_link_take(struct tarn_remote *r, int t, bool write, uint64_t deadline_ns, uint64_t patience_ns,
                   const struct tarn_stop *stop, struct tarn_linked **l_p, bool *fresh_p);
/* Only one that is at hand, of a node that is up; else NULL. */
struct tarn_linked *tarn_link_take_idle(struct tarn_remote *r, int t, bool write);
void tarn_link_give(struct tarn_remote *r, int t, bool write, struct tarn_linked *l);
/* A link for gets goes to those who look at the node's memory in place (view.c), for as long as the node is up;
 * nothing is posted on it any more. */
void tarn_link_lend(struct tarn_remote *r, int t, struct tarn_linked *l);
/*
 * Closes the link. Where the node does not notice by itself it is told, and its answer waited for until the deadline
 * (0: not at all) or the stop (NULL: none). False: it has not answered; the keeper tells it, and until then what was
 * written may still arrive. So bytes must not take another way into the same reservation; an ABORT goes by the
 * keeper, too, behind it.
 */
bool tarn_link_close(struct tarn_remote *r, struct tarn_linked *l, uint64_t deadline_ns,
                     const struct tarn_stop *stop);
/* The same when the node needs no telling: its incarnation or this client's session is over. */
void tarn_link_free(struct tarn_linked *l);
/* The keeper's round of links that wait to be used, which send what they have put off. Returns when to come
 * again. */
uint64_t tarn_links_tend(struct tarn_client *c);
/* The pooled links of a side are doubtful (one of them was dead): closes them. */
void tarn_link_flush(struct tarn_remote *r, int t, bool write);
/* A link broke that was new, as the last error says. Where another transport reaches the pool this side is
 * set aside for a while and the node doubted. False: there is none, so it is for the node to answer. */
bool tarn_link_lost(struct tarn_remote *r, int t, bool write, uint32_t pool, uint32_t gpu);
/* Does the node answer on another connection? NODE_DOWN, TIMEOUT: it does not. */
int tarn_link_ask_node(struct tarn_remote *r, uint64_t deadline_ns, const struct tarn_stop *stop);
/* A link gave no sign of life of the work since then, nor did any other of this side since quiet_ns, as the last error
 * says: the same, or as tarn_remote_silent() says. */
void tarn_link_silent(struct tarn_remote *r, int t, bool write, const struct tarn_work *w, uint64_t since_ns,
                      uint64_t quiet_ns);
/* Why no transport is tried, as a code and a sentence. gpu: tarn_pieces_gpu(). */
int tarn_link_unreachable(struct tarn_remote *r, bool write, uint32_t gpu, char *text, size_t bytes);
/* May t be tried now? */
bool tarn_side_usable(struct tarn_remote *r, int t, bool write);
/* Does it not reach the node just now, which is waited for since no other transport comes after it? */
bool tarn_side_awaited(struct tarn_remote *r, int t, bool write);

static inline struct tarn_linked *tarn_shared_enter(struct tarn_remote *r, int t, bool write, uint32_t stripe)
{
    struct tarn_side *s = &r->sides[t][write];
    atomic_fetch_add(&s->busy[stripe].n, 1);
    struct tarn_linked *l = atomic_load(&s->shared);
    if (!l)
        atomic_fetch_sub(&s->busy[stripe].n, 1);
    return l;
}

static inline void tarn_shared_leave(struct tarn_remote *r, int t, bool write, uint32_t stripe)
{
    atomic_fetch_sub_explicit(&r->sides[t][write].busy[stripe].n, 1, memory_order_release);
}

/* --- works in flight (flight.c) ----------------------------------------------------------------- */

enum tarn_end {
    TARN_END_DONE,    /* work.status is the transport's word */
    TARN_END_BROKEN,  /* the link broke */
    TARN_END_SILENT,  /* the node kept silent for longer than the patience */
    TARN_END_EXPIRED, /* the transfer's own deadline */
    TARN_END_STOPPED, /* the transfer's own stop flag */
    TARN_END_SHIFTED, /* its link was closed on another transfer's account; nothing speaks against trying
                         again */
};

struct tarn_lane;

struct tarn_transfer {
    struct tarn_work work;
    struct tarn_transfer *prev, *next;
    struct tarn_lane *lane;
    uint64_t deadline_ns, patience_ns;
    const _Atomic bool *stop;
    enum tarn_end end;
    bool ended;    /* of tarn_flight_alone(): work.status is final */
    bool fresh;    /* its link was made for this flight */
    const struct tarn_side *quiet_on; /* over which nothing came when it was waited for before; NULL: none. Set it */
    uint64_t quiet_ns;                /* ... since when */
    char why[192]; /* the transport's sentence when it refused the work; "" otherwise */
};

/* The transfers of a flight over one link. */
struct tarn_lane {
    struct tarn_lane *next;
    struct tarn_remote *remote;
    int transport;
    bool write, fresh;
    bool kick;  /* works were posted since progress was made: it may send at once */
    bool loose; /* a link was closed on which the node may still take what was put: tarn_link_close() */
    const _Atomic bool *stop; /* of the last transfer: all puts of a flight have the same */
    struct tarn_flight *flight;
    struct tarn_linked *linked;      /* NULL: closed */
    struct tarn_transfer *transfers; /* posted ones first */
    struct tarn_transfer *unposted;  /* the first pending one */
    uint64_t since_ns;               /* when works began to be waited for */
    uint64_t active_ns;              /* last sign of life since; since_ns: there was none */
    uint64_t ended_ns;               /* the same of transfers that ended */
    uint64_t deadline_ns;            /* not later than the earliest of the transfers */
    uint64_t patience_ns;            /* not longer than the shortest of the transfers */
    enum tarn_end closing;           /* why, while it is being closed */
    uint64_t closing_ns;
};

/* The works of one thread, and the links it has taken for them. It stays where it is. */
struct tarn_flight {
    struct tarn_client *client;
    struct tarn_lane *lanes, first; /* most flights need one lane */
    void *fds; /* struct pollfd, one a lane and one for stop_fd; none while there is nothing to poll */
    uint32_t nlanes, room;
    uint32_t inflight;
    struct tarn_transfer *ended;
    int stop_fd;
    bool (*others)(void *of); /* as in struct tarn_stop, of all that the thread runs, in flight or not */
    void *of;
    bool look;         /* stop_fd may have been read for another wait: look at the flags */
    uint64_t until_ns; /* opening a link may not take longer: others wait for it; 0: no such limit */
};

/* A transfer that tarn_flight_alone() has not brought to its end. */
struct tarn_alone {
    struct tarn_linked *linked; /* NULL: there is none */
    bool broken;                /* the link */
    uint64_t since_ns;
};

/* A link that nobody uses; NULL: there is none at hand. */
struct tarn_linked *tarn_link_at_hand(struct tarn_remote *r, int t, bool write);
/*
 * Sends a transfer over such a link and waits for it: what most calls come to, without a flight's lists and look-ups.
 * now: the clock. Nobody can stop it. True: it has succeeded. False: nothing was done, or, when a->linked is set, it
 * goes on in a flight that adopts it.
 */
bool tarn_flight_alone(struct tarn_linked *l, struct tarn_remote *r, int t, bool write, struct tarn_transfer *x,
                       uint64_t now, struct tarn_alone *a);
/* Takes it over into a flight that has none yet and no stop_fd. */
void tarn_flight_adopt(struct tarn_flight *f, struct tarn_remote *r, int t, bool write, struct tarn_transfer *x,
                       const struct tarn_alone *a);

void tarn_flight_init(struct tarn_flight *f, struct tarn_client *c, int stop_fd);
/*
 * Sends a transfer on its way: work filled but for done and owner's link, deadline, patience, stop set.
 * Completed inline on a shared link or later, it comes out of tarn_flight_next exactly once. A failure
 * (no link) leaves it with the caller.
 */
int tarn_flight_post(struct tarn_flight *f, struct tarn_remote *r, int t, bool write,
                     struct tarn_transfer *x);
/* Would a post have to make a link first? That may take a while, so post what needs none before. */
bool tarn_flight_opens(const struct tarn_flight *f, struct tarn_remote *r, int t, bool write);
/* Sends what was posted, without waiting. */
void tarn_flight_push(struct tarn_flight *f);
/* Transfers that are to stop have ended when this returns. */
void tarn_flight_stop(struct tarn_flight *f);
/* The next transfer that ended, waiting for it; NULL when none is in flight, or the flight's `others` says that
 * something is to stop that is not. */
struct tarn_transfer *tarn_flight_next(struct tarn_flight *f);
/* Gives the links back. Nothing is in flight any more: either all came out, or they are ended here. */
void tarn_flight_end(struct tarn_flight *f);

/* --- health (monitor.c) ------------------------------------------------------------------------- */

struct tarn_errand;

enum tarn_links {
    TARN_LINKS_TENDED,  /* nothing is put off */
    TARN_LINKS_RESTING, /* none was used since they were looked after last */
    TARN_LINKS_USED,
};

struct tarn_monitor {
    pthread_t watcher, keeper;
    bool watching, keeping; /* the threads run */
    int wake_fd;            /* the watcher's */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the keeper's */
    bool stop, asked;
    bool alarmed; /* the operations' alarm was set to an earlier time */
    struct tarn_call *owing; /* connections with an outstanding reply nobody waits for */
    struct tarn_errand *errands;
    uint64_t watches;        /* changes whenever a watch connection comes or goes */
    _Atomic int links;       /* enum tarn_links, of those that put things off */
    uint64_t links_ns;       /* when to look after them; the keeper's */
};

int tarn_monitor_start(struct tarn_client *c);
void tarn_monitor_stop(struct tarn_client *c);
/* Watches the connection for its end, if the node has no watched one yet; else false. */
bool tarn_monitor_watch(struct tarn_remote *r, struct tarn_call *call);
/* Something needs the keeper: a node was set aside, a reply is owed, the table is old. */
void tarn_monitor_ask(struct tarn_client *c);
/* tarn_ops_expire() or tarn_links_tend() is to be called earlier than it said. */
void tarn_monitor_alarm(struct tarn_client *c);
/* The keeper reads the reply that the connection owes (owed.c). */
void tarn_monitor_owe(struct tarn_client *c, struct tarn_call *call);
/* The keeper's round of them; true when it should come again soon. */
bool tarn_monitor_owed(struct tarn_monitor *m);
void tarn_monitor_owed_end(struct tarn_monitor *m);
/* The keeper sends the command (DETACH, ABORT: what may be said twice) until the node has answered it or
 * its incarnation is over. Takes *a over; its arguments must lie in a's own text or be constants. */
void tarn_monitor_errand(struct tarn_remote *r, struct tarn_words *a);
/* The keeper's round of them; true when it should come again soon. */
bool tarn_monitor_errands(struct tarn_monitor *m);
void tarn_monitor_errands_end(struct tarn_monitor *m);

/* --- client (client.c) -------------------------------------------------------------------------- */

enum tarn_counter {
    TARN_COUNT_GETS,
    TARN_COUNT_GET_BYTES,
    TARN_COUNT_MISSES,
    TARN_COUNT_STALE,
    TARN_COUNT_PUTS,
    TARN_COUNT_PUT_BYTES,
    TARN_COUNT_ERRORS,
    TARN_COUNT_FAILOVERS,
    TARN_COUNTERS,
};

struct tarn_ops_queue;

struct tarn_client {
    struct tarn_logger log;
    struct tarn_directory *directory;
    struct tarn_cache *cache;
    const struct tarn_transport_ops *transports[TARN_TRANSPORTS_MAX];
    struct tarn_local *locals[TARN_TRANSPORTS_MAX];
    int ntransports;
    struct tarn_faulty *faulty; /* NULL: none */
    char *secret;               /* NULL: none */
    uint64_t session;
    uint32_t timeout_ms, workers;
    _Atomic uint64_t farthest_ns; /* the longest round trip to a node so far */
    char host_id[40];
    _Atomic uint32_t *alive; /* a page that fork() wipes: 0 in the child */

    pthread_rwlock_t nodes_lock;
    struct tarn_remote *nodes; /* by (id, epoch) */
    uint64_t pass;
    _Atomic uint64_t refreshed_ns;
    pthread_mutex_t refresh_lock; /* one refresh at a time: the others wait for it */
    pthread_cond_t refresh_done;
    bool refreshing;

    struct tarn_monitor monitor;
    struct tarn_leases leases;
    struct tarn_ops_queue *ops;
    pthread_mutex_t sessions_lock;
    struct tarn_put_session *sessions; /* open ones, for tarn_close() */

    struct {
        _Alignas(64) _Atomic uint64_t n[TARN_COUNTERS];
    } counters[TARN_STRIPES];
};

static inline void tarn_count(struct tarn_client *c, uint32_t stripe, enum tarn_counter what, uint64_t n)
{
    atomic_fetch_add_explicit(&c->counters[stripe].n[what], n, memory_order_relaxed);
}

/* 0, or CLOSED in a forked child, INVALID for NULL. Begins every public call. */
int tarn_client_enter(struct tarn_client *c);
/* Conditions on CLOCK_MONOTONIC. tarn_cond_wait: false when the deadline has passed. */
void tarn_cond_init(pthread_cond_t *cond);
bool tarn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);
/* A thread with all signals blocked, so that the application's handlers run on its own threads. */
int tarn_thread_start(pthread_t *t, void *(*fn)(void *), void *arg);
/* Copies what the caller has of an option struct that may be shorter than ours; NULL: all defaults. INVALID
 * when its size is not set. */
int tarn_options_copy(void *mine, size_t mine_bytes, const void *theirs);
uint64_t tarn_client_deadline(const struct tarn_client *c, uint32_t timeout_ms);
/* timeout_ms, or the client's own when that is 0. */
static inline uint64_t tarn_client_timeout_ns(const struct tarn_client *c, uint32_t timeout_ms)
{
    return (timeout_ms ? timeout_ms : c->timeout_ms) * TARN_NS_PER_MS;
}
/* INVALID with a sentence. */
int tarn_key_check(const struct tarn_key *k);
/* The key as text, cut to fit. */
const char *tarn_key_text(const struct tarn_key *k, char out[96]);

/* --- resolving (resolve.c) ---------------------------------------------------------------------- */

/* One key's answer: 0 with *d; NOT_FOUND. */
struct tarn_resolved {
    int status;
    struct tarn_desc desc;
};

/* Asks the directory for n keys at once and fills the cache. The keys must be valid. */
int tarn_resolve_keys(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                      struct tarn_resolved *out);
/* A descriptor from a record; true when it names a node that the client does not know yet. */
bool tarn_desc_make(struct tarn_client *c, const struct tarn_record *r, struct tarn_desc *d);
/* Any copy on a node that is not set aside? */
bool tarn_desc_alive(const struct tarn_desc *d);
/* No copy is on a node that is still there. */
bool tarn_desc_gone(const struct tarn_desc *d);
/* Copies hit i's descriptor; false when it has none. */
bool tarn_hits_desc(const struct tarn_hits *h, size_t i, struct tarn_desc *d);

/* --- get (get*.c; more in get_slow.h) ----------------------------------------------------------- */

/* One tarn_get call, or one submitted get. */
struct tarn_get {
    struct tarn_client *client;
    struct tarn_item *items;
    size_t n, left; /* left: items without a final status */
    uint32_t flags;
    const struct tarn_hits *hits;
    size_t hits_first;
    uint64_t since_ns; /* of tarn_get(): when it began to wait */
    uint64_t deadline_ns;
    const _Atomic bool *stop;
    struct tarn_verdict verdict;
    struct tarn_seen seen;
    void (*done)(struct tarn_get *g); /* the last item is final; may be NULL */
    void *owner;
    uint64_t got, got_bytes; /* items that jobs have brought; counted with the last item */
    size_t looked; /* tarn_get_fast() has left the items from here on as they were */
    /* What it found of the last item that it looked at and left. */
    size_t found; /* SIZE_MAX: nothing */
    uint32_t found_gpu;
    bool found_glanced; /* at its pieces, see transport/seen.h */
    bool found_fits;
    int found_way; /* the transport whose pooled links reach its only copy; -1: not known */
    uint64_t found_bytes; /* that are asked for */
    struct tarn_desc found_desc;
};

/* Serves what can be served at once from cached descriptors and shared links; g->left says what is left,
 * those items have status TARN_INPROGRESS or have not been looked at. */
void tarn_get_fast(struct tarn_get *g);
/* Finishes n gets together, their transfers mixed on the same links. */
void tarn_get_slow(struct tarn_client *c, struct tarn_get *const *gets, size_t n, int stop_fd);
/* INVALID: the item's key or pieces are. */
int tarn_get_check(const struct tarn_get *g, size_t i);
/* An item is final. */
void tarn_get_final(struct tarn_get *g, size_t i, int status);
/* Is a glance at the item's pieces enough (transport/seen.h), since they are to have as many bytes as the object? */
bool tarn_get_glance(struct tarn_get *g, size_t i, uint32_t *gpu_p);
/* Do the item's pieces fit the object? Their total comes out in any case. */
bool tarn_get_fits(const struct tarn_get *g, size_t i, const struct tarn_tensor *t, uint64_t *bytes_p);
/* They do not: the item is final with SIZE, its tensor set. */
void tarn_get_misfit(struct tarn_get *g, size_t i, const struct tarn_tensor *t);
void tarn_get_prepare(struct tarn_get *g, struct tarn_client *c, struct tarn_item *items, size_t n,
                      const struct tarn_get_options *o);

/* --- put (put*.c, place.c; more in put.h) ------------------------------------------------------- */

struct tarn_candidate {
    struct tarn_remote *remote;
    double weight; /* bytes of its pools */
    uint64_t seed; /* hash of the node id */
    uint64_t host; /* hash of the host id */
};

/*
 * Picks the k best candidates of a key, best first, each on a host of its own as long as there are
 * such; those of weight 0 are left out. Returns how many there were.
 */
uint32_t tarn_place_pick(const struct tarn_key *key, const struct tarn_candidate *cand, uint32_t n,
                         uint32_t k, uint32_t *out);

int tarn_put_run(struct tarn_client *c, struct tarn_item *items, size_t n, const struct tarn_put_options *o,
                 uint64_t deadline_ns, const struct tarn_stop *stop);
int tarn_remove_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, int32_t *statuses,
                    uint64_t deadline_ns, const struct tarn_stop *stop);
/* Aborts the put sessions that are still open; at close. */
void tarn_sessions_close(struct tarn_client *c);

/* --- submitted operations (op*.c; more in op.h) ------------------------------------------------- */

int tarn_ops_new(struct tarn_client *c);
/* Cancels everything and ends the workers. */
void tarn_ops_stop(struct tarn_client *c);
void tarn_ops_free(struct tarn_client *c);
/* Ends queued operations whose deadline has passed. Returns when to come again. */
uint64_t tarn_ops_expire(struct tarn_client *c);
/* stream.c. Of gets that are submitted operations', by the worker: a work has called given(); false: it is not
 * minded. It came back. An item was final without. Called before a get's copy is made once more: false, a stream was
 * let go behind the first one. */
bool tarn_op_given(struct tarn_get *g, struct tarn_work *w);
void tarn_op_landed(struct tarn_get *g, struct tarn_work *w);
void tarn_op_shrunk(struct tarn_get *g);
bool tarn_op_again(struct tarn_get *g);
/* Does a submitted operation use [addr, addr + bytes)? */
bool tarn_ops_use(struct tarn_client *c, const void *addr, uint64_t bytes);

int tarn_lookup_run(struct tarn_client *c, const struct tarn_key *keys, size_t n, uint64_t deadline_ns,
                    struct tarn_hits **hits_p);

#endif
