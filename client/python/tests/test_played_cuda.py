# SPDX-License-Identifier: Apache-2.0
"""Values on GPUs and the streams they are used on, over a STAND-IN for CUDA and tensors that only look like torch's:
this shows the package's logic, and nothing about GPUs or torch. Skipped unless TARN_BUILD was built with
CUDA=standin."""
from __future__ import annotations

import array
import os
import sys
import tempfile
import unittest
from typing import Any

import played_cuda
import tarn
from store import StoreCase

CHILD = "--over-the-stand-in"


class OverTheStandin(unittest.TestCase):
    FILE = os.path.abspath(__file__)

    def test_all(self) -> None:
        if not os.path.exists(os.path.join(os.environ.get("TARN_BUILD", "build"), "cuda-is-standin")):
            self.skipTest("not built with CUDA=standin")
        with tempfile.TemporaryDirectory() as folder:
            played_cuda.build(folder)
            done = played_cuda.run([self.FILE, CHILD], folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("OK", done.stderr)
        self.assertNotIn("skipped", done.stderr)


def floats(*values: float) -> bytes:
    return array.array("f", values).tobytes()


class Interface:
    def __init__(self, t: Any, stream: Any = None) -> None:
        self.__cuda_array_interface__ = {"shape": t.shape, "typestr": "<f4", "data": (t.at, False), "strides": None,
                                         "version": 3, "stream": stream}

    __cuda_array_interface__ = {}


class PlayedCase(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.driver = played_cuda.Driver()
        self.streams = played_cuda.Streams(self.driver, 2)

    def tensor(self, device: int, *shape: int, **options: Any) -> Any:
        return played_cuda.Tensor(self.driver, device, shape, **options)

    def hold(self, device: int) -> Any:
        stream = self.streams.current[device]
        self.driver.lib.played_hold(stream)
        self.addCleanup(self.driver.lib.played_let_go, stream)
        return stream


class Played(PlayedCase):
    def test_put_and_get(self) -> None:
        a, b = self.tensor(0, 2, 3), self.tensor(1, 2, 3)
        self.driver.write(a.at, floats(0, 1, 2, 3, 4, 5))
        self.client.put(self.key(), a)
        info = self.client.get_into(self.key(), b)
        self.assertEqual(info, ("f32", (2, 3), 24))
        self.assertEqual(self.driver.read(b.at, 24), floats(0, 1, 2, 3, 4, 5))

    def test_strided(self) -> None:
        whole = self.tensor(0, 4, 4)
        self.driver.write(whole.at, floats(*range(16)))
        column = self.tensor(0, 4, 2, strides=(4, 1), at=whole.at + 4)
        self.client.put(self.key(), column)
        into = self.tensor(1, 4, 2)
        self.client.get_into(self.key(), into)
        self.assertEqual(self.driver.read(into.at, 32), floats(1, 2, 5, 6, 9, 10, 13, 14))

    def test_put_waits_for_the_stream(self) -> None:
        a = self.tensor(0, 1)
        stream = self.hold(0)
        with self.assertRaises(tarn.Timeout):
            self.client.put(self.key(), a, timeout=0.1)
        with self.assertRaises(tarn.Timeout):
            self.client.put_many({self.key(): a}, timeout=0.1)
            codes = self.client.put_many({self.key(): a}, timeout=0.1)
            raise tarn.error_of(codes[0])
        self.assertFalse(self.client.exists(self.key()))
        self.driver.write(a.at, floats(7))
        self.driver.lib.played_let_go(stream)
        self.client.put(self.key(), a)
        self.assertEqual(self.client.get(self.key(), out="bytes"), floats(7))

    def test_get_waits_for_the_stream(self) -> None:
        self.client.put(self.key(), floats(5), dtype="f32", shape=[1])
        b = self.tensor(1, 1)
        self.driver.write(b.at, floats(1))
        stream = self.hold(1)
        for seconds in (0.1, 0.4):
            with self.assertRaises(tarn.Timeout):
                self.client.get_into(self.key(), b, timeout=seconds)
        self.assertEqual(self.driver.read(b.at, 4), floats(1))
        self.driver.lib.played_let_go(stream)
        self.client.get_into(self.key(), b)
        self.assertEqual(self.driver.read(b.at, 4), floats(5))

    def test_values_on_two_gpus(self) -> None:
        """Both streams count, whichever comes first."""
        for late in (0, 1):
            a, b = self.tensor(0, 1), self.tensor(1, 1)
            stream = self.hold(late)
            pairs = {self.key(f"a{late}"): a, self.key(f"b{late}"): b}
            self.assertEqual(set(self.client.put_many(pairs, timeout=0.1)), {tarn.Timeout.code})
            self.driver.lib.played_let_go(stream)
            self.assertEqual(self.client.put_many(pairs), [0, 0])

    def test_other_streams_do_not_matter(self) -> None:
        self.hold(1)
        a = self.tensor(0, 1)
        self.client.put(self.key(), a, timeout=1.0)
        stream = self.driver.lib.played_stream(0)
        self.driver.lib.played_hold(stream)
        self.client.put(self.key("2"), a, timeout=1.0)

    def test_one_event_a_call(self) -> None:
        before = self.driver.lib.played_records()
        rows = self.tensor(0, 64, 4)
        keys = [self.key(str(i)) for i in range(64)]
        self.driver.write(rows.at, bytes(1024))
        self.assertEqual(self.client.put_many((k, self.tensor(0, 4, at=rows.at + 16 * i)) for i, k in enumerate(keys)),
                         [0] * 64)
        self.assertEqual(self.driver.lib.played_records(), before + 1)
        self.assertEqual(self.client.get_into_many(keys, rows), [16] * 64)
        self.assertEqual(self.driver.lib.played_records(), before + 2)

    def test_lists(self) -> None:
        a, b = self.tensor(0, 1), self.tensor(0, 1)
        self.driver.write(a.at, floats(1))
        self.driver.write(b.at, floats(2))
        self.client.put(self.key(), [a, b])
        self.assertEqual(self.client.get(self.key(), out="bytes"), floats(1, 2))
        for bad in ([a, bytearray(4)], [bytearray(4), a], [a, self.tensor(1, 1)]):
            with self.assertRaises(tarn.Invalid):
                self.client.get_into(self.key(), bad)

    def test_pieces(self) -> None:
        a = self.tensor(0, 4)
        self.driver.write(a.at, floats(1, 2, 3, 4))
        self.client.put(self.key(), tarn.Piece(a.at, 4, 8, 2))
        self.assertEqual(self.client.get(self.key(), out="bytes"), floats(1, 3))
        with self.assertRaises(tarn.Invalid):  # CUDA is asked where it lies
            self.client.get_into(self.key(), [bytearray(4), tarn.Piece(a.at, 4)])
        stream = self.hold(0)
        self.client.put(self.key("free"), tarn.Piece(a.at, 4), timeout=1.0)
        with self.assertRaises(tarn.Timeout):
            self.client.put(self.key("held"), tarn.Piece(a.at, 4, device=0, stream=stream), timeout=0.1)

    def test_cuda_array_interface(self) -> None:
        a, b = self.tensor(0, 2), self.tensor(1, 2)
        self.driver.write(a.at, floats(1, 2))
        self.client.put(self.key(), Interface(a))
        self.client.get_into(self.key(), Interface(b))
        self.assertEqual(self.driver.read(b.at, 8), floats(1, 2))
        stream = self.hold(0)
        with self.assertRaises(tarn.Timeout):
            self.client.put(self.key("2"), Interface(a, stream), timeout=0.1)
        legacy = self.driver.lib.played_default_stream(1)
        self.driver.lib.played_hold(legacy)
        self.addCleanup(self.driver.lib.played_let_go, legacy)
        with self.assertRaises(tarn.Timeout):
            self.client.get_into(self.key(), Interface(b, 1), timeout=0.1)

    def test_mismatch(self) -> None:
        self.client.put(self.key(), floats(1, 2), dtype="f32", shape=[2])
        with self.assertRaises(tarn.TensorMismatch):
            self.client.get_into(self.key(), self.tensor(0, 2, 1))

    def test_windows(self) -> None:
        """Peers read into memory of a GPU and write from it, behind its streams."""
        a = self.tensor(0, 2)
        memory = bytearray(8)
        with self.client.window(memory) as window, window.lease(write=True) as lease:
            reach = self.client.reach(lease.descriptor)
            self.driver.write(a.at, floats(1, 2))
            reach.write(a)
            self.assertEqual(memory, floats(1, 2))
            b = self.tensor(1, 2)
            held = self.hold(1)
            op = reach.submit_read(b)
            with self.assertRaises(tarn.Timeout):
                op.wait(0.1)
            self.driver.lib.played_let_go(held)
            self.assertEqual(op.wait(), [0])
            self.assertEqual(self.driver.read(b.at, 8), floats(1, 2))

    def test_windows_of_a_gpu(self) -> None:
        a, b = self.tensor(0, 2), self.tensor(1, 2)
        with self.client.window(a) as window, window.lease(write=True) as lease:
            reach = self.client.reach(lease.descriptor)
            reach.write(floats(3, 4))
            self.assertEqual(self.driver.read(a.at, 8), floats(3, 4))
            reach.read(b)
            self.assertEqual(self.driver.read(b.at, 8), floats(3, 4))
        with self.assertRaises(tarn.Stale):
            reach.write(floats(5, 6))
        self.assertEqual(self.driver.read(a.at, 8), floats(3, 4))

    def test_channels(self) -> None:
        """Sends from a GPU, and receives into one, wait for its streams."""
        listener = self.client.listen()
        memory = bytearray(8000)
        a, b = self.tensor(0, 2000), self.tensor(1, 2000)
        self.driver.write(a.at, floats(*range(2000)))
        with self.client.connect(listener.address) as sender, listener.accept() as receiver:
            with self.client.window(memory):
                held = self.hold(0)
                with self.assertRaises(tarn.Timeout):
                    sender.send(a, timeout=0.1)
                op = receiver.submit_recv_into(memory)
                self.driver.lib.played_let_go(held)
                sender.send(a)
                self.assertEqual((op.wait(), memory), (8000, floats(*range(2000))))
            with self.client.window(b):
                held = self.hold(1)
                with self.assertRaises(tarn.Timeout):
                    receiver.recv_into(b, timeout=0.1)
                self.driver.lib.played_let_go(held)
                for sent in (memory, floats(7, 8)):  # the second goes with the message, into the same receive
                    op = receiver.submit_recv_into(b)
                    sender.send(sent)
                    self.assertEqual(op.wait(), len(sent))
                    self.assertEqual(self.driver.read(b.at, len(sent)), sent)
            small = self.tensor(0, 2)
            self.driver.write(small.at, floats(5, 6))
            op = receiver.submit_recv_into(self.tensor(1, 2))
            sender.send(small)
            self.assertEqual(op.wait(), 8)

    def test_no_such_device(self) -> None:
        self.streams.current += [0] * 8
        a = self.tensor(0, 1)
        for index in (5, 64, -1):
            a.device.index = index
            a.get_device = lambda index=index: index
            with self.assertRaises((tarn.Error, IndexError)):
                self.client.put(self.key(), a)


def load_tests(loader: unittest.TestLoader, tests: Any, pattern: Any) -> unittest.TestSuite:
    return loader.loadTestsFromTestCase(Played if CHILD in sys.argv else OverTheStandin)


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != CHILD] if CHILD in sys.argv else None)
