/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease protocol of windows: client/window/lent.c, client/window/lender.c, client/window/move.c,
 * client/known.c, transport/shm/shm_link.c, transport/tcp/tcp_node_window.c, transport/rdma/rdma_node.c.
 *
 * One window with two slots. Slot 0 is leased, recalled, used by the lender itself, leased anew and recalled
 * again. Slot 1 has one lease, which lasts or is recalled by another thread. Two peers move bytes under these
 * leases, of which they may have heard long ago. A process may stop at any step, for any time or for ever; so
 * paused peers and late messages need no lines of their own.
 *
 * What the runs of a slot hold says who put it there: LENT(l) the lender with lease l, PUT(l) a peer under
 * lease l, OWN(l) the lender after lease l.
 *
 * Rules:
 * 1. after recall() has returned 0 no byte is written under that lease;
 * 2. a read that returns 0 has seen only bytes of its own lease;
 * 3. a write that has returned 0 is in the runs when recall() returns 0;
 * 4. a notification is seen only when its bytes are;
 * 5. recall() returns 0 once no peer is in the middle of a copy within the host. Until then it is BUSY.
 *
 * Memory is sequentially consistent: slot.pml has weaker orders, and marks are made as the hazards of views.
 * What happens under lent.lock is one step, and so is what the lender's thread does for a command.
 *
 * Configurations: BY = SHM (stands for cuda_ipc, too) | TCP | RDMA | READS (by rdma). OPS: how often a peer
 * moves bytes or lets go of a reach. LEASES = 2 (of slot 0) | 3. SESSIONS = 1 (the peers are threads of one
 * client) | 2. TTL: the first lease may also end by its time. Broken rules: the other names in #ifdef.
 */
#define SHM 1
#define TCP 2
#define RDMA 3
#define READS 4
#ifndef OPS
#define OPS 2
#endif
#ifndef LEASES
#define LEASES 2
#endif
#ifndef SESSIONS
#define SESSIONS 2
#endif
#define PEERS 2

/* Of reach r: 0 and 1 are of the leases of slot 0, 2 is of that of slot 1. */
#define SLOT(r) ((r) / 2)
#define LEASE(r) ((r) % 2 + 1)
#ifdef GEN_AGAIN
#define GEN(r) 2
#else
#define GEN(r) (2 * LEASE(r))
#endif
#define RUNS(s, word) runs[2 * (s) + (word)]
#define LENT(l) (l)
#define PUT(l) (10 + (l))
#define OWN(l) (20 + (l))

byte gen[2] = 2;
byte runs[4] = LENT(1); /* two words of each slot */
byte granted[2] = 1;    /* the last lease that peers may have heard of */
byte returned[2];       /* the last lease whose recall() returned 0 */
byte acked[2];          /* the last lease under which a write returned 0 */
byte told[2];           /* the last lease of which the lender has a notification */
byte ended;             /* threads of the lender that have come to their end */

/* struct tarn_lease, struct tarn_lent_page */
byte pins[2];
byte mark[PEERS];     /* in the session's hazard page: slot + 1 */
bool dropped[PEERS];  /* the lender has dropped the page */

/* Rule 1. */
inline put(r, word)
{
    d_step {
        assert(returned[SLOT(r)] < LEASE(r));
        RUNS(SLOT(r), word) = PUT(LEASE(r))
    }
}

/* Rule 2. */
#define OF(l, word) ((word) == LENT(l) || (word) == PUT(l))
inline read_returns_0(r)
{
    assert(OF(LEASE(r), word0) && OF(LEASE(r), word1))
}

/* --- keys ----------------------------------------------------------------------------------------- */

bool control;         /* the lender's thread is at work */
byte key = 1;         /* of the window's registration; others are void */
byte pass = 1;        /* struct tarn_window_grant; all sessions may have the same */
byte ends, cut;       /* struct tarn_window */
byte entered[6];      /* struct tarn_lent_writer, by session and reach */
bool gone[PEERS];     /* the session is over */

#define ENTERED(session, r) entered[(session) * 3 + (r)]
#define COUNTS(session, r) (ENTERED(session, r) > 0 && !gone[session])

