/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection: links that misbehave as a text says, e.g. "tcp:delay=5,error=0.01;shm:stale=0.1;seed=7".
 * docs/faults.md has the grammar.
 *
 * libtarn is built without faulty.c. The tests' programs link it; everywhere else these functions are NULL.
 */
#ifndef TARN_TRANSPORT_FAULTY_H
#define TARN_TRANSPORT_FAULTY_H

#include "transport/transport.h"

struct tarn_faulty;

/* CONFIG when the text is malformed. Free it after its links are closed. */
__attribute__((weak)) int tarn_faulty_new(const char *text, struct tarn_faulty **f_p);
/* As ops->connect(). *ops_p becomes the table to use for this link: `ops` if the text does not name its
 * transport. */
__attribute__((weak)) int tarn_faulty_connect(struct tarn_faulty *f, const struct tarn_transport_ops *ops,
                                              const struct tarn_peer *p, struct tarn_link **l_p,
                                              const struct tarn_transport_ops **ops_p);
__attribute__((weak)) void tarn_faulty_free(struct tarn_faulty *f);

#endif
