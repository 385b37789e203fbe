/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of comms: tcpx_setup.c makes and ends them, tcpx_comm.c moves their messages, tcpx_memory.c
 * has their ranges. */
#ifndef TARN_TRANSPORT_TCPX_COMM_STATE_H
#define TARN_TRANSPORT_TCPX_COMM_STATE_H

#include "transport/tcpx/tcpx_dial.h"
#include "transport/tcpx/tcpx_gear.h"

enum tarn_tcpx_state { TARN_TCPX_OPENING, TARN_TCPX_LEARNING, TARN_TCPX_READY, TARN_TCPX_FAILED };

struct tarn_tcpx_request {
    void *request, *owner;
    uint32_t bytes;
    struct tarn_tcpx_mapping *mapping; /* caller's memory that the plugin was told of; NULL: none */
    /* receives: */
    bool in_place; /* the plugin writes it to its destination */
    bool aimed;    /* the comm's aim() was asked */
    bool dropped;  /* ... and said no */
    uint64_t ticket;
    struct tarn_tcpx_into into;
};

struct tarn_tcpx_comm {
    struct tarn_tcpx_gear *gear;
    struct tarn_tcpx_plugin *plugin;
    void (*done)(void *owner, uint32_t bytes);
    bool (*aim)(void *owner, struct tarn_tcpx_into *into, uint32_t bytes); /* NULL: receives have pieces */
    int nic, gpu;
    bool sends, plain;
    enum tarn_tcpx_state state;
    struct tarn_tcpx_dial *dial;
    void *comm; /* the plugin's */
    uint32_t gear_chunk;
    struct tarn_tcpx_range *own, *lent;
    uint64_t gone; /* value of the mappings' `gone` at its last look */
    /* receives */
    struct tarn_tcpx_unpack unpack;
    uint64_t unpack_ticket;
    struct tarn_piece unpack_piece;
    bool has_unpacker;
    uint32_t turn; /* the unpacker's; after a failure the gear's unpacker has another */
    struct tarn_tcpx_bounce bounce;
    uint64_t bounce_bytes;
    uint8_t *memory; /* memory that receives are posted with; PLAIN: they end up there unless in place */
    uint64_t memory_bytes;
    bool memory_gpu, memory_pinned;
    void *memory_gpu_at; /* the allocation behind it */
    void *memory_mr;

    uint64_t posted, there, begun, ended;
    uint64_t asked_ns, waited_ns; /* the oldest request: when last tested, and for how long in total */
    struct tarn_tcpx_request ring[TARN_TCPX_REQUESTS];
};

#endif
