/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key, two nodes, one Redis: docs/consistency.md.
 *
 * Rules:
 * 1. When a replace or a remove has returned 0, no get that begins later returns an older version.
 * 2. A restore never takes the place of a newer version whose COMMIT has been answered.
 * 3. (LEAKS) Once everybody has come to rest, nodes hold only copies that the record names as locations.
 *
 * Version 1 is at node B. Operation i puts version i + 2, or removes; operations overlap as they like. Each
 * process may stop anywhere and for any time, or for good: that is a writer that was killed, a node that is
 * paused or cut off, a message that is late. Process Time makes records in Redis expire and leases end. One
 * tick is a heartbeat.
 *
 * A copy is a version at a node; `mem` says which can be read there by whoever knows where they are. A get that
 * begins now may return any of them that some client knows of, under a lease that has not ended: STALE says
 * whether one of those is too old, and Reader looks at that at every moment.
 *
 * Configurations: OPS, FIRST, OTHERS, TICKS, COPIES, EVICTIONS, UNANSWERED, KILLS, LOSSES, LOSS_AFTER, SILENCE,
 * SERVE, LEAKS.
 * Broken rules: all other names in #ifdef.
 */
#ifndef OPS
#define OPS 2
#endif
#ifndef TICKS
#define TICKS 5
#endif
#ifndef COPIES
#define COPIES 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 0
#endif
#ifndef UNANSWERED
#define UNANSWERED 0 /* publishes whose answer is lost or late */
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif

#ifndef LOSS_AFTER
#define LOSS_AFTER 0 /* ticks */
#endif
#ifndef SILENCE
#define SILENCE 0
#endif
/* What the operations are: replace or remove, of the first and of the others. */
#define REPLACE 1
#define REMOVE 2
#ifndef FIRST
#define FIRST REPLACE
#endif
#ifndef OTHERS
#define OTHERS REPLACE
#endif

#define A 0
#define B 1
#define OTHER(n) (1 - (n))
#define HAS(set, x) (((set) >> (x)) & 1)
#define ONE(x) (1 << (x))
#define LARGER(a, b) ((a) > (b) -> (a) : (b))

#define TTL 3 /* heartbeats that a node's record lives */
#define START 4
#define END (START + TICKS)
byte now = START;

/* --- Redis ---------------------------------------------------------------------------------------- */

/* The key's record. version 0: no such key, though displaced copies may be named. */
byte version = 1;
byte born = 2;
byte locations = ONE(B); /* set of nodes */
byte displaced[2];       /* by node: set of versions */
byte recheck[2];         /* by node: set of versions */

/* Records of nodes. */
#define GONE 0
#define RETURNING 1
#define UP 2
byte listed[2] = UP;
byte expires[2] = START + TTL;
bool epoch_listed[2]; /* false: of the first run, true: of the second */

/* The directory hash: times of beats. */
#if SILENCE || LOSSES
byte beat = START, fell_silent, resumed;
#endif
#if LOSSES
/* And whether this is the directory that it was. Ids count up; 0: none. */
byte dir = 1, since, lived;
bool lost;
bool told[2]; /* has said when it beat last in the directory before, in time */
bool restoring_listed[2];
#define IS_OLD_ENOUGH (now >= since + TTL)
#ifdef NEW_IS_SETTLED
#define MAY_BE_SETTLED true
#else
#define MAY_BE_SETTLED (IS_OLD_ENOUGH && NOBODY_RESTORES)
#endif
#define NOBODY_RESTORES                                                                                      \
    (!(listed[A] && restoring_listed[A]) && !(listed[B] && restoring_listed[B]))
#endif

/* --- nodes ---------------------------------------------------------------------------------------- */

