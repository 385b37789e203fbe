/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring: include/tarn/ring.h (the producer, on a GPU), client/gpu/ring.c (the consumer, a thread of
 * the CPU). Producer calls tarn_dev_ring_push() and tarn_dev_ring_wait(), Consumer tarn_ring_take() and
 * tarn_ring_complete().
 *
 * Rules:
 * 1. the consumer takes commands 1..N, each once and in order, and both halves belong to it;
 * 2. no half is written while the command before in its slot is under way;
 * 3. the producer gets for each command the status that the consumer gave it;
 * 4. what a GET has brought is there when its status has been seen, and a fence behind that;
 * 5. neither side waits for ever: also not after an abort;
 * 6. the consumer never takes what it finds in a slot for a foreign stamp.
 *
 * Memory is weaker than either side's: every word and half has a history, and a load takes any entry that is
 * not older than what its thread has seen of the same word. So stores and loads of different words pass each
 * other in any order; within one word they do not. The only order between words is the consumer's release
 * store of a status, if the producer puts a fence behind its load.
 *
 * A thread acts upon what it has seen. To see more is a step of its own, possible only while there is more;
 * so a ring that is stuck is a timeout.
 *
 * Configurations: COMMANDS; ABORT: the ring may be aborted at any time. Broken rules: the names in #ifdef.
 */
#define SIZE 2
#ifndef COMMANDS
#define COMMANDS 6
#endif

/* --- memory ------------------------------------------------------------------------------------- */

#define HALF(slot, half) (2 * (slot) + (half))
#define STATUS(slot) (2 * SIZE + (slot))
#define DATA(slot) (3 * SIZE + (slot)) /* where the GET in that slot brings its bytes */
#define DONE (4 * SIZE)
#define WORDS (4 * SIZE + 1)
#define ENTRIES 12

/* A half and a status are the number of their command, from 1; so they are stamp and content. */
byte val[WORDS * ENTRIES];
byte length[WORDS] = 1;
byte with_data[WORDS * ENTRIES]; /* of a status: how much of DATA its writer had published */
byte producer_saw[WORDS], consumer_saw[WORDS];

#define SEEN(saw, w) val[(w) * ENTRIES + saw[w]]
#define MORE(saw, w) (saw[w] < length[w] - 1)

inline store(w, x)
{
    d_step {
        val[(w) * ENTRIES + length[w]] = x;
        length[w]++
    }
}

#ifdef STAMPS_REPEAT
#define STAMP(x) ((x) == 0 -> 0 : 1 + ((x) - 1) % SIZE)
#else
#define STAMP(x) (x)
#endif

bool finished[COMMANDS + 1]; /* the command has completed */
bool aborted, producer_ended, consumer_ended;

/* --- the producer ------------------------------------------------------------------------------- */

#ifdef REUSE_AT_ONCE
#define ROOM true
#else
#define ROOM (tail - SEEN(producer_saw, DONE) < SIZE)
#endif

#ifdef STATUS_AFTER_REUSE
#define STATUS_READ true
#else
#define STATUS_READ (tail - got < SIZE) /* of the command before in this slot */
#endif

#define NEXT_STATUS STATUS(got % SIZE)
#ifdef STATUS_UNSTAMPED
#define STATUS_THERE (SEEN(producer_saw, DONE) > got)
#else
#define STATUS_THERE (STAMP(SEEN(producer_saw, NEXT_STATUS)) == STAMP(got + 1))
#endif

inline push()
{
    assert(tail < SIZE || finished[tail + 1 - SIZE]);
    if
    :: store(HALF(tail % SIZE, 0), tail + 1); store(HALF(tail % SIZE, 1), tail + 1)
    :: store(HALF(tail % SIZE, 1), tail + 1); store(HALF(tail % SIZE, 0), tail + 1)
    fi;
    tail++
}

