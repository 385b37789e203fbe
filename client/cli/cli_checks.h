/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `tarn doctor` share: a table of checks, and what to do about those that fail. */
#ifndef TARN_CLIENT_CLI_CHECKS_H
#define TARN_CLIENT_CLI_CHECKS_H

#include "client/cli/cli_text.h"

/* OPTIONAL: missing, but only some uses need it; MISSING: what was asked about does not work so. */
enum doctor_state { GOOD, OPTIONAL, MISSING };

struct doctor {
    struct cli *c;
    struct cli_table table;
    struct tarn_buf needed, optional; /* what to do */
    json_t *checks;
    size_t missing;
    uint64_t deadline_ns;
};

/* One row, fmt being what was found. `remedy` is left out of the report when the state is GOOD. */
void doctor_check(struct doctor *d, const char *name, enum doctor_state state, const char *needed,
                  const char *remedy, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* The NVIDIA driver and its GPUs. */
void doctor_gpus(struct doctor *d);
/* A clock that showed told_ms between asked_ms, by this host's, and now. */
void doctor_clock(struct doctor *d, const char *whose, uint64_t told_ms, uint64_t asked_ms);

#endif
