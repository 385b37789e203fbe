/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory: which tensors exist, where their copies are, which nodes live. Kept in Redis as
 * text that `redis-cli` can read; metadata/KEYS.md has the layout. This is the only module with a
 * Redis connection.
 *
 * Nodes are the truth, Redis the directory: a record may vanish (eviction, restart, FLUSHALL) and be
 * restored by the node; a location in it may be out of date, which the generation check behind every
 * transfer finds out. Only the node that holds a copy adds or removes its location, by Lua scripts
 * that touch one key each.
 *
 * All calls block until the deadline at most and may be made from any thread; connections are pooled.
 * Errors of a call as a whole: DIRECTORY (absent, refused, read-only, out of memory, loading: Redis's
 * own words in the sentence), TIMEOUT, AUTH (wrong password), NO_MEMORY; CANCELED of those that take a
 * cancel. After a failed call any part of a batch may or may not have happened.
 */
#ifndef TARN_METADATA_DIRECTORY_H
#define TARN_METADATA_DIRECTORY_H

#include <stdbool.h>

#include "base/cancel.h"
#include "base/log.h"

#define TARN_NODE_ID_MAX 63 /* [A-Za-z0-9._-] */
#define TARN_POOL_NAME_MAX 31
#define TARN_NS_MAX 63
#define TARN_DISPLACED_MAX 8             /* displaced copies that a record names */
#define TARN_DISPLACED_EXPIRY_MS 3600000 /* of what names displaced copies, and nothing else */
#define TARN_FIELD_MAX 256               /* longest transport descriptor of a pool */

struct tarn_directory;

struct tarn_location {
    char node[TARN_NODE_ID_MAX + 1];
    char pool[TARN_POOL_NAME_MAX + 1];
    uint64_t offset;
    uint64_t gen; /* even; high half is the node's epoch */
    uint32_t slot;
};

/* One object as the directory has it. */
struct tarn_record {
    struct tarn_tensor tensor;
    uint64_t version; /* 63 random bits, never 0 */
    uint64_t born_ms; /* Unix time */
    uint32_t ttl_ms;  /* 0: none */
    uint32_t nlocations;
    struct tarn_location locations[TARN_REPLICAS_MAX];
};

struct tarn_pool_record {
    char name[TARN_POOL_NAME_MAX + 1];
    char kind[8];    /* "cpu", "gpu" */
    char device[48]; /* gpu: the device's uuid; else "" */
    uint32_t index;  /* number of the pool within its node, as used on the wire */
    uint64_t bytes, free_bytes, objects, slots;
    char transports[128];           /* comma list of transports the node serves the pool by */
    char fields[4][TARN_FIELD_MAX]; /* descriptor texts, in the order of `transports` */
};

#define TARN_POOLS_MAX 16

struct tarn_node_record {
    char id[TARN_NODE_ID_MAX + 1];
    uint64_t epoch;
    char host[128], host_id[40], control[280], unix_path[108], version[32];
    char state[16];  /* "ready", "draining"; "returning": it compares what it holds, nothing may be read there
                      */
    bool restoring;  /* it publishes everything again after a loss of the directory */
    bool refuses;    /* when cut off from Redis its readers refuse instead of reading on */
    char secret[40]; /* that the node has made for its control connections; "": none */
    uint32_t pid;
    uint64_t started_ms;
    uint64_t left_ms; /* how long it would still live when it was read */
    uint32_t npools;
    struct tarn_pool_record *pools; /* npools, owned by whoever made the record */
};

/*
 * uri: as in struct tarn_options; NULL or "": localhost. Connects once, so that a wrong address or password
 * is found now. `log` must outlive the directory; may be NULL.
 */
int tarn_directory_open(const char *uri, const char *ns, const struct tarn_logger *log, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, struct tarn_directory **d_p);
void tarn_directory_close(struct tarn_directory *d);
/* The address without user and password, for messages. */
const char *tarn_directory_address(const struct tarn_directory *d);
/* Does Redis keep other users out: by a password, or by a Unix socket of this user's alone and no port
 * besides? */
bool tarn_directory_is_guarded(struct tarn_directory *d, uint64_t deadline_ns);
/* False after a call that ended without Redis's answers: not reached, or cut off. What it refuses is an
 * answer. */
