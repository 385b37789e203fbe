/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions and one-sided puts: transport/host/session.c, client/put_reserve.c, client/link.c, client/flight.c.
 *
 * One extent, two clients. Client 1 has two control connections to the node: it reserves over the first and
 * makes links over the second, for which the node does not look at generations (rdma). Both may break at any
 * time, and be made again. Client 2 reserves the extent when it is free.
 *
 * Rule: what a device writes for client 1 goes into an extent that is reserved for it, by that reservation.
 *
 * The node runs one command, or the end of a session, at a time. Devices write at any time while their link
 * is not cut off.
 */
#define TERMS 4

byte owner, gen = 1; /* of the extent; owner 0: free */
byte term = 1;
bool alive[2];           /* client 1's connections, as the node knows them */
bool up[TERMS + 1];      /* client 1's links, by the term in which they were made */
byte flying[TERMS + 1];  /* the reservation (gen) for which a WRITE is posted there; 0: none */
bool node;               /* the node is at work */

#define NODE_BEGINS atomic { !node -> node = true }
#define NODE_ENDS node = false

/* The node notices that a connection has broken. The last one takes the session with it. */
active proctype Breaks()
{
    byte which, k;
    do
    :: atomic { !node && (alive[0] || alive[1]) && term < TERMS -> node = true }
       if
       :: alive[0] -> which = 0
       :: alive[1] -> which = 1
       fi;
       alive[which] = false;
       if
       :: !alive[0] && !alive[1] ->
#ifdef FREED_BEFORE_CUT_OFF
          if
          :: owner == 1 -> owner = 0; gen++
          :: else
          fi;
#endif
          k = 1;
          do
          :: k <= TERMS -> up[k] = false; k++
          :: else -> break
          od;
#ifndef FREED_BEFORE_CUT_OFF
          if
          :: owner == 1 -> owner = 0; gen++
          :: else
          fi;
#endif
#ifndef TERM_STAYS
          term++
#endif
       :: else
       fi;
       NODE_ENDS
    :: break
    od
}

/* The devices. A link that is cut off writes nothing. */
active proctype Device()
{
    byte k;
end:
    do
    :: atomic {
           k = 1;
           do
           :: k <= TERMS && flying[k] > 0 -> break
           :: k < TERMS -> k++
           od;
           assert(!up[k] || (owner == 1 && gen == flying[k]));
           flying[k] = 0
       }
    od
}

/* HELLO, if there is no connection. */
inline connect(which)
{
    if
    :: !alive[which] -> alive[which] = true; said[which] = term
    :: else
    fi
}

active proctype Client1()
{
    byte said[2], reserved, reserved_term, link_term, n;
    do
    :: n < 4 && reserved == 0 ->
       NODE_BEGINS;
       connect(0);
       if
       :: owner == 0 -> owner = 1; reserved = gen; reserved_term = said[0]
       :: else
       fi;
       NODE_ENDS;
       n++
    :: n < 4 && link_term == 0 ->
       NODE_BEGINS;
       connect(1);
       up[said[1]] = true;
       link_term = said[1];
       NODE_ENDS;
       n++
    :: reserved > 0 && link_term > 0 ->
#ifndef ANY_TERM
       if
       :: link_term > reserved_term -> reserved = 0 /* it is gone */
       :: else ->
#endif
          flying[link_term] = reserved;
          flying[link_term] == 0; /* completed */
          link_term = 0;          /* it may have been cut off */
          if
          :: reserved = 0 /* the put is over: COMMIT says whether it counts */
          :: skip         /* the next layer of a put session */
          fi
#ifndef ANY_TERM
       fi
#endif
    :: break
    od
}

active proctype Client2()
{
    NODE_BEGINS;
    if
    :: owner == 0 -> owner = 2
    :: else
    fi;
    NODE_ENDS
}