/* lent.c: renew_passes() */
inline renew_passes()
{
    i = 0;
    do
    :: i < 6 -> entered[i] = 0; i++
    :: else -> break
    od;
    i = 0;
#ifndef PASS_STAYS
    pass++
#endif
}

/* lender.c: cut_window(); lent.c: tarn_lent_cut(); rdma_node.c: rdma_cut() */
inline cut_keys()
{
    atomic { !control -> control = true };
#ifdef ENTER_BEFORE_NEW_PASS
    d_step { key++; control = false };
#endif
    d_step {
        want = ends;
        due = (cut != want);
        if
        :: due -> renew_passes()
        :: else
        fi
    };
#ifndef ENTER_BEFORE_NEW_PASS
    if
    :: due -> key++
    :: else
    fi;
#endif
    d_step { cut = want; want = 0; control = false }
}

/* --- recall --------------------------------------------------------------------------------------- */

/* lent.c: end(), tarn_lent_end() */
inline end_lease(r)
{
    d_step {
#ifdef RECALL_LEAVES_THE_CUT
        due = false;
#endif
        if
        :: gen[SLOT(r)] == GEN(r) ->
#ifndef GEN_CHANGES_LAST
           gen[SLOT(r)]++;
#endif
#ifdef RECALL_LEAVES_THE_CUT
           due = COUNTS(0, r) || COUNTS(1, r);
#endif
           ends = ends + (COUNTS(0, r) || COUNTS(1, r))
        :: else
        fi;
#ifndef RECALL_LEAVES_THE_CUT
        due = (cut != ends)
#endif
    }
}

/* lent.c: marked_by() */
#ifdef MARKS_LEFT
#define MARKED(peer, s) false
#else
#define MARKED(peer, s) (mark[peer] == (s) + 1 && !dropped[peer])
#endif
#ifdef PINS_LEFT
#define QUIET(s) true
#else
#define QUIET(s) (pins[s] == 0 && !MARKED(0, s) && !MARKED(1, s))
#endif

/* lender.c: tarn_lender_recall(); lent.c: await_quiet(). Then the lender uses the runs. */
inline recall(r)
{
#ifdef LOOKS_FIRST
    QUIET(SLOT(r));
#endif
    end_lease(r);
#ifndef KEYS_STAY
    if
    :: due -> cut_keys()
    :: else
    fi;
#endif
#ifndef LOOKS_FIRST
    QUIET(SLOT(r));
#endif
    d_step {
        due = false;
        /* Rule 3. */
        assert(acked[SLOT(r)] != LEASE(r) || (RUNS(SLOT(r), 0) == PUT(LEASE(r)) && RUNS(SLOT(r), 1) == PUT(LEASE(r))));
        returned[SLOT(r)] = LEASE(r);
        RUNS(SLOT(r), 0) = OWN(LEASE(r));
        RUNS(SLOT(r), 1) = OWN(LEASE(r))
    };
#ifdef GEN_CHANGES_LAST
    gen[SLOT(r)]++
#endif
}

/* lent.c: tarn_lent_begin() */
inline lease_anew(r)
{
    d_step {
        RUNS(SLOT(r), 0) = LENT(LEASE(r));
        RUNS(SLOT(r), 1) = LENT(LEASE(r));
        gen[SLOT(r)] = GEN(r);
        granted[SLOT(r)] = LEASE(r)
    }
}

active proctype Lender()
{
    byte i, want;
    bool due;
    recall(0);
    lease_anew(1);
#ifndef ONCE
    recall(1);
#endif
    ended++
}

#if LEASES == 3
/* Another thread of the application. */
active proctype Other()
{
    byte i, want;
    bool due;
    if
    :: recall(2)
    :: skip
    fi;
    ended++
}
#endif

#ifdef TTL
/* lent.c: tarn_lent_expire() */
active proctype Expiry()
{
    byte i, want;
    bool due;
    end_lease(0);
    cut_keys()
}
#endif

