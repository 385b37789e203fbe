/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot protocol: transport/shm/shm_link.c, transport/share.c, server/store/guard.c, server/store/reclaim.c, server/store/reserve.c.
 *
 * One slot, one extent of two words. The node retires the object of generation 2, gives the extent to client
 * A (generation 3), later to client B (generation 5). The bytes put for the object of generation g are the
 * number g.
 *
 * Rules:
 * 1. bytes that a reader takes for those of generation g are those put for g;
 * 2. nobody writes a word of an extent that is not his reservation (or was, until he let go of it);
 * 3. the extent comes back: the node always gets to its end when no reader and no writer holds it.
 *
 * Memory is that of C11 without out-of-thin-air values. gen and the two words have histories; a thread has a
 * *view*: of each history the oldest entry that it may still read. A relaxed load takes any entry from there
 * on. An entry carries the view that its writer had published (release); an acquire load joins it. A seq_cst
 * load reads nothing older than the last seq_cst store to the same word. Pins and hazards are seq_cst only,
 * so they are plain variables with a view. A load never overtakes a store that follows it here; where that
 * matters (DROP_RELAXED) the swap is written out.
 *
 * A socket: what was fenced before the send is seen after the receive, and no more.
 *
 * Configurations: READER = GET | VIEW | PIN; WRITER = SHM | TCP. Broken rules: the names in #ifdef.
 */
#define GET 1 /* shm: compare gen, copy, fence, compare gen */
#define VIEW 2 /* shm: hazard entry, compare gen, use */
#define PIN 3 /* a thread of the node: pin, compare gen, send */
#define SHM 1
#define TCP 2
#ifndef READER
#define READER GET
#endif
#ifndef WRITER
#define WRITER SHM
#endif

/* --- memory ------------------------------------------------------------------------------------- */

/* Histories: gen, then the two words. A view has 3 bits for each. */
#define GEN 0
#define WORD 1
#define ENTRIES 8
byte val[24] = 2; /* at the start each history has one entry, 2 */
short published[24]; /* the view that comes with the entry */
byte length[3] = 1;
byte sc[3]; /* the entry of the last seq_cst store */

#define FIELD(view, h) (((view) >> (3 * (h))) & 7)
#define WITH(view, h, i) (((view) & ~(7 << (3 * (h)))) | ((i) << (3 * (h))))
#define LARGER(a, b) ((a) > (b) -> (a) : (b))
#define JOIN(a, b) (LARGER((a) & 7, (b) & 7) | LARGER((a) & 56, (b) & 56) | LARGER((a) & 448, (b) & 448))
#define NEWEST(h) val[(h) * ENTRIES + length[h] - 1]

#define RELAXED 0
#define ORDERED 1 /* acquire for a load, release for a store */
#define SEQ_CST 2

/* Of a thread. cur: its view. seen: what an acquire fence would add. fenced: its view at its last release fence. */
#define THREAD                                                                                               \
    byte i;                                                                                                  \
    short cur, seen, fenced

inline load(h, order, x)
{
    atomic {
        i = FIELD(cur, h);
        if
        :: order == SEQ_CST && sc[h] > i -> i = sc[h]
        :: else
        fi;
        do
        :: i < length[h] - 1 -> i++
        :: break
        od;
        x = val[(h) * ENTRIES + i];
        cur = WITH(cur, h, i);
        seen = JOIN(seen, published[(h) * ENTRIES + i]);
        if
        :: order != RELAXED -> cur = JOIN(cur, published[(h) * ENTRIES + i])
        :: else
        fi;
        i = 0
    }
}

inline store(h, order, x)
{
    d_step {
        cur = WITH(cur, h, length[h]);
        val[(h) * ENTRIES + length[h]] = x;
        published[(h) * ENTRIES + length[h]] = WITH(((order) == RELAXED -> fenced : cur), h, length[h]);
        if
        :: order == SEQ_CST -> sc[h] = length[h]
        :: else
        fi;
        length[h]++
    }
}

inline acquire_fence()
{
    cur = JOIN(cur, seen)
}

inline release_fence()
{
    fenced = cur
}

