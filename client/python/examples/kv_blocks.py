# SPDX-License-Identifier: Apache-2.0
"""Shared by the examples: names for KV blocks, and the paged pool that holds the blocks.

A *block* is the keys and values of `block_tokens` consecutive tokens in all layers. Its name says which
tokens it is of and everything they were computed from, so equal names mean equal bytes, whoever computed them:

    name(block i) = hash(name(block i - 1), token ids of block i)
    name(nothing) = hash(model, dtype, tensor-parallel rank of how many, tokens in a block)

so the blocks of a prompt form a chain: how much of it is stored already is the length of its leading run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Union

import numpy as np
import tarn

Ints = Union[Sequence[int], np.ndarray]  # token ids, numbers of blocks

HASH_BYTES = 16
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class KVShape:
    """The part of a model's shape that its KV cache has. `dtype` is one of tarn's names."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_tokens: int = 16

    @property
    def block(self) -> tuple[int, ...]:
        return (self.layers, 2, self.block_tokens, self.kv_heads, self.head_dim)

    @property
    def run_bytes(self) -> int:
        """What of a block is contiguous in a paged pool: its keys, or its values, of one layer."""
        return self.block_tokens * self.kv_heads * self.head_dim * ELEMENT_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.run_bytes


def require(true: bool, otherwise: str) -> None:
    """An assertion that `python -O` keeps."""
    if not true:
        raise AssertionError(otherwise)


# --- names ----------------------------------------------------------------------------------------------


def chain_root(model: str, dtype: str, block_tokens: int, rank: int = 0, ranks: int = 1) -> bytes:
    """Where chains begin. Blocks of another model, precision, shard or size never share a name."""
    text = f"{model}\0{dtype}\0{rank}/{ranks}\0{block_tokens}"
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def chain_keys(root: bytes, tokens: Ints, block_tokens: int, name: str = "kv") -> list[str]:
    """The keys of the prompt's full blocks, in order. A block that is not full yet has no name."""
    ids = np.ascontiguousarray(tokens, dtype="<u4").tobytes()
    step = 4 * block_tokens
    keys, parent = [], root
    for end in range(step, len(ids) + 1, step):
        parent = hashlib.blake2b(parent + ids[end - step : end], digest_size=HASH_BYTES).digest()
        keys.append(f"{name}/{parent.hex()}")
    return keys


# --- the paged pool -------------------------------------------------------------------------------------


class PagedKV:
    """An engine's KV memory, as vLLM lays it out: every layer has its own pages.

        array   [layers, 2, blocks, block_tokens, kv_heads, head_dim], NumPy or torch, on any device

    A sequence has a *table*: the blocks that hold its tokens, in order, anywhere in the pool. One block is
    `array[:, :, b]`: 2 * layers runs, a layer's pages apart. For tarn the pool is a layout of 2 * layers arrays:
    it moves blocks by their numbers, straight from where they lie into one contiguous object and back, so
    nothing is gathered into a buffer before.
    """

    def __init__(self, array: Any, shape: KVShape) -> None:
        assert tuple(array.shape[:2]) == shape.block[:2] and tuple(array.shape[3:]) == shape.block[2:]
        self.array, self.shape = array, shape
        self.is_torch = not isinstance(array, np.ndarray)
        self.nblocks: int = array.shape[2]
        self._free = list(range(self.nblocks))[::-1]
        addr = array.data_ptr() if self.is_torch else array.ctypes.data
        # -1: host memory. Without it, tarn would ask CUDA about each address.
        device = array.device.index if self.is_torch and array.device.type == "cuda" else -1
        self.layout = tarn.Layout([array[layer, part] for layer in range(shape.layers) for part in (0, 1)])
        self._addr, self._device = addr, device

    def layer_pieces(self, layer: int, table: Sequence[int]) -> list[tarn.Piece]:
        """The pages of one layer: the keys of all blocks of the table, then the values. Those that lie one
        behind the other in memory are one piece."""
        run, pieces = self.shape.run_bytes, []
        for plane in (2 * layer, 2 * layer + 1):
            for first, count in _runs(table):
                addr = self._addr + (plane * self.nblocks + first) * run
                pieces.append(tarn.Piece(addr, count * run, device=self._device, keep=self.array))
        return pieces

    # Which blocks are whose.

    def shuffle(self, seed: int) -> None:
        """Gives the free blocks out in random order, as in an engine that has run for a while."""
        np.random.default_rng(seed).shuffle(self._free)

    def take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise MemoryError(f"the KV pool has {len(self._free)} free blocks, {count} are wanted")
        return [self._free.pop() for _ in range(count)]

    def take_for(self, tokens: int) -> list[int]:
        return self.take(-(-tokens // self.shape.block_tokens))

    def drop(self, table: Iterable[int]) -> None:
        """Gives blocks back and wipes them, so that whatever is read from them later was loaded."""
        table = list(table)
        if self.is_torch:
            self.array.index_fill_(2, self.index(table), 0)
        else:
            self.array[:, :, table] = 0
        self._free.extend(reversed(table))

    # What the model does.

    def index(self, numbers: Ints) -> Any:
        """Numbers as an index for `array`, on its device."""
        if not self.is_torch:
            return np.asarray(numbers, dtype=np.int64)
        import torch

        return torch.tensor(numbers, dtype=torch.int64).to(self.array.device, non_blocking=True)

    def slots(self, table: Sequence[int], first: int, count: int) -> Any:
        """Where tokens first .. first + count of a sequence are within a layer's pages."""
        at = np.arange(first, first + count)
        size = self.shape.block_tokens
        return self.index(np.asarray(table)[at // size] * size + at % size)

    def write(self, layer: int, slots: Any, keys: Any, values: Any) -> None:
        """Keys and values, [tokens, kv_heads, head_dim] each, to their slots."""
        pages = self.array[layer].reshape(2, -1, *self.shape.block[3:])
        pages[0][slots] = keys
        pages[1][slots] = values

    def read(self, layer: int, blocks: Any, tokens: int) -> tuple[Any, Any]:
        """The first tokens' keys and values, [tokens, kv_heads, head_dim] each. An engine's attention kernel
        would follow the table itself; here the pages are gathered for a plain one."""
        keys, values = (
            self.array[layer, part][blocks].reshape(-1, *self.shape.block[3:])[:tokens] for part in (0, 1)
        )
        return keys, values


def _runs(table: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive blocks as (first, count)."""
    runs: list[tuple[int, int]] = []
    for b in table:
        if runs and b == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((b, 1))
    return runs