/* The status is there: a fence, then the bytes. */
inline collect()
{
    atomic {
        assert(SEEN(producer_saw, NEXT_STATUS) == got + 1);
#ifndef NO_FENCE_BEFORE_DATA
        entry = with_data[NEXT_STATUS * ENTRIES + producer_saw[NEXT_STATUS]];
        if
        :: entry > producer_saw[DATA(got % SIZE)] -> producer_saw[DATA(got % SIZE)] = entry
        :: else
        fi;
        entry = 0;
#endif
        do
        :: MORE(producer_saw, DATA(got % SIZE)) -> producer_saw[DATA(got % SIZE)]++
        :: break
        od;
        assert(SEEN(producer_saw, DATA(got % SIZE)) == got + 1);
        got++
    }
}

active proctype Producer()
{
    byte tail, got, entry;
    do
    :: tail < COMMANDS && ROOM && STATUS_READ -> push()
    :: got < tail && STATUS_THERE -> collect()
    :: atomic { MORE(producer_saw, DONE) -> producer_saw[DONE]++ }
    :: atomic { got < tail && MORE(producer_saw, NEXT_STATUS) -> producer_saw[NEXT_STATUS]++ }
#ifndef ABORT_UNSEEN
    :: aborted -> break
#endif
    :: got == COMMANDS -> break
    od;
    producer_ended = true
}

/* --- the consumer ------------------------------------------------------------------------------- */

#define NEXT(half) HALF(head % SIZE, half)
#define STAMPED(half) (STAMP(SEEN(consumer_saw, NEXT(half))) == STAMP(head + 1))
#ifdef FIRST_HALF_UNSTAMPED
#define THERE STAMPED(1)
#else
#ifdef SECOND_HALF_UNSTAMPED
#define THERE STAMPED(0)
#else
#define THERE (STAMPED(0) && STAMPED(1))
#endif
#endif
/* Empty, of the command before in this slot, or of the one that is expected. */
#define FOREIGN(x) (x != 0 && x != head + 1 && x + SIZE != head + 1)

inline take()
{
    d_step {
        assert(SEEN(consumer_saw, NEXT(0)) == head + 1 && SEEN(consumer_saw, NEXT(1)) == head + 1);
        head++
    }
}

inline look(half)
{
    d_step {
        consumer_saw[NEXT(half)]++;
        assert(!FOREIGN(SEEN(consumer_saw, NEXT(half))))
    }
}

inline publish_status(k)
{
    d_step {
        with_data[STATUS((k) % SIZE) * ENTRIES + length[STATUS((k) % SIZE)]] = length[DATA((k) % SIZE)] - 1;
        val[STATUS((k) % SIZE) * ENTRIES + length[STATUS((k) % SIZE)]] = k + 1;
        length[STATUS((k) % SIZE)]++
    }
}

/* Command k, counted from 0, completes: its bytes, its status, then the count. */
inline complete(k)
{
#ifdef STATUS_BEFORE_DATA
    publish_status(k);
    store(DATA((k) % SIZE), k + 1);
#else
    store(DATA((k) % SIZE), k + 1);
#ifndef STATUS_AFTER_DONE
    publish_status(k);
#endif
#endif
    d_step {
        finished[k + 1] = true;
#ifdef DONE_COUNTS_ANY
        done++;
#else
        do
        :: done < head && finished[done + 1] -> done++
        :: else -> break
        od;
#endif
        if
        :: done != val[DONE * ENTRIES + length[DONE] - 1] ->
           val[DONE * ENTRIES + length[DONE]] = done;
           length[DONE]++
        :: else
        fi
    }
#ifdef STATUS_AFTER_DONE
    publish_status(k);
#endif
}

active proctype Consumer()
{
    byte head, done;
    do
    :: head < COMMANDS && THERE -> take()
    :: head < COMMANDS && MORE(consumer_saw, NEXT(0)) -> look(0)
    :: head < COMMANDS && MORE(consumer_saw, NEXT(1)) -> look(1)
    :: head > 0 && !finished[head] -> complete((head - 1))
    :: head > 1 && !finished[head - 1] -> complete((head - 2))
    :: aborted -> break
    :: done == COMMANDS -> break
    od;
    consumer_ended = true
}

/* --- abort and end ------------------------------------------------------------------------------ */

#ifdef ABORT
active proctype Abort()
{
    aborted = true
}
#endif

active proctype End()
{
    timeout;
    assert(producer_ended && consumer_ended)
}
