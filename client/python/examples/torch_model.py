# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face causal language model whose KV cache is a paged pool (kv_blocks.PagedKV).

transformers asks its cache object for every layer's keys and values as it comes to that layer. This one writes
the new ones to their pages and reads the sequence's pages back; it is also where a layer is waited for.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Sequence

# What makes matrix products repeatable from call to call; read when cuBLAS is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import tarn
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
from transformers.cache_utils import Cache, CacheLayerMixin

from kv_blocks import Ints, KVShape, PagedKV

Hook = Optional[Callable[[int], None]]

SHAPES = {
    "tiny": dict(
        vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    ),
    "8b": dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, rope_theta=500000.0,
    ),
}  # fmt: skip
STORE_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class PagedLayer(CacheLayerMixin):
    """One layer of the pool, as transformers sees it during one forward pass."""

    is_sliding = False

    def __init__(self, kv: PagedKV, layer: int, past: int, slots: Any, blocks: Any, wanted: Hook, written: Hook):
        super().__init__()
        self.kv, self.layer, self.past, self.slots, self.blocks = kv, layer, past, slots, blocks
        self.wanted, self.written = wanted, written

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any):
        """[1, kv_heads, tokens, head_dim] of the new tokens; returns those of all tokens."""
        if self.wanted:
            self.wanted(self.layer)
        self.kv.write(self.layer, self.slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        if self.written:
            self.written(self.layer)
        both = self.kv.read(self.layer, self.blocks, self.past + keys.shape[2])
        return tuple(x.transpose(0, 1).unsqueeze(0) for x in both)

    def get_seq_length(self, *_: Any) -> int:
        return self.past

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        return self.past + int(getattr(query, "shape", [query])[0]), 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5

    def lazy_initialization(self, *_: Any) -> None:
        """The pool is there already."""


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """Causal attention behind a prefix. transformers' own would make a mask of tokens x all tokens for it,
    which the fast kernels do not take; they know "the last query sees all keys" by themselves."""
    tokens, total = query.shape[2], key.shape[2]
    mask = causal_lower_right(tokens, total) if 1 < tokens < total else None
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=tokens == total > 1, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("tarn_paged", attention)


class TorchLM:
    """A causal LM with the same interface as tiny_numpy.TinyNumpyLM.

    shape   "tiny" or "8b": a Llama of that shape, random weights made from `seed` on the device
    model   a checkpoint's path instead
    """

    def __init__(
        self,
        shape: str = "tiny",
        model: str | None = None,
        device: str = "cpu",
        dtype: str = "bf16",
        seed: int = 0,
        block_tokens: int = 16,
    ) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs time
        self.dtype = next(t for t, name in STORE_DTYPES.items() if name == dtype)
        if model:
            self.lm = AutoModelForCausalLM.from_pretrained(
                model, dtype=self.dtype, attn_implementation="tarn_paged"
            ).to(self.device)
        else:
            self.lm = self._random(shape, seed)
        self.lm.eval().requires_grad_(False)
        c = self.lm.config
        self.id = model or f"llama-{shape}/seed{seed}"
        self.vocab = c.vocab_size
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.kv_shape = KVShape(c.num_hidden_layers, c.num_key_value_heads, head_dim, dtype, block_tokens)

    def _random(self, shape: str, seed: int) -> torch.nn.Module:
        sizes = SHAPES[shape]
        config = LlamaConfig(
            **sizes,
            max_position_embeddings=131072,
            tie_word_embeddings=False,
            initializer_range=sizes["hidden_size"] ** -0.5,  # every layer counts, as in a trained model
        )
        torch.manual_seed(seed)
        with self.device:
            lm = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="tarn_paged")
        return lm.to(self.device)

    def new_kv(self, nblocks: int, lend: bool = False) -> PagedKV:
        """`lend`: in memory that other processes of the host can reach through a window."""
        s = self.kv_shape
        shape = (s.layers, 2, nblocks, *s.block[2:])
        if not lend or self.device.type != "cpu":
            return PagedKV(torch.zeros(shape, dtype=self.dtype, device=self.device), s)
        memory = tarn.WindowMemory(nblocks * s.block_bytes)
        return PagedKV(torch.frombuffer(memory, dtype=self.dtype).reshape(shape), s)

    @torch.inference_mode()
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
    ) -> torch.Tensor:
        """See TinyNumpyLM.forward. Returns at once: the GPU may still be busy with it."""
        slots = kv.slots(table, past, len(tokens))
        blocks = kv.index(table[: -(-(past + len(tokens)) // kv.shape.block_tokens)])
        layers = [
            PagedLayer(kv, i, past, slots, blocks, layer_wanted, layer_written)
            for i in range(kv.shape.layers)
        ]
        ids = torch.as_tensor(np.asarray(tokens, dtype=np.int64)).to(self.device).unsqueeze(0)
        out = self.lm(ids, past_key_values=Cache(layers=layers), use_cache=True, logits_to_keep=logits)
        return out.logits[0]

    def synchronize(self) -> None:
        """Waits for what forward() has begun, not for copies that others make meanwhile."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def fence(self) -> Callable[[], None]:
        """A function that waits until the KV written so far is in memory, and for nothing behind it."""
        if self.device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event.synchronize
