# SPDX-License-Identifier: Apache-2.0
"""A trace of prefix-block requests, replayed by several worker processes against two nodes.

    python replay.py --trace conversation_trace.jsonl --workers 4 --block-bytes 64K

A line of the trace is a request: {"timestamp": MS, "hash_ids": [...], ...}, an id for each block, chained: equal id,
equal prefix. For each request a worker looks the chain up, gets the leading run that is there, checks every byte, and
puts the rest: `tarn-bench replay` in Python, with many clients at once. What is found already there beyond the run
counts as used. Blocks get their content from their id. Making and checking content is not timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import secrets
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
import tarn

from local_nodes import local_nodes

WORD = 8
KINDS = ("lookup", "get", "put")


@dataclass
class Counts:
    """What one worker, or all of them, did. Seconds are those inside the store's calls."""

    requests: int = 0
    blocks: int = 0  # asked for
    hits: int = 0  # got from the leading run, every byte checked
    stored: int = 0
    present: int = 0  # another worker was first, or they lie behind a gap
    evicted: int = 0  # between look-up and get
    wrong: int = 0
    errors: int = 0
    first_error: str = ""
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def add(self, kind: str, started: float, moved: int = 0) -> None:
        self.seconds[kind].append(time.perf_counter() - started)
        self.bytes[kind] += moved

    def failed(self, what: str, code: int) -> None:
        self.errors += 1
        self.first_error = self.first_error or f"{what}: {tarn.error_of(code)}"

    def merge(self, other: Counts) -> None:
        for name in ("requests", "blocks", "hits", "stored", "present", "evicted", "wrong", "errors"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_error = self.first_error or other.first_error
        for kind in KINDS:
            self.bytes[kind] += other.bytes[kind]
            self.seconds[kind] += other.seconds[kind]

    def row(self, wall_s: float) -> dict:
        calls = {}
        for kind in KINDS:
            times = np.asarray(self.seconds[kind] or [0.0])
            calls[kind] = {
                "calls": len(self.seconds[kind]),
                "p50_us": 1e6 * float(np.percentile(times, 50)),
                "p99_us": 1e6 * float(np.percentile(times, 99)),
                "bytes": self.bytes[kind],
                "GBps": self.bytes[kind] / max(float(times.sum()), 1e-9) / 1e9,  # of one worker, on average
            }
        names = ("requests", "blocks", "hits", "stored", "present", "evicted", "wrong", "errors", "first_error")
        return {
            **{name: getattr(self, name) for name in names},
            "hit_ratio": self.hits / max(self.blocks, 1),
            "wall_s": wall_s,
            "requests_per_s": self.requests / wall_s,
            "total_GBps": sum(self.bytes.values()) / wall_s / 1e9,
            **calls,
        }


class Content:
    """The bytes of blocks, from their ids: words that count up from a number that only this id begins with."""

    def __init__(self, block_bytes: int) -> None:
        self.steps = np.arange(block_bytes // WORD, dtype=np.uint64)

    def of(self, ids: Sequence[int]) -> np.ndarray:
        """[blocks, words]."""
        first = np.asarray(ids, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # far apart, modulo 2^64
        return first[:, None] + self.steps


class Replayer:
    """One worker: a client of its own, and the requests that fall to it."""

    def __init__(self, client: tarn.Client, tag: str, block_bytes: int) -> None:
        self.client, self.tag, self.content = client, tag, Content(block_bytes)
        self.block_bytes, self.counts = block_bytes, Counts()
        self.memory = np.zeros((0, block_bytes // WORD), np.uint64)  # a row for each block of a request

    def request(self, ids: Sequence[int]) -> None:
        c = self.counts
        keys = [f"replay-{self.tag}/{i}" for i in ids]
        if len(ids) > len(self.memory):
            self.memory = np.zeros((2 * len(ids), self.memory.shape[1]), np.uint64)
        started = time.perf_counter()
        hits = self.client.match_prefix(keys)
        c.add("lookup", started)
        got = self._get(keys, ids, hits) if hits.pages else 0
        if got < len(ids):
            self._put(keys[got:], ids[got:], keys[got - 1] if got else None)
        c.requests += 1
        c.blocks += len(ids)
        c.hits += got

    def _get(self, keys: list[str], ids: Sequence[int], hits: tarn.Hits) -> int:
        """How many leading blocks arrived with the right bytes."""
        c, count = self.counts, hits.pages
        rows = self.memory[:count]
        rows.fill(0)
        started = time.perf_counter()
        status = self.client.get_into_many(keys[:count], rows, hits=hits)
        c.add("get", started, sum(code for code in status if code > 0))
        right = (rows == self.content.of(ids[:count])).all(axis=1)
        leading = 0
        for i, code in enumerate(status):
            if code == tarn.NotFound.code:
                c.evicted += 1
            elif code < 0:
                c.failed("get", code)
            elif not right[i]:
                c.wrong += 1
            elif leading == i:
                leading += 1
        return leading

    def _put(self, keys: list[str], ids: Sequence[int], before: str | None) -> None:
        c, rows = self.counts, self.content.of(ids)
        started = time.perf_counter()
        status = self.client.put_many(zip(keys, rows), chain=before or True)
        c.add("put", started, self.block_bytes * sum(code >= 0 for code in status))
        used = [key for key, code in zip(keys, status) if code == tarn.Exists.code]
        if used:
            self.client.touch(used)
        c.present += len(used)
        for code in status:
            if code >= 0:
                c.stored += 1
            elif code != tarn.Exists.code:
                c.failed("put", code)


# --- workers --------------------------------------------------------------------------------------------------


def read_trace(path: str, requests: int, worker: int, workers: int) -> Iterator[list[int]]:
    """Every `workers`-th request, from the worker's own on."""
    with open(path) as lines:
        for line in islice(lines, worker, requests or None, workers):
            yield json.loads(line)["hash_ids"]


def work(worker: int, o: argparse.Namespace, tag: str, start: Any, results: Any) -> None:
    """A worker process. The trace is read before all begin together."""
    try:
        todo = list(read_trace(o.trace, o.requests, worker, o.workers))
        with tarn.Client(o.redis, timeout=30) as client:
            replayer = Replayer(client, tag, o.block_bytes)
            start.wait()
            started = time.perf_counter()
            for ids in todo:
                if ids:
                    replayer.request(ids)
            results.put((worker, replayer.counts, time.perf_counter() - started))
    except threading.BrokenBarrierError:
        pass  # another one could not begin
    except BaseException as error:
        start.abort()
        results.put((worker, f"{type(error).__name__}: {error}", 0.0))


def collect(workers: Sequence[Any], results: Any) -> Iterator[tuple[int, Counts, float]]:
    """What each worker counted, and its seconds."""
    missing = len(workers)
    while missing:
        try:
            worker, counts, seconds = results.get(timeout=1)
        except queue.Empty:
            dead = [p.exitcode for p in workers if p.exitcode]
            if dead:
                raise RuntimeError(f"a worker ended with status {dead[0]}") from None
            continue
        if isinstance(counts, str):
            raise RuntimeError(f"worker {worker}: {counts}")
        missing -= 1
        yield worker, counts, seconds


def replay(o: argparse.Namespace) -> dict:
    if o.block_bytes % WORD:
        raise ValueError(f"--block-bytes must be a multiple of {WORD}")
    if not Path(o.trace).is_file():
        raise FileNotFoundError(f"--trace {o.trace}: there is no such file")
    spawn = multiprocessing.get_context("spawn")  # a child of fork() could not use an open client
    start, results = spawn.Barrier(o.workers + 1), spawn.Queue()
    tag = secrets.token_hex(4)
    with ExitStack() as stack:
        if not o.redis:
            slots = -(-o.capacity_blocks // 2)
            room = -(-o.block_bytes // 64) * 64 * slots
            pool = f"cpu0:bytes={room},slots={slots},align=64"
            o.redis = stack.enter_context(local_nodes({"one": [pool], "two": [pool]}))
        workers = [spawn.Process(target=work, args=(i, o, tag, start, results)) for i in range(o.workers)]
        try:
            for process in workers:
                process.start()
            with suppress(threading.BrokenBarrierError):  # a worker could not begin: its answer says why
                start.wait(60)
            started = time.perf_counter()
            answers = sorted(collect(workers, results), key=lambda answer: answer[0])
            wall_s = time.perf_counter() - started
        finally:
            for process in workers:
                process.terminate()  # those that are through are gone already
                process.join()
    total, rows = Counts(), []
    for _, counts, seconds in answers:
        total.merge(counts)
        rows.append(counts.row(seconds))
    return {
        "example": "replay", "trace": o.trace, "block_bytes": o.block_bytes, "capacity_blocks": o.capacity_blocks,
        "nworkers": o.workers, **total.row(wall_s), "workers": rows,
    }  # fmt: skip


def size(text: str) -> int:
    """4096, 64K, 1M."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--trace", required=True, help="JSON lines with hash_ids")
    p.add_argument("--workers", type=int, default=4, help="processes, with a client each")
    p.add_argument("--block-bytes", type=size, default="4K")
    p.add_argument("--capacity-blocks", type=int, default=10000, help="room of both nodes together")
    p.add_argument("--requests", type=int, default=0, help="only the first ones; 0: all")
    p.add_argument("--redis", help="directory of running nodes; without it two nodes are started")
    p.add_argument("--json", help="also append the result to this file, as a JSON line")
    return p.parse_args(argv)


def show(result: dict) -> str:
    lines = []
    for name, row in [*((f"worker {i}", w) for i, w in enumerate(result["workers"])), ("all", result)]:
        calls = "   ".join(
            f"{kind} p50 {row[kind]['p50_us']:.0f} p99 {row[kind]['p99_us']:.0f} us" for kind in KINDS
        )
        lines.append(
            f"{name:>9}: {row['requests']} requests, {row['requests_per_s']:.0f}/s, {row['total_GBps']:.3f} GB/s, "
            f"hit ratio {row['hit_ratio']:.4f}\n           {calls}"
        )
    lines.append(
        f"{result['blocks']} blocks asked for: {result['hits']} got and checked, {result['stored']} put, "
        f"{result['present']} were there already, {result['evicted']} evicted before the get; "
        f"{result['wrong']} with wrong bytes, {result['errors']} errors {result['first_error']}"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    o = options(argv)
    result = replay(o)
    print(show(result))
    if o.json:
        with open(o.json, "a") as f:
            f.write(json.dumps(result) + "\n")
    return 1 if result["wrong"] or result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