byte mem[2];        /* set of versions that can be read */
byte live[2];       /* the version that the node's index has; 0: none */
byte committing[2]; /* the version whose COMMIT has not ended; 0: none */
bool asking[2];     /* its script may be in Redis, the answer is not back */
#define DELETING 7
byte unnamed[2];    /* copies that were freed and are still to be withdrawn */
#if SILENCE || LOSSES
byte last_beat[2] = START;
#endif
byte evictions = EVICTIONS;
#if UNANSWERED
byte unanswered = UNANSWERED;
/* A node's scripts run one after the other, also when the COMMIT of one has ended in doubt. */
#define MAY_ASK(n) (!asking[n])
#else
#define MAY_ASK(n) true
#endif
#if SILENCE
byte missing_since[2]; /* when its beats began to find the other node's record missing; 0: it is there */
#endif
#if KILLS
bool second_run[2]; /* it was killed and started again */
byte had[2];         /* set of versions that it ever had */
byte held_before[2]; /* those of the first run */
#endif
#if LOSSES
byte known[2] = 1;   /* the directory's id as the node knows it */
byte settled[2] = 1; /* the id that it knows to be settled; 0: none */
#define IS_SETTLED(n) (settled[n] != 0)
#ifdef ID_COMPARED_LATE /* with what the node knows when the answer comes, not when it sent the script */
#define IS_STILL_SETTLED(n) (settled[n] == dir)
#else
#define IS_STILL_SETTLED(n) (under == dir)
#endif
#define NOTE_ID(n) under = settled[n]
#define DIRECTORY_IS_THERE (dir != 0)
#else
#define IS_SETTLED(n) true
#define IS_STILL_SETTLED(n) true
#define NOTE_ID(n) skip
#define DIRECTORY_IS_THERE true
#endif

/* --- what is true, for the rules ------------------------------------------------------------------ */

byte changes;          /* of the key, in Redis's order */
byte order[OPS + 2];   /* of a version: its change */
byte born_of[OPS + 2];
byte returned;         /* the latest change that returned 0: what is older must not be read */
byte answered = ONE(1); /* set of versions: COMMIT has answered with success */
byte older;            /* set of versions: those */

/* Clients, seen from the worst side: there may be one for each copy that the record ever named, and one that asked
 * for each node's record at the last moment. So both are facts about nodes. Leases are counted from before the
 * client asked, less a margin for its clock, which may lose one tick. */
byte known_to_readers[2]; /* by node: set of versions */
byte lease_end[2] = START + TTL;
#define DRIFT 1
#ifdef LEASE_WITHOUT_MARGIN
#define MARGIN 0
#else
#define MARGIN 1
#endif
#ifdef LEASE_FROM_ANSWER
#define LATE_BY 1
#else
#define LATE_BY 0
#endif
#ifdef LEASE_NEVER_ENDS
#define LEASE_END(e) 255
#else
#define LEASE_END(e) ((e) - MARGIN + DRIFT + LATE_BY)
#endif
/* Who gets no answer from Redis reads on from a node that beat just before everybody fell silent, and for a
 * while longer. */
#if SERVE
#define READ_ON(n)                                                                                           \
    (listed[n] == GONE && ((now >= beat + 2 && lease_end[n] + 1 >= beat + TTL) ||                                  \
                           (now < resumed + 2 && lease_end[n] + 1 >= fell_silent + TTL)))
#else
#define READ_ON(n) false
#endif
#define STALE(n) ((now < lease_end[n] || READ_ON(n)) && (mem[n] & known_to_readers[n] & older) != 0)

/* --- scripts: each is one step -------------------------------------------------------------------- */

/* Locations of a version whose place is taken become displaced copies. n publishes. */
inline displace(n)
{
#ifndef RELEASE_BY_CLIENT_ONLY
    if
    :: HAS(locations, OTHER(n)) -> displaced[OTHER(n)] = displaced[OTHER(n)] | ONE(version)
    :: else
    fi;
#endif
#ifdef PUBLISH_DROPS_OWN
    displaced[n] = 0;
#endif
    locations = 0
}

inline add_location(n, v)
{
    locations = locations | ONE(n);
    known_to_readers[n] = known_to_readers[n] | ONE(v)
}