bool tarn_directory_answers(const struct tarn_directory *d);
/* How long the last login took to be answered, without connecting; 0: there was none. */
uint64_t tarn_directory_rtt_ns(const struct tarn_directory *d);
/* Round trips made so far. */
uint64_t tarn_directory_round_trips(const struct tarn_directory *d);

/* --- readers ------------------------------------------------------------------------------------ */

/*
 * Called once for each key, in order. status 0 with a record; NOT_FOUND; FORMAT when the record is
 * damaged (treated as a miss by callers, with the sentence in the last error). `r` is reused.
 */
typedef void (*tarn_record_fn)(void *arg, size_t i, int status, const struct tarn_record *r);

/* Looks up n keys in one pipelined round trip. */
int tarn_directory_lookup(struct tarn_directory *d, const struct tarn_key *keys, size_t n,
                          uint64_t deadline_ns, struct tarn_cancel *cancel, tarn_record_fn fn, void *arg);

/* Objects whose escaped key matches the glob (NULL: all). A non-zero return of fn stops and is returned. */
typedef int (*tarn_scan_fn)(void *arg, const struct tarn_key *key, const struct tarn_record *r);
int tarn_directory_scan(struct tarn_directory *d, const char *match, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, tarn_scan_fn fn, void *arg);

/*
 * One page of a scan of all copies, for slow sweeps: *cursor is 0 at the start and again at the end. The
 * first `nlocations` copies of a key are locations, the others displaced; either may be none.
 */
typedef int (*tarn_copies_fn)(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                              uint32_t nlocations, uint32_t n);
int tarn_directory_scan_page(struct tarn_directory *d, uint32_t count, uint64_t *cursor, uint64_t deadline_ns,
                             tarn_copies_fn fn, void *arg);

/* All nodes whose heartbeat has not expired. fn must copy what it keeps. */
typedef int (*tarn_node_record_fn)(void *arg, const struct tarn_node_record *n);
int tarn_directory_nodes(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                         tarn_node_record_fn fn, void *arg);

/* What a reader needs to know of a node: its record, and how long that would live. */
struct tarn_lease_answer {
    char id[TARN_NODE_ID_MAX + 1]; /* in */
    uint64_t epoch;                /* 0: there is no record */
    bool returning, refuses;       /* as in struct tarn_node_record */
    uint64_t left_ms;
};

/* Of all nodes (the directory hash), by Redis's clock in ms. A field is 0 where nothing is known. */
struct tarn_pulse {
    uint64_t now_ms, beat_ms, silent_ms, resumed_ms, heartbeat_ms;
};

/* Asks about n nodes in one round trip, not counted among the others. A damaged record counts as none. */
int tarn_directory_leases(struct tarn_directory *d, struct tarn_lease_answer *answers, size_t n,
                          struct tarn_pulse *pulse, uint64_t deadline_ns, struct tarn_cancel *cancel);

/* Waits for events until the deadline (0) or until fn returns non-zero (returned). Has its own connection. */
int tarn_directory_events(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          tarn_event_fn fn, void *arg);

/* --- nodes -------------------------------------------------------------------------------------- */

enum tarn_publish_mode {
    TARN_PUBLISH_ABSENT, /* create; or add a copy when the record is of the same version and tensor and
                            has none at the same node and pool; else EXISTS */
    TARN_PUBLISH_JOIN,   /* only add a copy, as ABSENT does; EXISTS when the key does not have this version */
    TARN_PUBLISH_REPLACE, /* take the place of any other version */
    TARN_PUBLISH_RESTORE, /* as ABSENT, but an older version (born_ms, then version) gives way */
};

struct tarn_publish {
    /* in */
    struct tarn_key key;
    enum tarn_publish_mode mode;
    uint64_t replaces;         /* REPLACE, RESTORE: only when the record there has this version; 0: any */
    uint64_t until_ms;         /* RESTORE: by Redis's time */
    struct tarn_record record; /* exactly one location: the new copy. Out: born_ms as the directory has it */
    /* out */
    int status;  /* 0; EXISTS: `found` has what is there (zeros: nothing, or nothing legible); AGAIN: until_ms
                    is over;  DIRECTORY */
    bool stored; /* with another status than 0: it was published all the same; set by the publisher */
    struct tarn_record found;
    /* The first `nnamed` are named in the record as displaced, of any node; the others were locations of the
     * same node and are out of the directory. */
    uint32_t nnamed, ndisplaced;
    struct tarn_location displaced[TARN_DISPLACED_MAX];
};

