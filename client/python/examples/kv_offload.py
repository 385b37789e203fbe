# SPDX-License-Identifier: Apache-2.0
"""KV-cache offload: a prompt's prefix is computed once, kept in tarn, and brought back instead of recomputed.

    python kv_offload.py                                             # small, on the CPU, without torch
    python kv_offload.py --backend torch --shape 8b --device cuda:0 --tokens 1024,8192,32768
    python kv_offload.py --backend torch --model /path/to/checkpoint --device cuda:0

For each length of prompt and each pool: the prompt is prefilled, its blocks are put as they fill, and dropped from
the engine's own pool. The same prompt comes again: its longest stored prefix is found, brought back in one batch
into other blocks of the paged pool, and only what is behind it is computed. Printed is what this takes until
the first token, beside computing all again; and how quick the load was, beside a bare copy of the same blocks.

Both ways end in the same kernels over the same shapes, so the logits are compared bit for bit. A prefill
of the whole prompt in one pass has other shapes, for which matrix products are summed in another order; its
logits differ by rounding, and must stay within a bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import tarn

from bare_copies import BareCopies
from kv_blocks import Ints, PagedKV, chain_keys, chain_root, require
from local_nodes import local_nodes

# Largest difference between chunked and one-pass logits, as a share of the largest logit: some roundings to
# 8 (bf16), 11 or 24 bits in a row.
ONE_PASS_BOUND = {"bf16": 2**-4, "f16": 2**-7, "f32": 2**-14}

# What a retry does not mend. After any other error the block is computed, as after a miss.
MISTAKES = (tarn.Invalid.code, tarn.SizeMismatch.code, tarn.TensorMismatch.code)


class BlockStore:
    """Blocks of a paged pool, in a tarn pool under their chained names.

    span    blocks in one object. With 1 prompts share as much as they can; more are fewer keys to look up and to
            move, as in stores that keep 256 tokens under a name while the engine's blocks have 16
    place   NODE/POOL that blocks are put to; None: any
    """

    def __init__(self, client: tarn.Client, kv: PagedKV, span: int = 1, place: str | None = None) -> None:
        self.client, self.kv, self.span, self.place = client, kv, span, place
        self.tokens = span * kv.shape.block_tokens  # in an object

    def keys(self, root: bytes, tokens: Ints) -> list[str]:
        return chain_keys(root, tokens, self.tokens)

    def save(self, keys: Sequence[str], blocks: Sequence[int], before: str | None = None) -> tarn.Operation:
        """Begins to put full blocks; they must stay until the operation is waited for. before: the key of the
        object that they continue; None: they begin a prompt."""
        objects = (blocks[i : i + self.span] for i in range(0, len(blocks), self.span))
        return self.client.submit_put(zip(keys, map(self.kv.layout.pages, objects)), place=self.place,
                                      chain=before or True)

    def match(self, keys: Sequence[str]) -> tarn.Hits:
        """One round trip. The hits know where the objects are: the load asks nobody."""
        return self.client.match_prefix(keys)

    def load(self, keys: Sequence[str], blocks: Sequence[int], hits: tarn.Hits) -> int:
        """Brings the leading hits into these blocks; returns how many objects are there. One that was evicted
        since it was looked up ends the prefix: those behind it do not count."""
        count = hits.pages
        pages = self.kv.layout.pages(blocks[: count * self.span])
        status = self.client.get_into_many(keys[:count], pages, hits=hits)
        if min(status, default=0) >= 0:
            return count
        for key, code in zip(keys, status):
            if code in MISTAKES:
                raise tarn.error_of(code, key)
        return next(i for i, code in enumerate(status) if code < 0)


def saved(operation: tarn.Operation) -> None:
    """Waits for a save. A block that another engine has stored meanwhile has the same bytes."""
    for code in operation.wait():
        if code < 0 and code != tarn.Exists.code:
            raise tarn.error_of(code)


def prefill(
    lm: Any,
    kv: PagedKV,
    tokens: Ints,
    table: Sequence[int],
    first: int,
    cut: int,
    chunk: int,
    filled: Callable[[int, int], None] | None = None,
) -> Any:
    """Computes tokens[first:] in chunks, one of which ends at `cut`; returns the logits behind it. What
    is computed depends on `cut` and `chunk` only, not on `first`, as long as that is one of the ends."""
    ends = [*range(chunk, cut, chunk), cut, len(tokens)]
    for end in (e for e in ends if e > first):
        logits = lm.forward(tokens[first:end], first, table, kv, logits=len(tokens) - cut)
        if filled:
            filled(first, end)
        first = end
    return logits


def host(logits: Any) -> np.ndarray:
    """Logits as f32, which holds those of every dtype exactly. Waits for the GPU."""
    return logits if isinstance(logits, np.ndarray) else logits.float().cpu().numpy()


def first_token(logits: Any) -> int:
    return int(logits[-1].argmax())


# --- the measurement ----------------------------------------------------------------------------------------


@dataclass
class Prompt:
    tokens: np.ndarray
    prefix: int  # tokens in full blocks that a later prompt repeats
    chunk: int

    def prefill(self, lm: Any, kv: PagedKV, table: Sequence[int], first: int = 0, **more: Any) -> Any:
        return prefill(lm, kv, self.tokens, table, first, self.prefix, self.chunk, **more)


def make_prompt(lm: Any, size: int, length: int, suffix: int, chunk: int, seed: int) -> Prompt:
    """Of random tokens. The prefix is whole objects of `size` tokens."""
    prefix = (length - suffix) // size * size
    if prefix <= 0 or suffix <= 0:
        raise ValueError(f"a prompt of {length} tokens with {suffix} behind the prefix has no full object of {size}")
    return Prompt(np.random.default_rng(seed).integers(0, lm.vocab, length), prefix, chunk)


def recompute(lm: Any, kv: PagedKV, prompt: Prompt, rounds: int) -> tuple[np.ndarray, float]:
    """The logits behind the prefix, and the seconds until the first token (median)."""
    seconds = []
    for _ in range(rounds + 1):  # the first time kernels are chosen and memory is allocated
        table = kv.take_for(len(prompt.tokens))
        lm.synchronize()
        start = time.perf_counter()
        logits = prompt.prefill(lm, kv, table)
        first_token(logits)
        seconds.append(time.perf_counter() - start)
        reference = host(logits)
        kv.drop(table)
    return reference, statistics.median(seconds[1:])


def one_pass(lm: Any, kv: PagedKV, prompt: Prompt, reference: np.ndarray) -> dict[str, float]:
    """How far the logits of one pass over the whole prompt are from those of chunks."""
    table = kv.take_for(len(prompt.tokens))
    logits = host(lm.forward(prompt.tokens, 0, table, kv, logits=len(reference)))
    kv.drop(table)
    largest = float(np.abs(reference).max())
    difference, bound = float(np.abs(logits - reference).max()), ONE_PASS_BOUND[kv.shape.dtype] * largest
    require(difference <= bound, f"one pass differs by {difference}, more than rounding explains ({bound})")
    return {"one_pass_difference": difference, "one_pass_bound": bound, "largest_logit": largest}


def offload(lm: Any, store: BlockStore, keys: Sequence[str], prompt: Prompt) -> float:
    """Prefills and puts the blocks of the prefix as they fill; then they are gone from the engine. Returns
    the seconds that putting alone still took at the end."""
    kv, saves = store.kv, []
    table = kv.take_for(len(prompt.tokens))

    def filled(first: int, end: int) -> None:
        first, end = first // store.tokens, min(end, prompt.prefix) // store.tokens
        if first < end:
            lm.fence()()
            blocks = table[first * store.span : end * store.span]
            before = keys[first - 1] if first else None
            saves.append(store.save(keys[first:end], blocks, before))  # while the next chunk is computed

    prompt.prefill(lm, kv, table, filled=filled)
    lm.synchronize()
    start = time.perf_counter()
    for operation in saves:
        saved(operation)
    seconds = time.perf_counter() - start
    kv.drop(table)
    return seconds


def reload(lm: Any, store: BlockStore, root: bytes, prompt: Prompt) -> tuple[np.ndarray, list[int], dict[str, float]]:
    """The prompt once more: as much of its prefix as is stored is loaded, the rest computed."""
    kv = store.kv
    table = kv.take_for(len(prompt.tokens))
    lm.synchronize()
    at = [time.perf_counter()]
    keys = store.keys(root, prompt.tokens[: prompt.prefix])
    at.append(time.perf_counter())
    hits = store.match(keys)
    at.append(time.perf_counter())
    count = store.load(keys, table, hits)
    at.append(time.perf_counter())
    logits = prompt.prefill(lm, kv, table, first=count * store.tokens)
    first_token(logits)
    at.append(time.perf_counter())
    names = ("hash_s", "lookup_s", "load_s", "suffix_s")
    times = dict(zip(names, (b - a for a, b in zip(at, at[1:]))))
    return host(logits), table, {"hit_tokens": count * store.tokens, "ttft_s": at[-1] - at[0], **times}


def measure_pool(lm: Any, store: BlockStore, root: bytes, prompt: Prompt, reference: np.ndarray, rounds: int) -> dict:
    kv = store.kv
    keys = store.keys(root, prompt.tokens[: prompt.prefix])
    nblocks = len(keys) * store.span
    total = nblocks * kv.shape.block_bytes
    put_tail_s = offload(lm, store, keys, prompt)
    bare = BareCopies(kv, nblocks, from_gpu="/gpu" in (store.place or ""))
    seen: list[dict[str, float]] = []
    for _ in range(rounds + 1):  # the first load opens the pool, and is left out
        logits, table, row = reload(lm, store, root, prompt)
        require(row["hit_tokens"] == prompt.prefix, f"hit {row['hit_tokens']} of {prompt.prefix} tokens")
        require(np.array_equal(logits, reference), "logits after the reload are not the recomputed ones")
        row["blocks_s"] = bare.blocks(table[:nblocks])
        row["contiguous_s"] = bare.contiguous()
        seen.append(row)
        kv.drop(table)
    store.client.remove(keys)
    middle = {name: statistics.median(row[name] for row in seen[1:]) for name in seen[0]}
    load, blocks, contiguous = (total / middle[name] / 1e9 for name in ("load_s", "blocks_s", "contiguous_s"))
    return {
        **middle, "hit_tokens": prompt.prefix, "bytes": total, "put_tail_s": put_tail_s, "logits_equal": True,
        "bare_blocks_by": bare.by,
        "load_GBps": load, "bare_blocks_GBps": blocks, "bare_contiguous_GBps": contiguous,
        "of_bare_blocks": statistics.median(r["blocks_s"] / r["load_s"] for r in seen[1:]),
        "of_bare_contiguous": statistics.median(r["contiguous_s"] / r["load_s"] for r in seen[1:]),
    }  # fmt: skip


def load_model(o: argparse.Namespace) -> Any:
    """NumPy's or torch's. Both offer the same: see tiny_numpy.TinyNumpyLM."""
    if o.backend == "numpy":
        from tiny_numpy import TinyNumpyLM

        return TinyNumpyLM(seed=o.seed, block_tokens=o.block_tokens)
    from torch_model import TorchLM

    return TorchLM(o.shape, o.model, o.device, o.dtype, o.seed, o.block_tokens)


def measure(o: argparse.Namespace) -> Iterator[dict]:
    """A row for each length of prompt and each pool."""
    lm = load_model(o)
    lengths, spans = ([int(n) for n in text.split(",")] for text in (o.tokens, o.span))
    kv = lm.new_kv(-(-max(lengths) // o.block_tokens))
    kv.shuffle(o.seed)
    root = chain_root(lm.id, lm.kv_shape.dtype, o.block_tokens)
    with ExitStack() as stack:
        places = o.place.split(",") if o.place else [None]
        if not o.redis:
            room = max(kv.nblocks * kv.shape.block_bytes * 5 // 4, 1 << 24)
            pools = {"cpu0": f"cpu0:bytes={room},slots={4 * kv.nblocks}"}
            if str(lm.device).startswith("cuda"):
                pools["gpu0"] = f"gpu0:bytes={room},slots={4 * kv.nblocks},device={lm.device.index or 0}"
            o.redis = stack.enter_context(local_nodes({"offload": list(pools.values())}))
            places = [f"offload/{name}" for name in pools]
        client = stack.enter_context(tarn.Client(o.redis, timeout=60))
        for length, span in product(lengths, spans):
            prompt = make_prompt(lm, span * o.block_tokens, length, o.suffix, o.chunk, o.seed + length)
            reference, seconds = recompute(lm, kv, prompt, min(o.rounds, 3))
            common = {
                "example": "kv_offload", "model": lm.id, "dtype": kv.shape.dtype, "device": str(lm.device),
                "tokens": length, "block_bytes": kv.shape.block_bytes, "span": span, "chunk": o.chunk,
                "recompute_s": seconds, **one_pass(lm, kv, prompt, reference),
            }  # fmt: skip
            for place in places:
                row = measure_pool(lm, BlockStore(client, kv, span, place), root, prompt, reference, o.rounds)
                yield {**common, "place": place, **row, "speedup": seconds / row["ttft_s"]}


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    p.add_argument("--shape", choices=("tiny", "8b"), default="tiny", help="of random weights (torch)")
    p.add_argument("--model", help="a Hugging Face checkpoint instead (torch)")
    p.add_argument("--device", default="cpu", help="cpu or cuda:N (torch)")
    p.add_argument("--dtype", choices=sorted(ONE_PASS_BOUND), default="bf16", help="of the model (torch)")
    p.add_argument("--tokens", default="256,512", help="lengths of prompts, parted by commas")
    p.add_argument("--suffix", type=int, default=64, help="tokens behind the repeated prefix")
    p.add_argument("--chunk", type=int, default=8192, help="tokens of a prefill chunk")
    p.add_argument("--block-tokens", type=int, default=16)
    p.add_argument("--span", default="1", help="blocks in one stored object; several numbers parted by commas")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--redis", help="directory of running nodes; without it nodes are started")
    p.add_argument("--place", help="with --redis: NODE/POOL to use, several parted by commas; gpu... is a GPU's")
    p.add_argument("--json", help="also append the rows to this file, a JSON line each")
    return p.parse_args(argv)


def show(row: dict) -> str:
    ms = {name: 1e3 * row[name + "_s"] for name in ("recompute", "ttft", "hash", "lookup", "load", "suffix")}
    return (
        f"{row['tokens']:>7} tokens from {row['place'] or 'anywhere'} in objects of {row['span']}: "
        f"hit {row['hit_tokens']}, first token after {ms['ttft']:.1f} ms "
        f"(recomputed {ms['recompute']:.1f} ms, {row['speedup']:.1f} x)\n"
        f"        hash {ms['hash']:.2f} + look-up {ms['lookup']:.2f} + load {ms['load']:.2f} "
        f"+ suffix {ms['suffix']:.2f} ms\n"
        f"        load {row['load_GBps']:.2f} GB/s; the same blocks by {row['bare_blocks_by']} "
        f"{row['bare_blocks_GBps']:.2f} (ratio {row['of_bare_blocks']:.2f}), "
        f"contiguous {row['bare_contiguous_GBps']:.2f} (ratio {row['of_bare_contiguous']:.2f})\n"
        f"        logits equal bit for bit; one pass differs by {row['one_pass_difference']:.2g}, by rounding "
        f"(bound {row['one_pass_bound']:.2g})"
    )


def main(argv: Sequence[str] | None = None) -> int:
    o = options(argv)
    for row in measure(o):
        print(show(row), flush=True)
        if o.json:
            with open(o.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
