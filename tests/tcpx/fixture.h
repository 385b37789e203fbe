/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixture plugin: a network plugin for tests, over TCP on the loopback device. It has the restrictions
 * and faults that were observed with the plugin for TCPX (docs/tcpx.md). Its speed means nothing.
 *
 *   ABI  libtcpx-fixture-v7.so; -v6.so has no unpacking, -v8.so is like v7
 *   env  NCCL_DYNAMIC_CHUNK_SIZE, NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD sockets (1 to 8), and
 *        TCPX_FIXTURE="name=value,..." with the names in options.c, which include faults; an unknown name
 *        ends the process
 *   counters  tcpx_fixture_counters(), or the file in TCPX_FIXTURE_COUNTERS, which processes may share
 *
 * Bytes move only inside isend(), irecv() and test(), not while the caller sleeps. A comm has one control
 * connection and 1 to 8 for data. A message is cut into pieces, in any order and each for some socket. A
 * record on the control connection lists the pieces; the data connections carry only bytes:
 *   record = size, count, count x {dst_off, bytes, socket}; 32 bit each, host byte order
 * In mode UNPACK a receiver reads into pages of its bounce memory. Each page has one fragment, of random
 * length at a random offset. Each page is a token. irecvConsumed() returns the tokens and poisons the pages.
 *
 * Only one thread at a time may use a comm. Comms of different threads share only the counters and the number
 * of mappings of the bounce memory.
 */
#ifndef TARN_TESTS_TCPX_FIXTURE_H
#define TARN_TESTS_TCPX_FIXTURE_H

#include <stdbool.h>

#include "tests/tcpx/counters.h"
#include "transport/tcpx/plugin/tcpx_abi.h"

enum {
    FIXTURE_REQUESTS = 16,
    FIXTURE_SOCKETS = 8,
    FIXTURE_PIECES = 32,
    FIXTURE_QUEUED = 6, /* messages of one socket before the plugin complains */
    FIXTURE_PAGE = 4096,
    FIXTURE_ACCEPT_TWICE = 12334,
    FIXTURE_RECORD = 8 + FIXTURE_PIECES * 12,
};

#define FIXTURE_POISON 0xdb

/* --- options.c ---------------------------------------------------------------------------------- */

/* A fault's value is the number of the request in the process, from 1; 0: never. */
struct fixture_options {
    uint64_t init, devices, plain, version, pci, gpu;
    uint64_t seed, cut_min, cut_max, pages, setup_ms, delay_ms;
    uint64_t send_error, send_hang, send_exit, send_close, drop_after, helper_error;
    uint64_t recv_error, recv_deaf, recv_hang, recv_exit, recv_close, close_ms, bad_dst, bad_src, bad_sum,
        bad_count, bad_bytes;
    uint64_t init_exit, init_hang, accept_error, reg_error;
    uint64_t accept_blocks, connect_blocks, isend_ms, listen_ms, map_unguarded, late_table, null_requests,
        tell_sizes, send_more;
    /* from the plugin's own environment variables */
    uint64_t chunk, sockets;
};
extern struct fixture_options fixture_options;
extern const int fixture_abi; /* plugin.c */
extern struct fixture_counters *fixture_count;
extern tarn_tcpx_log_fn fixture_log;

/* Called once, in init(). */
void fixture_read_options(void);
#define FIXTURE_WARN(...) fixture_log(TARN_TCPX_LOG_WARN, 0, __FILE__, __LINE__, __VA_ARGS__)
/* The caller made a mistake that crashes the plugin for TCPX: prints `why` to stderr and ends the process. */
_Noreturn void fixture_crash(const char *why);
/* For cases in which the plugin for TCPX also ends the process by itself. */
_Noreturn void fixture_exit(const char *why);
uint64_t fixture_now_ns(void);
uint64_t fixture_random(uint64_t *state);

/* --- comms -------------------------------------------------------------------------------------- */

struct fixture_piece {
    uint32_t dst_off, bytes, socket;
};

struct fixture_comm;

