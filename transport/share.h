/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports within a host (shm, cuda_ipc) share in the client: mapping the files of a node's pools,
 * hazards, and parsing the text that comes with the files. node_share.h has the node's side.
 *
 * If the owner shrank a file, the reader would die by SIGBUS. So files that are short or not sealed against
 * shrinking are refused. fork() does not inherit mappings: for the node all writing and viewing ends when the
 * process that attached exits, and no child may prolong that.
 */
#ifndef TARN_TRANSPORT_SHARE_H
#define TARN_TRANSPORT_SHARE_H

#include "transport/transport.h"

struct tarn_mapping {
    void *addr;
    size_t bytes;
};

/* For messages: which transport to which node, and what is mapped. */
struct tarn_share_name {
    const char *transport, *node, *what;
};

/* Maps a received file whole after making sure that no access can fault. */
int tarn_share_map(const struct tarn_share_name *name, int fd, uint64_t bytes, int prot,
                   struct tarn_mapping *m);
/* *m may be unmapped. */
void tarn_share_unmap(struct tarn_mapping *m);

/* Counts as use: sets a slot's touch to the node's time. Writes only when the tick has changed, so that gets
 * of a hot object do not bounce its cache line. */
void tarn_share_touch(_Atomic uint32_t *touch, uint64_t tick_base_ns);

/* A link's part of the session's hazard page. page NULL: the node gave none. Any thread may claim and drop.
 */
struct tarn_share_hazards {
    struct tarn_mapping map;
    struct tarn_hazard_page *page;
    _Atomic uint64_t claimed[TARN_HAZARDS / 64]; /* bit i: entry i is this link's */
};

int tarn_share_hazards_map(const struct tarn_share_name *name, int fd, struct tarn_share_hazards *h);
/* Drops what is still claimed. The page belongs to the session, so the entries would stay for good. */
void tarn_share_hazards_unmap(struct tarn_share_hazards *h);
/* Keeps a slot's extent from being reused from now on. Compare its generation afterwards. AGAIN: too many
 * views. NOT_REACHABLE: there is no page. */
int tarn_share_hazard_claim(const struct tarn_share_name *name, struct tarn_share_hazards *h, uint32_t pool,
                            uint32_t slot, uint32_t *hazard_p);
void tarn_share_hazard_drop(struct tarn_share_hazards *h, uint32_t hazard);

/* The next word of an ATTACH answer; false when there is none. */
bool tarn_share_word(const char **at, const char **word, size_t *bytes);
/* The next number; false when there is none or it is above max. */
bool tarn_share_number(const char **at, int base, uint64_t max, uint64_t *out);

#endif
