# SPDX-License-Identifier: Apache-2.0
"""Looking at the store: stat, list, nodes, events, transports; touch and pin; registered memory; bulk load and save."""
from __future__ import annotations

import contextlib
import gc
import io
import mmap
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
try:
    import tqdm
except ImportError:
    tqdm = None


class Looking(StoreCase):
    def test_stat(self) -> None:
        before = time.time()
        self.client.put(self.key(), bytes(24), dtype="bf16", shape=(3, 4), ttl=100)
        o = self.client.stat(self.key())
        self.assertEqual((o.key, o.dtype, o.shape, o.nbytes, o.ttl), (self.key().encode(), "bf16", (3, 4), 24, 100.0))
        self.assertLess(abs(o.born - before), 60)
        [copy] = o.copies
        self.assertEqual((copy.node, copy.pool, copy.transport), ("node0", "cpu0", "shm"))
        self.client.put(self.key(), b"", replace=True)
        again = self.client.stat(self.key())
        self.assertEqual((again.shape, again.ttl), ((0,), None))
        self.assertNotEqual(again.version, o.version)
        with self.assertRaises(tarn.NotFound) as e:
            self.client.stat(self.key("none"))
        self.assertEqual(e.exception.key, self.key("none"))

    def test_list(self) -> None:
        self.client.put_many({f"listed/{i}": bytes(i) for i in range(150)})
        self.client.put(b"\xff\x00", b"binary")
        listed = {(f"listed/{i}".encode(), i) for i in range(150)}
        self.assertEqual({(o.key, o.nbytes) for o in self.client.list("listed/*")}, listed)
        self.assertLess(listed, {(o.key, o.nbytes) for o in self.client.list()})
        self.assertEqual(self.client.list("none*"), [])
        self.assertIn(b"\xff\x00", [o.key for o in self.client.list()])

    def test_nodes(self) -> None:
        [n] = self.client.nodes()
        self.assertEqual((n.id, n.state, n.same_host, n.control), ("node0", "ready", True, self.store.control))
        [p] = n.pools
        self.assertEqual((p.name, p.kind, p.nbytes, p.transport), ("cpu0", "cpu", 64 << 20, "shm"))
        self.assertLess(abs(n.started - time.time()), 600)

    def test_transports(self) -> None:
        found = dict(tarn.transports())
        self.assertIsNone(found["tcp"])
        self.assertIn("shm", found)

    def test_events(self) -> None:
        keys = (self.key(str(i)) for i in range(10000))
        stop = threading.Event()

        def put() -> None:
            c = self.open()
            while not stop.is_set():
                c.put(next(keys), b"abc")
                time.sleep(0.005)

        putter = threading.Thread(target=put)
        putter.start()
        try:
            events = self.client.events(30)
            got = [next(events) for _ in range(5)]
            events.close()
        finally:
            stop.set()
            putter.join()
        self.assertTrue(all((e.what, e.node, e.pool, e.nbytes) == ("stored", "node0", "cpu0", 3) for e in got), got)
        numbers = [int(e.key.rsplit(b"/", 1)[1]) for e in got]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + 5)))

    def test_events_end(self) -> None:
        begin = time.monotonic()
        self.assertEqual([e for e in self.client.events(0.2) if e.key.startswith(self.key().encode())], [])
        self.assertLess(time.monotonic() - begin, 5)
        client = self.open()
        threading.Timer(0.2, client.close).start()
        self.assertEqual([e for e in client.events() if e.key.startswith(self.key().encode())], [])

    def test_events_ctrl_c(self) -> None:
        begin = time.monotonic()
        with ctrl_c(self, 0.1):
            for _ in self.client.events(60):
                pass
        self.assertLess(time.monotonic() - begin, 5)

    def test_closed(self) -> None:
        self.client.close()
        for call in (self.client.list, self.client.nodes, lambda: self.client.stat("a"), lambda: self.client.touch("a"),
                     lambda: self.client.pin("a"), lambda: self.client.register(bytearray(1)),
                     lambda: list(self.client.events(10))):
            with self.assertRaises(tarn.Closed):
                call()


class Marks(unittest.TestCase):
    def test_chain(self) -> None:
        """A full pool loses the end of a chain, though its beginning was used longer ago."""
        with Store(pool="cpu0:bytes=4M") as store, tarn.Client(store.uri) as c:
            block = bytes(1 << 20)
            c.put("0", block)
            self.assertEqual(c.put_many({"1": block}, chain="0"), [0])
            self.assertEqual(c.submit_put({"2": block}, chain="1").wait(5), [0])
            with c.put_session({"3": ("u8", (len(block),))}, chain="2") as session:
                session.write("3", block)
            for i, left in enumerate("210"):
                c.put(f"new{i}", block, chain=f"new{i - 1}" if i else True)
                self.assertEqual(c.match_prefix(list("0123")).pages, int(left) + 1)

    def test_pin_touch(self) -> None:
        """Of three objects in a full pool the pinned and the touched one stay."""
        with Store(pool="cpu0:bytes=4M") as store, tarn.Client(store.uri) as c:
            for k in "abc":
                c.put(k, bytes(1 << 20))
            c.pin("a")
            c.touch(["b", "none"])
            c.touch("b")
            for i in range(3):
                c.put("new", bytes(1 << 20), replace=True)
                c.put("newer", bytes(1 << 20), replace=True)
            self.assertTrue(c.exists("a"))
            self.assertFalse(all(c.exists(["b", "c"])))
            c.unpin("a")
            for call in (c.pin, c.unpin):
                with self.assertRaises(tarn.NotFound) as e:
                    call("none")
                self.assertEqual(e.exception.key, "none")
            c.pin("a", ttl=0.5)
            with self.assertRaises(tarn.Invalid):
                c.pin("a", ttl=-1)


