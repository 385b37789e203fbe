/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that libtarn has no submitted twin of. Those that ask the directory are interruptible all the same:
 * they may be repeated, so the main thread makes them with a deadline that begins short and doubles, and
 * looks at signals after each. A handler that raises is heard within the time that has passed already.
 *
 * Those that ask a node are made whole, since a node that does not answer within a call's time is set aside
 * for the whole client; signals are heard when they have ended.
 */
#include "ext.h"

#include <stdio.h>

#define FIRST_MS 200

int call_whole(sliced_fn fn, void *arg, uint32_t timeout_ms, char why[WHY_BYTES])
{
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = fn(arg, timeout_ms);
    if (rc != 0)
        snprintf(why, WHY_BYTES, "%s", tarn_last_error());
    Py_END_ALLOW_THREADS
    return rc;
}

int call_sliced(struct client *c, sliced_fn fn, void *arg, uint32_t timeout_ms, char why[WHY_BYTES])
{
    uint32_t left = timeout_ms ? timeout_ms : c->timeout_ms;
    uint32_t slice = in_main_thread() && left > FIRST_MS ? FIRST_MS : left;
    int rc;

    for (;;) {
        rc = call_whole(fn, arg, slice, why);
        left -= slice;
        if (rc != TARN_E_TIMEOUT || left == 0)
            return rc;
        if (PyErr_CheckSignals() < 0)
            return EXT_RAISED;
        slice = left < 2 * slice ? left : 2 * slice;
    }
}
