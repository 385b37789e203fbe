# SPDX-License-Identifier: Apache-2.0
"""For tests: a real tarnd with a private Redis, ended with the test. TARN_BUILD says where the programs are."""
from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import tarn

START_S = 30.0
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the child: a test program that is killed leaves no node behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def state(pid: int, thread: str = "") -> str:
    """Of a process or one of its threads: "S" sleeps, "T" stands still (proc(5))."""
    with open(f"/proc/{pid}/task/{thread or pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def stop(pid: int) -> None:
    """The process stands still from now on, until SIGCONT. Its threads run until one of them has seen the signal."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + START_S
    while any(state(pid, thread) != "T" for thread in os.listdir(f"/proc/{pid}/task")):
        assert time.monotonic() < until, "does not stop"
        time.sleep(0)


@contextmanager
def ctrl_c(case: unittest.TestCase, seconds: float) -> Iterator[None]:
    """SIGINT comes to this process after so long, and must end the block. A block that ends by itself is spared."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with case.assertRaises(KeyboardInterrupt):
            yield
    finally:
        timer.cancel()
        timer.join()


class Store:
    """One node; `uri` is its Redis. Use as a context manager, or call close()."""

    def __init__(self, *args: str, pool: str = "cpu0:bytes=64M", redis: Optional[str] = None,
                 id: str = "node0") -> None:
        build = os.environ.get("TARN_BUILD", "build")
        self.dir = tempfile.TemporaryDirectory(prefix="tarn-py-")
        self._log = open(os.path.join(self.dir.name, "tarnd.log"), "w+b")
        argv = [os.path.join(build, "tarnd"), "--id", id, "--listen", "127.0.0.1:0", "--unix",
                os.path.join(self.dir.name, "node.sock"), "--data-port", "0", "--pool", pool,
                # a busy host may hold up the node and Redis for seconds
                "--redis-timeout-ms", "20000", "--heartbeat-ms", "3000"]
        argv += ["--redis", redis] if redis else []
        self.process = subprocess.Popen([*argv, *args], stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
                                        preexec_fn=_end_with_parent)
        self.pid = self.process.pid
        try:
            words = dict(w.split("=", 1) for w in self._wait_for("tarnd ready ").split())
            self.uri = redis or words["redis"]  # a node does not tell the password that it was given
            self.control = words["control"]
        except BaseException:
            self.close()
            raise

    def _wait_for(self, word: str) -> str:
        """The line of its output that begins so, without that."""
        out = self.process.stdout
        assert out is not None
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if not select.select([out], [], [], 1.0)[0]:
                continue
            line = out.readline().decode()
            if not line:
                break
            if line.startswith(word):
                return line[len(word):].strip()
        raise AssertionError(f"tarnd: no line {word!r}:\n{self.log()}")

    def log(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def pause(self) -> None:
        """It stands still from now on; resume() ends that."""
        stop(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            os.kill(self.pid, signal.SIGCONT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()
        self.dir.cleanup()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class StoreCase(unittest.TestCase):
    """Tests over one store, with a client of their own each. STORE_ARGS are tarnd's."""

    STORE_ARGS: List[str] = []
    POOL = "cpu0:bytes=64M"
    store: Store
    client: tarn.Client

    @classmethod
    def setUpClass(cls) -> None:
        cls.store = Store(*cls.STORE_ARGS, pool=cls.POOL)
        cls.addClassCleanup(cls.store.close)

    def setUp(self) -> None:
        self.client = self.open()

    def open(self, **options: Any) -> tarn.Client:
        c = tarn.Client(self.store.uri, **options)
        self.addCleanup(c.close)
        return c

    def key(self, name: str = "") -> str:
        """One that no other test uses."""
        return f"{self.id()}/{name}"
