/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors: one line of text that names a lease, and where its lender answers.
 *
 *   tarn-window 1 NS ADDRESS UNIX|- HOST EPOCH WINDOW SLOT GEN BYTES cpu|gpu r|rw TOKEN CHECK
 *
 * One space between fields. EPOCH, GEN, TOKEN and CHECK are hexadecimal. CHECK is a hash of all before it, so
 * that what was cut or altered is told from a lease that has ended. The first half of TOKEN opens the
 * lender's control connections, the second half this window.
 */
#ifndef TARN_CLIENT_WINDOW_DESCRIPTOR_H
#define TARN_CLIENT_WINDOW_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include <tarn/window.h>

#include "metadata/directory.h"

#define TARN_WINDOW_TOKEN 64 /* hexadecimal digits */

struct tarn_descriptor {
    char ns[TARN_NS_MAX + 1];
    char address[128]; /* "10.0.0.1:40123" */
    char unix_path[108];
    char host_id[40];
    uint64_t epoch, gen, bytes;
    uint32_t window, slot;
    bool gpu, write;
    char token[TARN_WINDOW_TOKEN + 1];
};

/* INVALID: it does not fit. */
int tarn_descriptor_format(const struct tarn_descriptor *d, char text[TARN_DESCRIPTOR_MAX]);
/* INVALID, VERSION. */
int tarn_descriptor_parse(const char *text, struct tarn_descriptor *d);

#endif
