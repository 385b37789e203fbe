/* SPDX-License-Identifier: Apache-2.0 */
/* Whether other nodes count on this one, as the node knows it; presence.h has the states. */
#ifndef TARN_SERVER_PRESENCE_STATE_H
#define TARN_SERVER_PRESENCE_STATE_H

#include "metadata/directory.h"

struct tarn_presence {
    enum { TARN_HERE, TARN_COMPARING, TARN_RECHECKING, TARN_WAITING } state;
    bool restoring; /* the store's objects are being published again */
    bool begun;     /* COMPARING or restoring: the scrub has begun */
    char known[TARN_DIRECTORY_ID_TEXT],
        run[64]; /* ids of the directory and of Redis's run, at the last beat as HERE */
    struct tarn_directory_state claimed; /* state that the first beat has read */
    uint64_t last_ms,
        last_ns;        /* the last beat that found the record there as HERE: Redis's time, ours when sent */
    uint64_t nodes;     /* nodes listed at that beat, this one included */
    uint64_t beat_ms;   /* the last beat in any state, by Redis's time */
    uint64_t away_ms;   /* WAITING: last_ms in the directory that was lost */
    bool listed;        /* COMPARING: the record has been made */
    uint64_t listed_ms; /* COMPARING, RECHECKING: when a beat found the record there, by Redis's time; 0: not
                           yet */
    uint64_t rounds;    /* RECHECKING: ends at this number of readings of the recheck set */
    bool missed;        /* the last beat found the record gone although it had not expired */
    uint64_t make_until_ms;   /* the next beat may make the record until then */
    uint64_t given_up, freed; /* for INFO: times given up, objects freed for that */
    bool conflict;            /* the last answered beat was refused: other nodes have another heartbeat */
    bool evicts;              /* Redis may drop records; the log has said so */
};

#endif
