/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by submit.c and operation.c; see operation.c. */
#ifndef TARN_PYTHON_OPERATION_H
#define TARN_PYTHON_OPERATION_H

#include "ext.h"

/* Kinds of operations. The result of GET is a list of bytes or codes; of the next two, a list of (code,
 * TensorInfo or None). FETCH does not compare dtypes and shapes. */
enum what {
    SUBMIT_GET,
    SUBMIT_FETCH,
    SUBMIT_GET_INFO,
    SUBMIT_PUT,
    SUBMIT_LOOKUP,
    SUBMIT_REMOVE,
    SUBMIT_READ,
    SUBMIT_WRITE
};

struct operation {
    PyObject_HEAD struct client *client;
    struct op op; /* its address is the cookie; ops_take() writes to it */
    enum what what;
    struct batch batch;
    struct tarn_key *keys; /* for look-ups and removes; in the batch */
    size_t nkeys;
    int32_t *statuses;
    struct reach *reach; /* for reads and writes; the batch keeps it, and has the moves */
    struct tarn_move *moves;
    uint32_t stride;
    int device; /* GPU of the values, or HOST_MEMORY */
    bool settled;
    PyObject *result; /* NULL: the whole operation failed, with status and batch.why */
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
/* The values' GPU, for stream_wait(). */
void operation_note_device(struct operation *o);

#endif