/* Words that are seq_cst throughout: the value, and the view of those who wrote it. */
byte readers, writers, session, hazard, used;
short readers_view, writers_view, hazard_view;

/* --- what travels over sockets ------------------------------------------------------------------ */

byte granted;                   /* the generation that is reserved for a client */
bool committed_a, committed_b;  /* COMMIT was sent */
short committed_view;
bool lost;                      /* A's connection broke */
bool killed, exited;            /* A's process */
bool ended;                     /* the node came to its end */
byte holder;                    /* whose reservation the extent is; 0: an object's */

/* --- the node's control thread ------------------------------------------------------------------- */

#ifdef GEN_RELAXED
#define GEN_ORDER RELAXED
#else
#define GEN_ORDER SEQ_CST
#endif

inline retire(to)
{
#ifndef GEN_AT_FREEING
    store(GEN, GEN_ORDER, to)
#else
    skip
#endif
}

/* Nobody announced himself: neither pins nor hazard entries. In limbo until then. */
inline wait_idle()
{
#ifndef REUSE_AT_ONCE
    do
    :: d_step { readers == 0 -> cur = JOIN(cur, readers_view) };
       d_step { writers == 0 -> cur = JOIN(cur, writers_view) };
       in_use = used;
       if
       :: in_use == 0 || hazard == 0 -> cur = JOIN(cur, hazard_view); break
       :: else
       fi
    od
#else
    skip
#endif
}

inline reclaim(to)
{
#ifdef PINS_BEFORE_GEN
    wait_idle();
    retire(to)
#else
    retire(to);
    wait_idle()
#endif
}

inline reserve(gen, who)
{
    session = who;
    holder = gen;
    granted = gen
#ifdef GEN_AT_FREEING
    ;
    store(GEN, GEN_ORDER, gen)
#endif
}

/* COMMIT: takes the slot from its writers, then looks for them. */
inline commit(who, gen)
{
    do
    :: session = 0;
#ifndef COMMIT_IGNORES_WRITERS
       if
       :: d_step { writers == 0 -> cur = JOIN(cur, writers_view) }; break
       :: writers != 0 -> session = who
       fi
#else
       break
#endif
    od;
    holder = 0;
    store(GEN, GEN_ORDER, gen)
}

active proctype Node()
{
    THREAD;
    byte in_use;
    reclaim(3);
    reserve(3, 1);
    if
    :: atomic { committed_a -> cur = JOIN(cur, committed_view) };
       commit(1, 4)
#ifdef RECLAIM_AT_DISCONNECT
    :: lost
#elif WRITER == SHM
    :: exited
#else
    :: lost
#endif
    fi;
    /* Either an object that is removed, or a reservation whose session is gone. */
    granted = 0;
    reclaim(5);
    session = 0;
    reserve(5, 2);
    atomic { committed_b -> cur = JOIN(cur, committed_view) };
    commit(2, 6);
    ended = true
}

/* --- writers -------------------------------------------------------------------------------------- */

/* Rule 2. */
inline write(word, gen)
{
    atomic {
        assert(holder == gen);
        store(WORD + word, RELAXED, gen + 1)
    }
}

/* put: gen is looked at, then bytes are copied. Without the first fence a reader may see a byte of this put and
 * not the generation under which it was made. */
inline put_by_shm(gen)
{
    load(GEN, ORDERED, x);
    if
    :: x == gen ->
#ifndef NO_FENCE_BEFORE_PUT
       release_fence();
#endif
       write(0, gen);
       write(1, gen);
#ifndef NO_FENCE_AFTER_PUT
       release_fence();
#endif
       ok = true
    :: else
    fi
}

/* The same by a thread of the node that receives the bytes. The kernel copies them: a system call is taken as a
 * fence. */
inline put_by_tcp(gen, who)
{
#ifdef SESSION_BEFORE_PIN
    ok = (session == who);
    writers++;
#else
    writers++;
    ok = true;
#endif
    load(GEN, SEQ_CST, x);
#ifndef SESSION_BEFORE_PIN
#ifndef SESSION_IGNORED
    ok = (session == who);
#endif
#endif
    if
    :: ok && x == gen ->
       release_fence();
       write(0, gen);
       write(1, gen);
       release_fence()
    :: else -> ok = false
    fi;
    d_step {
        writers_view = JOIN(writers_view, cur);
        writers--
    }
}

