# SPDX-License-Identifier: Apache-2.0
"""Puts and gets of buffers and NumPy arrays, look-ups, removes, errors: what every program uses."""
from __future__ import annotations

import array
import asyncio
import ctypes
import inspect
import pickle
import unittest

import tarn
from store import StoreCase

try:
    import numpy as np
except ImportError:
    np = None


class Bytes(StoreCase):
    """Whatever exports a buffer; no NumPy needed."""

    def test_bytes_come_back(self) -> None:
        self.client.put(self.key(), b"hello")
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"hello")

    def test_keys_of_str_and_bytes_are_the_same(self) -> None:
        name = self.key("ü")
        self.client.put(name, b"1")
        self.assertTrue(self.client.exists(name.encode()))

    def test_binary_key(self) -> None:
        key = bytes(range(256)) + self.key().encode()
        self.client.put(key, b"x")
        self.assertEqual(self.client.get(key, out="bytes"), b"x")

    def test_get_into_tells_what_it_is(self) -> None:
        self.client.put(self.key(), array.array("f", [1.0, 2.0, 3.0]))
        into = array.array("f", [0.0] * 3)
        info = self.client.get_into(self.key(), into)
        self.assertEqual((info.dtype, info.shape, info.nbytes), ("f32", (3,), 12))
        self.assertEqual(into.tolist(), [1.0, 2.0, 3.0])

    def test_bytearray_takes_any_object_raw(self) -> None:
        self.client.put(self.key(), array.array("d", [1.5]))
        into = bytearray(8)
        self.client.get_into(self.key(), into)
        self.assertEqual(array.array("d", bytes(into)).tolist(), [1.5])

    def test_declared_dtype_and_shape(self) -> None:
        self.client.put(self.key(), bytes(24), dtype="bf16", shape=(3, 4))
        info = self.client.lookup([self.key()]).tensor(0)
        self.assertEqual(info, ("bf16", (3, 4), 24))
        with self.assertRaises(tarn.Invalid):
            self.client.put(self.key("2"), bytes(24), dtype="bf16", shape=(3, 5))
        with self.assertRaises(tarn.Invalid):
            self.client.put(self.key("2"), bytes(24), dtype="bf16", shape=(-3, -4))

    def test_strided_memoryview(self) -> None:
        self.client.put(self.key(), memoryview(b"a-b-c-d-")[::2])
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"abcd")
        self.client.put(self.key("back"), memoryview(b"abcd")[::-1])
        self.assertEqual(self.client.get(self.key("back"), out="bytes"), b"dcba")

    def test_scatter_and_gather(self) -> None:
        self.client.put(self.key(), [b"one", bytearray(b"two"), (b"3", b"4")])
        a, b = bytearray(4), bytearray(4)
        self.client.get_into(self.key(), [a, b])
        self.assertEqual(bytes(a + b), b"onetwo34")

    def test_ctypes(self) -> None:
        """Their buffers have no strides, though these are asked for."""
        rows = ((ctypes.c_int32 * 3) * 2)((1, 2, 3), (4, 5, 6))
        self.client.put(self.key(), rows)
        self.assertEqual(self.client.lookup([self.key()]).tensor(0), ("i32", (2, 3), 24))
        into = ((ctypes.c_int32 * 3) * 2)()
        self.client.get_into(self.key(), into)
        self.assertEqual(bytes(into), bytes(rows))

    def test_empty(self) -> None:
        self.client.put(self.key(), b"")
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"")
        self.client.put(self.key("list"), [])
        self.assertEqual(self.client.get(self.key("list"), out="bytes"), b"")

    def test_range(self) -> None:
        self.client.put(self.key(), b"0123456789")
        part = bytearray(3)
        self.client.get_into(self.key(), part, offset=4)
        self.assertEqual(part, b"456")
        with self.assertRaises(tarn.SizeMismatch):
            self.client.get_into(self.key(), part, offset=8)

    def test_sizes_change_between_gets(self) -> None:
        for n in (10, 1000, 3, 0, 70000):
            self.client.put(self.key(), b"x" * n, replace=True)
            self.assertEqual(self.client.get(self.key(), out="bytes"), b"x" * n)

    def test_exists_remove(self) -> None:
        self.client.put(self.key("a"), b"1")
        keys = [self.key("a"), self.key("b")]
        self.assertEqual(self.client.exists(keys), [True, False])
        self.assertTrue(self.client.exists(keys[0]))
        self.assertEqual(self.client.remove(keys), [0, tarn.NotFound.code])
        self.assertFalse(self.client.remove(keys[0]))
        self.assertFalse(self.client.exists(keys[0]))

    def test_put_twice(self) -> None:
        self.client.put(self.key(), b"1")
        with self.assertRaises(tarn.Exists) as e:
            self.client.put(self.key(), b"2")
        self.assertEqual(e.exception.key, self.key())
        self.client.put(self.key(), b"2", replace=True)
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"2")


