# SPDX-License-Identifier: Apache-2.0
"""Starts a storage node with a Redis of its own for the benchmarks here, and ends it with the block."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

BUILD = Path(os.environ.get("TARN_BUILD", Path(__file__).resolve().parents[3] / "build"))


@contextlib.contextmanager
def node(pool_bytes: int) -> Iterator[str]:
    """A node with one CPU pool; gives the directory's address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(BUILD / "tarnd"), "--id", "bench", "--listen", "127.0.0.1:0", "--unix", folder + "/node.sock"]
        with open(folder + "/log", "w+") as log:
            tarnd = subprocess.Popen(
                command + ["--pool", f"cpu0:bytes={pool_bytes}"], stdout=subprocess.PIPE, stderr=log, text=True
            )
            try:
                words = dict(w.split("=", 1) for w in tarnd.stdout.readline().split() if "=" in w)
                if "redis" not in words:
                    log.seek(0)
                    raise RuntimeError("the node does not start: " + log.read())
                yield words["redis"]
            finally:
                tarnd.terminate()
                tarnd.communicate()
