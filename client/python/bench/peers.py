# SPDX-License-Identifier: Apache-2.0
"""Windows beside NCCL's send and recv and NIXL's writes over UCX, between two processes with memory of a GPU each.

A ping-pong of a contestant: A brings its bytes into B's memory, and B, when it knows that they have arrived, brings its
own into A's. A transfer takes half of the time. The contestants take turns, slice by slice. After each slice both
processes compare all bytes.

    make bench-peers             BENCH_ARGS="--devices 0 1 --quick" for a first look

A contestant that is not installed, or cannot run on these devices, is skipped with the reason. NCCL needs a GPU for
each process, and the same version at both ends.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist

import tarn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from local_nodes import local_nodes  # noqa: E402

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
SIZES = [4 * KiB, 64 * KiB, MiB, 16 * MiB, 100 * MiB, 256 * MiB, GiB]
SLICE_BYTES = 4 * GiB  # most bytes of a slice
SLICE_TRIPS = 200
TAG = 1
clock = time.perf_counter_ns


class Skipped(Exception):
    """A contestant that cannot run here, and why."""


class Side:
    """One of the two processes."""

    def __init__(self, first: bool, redis: str, meeting: str, devices: List[int], nbytes: int) -> None:
        self.first, self.redis, self.meeting, self.devices = first, redis, meeting, devices
        self.device = devices[0 if first else 1]
        torch.cuda.set_device(self.device)
        self.outbox = torch.empty(nbytes // 8, dtype=torch.int64, device="cuda")
        self.inbox = torch.empty_like(self.outbox)
        self.numbers = torch.arange(nbytes // 8, dtype=torch.int64, device="cuda")

    def content(self, from_first: bool, seed: int, words: int) -> torch.Tensor:
        return self.numbers[:words] * 0x1E3779B97F4A7C15 + (2 * seed + from_first)

    def prepare(self, seed: int, words: int) -> None:
        self.outbox[:words] = self.content(self.first, seed, words)
        self.inbox[:words] = -1
        torch.cuda.synchronize()

    def check(self, seed: int, words: int) -> None:
        if not torch.equal(self.inbox[:words], self.content(not self.first, seed, words)):
            raise RuntimeError("the bytes are wrong")


# --- contestants: said() goes to the other process, which hears() it; then send() and receive() -----------------------


class Windows:
    """A write with a notification."""

    def __init__(self, side: Side) -> None:
        self.client = tarn.Client(side.redis, transports="cuda_ipc")
        self.side, self.window = side, self.client.window(side.inbox)
        self.lease = self.window.lease(write=True)

    def said(self) -> Any:
        return self.lease.descriptor

    def hears(self, descriptor: Any) -> None:
        self.reach = self.client.reach(descriptor)

    def send(self, words: int) -> None:
        self.reach.write(self.side.outbox[:words], notify=(TAG, b""))

    def receive(self, words: int) -> None:
        self.lease.expect(TAG)


class Nccl:
    """torch.distributed's send and recv. Who receives waits for the GPU."""

    def __init__(self, side: Side) -> None:
        if side.devices[0] == side.devices[1]:
            raise Skipped("NCCL needs a GPU for each process")
        if not dist.is_nccl_available():
            raise Skipped("this torch has no NCCL")
        self.side = side

    def said(self) -> Any:
        return torch.cuda.nccl.version()

    def hears(self, version: Any) -> None:
        if version != self.said():
            raise Skipped(f"NCCL {self.said()} here and {version} at the other end")
        dist.init_process_group("nccl", init_method=f"file://{self.side.meeting}", world_size=2,
                                rank=0 if self.side.first else 1, device_id=torch.device("cuda", self.side.device))

    def send(self, words: int) -> None:
        dist.send(self.side.outbox[:words], 1 if self.side.first else 0)

    def receive(self, words: int) -> None:
        dist.recv(self.side.inbox[:words], 1 if self.side.first else 0)
        torch.cuda.synchronize()


