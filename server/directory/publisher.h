/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory thread: does all of a node's work with Redis, so that the control thread never waits.
 *
 * But for the usual case of a commit: while all is well the control thread publishes on a connection of
 * its own that its loop watches (direct_publish.c). That saves two wake-ups of threads in a put. What does
 * not succeed there is the directory thread's to settle: a record in the way, a script that Redis has
 * forgotten, a connection that broke. Of publishes, one side at a time has some under way, so that they
 * are run and given back in one order.
 *
 * The control thread hands over requests; each comes back exactly once through its `done`, called on
 * the control thread. What is queued is taken together: one pipelined call publishes all commits that
 * wait, one withdraws. Within a round the order is
 *   beat, publish, recheck, remove, settled, restore, withdraw, background withdrawals, scan, leave
 * A location is only withdrawn after its publish was queued, and a publish that meets a location of
 * this node which is about to be withdrawn sees by the slot's generation that it is dead. That what is
 * sent first is run first holds across connections, too, as long as Redis lets the node kill those
 * that failed (metadata/redis.h). Where it does not, a publish that was given up can be run after its
 * withdrawal: so every publish that got no answer has the directory swept and the node's objects
 * looked up again once Redis answers.
 *
 * A record found in the way of a commit is dead when each of its locations is: on this node, when the
 * slot has another generation; elsewhere, when the node lives under another epoch or not at all. That
 * a node is missing counts only in a calm directory (metadata/directory.h), since nodes need time to report
 * again. Such a record is replaced (only in the version found).
 *
 * While Redis does not answer, requests fail as they come; background withdrawals wait, up to a bound,
 * for the first call that is answered again. One that answers but refuses (out of memory) is still
 * asked to withdraw, now and then: that is what frees memory there. LEAVE does not wait for those.
 *
 * A replace, a remove and SETTLED are believed in a settled directory only, which is looked at before and
 * after. An item is AGAIN when it was not settled, and when a displaced copy could not be written into its
 * node's recheck set; `stored` is set when it was published all the same.
 *
 * A restore takes the place of an older record, and of a newer one only when all its locations are
 * void ones of this node: a newer record of another node says that this copy was replaced, whether
 * that node still lives or not.
 *
 * A restore takes effect only while the record of this node that the last beat has written lives, by Redis's
 * clock: AGAIN for the page when it comes later.
 *
 * Lock: publisher.lock guards the queues; it is never held across a call to Redis.
 */
#ifndef TARN_SERVER_PUBLISHER_H
#define TARN_SERVER_PUBLISHER_H

#include "server/directory/request.h"

struct tarn_publisher;

int tarn_publisher_start(const struct tarn_publisher_options *o, struct tarn_publisher **p_p);
/* Ends the thread after the call it is in, gives every request back, frees. NULL is allowed. */
void tarn_publisher_stop(struct tarn_publisher *p);

void tarn_publisher_submit(struct tarn_publisher *p, struct tarn_request *r);
/* Every 100 ms or so, on the control thread. */
void tarn_publisher_tick(struct tarn_publisher *p);
/* Takes a request back that was not begun. False: it is being worked on, `done` comes. */
bool tarn_publisher_cancel(struct tarn_publisher *p, struct tarn_request *r);
/*
 * Withdraws in the background, as often as it takes. The key is copied. When too many wait, or memory
 * is out, the location is forgotten and tarn_publisher_doubts() becomes true.
 */
void tarn_publisher_withdraw(struct tarn_publisher *p, const struct tarn_key *key,
                             const struct tarn_location *l, uint64_t bytes, const char *why);
/* True once after withdrawals were forgotten or a publish got no answer: both must be compared again. */
bool tarn_publisher_doubts(struct tarn_publisher *p);

void tarn_publisher_stats(struct tarn_publisher *p, struct tarn_publisher_stats *out);

#endif
