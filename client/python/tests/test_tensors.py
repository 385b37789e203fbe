# SPDX-License-Identifier: Apache-2.0
"""torch's tensors on the CPU, DLPack, __cuda_array_interface__, raw memory."""
from __future__ import annotations

import ctypes
import resource
import unittest
from typing import Any

import tarn
from store import StoreCase

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "no torch")
class Torch(StoreCase):
    def same(self, a: "torch.Tensor") -> None:
        self.client.put(self.key(), a, replace=True)
        b = self.client.get(self.key(), out="torch")
        self.assertEqual((b.dtype, b.shape), (a.dtype, a.shape))
        into = torch.empty(a.shape, dtype=a.dtype)
        self.client.get_into(self.key(), into)
        for got in (b, into):
            self.assertTrue(torch.equal(got.contiguous().view(-1).view(torch.uint8) if a.dim() else got,
                                        a.contiguous().view(-1).view(torch.uint8) if a.dim() else a))

    def test_dtypes(self) -> None:
        for name, stored in (("uint8", "u8"), ("int8", "i8"), ("bool", "bool"), ("int16", "i16"), ("float16", "f16"),
                             ("bfloat16", "bf16"), ("float8_e4m3fn", "f8_e4m3"), ("float8_e5m2", "f8_e5m2"),
                             ("int32", "i32"), ("float32", "f32"), ("int64", "i64"), ("float64", "f64"),
                             ("complex64", "c64"), ("complex128", "c128")):
            with self.subTest(name):
                self.same(torch.arange(24).reshape(4, 6).to(getattr(torch, name)))
                self.assertEqual(self.client.lookup([self.key()]).tensor(0).dtype, stored)

    def test_scalar_and_empty(self) -> None:
        self.same(torch.tensor(2.5))
        self.same(torch.empty(0))
        self.same(torch.empty(3, 0, 2, dtype=torch.bfloat16))

    def test_strides(self) -> None:
        base = torch.arange(120, dtype=torch.int32).reshape(2, 3, 4, 5)
        for name, a in {"transposed": base.permute(3, 1, 0, 2), "steps": base[:, ::2, 1:, ::3], "block": base[:, 1],
                        "expanded": base[:, :1].expand(2, 3, 4, 5)}.items():
            with self.subTest(name):
                self.client.put(self.key(name), a)
                self.assertTrue(torch.equal(self.client.get(self.key(name), out="torch"), a))
        whole = torch.zeros(2, 3, 8, 5, dtype=torch.int32)
        self.client.put(self.key(), base)
        self.client.get_into(self.key(), whole[:, :, ::2])
        self.assertTrue(torch.equal(whole[:, :, ::2], base))
        self.assertEqual(int(whole[:, :, 1::2].abs().sum()), 0)

    def test_paged_blocks(self) -> None:
        """A block of every layer, as frameworks keep a KV cache: [layer][2, block, token, head, width]."""
        layers = [torch.rand(2, 8, 4, 2, 16, dtype=torch.float32).to(torch.bfloat16) for _ in range(3)]
        self.client.put(self.key(), [layer[:, 5] for layer in layers])
        into = [torch.zeros_like(layer) for layer in layers]
        self.client.get_into(self.key(), [layer[:, 2] for layer in into])
        for a, b in zip(layers, into):
            self.assertTrue(torch.equal(a[:, 5], b[:, 2]))

    def test_what_torch_writes_numpy_reads(self) -> None:
        self.client.put(self.key(), torch.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(self.client.get(self.key()), np.arange(6, dtype="f4").reshape(2, 3))

    def test_gradients_do_not_matter(self) -> None:
        p = torch.nn.Parameter(torch.arange(4.0))
        self.client.put(self.key(), p)
        q = torch.nn.Parameter(torch.zeros(4))
        self.client.get_into(self.key(), q)
        self.assertTrue(torch.equal(p, q))

    def test_wrong_dtype_or_shape(self) -> None:
        self.client.put(self.key(), torch.zeros(2, 3))
        for wrong in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 4)):
            with self.assertRaises(tarn.TensorMismatch):
                self.client.get_into(self.key(), wrong)

    def test_refused(self) -> None:
        freed = torch.zeros(4)
        freed.untyped_storage().resize_(0)
        with self.assertRaises(tarn.Invalid):
            self.client.put(self.key(), freed)
        lazy = torch.zeros(3, dtype=torch.complex64).conj()
        for bad in (torch.zeros(3, device="meta"), torch.eye(3).to_sparse(), lazy, lazy.imag):
            with self.assertRaises(tarn.Unsupported):
                self.client.put(self.key(), bad)
        self.client.put(self.key(), torch.zeros(2))
        with self.assertRaises(tarn.Invalid):
            self.client.get_into(self.key(), torch.zeros(1).expand(2))

    def test_batches(self) -> None:
        rows = torch.arange(60.0).reshape(10, 6)
        keys = [self.key(str(i)) for i in range(10)]
        self.assertEqual(self.client.put_many(zip(keys, rows)), [0] * 10)
        into = torch.zeros(10, 6)
        self.assertEqual(self.client.get_into_many(keys, into), [24] * 10)
        self.assertTrue(torch.equal(into, rows))
        got = self.client.get_many(keys + ["none"], out="torch")
        self.assertTrue(torch.equal(torch.stack(got[:10]), rows))
        self.assertIsNone(got[10])

    def test_device_of_the_result(self) -> None:
        self.client.put(self.key(), torch.ones(2))
        self.assertEqual(self.client.get(self.key(), device="cpu").device.type, "cpu")