inline new_version(n, v)
{
    displace(n);
#ifdef BORN_NOT_RAISED
    born = 1;
#else
    born = (version && born >= 1 -> born + 1 : 1);
#endif
    version = v;
    born_of[v] = born;
    changes++;
    order[v] = changes
}

/* COMMIT. Every put's own clock says 1, which is behind version 1's. */
inline publish_replace(n, v)
{
    d_step {
#ifdef RELEASE_BY_CLIENT_ONLY
        old = (HAS(locations, OTHER(n)) && version != v -> ONE(version) : 0);
#endif
#ifdef PUBLISH_DROPS_DISPLACED
        displaced[A] = 0;
        displaced[B] = 0;
#endif
        if
        :: version != v -> new_version(n, v)
        :: else
        fi;
        add_location(n, v);
        displaced[n] = displaced[n] & ~ONE(v);
#ifndef RELEASE_BY_CLIENT_ONLY
        old = displaced[OTHER(n)];
#endif
        mine = order[v]
    }
}

#if COPIES == 2
inline publish_join(n, v)
{
    d_step {
        if
        :: version == v -> add_location(n, v); ok = true
        :: else -> ok = false
        fi
    }
}

#endif

inline delete_record(n)
{
    d_step {
#ifdef RELEASE_BY_CLIENT_ONLY
        old = (HAS(locations, OTHER(n)) && version -> ONE(version) : 0);
#endif
#ifdef DELETE_DROPS_DISPLACED
        displaced[A] = 0;
        displaced[B] = 0;
#endif
        if
        :: version != 0 || mine == 0 -> changes++; mine = changes
        :: else
        fi;
        displace(n);
        version = 0;
#ifndef RELEASE_BY_CLIENT_ONLY
        old = displaced[OTHER(n)]
#endif
    }
}

/* A node that has freed v takes out its location or its displaced copy. */
inline withdraw(n, v)
{
    d_step {
        if
        :: version == v && HAS(locations, n) -> locations = locations & ~ONE(n);
           if
           :: locations == 0 -> version = 0;
#ifdef WITHDRAW_DROPS_DISPLACED
              displaced[A] = 0;
              displaced[B] = 0;
#endif
           :: else
           fi
        :: else
        fi;
        displaced[n] = displaced[n] & ~ONE(v);
        unnamed[n] = unnamed[n] & ~ONE(v);
        v = 0
    }
}

/* The first node that beats after everybody's silence notes when that was. */
#if SILENCE || LOSSES
inline note_silence()
{
    if
    :: DIRECTORY_IS_THERE && now >= beat + 2 -> fell_silent = beat; resumed = now
    :: else
    fi;
    if
    :: DIRECTORY_IS_THERE -> beat = now
    :: else
    fi
}
#endif

/* --- memory of a node ----------------------------------------------------------------------------- */

/* Changes the generation: nobody can read it any more. */
inline free_copy(n, v)
{
    mem[n] = mem[n] & ~ONE(v);
    unnamed[n] = unnamed[n] | ONE(v);
    if
    :: live[n] == v -> live[n] = 0
    :: else
    fi
}

inline free_live(n)
{
    d_step {
        if
        :: live[n] != 0 -> mem[n] = mem[n] & ~ONE(live[n]);
           unnamed[n] = unnamed[n] | ONE(live[n]);
           live[n] = 0
        :: else
        fi
    }
}

/* --- operations ------------------------------------------------------------------------------------ */

/* What the committing node does behind its script. */
inline add_to_recheck_sets(n)
{
#ifndef RELEASE_BY_CLIENT_ONLY
    if
    :: old != 0 -> recheck[OTHER(n)] = recheck[OTHER(n)] | old
    :: old == 0
    fi
#else
    skip
#endif
}

inline pick_old()
{
    d = 1;
    do
    :: !HAS(old, d) -> d++
    :: HAS(old, d) -> break
    od
}

