/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports within a host (shm, cuda_ipc) share: files of pools given to other processes, mapped there,
 * and the text that goes with them.
 *
 * A file that its owner can shrink would kill the reader by SIGBUS: unsealed or short ones are refused.
 * Mappings are not inherited by fork(): the node takes the exit of the process that attached for the end of
 * all writing and viewing, and no child can prolong that.
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
/* Takes one that is not mapped, too. */
void tarn_share_unmap(struct tarn_mapping *m);

/* Counts as use: sets a slot's touch to the node's time. Written only when the tick has changed, so that hot
 * objects do not bounce a cache line at each get. */
void tarn_share_touch(_Atomic uint32_t *touch, uint64_t tick_base_ns);

/*
 * A link's part of the session's hazard page. page NULL: the node gave none. Any thread claims and drops.
 */
struct tarn_share_hazards {
    struct tarn_mapping map;
    struct tarn_hazard_page *page;
    _Atomic uint64_t claimed[TARN_HAZARDS / 64]; /* bit i: entry i is this link's */
};

int tarn_share_hazards_map(const struct tarn_share_name *name, int fd, struct tarn_share_hazards *h);
/* Drops what is still claimed: the page is the session's and would keep those extents for good. */
void tarn_share_hazards_unmap(struct tarn_share_hazards *h);
/* Keeps what is in a slot from being reused, from now on; look at its generation afterwards. AGAIN: too many;
 * NOT_REACHABLE: there is no page. */
int tarn_share_hazard_claim(const struct tarn_share_name *name, struct tarn_share_hazards *h, uint32_t pool,
                            uint32_t slot, uint32_t *hazard_p);
void tarn_share_hazard_drop(struct tarn_share_hazards *h, uint32_t hazard);

/* The next word of an ATTACH answer; false when there is none. */
bool tarn_share_word(const char **at, const char **word, size_t *bytes);
/* The next number; false when there is none or it is above max. */
bool tarn_share_number(const char **at, int base, uint64_t max, uint64_t *out);

#endif
