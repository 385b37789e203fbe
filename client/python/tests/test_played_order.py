# SPDX-License-Identifier: Apache-2.0
"""Sessions, submitted operations and views with GPUs, over a STAND-IN for CUDA: this shows the package's logic, and
nothing about GPUs or torch. Skipped unless TARN_BUILD was built with CUDA=standin."""
from __future__ import annotations

import ctypes
import os
import sys
import threading
import unittest
from typing import Any

import played_cuda
import tarn
import test_played_cuda
from store import Store
from test_played_cuda import CHILD, floats


class OverTheStandin(test_played_cuda.OverTheStandin):
    FILE = os.path.abspath(__file__)


class Event:
    """As torch.cuda.Event."""

    def __init__(self, driver: Any, device: int, stream: Any) -> None:
        handle = ctypes.c_void_p()
        driver.check(driver.lib.cuCtxPushCurrent_v2(device + 1))
        driver.check(driver.lib.cuEventCreate(ctypes.byref(handle), 2))
        driver.check(driver.lib.cuEventRecord(handle, ctypes.c_void_p(stream)))
        driver.check(driver.lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        self.cuda_event = handle.value


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class Order(test_played_cuda.PlayedCase):
    def test_a_write_waits_for_the_stream(self) -> None:
        a = self.tensor(0, 2)
        stream = self.hold(0)
        with self.client.put_session({self.key(): ("f32", (2,))}) as s:
            with self.assertRaises(tarn.Timeout):
                s.write(0, a, timeout=0.1)
            self.driver.write(a.at, floats(1, 2))
            threading.Timer(0.1, self.driver.lib.played_let_go, (stream,)).start()
            s.write(0, a)
        self.assertEqual(self.client.get(self.key(), out="bytes"), floats(1, 2))

    def test_a_write_behind_an_event(self) -> None:
        """The stream has more to do behind it: a layer that is ready is written while the next ones compute."""
        a = self.tensor(0, 2)
        self.driver.write(a.at, floats(1, 2))
        ready = Event(self.driver, 0, self.streams.current[0])
        late = Event(self.driver, 0, self.hold(0))
        with self.client.put_session({self.key(): ("f32", (2,))}) as s:
            s.write(0, a, after=ready, timeout=1)
            with self.assertRaises(tarn.Timeout):
                s.write(0, a, after=late, timeout=0.1)
            s.write(0, a, after=ready.cuda_event, timeout=1)
        self.assertEqual(self.client.get(self.key(), out="bytes"), floats(1, 2))

    def test_submit(self) -> None:
        a, b = self.tensor(0, 1), self.tensor(1, 1)
        stream = self.hold(0)
        op = self.client.submit_put({self.key(): a}, timeout=10)
        self.assertFalse(op.done)
        self.driver.write(a.at, floats(7))
        self.driver.lib.played_let_go(stream)
        self.assertEqual(op.wait(), [0])
        op = self.client.submit_get_into([self.key()], [b], timeout=10)
        op.stream_wait()
        op.stream_wait(Stream(self.driver.lib.played_stream(1)))
        op.stream_wait(self.driver.lib.played_stream(1))
        self.assertEqual(op.wait(), [4])
        op.stream_wait()
        self.assertEqual(self.driver.read(b.at, 4), floats(7))

    def test_submit_behind_an_event(self) -> None:
        a = self.tensor(0, 1)
        ready = Event(self.driver, 0, self.streams.current[0])
        late = Event(self.driver, 0, self.hold(0))
        self.assertEqual(self.client.submit_put({self.key("a"): a}, after=ready, timeout=5).wait(), [0])
        op = self.client.submit_put({self.key("b"): a}, after=late, timeout=60)
        with self.assertRaises(tarn.Timeout):
            op.wait(0.1)
        self.assertTrue(op.cancel())

    def test_views_of_a_gpu_pool(self) -> None:
        with Store(pool="gpu0:device=1,bytes=8M") as store, tarn.Client(store.uri) as client:
            client.put("a", floats(1, 2, 3), dtype="f32", shape=(3,))
            view = client._view("a")
            self.assertEqual((view.device, view.info), (1, ("f32", (3,), 12)))
            with self.assertRaises(BufferError):
                memoryview(view)
            with self.assertRaises(BufferError):
                client.view("a", out="bytes")
            capsule = view.dlpack()
            del view
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            at, device_type, device = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(DlTensor)).contents.values()
            self.assertEqual((device_type, device), (2, 1))
            self.assertEqual(self.driver.read(at, 12), floats(1, 2, 3))


class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]

    def values(self) -> Any:
        return self.data, self.device_type, self.device_id


def load_tests(loader: unittest.TestLoader, tests: Any, pattern: Any) -> unittest.TestSuite:
    if CHILD not in sys.argv:
        return loader.loadTestsFromTestCase(OverTheStandin)
    names = [n for n in vars(Order) if n.startswith("test_")]
    return unittest.TestSuite(Order(n) for n in names)


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != CHILD] if CHILD in sys.argv else None)
