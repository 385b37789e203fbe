# SPDX-License-Identifier: Apache-2.0
"""Plots GB/s against object size, for each transport beside what it is measured against, from tarn-bench's JSON.

    make plots      PLOTS_FROM=build/bench PLOTS_TO=docs/results
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import matplotlib

matplotlib.use("Agg")  # no display is needed
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator  # noqa: E402

Row = Dict[str, Any]
Line = Dict[int, float]  # GB/s by bytes

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
# What is measured and what bounds it share a colour: ours solid and thick, the limit dashed and dark on top of it.
OURS = {"shm": "tab:blue", "tcp": "tab:green", "rdma": "tab:purple", "gpu": "tab:red"}
PLACES = {"CPU pool": "tab:orange", "CPU memory": "tab:olive", "other GPU": "tab:cyan"}  # of GPU rows
PEERS = {"Redis (Unix socket)": "tab:red", "Redis (TCP)": "salmon", "memcached": "dimgray"}
STYLES = {"ours": ("-", 2.4), "limit": ("--", 1.2), "peers": (":", 1.6)}
LIMITS = {"shm": "memcpy", "tcp": "socket loop", "rdma": "perftest", "gpu": "bare CUDA copy"}


def read(folder: Path) -> Dict[str, List[Row]]:
    """The rows of each group that was measured."""
    groups = {name: folder / f"{name}.json" for name in OURS}
    return {name: json.loads(path.read_text()) for name, path in groups.items() if path.exists()}


def plain(row: Row, group: str, what: str) -> bool:
    """One object at a time, in one piece, by one thread; RDMA's are measured with many in flight, as perftest does."""
    one = row.get("pieces", 1) == row.get("threads", 1) == 1 and (row.get("depth", 1) == 1 or group == "rdma")
    return row["bench"] == f"{group}_{what}" and one and bool(row.get("ours", {}).get("GBps"))


def lines_of(group: str, rows: List[Row], what: str) -> Dict[Tuple[str, str], Line]:
    """By (role, label): ours, the limit, and those that do the same in another way."""
    lines: Dict[Tuple[str, str], Line] = {}
    for row in rows:
        if not plain(row, group, what):
            continue
        note = (f", {row['depth']} in flight" if row.get("depth", 1) > 1 else "") + (
            f", {row['note']}" if row.get("note") else ""
        )
        found = [("ours", f"tarn {group}{note}", row["ours"])]
        if row.get("limit"):
            found.append(("limit", LIMITS[group] + note, row["limit"]))
        found += [("peers", peer["name"], peer) for peer in row.get("peers", [])]
        for role, label, figures in found:
            if figures.get("GBps"):
                lines.setdefault((role, label), {})[row["bytes"]] = figures["GBps"]
    return lines


def size(nbytes: float) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes:g} B"


def machine(groups: Dict[str, List[Row]]) -> str:
    m = next((rows[0]["machine"] for rows in groups.values() if rows and "machine" in rows[0]), None)
    return f"{m['cpu']}, {m['cores']} cores, {m['date'][:10]}" if m else ""


def plot(groups: Dict[str, List[Row]], what: str, path: Path) -> Optional[Path]:
    """None when nothing of the kind was measured."""
    figure, axes = plt.subplots(figsize=(9, 5.6))
    sizes, drawn = set(), set()
    for group, rows in groups.items():
        for (role, label), line in lines_of(group, rows, what).items():
            if label in drawn:  # a peer that is the same in another group
                continue
            drawn.add(label)
            style, width = STYLES[role]
            xs = sorted(line)
            ours = PLACES.get(label.rpartition(", ")[2], OURS[group])
            color = {"peers": PEERS.get(label), "limit": "black", "ours": ours}[role]
            order = 3 if role == "limit" else 2
            axes.plot(xs, [line[x] for x in xs], style, color=color, linewidth=width, marker=".", label=label,
                      zorder=order, alpha=0.6 if role == "limit" else 1)
            sizes.update(xs)
    if sizes:
        axes.set(xscale="log", yscale="log", xlabel="bytes of an object", ylabel="GB/s")
        axes.set_xticks(sorted(sizes), [size(x) for x in sorted(sizes)])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{what}, one object at a time: {machine(groups)}", fontsize=10)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
    plt.close(figure)
    return path if sizes else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("from_folder", type=Path, help="where tarn-bench wrote its JSON")
    parser.add_argument("to_folder", type=Path, help="where the PNG files go")
    parser.add_argument("--prefix", default="", help="of the files' names")
    a = parser.parse_args()
    groups = read(a.from_folder)
    if not groups:
        print(f"plots: no JSON of tarn-bench in {a.from_folder}: run make bench first", file=sys.stderr)
        return 1
    host = {name: rows for name, rows in groups.items() if name != "gpu"}
    gpu = {name: rows for name, rows in groups.items() if name == "gpu"}
    wanted = [(host, "get", "get"), (host, "put", "put"), (gpu, "get", "gpu-get"), (gpu, "write", "gpu-write")]
    a.to_folder.mkdir(parents=True, exist_ok=True)
    for some, what, name in wanted:
        path = plot(some, what, a.to_folder / f"{a.prefix}{name}.png")
        if path:
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
