# SPDX-License-Identifier: Apache-2.0
"""Layouts: pages by number, of NumPy arrays and torch tensors; refused ones."""
from __future__ import annotations

import array
import asyncio
import unittest
from typing import Any, List

import tarn
from store import StoreCase

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]
try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

def filled(nbytes: int, salt: int = 0) -> bytearray:
    """No two pages of it are equal."""
    return bytearray((i * 37 + i // 251 + salt) % 256 for i in range(nbytes))


class Raw(StoreCase):
    """With nothing but the standard library."""

    def test_pages_of_bytearrays(self) -> None:
        arrays = [filled(16 * 64, i) for i in range(3)]
        layout = tarn.Layout(arrays, page_bytes=64)
        self.assertEqual((layout.npages, layout.page_bytes, layout.arrays), (16, 64, tuple(arrays)))
        numbers = [3, 15, 0]
        pages = layout.pages(numbers)
        self.assertEqual(len(pages), 3)
        self.client.put(self.key(), pages)
        want = b"".join(bytes(a[64 * i:64 * i + 64]) for a in arrays for i in numbers)
        self.assertEqual(self.client.get(self.key(), out="bytes"), want)
        self.assertEqual(self.client.stat(self.key()).shape, (3, 3, 64))
        before = [bytes(a) for a in arrays]
        self.client.get_into(self.key(), layout.pages([7, 8, 9]))
        for a, was in zip(arrays, before):
            got = b"".join(bytes(a[64 * i:64 * i + 64]) for i in numbers)
            self.assertEqual(a[64 * 7:64 * 10], got)
            self.assertEqual(a[:64 * 7] + a[64 * 10:], was[:64 * 7] + was[64 * 10:])

    def test_numbers_of_any_kind(self) -> None:
        layout = tarn.Layout(bytearray(range(256)), 16)
        kinds: List[Any] = [[1, 2], (1, 2), range(1, 3), array.array("i", [1, 2]), array.array("q", [1, 2]),
                            array.array("I", [1, 2])]
        if np is not None:
            kinds += [np.array([1, 2]), np.array([1, 9, 2], np.int32)[::2], [np.int64(1), 2]]
        if torch is not None:
            kinds += [torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)]
        for kind in kinds:
            with self.subTest(kind=repr(kind)):
                self.client.put(self.key(), layout.pages(kind), replace=True)
                self.assertEqual(self.client.get(self.key(), out="bytes"), bytes(range(16, 48)))

    def test_many_keys_at_once(self) -> None:
        buffer = filled(100 * 32)
        layout = tarn.Layout([buffer], 32)
        keys = [self.key(str(i)) for i in range(50)]
        want = bytes(buffer)
        self.client.put_many({k: layout.pages([i, 99 - i]) for i, k in enumerate(keys)})
        buffer[:] = bytes(len(buffer))
        self.client.get_into_many(keys, [layout.pages([i, 99 - i]) for i in range(50)])
        self.assertEqual(buffer, want)

    def test_pages_for_all_keys(self) -> None:
        arrays = [filled(100 * 32, i) for i in range(2)]
        layout = tarn.Layout(arrays, 32)
        keys = [self.key(str(i)) for i in range(50)]
        want = [bytes(a) for a in arrays]
        numbers = [n for i in range(50) for n in (i, 99 - i)]
        self.client.put_many({k: layout.pages(numbers[2 * i:2 * i + 2]) for i, k in enumerate(keys)})
        for a in arrays:
            a[:] = bytes(len(a))
        self.assertEqual(self.client.get_into_many(keys, layout.pages(numbers)), [128] * 50)
        self.assertEqual([bytes(a) for a in arrays], want)
        layout.arrays[0][:] = bytes(3200)
        given = layout.pages(numbers)
        operation = self.client.submit_get_into(keys, given)
        del given
        self.assertEqual(operation.wait(), [128] * 50)
        self.assertEqual([bytes(a) for a in arrays], want)
        for part in (keys[:7], keys + ["more"] * 51, []):
            with self.subTest(keys=len(part)), self.assertRaises(tarn.Invalid):
                self.client.get_into_many(part, layout.pages(numbers))
        with self.assertRaises(tarn.Invalid):
            self.client.get_into_many(keys, layout.pages([]))
        self.assertEqual(self.client.get_into_many([], layout.pages([])), [])
        self.assertLess(self.client.get_into_many(keys[:1], layout.pages([1, 2, 3]))[0], 0)

    def test_operations_and_sessions(self) -> None:
        buffer = filled(8 * 32)
        layout = tarn.Layout(buffer, 32)
        with self.client.put_session({self.key(): ("u8", (4 * 32,))}) as session:
            session.write(0, layout.pages([6, 1]))
            session.write(0, layout.pages([2, 3]), 64)
            session.commit()
        want = b"".join(bytes(buffer[32 * i:32 * i + 32]) for i in (6, 1, 2, 3))
        self.assertEqual(self.client.get(self.key(), out="bytes"), want)
        buffer[:] = bytes(len(buffer))
        self.client.submit_get_into([self.key()], [layout.pages([0, 1, 2, 3])]).wait()
        self.assertEqual(buffer, want + bytes(128))
        asyncio.run(self.aget(layout))
        self.assertEqual(buffer, want + want)

    async def aget(self, layout: tarn.Layout) -> None:
        await self.client.aget_into(self.key(), layout.pages([4, 5, 6, 7]))

    def test_wrong_sizes(self) -> None:
        layout = tarn.Layout(bytearray(256), 16)
        self.client.put(self.key(), bytes(32))
        with self.assertRaises(tarn.SizeMismatch):
            self.client.get_into(self.key(), layout.pages([1]))

    def test_refused(self) -> None:
        layout = tarn.Layout(bytearray(256), 16)
        wrong: List[Any] = [
            lambda: tarn.Layout([], 16),
            lambda: tarn.Layout(bytearray(256), 17),
            lambda: tarn.Layout(bytearray(256), 0),
            lambda: tarn.Layout([bytearray(256), bytearray(128)], 16),
            lambda: tarn.Layout(bytearray(0), 16),
            lambda: layout.pages([16]),
            lambda: layout.pages([-1]),
            lambda: layout.pages([1 << 70]),
            lambda: layout.pages(array.array("q", [1, 16])),
            lambda: layout.pages(array.array("q", [-1])),
            lambda: layout.pages(array.array("d", [1])),
            lambda: layout.pages(b"12"),
        ]
        for i, call in enumerate(wrong):
            with self.subTest(i=i), self.assertRaises(tarn.Invalid):
                call()
        types: List[Any] = [lambda: tarn.Layout(7), lambda: tarn.Layout("text"), lambda: layout.pages(["1"]),
                            lambda: layout.pages(7), lambda: layout.pages(None), lambda: tarn.Pages(),  # type: ignore
                            lambda: self.client.put(self.key(), [layout.pages([1])]),
                            lambda: self.client.register(layout.pages([1])), lambda: tarn.Layout(bytearray(8), "8")]
        for i, call in enumerate(types):
            with self.subTest(i=i), self.assertRaises(TypeError):
                call()
        self.client.put(self.key(), bytes(32), replace=True)
        for arrays in ([bytes(256), bytearray(256)], [bytearray(256), bytes(256)]):
            with self.assertRaisesRegex(tarn.Invalid, "read-only"):
                self.client.get_into(self.key(), tarn.Layout(arrays, 16).pages([1]))
            self.client.put(self.key(), tarn.Layout(arrays, 16).pages([2]), replace=True)

@unittest.skipIf(np is None, "NumPy: not installed")
class Arrays(StoreCase):
    def test_first_dimension_counts_pages(self) -> None:
        layers = [np.arange(120, dtype=np.float32).reshape(10, 4, 3) + 1000 * i for i in range(5)]
        layout = tarn.Layout(layers)
        self.assertEqual((layout.npages, layout.page_bytes), (10, 48))
        self.client.put(self.key(), layout.pages([9, 0]))
        got = self.client.get(self.key())
        self.assertEqual((got.shape, got.dtype), ((5, 2, 4, 3), np.float32))
        np.testing.assert_array_equal(got, np.stack([x[[9, 0]] for x in layers]))

    def test_views_of_one_tensor(self) -> None:
        """Of [pages, layers, width], each layer is an array with gaps between its pages."""
        whole = np.arange(6 * 4 * 8, dtype=np.int16).reshape(6, 4, 8)
        layout = tarn.Layout([whole[:, i] for i in range(4)])
        want = whole.copy()
        self.client.put(self.key(), layout.pages([5, 2]))
        np.testing.assert_array_equal(self.client.get(self.key()), whole[[5, 2]].transpose(1, 0, 2))
        self.client.get_into(self.key(), layout.pages([0, 1]))
        want[[0, 1]] = want[[5, 2]]
        np.testing.assert_array_equal(whole, want)

    def test_pages_with_gaps_are_refused(self) -> None:
        whole = np.zeros((6, 4, 8))
        for wrong in (whole[:, :, :7], whole.transpose(1, 0, 2)[:, ::2], whole[::-1]):
            with self.assertRaises(tarn.Invalid):
                tarn.Layout(wrong)
        with self.assertRaises(tarn.Invalid):
            tarn.Layout(whole[:, :2], page_bytes=8)
        with self.assertRaises(tarn.Invalid):
            tarn.Layout([whole, whole.astype(np.float32)])

    def test_arrays_that_move(self) -> None:
        memory = bytearray(64)
        pages = tarn.Layout(memory, 16).pages([1])
        with self.assertRaises(BufferError):
            memory.extend(bytes(1 << 20))
        self.client.put(self.key(), pages)
        del pages
        memory.extend(bytes(1 << 20))
        array = np.zeros((4, 4))
        layout = tarn.Layout(array)
        array.resize((1 << 16, 4), refcheck=False)
        with self.assertRaisesRegex(tarn.Invalid, "moved"):
            self.client.put(self.key(), layout.pages([1]))

if __name__ == "__main__":
    unittest.main()