#if BY == SHM || BY == TCP
/* lent_notify.c: rule 4. By rdma, NOTIFY follows the answers. */
active proctype Expect()
{
    d_step {
        told[0] != 0 ->
        if
        :: gen[0] == 2 * told[0] -> assert(runs[0] == PUT(told[0]) && runs[1] == PUT(told[0]))
        :: else
        fi
    }
}
#endif

/* --- within the host: shm_link.c, share.c --------------------------------------------------------- */

#if BY == SHM
bool killed;

/* tarn_share_hazard_claim() */
inline claim(r)
{
#ifdef GEN_BEFORE_MARK
    x = gen[SLOT(r)];
    mark[me] = SLOT(r) + 1
#else
#ifndef NO_MARK
    mark[me] = SLOT(r) + 1;
#endif
    x = gen[SLOT(r)]
#endif
#ifdef GEN_NOT_COMPARED
    ;
    x = GEN(r)
#endif
}

inline copy_in(r)
{
#ifdef TOLD_FIRST
    told[SLOT(r)] = LEASE(r);
#endif
#ifdef MARK_CLEARED_FIRST
    mark[me] = 0;
#endif
    put(r, 0);
    put(r, 1);
    told[SLOT(r)] = LEASE(r); /* notices.c: tarn_notices_push() */
    d_step { mark[me] = 0; acked[SLOT(r)] = LEASE(r) }
}

inline copy_out(r)
{
    word0 = RUNS(SLOT(r), 0);
    word1 = RUNS(SLOT(r), 1);
    d_step {
        mark[me] = 0;
        read_returns_0(r);
        word0 = 0;
        word1 = 0
    }
}

/* move_marked() */
inline move(r)
{
    claim(r);
    if
    :: x == GEN(r) -> copy_in(r)
    :: x == GEN(r) -> copy_out(r)
    :: x != GEN(r) -> mark[me] = 0
    fi;
    x = 0
}

proctype Peer(byte me)
{
    byte x, word0, word1, n;
    {
        do
        :: n < OPS -> n++; move(0)
        :: n < OPS && granted[0] == 2 -> n++; move(1)
        :: break
        od
    } unless {
        killed && me == 0
    }
}

/* One peer is killed, or goes on though its connections have ended. host/session.c: process_exited() */
active proctype Session()
{
    if
    :: killed = true;
#ifndef PAGE_STAYS
       dropped[0] = true
#endif
#ifdef PAGE_DROPPED_EARLY
    :: dropped[0] = true
#endif
    :: skip
    fi
}
#endif

/* --- by threads of the lender: tcp_node_window.c ------------------------------------------------- */

#if BY == TCP
/* lent.c: guard_pin(), guard_unpin() */
inline pin(r)
{
    d_step {
        ok = ok && gen[SLOT(r)] == GEN(r);
        pins[SLOT(r)] = pins[SLOT(r)] + ok
    }
}

inline unpin(r)
{
    pins[SLOT(r)] = pins[SLOT(r)] - ok
}

/* The client may be silent for ever. */
inline wait_for_client()
{
    if
    :: skip
    :: silent = true; !silent
    fi
}

inline receive_part(r, word)
{
    if
    :: ok -> put(r, word)
    :: else /* dropped */
    fi
}

/* tarn_tcp_window_room(): pinned for one system call at a time. */
inline receive(r)
{
    ok = true;
    pin(r);
    receive_part(r, 0);
#if defined(PINNED_FOR_ALL)
    wait_for_client();
#elif defined(PINNED_ONCE)
    unpin(r);
    wait_for_client();
    pins[SLOT(r)] = pins[SLOT(r)] + ok;
#else
    unpin(r);
    wait_for_client();
    pin(r);
#endif
    receive_part(r, 1);
    unpin(r);
    d_step {
        if
        :: ok && gen[SLOT(r)] == GEN(r) -> told[SLOT(r)] = LEASE(r)
        :: else
        fi;
        if
        :: ok -> acked[SLOT(r)] = LEASE(r)
        :: else
        fi
    }
}

inline send_part(r, word, to)
{
    pin(r);
    if
    :: ok -> to = RUNS(SLOT(r), word)
    :: else -> to = 0
    fi;
    unpin(r)
}

