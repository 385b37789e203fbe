# SPDX-License-Identifier: Apache-2.0
"""Put sessions: objects that are written part by part."""
from __future__ import annotations

import threading
import unittest

import tarn
from store import Store, StoreCase

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


class Sessions(StoreCase):
    def get(self, key: tarn._errors.Key) -> bytes:
        return bytes(self.client.get(key, out="bytes"))

    def test_commit_at_the_end_of_the_block(self) -> None:
        a, b = self.key("a"), self.key("b").encode()
        with self.client.put_session({a: ("u8", (6,)), b: ("f32", (2, 2))}) as s:
            self.assertEqual((len(s), s.codes), (2, [0, 0]))
            s.write(a, b"456", 3)
            s.write(1, bytes(range(16)))
            self.assertEqual(self.client.exists([a, b]), [False, False])
            s.write(a.encode(), b"123")
        self.assertEqual((self.get(a), self.get(b)), (b"123456", bytes(range(16))))
        info = self.client.lookup([b]).tensor(0)
        self.assertEqual((info.dtype, info.shape), ("f32", (2, 2)))

    def test_exception_in_the_block(self) -> None:
        with self.assertRaises(ZeroDivisionError):
            with self.client.put_session([(self.key(), ("u8", (3,)))]) as s:
                s.write(0, b"abc")
                1 / 0
        self.assertFalse(self.client.exists(self.key()))
        self.assertEqual(s.codes, [tarn.Canceled.code])
        self.client.put(self.key(), b"the key is free")

    def test_exception_gives_the_room_back(self) -> None:
        with Store(pool="cpu0:bytes=4M") as store, tarn.Client(store.uri) as client:
            for _ in range(5):
                with self.assertRaises(KeyError), client.put_session({"k": ("u8", (3 << 20,))}):
                    raise KeyError
            s = client.put_session({"k": ("u8", (3 << 20,))})
            del s
            client.put("k", bytes(3 << 20))

    def test_commit_and_abort_inside(self) -> None:
        with self.client.put_session({self.key("a"): ("u8", (1,))}) as s:
            s.write(0, b"x")
            self.assertEqual(s.commit(), [0])
        with self.client.put_session({self.key("b"): ("u8", (1,))}) as s:
            s.write(0, b"x")
            s.abort()
            s.abort()
        self.assertEqual(self.client.exists([self.key("a"), self.key("b")]), [True, False])
        for call in (s.commit, lambda: s.write(0, b"x")):
            with self.assertRaises(tarn.Closed):
                call()

    def test_wrong_index_and_key(self) -> None:
        with self.client.put_session({self.key(): ("u8", (1,))}) as s:
            for index in (1, -1, 1 << 80):
                with self.assertRaises(IndexError):
                    s.write(index, b"x")
            with self.assertRaises(KeyError):
                s.write("another", b"x")
            with self.assertRaises(TypeError):
                s.write(None, b"x")
            s.write(0, b"x")
        self.assertTrue(self.client.exists(self.key()))

    def test_beyond_the_end(self) -> None:
        with self.client.put_session({self.key(): ("u8", (4,))}) as s:
            for value, offset in ((b"12345", 0), (b"12", 3), (b"1", 1 << 63)):
                with self.assertRaises(tarn.SizeMismatch) as e:
                    s.write(0, value, offset)
                self.assertEqual(e.exception.key, self.key())
            with self.assertRaises(tarn.Invalid):
                s.write(0, b"1", -1)
            s.write(0, b"1234")
        self.assertEqual(self.get(self.key()), b"1234")

    def test_what_was_not_written_is_not_published(self) -> None:
        with self.assertRaises(tarn.Invalid) as e:
            with self.client.put_session({self.key("a"): ("u8", (4,)), self.key("b"): ("u8", (4,))}) as s:
                s.write(0, b"1234")
                s.write(1, b"123")
        self.assertEqual(e.exception.key, self.key("b"))
        self.assertEqual(self.client.exists([self.key("a"), self.key("b")]), [False, False])

    def test_zero_size_and_0_d(self) -> None:
        with self.client.put_session({self.key("empty"): ("f32", (0, 8)), self.key("0d"): ("f32", ())}) as s:
            s.write(1, b"\0\0\0\0")
        self.assertEqual(self.client.lookup([self.key("empty")]).tensor(0), ("f32", (0, 8), 0))
        self.assertEqual(self.client.lookup([self.key("0d")]).tensor(0), ("f32", (), 4))

    def test_some_exist(self) -> None:
        self.client.put(self.key("a"), b"old")
        specs = {self.key("a"): ("u8", (3,)), self.key("b"): ("u8", (3,))}
        with self.client.put_session(specs) as s:
            self.assertEqual(s.codes, [tarn.Exists.code, 0])
            with self.assertRaises(tarn.Exists):
                s.write(0, b"new")
            s.write(1, b"new")
        self.assertEqual((self.get(self.key("a")), self.get(self.key("b"))), (b"old", b"new"))

    def test_all_exist(self) -> None:
        self.client.put(self.key(), b"old")
        with self.assertRaises(tarn.Exists) as e:
            self.client.put_session({self.key(): ("u8", (3,))})
        self.assertEqual(e.exception.key, self.key())
        with self.client.put_session({self.key(): ("u8", (3,))}, replace=True) as s:
            s.write(0, b"new")
        self.assertEqual(self.get(self.key()), b"new")

    def test_put_meanwhile(self) -> None:
        """The failure at the commit is raised, though the other object is there."""
        with self.assertRaises(tarn.Exists) as e:
            with self.client.put_session({self.key("a"): ("u8", (1,)), self.key("b"): ("u8", (1,))}) as s:
                s.write(0, b"1")
                s.write(1, b"1")
                self.client.put(self.key("b"), b"2")
        self.assertEqual(e.exception.key, self.key("b"))
        self.assertEqual(s.codes, [0, tarn.Exists.code])
        self.assertEqual((self.get(self.key("a")), self.get(self.key("b"))), (b"1", b"2"))

    def test_specs(self) -> None:
        self.client.put(self.key("a"), b"1234", dtype="f16", shape=(2, 1))
        info = self.client.lookup([self.key("a")]).tensor(0)
        with self.client.put_session([(self.key("b"), info)]) as s:
            s.write(0, b"abcd")
        self.assertEqual(self.client.lookup([self.key("b")]).tensor(0), info)
        for specs in ({"k": "f32"}, {"k": ("f32",)}, ["k"], {1: ("f32", (1,))}, 5, {"k": ("f32", 3)}):
            with self.subTest(specs), self.assertRaises(TypeError):
                self.client.put_session(specs)
        for specs in ({"k": ("f33", (1,))}, {"": ("f32", (1,))}, {"k": ("f32", (1,) * 9)}, {}):
            with self.subTest(specs), self.assertRaises((tarn.Invalid, tarn.Unsupported)):
                self.client.put_session(specs)
        with self.assertRaises(tarn.TooLarge):
            self.client.put_session({"k": ("f32", (1 << 62, 1 << 62))})

    def test_dtype(self) -> None:
        with self.client.put_session({self.key(): ("f16", (2,))}) as s:
            with self.assertRaises(tarn.TensorMismatch):
                s.write(0, memoryview(bytes(4)).cast("f"))
            s.write(0, bytes(4))

    def test_client_closed_in_the_block(self) -> None:
        client = self.open()
        with self.assertRaises(tarn.Closed):
            with client.put_session({self.key(): ("u8", (1,))}) as s:
                s.write(0, b"x")
                client.close()
        with self.assertRaises(tarn.Closed):
            s.write(0, b"x")
        s.abort()
        del s
        self.assertFalse(self.client.exists(self.key()))

    def test_dropped_after_close_while_a_view_keeps_the_client(self) -> None:
        client = self.open()
        client.put(self.key("v"), b"view")
        view = client.view(self.key("v"), out="bytes")
        s = client.put_session({self.key(): ("u8", (1,))})
        client.close()
        del s
        self.assertEqual(bytes(view), b"view")

    def test_another_thread_at_the_same_time(self) -> None:
        """One of them may be told that it is in use; nothing is lost, and nothing breaks."""
        n, busy = 64, []
        with self.client.put_session({self.key(): ("u8", (n << 16,))}) as s:
            def write(first: int) -> None:
                for i in range(first, n, 2):
                    while True:
                        try:
                            s.write(0, bytes([i]) * (1 << 16), i << 16)
                            break
                        except tarn.Busy:
                            busy.append(i)

            threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(self.get(self.key()), b"".join(bytes([i]) * (1 << 16) for i in range(n)))


