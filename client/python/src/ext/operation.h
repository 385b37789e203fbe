/* SPDX-License-Identifier: Apache-2.0 */
/* What submit.c and operation.c share: see operation.c. */
#ifndef TARN_PYTHON_OPERATION_H
#define TARN_PYTHON_OPERATION_H

#include "ext.h"

/* GET's result is a list of bytes or code, that of the next two (code, TensorInfo or None) of each; FETCH
 * does not compare dtypes and shapes. */
enum what { SUBMIT_GET, SUBMIT_FETCH, SUBMIT_GET_INFO, SUBMIT_PUT, SUBMIT_LOOKUP, SUBMIT_REMOVE };

struct operation {
    PyObject_HEAD struct client *client;
    struct op op; /* its address is the cookie: op_take() writes to it */
    enum what what;
    struct batch batch;
    struct tarn_key *keys; /* of look-ups and removes, in the batch */
    size_t nkeys;
    int32_t *statuses;
    uint32_t stride;
    int device; /* GPU that values lie on; HOST_MEMORY */
    bool settled;
    PyObject *result; /* NULL: failed as a whole, with status and why */
    int status;
    char why[WHY_BYTES];
    struct operation *prev, *next;
};

/* The client's list has a reference to it. */
void operation_enlist(struct operation *o);
void operation_delist(struct operation *o);

#endif
