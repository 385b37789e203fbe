/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory: which tensors exist, where their copies are, which nodes live. Redis keeps it as text that
 * `redis-cli` can read; metadata/KEYS.md has the layout. Only this module connects to Redis.
 *
 * Nodes hold the truth. A record may vanish from Redis (eviction, restart, FLUSHALL), and its node restores
 * it. A location may be out of date, which the generation check after each transfer detects. Only the node
 * that holds a copy adds or removes its location, by Lua scripts that touch one key each.
 *
 * A call blocks until its deadline at most. Any thread may call; connections are pooled. Errors of a call as
 * a whole: DIRECTORY (absent, refused, read-only, out of memory, loading; the sentence has Redis's own
 * words), TIMEOUT, AUTH (wrong password), NO_MEMORY, and CANCELED if it takes a cancel. After a failed call
 * any part of a batch may have happened.
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
#define TARN_DISPLACED_EXPIRY_MS 3600000 /* of a key that names displaced copies and nothing else */
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
    char state[16];  /* "ready", "draining"; "returning": compares what it holds, may not be read from */
    bool restoring;  /* publishes everything again after a loss of the directory */
    bool refuses;    /* when cut off from Redis, its readers refuse instead of reading on */
    char secret[40]; /* made by the node for its control connections; "": none */
    uint32_t pid;
    uint64_t started_ms;
    uint64_t left_ms; /* until the record expires, as of when it was read */
    uint32_t npools;
    struct tarn_pool_record *pools; /* npools, owned by whoever made the record */
};

/*
 * uri: as in struct tarn_options; NULL or "": localhost. Connects once, to find a wrong address or password
 * now. `log` must outlive the directory; may be NULL.
 */
int tarn_directory_open(const char *uri, const char *ns, const struct tarn_logger *log, uint64_t deadline_ns,
                        struct tarn_cancel *cancel, struct tarn_directory **d_p);
void tarn_directory_close(struct tarn_directory *d);
const char *tarn_directory_ns(const struct tarn_directory *d);
/* The address without user and password, for messages. */
const char *tarn_directory_address(const struct tarn_directory *d);
/* With sentinels, "host:port" of the primary used last; without, "". */
#define TARN_PRIMARY_TEXT 272
void tarn_directory_primary(struct tarn_directory *d, char out[TARN_PRIMARY_TEXT]);
/* Does Redis keep other users out: by a password, or by listening only on a Unix socket that is this user's
 * alone? */
bool tarn_directory_is_guarded(struct tarn_directory *d, uint64_t deadline_ns);
/* False after a call to which Redis did not answer. A refusal by Redis counts as an answer. */
bool tarn_directory_answers(const struct tarn_directory *d);
/* The time from the last login's commands to its answers; 0: there was no login. */
uint64_t tarn_directory_rtt_ns(const struct tarn_directory *d);
/* Round trips made so far. */
uint64_t tarn_directory_round_trips(const struct tarn_directory *d);
/* How often commands that write were sent so far without getting all answers. */
uint64_t tarn_directory_unanswered(const struct tarn_directory *d);

/* --- names of leases ---------------------------------------------------------------------------- */

#define TARN_DESCRIPTOR_TEXT 512 /* a descriptor with its NUL, as TARN_DESCRIPTOR_MAX of window.h */

struct tarn_window_name {
    char name[TARN_NODE_ID_MAX + 1], descriptor[TARN_DESCRIPTOR_TEXT];
    uint32_t life_ms; /* 0: remove it */
    int status;       /* out: 0; EXISTS: another descriptor has the name */
};

/* Writes n names, or prolongs or removes them. */
int tarn_directory_name(struct tarn_directory *d, struct tarn_window_name *names, size_t n,
                        uint64_t deadline_ns);
/* The descriptor of that name. NOT_FOUND, FORMAT. */
int tarn_directory_named(struct tarn_directory *d, const char *name, uint64_t deadline_ns,
                         struct tarn_cancel *cancel, char text[TARN_DESCRIPTOR_TEXT]);

