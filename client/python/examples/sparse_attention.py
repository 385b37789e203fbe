# SPDX-License-Identifier: Apache-2.0
"""Sparse attention over rows that the GPU picks by itself, out of pages in tarn, inside a CUDA graph.

    python sparse_attention.py                                       # needs torch and a GPU

A token has one row: a compressed latent of 512 elements and 64 of its rotary key. Rows of 576 bytes have all of them in
fp8; rows of 656 bytes have a scale for each 128 of the latent, and the rotary part in bf16. Pages of 64 rows are
objects in tarn. A step scores all tokens with a small index that stays on the GPU (a matrix product), takes the best
k (torch.topk), gets their rows (tarn.Table.gather), and attends to them. All of that is one CUDA graph: the host
neither learns which rows were picked, nor waits.

A row whose status is not 0 does not count: the object is gone, or has just moved. The step masks it. Each step is
compared with the same computed from the original tensors. Then a page is removed and put again, under the same graph.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Any, Callable, Sequence

import tarn

from local_nodes import local_nodes

try:
    import torch
except ImportError:
    torch = None

LATENT, ROPE, GROUP = 512, 64, 128  # elements
PAGE = 64  # rows
INDEX, HEADS = 128, 16
FP8_MAX = 448.0
UNTIL = 10_000  # replays until a page has come or gone


def encode(latent: Any, rope: Any, row_bytes: int) -> Any:
    """[n, 512] and [n, 64] of f32 as rows, [n, row_bytes] of bytes."""
    if row_bytes == LATENT + ROPE:
        return torch.cat([latent, rope], 1).to(torch.float8_e4m3fn).view(torch.uint8)
    groups = latent.unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(2) / FP8_MAX
    fine = (groups / scales.unsqueeze(2)).to(torch.float8_e4m3fn).flatten(1)
    return torch.cat([x.view(torch.uint8) for x in (fine, scales, rope.to(torch.bfloat16))], 1)


def decode(rows: Any) -> Any:
    """[n, 576] of f32: the latent, then the rotary part."""
    if rows.shape[1] == LATENT + ROPE:
        return rows.view(torch.float8_e4m3fn).float()
    fine, scales, rope = rows.split([LATENT, 4 * LATENT // GROUP, 2 * ROPE], 1)
    groups = fine.contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (-1, GROUP))
    latent = groups * scales.contiguous().view(torch.float32).unsqueeze(2)
    return torch.cat([latent.flatten(1), rope.contiguous().view(torch.bfloat16).float()], 1)


def attend(query: Any, rows: Any, good: Any) -> Any:
    """Attention of [heads, 576] to the good rows. The others have any bytes, so nothing of them may be multiplied."""
    keys = torch.where(good.unsqueeze(1), decode(rows), 0.0)
    logits = (query @ keys.T / (LATENT + ROPE) ** 0.5).masked_fill(~good, -torch.inf)
    return logits.softmax(1) @ keys[:, :LATENT]


class Step:
    """One step as a CUDA graph. Its inputs and outputs are tensors that stay where they are."""

    def __init__(self, table: tarn.Table, index: Any, k: int, row_bytes: int) -> None:
        self.table, self.index, self.k = table, index, k
        self.probe = torch.zeros(INDEX, device=index.device)
        self.query = torch.zeros(HEADS, LATENT + ROPE, device=index.device)
        self.rows = torch.empty(k, row_bytes, dtype=torch.uint8, device=index.device)
        side = torch.cuda.Stream(index.device)
        side.wait_stream(torch.cuda.current_stream(index.device))
        with torch.cuda.stream(side):  # loads all kernels, which a capture must not do
            self._run()
        side.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.picked, self.good, self.out = self._run()

    def _run(self) -> tuple[Any, Any, Any]:
        picked = (self.index @ self.probe).topk(self.k).indices
        status = self.table.gather(picked.to(torch.int32), self.rows, rows_per_page=PAGE)
        good = status == 0
        return picked, good, attend(self.query, self.rows, good)

    def replay(self) -> None:
        self.probe.normal_()
        self.query.normal_()
        self.graph.replay()

    def check(self, encoded: Any) -> None:
        """Against the original rows."""
        want = encoded[self.picked]
        assert torch.equal(self.rows[self.good], want[self.good]), "a row has other bytes than its original"
        assert bool(self.good.any()), "no row could be read"
        # A graph may choose other kernels for the products, which sum in another order.
        torch.testing.assert_close(self.out, attend(self.query, want, self.good), rtol=1e-4, atol=1e-4)


def replay_until(step: Step, condition: Callable[[], Any]) -> int:
    """Replays until it is true; says how often."""
    for n in range(1, UNTIL + 1):
        step.replay()
        if bool(condition()):
            return n
    raise RuntimeError(f"the pages have not become what they should in {UNTIL} steps")


def run(c: tarn.Client, row_bytes: int, o: argparse.Namespace) -> str:
    device = torch.device("cuda", o.device)
    torch.cuda.set_device(device)
    torch.manual_seed(o.seed)
    latent, rope = torch.randn(o.tokens, LATENT, device=device), torch.randn(o.tokens, ROPE, device=device)
    encoded, index = encode(latent, rope, row_bytes), torch.randn(o.tokens, INDEX, device=device)
    pages = dict(zip((f"rows/{row_bytes}/{i}" for i in range(o.tokens // PAGE)), encoded.split(PAGE)))
    c.put(pages, replace=True)
    with tarn.Table(c.lookup(list(pages)), o.device) as table:
        step, read = Step(table, index, o.k, row_bytes), 0
        for _ in range(o.steps):
            replay_until(step, lambda: step.good.any())  # all rows are stale while a lease is renewed late
            step.check(encoded)
            read += int(step.good.sum())
        gone = next(iter(pages))
        c.remove(gone)
        without = replay_until(step, lambda: torch.equal(step.good, step.picked >= PAGE) and not step.good.all())
        step.check(encoded)
        c.put(gone, pages[gone])
        again = replay_until(step, lambda: step.good.all() and (step.picked < PAGE).any())
        step.check(encoded)
        del step  # no graph uses the table when it is closed
    c.remove(list(pages))
    return (
        f"rows of {row_bytes} bytes: {o.steps} steps of {o.k} of {o.tokens} rows, {read} read, all equal; "
        f"a page was removed ({without} steps until it was masked) and put again ({again} steps until it was read)"
    )


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--redis", help="running nodes; without it one is started for the example")
    p.add_argument("--device", type=int, default=0, metavar="GPU", help="0")
    p.add_argument("--row-bytes", default="576,656", metavar="N,N", help="of 576 and 656; both")
    p.add_argument("--tokens", type=int, default=4096, help="4096; a multiple of 64")
    p.add_argument("--k", type=int, default=256, help="rows of a step; 256")
    p.add_argument("--steps", type=int, default=100, help="100")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args(argv)
    o.row_bytes = [int(n) for n in o.row_bytes.split(",")]
    if set(o.row_bytes) - {576, 656} or o.tokens % PAGE or not 1 <= o.k <= o.tokens:
        p.error("--row-bytes has 576 and 656, --tokens is a multiple of 64, and --k at most as many")
    return o


def main(argv: Sequence[str] | None = None) -> int:
    o = options(argv)
    if torch is None or not torch.cuda.is_available():
        print("nothing was run: this example needs torch and a GPU")
        return 0
    with ExitStack() as stack:
        pool = 2 * o.tokens * max(o.row_bytes) + (64 << 20)
        redis = o.redis or stack.enter_context(local_nodes({"sparse": [f"cpu0:bytes={pool}"]}))
        c = stack.enter_context(tarn.Client(redis))
        for row_bytes in o.row_bytes:
            print(run(c, row_bytes, o))
    return 0


if __name__ == "__main__":
    sys.exit(main())
