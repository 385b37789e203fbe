/* SPDX-License-Identifier: Apache-2.0 */
/* What the fixture plugin counts: of one process, or of all that share a file (TCPX_FIXTURE_COUNTERS). */
#ifndef TARN_TESTS_TCPX_COUNTERS_H
#define TARN_TESTS_TCPX_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct fixture_counters {
    /* now */
    _Atomic uint64_t listens, comms, regs, requests;
    /* ever */
    _Atomic uint64_t setups; /* first calls of connect() and accept() */
    _Atomic uint64_t sends, receives, bytes_sent, bytes_received;
    _Atomic uint64_t tokens_taken, tokens_returned;
    _Atomic uint64_t tokens_dropped; /* by closing a comm before they were returned */
    _Atomic uint64_t tokens_leaked;  /* by messages above the dynamic chunk */
    _Atomic uint64_t refused;        /* calls that were misuse */
    /* addresses of the last */
    _Atomic uint64_t sent_from, received_at;
};

/* Exported under this name by the fixture. */
#define FIXTURE_COUNTERS_SYMBOL "tcpx_fixture_counters"
typedef struct fixture_counters *(*fixture_counters_fn)(void);

#endif