/* Names that match the glob (NULL: all), in no order; one may be seen twice or not at all when it comes or
 * goes meanwhile. The text is as it is in Redis, "" if it is no text. left_ms: until the name expires. */
typedef int (*tarn_window_name_fn)(void *arg, const char *name, const char *text, uint64_t left_ms);
int tarn_directory_names(struct tarn_directory *d, const char *match, uint64_t deadline_ns,
                         struct tarn_cancel *cancel, tarn_window_name_fn fn, void *arg);

/* --- readers ------------------------------------------------------------------------------------ */

/*
 * Called once for each key, in order. status: 0 with a record; NOT_FOUND; FORMAT: the record is damaged, the
 * last error says how, and callers treat it as a miss. `r` is reused.
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
 * One page of a scan of all copies, for slow sweeps. *cursor is 0 at the start and again at the end. The
 * first `nlocations` copies of a key are locations, the others displaced copies.
 */
typedef int (*tarn_copies_fn)(void *arg, const struct tarn_key *key, const struct tarn_location *copies,
                              uint32_t nlocations, uint32_t n);
int tarn_directory_scan_page(struct tarn_directory *d, uint32_t count, uint64_t *cursor, uint64_t deadline_ns,
                             tarn_copies_fn fn, void *arg);

/* All nodes whose heartbeat has not expired. fn must copy what it keeps. */
typedef int (*tarn_node_record_fn)(void *arg, const struct tarn_node_record *n);
int tarn_directory_nodes(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                         tarn_node_record_fn fn, void *arg);

/* What a lease is made of: whether a node has a record, and until when. */
struct tarn_read_lease_answer {
    char id[TARN_NODE_ID_MAX + 1]; /* in */
    uint64_t epoch;                /* 0: there is no record */
    bool returning, refuses;       /* as in struct tarn_node_record */
    uint64_t left_ms;
};

struct tarn_directory_state;
/* Asks about n nodes in one round trip, which is not counted. A damaged record counts as none. `state` gets
 * the times of the directory's beats; its id is not checked against Redis's run. */
int tarn_directory_leases(struct tarn_directory *d, struct tarn_read_lease_answer *answers, size_t n,
                          struct tarn_directory_state *state, uint64_t deadline_ns,
                          struct tarn_cancel *cancel);

/* Waits for events until the deadline (0) or until fn returns non-zero (returned). Has its own connection. */
int tarn_directory_events(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          tarn_event_fn fn, void *arg);

/* --- nodes -------------------------------------------------------------------------------------- */

enum tarn_publish_mode {
    TARN_PUBLISH_ABSENT,  /* creates the record; or adds a copy if the record has the same version and tensor
                             and no copy at the same node and pool; else EXISTS */
    TARN_PUBLISH_JOIN,    /* only adds a copy, as ABSENT does; EXISTS: the key does not have this version */
    TARN_PUBLISH_REPLACE, /* replaces any other version */
    TARN_PUBLISH_RESTORE, /* as ABSENT, but replaces an older version (born_ms, then version) */
};

struct tarn_publish {
    /* in */
    struct tarn_key key;
    enum tarn_publish_mode mode;
    uint64_t replaces;         /* REPLACE, RESTORE: only when the record there has this version; 0: any */
    uint64_t until_ms;         /* RESTORE: by Redis's time */
    struct tarn_record record; /* exactly one location: the new copy. Out: born_ms as the directory has it */
    /* out */
    int status;  /* 0; EXISTS: `found` has the record there (zeros: none, or a damaged one); AGAIN: until_ms
                    has passed, or too many displaced copies; DIRECTORY */
    bool stored; /* published although the status is not 0; set by the node's directory thread */
    /* Sent without an answer at some time: Redis may have run it, or may still. Set by the directory thread.
     */
    bool in_doubt;
    struct tarn_record found;
    /* The record names the first `nnamed`, of any node, as displaced. The others were locations of the same
     * node and have left the directory. */
    uint32_t nnamed, ndisplaced;
    struct tarn_location displaced[TARN_DISPLACED_MAX];
};

