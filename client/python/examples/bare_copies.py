# SPDX-License-Identifier: Apache-2.0
"""The baseline for a load of blocks: copies of as many blocks without a store."""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

import numpy as np

from kv_blocks import PagedKV


class BareCopies:
    """blocks()      from contiguous blocks to their scattered pages, as the load does it
    contiguous()  as many bytes in one copy that knows no pages
    by            what blocks() uses: the quickest of the plain ways between these memories

    Both return seconds, until the copy has ended. `from_gpu`: the source is in the memory of the pool's GPU;
    otherwise of the host, pinned where the pool is a GPU's.
    """

    def __init__(self, kv: PagedKV, count: int, from_gpu: bool) -> None:
        self.kv, shape = kv, (count, *kv.shape.block)
        self.source: Any
        self.flat: Any
        self._copy: Callable[[Any, Any, Any], None]
        if not kv.is_torch:
            self.source, self.flat = np.ones(shape, kv.array.dtype), np.empty(shape, kv.array.dtype)
            self.by, self._copy = "an assignment a block", self._assign
            return
        import torch

        on_gpu = kv.array.device.type == "cuda"
        self.source = torch.ones(shape, dtype=kv.array.dtype, pin_memory=on_gpu and not from_gpu)
        self.flat = torch.empty(shape, dtype=kv.array.dtype, device=kv.array.device)
        self.by, self._copy = "copy_() a block", self._copy_each
        if from_gpu:
            self.source = self.source.to(kv.array.device)
            self.by, self._copy = "a kernel", _page_kernel()

    def blocks(self, table: Sequence[int]) -> float:
        index = self.kv.index(table)
        return self._timed(lambda: self._copy(self.kv.array, self.source, index))

    def contiguous(self) -> float:
        if self.kv.is_torch:
            return self._timed(lambda: self.flat.copy_(self.source, non_blocking=True))
        return self._timed(lambda: np.copyto(self.flat, self.source))

    def _assign(self, to: np.ndarray, source: np.ndarray, index: np.ndarray) -> None:
        for i, b in enumerate(index):
            to[:, :, b] = source[i]

    def _copy_each(self, to: Any, source: Any, index: Any) -> None:
        for i, b in enumerate(index.tolist()):
            to[:, :, b].copy_(source[i], non_blocking=True)

    def _timed(self, copy: Callable[[], Any]) -> float:
        self._synchronize()
        start = time.perf_counter()
        copy()
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.kv.is_torch and self.flat.is_cuda:
            import torch

            torch.cuda.synchronize(self.flat.device)


def _page_kernel() -> Callable[[Any, Any, Any], None]:
    """A program for each page of each layer, as plain as can be. (torch has index_copy_ for this, which goes
    element by element and is several times slower.)"""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(to, source, index, nblocks, WORDS: tl.constexpr, WIDE: tl.constexpr):
        i, plane, planes = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
        at = tl.arange(0, WIDE)
        words = tl.load(source + (i * planes + plane) * WORDS + at, mask=at < WORDS)
        tl.store(to + (plane * nblocks + tl.load(index + i)) * WORDS + at, words, mask=at < WORDS)

    def copy(to: Any, source: Any, index: Any) -> None:
        to, source = to.view(torch.int64), source.view(torch.int64)  # 8 bytes at a time
        words = to[0, 0, 0].numel()
        grid = (len(source), source.shape[1] * source.shape[2])
        kernel[grid](to, source, index, to.shape[2], WORDS=words, WIDE=triton.next_power_of_2(words))

    return copy
