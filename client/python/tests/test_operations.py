# SPDX-License-Identifier: Apache-2.0
"""Submitted operations: waiting, canceling, dropping, closing."""
from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import tarn
from store import Store, StoreCase, ctrl_c

try:
    import numpy as np
except ImportError:
    np = None


class Operations(StoreCase):
    def test_put_and_get(self) -> None:
        keys = [self.key(str(i)) for i in range(3)]
        op = self.client.submit_put({k: k.encode() for k in keys})
        self.assertEqual(op.wait(), [0, 0, 0])
        self.assertEqual(op.wait(), [0, 0, 0], "any number of times")
        self.assertTrue(op.done)
        buffers = [bytearray(len(k)) for k in keys]
        got = self.client.submit_get_into(keys + ["none"], buffers + [bytearray(1)]).wait(10)
        self.assertEqual(got, [len(k) for k in keys] + [tarn.NotFound.code])
        self.assertEqual(buffers, [k.encode() for k in keys])

    def test_many_at_once_from_threads(self) -> None:
        """Each gets its own outcome, whoever's thread drains it."""
        keys = [self.key(str(i)) for i in range(40)]
        self.client.put_many({k: i.to_bytes(4, "little") * (i + 1) for i, k in enumerate(keys)})
        wrong = []

        def work(first: int) -> None:
            for _ in range(5):
                mine = [(i, bytearray(4 * (i + 1))) for i in range(first, len(keys), 4)]
                ops = [(i, b, self.client.submit_get_into([keys[i]], [b])) for i, b in mine]
                for i, b, op in reversed(ops):
                    if not op.done and i % 2:
                        op.done
                    if op.wait(30) != [4 * (i + 1)] or b != i.to_bytes(4, "little") * (i + 1):
                        wrong.append(i)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.client._flying(), 0)

    def test_done_without_waiting(self) -> None:
        op = self.client.submit_put({self.key(): b"x"})
        until = time.monotonic() + 10
        while not op.done and time.monotonic() < until:
            time.sleep(0.001)
        self.assertEqual(op.wait(), [0])

    def test_two_threads_wait_for_one(self) -> None:
        for _ in range(50):
            op, got = self.client.submit_put({self.key(): bytes(10000)}, replace=True), []
            threads = [threading.Thread(target=lambda: got.append(op.wait(30))) for _ in range(3)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(got, [[0]] * 3)

    def test_buffers_are_kept(self) -> None:
        buffer = bytearray(b"x" * 100000)
        op = self.client.submit_put({self.key(): buffer})
        with self.assertRaises(BufferError, msg="it may still be read"):
            if not op._settled:
                buffer.extend(b"y")
            else:
                raise BufferError
        op.wait()
        buffer.extend(b"y")

    def test_dropped_ones_go_on(self) -> None:
        keys = [self.key(str(i)) for i in range(200)]
        for k in keys:
            self.client.submit_put({k: k.encode()})
        gc.collect()
        until = time.monotonic() + 20
        while not all(self.client.exists(keys)) and time.monotonic() < until:
            time.sleep(0.01)
        self.client.submit_put({self.key("more"): b"x"}).wait()
        self.assertLess(self.client._flying(), 20, "they are drained on the way")
        self.assertEqual(bytes(self.client.get(keys[77], out="bytes")), keys[77].encode())

    @unittest.skipIf(np is None, "no NumPy")
    def test_wrong_dtype_and_rows(self) -> None:
        self.client.put(self.key("a"), np.arange(4, dtype="f4"))
        self.client.put(self.key("b"), np.arange(4, 8, dtype="f4"))
        keys = [self.key("a"), self.key("b")]
        self.assertEqual(self.client.submit_get_into(keys[:1], [np.zeros(4, "i4")]).wait(), [tarn.TensorMismatch.code])
        rows = np.zeros((2, 4), "f4")
        self.assertEqual(self.client.submit_get_into(keys, rows, hits=self.client.lookup(keys)).wait(), [16, 16])
        np.testing.assert_array_equal(rows.ravel(), np.arange(8))

    def test_wrong_arguments(self) -> None:
        with self.assertRaises(tarn.Invalid):
            self.client.submit_get_into(["a"], [])
        with self.assertRaises(tarn.Invalid):
            self.client.submit_get_into(["a"], [b"read-only"])
        with self.assertRaises(tarn.Invalid):
            self.client.submit_put({"": b""})
        with self.assertRaises(TypeError):
            self.client.submit_put({"a": b""}, after=1.5)
        self.assertEqual(self.client._flying(), 0)

    def test_no_stream_for_the_hosts_memory(self) -> None:
        op = self.client.submit_put({self.key(): b"x"})
        with self.assertRaises(tarn.Invalid):
            op.stream_wait(0)
        op.wait()

    def test_references(self) -> None:
        key, buffer = self.key(), bytearray(10)
        self.client.put(key, bytes(10))
        before = sys.getrefcount(buffer), sys.getrefcount(key)
        for _ in range(20):
            self.client.submit_get_into([key], [buffer]).wait()
        self.assertEqual((sys.getrefcount(buffer), sys.getrefcount(key)), before)


class Paused(unittest.TestCase):
    """A node that does not answer: what is under way stays so."""

    def setUp(self) -> None:
        self.store = Store()
        self.addCleanup(self.store.close)
        self.client = tarn.Client(self.store.uri, transports="tcp")
        self.addCleanup(self.client.close)
        self.client.put("a", b"x" * 100)
        self.store.pause()
        self.addCleanup(self.store.resume)

    def test_wait_and_cancel(self) -> None:
        op = self.client.submit_get_into(["a"], [bytearray(100)], timeout=60)
        with self.assertRaises(tarn.Timeout):
            op.wait(0.05)
        self.assertFalse(op.done)
        begin = time.monotonic()
        canceled = op.cancel()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(op.wait(), [tarn.Canceled.code if canceled else tarn.NodeDown.code])
        self.assertTrue(op.done)
        self.assertEqual(op.cancel(), canceled, "once canceled, canceled")

    def test_deadline(self) -> None:
        [code] = self.client.submit_get_into(["a"], [bytearray(100)], timeout=0.2).wait()
        # A late host sees a node that was silent for more than 250 ms.
        self.assertIn(code, (tarn.Timeout.code, tarn.NodeDown.code))

    def test_close_cancels(self) -> None:
        ops = [self.client.submit_get_into(["a"], [bytearray(100)], timeout=60) for _ in range(5)]
        dropped = weakref.ref(self.client)
        waited = []
        thread = threading.Thread(target=lambda: waited.append(ops[0].wait()))
        thread.start()
        begin = time.monotonic()
        self.client.close()
        self.assertLess(time.monotonic() - begin, 10)
        thread.join(10)
        ends = [op.wait() for op in ops]
        self.assertEqual(waited, ends[:1])
        # One that a worker had begun may have ended on its own meanwhile.
        self.assertLessEqual({code for [code] in ends}, {tarn.Canceled.code, tarn.NodeDown.code})
        self.assertIn([tarn.Canceled.code], ends)
        self.assertTrue(dropped())
        with self.assertRaises(tarn.Closed):
            self.client.submit_put({"b": b""})

    def test_ctrl_c(self) -> None:
        """It ends the waiting, not the operation."""
        op = self.client.submit_get_into(["a"], [bytearray(100)], timeout=60)
        begin = time.monotonic()
        with ctrl_c(self, 0.1):
            op.wait()
        self.assertLess(time.monotonic() - begin, 5)
        self.store.resume()
        self.assertIn(op.wait(), ([100], [tarn.NodeDown.code]))

    def test_exit_with_all_kinds_of_things_open(self) -> None:
        self.store.resume()
        script = """
import asyncio, os, signal, sys, tarn
c = tarn.Client(sys.argv[1], transports="shm,tcp")
view = c.view("a", out="bytes")
part = view[3:5]
session = c.put_session({"s": ("u8", (10,))})
session.write(0, b"12345")
registration = c.register(bytearray(1000))
slow = tarn.Client(sys.argv[1], transports="tcp")
slow.get("a", out="bytes")
os.kill(int(sys.argv[2]), signal.SIGSTOP)
ops = [slow.submit_get_into(["a"], [bytearray(100)], timeout=60) for _ in range(3)]
slow.submit_put({"b": bytes(100)}, timeout=60)
events = c.events()
import threading
threading.Thread(target=lambda: next(events), daemon=True).start()
loop = asyncio.new_event_loop()
task = loop.create_task(slow.aget("a", timeout=60))
loop.run_until_complete(asyncio.sleep(0.05))
connector = tarn.Connector(sys.argv[1])
connector.submit_batch_exists(["a"])
print("end")
"""
        self.addCleanup(self.store.resume)
        done = subprocess.run([sys.executable, "-c", script, self.store.uri, str(self.store.pid)], capture_output=True,
                              text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        self.assertEqual((done.returncode, done.stdout), (0, "end\n"), done.stderr)

    def test_fork(self) -> None:
        op = self.client.submit_get_into(["a"], [bytearray(100)], timeout=60)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                op.wait()
            except tarn.Forked:
                try:
                    op.cancel()
                except tarn.Forked:
                    code = 0
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        op.cancel()
        self.assertLess(op.wait()[0], 0)


if __name__ == "__main__":
    unittest.main()