class Nixl:
    """A prepared WRITE with a notification, over UCX."""

    def __init__(self, side: Side) -> None:
        try:
            from nixl_cu13._api import nixl_agent, nixl_agent_config
        except ImportError as e:
            raise Skipped(f"NIXL: {e}") from e
        self.side, self.handles = side, {}
        self.agent = nixl_agent("A" if side.first else "B", nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([side.outbox, side.inbox])

    def said(self) -> Any:
        return self.agent.get_agent_metadata(), self.side.inbox.data_ptr(), self.side.device

    def hears(self, said: Any) -> None:
        of, self.far, self.far_device = said
        self.other = self.agent.add_remote_agent(of)

    def handle(self, words: int) -> Any:
        near = self.agent.get_xfer_descs([(self.side.outbox.data_ptr(), 8 * words, self.side.device)], "VRAM")
        far = self.agent.get_xfer_descs([(self.far, 8 * words, self.far_device)], "VRAM")
        return self.agent.initialize_xfer("WRITE", near, far, self.other, b"there")

    def send(self, words: int) -> None:
        if words not in self.handles:
            self.handles[words] = self.handle(words)
        state = self.agent.transfer(self.handles[words], b"there")
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handles[words])
        if state != "DONE":
            raise RuntimeError(f"NIXL says {state}")

    def receive(self, words: int) -> None:
        while not self.agent.get_new_notifs():
            pass


CONTESTANTS: List[Callable[[Side], Any]] = [Windows, Nccl, Nixl]


# --- B: answers one request after the other ---------------------------------------------------------------------------


def other(pipe: Connection, *args: Any) -> None:
    side = Side(False, *args)
    contestants: Dict[str, Any] = {}
    while True:
        what, *rest = pipe.recv()
        if what == "end":
            os._exit(0)  # as A does
        try:
            pipe.send((True, serve(side, contestants, what, *rest)))
            if what == "run":
                trips(contestants[rest[0]], False, *rest[1:])
        except Skipped as e:
            pipe.send((False, str(e)))
        except Exception as e:  # A says it
            pipe.send((False, f"the other process: {e}"))


def serve(side: Side, contestants: Dict[str, Any], what: str, *rest: Any) -> Any:
    if what == "new":
        contestants[rest[0]] = next(c for c in CONTESTANTS if c.__name__ == rest[0])(side)
        return contestants[rest[0]].said()
    if what == "hear":
        contestants[rest[0]].hears(rest[1])
    elif what == "prepare":
        side.prepare(*rest)
    elif what == "check":
        side.check(*rest)
    elif what == "environment":
        return environment(side)
    return None


class Other:
    """B, as A has it."""

    def __init__(self, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=other, args=(end, *args), daemon=True)
        self.process.start()
        end.close()

    def tell(self, *request: Any) -> None:
        self.pipe.send(request)

    def hear(self) -> Any:
        if not self.pipe.poll(120):
            raise RuntimeError("the other process does not answer")
        done, answer = self.pipe.recv()
        if not done:
            raise Skipped(answer)
        return answer

    def ask(self, *request: Any) -> Any:
        self.tell(*request)
        return self.hear()


# --- measuring --------------------------------------------------------------------------------------------------------


def trips(contestant: Any, first: bool, words: int, count: int) -> List[int]:
    took = []
    for _ in range(count):
        start = clock()
        if first:
            contestant.send(words)
            contestant.receive(words)
        else:
            contestant.receive(words)
            contestant.send(words)
        took.append(clock() - start)
    return took


def a_slice(side: Side, b: Other, name: str, contestant: Any, words: int, seed: int, count: int) -> List[int]:
    """Half the time of each trip, in ns. The first is not counted."""
    b.tell("prepare", seed, words)
    side.prepare(seed, words)
    b.hear()
    b.ask("run", name, words, count + 1)
    took = [t // 2 for t in trips(contestant, True, words, count + 1)[1:]]
    torch.cuda.synchronize()
    b.tell("check", seed, words)
    side.check(seed, words)
    b.hear()
    return took


def meet(side: Side, b: Other) -> Dict[str, Any]:
    """Those that can run here."""
    able = {}
    for make in CONTESTANTS:
        name = make.__name__
        try:
            one = make(side)
            said = b.ask("new", name)
            b.tell("hear", name, one.said())
            try:
                one.hears(said)
            finally:
                b.hear()
            able[name] = one
        except Skipped as e:
            print(f"{name}: skipped: {e}")
    return able


def percentiles(took: List[int]) -> Dict[str, float]:
    ordered = sorted(took)
    return {name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e3
            for name, part in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))}


