/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `tarn doctor`: a table of results, and remedies for those that fail. */
#ifndef TARN_CLIENT_CLI_CHECKS_H
#define TARN_CLIENT_CLI_CHECKS_H

#include "client/cli/cli_text.h"

/* OPTIONAL: missing, but only some uses need it. MISSING: what the user asked about does not work without
 * it. */
enum doctor_state { GOOD, OPTIONAL, MISSING };

struct doctor {
    struct cli *c;
    struct cli_table table;
    struct tarn_buf needed, optional; /* remedies */
    json_t *checks;
    size_t missing;
};

/* Adds one row; fmt says what was found. `remedy` is ignored when the state is GOOD. */
void doctor_check(struct doctor *d, const char *name, enum doctor_state state, const char *needed,
                  const char *remedy, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* The NVIDIA driver's version: "535.104.05" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05
 * Sat
 * ..."; "" if there is none. */
void doctor_driver(char version[32]);
/* Checks the NVIDIA driver and its GPUs. */
void doctor_gpus(struct doctor *d);
/* Checks a clock that showed told_ms at some moment between asked_ms (by this host's clock) and now. */
void doctor_clock(struct doctor *d, const char *whose, uint64_t told_ms, uint64_t asked_ms);

/* Checks that this Redis can be the directory. */
bool doctor_redis(struct doctor *d);
/* Checks that nodes answer and that clients can put to and get from each pool. */
void doctor_nodes(struct doctor *d);
/* Checks everything the tcpx transport needs. */
void doctor_tcpx(struct doctor *d);
/* Checks everything that kernels need which read the store by themselves (docs/gpu-driven.md). */
void doctor_gpu_driven(struct doctor *d);

#endif