/*
 * Publishes n copies in one pipelined round trip and announces each ("stored") to event readers. Either all
 * are restores, or none.
 */
int tarn_directory_publish(struct tarn_directory *d, struct tarn_publish *p, size_t n, uint64_t deadline_ns);

/*
 * Publishing without waiting, for an event loop: a connection on which answers come in the order of what
 * was sent. Opening waits, and needs that something was published before; nothing else waits. One thread
 * at a time. There is no second try of any kind: after a failure, close it and publish again. Closing with
 * answers outstanding has Redis end the connection before anything else is written.
 */
struct tarn_stream;
int tarn_stream_open(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_stream **s_p);
void tarn_stream_close(struct tarn_stream *s);
int tarn_stream_fd(const struct tarn_stream *s);      /* to wait for */
bool tarn_stream_unsent(const struct tarn_stream *s); /* wait for room to send, too */
/* Sends what goes. BUSY: not now, and nothing was done. After any other failure part of it may be queued. */
int tarn_stream_publish(struct tarn_stream *s, const struct tarn_publish *items, size_t n);
/*
 * Sends what goes and takes the answers there are, for the items published longest ago: *done is counted
 * up to n. AGAIN: not all came yet. An item's status is as after tarn_directory_publish(), DIRECTORY also
 * when Redis has forgotten the script.
 */
int tarn_stream_take(struct tarn_stream *s, struct tarn_publish *items, size_t n, size_t *done);

/*
 * Takes copies out of records, whether they are named as locations or as displaced: `location` only goes when
 * it is still exactly as given; the last copy takes the record along. `why` ("removed", "evicted", "expired";
 * NULL: say nothing) is announced.
 */
struct tarn_withdraw {
    struct tarn_key key;
    struct tarn_location location;
    uint64_t bytes;
    const char *why;
    uint64_t until_ms; /* of a sweep, by Redis's time */
    bool removed;      /* out: it was there */
};
int tarn_directory_withdraw(struct tarn_directory *d, struct tarn_withdraw *w, size_t n,
                            uint64_t deadline_ns);
/* The same for what looks dead: each only before its until_ms. */
int tarn_directory_sweep(struct tarn_directory *d, struct tarn_withdraw *w, size_t n, uint64_t deadline_ns);

/*
 * Removes objects: every location becomes a displaced copy, but the one that the calling node has freed,
 * which goes.
 */
struct tarn_removal {
    /* in */
    struct tarn_key key;
    struct tarn_location freed; /* node "": none */
    /* out */
    int status; /* 0; NOT_FOUND: no such key, but perhaps displaced copies of one; DIRECTORY */
    uint32_t ndisplaced;
    struct tarn_location displaced[TARN_DISPLACED_MAX]; /* named in the record */
};
int tarn_directory_remove(struct tarn_directory *d, struct tarn_removal *items, size_t n,
                          uint64_t deadline_ns);

/* The recheck set of a node: copies that it frees if it still holds them. Members last for an hour. */
int tarn_directory_recheck_add(struct tarn_directory *d, const struct tarn_location *l, size_t n,
                               uint64_t deadline_ns);
/* Takes `done` out, then reads some of what is left; their offsets are 0. *n_p: in the room for them, out how
 * many. */
int tarn_directory_recheck(struct tarn_directory *d, const char *node, const struct tarn_location *done,
                           size_t ndone, struct tarn_location *found, size_t *n_p, uint64_t deadline_ns);

/* Whether copies are still named, then whether their nodes are listed. */
enum tarn_listed { TARN_LISTED, TARN_LISTED_ANEW /* another epoch */, TARN_NOT_LISTED };
struct tarn_copy_seen {
    struct tarn_key key;
    struct tarn_location copy;
    bool located, displaced; /* named as the one or the other */
    enum tarn_listed node;
};
int tarn_directory_look_again(struct tarn_directory *d, struct tarn_copy_seen *copies, size_t n,
                              uint64_t deadline_ns);
