/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the directory: connections to Redis and pipelines on them, for metadata/ and `tarn doctor`.
 *
 * A pipeline is n commands sent together and their n replies, one round trip. It takes a connection from a
 * small pool while it runs, so any number of threads may run pipelines.
 *
 * Commands sent on a connection that failed may wait in a buffer, and reach Redis after those sent on the
 * next connection. So connections that failed with writes on them are remembered, and the next writing
 * pipeline begins with CLIENT KILL for each: Redis then runs nothing more of theirs. A user without the right
 * to CLIENT, or a proxy, does not get this protection.
 *
 * tarn_directory.lock guards the idle connections, the doubtful ones, the primary and the script digests. It
 * is never held across a system call that waits.
 */
#ifndef TARN_METADATA_REDIS_H
#define TARN_METADATA_REDIS_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/resp/resp_arena.h"
#include "metadata/directory.h"

#define TARN_REDIS_IDLE_MAX 16
#define TARN_REDIS_PREFIX (5 + TARN_NS_MAX + 1) /* "tarn:<ns>:" */
#define TARN_SHA_TEXT 41
#define TARN_REDIS_DOUBTFUL_MAX 8

/* Lua scripts; scripts.c says which keys they touch. */
enum tarn_script {
    TARN_SCRIPT_PUBLISH,
    TARN_SCRIPT_RESTORE, /* a publish with a time limit */
    TARN_SCRIPT_WITHDRAW,
    TARN_SCRIPT_REMOVE,
    TARN_SCRIPT_REFRESH, /* a record that belongs to an epoch */
    TARN_SCRIPT_STATE,   /* the directory's hash, at a beat */
    TARN_SCRIPT_DROP,
    TARN_SCRIPT_SWEEP,  /* a withdrawal with a time limit */
    TARN_SCRIPT_FORGET, /* a node id out of the set */
    TARN_SCRIPT_NAME,   /* a lease's name */
    TARN_SCRIPT_COUNT,
};

#define TARN_SENTINELS_MAX 8

/* Who tells which Redis is the primary. */
struct tarn_sentinels {
    unsigned n; /* 0: nobody is asked */
    struct tarn_addr addrs[TARN_SENTINELS_MAX];
    char name[64];         /* of the primary, as they call it */
    char *user, *password; /* theirs; NULL: none */
};

/* Where Redis is and how to log in, taken from a URI. */
struct tarn_redis_uri {
    struct tarn_addr addr; /* without sentinels */
    struct tarn_sentinels sentinels;
    char address[sizeof((struct tarn_addr *)0)->host + 32]; /* as a URI without users and passwords */
    char *user, *password;                                  /* NULL: none */
    uint32_t db;
};

/* Redis's name for a connection; id "": unknown. */
struct tarn_redis_client {
    char id[24], addr[128];
};

/* One connection. */
struct tarn_redis {
    struct tarn_resp *resp;
    struct tarn_arena replies;
    struct tarn_redis_client client;
    unsigned term; /* of the primary it leads to (sentinel.c) */
    bool asked;    /* Redis was asked for `client`, before the first write */
    bool by_id;    /* it was asked for the id alone */
    bool partial;  /* part of a reply is in `replies` */
};

struct tarn_directory {
    struct tarn_redis_uri uri;
    const struct tarn_logger *log;
    char ns[TARN_NS_MAX + 1];
    char prefix[TARN_REDIS_PREFIX + 1], channel[TARN_REDIS_PREFIX + 8]; /* of keys; of events */
    _Atomic uint64_t round_trips;
    _Atomic uint64_t unanswered;
    _Atomic uint64_t rtt_ns; /* of the last login */
    _Atomic bool answers;    /* the last pipeline got its replies */
    _Atomic bool by_id;      /* this Redis has no CLIENT INFO */

    /* with sentinels only (sentinel.c) */
    _Atomic unsigned term, beaten_term; /* number of the primary: now; at the last heartbeat */
    _Atomic uint64_t config_epoch;      /* of the primary */
    _Atomic unsigned suspicions, answered_suspicions;
    _Atomic uint64_t sentinel_asked_ns;

    pthread_mutex_t lock;
    struct tarn_addr primary; /* port 0: not known yet */
    unsigned first_sentinel;  /* whom to ask first */
    struct tarn_redis *idle[TARN_REDIS_IDLE_MAX];
    unsigned nidle;
    struct tarn_redis_client doubtful[TARN_REDIS_DOUBTFUL_MAX]; /* Redis may still run their commands */
    unsigned ndoubtful;
    char sha[TARN_SCRIPT_COUNT][TARN_SHA_TEXT]; /* "": not loaded yet */
};

/* CONFIG when text is no Redis URI; the sentence never has the password. NULL or "": localhost. */
int tarn_redis_uri_parse(const char *text, struct tarn_redis_uri *u);
void tarn_redis_uri_free(struct tarn_redis_uri *u);

