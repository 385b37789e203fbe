# SPDX-License-Identifier: Apache-2.0
"""Storage nodes on this host for the length of a `with` block, so that the examples need no setup."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, Sequence


def tarnd() -> str:
    """The node program: of $TARN_BUILD, the PATH, or this source tree's build folder."""
    tree = Path(__file__).resolve().parents[3] / "build"
    for path in (os.environ.get("TARN_BUILD", ""), os.environ.get("PATH", ""), str(tree)):
        found = shutil.which("tarnd", path=path) if path else None
        if found:
            return found
    raise FileNotFoundError("tarnd is not found: build it (make), or give its folder in TARN_BUILD")


@contextmanager
def local_nodes(nodes: Mapping[str, Sequence[str]], *flags: str) -> Iterator[str]:
    """Starts a node for each name, with its pools as in `tarnd --pool`; yields the directory's address. `flags`
    are further ones of tarnd, for all nodes.

    The first one starts the Redis of all. They end with the block.
    """
    with tempfile.TemporaryDirectory(prefix="tarn-") as folder:
        running: list[subprocess.Popen] = []
        redis = ""
        try:
            for name, pools in nodes.items():
                child, redis = _start(Path(folder), name, pools, redis, flags)
                running.append(child)
            yield redis
        finally:
            for child in reversed(running):
                child.terminate()
                try:
                    child.wait(15)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                child.stdout.close()


def _start(
    folder: Path, name: str, pools: Sequence[str], redis: str, flags: Sequence[str]
) -> tuple[subprocess.Popen, str]:
    log = folder / f"{name}.log"
    # A parent that is killed has no time to end its nodes.
    command = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    command += [tarnd(), "--id", name, "--listen", "127.0.0.1:0", "--unix", str(folder / f"{name}.sock"), *flags]
    for pool in pools:
        command += ["--pool", pool]
    # Settings of another store in the environment do not apply to this one.
    environment = {k: v for k, v in os.environ.items() if k != "TARN_REDIS"}
    if redis:
        environment["TARN_REDIS"] = redis  # it has a password, and arguments are seen by all users
    with open(log, "w") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment,
        )  # fmt: skip
    line = child.stdout.readline()
    if not line.startswith("tarnd ready "):
        child.kill()
        child.wait()
        child.stdout.close()
        raise RuntimeError(f"{' '.join(command)} did not start: {log.read_text()[-800:]}")
    # A node does not print a password that it was given.
    return child, redis or dict(word.split("=", 1) for word in line.split()[2:])["redis"]