class Idioms(StoreCase):
    @unittest.skipIf(np is None, "numpy: not installed")
    def test_item(self) -> None:
        self.client.put(self.key(), np.arange(3))
        self.assertEqual(self.client[self.key()].tolist(), [0, 1, 2])
        with self.assertRaises(KeyError):
            self.client[self.key("none")]

    def test_in(self) -> None:
        self.client.put(self.key(), b"1")
        self.assertTrue(self.key() in self.client)
        self.assertFalse(self.key("none") in self.client)
        with self.assertRaises(TypeError):
            list(self.client)

    def test_put_of_a_mapping(self) -> None:
        self.client.put({self.key("a"): b"1", self.key("b").encode(): b"2"}, ttl=100)
        self.assertEqual(self.client.get_many([self.key("a"), self.key("b")], out="bytes"), [b"1", b"2"])
        self.assertEqual(self.client.stat(self.key("b")).ttl, 100)
        with self.assertRaises(tarn.Exists) as e:
            self.client.put({self.key("c"): b"3", self.key("b"): b"4", self.key("d"): b"5"})
        self.assertEqual(e.exception.key, self.key("b"))
        self.assertEqual(self.client.exists([self.key("c"), self.key("d")]), [True, True])
        self.client.put({})
        asyncio.run(self.client.aput({self.key("a"): b"6"}, replace=True))
        with self.assertRaises(tarn.Exists) as e:
            asyncio.run(self.client.aput({self.key("e"): b"7", self.key("b"): b"8"}))
        self.assertEqual((e.exception.key, self.client.get(self.key("a"), out="bytes")), (self.key("b"), b"6"))

    def test_repr_has_no_password(self) -> None:
        for login in ("me:secret", "se/cret", "me:se@cret", ":s?#"):
            self.assertEqual(tarn._client._name_of(f"redis://{login}@host:1/2", "m"), "redis://***@host:1/2 ns=m")
        for login in ("sentinel_password=secret", "sentinel_user=me&sentinel_password=se#cret"):
            self.assertEqual(tarn._client._name_of(f"redis+sentinel://me:secret@a:1,b/m?{login}", None),
                             "redis+sentinel://***@a:1,b/m?*** ns=default")
        self.assertEqual(tarn._client._name_of("redis+sentinel://a/m?sentinel_password=se@cret", None),
                         "redis+sentinel://***@ ns=default")
        self.assertEqual(tarn._client._name_of("unix:///tmp/a@b", None), "unix:///tmp/a@b ns=default")
        self.assertRegex(repr(self.client), r"<tarn.Client .* ns=default open>")
        self.client.close()
        self.assertIn("closed", repr(self.client))
        self.assertEqual(repr(tarn.Client.__new__(tarn.Client)), "<tarn.Client never opened>")

    def test_async_with(self) -> None:
        async def use() -> tarn.Client:
            async with tarn.Client(self.store.uri) as c:
                await c.aput(self.key(), b"1")
                self.assertEqual(await c.aget(self.key(), out="bytes"), b"1")
            return c

        self.assertTrue(asyncio.run(use()).closed)


