/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of what clients did and saw, in shared files that survive kill -9. Each client has a file, each
 * operation a record. Times are CLOCK_MONOTONIC; all processes are on one host.
 *
 *   struct history_log *l = history_open("/dev/shm/x/client-3", 3, 1000000);
 *   struct history_op *op = history_begin(l, HISTORY_GET, key, deadline_ms);   before the call
 *   ... op->version, op->wrong ...
 *   history_end(op, status);                                                   after it
 *
 * An operation whose process was killed has no end; see history_load().
 */
#ifndef TARN_TESTS_HISTORY_HISTORY_H
#define TARN_TESTS_HISTORY_HISTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum history_kind {
    HISTORY_NONE, /* the process was killed before it wrote this record */
    HISTORY_PUT,  /* put only if absent */
    HISTORY_REPLACE,
    HISTORY_REMOVE,
    HISTORY_GET,
    HISTORY_GET_MANY, /* one item of many */
    HISTORY_STALL,    /* the client did not run from start to end; HISTORY_ALL_CLIENTS: the host */
    HISTORY_RUN,      /* another process begins to write this log; the previous one has ended */
    HISTORY_KINDS,
};

/* Possible faults of a value's bytes; see value.h. */
enum history_wrong {
    HISTORY_RIGHT,
    HISTORY_TORN,      /* bytes of several versions */
    HISTORY_FOREIGN,   /* of another key */
    HISTORY_MISPLACED, /* bytes of this version, from another place in it */
    HISTORY_GARBLED,   /* bytes that no put wrote */
    HISTORY_WRONGS,
};

enum { HISTORY_ALL_CLIENTS = 0xffff };

struct history_op {
    uint64_t start_ns;
    _Atomic uint64_t end_ns; /* 0: it has not ended */
    uint64_t version;        /* version that was put, or got with status 0 */
    uint64_t waited_ns;      /* time the thread waited for a processor */
    uint32_t key;
    int32_t status;
    uint32_t deadline_ms;
    uint16_t client;
    uint8_t kind, wrong;
    uint64_t gone_ns; /* set by history_load(): when the operation ended or its process was gone */
};

struct history_log;

/* Creates the file, or appends to it, with room for `room` operations. NULL: errno has the reason. */
struct history_log *history_open(const char *path, uint16_t client, size_t room);
void history_close(struct history_log *l);
/* Begins an operation now. NULL: no room. */
struct history_op *history_begin(struct history_log *l, enum history_kind kind, uint32_t key,
                                 uint32_t deadline_ms);
void history_end(struct history_op *op, int status);
/* Records an event after it has ended: HISTORY_STALL. */
void history_note(struct history_log *l, enum history_kind kind, uint16_t client, uint64_t start_ns,
                  uint64_t end_ns);
/* A unique version, made from client and operation. */
uint64_t history_version(const struct history_log *l, const struct history_op *op);

struct history {
    struct history_op *ops;
    size_t n;
};

/*
 * Reads the logs of a folder. Their writers may still run. gone_ns is the time at which the operation ended
 * or the log's next run began; UINT64_MAX without either. False: errno has the reason.
 */
bool history_load(const char *folder, struct history *h);
void history_free(struct history *h);

#endif