/* RELEASE at m of one of the old copies. BUSY when its own commit has not ended. */
inline release(m)
{
    atomic {
        pick_old();
#ifdef BUSY_IS_SETTLED
        if
        :: committing[m] != d -> free_copy(m, d)
        :: else
        fi;
#else
        committing[m] != d;
        if
        :: HAS(mem[m], d) -> free_copy(m, d)
        :: else
        fi;
#endif
        old = old & ~ONE(d);
        d = 0
    }
}

#if defined(BEAT_IGNORED) || !(SILENCE || LOSSES)
#define NODES_BEAT true
#else
#define NODES_BEAT (now < beat + 2)
#endif
#if defined(RESUMED_IGNORED) || !(SILENCE || LOSSES)
#define NO_SILENCE_LATELY true
#else
#define NO_SILENCE_LATELY (now >= resumed + TTL)
#endif

/* Found missing at a beat of its own, a heartbeat ago. m's own word about itself is not asked for. */
#if SILENCE && !defined(EXPIRED_AT_ONCE)
#define FOUND_MISSING(q) (missing_since[q] != 0 && now > missing_since[q])
#else
#define FOUND_MISSING(q) true
#endif
#ifdef NO_WAIT_FOR_EXPIRY
#define LOOKS_GONE(m) true
#elif defined(RETURNING_IS_GONE)
#define LOOKS_GONE(m) (listed[m] != UP)
#else
#define LOOKS_GONE(m) (listed[m] == GONE && FOUND_MISSING(OTHER(m)))
#endif

#ifdef SETTLED_IGNORES_LOCATIONS
#define LOCATION_IS_OVER is_over
#else
#define LOCATION_IS_OVER false
#endif
#ifdef LOCATION_EXPIRES
#define LOCATION_MAY_EXPIRE true
#else
#define LOCATION_MAY_EXPIRE false
#endif

/* Asks node q about one of the old copies at m, and strikes it out if nobody can read it any more. */
inline ask_settled(q, m)
{
    /* The record. */
    atomic {
        pick_old();
        if
        :: !IS_SETTLED(q)
        :: IS_SETTLED(q) ->
           NOTE_ID(q);
           is_over = !HAS(displaced[m], d);
#ifdef SETTLED_IGNORES_NAMED
           is_over = true;
#endif
#ifdef SUPERSEDED_IS_SETTLED
           is_over = is_over || order[version] > mine;
#endif
           may_be_gone = !is_over;
#if LOSSES
           if /* Its node has published it again: nothing but to remove or replace it again helps. */
           :: version == d && HAS(locations, m) -> is_over = LOCATION_IS_OVER; may_be_gone = LOCATION_MAY_EXPIRE
           :: else
           fi
#endif
        fi
    };
    /* The node's record, and whether the directory is calm. */
    atomic {
        if
        :: may_be_gone ->
#if KILLS
           if
           :: listed[m] && epoch_listed[m] && HAS(held_before[m], d) -> is_over = true;
              displaced[m] = displaced[m] & ~ONE(d)
           :: else
           fi;
#endif
           may_be_gone = LOOKS_GONE(m);
#ifndef CALM_READ_LATER /* both in one step of Redis's: the node may be back when calm has returned */
           may_be_gone = may_be_gone && NODES_BEAT && NO_SILENCE_LATELY
#endif
        :: else
        fi
    };
    /* The directory hash and its id, behind both. */
    atomic {
        if
        :: may_be_gone && NODES_BEAT && NO_SILENCE_LATELY -> is_over = true
        :: else
        fi;
        if
        :: is_over && IS_STILL_SETTLED(q) -> old = old & ~ONE(d)
        :: else
        fi;
        may_be_gone = false;
        is_over = false;
        d = 0
    }
}

/* The client, behind the answer. */
inline end_old_copies(n)
{
    do
    :: old == 0 -> break
    :: old != 0 -> release(OTHER(n))
    :: old != 0 ->
#if LOSSES
       if
       :: ask_settled(A, OTHER(n))
       :: ask_settled(B, OTHER(n))
       fi
#else
       ask_settled(n, OTHER(n))
#endif
    od
}

