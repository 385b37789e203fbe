# SPDX-License-Identifier: Apache-2.0
"""A small decoder-only transformer in NumPy: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

It stands in for a real model where there is no torch. Its weights are random (seeded), so what it says means
nothing, but it depends on every token before, as a real model's output does: one wrong byte of KV shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Sequence

import numpy as np
import tarn

from kv_blocks import Ints, KVShape, PagedKV

Array = np.ndarray
Hook = Optional[Callable[[int], None]]


@dataclass(frozen=True)
class TinyConfig:
    vocab: int = 512
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 160
    rope_base: float = 10000.0
    eps: float = 1e-5


class TinyNumpyLM:
    """The same interface as torch_model.TorchLM; `device` is for that one."""

    name = "tiny-numpy"
    device = "cpu"

    def __init__(self, config: TinyConfig = TinyConfig(), seed: int = 0, block_tokens: int = 16) -> None:
        c = self.config = config
        self.id = f"{self.name}/{c}/seed{seed}"
        self.vocab = c.vocab
        self.kv_shape = KVShape(c.layers, c.kv_heads, c.head_dim, "f32", block_tokens)
        rng = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> Array:
            return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(rows**-0.5)

        self.embed = rng.standard_normal((c.vocab, c.hidden), dtype=np.float32)
        self.layers = [
            dict(
                q=matrix(c.hidden, c.heads * c.head_dim),
                k=matrix(c.hidden, c.kv_heads * c.head_dim),
                v=matrix(c.hidden, c.kv_heads * c.head_dim),
                o=matrix(c.heads * c.head_dim, c.hidden),
                gate=matrix(c.hidden, c.intermediate),
                up=matrix(c.hidden, c.intermediate),
                down=matrix(c.intermediate, c.hidden),
            )
            for _ in range(c.layers)
        ]
        self.head = matrix(c.hidden, c.vocab) * np.float32(4)
        self.rope_steps = c.rope_base ** (-np.arange(c.head_dim // 2, dtype=np.float64) * 2 / c.head_dim)

    def new_kv(self, nblocks: int, lend: bool = False) -> PagedKV:
        """`lend`: in memory that other processes of the host can reach through a window."""
        s = self.kv_shape
        shape = (s.layers, 2, nblocks, *s.block[2:])
        if not lend:
            return PagedKV(np.zeros(shape, dtype=np.float32), s)
        memory = tarn.WindowMemory(nblocks * s.block_bytes)
        return PagedKV(np.frombuffer(memory, np.float32).reshape(shape), s)

    def forward(
        self,
        tokens: Ints,
        past: int,
        table: Sequence[int],
        kv: PagedKV,
        *,
        logits: int = 1,
        layer_wanted: Hook = None,
        layer_written: Hook = None,
    ) -> Array:
        """Computes tokens that come behind `past` others, whose KV is in the table's blocks; theirs is written
        there. Returns the last `logits` tokens' logits, [logits, vocab].

        layer_wanted(i) is called before the KV of layer i is touched, layer_written(i) when the tokens' own was
        written, before the attention that uses it.
        """
        slots = kv.slots(table, past, len(tokens))
        blocks = kv.index(table[: -(-(past + len(tokens)) // kv.shape.block_tokens)])
        turn = self._rotation(past, len(tokens))
        x = self.embed[np.asarray(tokens)]
        for i, w in enumerate(self.layers):
            h = _rms_norm(x, self.config.eps)
            q, k, v = (
                (h @ w[name]).reshape(len(tokens), -1, self.config.head_dim) for name in ("q", "k", "v")
            )
            if layer_wanted:
                layer_wanted(i)
            kv.write(i, slots, _rotate(k, turn), v)
            if layer_written:
                layer_written(i)
            keys, values = kv.read(i, blocks, past + len(tokens))
            x = x + _attention(_rotate(q, turn), keys, values) @ w["o"]
            h = _rms_norm(x, self.config.eps)
            gate = h @ w["gate"]
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]
        return _rms_norm(x[-logits:], self.config.eps) @ self.head

    def synchronize(self) -> None:
        """Waits for what forward() has begun: here nothing."""

    def fence(self) -> Callable[[], None]:
        """A function that waits until the KV written so far is in memory: here nothing is awaited."""
        return lambda: None

    def _rotation(self, past: int, count: int) -> tuple[Array, Array]:
        angle = np.arange(past, past + count)[:, None] * self.rope_steps
        return (np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32))


def _rms_norm(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))


def _rotate(x: Array, turn: tuple[Array, Array]) -> Array:
    (cos, sin), (a, b) = turn, np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Causal: the last query sees all keys. q is [tokens, heads, head_dim], k and v have fewer heads."""
    n, heads, dim = q.shape
    total, kv_heads, _ = k.shape
    q = q.reshape(n, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
    score = q @ k.transpose(1, 2, 0)[:, None] * np.float32(dim**-0.5)
    future = np.arange(total)[None, :] > np.arange(total - n, total)[:, None]
    score[..., future] = -np.inf
    weight = np.exp(score - score.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return (weight @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(n, heads * dim)
