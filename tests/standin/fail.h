/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the stand-in: which calls fail (STANDIN_FAIL). The stand-in's lock guards all of it. */
#ifndef TARN_TESTS_STANDIN_FAIL_H
#define TARN_TESTS_STANDIN_FAIL_H

#include <stdbool.h>

enum tarn_standin_event {
    FAIL_ALLOC,
    FAIL_OPEN,
    FAIL_PIN,
    FAIL_QUEUE,
    FAIL_COPY,
    FAIL_MARK,
    FAIL_POLL,
    FAIL_LOST,
    FAIL_DMABUF,
    FAIL_FLUSH,
    FAIL_EXPORT,
    FAIL_TIME,
    FAIL_READY,
    FAIL_GATHER,
    FAIL_N
};

extern const char *const tarn_standin_event_names[FAIL_N];
/* In the form of STANDIN_FAIL; restarts the counts. NULL: no call fails. */
void tarn_standin_triggers(const char *text);
/* Counts the call. Does it fail? */
bool tarn_standin_due(enum tarn_standin_event e);

#endif