inline begin_commit(n, v)
{
    atomic {
        committing[n] == 0;
        committing[n] = v;
#if KILLS
        had[n] = had[n] | ONE(v);
#endif
        mem[n] = mem[n] | ONE(v)
    }
}

/* Live from now on, in place of what the node had. */
inline end_commit(n, v)
{
    d_step {
        if
        :: live[n] != 0 && live[n] != v -> mem[n] = mem[n] & ~ONE(live[n]);
           unnamed[n] = unnamed[n] | ONE(live[n])
        :: else
        fi;
        live[n] = v;
        answered = answered | ONE(v);
        committing[n] = 0;
        asking[n] = false
    }
}

inline fail_commit(n, v)
{
    d_step {
        mem[n] = mem[n] & ~ONE(v);
        unnamed[n] = unnamed[n] | ONE(v);
        committing[n] = 0;
        asking[n] = false
    }
}

#if UNANSWERED
/* COMMIT ends without the answer. Once Redis has run the script, no record names what the key had at n before. So
 * n frees that copy first. */
inline end_in_doubt(n, v)
{
    atomic {
#if !defined(IN_DOUBT_KEEPS_OLDER) && !defined(IN_DOUBT_FREES_LATE)
        free_live(n);
#endif
        mem[n] = mem[n] & ~ONE(v);
        committing[n] = 0
    }
}

/* Redis runs the script before that or after it. Then n withdraws what may have been published. */
inline publish_unanswered(n, v)
{
    if
    :: publish_replace(n, v); end_in_doubt(n, v)
    :: end_in_doubt(n, v); publish_replace(n, v)
    fi;
    atomic {
#ifdef IN_DOUBT_FREES_LATE
        free_live(n);
#endif
        unnamed[n] = unnamed[n] | ONE(v);
        asking[n] = false
    }
}

#endif

/* The node's part of a replace. Unsettled: the reservation waits. */
inline commit(n, v)
{
    begin_commit(n, v);
    do
    :: atomic { committing[n] == v && MAY_ASK(n) && IS_SETTLED(n) -> asking[n] = true; NOTE_ID(n) };
#if UNANSWERED
       if
       :: atomic { unanswered > 0 -> unanswered-- };
          publish_unanswered(n, v);
          goto failed
       :: skip
       fi;
#endif
       publish_replace(n, v);
       add_to_recheck_sets(n);
       atomic {
           if
#ifndef ID_NOT_READ_AGAIN
           :: !(IS_STILL_SETTLED(n)) -> asking[n] = false
           :: IS_STILL_SETTLED(n) ->
#else
           :: true ->
#endif
              end_commit(n, v);
              break
           fi
       }
    :: committing[n] != v -> goto failed /* its node has given it up */
    od
}

#if COPIES == 2
inline join(n, v)
{
    begin_commit(n, v);
    atomic { committing[n] == v && MAY_ASK(n) -> asking[n] = true };
    publish_join(n, v);
    if
    :: ok -> end_commit(n, v)
    :: else -> fail_commit(n, v)
    fi
}

#endif

/* The node's part of a remove. It does not run beside a commit of the same key. */
inline remove(n)
{
#ifndef DELETE_BESIDE_COMMIT
    atomic {
        committing[n] == 0;
        committing[n] = DELETING
    };
#endif
    free_live(n);
    do
    :: atomic { MAY_ASK(n) && IS_SETTLED(n) -> NOTE_ID(n) };
       delete_record(n);
       add_to_recheck_sets(n);
       if
#ifndef ID_NOT_READ_AGAIN
       :: !(IS_STILL_SETTLED(n))
       :: IS_STILL_SETTLED(n) -> break
#else
       :: break
#endif
       fi
    od;
#ifndef DELETE_BESIDE_COMMIT
    committing[n] = 0
#endif
}

