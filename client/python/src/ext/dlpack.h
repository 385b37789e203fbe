/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of DLPack that are used here; see dlpack.c. */
#ifndef TARN_PYTHON_DLPACK_H
#define TARN_PYTHON_DLPACK_H

#include <stdint.h>

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* elements; NULL: contiguous */
    uint64_t byte_offset;
};

/* What a capsule "dltensor" points to. Its taker calls the deleter when done, on any thread. */
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *m);
};

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_UINT = 1 };

#endif
