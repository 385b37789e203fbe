/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the fixture plugin: of one process, or of all that share a file (TCPX_FIXTURE_COUNTERS). */
#ifndef TARN_TESTS_TCPX_COUNTERS_H
#define TARN_TESTS_TCPX_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct fixture_counters {
    /* current numbers */
    _Atomic uint64_t listens, comms, regs, requests;
    /* totals */
    _Atomic uint64_t setups; /* first calls of connect() and accept() */
    _Atomic uint64_t sends, receives, bytes_sent, bytes_received;
    _Atomic uint64_t tokens_taken, tokens_returned;
    _Atomic uint64_t tokens_dropped; /* not returned before their comm was closed */
    _Atomic uint64_t tokens_leaked;  /* lost by messages larger than the dynamic chunk */
    _Atomic uint64_t refused;        /* wrong calls */
    /* addresses of the last send and receive */
    _Atomic uint64_t sent_from, received_at;
};

/* Exported under this name by the fixture. */
#define FIXTURE_COUNTERS_SYMBOL "tcpx_fixture_counters"
typedef struct fixture_counters *(*fixture_counters_fn)(void);

#endif
