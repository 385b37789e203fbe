/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, found when it is first needed: what is built with it also runs where it is not installed. */
#ifndef TARN_TRANSPORT_RDMA_VERBS_H
#define TARN_TRANSPORT_RDMA_VERBS_H

/* NULL: libibverbs is there. Else why not. Loads it; valid for ever. Any thread. */
const char *tarn_verbs_missing(void);

#endif
