# SPDX-License-Identifier: Apache-2.0
"""Prefill/decode disaggregation: one process prefills prompts, another one generates, tarn between them.

    python pd_disagg.py                                              # small, on the CPU, without torch
    python pd_disagg.py --backend torch --shape 8b --prefill-device cuda:0 --decode-device cuda:1 --tokens 8192,32768

The prefill process puts the KV of each layer as soon as that layer's keys and values are computed: one thread
launches the model, another one waits until the layer is in memory and writes it, so computing goes on meanwhile.
Each layer is an object of its own (or a few are: --layers-per-object), readable when its last byte is in place.

The decode process loads each layer as it arrives, and begins at once with the last token of the prompt, of
which the prefill process has computed nothing: layer i of it needs the KV of layer i only. So the first token comes
soon after the last layer. The tokens are compared with those of one process that does everything itself.

With --windows the decode process lends its own pages instead: it leases those of a request, and the prefill process
writes each layer straight into them, with a notification. Both ways take turns, and must say the same tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

import numpy as np
import tarn

from kv_blocks import PagedKV, require
from kv_offload import first_token, host, load_model
from local_nodes import local_nodes

POLL_S = 100e-6  # between looks for a layer that has not arrived


@dataclass(frozen=True)
class Part:
    """One object: some layers of one chunk of a prompt, shaped [layers, 2, blocks, *page]."""

    key: str
    layers: range
    first_block: int
    end_block: int

    def spec(self, kv: PagedKV) -> tuple[str, tuple[int, ...]]:
        blocks = self.end_block - self.first_block
        return kv.shape.dtype, (len(self.layers), 2, blocks, *kv.shape.block[2:])

    def pieces(self, kv: PagedKV, layer: int, table: Sequence[int]) -> list[tarn.Piece]:
        return kv.layer_pieces(layer, table[self.first_block : self.end_block])


def chunks(tokens: int, chunk: int) -> Iterator[tuple[int, int]]:
    """What the prefill process computes in one pass each: all but the last token."""
    for first in range(0, tokens - 1, chunk or tokens):
        yield first, min(first + (chunk or tokens), tokens - 1)


def parts(request: str, kv: PagedKV, tokens: int, chunk: int, layers_per_object: int) -> list[Part]:
    """All objects of a request, in the order in which they become complete. Both sides know them."""
    size, step = kv.shape.block_tokens, layers_per_object
    return [
        Part(
            f"pd/{request}/{first}/{layer}",
            range(layer, min(layer + step, kv.shape.layers)),
            first // size,
            -(-end // size),
        )
        for first, end in chunks(tokens, chunk)
        for layer in range(0, kv.shape.layers, step)
    ]


# --- the prefill process ------------------------------------------------------------------------------------


class LayerWriter(threading.Thread):
    """Puts layers in the order in which they are computed, beside the thread that computes them."""

    def __init__(self, client: tarn.Client, kv: PagedKV, table: list[int], todo: list[Part], place: str | None):
        super().__init__(name="layer-writer", daemon=True)
        self.client, self.kv, self.table, self.todo, self.place = client, kv, table, todo, place
        self.fences: queue.SimpleQueue = queue.SimpleQueue()
        self.times: list[tuple[float, float]] = []
        self.error: BaseException | None = None

    def layer_written(self, fence: Any) -> None:
        """From the computing thread, for one layer after the other."""
        self.fences.put(fence)

    def run(self) -> None:
        try:
            for part in self.todo:
                self._put(part)
        except BaseException as error:  # told to the thread that waits
            self.error = error

    def _put(self, part: Part) -> None:
        spec = part.spec(self.kv)
        # Readable when the block ends; nothing is left of it when it ends with an exception.
        with self.client.put_session({part.key: spec}, place=self.place) as session:
            offset = 0
            for layer in part.layers:
                self.fences.get()()  # until the GPU has computed it
                start = time.monotonic()
                pieces = part.pieces(self.kv, layer, self.table)
                session.write(part.key, pieces, offset=offset)
                offset += sum(p.nbytes for p in pieces)
                self.times.append((start, time.monotonic()))
        self.times[-1] = (self.times[-1][0], time.monotonic())  # with the commit

    def finish(self) -> None:
        self.join()
        if self.error:
            raise self.error


class WindowWriter(LayerWriter):
    """Writes layers straight into the pages that the decode process has leased, and notifies it of each."""

    def __init__(self, client: tarn.Client, kv: PagedKV, table: list[int], todo: list[Part], descriptor: str):
        super().__init__(client, kv, table, todo, None)
        self.reach = client.reach(descriptor)
        self.offset = 0

    def _put(self, part: Part) -> None:
        for layer in part.layers:
            self.fences.get()()  # until the GPU has computed it
            start = time.monotonic()
            pieces = part.pieces(self.kv, layer, self.table)
            self.reach.write(pieces, self.offset, notify=(len(self.times), b""))
            self.offset += sum(p.nbytes for p in pieces)
            self.times.append((start, time.monotonic()))


def prefill(worker: Worker, r: dict) -> dict:
    """Computes the prompt but for its last token. Without `write` only that, for comparison."""
    lm, kv, tokens = worker.lm, worker.kv, r["tokens"]
    table = kv.take_for(len(tokens))
    lm.synchronize()
    writer = None
    if r["write"]:
        todo = parts(r["request"], kv, len(tokens), worker.o.chunk, worker.o.layers_per_object)
        if "lease" in r:
            writer = WindowWriter(worker.client, kv, table, todo, r["lease"])
        else:
            writer = LayerWriter(worker.client, kv, table, todo, worker.o.place)
        writer.start()
    written = (lambda _layer: writer.layer_written(lm.fence())) if writer else None
    start = time.monotonic()
    for first, last in chunks(len(tokens), worker.o.chunk):
        lm.forward(tokens[first:last], first, table, kv, layer_written=written)
    lm.synchronize()
    end = time.monotonic()
    if writer:
        writer.finish()
    kv.drop(table)
    return {"start": start, "end": end, "writes": writer.times if writer else []}


# --- the decode process -------------------------------------------------------------------------------------


class LayerLoader(threading.Thread):
    """Loads layers as they arrive. The model waits for each by itself: see wanted()."""

    def __init__(self, client: tarn.Client, kv: PagedKV, table: list[int], todo: list[Part], timeout: float):
        super().__init__(name="layer-loader", daemon=True)
        self.client, self.kv, self.table, self.todo = client, kv, table, todo
        self.deadline = time.monotonic() + timeout
        self.ready = [threading.Event() for _ in range(kv.shape.layers)]
        self.times: list[tuple[float, float]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        last_chunk = self.todo[-1].first_block
        try:
            for part in self.todo:
                self._load(part)
                if part.first_block == last_chunk:
                    for layer in part.layers:
                        self.ready[layer].set()
        except BaseException as error:
            self.error = error
        finally:
            for event in self.ready:
                event.set()

    def _load(self, part: Part) -> None:
        buffers = [piece for layer in part.layers for piece in part.pieces(self.kv, layer, self.table)]
        while True:
            start = time.monotonic()
            (status,) = self.client.get_into_many([part.key], [buffers])
            if status >= 0:
                break
            if status != tarn.NotFound.code:
                raise tarn.error_of(status, part.key)
            if start > self.deadline:
                raise TimeoutError(f"{part.key} did not arrive")
            time.sleep(POLL_S)
        self.times.append((start, time.monotonic()))

    def wanted(self, layer: int) -> None:
        """From the computing thread, before it touches a layer."""
        self.ready[layer].wait()
        if self.error:
            raise self.error


class WindowLoader(LayerLoader):
    """Waits for the layers that the prefill process writes: see WindowWriter."""

    def __init__(self, lease: tarn.Lease, *args: Any):
        super().__init__(*args)
        self.lease = lease

    def _load(self, part: Part) -> None:
        for _ in part.layers:
            self.lease.expect(len(self.times), timeout=max(self.deadline - time.monotonic(), 0.001))
            now = time.monotonic()
            self.times.append((now, now))  # it is in place: nothing is moved here


def decode(worker: Worker, r: dict) -> dict:
    kv, tokens = worker.kv, r["tokens"]
    table = kv.take_for(len(tokens) + r["generate"])
    todo = parts(r["request"], kv, len(tokens), worker.o.chunk, worker.o.layers_per_object)
    worker.lm.synchronize()  # the blocks are wiped: nothing else is on its way into them
    arguments = (worker.client, kv, table, todo, worker.o.timeout)
    if r["windows"]:
        pages = [piece for part in todo for layer in part.layers for piece in part.pieces(kv, layer, table)]
        with worker.window.lease(pages, write=True) as lease:  # recalled before the blocks are another request's
            worker.say({"lease": lease.descriptor})
            answer = load_and_generate(worker, WindowLoader(lease, *arguments), r)
    else:
        answer = load_and_generate(worker, LayerLoader(*arguments), r)
        worker.client.remove([part.key for part in todo])  # they were for one reader
    kv.drop(table)
    return answer


def load_and_generate(worker: Worker, loader: LayerLoader, r: dict) -> dict:
    loader.start()
    try:
        answer = generate(worker, r["tokens"], loader.table, r["generate"], layer_wanted=loader.wanted)
    finally:
        loader.join()
    return {**answer, "loads": loader.times}


def generate(worker: Worker, tokens: list[int], table: list[int], count: int, **hooks: Any) -> dict:
    """The greedy continuation, from the last token of the prompt on."""
    lm, kv = worker.lm, worker.kv
    logits = lm.forward(tokens[-1:], len(tokens) - 1, table, kv, **hooks)
    out = [first_token(logits)]
    first = time.monotonic()
    digest = hashlib.blake2b(host(logits).tobytes(), digest_size=16).hexdigest()
    while len(out) < count:
        out.append(first_token(lm.forward(out[-1:], len(tokens) + len(out) - 1, table, kv)))
    return {"tokens": out, "first": first, "end": time.monotonic(), "logits": digest}


def alone(worker: Worker, r: dict) -> dict:
    """The same by one process, with the same passes over the same tokens."""
    lm, kv, tokens = worker.lm, worker.kv, r["tokens"]
    table = kv.take_for(len(tokens) + r["generate"])
    lm.synchronize()
    start = time.monotonic()
    for first, end in chunks(len(tokens), worker.o.chunk):
        lm.forward(tokens[first:end], first, table, kv)
    answer = generate(worker, tokens, table, r["generate"])
    kv.drop(table)
    return {**answer, "start": start}


# --- processes ------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """One of the two processes: takes requests from standard input, a JSON line each, and answers with one."""

    o: argparse.Namespace
    lm: Any = field(init=False)
    kv: PagedKV = field(init=False)
    client: tarn.Client = field(init=False)
    window: tarn.Window | None = field(init=False, default=None)

    def serve(self) -> int:
        o = self.o
        self.lm = load_model(o)
        longest = max(int(n) for n in o.tokens.split(",")) + o.generate
        lends = o.windows and o.role == "decode"
        self.kv = self.lm.new_kv(-(-longest // o.block_tokens), lend=lends)
        does = {"prefill": prefill, "decode": decode, "alone": alone}
        with tarn.Client(o.redis, timeout=o.timeout) as self.client:
            self.window = self.client.window(self.kv.array) if lends else None
            self.say({"model": self.lm.id, "vocab": self.lm.vocab, "block_bytes": self.kv.shape.block_bytes})
            for line in sys.stdin:
                r = json.loads(line)
                self.say(does[r["do"]](self, r))
        return 0

    def say(self, answer: dict) -> None:
        print(json.dumps(answer), flush=True)


class WorkerProcess:
    """A worker from outside. A process of its own, not a fork: CUDA does not survive one."""

    def __init__(self, role: str, o: argparse.Namespace, device: str) -> None:
        names = [
            "backend", "shape", "model", "dtype", "tokens", "chunk", "block_tokens", "layers_per_object",
            "generate", "seed", "timeout", "redis", "place",
        ]  # fmt: skip
        given = {name: getattr(o, name) for name in names if getattr(o, name) is not None}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        flags += ["--windows"] if o.windows else []
        self.role = role
        self.child = subprocess.Popen(
            [sys.executable, __file__, f"--role={role}", f"--device={device}", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **request: Any) -> None:
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()

    def answer(self) -> dict:
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.role} process ended with status {self.child.wait()}")
        return json.loads(line)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind:
            self.child.kill()
        with suppress(BrokenPipeError):
            self.child.stdin.close()  # the end of its requests
        self.child.wait()
        self.child.stdout.close()


# --- the measurement ------------------------------------------------------------------------------------------


def one_request(
    a: WorkerProcess, b: WorkerProcess, o: argparse.Namespace, request: str, tokens: list[int], windows: bool = False
) -> dict:
    """One prompt through both processes. Their clocks are the same: CLOCK_MONOTONIC of one host."""
    start = time.monotonic()
    b.ask(do="decode", request=request, tokens=tokens, generate=o.generate, windows=windows)
    lease = b.answer() if windows else {}
    a.ask(do="prefill", request=request, tokens=tokens, write=True, **lease)
    filled, out = a.answer(), b.answer()
    write_s, load_s = (sum(end - begin for begin, end in t) for t in (filled["writes"], out["loads"]))
    arrived, moving_s = out["loads"][-1][1], write_s + load_s
    # What was still on the way when the prefill process had computed all; and, stricter, when it had computed the
    # last layer's keys and values: what it does behind these is of no use to the other process.
    exposed_s = max(0.0, arrived - filled["end"])
    strictly_s = max(0.0, arrived - min(filled["writes"][-1][0], filled["end"]))
    return {
        "ttft_s": out["first"] - start,
        "prefill_s": filled["end"] - filled["start"],
        "write_s": write_s,
        "load_s": load_s,
        "exposed_s": exposed_s,
        "hidden": 1 - min(1.0, exposed_s / moving_s),
        "hidden_strictly": 1 - min(1.0, strictly_s / moving_s),
        "after_prefill_s": out["first"] - filled["end"],
        "answer": (out["tokens"], out["logits"]),
    }


def measure_length(a: WorkerProcess, b: WorkerProcess, o: argparse.Namespace, length: int, vocab: int) -> dict:
    tokens = np.random.default_rng(o.seed + length).integers(0, vocab, length).tolist()
    seen, plain, single, by_pool = [], [], [], []
    for i in range(o.rounds + 1):  # the first chooses kernels and opens pools, and is left out of the times
        a.ask(do="alone", tokens=tokens, generate=o.generate)
        one = a.answer()
        a.ask(do="prefill", tokens=tokens, write=False)
        bare = a.answer()
        ways = [one_request(a, b, o, f"{length}-{i}", tokens)]
        if o.windows:
            ways.append(one_request(a, b, o, f"{length}-{i}", tokens, windows=True))
        for two in ways:
            text, logits = two.pop("answer")
            require(text == one["tokens"], f"two processes say {text}, one says {one['tokens']}")
            require(logits == one["logits"], "the first token's logits are not those of one process")
        if i:
            seen.append(ways[-1])
            by_pool.append(ways[0]["ttft_s"])
            plain.append(bare["end"] - bare["start"])
            single.append(one["first"] - one["start"])
    return {
        **{name: statistics.median(row[name] for row in seen) for name in seen[0]},
        "hidden_least": min(row["hidden"] for row in seen),
        "prefill_without_writes_s": statistics.median(plain),
        "ttft_one_process_s": statistics.median(single),
        **({"ttft_by_pool_s": statistics.median(by_pool)} if o.windows else {}),
        "generated": text,
        "tokens_equal": True,
        "logits_equal": True,
    }


def measure(o: argparse.Namespace) -> Iterator[dict]:
    lengths = [int(n) for n in o.tokens.split(",")]
    if o.chunk % o.block_tokens or min(lengths) < 2:
        raise ValueError("--chunk must be whole blocks, and prompts two tokens or more")
    with ExitStack() as stack:
        if not o.redis:
            pool, settings = ("gpu0", f",device={o.decode_device.split(':')[1]}") if o.pool == "gpu" else ("cpu0", "")
            o.redis = stack.enter_context(local_nodes({"decode": [f"{pool}:bytes={o.pool_bytes}{settings}"]}))
            o.place = f"decode/{pool}"
        a = stack.enter_context(WorkerProcess("prefill", o, o.prefill_device))
        b = stack.enter_context(WorkerProcess("decode", o, o.decode_device))
        about, same = a.answer(), b.answer()
        require(about == same, f"the processes have different models: {about}, {same}")
        for length in lengths:
            row = measure_length(a, b, o, length, about["vocab"])
            bytes_moved = -(-(length - 1) // o.block_tokens) * about["block_bytes"]
            yield {
                "example": "pd_disagg", "model": about["model"], "devices": [o.prefill_device, o.decode_device],
                "place": "windows" if o.windows else o.place, "tokens": length, "chunk": o.chunk,
                "layers_per_object": o.layers_per_object,
                "bytes": bytes_moved, "write_GBps": bytes_moved / row["write_s"] / 1e9,
                "load_GBps": None if o.windows else bytes_moved / row["load_s"] / 1e9, **row,
            }  # fmt: skip


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    p.add_argument("--shape", choices=("tiny", "8b"), default="tiny", help="of random weights (torch)")
    p.add_argument("--model", help="a Hugging Face checkpoint instead (torch)")
    p.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16", help="of the model (torch)")
    p.add_argument("--prefill-device", default="cpu", help="cpu or cuda:N (torch)")
    p.add_argument("--decode-device", default="cpu", help="cpu or cuda:N (torch)")
    p.add_argument("--windows", action="store_true", help="write straight into the pages of the decode process")
    p.add_argument("--pool", choices=("cpu", "gpu"), default="cpu", help="of which memory; gpu: the decode device's")
    p.add_argument("--pool-bytes", default="1G", help="room for two requests is enough")
    p.add_argument("--tokens", default="200,500", help="lengths of prompts, parted by commas")
    p.add_argument("--generate", type=int, default=16, help="tokens to generate")
    p.add_argument("--chunk", type=int, default=0, help="tokens of a prefill pass; 0: the whole prompt")
    p.add_argument("--layers-per-object", type=int, default=1)
    p.add_argument("--block-tokens", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--timeout", type=float, default=120, help="seconds until a layer must have arrived")
    p.add_argument("--redis", help="directory of running nodes; without it a node is started")
    p.add_argument("--place", help="with --redis: NODE/POOL to put to")
    p.add_argument("--json", help="also append the rows to this file, a JSON line each")
    p.add_argument("--role", choices=("prefill", "decode"), help=argparse.SUPPRESS)
    p.add_argument("--device", help=argparse.SUPPRESS)
    return p.parse_args(argv)


def show(row: dict) -> str:
    ms = {name[:-2]: 1e3 * row[name] for name in row if name.endswith("_s")}
    mib = row["bytes"] / 2**20
    if row["place"] == "windows":
        pool = f"by the pool: {ms['ttft_by_pool']:.1f} ms, "
        loads = f"no loads (each byte is copied once, not twice: {mib:.1f} MiB of copies are saved)"
    else:
        pool, loads = "", f"loads {ms['load']:.1f} ms ({row['load_GBps']:.2f} GB/s)"
    return (
        f"{row['tokens']:>7} tokens, KV of {mib:.1f} MiB by {row['place'] or 'anywhere'}: first token "
        f"after {ms['ttft']:.1f} ms ({pool}one process: {ms['ttft_one_process']:.1f} ms)\n"
        f"        prefill {ms['prefill']:.1f} ms (without writing {ms['prefill_without_writes']:.1f}); the first token "
        f"came {abs(ms['after_prefill']):.1f} ms {'after' if ms['after_prefill'] > 0 else 'before'} its end\n"
        f"        writes {ms['write']:.1f} ms ({row['write_GBps']:.2f} GB/s), {loads}, {ms['exposed']:.1f} ms of it "
        f"after the prefill\n"
        f"        {100 * row['hidden']:.1f} % of the transfer is hidden behind the prefill, "
        f"{100 * row['hidden_strictly']:.1f} % behind the part of it that makes KV\n"
        f"        {len(row['generated'])} tokens and the first one's logits equal those of one process"
    )


def main(argv: Sequence[str] | None = None) -> int:
    o = options(argv)
    if o.role:
        return Worker(o).serve()
    for row in measure(o):
        print(show(row), flush=True)
        if o.json:
            with open(o.json, "a") as f:
                f.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