/* A puts, then commits. It may lose its connection and not know, or die. By tcp it may repeat a put whose answer did
 * not come, and commit while the first one's bytes are still on their way. */
active proctype A()
{
    THREAD;
    byte x;
    bool ok;
    {
        granted == 3;
#if WRITER == SHM
        put_by_shm(3);
#else
        put_by_tcp(3, 1);
#endif
        if
        :: ok && !lost -> d_step { committed_view = fenced; committed_a = true }
        :: else
        fi
    } unless {
#if WRITER == SHM
        killed
#else
        false
#endif
    };
    exited = true
}

#if WRITER == TCP
/* The first, broken put of the same reservation. */
active proctype Repeated()
{
    THREAD;
    byte x;
    bool ok;
    granted == 3;
    put_by_tcp(3, 1)
}
#endif

/* Its look at gen may come too early, since nothing orders it behind the answer to RESERVE: STALE, and it tries
 * again. */
active proctype B()
{
    THREAD;
    byte x;
    bool ok;
    granted == 5;
    do
    :: !ok ->
#if WRITER == SHM
       put_by_shm(5)
#else
       put_by_tcp(5, 2)
#endif
    :: ok -> break
    od;
    committed_view = fenced;
    committed_b = true
}

active proctype Failure()
{
    if
    :: lost = true;
       killed = true
    :: committed_a
    fi
}

/* --- readers -------------------------------------------------------------------------------------- */

#ifdef GET_STARTS_RELAXED
#define FIRST_LOAD RELAXED
#else
#define FIRST_LOAD ORDERED
#endif

inline compare_bytes()
{
    assert(word0 == g && word1 == g) /* rule 1 */
}

/* The copy's loads come in any order. */
inline copy()
{
    if
    :: load(WORD, RELAXED, word0);
       load(WORD + 1, RELAXED, word1)
    :: load(WORD + 1, RELAXED, word1);
       load(WORD, RELAXED, word0)
    fi
}

inline get()
{
    load(GEN, FIRST_LOAD, x);
    if
    :: x == g ->
       copy();
#ifndef NO_FENCE_AFTER_GET
       acquire_fence();
#endif
#ifdef GEN_NOT_COMPARED_AGAIN
       compare_bytes()
#else
       load(GEN, RELAXED, x);
       if
       :: x == g -> compare_bytes()
       :: else
       fi
#endif
    :: else
    fi
}

inline announce()
{
#if READER == PIN
    readers++
#elif defined(USED_AFTER_GEN)
    hazard = 1
#else
    used = 1;
    hazard = 1
#endif
}

inline drop()
{
    d_step {
#if READER == PIN
        readers_view = JOIN(readers_view, cur);
        readers--
#else
        hazard_view = JOIN(hazard_view, cur);
        hazard = 0
#endif
    }
}

inline view()
{
#ifdef ANNOUNCE_RELAXED /* a relaxed store may come after the load that follows it; as if gen were looked at first */
    load(GEN, SEQ_CST, x);
    announce();
#else
    announce();
    load(GEN, SEQ_CST, x);
#endif
#ifdef USED_AFTER_GEN
    used = 1;
#endif
    if
    :: x == g ->
       load(WORD, RELAXED, word0);
#ifdef DROP_RELAXED /* a relaxed store may come before the load that precedes it */
       drop();
       load(WORD + 1, RELAXED, word1);
#else
       load(WORD + 1, RELAXED, word1);
       drop();
#endif
       compare_bytes()
    :: else -> drop()
    fi
}

active proctype Reader()
{
    THREAD;
    byte x, word0, word1, g;
    if
    :: g = 2
    :: g = 4
    :: g = 6
    fi;
#if READER == GET
    get()
#else
    view()
#endif
}

/* Rule 3: when nothing can go on, the node has given the extent to B. */
active proctype End()
{
    timeout;
    assert(ended)
}
