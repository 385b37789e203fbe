/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ABI of NCCL's network plugins, versions 6, 7 and 8, as far as tarn uses it, and the metadata of
 * receives of plugins with device type UNPACK. These are tarn's own declarations: names follow tarn, layouts
 * follow the ABI. A plugin is a shared library that exports the table below, as its version has it, under
 * that version's symbol.
 *
 * All calls return an enum tarn_tcpx_result. docs/tcpx.md describes the behaviour of the plugin for TCPX.
 */
#ifndef TARN_TRANSPORT_TCPX_ABI_H
#define TARN_TRANSPORT_TCPX_ABI_H

#include <stddef.h>
#include <stdint.h>

#define TARN_TCPX_SYMBOL_V6 "ncclNetPlugin_v6"
#define TARN_TCPX_SYMBOL_V7 "ncclNetPlugin_v7"
#define TARN_TCPX_SYMBOL_V8 "ncclNetPlugin_v8"

#define TARN_TCPX_HANDLE 128 /* bytes that name a listening end; connect() also keeps a pointer in them */

/* Plugins also return values that are not listed here. */
enum tarn_tcpx_result {
    TARN_TCPX_SUCCESS,
    TARN_TCPX_CUDA_ERROR,
    TARN_TCPX_SYSTEM_ERROR,
    TARN_TCPX_INTERNAL_ERROR,
    TARN_TCPX_INVALID_ARGUMENT,
    TARN_TCPX_INVALID_USAGE,
    TARN_TCPX_REMOTE_ERROR,
    TARN_TCPX_IN_PROGRESS,
};

enum tarn_tcpx_memory { TARN_TCPX_HOST = 1, TARN_TCPX_CUDA = 2, TARN_TCPX_DMABUF = 4 };

enum tarn_tcpx_log_level {
    TARN_TCPX_LOG_NONE,
    TARN_TCPX_LOG_VERSION,
    TARN_TCPX_LOG_WARN,
    TARN_TCPX_LOG_INFO,
    TARN_TCPX_LOG_ABORT,
    TARN_TCPX_LOG_TRACE,
};

/* Called by any of the plugin's threads. */
typedef void (*tarn_tcpx_log_fn)(int level, unsigned long flags, const char *file, int line, const char *fmt,
                                 ...) __attribute__((format(printf, 5, 6)));

/* --- properties of a device --------------------------------------------------------------------- */

enum tarn_tcpx_device_type { TARN_TCPX_DEVICE_HOST, TARN_TCPX_DEVICE_UNPACK };

/* Version 6 ends before device_type. */
struct tarn_tcpx_properties_v7 {
    char *name;
    char *pci_path; /* NULL if it is no PCI device */
    uint64_t guid;
    int memory; /* flags of enum tarn_tcpx_memory */
    int speed;  /* Mbit/s */
    int port;
    float latency;
    int max_comms, max_recvs;
    int device_type, device_version;
};

struct tarn_tcpx_properties_v8 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int memory;
    int reg_is_global; /* inserted here: later members have other offsets than in version 7 */
    int speed;
    int port;
    float latency;
    int max_comms, max_recvs;
    int device_type, device_version;
};

/* --- unpacking ---------------------------------------------------------------------------------- */

#define TARN_TCPX_UNPACK_VERSION 7
#define TARN_TCPX_SLOTS 16       /* per comm: the k-th receive uses slot k % 16 */
#define TARN_TCPX_FRAGMENTS 2048 /* in one slot, at most */

/* One fragment of a receive: its offset in the bounce memory and its offset in the message. */
union tarn_tcpx_load {
    _Alignas(16) uint64_t r64[2];
    struct {
        uint32_t src_off, len;
        uint64_t dst_off;
    };
};

/* In host memory that the GPU also reaches. */
struct tarn_tcpx_meta {
    union tarn_tcpx_load mem[TARN_TCPX_SLOTS][TARN_TCPX_FRAGMENTS];
    uint64_t cnt[TARN_TCPX_SLOTS];
};

/* In GPU memory: what the handle of an UNPACK device points to. */
struct tarn_tcpx_unpack {
    struct tarn_tcpx_meta *meta;
    void *bounce; /* GPU memory */
    uint64_t head;
};

/* What accept() and connect() return for the device's side. */
struct tarn_tcpx_device_handle {
    int device_type, device_version;
    void *handle; /* UNPACK: a struct tarn_tcpx_unpack of `size` bytes, on the GPU */
    size_t size;
    int needs_proxy_progress;
};

/* --- the table ---------------------------------------------------------------------------------- */

/* Version 6 ends behind close_listen. Members that differ between versions are named after the first version
 * that has them so. */