class Registering(StoreCase):
    def test_buffer(self) -> None:
        memory = bytearray(1 << 20)
        with self.client.register(memory) as r:
            self.assertEqual(r.nbytes, 1 << 20)
            with self.assertRaises(BufferError):
                memory.extend(b"x")  # would move it
            self.client.put(self.key(), memoryview(memory)[:100])
        memory.extend(b"x")
        r.close()

    def test_address(self) -> None:
        with mmap.mmap(-1, 1 << 16) as m:
            owner = (tarn.Piece(1, 1), m)  # anything
            del owner
            import ctypes
            anchor = ctypes.c_char.from_buffer(m)
            with self.client.register((ctypes.addressof(anchor), 1 << 16)) as r:
                self.assertEqual((r.addr, r.nbytes), (ctypes.addressof(anchor), 1 << 16))
            del anchor

    def test_wrong(self) -> None:
        with self.assertRaises(TypeError):
            self.client.register(5)
        with self.assertRaises(tarn.Invalid):
            self.client.register((0, 100))

    def test_busy(self) -> None:
        with Store() as store:
            with tarn.Client(store.uri, transports="tcp") as client:
                client.put("a", bytes(100))
                memory = bytearray(100)
                r = client.register(memory)
                store.pause()
                op = client.submit_get_into(["a"], [memory], timeout=60)
                with self.assertRaises(tarn.Busy):
                    r.close()
                op.cancel()
                r.close()
                store.resume()
                memory.extend(b"nothing holds it")

    def test_dropped_while_busy(self) -> None:
        """Devices may use what is registered: it is never given back then."""
        class Memory(bytearray):
            pass

        with Store() as store, tarn.Client(store.uri, transports="tcp") as client:
            client.put("a", bytes(100))
            store.pause()
            memory = Memory(100)
            kept = weakref.ref(memory)
            r = client.register(memory)
            op = client.submit_get_into(["a"], [memory], timeout=60)
            del r
            op.cancel()
            store.resume()
            del op, memory
            gc.collect()
            self.assertIsNotNone(kept())

    def test_outlives_the_client(self) -> None:
        memory = bytearray(100)
        client = tarn.Client(self.store.uri)
        r = client.register(memory)
        client.close()
        r.close()
        memory.extend(b"x")

    @unittest.skipIf(np is None, "no NumPy")
    def test_strided(self) -> None:
        a = np.zeros((100, 8), "u1")
        with self.client.register(a[2:5, ::2]) as r:
            self.assertEqual((r.addr, r.nbytes), (a.ctypes.data + 16, 8 + 8 + 7))


class Bulk(StoreCase):
    def test_save_and_load(self) -> None:
        values = {self.key(str(i)): bytes([i % 256]) * 10 for i in range(1000)}
        self.assertEqual(self.client.save(values, progress=False), dict.fromkeys(values, 0))
        buffers = {k: bytearray(10) for k in values}
        buffers["none"] = bytearray(1)
        codes = self.client.load(buffers, progress=False, chunk=7)
        self.assertEqual(codes, {**dict.fromkeys(values, 10), "none": tarn.NotFound.code})
        self.assertEqual({k: bytes(buffers[k]) for k in values}, values)
        self.assertEqual(self.client.load({}), {})
        for chunk in (0, -1):
            with self.assertRaises(tarn.Invalid):
                self.client.load(buffers, progress=False, chunk=chunk)
        self.assertEqual(self.client.save({self.key("x"): b"1"}, pin=True, progress=False), {self.key("x"): 0})

    @unittest.skipIf(tqdm is None, "no tqdm")
    def test_bar(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.client.save({self.key(str(i)): b"x" for i in range(600)})
        self.assertIn("600/600", told.getvalue())
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.client.load({self.key("0"): bytearray(1)}, progress=False)
        self.assertEqual(told.getvalue(), "")

    def test_without_tqdm(self) -> None:
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tqdm"}
        sys.modules["tqdm"] = sys.modules["tqdm.auto"] = None  # type: ignore[assignment]
        try:
            self.assertEqual(self.client.save({self.key(): b"x"}), {self.key(): 0})
        finally:
            del sys.modules["tqdm"], sys.modules["tqdm.auto"]
            sys.modules.update(hidden)


if __name__ == "__main__":
    unittest.main()