class Batches(StoreCase):
    def test_many(self) -> None:
        keys = [self.key(str(i)) for i in range(300)]
        self.assertEqual(self.client.put_many((k, k.encode()) for k in keys), [0] * 300)
        self.assertEqual(self.client.get_many(keys, out="bytes"), [k.encode() for k in keys])

    def test_mapping(self) -> None:
        pairs = {self.key("a"): b"1", self.key("b").encode(): b"2"}
        self.assertEqual(self.client.put_many(pairs), [0, 0])
        self.assertEqual(self.client.put_many({self.key("a"): b"1", self.key("c"): b"2"}), [tarn.Exists.code, 0])

    def test_a_miss_is_none(self) -> None:
        self.client.put(self.key("a"), b"1")
        self.assertEqual(self.client.get_many([self.key("b"), self.key("a")], out="bytes"), [None, b"1"])

    def test_outcomes_of_get_into_many(self) -> None:
        self.client.put(self.key("a"), b"abc")
        buffers = [bytearray(3), bytearray(3), bytearray(4)]
        got = self.client.get_into_many([self.key("a"), self.key("b"), self.key("a")], buffers)
        self.assertEqual(got, [3, tarn.NotFound.code, tarn.SizeMismatch.code])
        self.assertEqual(buffers[0], b"abc")

    def test_hits_spare_the_directory(self) -> None:
        keys = [self.key(str(i)) for i in range(8)]
        self.client.put_many({k: b"x" for k in keys[:5]})
        other = self.open()
        hits = other.match_prefix(keys)
        self.assertEqual((hits.pages, len(hits)), (5, 8))
        self.assertEqual(hits.states, [tarn.HIT] * 5 + [tarn.MISS] * 3)
        self.assertEqual(other.match_prefix(keys, stride=2).pages, 2)
        before = other.stats()["directory_round_trips"]
        self.assertEqual(other.get_many(keys[:5], out="bytes", hits=hits), [b"x"] * 5)
        self.assertEqual(other.stats()["directory_round_trips"], before)

    def test_hits_of_others(self) -> None:
        hits = self.open().lookup([self.key()])
        with self.assertRaises(tarn.Invalid):
            self.client.get_many([self.key()], out="bytes", hits=hits)
        with self.assertRaises(tarn.Invalid):
            self.client.get_many(["a", "b"], out="bytes", hits=self.client.lookup(["a"]))

    def test_lengths_differ(self) -> None:
        with self.assertRaises(tarn.Invalid):
            self.client.get_into_many(["a", "b"], [bytearray(1)])

    def test_nothing(self) -> None:
        self.assertEqual(self.client.put_many({}), [])
        self.assertEqual(self.client.get_many([], out="bytes"), [])
        self.assertEqual(self.client.get_into_many([], []), [])
        self.assertEqual(self.client.exists([]), [])
        self.assertEqual(self.client.remove([]), [])
        self.assertEqual(self.client.match_prefix([]).pages, 0)


