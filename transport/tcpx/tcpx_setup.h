/* SPDX-License-Identifier: Apache-2.0 */
/* Inside comms: tcpx_setup.c makes and ends them, tcpx_comm.c moves their messages. */
#ifndef TARN_TRANSPORT_TCPX_SETUP_H
#define TARN_TRANSPORT_TCPX_SETUP_H

#include "transport/tcpx/tcpx_comm.h"

enum tarn_tcpx_state { TARN_TCPX_OPENING, TARN_TCPX_LEARNING, TARN_TCPX_READY, TARN_TCPX_FAILED };

struct tarn_tcpx_request {
    void *request, *owner;
    uint32_t bytes;
    struct tarn_tcpx_mapping *mapping; /* of the caller's memory that the plugin was told of; NULL: none */
    /* receives: */
    bool in_place; /* the plugin puts it where it belongs */
    uint64_t ticket;
    struct tarn_tcpx_into into;
};

struct tarn_tcpx_comm {
    struct tarn_tcpx_comm *next; /* left behind, in the plugin's list */
    struct tarn_tcpx_gear *gear;
    struct tarn_tcpx_plugin *plugin;
    tarn_tcpx_done_fn done;
    int nic, gpu;
    bool sends, plain;
    bool begun_setup; /* connect or accept was called, and has not ended */
    enum tarn_tcpx_state state;
    uint64_t setup_until_ns;
    uint8_t handle[TARN_TCPX_HANDLE]; /* the plugin keeps its state in it */
    void *listening, *comm;
    uint32_t gear_chunk;
    struct tarn_tcpx_range *own, *lent;
    uint64_t gone; /* mappings that had gone when it last looked */
    /* receives */
    struct tarn_tcpx_device_handle device;
    struct tarn_tcpx_unpack unpack;
    uint64_t unpack_ticket;
    struct tarn_piece unpack_piece;
    bool has_unpacker;
    uint32_t turn; /* of the unpacker; another one is not this comm's any more */
    struct tarn_tcpx_bounce bounce;
    uint64_t bounce_bytes;
    uint8_t *memory; /* what receives are posted with; PLAIN: where they end up, unless in place */
    uint64_t memory_bytes;
    bool memory_gpu, memory_pinned;
    void *memory_gpu_at; /* what was allocated for it */
    void *memory_mr;

    uint64_t posted, there, begun, ended;
    uint64_t asked_ns, waited_ns; /* for the oldest request: when last, and how long */
    struct tarn_tcpx_request ring[TARN_TCPX_REQUESTS];
};

/* Around calls of the plugin that take the thread's current GPU for theirs. */
int tarn_tcpx_lend(const struct tarn_tcpx_comm *c, int *before_p);
void tarn_tcpx_take_back(const struct tarn_tcpx_comm *c, int before);
/* The gear's unpacker for the comm's GPU, which is opened if there is none. */
int tarn_tcpx_comm_unpacker(struct tarn_tcpx_comm *c);
/* As the calls of the unpacker. When the GPU fails nothing is under way any more: the gear's next one is
 * another. */
int tarn_tcpx_comm_unpack(struct tarn_tcpx_comm *c, const struct tarn_tcpx_fragments *f,
                          const struct tarn_tcpx_bounce *from, const struct tarn_tcpx_into *to,
                          uint64_t *ticket_p);
int tarn_tcpx_comm_unpacked(struct tarn_tcpx_comm *c, uint64_t ticket);

#endif
