/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: keeps node and directory agreed, both ways and without haste.
 *   own pass  looks up every object of the store. It frees an object that the directory does not name:
 *             that was replaced, and the copy that replaced it may be gone, too, so its bytes must not
 *             come back. A page counts only if Redis, asked after it, has not lost its data. Otherwise
 *             the pass waits for the next beat, which will find the loss.
 *   sweep     reads every record of the directory. It withdraws locations of this node that the store
 *             does not hold, and locations of dead nodes and earlier runs.
 * Both go page by page, at a rate that makes a pass take --scrub-s. An urgent pass does not wait between
 * pages: after Redis has lost its data, after a publish without an answer, the first pass of a node.
 */
#ifndef TARN_SERVER_SCRUB_H
#define TARN_SERVER_SCRUB_H

#include "server/directory/directory_thread.h"
#include "server/store/store.h"

struct tarn_scrub;

struct tarn_scrub_options {
    struct tarn_store *store;
    struct tarn_directory_thread *directory_thread;
    const struct tarn_logger *log;
    const char *directory; /* id of the directory that was told of all objects; its text may change */
    uint32_t heartbeat_ms, scrub_s;
};

struct tarn_scrub_stats {
    uint64_t restored, withdrawn, freed;
};

int tarn_scrub_new(const struct tarn_scrub_options *o, struct tarn_scrub **s_p);
/* The directory thread must have ended, so that no page is under way. NULL is allowed. */
void tarn_scrub_free(struct tarn_scrub *s);
/* To be called after every successful beat, behind the calls below that it causes. */
void tarn_scrub_tick(struct tarn_scrub *s);
/* Starts an urgent own pass that publishes what the directory has lost. */
void tarn_scrub_restore_all(struct tarn_scrub *s);
/* Starts an urgent own pass that frees what the directory does not name. */
void tarn_scrub_check_all(struct tarn_scrub *s);
/* Starts an urgent sweep. */
void tarn_scrub_sweep_all(struct tarn_scrub *s);
/* Ends the own pass, finished or not. Nothing more is published again. */
void tarn_scrub_stop(struct tarn_scrub *s);
/* Is a pass of restore_all, of check_all unfinished? */
bool tarn_scrub_restores(const struct tarn_scrub *s);
bool tarn_scrub_compares(const struct tarn_scrub *s);
/* No page follows the one under way: the node takes its objects out of the directory, and must not put them
 * back.
 */
void tarn_scrub_end(struct tarn_scrub *s);
struct tarn_scrub_stats tarn_scrub_stats(const struct tarn_scrub *s);

#endif