/* Whether a node of this id is listed, for each of n ids. */
int tarn_directory_listed(struct tarn_directory *d, const char *const *ids, size_t n, bool *listed,
                          uint64_t deadline_ns);

/*
 * The directory as a whole: whether Redis still has the data it had (KEYS.md, "The directory itself"). All
 * times are Redis's, in milliseconds since 1970; 0: never.
 */
#define TARN_DIRECTORY_ID_TEXT 17
struct tarn_directory_state {
    char id[TARN_DIRECTORY_ID_TEXT]; /* ""; there is none, or Redis has another run than the one it was made
                                        in */
    char run[64];                    /* of Redis */
    uint64_t now_ms, since_ms;
    bool lost;                      /* it follows one that was lost */
    uint64_t lived_ms;              /* with `lost`: the latest beat that a node remembers of that one */
    uint32_t told;                  /* ... how many nodes have said so, each its own */
    uint64_t nodes;                 /* of a beat: how many nodes were listed before it; some may be gone */
    uint64_t beat_ms;               /* the last beat of any node */
    uint64_t heartbeat_ms;          /* of all its nodes */
    uint64_t silent_ms, resumed_ms; /* the last time that no node had beaten for 2 heartbeats: from, to */
};
/* Reads it, changes nothing. */
int tarn_directory_look(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_directory_state *s);
/* It has been for a ttl: all nodes that lived before it have said so by now, or are late. */
bool tarn_directory_aged(const struct tarn_directory_state *s, uint32_t ttl_ms);
/*
 * A node record that was missing before this was read has expired: nodes beat, and all have had the time to.
 * False for a node with another heartbeat than theirs.
 */
bool tarn_directory_calm(const struct tarn_directory_state *s, uint32_t heartbeat_ms, uint32_t ttl_ms);

/*
 * A heartbeat: says in the directory's hash that a node lives, makes the hash where there is none, and
 * refreshes the node's and its pools' records, which expire after ttl_ms. A record of the node that is not
 * there (any more) is only made before make_until_ms: others may have believed that the node is gone.
 */
struct tarn_beat {
    /* in */
    const struct tarn_node_record *node;
    uint32_t heartbeat_ms, ttl_ms;
    bool own_redis; /* nobody else can have known a directory there: it has aged when made */
    char known[TARN_DIRECTORY_ID_TEXT]; /* the directory of the beats before; "": this is the first */
    uint64_t last_ms;                   /* and the last of them, by Redis's time */
    uint64_t make_until_ms;             /* by Redis's time; 0: never */
    /* out */
    struct tarn_directory_state state;
    bool conflict;          /* CONFIG: other nodes beat with another heartbeat; nothing was written */
    bool other;             /* not the known directory: the records were left alone */
    bool gone;              /* the node's record was not there, and was not made */
    uint64_t taken_epoch;   /* of another living node with the same id: nothing was written; else 0 */
    bool left;              /* another node's record has expired since the last beats */
    uint32_t expires_in_ms; /* the next of other nodes' records that were not refreshed in time; 0: none */
    bool evicts;            /* Redis is set to drop keys when its memory is full */
    char policy[24];        /* its maxmemory-policy */
};
int tarn_directory_beat(struct tarn_directory *d, struct tarn_beat *b, uint64_t deadline_ns);
/* CONFIG when Redis may drop any key: a copy that it forgets may be one that readers have. */
int tarn_directory_check_redis(struct tarn_directory *d, uint64_t deadline_ns);
/* Removes the node's and its pools' records, if they are still ours (epoch). */
int tarn_directory_leave(struct tarn_directory *d, const struct tarn_node_record *n, uint64_t deadline_ns);

/* --- records as text (fuzzed) ------------------------------------------------------------------- */

/* A record from field, value, field, value ... as HGETALL gives them. FORMAT with the field's name. */
struct tarn_text {
    const char *data;
    size_t bytes;
};
/* NOT_FOUND, without a sentence: displaced copies only, there is no object. */
int tarn_record_parse(const struct tarn_text *fields, size_t n, struct tarn_record *r);

#endif
