/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, loaded when first needed. Programs built with it also run without it. */
#ifndef TARN_TRANSPORT_RDMA_VERBS_H
#define TARN_TRANSPORT_RDMA_VERBS_H

/* NULL if libibverbs is available; else the reason, valid forever. Loads the library. Any thread. */
const char *tarn_verbs_missing(void);

#endif
