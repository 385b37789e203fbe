/* SPDX-License-Identifier: Apache-2.0 */
/* What a node knows of whether the others count on it; presence.h has the states. */
#ifndef TARN_SERVER_PRESENCE_STATE_H
#define TARN_SERVER_PRESENCE_STATE_H

#include "metadata/directory.h"

struct tarn_presence {
    enum { TARN_HERE, TARN_COMPARING, TARN_RECHECKING, TARN_WAITING } state;
    bool restoring;                              /* what the store holds is being published again */
    bool begun;                                  /* COMPARING, or restoring: the scrub does it */
    char known[TARN_DIRECTORY_ID_TEXT], run[64]; /* the directory, and Redis's run then */
    struct tarn_directory_state claimed;         /* as the first beat has read it */
    uint64_t last_ms,
        last_ns;        /* the last beat that found the record there as HERE: Redis's time, ours when sent */
    uint64_t nodes;     /* how many nodes were listed then, this one included */
    uint64_t beat_ms;   /* the last beat in any state, by Redis's time */
    uint64_t away_ms;   /* WAITING: last_ms in the directory that was lost */
    bool listed;        /* COMPARING: the record has been made */
    uint64_t listed_ms; /* COMPARING, RECHECKING: when it was found there, by Redis's time; 0: not yet */
    uint64_t rounds;    /* RECHECKING: so many readings of the recheck set will be enough */
    bool missed;        /* the last beat found the record gone before its time */
    uint64_t make_until_ms;   /* the next beat may make the record until then */
    uint64_t given_up, freed; /* for INFO: how often, how many objects went for it */
    bool conflict;            /* the last beat that was answered: other nodes have another heartbeat */
    bool evicts;              /* has been warned of */
};

#endif