proctype Operation(byte v)
{
    byte n, what;
    byte mine;        /* its change */
    byte old;         /* displaced copies at the other node that are not known to be settled */
    byte d;
    bool is_over, may_be_gone;
#if LOSSES
    byte under; /* the directory's id when the script was sent */
#endif
#if COPIES == 2
    bool ok;
#endif
    atomic {
        if
        :: n = A
        :: n = B
        fi;
        what = (v == 2 -> FIRST : OTHERS)
    };
#if KILLS
    bool second = second_run[n];
#endif
    {
        if
        :: what == REPLACE -> commit(n, v)
        :: else -> remove(n)
        fi
    }
#if KILLS
    unless { second_run[n] != second -> goto failed }
#endif
    ;
#if COPIES == 2
    if
    :: what == REPLACE -> join(OTHER(n), v)
    :: else
    fi;
#endif
#if LEAKS
    if
    :: skip
    :: goto failed /* the client is killed */
    fi;
#endif
    end_old_copies(n);
    atomic {
        returned = LARGER(returned, mine);
        d = 1;
        do
        :: d < OPS + 2 ->
           if
           :: order[d] < returned && (d == 1 || order[d] != 0) -> older = older | ONE(d)
           :: else
           fi;
           d++
        :: d == OPS + 2 -> break
        od;
        d = 0
    };
failed:
    skip
}

/* --- a node's heartbeat ----------------------------------------------------------------------------- */

/* Frees what it still has of its recheck set, and takes that out. A copy whose commit has not ended stays. */
inline run_recheck(n)
{
    d_step {
        todo = recheck[n];
        if
        :: committing[n] != 0 && HAS(todo, committing[n]) ->
#ifdef RECHECK_DROPS_PUBLISHING
           recheck[n] = recheck[n] & ~ONE(committing[n]);
#endif
           todo = todo & ~ONE(committing[n])
        :: else
        fi;
        recheck[n] = recheck[n] & ~todo;
        unnamed[n] = unnamed[n] | (todo & mem[n]);
        mem[n] = mem[n] & ~todo;
        if
        :: live[n] != 0 && HAS(todo, live[n]) -> live[n] = 0
        :: else
        fi;
        todo = 0
    }
}

/* Waits for a script whose answer is not back. A commit that waits for the directory is given up. */
inline end_commits(n)
{
#ifndef COMMIT_WHILE_COMPARING
    !asking[n];
    if
    :: committing[n] != 0 && committing[n] != DELETING -> fail_commit(n, committing[n])
    :: else
    fi
#else
    skip
#endif
}

/* Frees all but what the record names as its location. */
inline compare(n)
{
    atomic {
        end_commits(n);
        if
        :: live[n] != 0 && !(HAS(locations, n) && version == live[n]) -> free_live(n)
        :: else
        fi
    }
}

inline free_all(n)
{
    atomic {
        end_commits(n);
        free_live(n)
    }
}

inline list(n, state)
{
#if SILENCE || LOSSES
    note_silence();
    last_beat[n] = now;
#endif
#if SILENCE
    if
    :: listed[OTHER(n)] != GONE -> missing_since[n] = 0
    :: listed[OTHER(n)] == GONE && missing_since[n] == 0 -> missing_since[n] = now
    :: else
    fi;
#endif
    listed[n] = state;
    expires[n] = now + TTL;
    if
    :: listed[n] == UP -> lease_end[n] = LEASE_END(now + TTL)
    :: else
    fi
}

#if LOSSES
inline list_restoring(n, state)
{
    list(n, state);
    restoring_listed[n] = true;
    restoring = true
}