struct fixture_request {
    struct fixture_comm *comm;
    uint64_t seq;    /* number in its comm, from 0 */
    uint64_t number; /* number of the send or receive in the process, from 1 */
    struct fixture_mr *mr;
    uint8_t *data;
    uint64_t size, moved; /* size: of the message, as the sender gave it */
    uint64_t posted;      /* receives: size that the receiver posted */
    uint64_t record_end;  /* sends: bytes of the control connection up to the end of the record */
    uint64_t ready_ns;
    bool done, refused;
    bool lost; /* test() says that it was sent, but it was not */
    uint32_t npieces;
    struct fixture_piece pieces[FIXTURE_PIECES];
    uint8_t *staging; /* sends from a GPU: host copy of the bytes */
    uint64_t staging_bytes;
    uint32_t nfragments;
    union tarn_tcpx_load *fragments;
};

struct fixture_mr {
    struct fixture_comm *comm;
    uint8_t *data;
    uint64_t size;
    int type;
    bool on_gpu;
};

/* A socket's position in the pieces of its comm. */
struct fixture_cursor {
    uint64_t seq;
    uint32_t piece, done;
};

struct fixture_comm {
    bool sends, dead, stuck;
    int control, socket[FIXTURE_SOCKETS];
    uint32_t nsockets;
    struct fixture_cursor cursor[FIXTURE_SOCKETS];
    uint64_t random;
    /* posted >= planned >= tested >= released; planned: the pieces are known */
    uint64_t posted, planned, tested, released;
    struct fixture_request request[FIXTURE_REQUESTS];
    uint8_t buffer[FIXTURE_REQUESTS * FIXTURE_RECORD]; /* of the control connection, to send or received */
    uint32_t buffered;
    uint64_t control_bytes; /* sends: bytes given to the kernel */
    /* for unpacking */
    struct tarn_tcpx_meta *meta;
    struct tarn_tcpx_unpack *unpack;
    uint8_t *bounce, *shadow; /* the same memory; with a GPU `bounce` is on the GPU, `shadow` on the host */
    uint32_t *free_pages, nfree, npages;
    uint64_t mapping; /* number of its mapping in the process */
    void *context;
};

/* comm.c. */
struct fixture_comm *fixture_comm_new(bool sends, uint32_t nsockets);
void fixture_comm_free(struct fixture_comm *c);
struct fixture_request *fixture_request_new(struct fixture_comm *c);
struct fixture_request *fixture_request_at(struct fixture_comm *c, uint64_t seq);
/* Moves the cursor to the socket's next piece and returns it. NULL: none is known yet. */
struct fixture_piece *fixture_cursor_at(struct fixture_comm *c, struct fixture_cursor *at, uint32_t socket,
                                        struct fixture_request **r_p);
/* True: mode UNPACK. False: the plugin places received bytes itself. */
bool fixture_unpacks(void);
/* Closes the connections. Bytes in flight are lost. */
void fixture_cut_off(struct fixture_comm *c);
/* For sends: is the control connection still open? The peer never sends on it. */
bool fixture_peer_is_there(struct fixture_comm *c);

/* setup.c, then send.c and receive.c: the functions of the table, and the functions that move bytes. */
int fixture_listen(int dev, void *handle, void **listen_comm);
int fixture_connect(int dev, void *handle, void **send_comm);
int fixture_accept(void *listen_comm, void **recv_comm);
int fixture_close_listen(void *listen_comm);

int fixture_isend(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
void fixture_send_progress(struct fixture_comm *c);

int fixture_irecv(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                  void **request);
void fixture_receive_progress(struct fixture_comm *c);
/* Publishes the list of fragments of a receive that is done. */
void fixture_publish(struct fixture_request *r);
/* Writes once more to all posted receives: their memory belongs to the plugin until the comm is closed. */
void fixture_write_late(struct fixture_comm *c);
/* True: this call returns no request (option null_requests). */
bool fixture_has_no_room(void);
/* Returns the request's pages. */
void fixture_return_pages(struct fixture_request *r);
int fixture_bounce_new(struct fixture_comm *c, struct tarn_tcpx_device_handle *device);
void fixture_bounce_free(struct fixture_comm *c);

/* --- gpu.c: uses the driver, which is loaded if the option gpu is set --------------------------- */

bool fixture_gpu_open(void);
void *fixture_gpu_context(void); /* of the calling thread; NULL: none */
bool fixture_gpu_has(const void *p);
void *fixture_gpu_alloc(size_t bytes);
void *fixture_gpu_alloc_host(size_t bytes);
void fixture_gpu_free(void *p);
void fixture_gpu_free_host(void *p);
/* Copies between any two memories. The copy is complete when it returns. */
void fixture_gpu_copy(void *context, void *to, const void *from, size_t bytes);

#endif