@unittest.skipIf(np is None, "no NumPy")
class Numpy(StoreCase):
    def same(self, a: "np.ndarray") -> None:
        self.client.put(self.key(), a, replace=True)
        b = self.client.get(self.key())
        self.assertEqual((b.dtype, b.shape), (a.dtype, a.shape))
        np.testing.assert_array_equal(b, a)
        into = np.empty_like(a)
        info = self.client.get_into(self.key(), into)
        self.assertEqual(info.shape, a.shape)
        np.testing.assert_array_equal(into, a)

    def test_dtypes(self) -> None:
        for name in ("u1", "i1", "?", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8", "c16"):
            with self.subTest(name):
                self.same(np.arange(24).reshape(2, 3, 4).astype(name))

    def test_ml_dtypes(self) -> None:
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("no ml_dtypes")
        for name, stored in (("bfloat16", "bf16"), ("float8_e4m3fn", "f8_e4m3"), ("float8_e5m2", "f8_e5m2")):
            with self.subTest(name):
                self.same(np.arange(24).reshape(4, 6).astype(getattr(ml_dtypes, name)))
                self.assertEqual(self.client.lookup([self.key()]).tensor(0).dtype, stored)

    def test_scalar_and_empty(self) -> None:
        self.same(np.array(3.5))
        self.same(np.empty((0,), "f4"))
        self.same(np.empty((3, 0, 2), "i8"))

    def test_strides(self) -> None:
        base = np.arange(2 * 3 * 4 * 5, dtype="i4").reshape(2, 3, 4, 5)
        cases = {
            "transposed": base.T, "swapped": base.swapaxes(1, 2), "steps": base[:, ::2, 1:, ::3],
            "backwards": base[::-1, :, ::-1], "column": base[..., 2], "block": base[:, 1],
            "broadcast": np.broadcast_to(base[:, :1], base.shape), "fortran": np.asfortranarray(base),
            "ones": base[:, 1:2, :, 3:4],
        }
        for name, a in cases.items():
            with self.subTest(name):
                self.client.put(self.key(name), a)
                np.testing.assert_array_equal(self.client.get(self.key(name)), a)
                if name == "broadcast":
                    continue
                whole = np.zeros_like(base)
                view = {"transposed": whole.T, "swapped": whole.swapaxes(1, 2), "steps": whole[:, ::2, 1:, ::3],
                        "backwards": whole[::-1, :, ::-1], "column": whole[..., 2], "block": whole[:, 1],
                        "fortran": np.empty_like(a), "ones": whole[:, 1:2, :, 3:4]}[name]
                self.client.get_into(self.key(name), view)
                np.testing.assert_array_equal(view, a)

    def test_random_strides(self) -> None:
        seed = int(np.random.default_rng().integers(1 << 30))
        rng = np.random.default_rng(seed)
        for i in range(60):
            a = rng.integers(0, 255, rng.integers(1, 6, rng.integers(1, 6)), "u2")
            a = a.transpose(rng.permutation(a.ndim))
            a = a[tuple(slice(None, None, int(rng.choice([-2, -1, 1, 1, 2]))) for _ in a.shape)]
            self.client.put(self.key(), a, replace=True)
            np.testing.assert_array_equal(self.client.get(self.key()), a, f"seed {seed}, array {i}")
            whole = np.zeros(tuple(2 * n for n in a.shape), a.dtype)
            view = whole[tuple(slice(None, None, -2 if rng.integers(2) else 2) for _ in a.shape)]
            self.client.get_into(self.key(), view)
            np.testing.assert_array_equal(view, a, f"seed {seed}, array {i}")
            self.assertEqual(whole.sum(dtype="u8"), a.sum(dtype="u8"), f"seed {seed}: written beside it")

    def test_wrong_dtype_or_shape(self) -> None:
        self.client.put(self.key(), np.zeros((2, 3), "f4"))
        for wrong in (np.zeros((3, 2), "f4"), np.zeros((2, 3), "i4"), np.zeros(6, "f4"), np.zeros((2, 3), "f8")):
            with self.assertRaises(tarn.TensorMismatch) as e:
                self.client.get_into(self.key(), wrong)
            self.assertIn("f32 [2, 3]", str(e.exception))
            self.assertEqual(self.client.get_into_many([self.key()], [wrong]), [tarn.TensorMismatch.code])
        self.client.get_into(self.key(), np.zeros(24, "u1"))
        with self.assertRaises(tarn.SizeMismatch):
            self.client.get_into(self.key(), np.zeros(23, "u1"))

    def test_rows(self) -> None:
        keys = [self.key(str(i)) for i in range(20)]
        rows = np.arange(20 * 6, dtype="f4").reshape(20, 2, 3)
        self.assertEqual(self.client.put_many(zip(keys, rows)), [0] * 20)
        into = np.zeros((40, 2, 3), "f4")[::-2]
        self.assertEqual(self.client.get_into_many(keys, into), [24] * 20)
        np.testing.assert_array_equal(into, rows)
        with self.assertRaises(tarn.Invalid):
            self.client.get_into_many(keys, into[1:])

    def test_refused(self) -> None:
        readonly = np.zeros(3, "u1")
        readonly.flags.writeable = False
        self.client.put(self.key(), readonly)
        for bad in (readonly, b"123", np.broadcast_to(np.zeros(1, "u1"), 3)):
            with self.assertRaises(tarn.Invalid):
                self.client.get_into(self.key(), bad)
        for bad in (np.zeros(2, ">f4"), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")]), np.array([None]),
                    np.zeros((1,) * 9)):
            with self.assertRaises(tarn.Unsupported):
                self.client.put(self.key("bad"), bad)


class Wrong(StoreCase):
    def test_miss(self) -> None:
        for call in (lambda k: self.client.get(k, out="bytes"), lambda k: self.client.get_into(k, bytearray(1))):
            with self.assertRaises(tarn.NotFound) as e:
                call(self.key())
            self.assertIsInstance(e.exception, KeyError)
            self.assertEqual((e.exception.code, e.exception.name, e.exception.key), (-1, "NOT_FOUND", self.key()))
            self.assertIn("no such key", str(e.exception))

    def test_keys(self) -> None:
        for bad in ("", b"", "x" * 1025, "\ud800"):
            with self.assertRaises(tarn.Invalid):
                self.client.put(bad, b"1")
        for bad in (1, None, bytearray(b"k")):
            with self.assertRaises(TypeError):
                self.client.put(bad, b"1")
        self.client.put("x" * 1024, b"1", replace=True)

    def test_one_key_is_no_list(self) -> None:
        for call in (lambda: self.client.get_many("abc"), lambda: self.client.lookup(b"abc"),
                     lambda: self.client.match_prefix("abc"), lambda: asyncio.run(self.client.aget_many("abc")),
                     lambda: self.client.get_into_many("abc", [bytearray(1)] * 3)):
            with self.assertRaises(TypeError):
                call()

    def test_values(self) -> None:
        for bad in (1, None, object(), "text", [b"1", 2]):
            with self.assertRaises(TypeError):
                self.client.put(self.key(), bad)

    def test_arguments(self) -> None:
        with self.assertRaises(TypeError):
            self.client.put(self.key())
        with self.assertRaises(TypeError):
            self.client.put(self.key(), b"1", nonsense=1)
        with self.assertRaises(TypeError):
            self.client.put(self.key(), b"1", key="again")
        for timeout in (0, -1, float("nan"), 1e12):
            with self.assertRaises(tarn.Invalid):
                self.client.put(self.key(), b"1", timeout=timeout)
        with self.assertRaises(tarn.Invalid):
            self.client.get(self.key(), out="list")

    def test_no_directory(self) -> None:
        with self.assertRaises(tarn.DirectoryError) as e:
            tarn.Client("redis://127.0.0.1:1")
        self.assertIsInstance(e.exception, ConnectionError)

    def test_too_large(self) -> None:
        with self.assertRaises(tarn.TooLarge):
            self.client.put(self.key(), bytearray(65 << 20))

    def test_remedies(self) -> None:
        """None is the cause once more."""
        self.client.put(self.key(), b"1")
        for call, remedy in ((lambda: self.client.put(self.key(), b"1"), "replace=True"),
                             (lambda: self.client.put(self.key("b"), bytearray(65 << 20)), "larger pool"),
                             (lambda: self.client.get(self.key("b"), out="bytes"), "put it"),
                             (lambda: self.client.get_into(self.key(), bytearray(2)), "size them alike")):
            with self.assertRaises(tarn.Error) as e:
                call()
            self.assertIn(remedy, e.exception.remedy)

    def test_released_buffer(self) -> None:
        gone = memoryview(b"1")
        gone.release()
        with self.assertRaises(tarn.Invalid) as e:
            self.client.put(self.key(), gone)
        self.assertNotIn("written to", str(e.exception))
        with self.assertRaises(tarn.Invalid) as e:
            self.client.get_into(self.key(), b"1")
        self.assertIn("is not writable: give one that can be written to", str(e.exception))

    def test_names_are_listed(self) -> None:
        """Type checkers do not run what makes a list."""
        with open(tarn.__file__) as f:
            self.assertIn(f'"{sorted(tarn.__all__)[0]}"', f.read())
        public = {name for name, what in vars(tarn).items() if name[0] != "_" and not inspect.ismodule(what)}
        self.assertEqual(public - {"annotations"}, set(tarn.__all__))

    def test_error_of(self) -> None:
        e = tarn.error_of(-9, "k")
        self.assertIsInstance(e, tarn.Full)
        self.assertEqual(e.key, "k")

    def test_every_code_has_a_class(self) -> None:
        for code, (name, _, text) in tarn._tarn.errors.items():
            e = tarn.error_of(code, b"k")
            self.assertEqual((e.code, e.name, e.key), (code, name, b"k"))
            self.assertIsNot(type(e), tarn.Error)
            self.assertIn(text, str(e))
            again = pickle.loads(pickle.dumps(e))
            self.assertEqual((type(again), again.code, again.key, str(again)), (type(e), code, b"k", str(e)))
        self.assertEqual(tarn.error_of(-999).code, -999)
        with self.assertRaises(OSError):
            raise tarn.error_of(tarn.SystemFailure.code)


if __name__ == "__main__":
    unittest.main()
