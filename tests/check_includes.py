#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What may include what: folders have layers, and files no circles. Prints every finding.

A module is a .c file with the header of its name, and NAME_impl.h where several .c files share its inside. It depends
on the modules whose headers any of them includes.
"""

import re
import subprocess
import sys
from pathlib import Path

# Folder: what its files may include besides itself, folders and single headers.
LAYERS = {
    "include/tarn": [],
    "base/option": ["include/tarn", "base"],
    "base/resp": ["include/tarn", "base"],
    "base": ["include/tarn"],
    "metadata": ["include/tarn", "base", "base/resp"],
    "transport/cuda": ["include/tarn", "base"],
    "transport/tcpx/plugin": ["include/tarn", "base", "transport", "transport/cuda"],
    "transport/tcpx": ["include/tarn", "base", "transport", "transport/cuda", "transport/tcpx/plugin"],
    "transport/shm": ["include/tarn", "base", "transport", "transport/cuda"],
    "transport/tcp": ["include/tarn", "base", "transport", "transport/cuda"],
    "transport/rdma": ["include/tarn", "base", "transport", "transport/cuda"],
    "transport/cuda_ipc": ["include/tarn", "base", "transport", "transport/cuda"],
    "transport/host": ["include/tarn", "base", "base/resp", "transport"],
    "transport/faulty": ["include/tarn", "base", "transport"],
    "transport": ["include/tarn", "base", "transport/cuda"],
    "server/store": ["include/tarn", "base", "metadata", "transport", "transport/cuda"],
    "server/directory": [
        "include/tarn", "base", "base/resp", "metadata", "transport", "server/store", "server/parts.h",
    ],
    "server/control": [
        "include/tarn", "base", "base/resp", "base/option", "metadata", "transport", "transport/host", "server/store",
        "server/directory", "server/parts.h",
    ],
    "server": [
        "include/tarn", "base", "base/resp", "base/option", "metadata", "transport", "transport/cuda",
        "transport/tcpx/plugin", "transport/host", "server/store", "server/directory", "server/control",
    ],
    "client": ["include/tarn", "base", "base/resp", "metadata", "transport", "transport/cuda", "transport/faulty"],
    "client/gpu": [
        "include/tarn", "base", "transport", "transport/cuda", "client", "client/window/lender.h",
        "client/window/lent.h", "client/window/move.h", "client/window/reach.h",
    ],
    "client/window": [
        "include/tarn", "base", "base/resp", "metadata", "transport", "transport/cuda", "transport/host", "client",
    ],
    "client/cli": [
        "include/tarn", "base", "base/option", "client", "metadata", "transport", "transport/cuda", "transport/rdma",
        "transport/tcpx", "transport/tcpx/plugin",
    ],
    "client/bench": [
        "include/tarn", "base", "base/option", "base/resp", "client", "client/gpu", "server/store",
        "transport/cuda", "transport/rdma",
    ],
    "client/bench/bare": ["base", "client/bench", "transport/cuda"],
    "client/python/src/ext": ["include/tarn"],
    "client/python/bench": ["include/tarn"],
    "client/python/tests": ["transport/cuda"],
}
# One file may know more than its folder.
BESIDES = {
    "client/cli/cli_windows.c": r"client/window/descriptor\.h",
    "transport/registry.c": r"transport/[a-z_]+/[a-z_]+\.h",
    "transport/node_registry.c": r"transport/[a-z_]+/[a-z_]+\.h",
    "client/open.c": r"transport/tcpx/plugin/tcpx_settings\.h|"
                     r"client/(window/(lender|reach)|gpu/(tables|proxies|forwards))\.h",
}


def includes(file):
    """Files of the project: those in quotes, and the public ones."""
    for header in re.findall(r'^#include (?:"|<(?=tarn/))([^">]+)[">]', Path(file).read_text(), re.M):
        if header.startswith("tarn/"):
            yield "include/" + header
        else:
            yield header if "/" in header else str(Path(file).parent / header)


def module_of(file):
    return re.sub("_impl$", "", str(Path(file).with_suffix("")))


def layers(files):
    for file in files:
        layer = str(Path(file).parent)
        if layer not in LAYERS:
            yield f"{file} is in a folder that tests/check_includes.py does not know: give {layer} an entry in LAYERS"
            continue
        for header in includes(file):
            known = {layer, *LAYERS[layer]} & {header, str(Path(header).parent)}
            if not known and not re.fullmatch(BESIDES.get(file, "$"), header):
                yield f"{file} includes {header}: {layer} knows only {', '.join(LAYERS[layer]) or 'itself'}"


def circles(files):
    """Tarjan's algorithm: every set of modules that all reach each other."""
    graph = {}
    for file in files:
        graph.setdefault(module_of(file), set()).update(map(module_of, includes(file)))
    index, low, stack = {}, {}, []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph[v]:
            if w not in graph:
                continue
            if w not in index:
                yield from visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            circle, stack[at:] = sorted(stack[at:]), []
            if len(circle) > 1:
                yield circle

    for v in graph:
        if v not in index:
            yield from visit(v)


def main():
    listed = subprocess.run(["git", "ls-files", "include", "base", "metadata", "transport", "server", "client"],
                            capture_output=True, text=True, check=True).stdout.split()
    files = [f for f in listed if f.endswith((".c", ".h", ".cu")) and Path(f).exists()]
    found = list(layers(files))
    found += [f"a circle of {len(c)} files: {' '.join(c)}" for c in circles(files)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


sys.exit(main())