struct tarn_tcpx_table {
    const char *name;
    int (*init)(tarn_tcpx_log_fn log);
    int (*devices)(int *ndev);
    union {
        int (*v7)(int dev, struct tarn_tcpx_properties_v7 *props);
        int (*v8)(int dev, struct tarn_tcpx_properties_v8 *props);
    } get_properties;
    int (*listen)(int dev, void *handle, void **listen_comm);
    union {
        int (*v6)(int dev, void *handle, void **send_comm);
        int (*v7)(int dev, void *handle, void **send_comm, struct tarn_tcpx_device_handle **send_dev);
    } connect;
    union {
        int (*v6)(void *listen_comm, void **recv_comm);
        int (*v7)(void *listen_comm, void **recv_comm, struct tarn_tcpx_device_handle **recv_dev);
    } accept;
    union {
        int (*v6)(void *comm, void *data, int size, int type, void **mhandle);
        int (*v8)(void *comm, void *data, size_t size, int type, void **mhandle);
    } reg_mr;
    int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                         void **mhandle);
    int (*dereg_mr)(void *comm, void *mhandle);
    int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listen_comm);
    int (*get_device_mr)(void *comm, void *mhandle, void **dptr);
    int (*irecv_consumed)(void *recv_comm, int n, void *request);
};
#define TARN_TCPX_TABLE_V6 offsetof(struct tarn_tcpx_table, get_device_mr) /* bytes */

/* --- layouts ------------------------------------------------------------------------------------ */

#define TARN_TCPX_AT(type_, member_, offset_) \
    _Static_assert(offsetof(type_, member_) == (offset_), #type_ "." #member_)
#define TARN_TCPX_SIZE(type_, bytes_) _Static_assert(sizeof(type_) == (bytes_), #type_)

TARN_TCPX_SIZE(struct tarn_tcpx_properties_v7, 56);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, pci_path, 8);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, guid, 16);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, memory, 24);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, speed, 28);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, port, 32);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, latency, 36);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, max_comms, 40);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, max_recvs, 44);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, device_type, 48);
TARN_TCPX_AT(struct tarn_tcpx_properties_v7, device_version, 52);

TARN_TCPX_SIZE(struct tarn_tcpx_properties_v8, 64);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, memory, 24);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, reg_is_global, 28);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, speed, 32);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, port, 36);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, latency, 40);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, max_comms, 44);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, max_recvs, 48);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, device_type, 52);
TARN_TCPX_AT(struct tarn_tcpx_properties_v8, device_version, 56);

TARN_TCPX_SIZE(union tarn_tcpx_load, 16);
_Static_assert(_Alignof(union tarn_tcpx_load) == 16, "alignment of a fragment");
TARN_TCPX_AT(union tarn_tcpx_load, src_off, 0);
TARN_TCPX_AT(union tarn_tcpx_load, len, 4);
TARN_TCPX_AT(union tarn_tcpx_load, dst_off, 8);

TARN_TCPX_SIZE(struct tarn_tcpx_meta, 524416);
TARN_TCPX_AT(struct tarn_tcpx_meta, mem[1], 32768);
TARN_TCPX_AT(struct tarn_tcpx_meta, cnt, 524288);

TARN_TCPX_SIZE(struct tarn_tcpx_unpack, 24);
TARN_TCPX_AT(struct tarn_tcpx_unpack, bounce, 8);
TARN_TCPX_AT(struct tarn_tcpx_unpack, head, 16);

TARN_TCPX_SIZE(struct tarn_tcpx_device_handle, 32);
TARN_TCPX_AT(struct tarn_tcpx_device_handle, device_version, 4);
TARN_TCPX_AT(struct tarn_tcpx_device_handle, handle, 8);
TARN_TCPX_AT(struct tarn_tcpx_device_handle, size, 16);
TARN_TCPX_AT(struct tarn_tcpx_device_handle, needs_proxy_progress, 24);

/* Every member of the table is a pointer. */
TARN_TCPX_AT(struct tarn_tcpx_table, init, 8);
TARN_TCPX_AT(struct tarn_tcpx_table, devices, 16);
TARN_TCPX_AT(struct tarn_tcpx_table, get_properties, 24);
TARN_TCPX_AT(struct tarn_tcpx_table, listen, 32);
TARN_TCPX_AT(struct tarn_tcpx_table, connect, 40);
TARN_TCPX_AT(struct tarn_tcpx_table, accept, 48);
TARN_TCPX_AT(struct tarn_tcpx_table, reg_mr, 56);
TARN_TCPX_AT(struct tarn_tcpx_table, reg_mr_dmabuf, 64);
TARN_TCPX_AT(struct tarn_tcpx_table, dereg_mr, 72);
TARN_TCPX_AT(struct tarn_tcpx_table, isend, 80);
TARN_TCPX_AT(struct tarn_tcpx_table, irecv, 88);
TARN_TCPX_AT(struct tarn_tcpx_table, iflush, 96);
TARN_TCPX_AT(struct tarn_tcpx_table, test, 104);
TARN_TCPX_AT(struct tarn_tcpx_table, close_send, 112);
TARN_TCPX_AT(struct tarn_tcpx_table, close_recv, 120);
TARN_TCPX_AT(struct tarn_tcpx_table, close_listen, 128);
TARN_TCPX_AT(struct tarn_tcpx_table, get_device_mr, 136);
TARN_TCPX_AT(struct tarn_tcpx_table, irecv_consumed, 144);
TARN_TCPX_SIZE(struct tarn_tcpx_table, 152);

#undef TARN_TCPX_SIZE
#undef TARN_TCPX_AT

#endif