/*
 * append queues command i, and is called for 0 to n - 1. reply is called for each reply, in order, until it
 * returns non-zero: the pipeline ends with that value, after the other replies have been read.
 */
struct tarn_pipeline {
    size_t n;
    int (*append)(void *arg, size_t i, struct tarn_resp *r);
    int (*reply)(void *arg, size_t i, const redisReply *reply);
    void *arg;
    bool writes;
    struct tarn_cancel *cancel; /* readers only; NULL: none */
    bool aside;                 /* no operation waits for it: not counted as a round trip */
};

/*
 * Runs it on a pooled connection. If Redis has closed that connection before the first reply, runs it once
 * more on a new one: a restart of Redis between two calls is no error. Everything may run twice: readers
 * change nothing, and a script that finds its work done answers with the displaced copies that the record
 * names.
 */
int tarn_redis_run(struct tarn_directory *d, uint64_t deadline_ns, const struct tarn_pipeline *p);

/* Sets c->client. Call it before the connection's first write. */
int tarn_redis_name(struct tarn_directory *d, struct tarn_redis *c, uint64_t deadline_ns);
/* Has Redis end this connection before the next write: it may still run commands sent on it. */
void tarn_redis_doubt(struct tarn_directory *d, const struct tarn_redis *c);
bool tarn_redis_doubtful(struct tarn_directory *d);

/* A connection of the caller's own, logged in; with sentinels, to a primary. */
int tarn_redis_connect(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                       struct tarn_redis **c_p);
/* The same to this address. */
int tarn_redis_connect_to(struct tarn_directory *d, const struct tarn_addr *a, uint64_t deadline_ns,
                          struct tarn_cancel *cancel, struct tarn_redis **c_p);
/* False: sentinels have named another primary since, or may; do not use it any more. */
bool tarn_redis_leads(const struct tarn_directory *d, const struct tarn_redis *c);
void tarn_redis_free(struct tarn_redis *c);
/* tarn_resp_read(); the reply is the connection's and lasts until the next one is read. */
int tarn_redis_read(struct tarn_redis *c, uint64_t deadline_ns, struct tarn_cancel *cancel,
                    redisReply **reply_p);

/* The same with tarn_resp_try(). */
int tarn_redis_try(struct tarn_redis *c, redisReply **reply_p);

/* Names a failure of a connection: `rc` from tarn_resp_*. */
int tarn_redis_fail(const struct tarn_directory *d, const struct tarn_redis *c, int rc);
/* 0, or AUTH or DIRECTORY with Redis's words and the remedy when the reply is an error. */
int tarn_redis_check(const struct tarn_directory *d, const redisReply *reply);
/* The same for a reply that must be an array, too. */
int tarn_redis_check_array(const struct tarn_directory *d, const redisReply *reply);

/* --- sentinel.c --------------------------------------------------------------------------------- */

/* Asks sentinels for the primary, connects to it, and has it say that it is one. */
int tarn_sentinel_connect(struct tarn_directory *d, uint64_t deadline_ns, struct tarn_cancel *cancel,
                          struct tarn_redis **c_p);
/* Asks one sentinel, if none was asked for that long, whether the primary is still the same. Takes 200 ms at
 * most. */
void tarn_sentinel_confirm(struct tarn_directory *d, uint32_t max_age_ms, uint64_t deadline_ns);
#define TARN_CONFIRM_MS 1000      /* max_age_ms in the background */
#define TARN_CONFIRM_USED_MS 5000 /* and for what nobody confirms in the background */
/* The primary has failed, or has answered that it is none. */
void tarn_sentinel_suspect(struct tarn_directory *d);
void tarn_sentinel_heard(struct tarn_directory *d, const redisReply *reply);
/* Appends to a run_id which change of the primary it belongs to: a Redis that becomes the primary once more
 * has the same run_id, and older data. */
void tarn_sentinel_run(const struct tarn_directory *d, char *run, size_t bytes);
/* Must sentinels be asked before anything else? */
bool tarn_sentinel_suspects(const struct tarn_directory *d);

/* --- scripts.c ---------------------------------------------------------------------------------- */

/*
 * As struct tarn_pipeline, but append gets the script's digest for EVALSHA. It may queue another command. If
 * Redis does not know the script, the script is loaded and append is called again for the commands concerned.
 */
struct tarn_script_pipeline {
    enum tarn_script script;
    size_t n;
    int (*append)(void *arg, size_t i, const char *sha, struct tarn_resp *r);
    int (*reply)(void *arg, size_t i, const redisReply *reply);
    void *arg;
};
int tarn_script_run(struct tarn_directory *d, uint64_t deadline_ns, const struct tarn_script_pipeline *p);