/* Publishes what it holds again. Redis does nothing once the node's record has had time to expire. */
inline restore(n)
{
    d_step {
#ifdef RESTORE_WITHOUT_LIMIT
        todo = live[n];
#else
        todo = (now < expires[n] -> live[n] : 0);
#endif
        if
        :: todo == 0
#ifndef RESTORE_OF_DISPLACED
        :: todo != 0 && HAS(displaced[n], todo) -> mem[n] = mem[n] & ~ONE(todo); live[n] = 0;
           unnamed[n] = unnamed[n] | ONE(todo)
        :: todo != 0 && !HAS(displaced[n], todo) ->
#else
        :: todo != 0 ->
#endif
           if
           :: version == todo -> add_location(n, todo)
           :: version == 0 || (version != todo && born_of[todo] > born) ->
              assert(!HAS(answered, version) || order[version] < order[todo]); /* rule 2 */
              displace(n);
              recheck[OTHER(n)] = recheck[OTHER(n)] | displaced[OTHER(n)];
              version = todo;
              born = born_of[todo];
              add_location(n, todo)
           :: else -> mem[n] = mem[n] & ~ONE(todo); live[n] = 0
           fi
        fi;
        todo = 0
    }
}
#endif

proctype Keeper(byte n)
{
    byte v, todo;
    bool was_calm;
#if LOSSES
    bool restoring, away, in_time, late;
    byte last;
#endif
#if KILLS
    bool second;
again:
    second = second_run[n];
    {
        if
        :: second -> /* its id is free when the record has expired */
           atomic {
               listed[n] == GONE;
               list(n, UP);
               epoch_listed[n] = true
           }
        :: else
        fi;
#endif
serve:
    do
    /* A beat. The script that refreshes writes only over a record that is there. */
    :: atomic {
           expires[n] < now + TTL;
#ifdef REFRESH_RECREATES
           list(n, UP)
#else
           if
           :: listed[n] != GONE -> list(n, listed[n])
           :: else -> goto gone
           fi
#endif
       }
#if LOSSES
       ;
       if
       :: dir != known[n] -> goto directory_lost
       :: else
       fi
#endif
    /* Its recheck set, at every beat. */
    :: recheck[n] != 0 && !(committing[n] && recheck[n] == ONE(committing[n])) -> run_recheck(n)
    :: atomic {
           unnamed[n] != 0;
           v = 1;
           do
           :: !HAS(unnamed[n], v) -> v++
           :: HAS(unnamed[n], v) -> break
           od;
           withdraw(n, v)
       }
    :: atomic { evictions > 0 && live[n] != 0 -> evictions--; free_live(n) }
#if LOSSES
    :: atomic {
           settled[n] != dir && known[n] == dir && MAY_BE_SETTLED -> settled[n] = dir
       }
#endif
    od;

gone: /* it was given up */
#if LOSSES
    if
    :: dir != known[n] -> goto directory_lost
    :: dir == known[n]
    fi;
    if
    :: restoring -> free_all(n); atomic { restoring = false; restoring_listed[n] = false }
    :: else
    fi;
    away = true;
#endif
    atomic {
#if SILENCE
        note_silence();
        was_calm = (fell_silent < last_beat[n] + TTL && now < resumed + 2);
#endif
#ifdef RETURNING_IS_UP
        list(n, UP);
#else
        list(n, (was_calm -> UP : RETURNING));
#endif
        if /* nobody can have been given up yet: its recheck set is enough */
        :: was_calm -> was_calm = false; goto serve
        :: else
        fi
    };
    compare(n);
    run_recheck(n);
up:
    atomic {
        if
        :: listed[n] != GONE -> list(n, UP);
#if LOSSES
           restoring_listed[n] = false;
           restoring = false;
           away = false
#endif
        :: else -> goto gone
        fi
    };
    goto serve;

#if LOSSES
directory_lost: /* makes a new one, or marks the one that it finds */
    atomic {
        last = last_beat[n];
        if
        :: dir == 0 -> dir = known[n] + 1; lost = true; since = now; lived = last; beat = now
        :: dir != 0 && !lost -> lost = true; since = now; lived = last
        :: else -> lived = LARGER(lived, last)
        fi;
        told[n] = !IS_OLD_ENOUGH;
        known[n] = dir;
        settled[n] = 0;
        in_time = (now < last + TTL);
#ifndef LATE_RESTORES
        late = IS_OLD_ENOUGH
#endif
    };
    if
    :: restoring || away -> free_all(n)
    :: else
    fi;
    /* A record that says `restoring` is made only while the directory is new, by Redis's clock. */
    atomic {
#if !defined(LISTED_LATE) && !defined(LATE_RESTORES)
        late = IS_OLD_ENOUGH;
#endif
        if
        :: late
        :: !late && in_time -> list_restoring(n, UP)
        :: !late && !in_time -> list_restoring(n, RETURNING)
        fi
    };
    if
    :: late -> free_all(n); list(n, UP)
    :: !late && in_time -> restore(n)
    :: !late && !in_time ->
       do
       :: IS_OLD_ENOUGH -> break
       :: atomic {
              expires[n] < now + TTL && !IS_OLD_ENOUGH;
              if
              :: listed[n] != GONE -> list(n, listed[n])
              :: else -> goto gone
              fi
          }
       od;
#ifdef LIVED_IGNORED
       restore(n)
#else
       if
       :: lived >= last + 2 -> free_all(n)
#ifndef TOLD_IGNORED
       :: lived < last + 2 && !told[OTHER(n)] -> free_all(n)
#endif
       :: else -> restore(n)
       fi
#endif
    fi;
    atomic { last = 0; in_time = false; late = false };
    goto up
#endif
#if KILLS
    } unless { second_run[n] != second };
    goto again
#endif
}

