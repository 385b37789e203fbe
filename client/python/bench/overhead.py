# SPDX-License-Identifier: Apache-2.0
"""What Python costs over C: the same calls on the same objects, by c_side.c and from Python in turn, each by itself
timed, all bytes compared. Prints a table and writes rows as tarn-bench does.

    make bench-python            BENCH_ARGS=--quick for a first look
"""

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

import tarn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from local_nodes import local_nodes  # noqa: E402

BUILD = Path(os.environ.get("TARN_BUILD", Path(__file__).resolve().parents[3] / "build"))
MIX = 0x9E3779B97F4A7C15
KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
clock = time.perf_counter_ns


def words(i: int, nbytes: int) -> np.ndarray:
    """What object i holds; c_side.c makes the same."""
    with np.errstate(over="ignore"):
        numbers = np.arange(nbytes // 8, dtype=np.uint64) + np.uint64(i << 32)
        return (numbers * np.uint64(MIX)).view(np.int64)


class CSide:
    """The program c_side."""

    def __init__(self, redis: str) -> None:
        program = str(BUILD / "python" / "bench" / "c_side")
        self.process = subprocess.Popen([program, redis], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, kind: str, prefix: str, count: int, nbytes: int) -> List[int]:
        self.process.stdin.write(f"{kind} {prefix} {count} {nbytes}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().strip()
        if not answer.isdigit():
            raise RuntimeError(f"c_side: {kind} {prefix}: {answer or 'it ended'}")
        n = int(answer)
        return list(struct.unpack(f"={n}Q", self.process.stdout.read(8 * n)))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Work:
    """The objects of a row: put once, and what each side gets is compared with what was put."""

    def __init__(self, client: tarn.Client, prefix: str, count: int, nbytes: int) -> None:
        self.client, self.prefix, self.count, self.nbytes = client, prefix, count, nbytes
        self.keys = [f"{prefix}/{i}" for i in range(count)]
        self.expected = np.empty((count, nbytes // 8), np.int64)
        for i, key in enumerate(self.keys):
            self.expected[i] = words(i, nbytes)
            client.put(key, self.expected[i])
        self.room = np.empty_like(self.expected)
        self.rows = list(self.room)

    def clear(self) -> None:
        self.room.fill(0)

    def check(self, got: Iterable[Any]) -> None:
        for want, array in zip(self.expected, got):
            if not np.array_equal(want, np.asarray(array)):
                raise RuntimeError(f"{self.prefix}: the bytes are wrong")

    def remove(self) -> None:
        self.client.remove(self.keys)


def get_into(w: Work) -> List[int]:
    w.clear()
    took, call = [], w.client.get_into
    for key, row in zip(w.keys, w.rows):
        start = clock()
        call(key, row)
        took.append(clock() - start)
    w.check(w.room)
    return took


def get(w: Work, out: str) -> List[int]:
    took, got, call = [], [], w.client.get
    for key in w.keys:
        start = clock()
        array = call(key, out=out)
        took.append(clock() - start)
        got.append(array)
    w.check(got)
    return took


def get_into_many(w: Work, values: Any) -> List[int]:
    w.clear()
    start = clock()
    w.client.get_into_many(w.keys, values)
    took = clock() - start
    w.check(w.room)
    return [took]


def view(w: Work) -> List[int]:
    took, call, key = [], w.client.view, w.keys[0]
    for _ in range(64):
        start = clock()
        array = call(key)
        took.append(clock() - start)
        del array
    return took


class Row(NamedTuple):
    bench: str
    kind: str  # c_side's
    count: int
    nbytes: int
    python: Callable[[Work], List[int]]
    figure: str  # which of those below has a target
    target: Optional[Tuple[str, float]]
    rounds: int
    note: str = ""


def rows(have_torch: bool) -> List[Row]:
    small, large = 400, 60
    some = [
        Row("get_into", "get", 64, 4 * KiB, get_into, "extra_us", ("<=", 3.0), small),
        Row("get_into", "get", 1, 64 * MiB, get_into, "ratio", None, large),
        Row("get", "fresh", 1, 64 * MiB, lambda w: get(w, "numpy"), "ratio", (">=", 0.95), large, "NumPy"),
        Row("get_into_many", "batch", 256, 4 * KiB, lambda w: get_into_many(w, w.room), "extra_us_key", ("<=", 0.3),
            small, "into one array"),
        Row("get_into_many", "batch", 256, 4 * KiB, lambda w: get_into_many(w, w.rows), "extra_us_key", ("<=", 0.3),
            small, "into 256 arrays"),
        Row("view", "view", 1, GiB, view, "p50_us", ("<", 20.0), large),
    ]
    if have_torch:
        torch_row = Row("get", "fresh", 1, 64 * MiB, lambda w: get(w, "torch"), "ratio", (">=", 0.95), large, "torch")
        some.insert(3, torch_row)
    return some


def percentiles(took: List[int]) -> Dict[str, float]:
    ordered = sorted(took)
    return {
        name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e3
        for name, part in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))
    }


def meets(value: float, target: Tuple[str, float]) -> bool:
    sign, limit = target
    return value >= limit if sign == ">=" else value <= limit if sign == "<=" else value < limit


def in_turn(row: Row, work: Work, c_side: CSide, rounds: int) -> List[Tuple[List[int], List[int]]]:
    """Rounds of both; which of them begins changes. The first is not counted."""
    done = []
    for n in range(rounds + 1):
        sides = [lambda: c_side.run(row.kind, work.prefix, 64 if row.kind == "view" else row.count, row.nbytes),
                 lambda: row.python(work)]
        if n % 2:
            second, first = sides[1](), sides[0]()
        else:
            first, second = sides[0](), sides[1]()
        done.append((first, second))
    return done[1:]


def result(row: Row, done: List[Tuple[List[int], List[int]]]) -> Dict[str, Any]:
    c = percentiles([t for first, _ in done for t in first])
    ours = percentiles([t for _, second in done for t in second])
    extra = statistics.median(statistics.median(b) - statistics.median(a) for a, b in done) / 1e3
    per_call = row.count if row.kind == "batch" else 1
    figures = {
        "extra_us": extra,
        "extra_us_key": extra / per_call,
        "ratio": statistics.median(sum(a) / sum(b) for a, b in done),
        "p50_us": ours["p50_us"],
    }
    if row.kind != "view":
        ours["GBps"] = row.nbytes * per_call / ours["p50_us"] / 1e3
        c["GBps"] = row.nbytes * per_call / c["p50_us"] / 1e3
    r = {
        "bench": "python_" + row.bench, "bytes": row.nbytes, "depth": per_call, "note": row.note, "rounds": len(done),
        "ours": ours, "limit": dict(c, name="C", ratio=figures["ratio"]), "ratio_limit": figures["ratio"],
        "extra_us": figures["extra_us"], "extra_us_key": figures["extra_us_key"],
    }
    if row.target:
        r["target"] = f"{row.figure} {row.target[0]} {row.target[1]}"
        r["met"] = meets(figures[row.figure], row.target)
    return r


# --- several processes --------------------------------------------------------------------------------


def worker(redis: str, prefix: str, count: int, nbytes: int) -> None:
    """Gets for as many seconds as each line of its input says, and answers with how many a second."""
    client = tarn.Client(redis, transports="shm")
    expected = [words(i, nbytes) for i in range(count)]
    pairs = [(f"{prefix}/{i}", np.empty(nbytes // 8, np.int64)) for i in range(count)]
    print("ready", flush=True)
    for line in sys.stdin:
        done, start = 0, time.monotonic()
        while time.monotonic() < start + float(line):
            for key, row in pairs:
                client.get_into(key, row)
            done += count
        rate = done / (time.monotonic() - start)
        right = all(np.array_equal(row, want) for (_, row), want in zip(pairs, expected))
        print(rate if right else "the bytes are wrong", flush=True)
    client.close()


def total_rate(workers: List[subprocess.Popen], seconds: float) -> float:
    for w in workers:
        w.stdin.write(f"{seconds}\n")
        w.stdin.flush()
    return sum(float(w.stdout.readline()) for w in workers)


def processes(redis: str, client: tarn.Client, nbytes: int, rounds: int, seconds: float) -> Dict[str, Any]:
    work = Work(client, f"many{nbytes}", 16, nbytes)
    command = [sys.executable, __file__, "--worker", redis, work.prefix, str(work.count), str(nbytes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(8)]
    for w in workers:
        assert w.stdout.readline() == "ready\n"
    done = [(total_rate(workers[:1], seconds), total_rate(workers, seconds)) for _ in range(rounds)]
    for w in workers:
        w.stdin.close()
    ended = [w.wait(30) for w in workers]
    work.remove()
    ratio = statistics.median(eight / one for one, eight in done)
    one, eight = (statistics.median(column) for column in zip(*done))
    return {
        "bench": "python_processes", "bytes": nbytes, "processes": 8, "rounds": rounds,
        "ours": {"objects_s": eight, "GBps": eight * nbytes / 1e9},
        "limit": {"name": "one process", "objects_s": one, "GBps": one * nbytes / 1e9, "ratio": ratio},
        "ratio_limit": ratio, "target": "ratio >= 1, all end", "met": ratio >= 1 and not any(ended),
    }


# --- all of it ----------------------------------------------------------------------------------------


def machine() -> Dict[str, Any]:
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": model[0] if model else "unknown", "cores": os.cpu_count(), "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "tarn": tarn.lib_version(),
        "python": platform.python_version(), "numpy": np.__version__,
    }


def size(nbytes: int) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes // KiB} KiB"


def show(r: Dict[str, Any]) -> None:
    load = f"{r['bench']:20} {size(r['bytes']):>8} x{r.get('depth', 1):<4}{r.get('note', ''):16}"
    if "error" in r:
        print(f"{load}FAILED: {r['error']}", flush=True)
        return
    ours, c = r["ours"], r["limit"]
    if "p50_us" in ours:
        times = f"{ours['p50_us']:10.2f} {ours['p99_us']:10.2f} {ours['p999_us']:10.2f} us  C {c['p50_us']:9.2f} us"
        times += f"  extra {r['extra_us_key']:8.3f} us a key"
    else:
        times = f"{ours['objects_s']:12.0f} /s  one {c['objects_s']:12.0f} /s"
    target = f"  [{'met' if r['met'] else 'MISSED'}: {r['target']}]" if "target" in r else ""
    print(f"{load}{times}  ratio {c['ratio']:.3f}{target}", flush=True)


def have_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def measure_row(client: tarn.Client, c_side: CSide, row: Row, prefix: str, rounds: int) -> Dict[str, Any]:
    work = Work(client, prefix, row.count, row.nbytes)
    try:
        return result(row, in_turn(row, work, c_side, rounds))
    except Exception as e:  # the other rows are measured all the same
        return {"bench": "python_" + row.bench, "bytes": row.nbytes, "note": row.note, "error": str(e)}
    finally:
        work.remove()


def measure(redis: str, quick: bool, only: str) -> List[Dict[str, Any]]:
    results: List[Dict[str, Any]] = []
    with tarn.Client(redis, transports="shm") as client:
        c_side = CSide(redis)
        for n, row in enumerate(rows(have_torch())):
            if only not in f"{row.bench} {size(row.nbytes)} {row.note}":
                continue
            rounds = max(3, row.rounds // (10 if quick else 1))
            results.append(measure_row(client, c_side, row, f"row{n}", rounds))
            show(results[-1])
        c_side.close()
        for nbytes in (4 * KiB, MiB) if only in "processes" else ():
            results.append(processes(redis, client, nbytes, 2 if quick else 5, 0.3 if quick else 2.0))
            show(results[-1])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a first look, not for figures to keep")
    parser.add_argument("--only", default="", help="only rows with this in their name, size or note")
    parser.add_argument("--json-dir", type=Path, default=BUILD / "bench", help="where python.json goes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        worker(a.worker[0], a.worker[1], int(a.worker[2]), int(a.worker[3]))
        return 0
    with local_nodes({"bench": [f"cpu0:bytes={2 * GiB}"]}) as redis:
        results = measure(redis, a.quick, a.only)
    if not results:
        sys.exit(f"overhead.py: no row has {a.only!r} in its name, size or note")
    results[0]["machine"] = machine()
    a.json_dir.mkdir(parents=True, exist_ok=True)
    (a.json_dir / "python.json").write_text(json.dumps(results, indent=2) + "\n")
    return 1 if any("error" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
