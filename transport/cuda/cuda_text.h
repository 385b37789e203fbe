/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's uuids and handles as text: for settings, the directory and ATTACH. */
#ifndef TARN_TRANSPORT_CUDA_TEXT_H
#define TARN_TRANSPORT_CUDA_TEXT_H

#include "transport/cuda/cuda.h"

#define TARN_CUDA_UUID_TEXT 41
#define TARN_CUDA_HANDLE_TEXT (2 * TARN_CUDA_HANDLE + 1)

/* "GPU-8d3c5f0a-....", as nvidia-smi -L prints it. */
void tarn_cuda_uuid_format(const uint8_t uuid[TARN_CUDA_UUID], char out[TARN_CUDA_UUID_TEXT]);
/* With or without the prefix "GPU-" or "MIG-". False: not a uuid. */
bool tarn_cuda_uuid_parse(const char *text, size_t bytes, uint8_t uuid[TARN_CUDA_UUID]);

void tarn_cuda_handle_format(const uint8_t handle[TARN_CUDA_HANDLE], char out[TARN_CUDA_HANDLE_TEXT]);
bool tarn_cuda_handle_parse(const char *text, size_t bytes, uint8_t handle[TARN_CUDA_HANDLE]);

#endif