/* tarn_tcp_window_gather(): zeros when the lease has ended, and the verdict behind them. */
inline send(r)
{
    ok = true;
    send_part(r, 0, word0);
    wait_for_client();
    send_part(r, 1, word1);
    d_step {
#ifdef VERDICT_FORGOTTEN
        ok = true;
#endif
        if
        :: ok -> read_returns_0(r)
        :: else
        fi;
        word0 = 0;
        word1 = 0
    }
}

/* A thread of the lender, with the connection of one peer. */
proctype Peer(byte me)
{
    byte word0, word1, n;
    bool ok, silent;
    do
    :: n < OPS ->
       n++;
       if
       :: receive(0)
       :: send(0)
       :: granted[0] == 2 -> receive(1)
       :: granted[0] == 2 -> send(1)
       fi
    :: break
    od
}
#endif

/* --- reads by a device: rdma_lane.c --------------------------------------------------------------- */

#if BY == READS
inline get(r)
{
    word0 = RUNS(SLOT(r), 0);
    word1 = RUNS(SLOT(r), 1);
    d_step {
#ifndef GEN_NOT_COMPARED
        if
        :: gen[SLOT(r)] == GEN(r) -> read_returns_0(r)
        :: else
        fi;
#else
        read_returns_0(r);
#endif
        word0 = 0;
        word1 = 0
    }
}

inline get_gen_first(r)
{
    if
    :: gen[SLOT(r)] == GEN(r) ->
       word0 = RUNS(SLOT(r), 0);
       word1 = RUNS(SLOT(r), 1);
       d_step { read_returns_0(r); word0 = 0; word1 = 0 }
    :: else
    fi
}

proctype Peer(byte me)
{
    byte word0, word1, n;
    do
    :: n < OPS ->
       n++;
       if
#ifdef GEN_BEFORE_BYTES
       :: get_gen_first(0)
#endif
       :: get(0)
       :: granted[0] == 2 -> get(1)
       fi
    :: break
    od
}
#endif

/* --- writes by a device: known.c, move.c, rdma_node.c --------------------------------------------- */

#if BY == RDMA
byte wire[PEERS];     /* reach + 1 of a write that was posted */
byte wire_key[PEERS];
byte answer[PEERS];   /* DONE or VOID */
bool cut_off[PEERS];  /* the lender has stopped the queue pair */
#define DONE 1
#define VOID 2
#define SESSION(peer) ((peer) * (SESSIONS - 1))

chan leaves = [PEERS * OPS] of { byte, byte, byte, byte }; /* session, reach, pass, times */

/* lent.c: tarn_lent_leave() */
#ifdef LEAVE_OF_OLD_PASS
#define LEAVES_KEYS true
#else
#define LEAVES_KEYS (under == pass)
#endif
inline leave()
{
    if
    :: gen[SLOT(r)] == GEN(r) && LEAVES_KEYS ->
#ifdef LEAVES_FOR_ALL
       ENTERED(session, r) = 0
#else
       ENTERED(session, r) = ENTERED(session, r) - (times < ENTERED(session, r) -> times : ENTERED(session, r))
#endif
    :: else
    fi
}

active proctype Leave()
{
    byte session, r, under, times;
end:
    do
    :: atomic {
           !control && nempty(leaves) -> leaves?session, r, under, times;
           leave();
           session = 0; r = 0; under = 0; times = 0
       }
    od
}

/* What was posted arrives at any time later, whatever the peer does meanwhile. */
inline arrive(peer)
{
    d_step {
        wire[peer] != 0 ->
        if
        :: cut_off[peer]
        :: !cut_off[peer] && wire_key[peer] == key ->
           assert(returned[SLOT(wire[peer] - 1)] < LEASE(wire[peer] - 1)); /* rule 1 */
           RUNS(SLOT(wire[peer] - 1), 0) = PUT(LEASE(wire[peer] - 1));
           RUNS(SLOT(wire[peer] - 1), 1) = PUT(LEASE(wire[peer] - 1));
           answer[peer] = DONE
        :: !cut_off[peer] && wire_key[peer] != key -> answer[peer] = VOID
        fi;
        wire_key[peer] = 0;
        wire[peer] = 0
    }
}

