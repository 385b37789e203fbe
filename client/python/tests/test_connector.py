# SPDX-License-Identifier: Apache-2.0
"""The Connector, driven as a framework does: a thread polls its event fd and routes completions by id."""
from __future__ import annotations

import ctypes
import select
import threading
import unittest
from typing import Any, Dict, List

import tarn
from store import Store, StoreCase

try:
    import torch
except ImportError:
    torch = None


class Framework:
    """The part of LMCache's adapter that uses a native connector: submits with a lock held, drains in a thread."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.lock = threading.Lock()
        self.waiting: Dict[int, threading.Event] = {}
        self.done: Dict[int, Any] = {}
        self.strays: List[int] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.demux)
        self.thread.start()

    def demux(self) -> None:
        poller = select.poll()
        poller.register(self.native.event_fd(), select.POLLIN)
        while not self.stop.is_set():
            if not poller.poll(50):
                continue
            for id, ok, error, result in self.native.drain_completions():
                with self.lock:
                    event = self.waiting.pop(int(id), None)
                    if event is None:
                        self.strays.append(id)
                        continue
                    self.done[id] = (ok, error, result)
                event.set()

    def run(self, method: str, *args: Any) -> Any:
        with self.lock:
            id = int(getattr(self.native, method)(*args))
            event = self.waiting[id] = threading.Event()
        if not event.wait(30):
            raise AssertionError("no completion")
        with self.lock:
            return self.done.pop(id)

    def close(self) -> None:
        self.stop.set()
        self.thread.join(5)
        self.native.close()


def byte_array(n: int) -> memoryview:
    """As LMCache makes them of memory of its own."""
    return memoryview((ctypes.c_ubyte * n)())


class Contract(StoreCase):
    def setUp(self) -> None:
        self.native = tarn.Connector(self.store.uri)
        self.framework = Framework(self.native)
        self.addCleanup(self.framework.close)

    def test_what_frameworks_call(self) -> None:
        for name in ("event_fd", "submit_batch_get", "submit_batch_set", "submit_batch_exists", "submit_batch_delete",
                     "drain_completions", "close"):
            self.assertTrue(callable(getattr(self.native, name)), name)

    def test_life_of_a_batch(self) -> None:
        keys = [self.key(f"model@00000001@0@{i:016x}") for i in range(8)]
        data = [memoryview((ctypes.c_ubyte * 1000)(*([i] * 1000))) for i in range(8)]
        run = self.framework.run
        self.assertEqual(run("submit_batch_exists", keys), (True, "", [False] * 8))
        self.assertEqual(run("submit_batch_set", keys[:5], data[:5]), (True, "", [True] * 5))
        self.assertEqual(run("submit_batch_set", keys[:5], data[:5]), (True, "", [True] * 5), "they are there already")
        self.assertEqual(run("submit_batch_exists", keys), (True, "", [True] * 5 + [False] * 3))
        buffers = [byte_array(1000) for _ in keys]
        self.assertEqual(run("submit_batch_get", keys, buffers), (True, "", [True] * 5 + [False] * 3))
        self.assertEqual([bytes(b) for b in buffers[:5]], [bytes(d) for d in data[:5]])
        self.assertEqual(run("submit_batch_delete", keys), (True, "", [True] * 5 + [False] * 3))
        self.assertEqual(run("submit_batch_exists", keys), (True, "", [False] * 8))
        self.assertEqual(run("submit_batch_get", [], []), (True, "", []))

    def test_wrong_size(self) -> None:
        self.framework.run("submit_batch_set", [self.key()], [b"12345"])
        ok, error, result = self.framework.run("submit_batch_get", [self.key()], [byte_array(4)])
        self.assertEqual((ok, result), (False, [False]))
        self.assertIn("4", error)

    def test_no_room(self) -> None:
        ok, error, result = self.framework.run("submit_batch_set", [self.key("a"), self.key("b")],
                                               [b"x", bytes(65 << 20)])
        self.assertEqual((ok, result), (False, [True, False]))
        self.assertTrue(error)

    def test_wrong_arguments(self) -> None:
        with self.assertRaises(tarn.Invalid):
            self.native.submit_batch_get(["a", "b"], [byte_array(1)])
        with self.assertRaises(tarn.Invalid):
            self.native.submit_batch_set(["a"], [])
        for call in (self.native.submit_batch_set, self.native.submit_batch_get):
            with self.assertRaises(TypeError):
                call("ab", [bytearray(1), bytearray(1)])
        with self.assertRaises(TypeError):
            self.native.submit_batch_exists([5])

    @unittest.skipIf(torch is None, "no torch")
    def test_tensors(self) -> None:
        t = torch.arange(24).to(torch.bfloat16).reshape(2, 12)
        self.assertTrue(self.framework.run("submit_batch_set", [self.key()], [t])[0])
        into = torch.zeros_like(t)
        self.assertTrue(self.framework.run("submit_batch_get", [self.key()], [into])[0])
        self.assertTrue(torch.equal(into, t))

    def test_many_threads(self) -> None:
        wrong = []

        def work(n: int) -> None:
            for i in range(20):
                key = self.key(f"{n}/{i}")
                value = key.encode() * 10
                buffer = byte_array(len(value))
                ok = (self.framework.run("submit_batch_set", [key], [value])[0] and
                      self.framework.run("submit_batch_get", [key], [buffer])[0])
                if not ok or bytes(buffer) != value:
                    wrong.append(key)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((wrong, self.framework.strays), ([], []))


class Ends(unittest.TestCase):
    def test_close_with_batches_under_way(self) -> None:
        with Store() as store:
            native = tarn.Connector(store.uri, transports="tcp", timeout=60)
            with tarn.Client(store.uri) as c:
                c.put("a", bytes(100))
            store.pause()
            buffer = byte_array(100)
            native.submit_batch_get(["a"], [buffer])
            native.close()
            store.resume()
            with self.assertRaises(tarn.Closed):
                native.drain_completions()
            with self.assertRaises(tarn.Closed):
                native.submit_batch_exists(["a"])


if __name__ == "__main__":
    unittest.main()
