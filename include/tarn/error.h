/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error codes of tarn.
 *
 * One list makes the enum, the names, the texts, docs/errors.md and the codes that travel on the
 * control connection (as the first word of a RESP error, e.g. "-EXISTS ..."). Values are never
 * reused. The class says what a caller has to rebuild before trying again:
 *
 *   MISS      nothing is wrong, the object is not there; recompute it
 *   REQUEST   the call itself is wrong; change it
 *   RETRY     nothing to rebuild; the same call may succeed later
 *   RECONNECT the connection to a node or to Redis is gone
 *   RELOCATE  the descriptor is out of date; resolve the key again (libtarn does so by itself)
 *   FATAL     nothing helps on this machine or with this configuration
 */
#ifndef TARN_ERROR_H
#define TARN_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum tarn_error_class {
    TARN_CLASS_NONE,
    TARN_CLASS_MISS,
    TARN_CLASS_REQUEST,
    TARN_CLASS_RETRY,
    TARN_CLASS_RECONNECT,
    TARN_CLASS_RELOCATE,
    TARN_CLASS_FATAL,
};

/* X(name, value, class, text) */
#define TARN_ERRORS(X) \
    X(NOT_FOUND, -1, MISS, "no such key") \
    X(EXISTS, -2, REQUEST, "the key exists already") \
    X(INVALID, -3, REQUEST, "invalid argument") \
    X(SIZE, -4, REQUEST, "the buffer and the object differ in size") \
    X(TOO_LARGE, -5, REQUEST, "larger than any pool") \
    X(FORMAT, -6, REQUEST, "malformed file or record") \
    X(UNSUPPORTED, -7, REQUEST, "not supported here") \
    X(CLOSED, -8, REQUEST, "the handle is closed") \
    X(FULL, -9, RETRY, "no room and nothing can be evicted") \
    X(TIMEOUT, -10, RETRY, "the deadline has passed") \
    X(CANCELED, -11, RETRY, "canceled by the caller") \
    X(BUSY, -12, RETRY, "in use") \
    X(AGAIN, -13, RETRY, "not possible at this moment: try again") \
    X(NODE_DOWN, -14, RECONNECT, "the storage node does not answer") \
    X(DIRECTORY, -15, RECONNECT, "the directory (Redis) does not answer or refuses") \
    X(PROTOCOL, -16, RECONNECT, "the peer does not speak this protocol") \
    X(STALE, -17, RELOCATE, "the object has moved or was replaced") \
    X(NOT_REACHABLE, -18, RELOCATE, "no transport reaches the pool") \
    X(AUTH, -19, FATAL, "authentication failed") \
    X(VERSION, -20, FATAL, "the peer speaks another version") \
    X(UNAVAILABLE, -21, FATAL, "not available on this machine") \
    X(NO_MEMORY, -22, FATAL, "out of memory") \
    X(SYSTEM, -23, FATAL, "a system call failed") \
    X(CONFIG, -24, FATAL, "wrong configuration") \
    X(IN_DOUBT, -25, RETRY, "done, but an old copy may still be read for a while")

enum tarn_error {
    TARN_OK = 0,
#define TARN_ERROR_ENUM(name_, value_, class_, text_) TARN_E_##name_ = value_,
    TARN_ERRORS(TARN_ERROR_ENUM)
#undef TARN_ERROR_ENUM
};

#pragma GCC visibility push(default) /* exported by libtarn.so, see client/libtarn.map */

/* The code's name without prefix ("NOT_FOUND"); "OK" for 0, "UNKNOWN" for anything else. Static text. */
const char *tarn_error_name(int code);

/* One sentence for the code; never NULL. Static text. */
const char *tarn_strerror(int code);

/* The code's class; TARN_CLASS_NONE for 0 and positive values. */
enum tarn_error_class tarn_error_class(int code);

/*
 * What went wrong in the last failing tarn call of this thread: call, object, cause, remedy.
 * Owned by the library and valid until the thread's next tarn call; "" when nothing failed yet.
 */
const char *tarn_last_error(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