/* Copies the digest of a script; false: `d` has not run it yet. */
bool tarn_script_sha(struct tarn_directory *d, enum tarn_script script, char sha[TARN_SHA_TEXT]);

/* --- objects.c ---------------------------------------------------------------------------------- */

int tarn_publish_check(const struct tarn_publish *p, size_t i);
/* Redis serves nobody else during a command: some 4 us for each publish or withdrawal in it. */
#define TARN_TOGETHER 64
/* How many of the n publishes share a command with the first one: those behind it that go to the same pool in
 * the same mode and live as long. */
size_t tarn_publish_together(const struct tarn_publish *p, size_t n);
/* n publishes as a command, and its answer: sets statuses, displaced copies and what was found; returns how
 * many Redis has refused, and with what. */
int tarn_publish_append(const struct tarn_directory *d, const struct tarn_publish *p, size_t n,
                        const char *sha, struct tarn_resp *r);
size_t tarn_publish_read(struct tarn_directory *d, const redisReply *reply, struct tarn_publish *p, size_t n,
                         int *refusal);

/* "<why> <escaped key> <node> <pool> <bytes>"; out has TARN_EVENT_TEXT bytes. */
#define TARN_EVENT_TEXT (16 + TARN_KEY_TEXT + TARN_NODE_ID_MAX + TARN_POOL_NAME_MAX + 24)

/* --- directory_state.c --------------------------------------------------------------------------- */

/* The script's text. */
extern const char tarn_state_script[];
/* EVALSHA of it for a beat. `fresh`: the id of a new directory, the same when the command is sent again. */
int tarn_state_append(const struct tarn_directory *d, const struct tarn_beat *b,
                      const char fresh[TARN_DIRECTORY_ID_TEXT], const char *sha, struct tarn_resp *r);
int tarn_state_read(const struct tarn_directory *d, const redisReply *reply, struct tarn_directory_state *s);
/* Fields and values of the hash, from element `first` on; skips what is no text. */
void tarn_state_fields(const redisReply *reply, size_t first, struct tarn_directory_state *s);
/* An answer to TIME in ms; 0: it is no such answer. */
uint64_t tarn_time_ms(const redisReply *reply);
/* Sets `policy` and `evicts` from an answer to INFO memory. */
void tarn_memory_read(const redisReply *reply, struct tarn_beat *b);
/* The value of "name:" in an answer to INFO; false: it is not there. */
bool tarn_info_value(const redisReply *reply, const char *name, char *out, size_t bytes);

/* --- keys and answers --------------------------------------------------------------------------- */

/* "tarn:<ns>:" and the rest: "node:%s", "pool:%s/%s". Not for objects, whose keys are longer. */
#define TARN_REDIS_KEY_TEXT (TARN_REDIS_PREFIX + 8 + TARN_NODE_ID_MAX + 1 + TARN_POOL_NAME_MAX + 1)
void tarn_redis_key(const struct tarn_directory *d, char out[TARN_REDIS_KEY_TEXT], const char *rest, ...)
    __attribute__((format(printf, 3, 4)));

/* "tarn:<ns>:o:<escaped key>"; "" for a key that is too long. `out` must have TARN_OBJECT_KEY_TEXT bytes. */
#define TARN_OBJECT_KEY_TEXT (TARN_REDIS_PREFIX + 2 + 3 * TARN_KEY_MAX + 1)
void tarn_object_key(const struct tarn_directory *d, const struct tarn_key *key, char *out);

/*
 * The texts of an HGETALL answer, pointing into the reply. FORMAT when it is no list of texts, or one
 * longer than any record is.
 */
#define TARN_TEXTS_MAX 128
int tarn_reply_texts(const redisReply *reply, struct tarn_text texts[TARN_TEXTS_MAX], size_t *n_p);
/* The same. NOT_FOUND, without a sentence: no such key. AUTH, DIRECTORY: Redis refuses. */
int tarn_hash_read(const struct tarn_directory *d, const redisReply *reply,
                   struct tarn_text texts[TARN_TEXTS_MAX], size_t *n_p);
/* Is it an error that begins with this word? */
static inline bool tarn_reply_refuses(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, word, strlen(word)) == 0;
}

/* An HGETALL answer for an object, as tarn_hash_read(). */
int tarn_object_read(const struct tarn_directory *d, const redisReply *reply, struct tarn_record *r);

/* A record's life by an answer to PTTL. One without an expiry counts as living for a second. */
static inline uint64_t tarn_left_of(const redisReply *pttl)
{
    if (pttl->type != REDIS_REPLY_INTEGER || pttl->integer < -1)
        return 0;
    return pttl->integer == -1 ? 1000 : (uint64_t)pttl->integer;
}

/* 0, or CONFIG when text is empty, longer than max or has other bytes than [A-Za-z0-9._-]. */
int tarn_name_check(const char *what, const char *text, size_t max);

#endif