/*
 * Publishes n copies in one pipelined round trip and announces each ("stored") to event readers. All of them
 * are restores, or none is.
 */
int tarn_directory_publish(struct tarn_directory *d, struct tarn_publish *p, size_t n, uint64_t deadline_ns);

/*
 * Publishing without waiting, for an event loop: a connection whose answers come in the order of the items.
 * For one thread at a time. Only opening waits; it requires an earlier tarn_directory_publish(). Nothing is
 * retried: after a failure, close the stream and publish again. If answers are outstanding when it is closed,
 * Redis ends the connection before anything else is written.
 */
struct tarn_stream;
int tarn_stream_open(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_stream **s_p);
void tarn_stream_close(struct tarn_stream *s);
int tarn_stream_fd(const struct tarn_stream *s);      /* to wait for */
bool tarn_stream_unsent(const struct tarn_stream *s); /* wait for room to send, too */
/* Queues items and sends what the socket takes. BUSY: not now; nothing was queued. After any other failure
 * some may be queued. */
int tarn_stream_publish(struct tarn_stream *s, const struct tarn_publish *items, size_t n);
/*
 * Sends what the socket takes, then takes the answers that have come, for the oldest items first, and counts
 * them in *done, up to n. AGAIN: some are missing. Statuses are as after tarn_directory_publish(); DIRECTORY
 * also if Redis has forgotten the script.
 */
int tarn_stream_take(struct tarn_stream *s, struct tarn_publish *items, size_t n, size_t *done);

/*
 * Takes copies out of records, as locations or as displaced copies. `location` goes only if it is still
 * exactly as given; the last copy takes the record along. Announces `why`: "removed", "evicted", "expired";
 * NULL: no announcement.
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
/* The same for copies whose node looks dead: each only before its until_ms. */
int tarn_directory_sweep(struct tarn_directory *d, struct tarn_withdraw *w, size_t n, uint64_t deadline_ns);

/*
 * Removes objects. Every location becomes a displaced copy, except `freed`, which the calling node has freed.
 */
struct tarn_removal {
    /* in */
    struct tarn_key key;
    struct tarn_location freed; /* node "": none */
    /* out */
    int status; /* 0; NOT_FOUND: no such key, though perhaps displaced copies of it; DIRECTORY */
    uint32_t ndisplaced;
    struct tarn_location displaced[TARN_DISPLACED_MAX]; /* named in the record */
};
int tarn_directory_remove(struct tarn_directory *d, struct tarn_removal *items, size_t n,
                          uint64_t deadline_ns);

/* The recheck set of a node: copies that it frees if it still holds them. Members expire after an hour. */
int tarn_directory_recheck_add(struct tarn_directory *d, const struct tarn_location *l, size_t n,
                               uint64_t deadline_ns);
/* Takes `done` out, then reads some of the rest; their offsets are 0. *n_p: in, the room in `found`; out, how
 * many were read. */
int tarn_directory_recheck(struct tarn_directory *d, const char *node, const struct tarn_location *done,
                           size_t ndone, struct tarn_location *found, size_t *n_p, uint64_t deadline_ns);

/* For each copy: does its record still name it, and is its node listed? */
enum tarn_listed { TARN_LISTED, TARN_LISTED_ANEW /* another epoch */, TARN_NOT_LISTED };
struct tarn_copy_seen {
    struct tarn_key key;
    struct tarn_location copy;
    bool located, displaced; /* named as the one or the other */
    enum tarn_listed node;
};
int tarn_directory_look_again(struct tarn_directory *d, struct tarn_copy_seen *copies, size_t n,
                              uint64_t deadline_ns);
/* For each of n ids: is such a node listed? */
int tarn_directory_listed(struct tarn_directory *d, const char *const *ids, size_t n, bool *listed,
                          uint64_t deadline_ns);