/* --- everything else --------------------------------------------------------------------------------- */

/* A tick: what has expired is gone. */
proctype Time()
{
    do
    :: d_step {
           now < END ->
           now++;
           if
           :: expires[A] == now -> listed[A] = GONE
           :: else
           fi;
           if
           :: expires[B] == now -> listed[B] = GONE
           :: else
           fi
       }
    od
}

/* Rule 1. */
proctype Reader()
{
    atomic { STALE(A) || STALE(B) -> assert(false) }
}

#if KILLS
proctype Killer()
{
    byte n;
    atomic {
        if
        :: n = A
        :: n = B
        fi;
        held_before[n] = had[n];
        mem[n] = 0;
        live[n] = 0;
        committing[n] = 0;
        asking[n] = false;
        unnamed[n] = 0;
        second_run[n] = true
    }
}
#endif

#if LOSSES
/* Redis comes back empty. */
proctype Loss()
{
    d_step {
        now >= START + LOSS_AFTER;
        version = 0;
        born = 0;
        locations = 0;
        displaced[A] = 0;
        displaced[B] = 0;
        recheck[A] = 0;
        recheck[B] = 0;
        listed[A] = GONE;
        listed[B] = GONE;
        restoring_listed[A] = false;
        restoring_listed[B] = false;
        dir = 0;
        told[A] = false;
        told[B] = false;
        lost = false;
        since = 0;
        lived = 0;
        beat = 0;
        fell_silent = 0;
        resumed = 0
    }
}
#endif

#if LEAKS
/* Rule 3. */
proctype Rest()
{
    timeout;
    assert((mem[A] & ~(HAS(locations, A) -> ONE(version) : 0)) == 0);
    assert((mem[B] & ~(HAS(locations, B) -> ONE(version) : 0)) == 0);
    assert(displaced[A] == 0 && displaced[B] == 0)
}
#endif

init
{
    atomic {
        mem[B] = ONE(1);
        live[B] = 1;
        known_to_readers[B] = ONE(1);
        born_of[1] = 2;
#if KILLS
        had[B] = ONE(1);
#endif
        run Time();
        run Reader();
#if KILLS
        run Killer();
#endif
#if LOSSES
        run Loss();
#endif
#if LEAKS
        run Rest();
#endif
        run Keeper(A);
        run Keeper(B);
        byte i = 0;
        do
        :: i < OPS -> run Operation(i + 2); i++
        :: i == OPS -> break
        od
    }
}