def row(side: Side, b: Other, able: Dict[str, Any], nbytes: int, rounds: int) -> Dict[str, Any]:
    count = max(2, min(SLICE_TRIPS, SLICE_BYTES // nbytes // 2))
    took: Dict[str, List[List[int]]] = {name: [] for name in able}
    for n in range(rounds + 1):
        order = list(able)[:: 1 if n % 2 else -1]
        for name in order:
            took[name].append(a_slice(side, b, name, able[name], nbytes // 8, n, count))
    result: Dict[str, Any] = {"bench": "peers", "bytes": nbytes, "rounds": rounds}
    medians = {name: [statistics.median(s) for s in slices[1:]] for name, slices in took.items()}
    for name, slices in took.items():
        figures = percentiles([t for s in slices[1:] for t in s])
        figures["GBps"] = nbytes / figures["p50_us"] / 1e3
        if name != "Windows":
            figures["times"] = statistics.median(t / ours for t, ours in zip(medians[name], medians["Windows"]))
        result[name] = figures
    return result


def show(r: Dict[str, Any]) -> None:
    nbytes = r["bytes"]
    print(f"{nbytes // MiB} MiB" if nbytes >= MiB else f"{nbytes // KiB} KiB", end="")
    for make in CONTESTANTS:
        figures = r.get(make.__name__)
        if figures:
            times = f" ({figures['times']:.2f} times ours)" if "times" in figures else ""
            print(f"  {make.__name__} {figures['p50_us']:.1f} us, p99 {figures['p99_us']:.1f}, "
                  f"p999 {figures['p999_us']:.1f}, {figures['GBps']:.2f} GB/s{times}", end="")
    print(flush=True)


def environment(side: Side) -> Dict[str, Any]:
    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "none"

    return {
        "gpu": torch.cuda.get_device_name(side.device), "device": side.device, "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "tarn": tarn.lib_version(),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())), "nixl": version("nixl-cu13"),
        "settings": {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "UCX_", "NIXL_", "CUDA_", "TARN_"))},
    }


def measure(redis: str, folder: str, options: argparse.Namespace) -> Dict[str, Any]:
    sizes = SIZES[:4] if options.quick else SIZES
    args = (redis, f"{folder}/meeting", options.devices, sizes[-1])
    b = Other(*args)
    side = Side(True, *args)
    ends = [environment(side), b.ask("environment")]
    for end, which in zip(ends, "AB"):
        print(which, json.dumps(end))
    able = meet(side, b)
    rows = []
    for nbytes in sizes:
        rows.append(row(side, b, able, nbytes, 3 if options.quick else options.rounds))
        show(rows[-1])
    b.tell("end")
    return {"ends": ends, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a first look, not for figures to keep")
    parser.add_argument("--devices", type=int, nargs=2, default=[0, 1], metavar="N", help="the GPUs of A and B (0 1)")
    parser.add_argument("--rounds", type=int, default=20, help="slices of each contestant for each size (20)")
    parser.add_argument("--json-dir", type=Path, help="write peers.json there")
    options = parser.parse_args()
    if max(options.devices) >= torch.cuda.device_count():
        print(f"peers: there are {torch.cuda.device_count()} GPUs, so not {max(options.devices)}: give --devices")
        return 77
    with tempfile.TemporaryDirectory() as folder, local_nodes({"peers": ["cpu0:bytes=1M"]}) as redis:
        results = measure(redis, folder, options)
    if options.json_dir:
        options.json_dir.mkdir(parents=True, exist_ok=True)
        (options.json_dir / "peers.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)  # NCCL and UCX have threads, which would keep it waiting
