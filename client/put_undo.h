/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: taking back what a failed put has stored. */
#ifndef TARN_CLIENT_PUT_UNDO_H
#define TARN_CLIENT_PUT_UNDO_H

#include "client/displaced.h"
#include "client/put_job.h"

/* The job failed: its stored copies are to be taken back. */
void tarn_undo_note(struct tarn_put *p, struct tarn_displaced_list *undo, struct tarn_put_job *job);
/* Tells their nodes and frees the list. */
void tarn_undo_run(struct tarn_put *p, struct tarn_displaced_list *undo);

#endif