class Pack:
    """Gives an array by DLPack only."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __dlpack__(self, **options: Any) -> Any:
        return self.a.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.a.__dlpack_device__()


class Interface:
    """Gives an array by __cuda_array_interface__, though its memory is the host's."""

    def __init__(self, a: Any, **more: Any) -> None:
        self.a = a
        i = a.__array_interface__
        self.__cuda_array_interface__ = {k: i[k] for k in ("shape", "typestr", "data", "strides")}
        self.__cuda_array_interface__.update(version=3, stream=None, **more)

    __cuda_array_interface__ = {}


@unittest.skipIf(np is None, "no NumPy")
class Foreign(StoreCase):
    def test_dlpack(self) -> None:
        for a in (np.arange(6.0).reshape(2, 3), np.arange(24, dtype="i2").reshape(2, 3, 4)[:, ::2, 1:],
                  np.array(7, "u1"), np.empty((0, 2), "c8")):
            self.client.put(self.key(), Pack(a), replace=True)
            np.testing.assert_array_equal(self.client.get(self.key()), a)
            into = np.zeros_like(a)
            self.client.get_into(self.key(), Pack(into))
            np.testing.assert_array_equal(into, a)

    @unittest.skipIf(torch is None, "no torch")
    def test_dlpack_bf16(self) -> None:
        self.client.put(self.key(), Pack(torch.ones(3, dtype=torch.bfloat16)))
        self.assertEqual(self.client.lookup([self.key()]).tensor(0), ("bf16", (3,), 6))

    def test_cuda_array_interface(self) -> None:
        for a in (np.arange(6.0).reshape(2, 3), np.arange(24, dtype="i4").reshape(4, 6).T):
            self.client.put(self.key(), Interface(a), replace=True)
            np.testing.assert_array_equal(self.client.get(self.key()), a)
            into = np.zeros_like(a)
            self.client.get_into(self.key(), Interface(into))
            np.testing.assert_array_equal(into, a)

    def test_refused(self) -> None:
        readonly = np.zeros(3)
        readonly.flags.writeable = False
        self.client.put(self.key(), Interface(readonly))
        with self.assertRaises(tarn.Invalid):
            self.client.get_into(self.key(), Interface(readonly))
        with self.assertRaises(tarn.Unsupported):
            self.client.put(self.key("b"), Interface(np.zeros(3), mask=1))
        with self.assertRaises(tarn.Unsupported):
            self.client.put(self.key("b"), Interface(np.zeros(3, "M8[s]")))
        self.assertFalse(self.client.exists(self.key("b")))


@unittest.skipIf(np is None, "no NumPy")
class Large(StoreCase):
    def test_memory_of_large_results(self) -> None:
        """It is their own, can be written, and goes when they go."""
        a = np.arange((5 << 20) + 3, dtype="u4").astype("u1")
        self.client.put(self.key(), a)
        got = [self.client.get(self.key(), out=out) for out in ("numpy", "torch")[: 1 + (torch is not None)]]
        for one in got:
            np.testing.assert_array_equal(np.asarray(one), a)
            one[-1] = 0
        self.assertEqual(self.client.get(self.key())[-1], a[-1])
        before = rss()
        for _ in range(20):
            for out in ("numpy", "torch")[: len(got)]:
                self.client.get(self.key(), out=out)
        self.assertLess(rss() - before, 40 << 20)


def rss() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


class Pieces(StoreCase):
    def test_runs(self) -> None:
        memory = ctypes.create_string_buffer(b"ab..cd..ef..", 12)
        addr = ctypes.addressof(memory)
        self.client.put(self.key(), tarn.Piece(addr, 2, 4, 3, keep=memory))
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"abcdef")
        self.client.get_into(self.key(), [tarn.Piece(addr + 1, 1, 1, 3), bytearray(3)])
        self.assertEqual(memory.raw, b"aabccd..ef..")

    def test_of_the_host(self) -> None:
        memory = ctypes.create_string_buffer(b"abcd", 4)
        for device in (None, -1):
            self.client.put(self.key(), tarn.Piece(ctypes.addressof(memory), 4, device=device), replace=True)
            self.assertEqual(self.client.get(self.key(), out="bytes"), b"abcd")
        with self.assertRaises(tarn.Invalid):
            tarn.Piece(1, 1, device=-2)

    def test_declared(self) -> None:
        memory = ctypes.create_string_buffer(12)
        piece = tarn.Piece(ctypes.addressof(memory), 12)
        self.client.put(self.key(), piece, dtype="f32", shape=(3, 1))
        self.assertEqual(self.client.lookup([self.key()]).tensor(0), ("f32", (3, 1), 12))

    def test_refused(self) -> None:
        for bad in ((1, 8, 4, 2), (1, 8, 8, 0), (1, 1 << 61, 0, 4)):
            with self.assertRaises(tarn.Invalid):
                tarn.Piece(*bad)
        with self.assertRaises(tarn.Invalid):
            self.client.put(self.key(), tarn.Piece(0, 8))
        for bad in (("a", 1), (-1, 1), (1 << 64, 1)):
            with self.assertRaises((TypeError, tarn.Invalid)):
                tarn.Piece(*bad)


if __name__ == "__main__":
    unittest.main()