class Paused(unittest.TestCase):
    def test_busy(self) -> None:
        """A second thread is refused while one writes, and the session is whole afterwards."""
        with Store() as store, tarn.Client(store.uri, transports="tcp") as client:
            with client.put_session({"a": ("u8", (8 << 20,))}) as s:
                store.pause()
                writer = threading.Thread(target=lambda: s.write(0, bytes(8 << 20), timeout=60))
                writer.start()
                while client._calls == 0:
                    pass
                for call in (lambda: s.write(0, b"x"), s.commit, s.abort):
                    with self.assertRaises(tarn.Busy):
                        call()
                store.resume()
                writer.join()
            self.assertEqual(len(client.get("a", out="bytes")), 8 << 20)


@unittest.skipIf(np is None, "no NumPy")
class Numpy(StoreCase):
    def test_layers(self) -> None:
        """Key by key a block of all layers, written layer by layer."""
        layers, blocks = 4, 3
        cache = np.random.default_rng(1).random((layers, blocks, 2, 8, 16)).astype("f2")
        keys = [self.key(str(b)) for b in range(blocks)]
        with self.client.put_session((k, (cache.dtype, (layers, 2, 8, 16))) for k in keys) as s:
            for layer in range(layers):
                for b in range(blocks):
                    s.write(b, cache[layer, b], layer * cache[0, 0].nbytes)
        for b, got in enumerate(self.client.get_many(keys)):
            np.testing.assert_array_equal(got, cache[:, b])

    def test_strides(self) -> None:
        a = np.arange(24, dtype="i4").reshape(4, 6)
        with self.client.put_session({self.key(): ("i32", (6, 4))}) as s:
            s.write(self.key(), a.T)
        np.testing.assert_array_equal(self.client.get(self.key()), a.T)


@unittest.skipIf(torch is None, "no torch")
class Torch(StoreCase):
    def test_bf16(self) -> None:
        t = torch.arange(12).to(torch.bfloat16).reshape(3, 4)
        with self.client.put_session({self.key(): (t.dtype, t.shape)}) as s:
            for i, row in enumerate(t):
                s.write(0, row, i * 8)
        self.assertTrue(torch.equal(self.client.get(self.key(), out="torch"), t))

    def test_wrong_after(self) -> None:
        with self.client.put_session({self.key(): ("u8", (1,))}) as s:
            with self.assertRaises(TypeError):
                s.write(0, b"x", after="now")
            with self.assertRaises(tarn.Invalid):
                s.write(0, b"x", after=0)
            s.write(0, b"x")


if __name__ == "__main__":
    unittest.main()