active proctype Device()
{
end:
    do
    :: arrive(0)
    :: arrive(1)
    od
}

/* lender.c: command_enter(); lent.c: tarn_lent_enter(); known.c: entered() */
inline enter(r)
{
    !control;
    if
    :: gen[SLOT(r)] == GEN(r) && !cut_off[me] ->
#ifndef ENTERS_UNSEEN
       ENTERED(SESSION(me), r)++;
#endif
       got_pass = pass;
       times[r] = (lease_pass[r] == pass -> times[r] + 1 : 1);
       lease_pass[r] = pass;
       link_pass = pass;
       link_key = key
    :: else -> got_pass = 0 /* STALE */
    fi
}

/* tarn_link_know() */
#ifdef KEYS_SERVE_ANY_LEASE
#define KNOWN(r) (link_pass != 0)
#else
#define KNOWN(r) (link_pass != 0 && lease_pass[r] == link_pass)
#endif
inline know(r)
{
    got_pass = link_pass;
    if
    :: KNOWN(r)
    :: else -> enter(r)
    fi
}

/* move.c: post(), landed(). To post is no step of its own, since what was posted may arrive late. A link that
 * has met a void key is closed; the next one has no keys. */
inline write(r)
{
    atomic {
        know(r);
        if
        :: got_pass != 0 -> wire_key[me] = link_key; wire[me] = r + 1
        :: else
        fi
    };
    if
    :: got_pass == 0
    :: d_step { answer[me] == DONE -> answer[me] = 0; acked[SLOT(r)] = LEASE(r) }
    :: d_step { answer[me] == VOID -> answer[me] = 0; link_pass = 0; link_key = 0 }
    :: d_step { got_pass != 0 -> doubt[r] = true; silent = true } /* its deadline, or a broken link */
#ifdef ACKED_WHEN_POSTED
    :: d_step { got_pass != 0 -> acked[SLOT(r)] = LEASE(r); silent = true }
#endif
    fi;
    got_pass = 0
}

/* reach.c: tarn_reach_free(); known.c: tarn_link_leave(). The lease may be reached again. */
#ifdef LEAVES_IN_DOUBT
#define LEAVES(r) (times[r] > 0)
#else
#define LEAVES(r) (times[r] > 0 && !doubt[r])
#endif
inline let_go(r)
{
    atomic {
        if
        :: LEAVES(r) -> leaves!SESSION(me), r, lease_pass[r], times[r]
        :: else
        fi;
        lease_pass[r] = 0;
        times[r] = 0
    }
}

/* A thread of a client, with a link of its own. It writes no more when a write of it is in doubt. */
proctype Peer(byte me)
{
    byte n, link_pass, link_key, got_pass, lease_pass[3], times[3];
    bool doubt[3], silent;
    do
    :: n < OPS && !silent -> n++; write(0)
    :: n < OPS && !silent && granted[0] == 2 -> n++; write(1)
    :: n < OPS && times[0] > 0 -> n++; let_go(0)
    :: n < OPS && times[1] > 0 -> n++; let_go(1)
#if LEASES == 3
    :: n < OPS && !silent -> n++; write(2)
    :: n < OPS && times[2] > 0 -> n++; let_go(2)
#endif
    :: break
    od;
    atomic { /* fewer states */
        n = 0;
        do
        :: n < 3 -> lease_pass[n] = 0; times[n] = 0; doubt[n] = false; n++
        :: else -> break
        od;
        link_pass = 0;
        link_key = 0;
        silent = false;
        n = 0
    }
}

#ifdef SESSION_ENDS
/* host/session.c: session_free() stops queue pairs, then tells. */
active proctype Session()
{
    if
    :: skip
#ifdef GONE_BEFORE_CUT_OFF
    :: gone[0] = true;
       cut_off[0] = true
#else
    :: cut_off[0] = true;
       gone[0] = true
#endif
    fi
}
#endif
#endif

init
{
    atomic {
        run Peer(0);
        run Peer(1)
    }
}

/* Rule 5: when nothing can go on, all leases have been recalled. */
active proctype End()
{
    timeout;
    assert(ended == LEASES - 1)
}
