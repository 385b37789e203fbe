/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: keeps node and directory agreed, both ways and without haste.
 *   own pass      every object of the store is looked up. What the directory does not name is freed: it was
 *                 replaced, and perhaps what replaced it is gone, so its bytes must not come back. But a
 *                 page's losses count only when Redis, asked behind it, has not lost its data: else it waits
 *                 for the next beat, which finds that out
 *   sweep         every record of the directory is looked at; locations of this node that the store
 *                 does not hold, and those of dead nodes or earlier runs, are withdrawn
 * Each goes page by page, so many pages a heartbeat that a pass takes --scrub-s. A pass that is wanted
 * at once (Redis lost everything; a publish got no answer; this node's first pass) takes page after page.
 */
#ifndef TARN_SERVER_SCRUB_H
#define TARN_SERVER_SCRUB_H

#include "server/parts.h"

int tarn_scrub_new(struct tarn_node *n, struct tarn_scrub **s_p);
/* No page is under way any more: the publisher has stopped. NULL is allowed. */
void tarn_scrub_free(struct tarn_scrub *s);
/* After every successful beat, and after what it gave reason to begin. */
void tarn_scrub_tick(struct tarn_scrub *s);
/* From now on, at full speed: an own pass from the start that publishes what the directory has lost. */
void tarn_scrub_restore_all(struct tarn_scrub *s);
/* The same, but frees what the directory does not name. */
void tarn_scrub_check_all(struct tarn_scrub *s);
/* The same for a sweep. */
void tarn_scrub_sweep_all(struct tarn_scrub *s);
/* Ends the own pass, done or not; nothing is published again any more. */
void tarn_scrub_stop(struct tarn_scrub *s);
/* Has restore_all, check_all not come to its end yet? */
bool tarn_scrub_restores(const struct tarn_scrub *s);
bool tarn_scrub_compares(const struct tarn_scrub *s);

#endif