/*
 * The directory as a whole: does Redis still have its data (KEYS.md, "The directory itself")? Times are
 * Redis's, in milliseconds since 1970; 0: never.
 */
#define TARN_DIRECTORY_ID_TEXT 17
struct tarn_directory_state {
    char id[TARN_DIRECTORY_ID_TEXT]; /* "": none, or made in another run of Redis, or sentinels have named
                                        another Redis since the last beat */
    char run[64];                    /* of Redis */
    uint64_t now_ms, since_ms;
    bool lost;                      /* it follows a lost one */
    uint64_t lived_ms;              /* with `lost`: the latest beat there that any node remembers */
    uint32_t told;                  /* with `lost`: how many nodes have reported their last beat there */
    uint64_t nodes;                 /* in a beat: how many ids the set has; some may be gone */
    uint64_t beat_ms;               /* the last beat of any node */
    uint64_t heartbeat_ms;          /* of all its nodes */
    uint64_t silent_ms, resumed_ms; /* the last pause of 2 heartbeats or more without a beat: from, to */
};
/* Reads it, changes nothing. */
int tarn_directory_look(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_directory_state *s);
/* It is at least a ttl old: every node that lived before it has reported by now, or is late. */
bool tarn_directory_aged(const struct tarn_directory_state *s, uint32_t ttl_ms);
/*
 * True: a node record that was missing before this was read has expired, for nodes beat, and all have had the
 * time to. False for a node with another heartbeat than the directory's.
 */
bool tarn_directory_calm(const struct tarn_directory_state *s, uint32_t heartbeat_ms, uint32_t ttl_ms);

/*
 * A heartbeat: notes in the directory's hash that a node lives, creates the hash if there is none, and
 * refreshes the records of the node and its pools, which expire after ttl_ms. A missing record of the node is
 * created only before make_until_ms: afterwards others may believe that the node is gone.
 */
struct tarn_beat {
    /* in */
    const struct tarn_node_record *node;
    uint32_t heartbeat_ms, ttl_ms;
    bool own_redis;                     /* the node's private Redis: a new directory counts as aged */
    char known[TARN_DIRECTORY_ID_TEXT]; /* the directory of earlier beats; "": this is the first */
    uint64_t last_ms;                   /* the last of them, by Redis's time */
    uint64_t make_until_ms;             /* by Redis's time; 0: never */
    /* out */
    struct tarn_directory_state state;
    bool conflict;          /* CONFIG: other nodes beat with another heartbeat; nothing was written */
    bool other;             /* not the known directory: no record was written */
    bool gone;              /* the node's record was missing and was not created */
    uint64_t taken_epoch;   /* of another living node with the same id: nothing was written; else 0 */
    bool left;              /* another node's record has expired since the last beats */
    uint32_t expires_in_ms; /* until the next late record of another node expires; 0: none is late */
    bool evicts;            /* Redis drops keys when its memory is full */
    char policy[24];        /* its maxmemory-policy */
};
int tarn_directory_beat(struct tarn_directory *d, struct tarn_beat *b, uint64_t deadline_ns);
/* CONFIG: Redis may drop keys. It would forget copies that readers still use. */
int tarn_directory_check_redis(struct tarn_directory *d, uint64_t deadline_ns);
/* Removes the records of the node and its pools, if they still have its epoch. */
int tarn_directory_leave(struct tarn_directory *d, const struct tarn_node_record *n, uint64_t deadline_ns);

/* --- records as text (fuzzed) ------------------------------------------------------------------- */

/* A record from field, value, field, value ... as HGETALL gives them. FORMAT with the field's name. */
struct tarn_text {
    const char *data;
    size_t bytes;
};
/* NOT_FOUND, without a sentence: only displaced copies, no object. */
int tarn_record_parse(const struct tarn_text *fields, size_t n, struct tarn_record *r);

#endif
