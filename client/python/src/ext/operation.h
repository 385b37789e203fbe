/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by operation.c and the files that submit; see operation.c. */
#ifndef TARN_PYTHON_OPERATION_H
#define TARN_PYTHON_OPERATION_H

#include "ext.h"

/* Kinds of operations. The result of GET is a list of bytes or codes; of the next two, a list of (code,
 * TensorInfo or None). FETCH does not compare dtypes and shapes. REACH, CONNECT: what was made; EXPECT, SEND:
 * None; RECV: the size of what came, or a list of sizes. */
enum what {
    SUBMIT_GET,
    SUBMIT_FETCH,
    SUBMIT_GET_INFO,
    SUBMIT_PUT,
    SUBMIT_LOOKUP,
    SUBMIT_REMOVE,
    SUBMIT_READ,
    SUBMIT_WRITE,
    SUBMIT_REACH,
    SUBMIT_CONNECT,
    SUBMIT_EXPECT,
    SUBMIT_SEND,
    SUBMIT_RECV
};

struct operation {
    PyObject_HEAD struct client *client;
    struct op op; /* its address is the cookie; ops_take() writes to it */
    enum what what;
    struct batch batch;
    struct tarn_key *keys; /* for look-ups and removes; in the batch */
    size_t nkeys;
    int32_t *statuses;
    struct reach *reach; /* for reads, writes and reaches; the batch keeps it, and has the moves */
    struct tarn_move *moves;
    struct channel *channel;           /* for connects; the batch keeps it */
    struct tarn_channel_item *message; /* for sends and receives; in the batch */
    bool vector;                       /* it is a list of values */
    uint32_t stride;
    int device; /* GPU of the values, or HOST_MEMORY */
    bool settled;
    /* NULL: the whole operation failed, with status and batch.why. A receive that failed may have one, too:
     * the size of a message that was too long. */
    PyObject *result;
    int status;
    struct operation *prev, *next;
};

/* Adds it to the client's list, which holds a reference. */
void operation_enlist(struct operation *o);
void operation_delist(struct operation *o);

struct operation *operation_new(struct client *c, enum what what, bool writable);
/* Sets *event: the caller's, else one after the streams of the values. */
int operation_set_after(struct operation *o, PyObject *after, void **event);
/* Takes the reference to o. `give` calls libtarn. */
PyObject *operation_submit(struct operation *o, int (*give)(struct operation *o, const void *options),
                           const void *options);
/* The channel, which has just been connected; new reference. */
PyObject *channel_connected(struct channel *ch);
/* Cancels the receives under way into that memory whose bytes peers write there. */
void receives_cancel(struct client *c, uintptr_t base, uint64_t nbytes);
/* Would it be such a receive? */
bool receives_into(const struct operation *o, uintptr_t base, uint64_t nbytes);
/* The values' GPU, for stream_wait(). */
void operation_note_device(struct operation *o);

#endif
