/* SPDX-License-Identifier: Apache-2.0 */
/* Taking connections and links to a node out of use, and closing them. */
#ifndef TARN_CLIENT_RETIRE_H
#define TARN_CLIENT_RETIRE_H

#include <stdbool.h>

struct tarn_call;
struct tarn_linked;
struct tarn_remote;

/* Its pools, whatever they hold, are void: links are taken out of use (closed when nobody is inside). */
void tarn_remote_retire(struct tarn_remote *r);
/* Closes what was retired and is no longer in use; false when something still is. */
bool tarn_remote_reap(struct tarn_remote *r);
/* Frees a remote and all it holds; at close. */
void tarn_remote_free(struct tarn_remote *r);
/* Closes a connection. */
void tarn_call_drop(struct tarn_call *call);
/* Closes a link whose node needs no telling: its incarnation or this client's session is over. tarn_link_close()
 * tells it. */
void tarn_link_free(struct tarn_linked *l);

#endif
