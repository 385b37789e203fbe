# SPDX-License-Identifier: Apache-2.0
"""asyncio: the running loop waits at the client's event fd; no thread."""
from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import unittest
import warnings

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


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class Calls(StoreCase):
    def test_each_call(self) -> None:
        async def main() -> None:
            c, a, b = self.client, self.key("a"), self.key("b")
            await c.aput(a, b"hello")
            self.assertEqual(await c.aput_many({a: b"other", b: b"world"}), [tarn.Exists.code, 0])
            self.assertEqual(await c.aget(a, out="bytes"), b"hello")
            self.assertEqual(await c.aget_many([a, "none", b], out="bytes"), [b"hello", None, b"world"])
            buffers = [bytearray(5), bytearray(5)]
            info = await c.aget_into(b, buffers[0])
            self.assertEqual((info, buffers[0]), (("u8", (5,), 5), b"world"))
            self.assertEqual(await c.aget_into_many([a, b], buffers), [5, 5])
            part = bytearray(2)
            await c.aget_into(a, part, offset=1)
            self.assertEqual(part, b"el")
            self.assertEqual(await c.aexists([a, "none"]), [True, False])
            self.assertIs(await c.aexists(a), True)
            hits = await c.amatch_prefix([a, b, "none"], stride=2)
            self.assertEqual((hits.pages, hits.states), (1, [tarn.HIT, tarn.HIT, tarn.MISS]))
            self.assertEqual(await c.aget_many([a, b], out="bytes", hits=hits), [b"hello", b"world"])
            self.assertIs(await c.aremove(a), True)
            self.assertIs(await c.aremove(a), False)
            self.assertEqual(await c.aremove([a, b]), [tarn.NotFound.code, 0])

        asyncio.run(main())

    def test_options(self) -> None:
        async def main() -> None:
            await self.client.aput(self.key(), bytes(8), dtype="f32", shape=(2, 1), pin=True, ttl=100, timeout=3)
            await self.client.aput(self.key(), bytes(8), dtype="f32", shape=(2, 1), replace=True)
            self.assertEqual(self.client.lookup([self.key()]).tensor(0), ("f32", (2, 1), 8))
            with self.assertRaises(tarn.Invalid):
                await self.client.aput(self.key("x"), bytes(8), dtype="f32", shape=(3,))

        asyncio.run(main())

    def test_errors(self) -> None:
        async def main() -> None:
            with self.assertRaises(tarn.NotFound) as e:
                await self.client.aget(self.key(), out="bytes")
            self.assertEqual(e.exception.key, self.key())
            with self.assertRaises(tarn.NotFound):
                await self.client.aget_into(self.key(), bytearray(1))
            await self.client.aput(self.key(), b"12")
            with self.assertRaises(tarn.Exists):
                await self.client.aput(self.key(), b"12")
            with self.assertRaises(tarn.SizeMismatch):
                await self.client.aget_into(self.key(), bytearray(1))
            with self.assertRaises(TypeError):
                await self.client.aget(5, out="bytes")

        asyncio.run(main())

    @unittest.skipIf(np is None, "no NumPy")
    def test_arrays(self) -> None:
        async def main() -> None:
            a = np.arange(12, dtype="i2").reshape(3, 4)
            await self.client.aput(self.key(), a.T)
            got = await self.client.aget(self.key())
            np.testing.assert_array_equal(got, a.T)
            self.assertEqual(got.dtype, a.dtype)
            with self.assertRaises(tarn.TensorMismatch):
                await self.client.aget_into(self.key(), np.zeros((4, 3), "f2"))
            if torch is not None:
                self.assertEqual((await self.client.aget(self.key(), out="torch")).tolist(), a.T.tolist())

        asyncio.run(main())

    def test_many_tasks(self) -> None:
        n = 300

        async def one(i: int) -> bool:
            key = self.key(str(i))
            await self.client.aput(key, key.encode() * (i + 1))
            return await self.client.aget(key, out="bytes") == key.encode() * (i + 1)

        async def main() -> None:
            self.assertTrue(all(await asyncio.gather(*(one(i) for i in range(n)))))

        asyncio.run(main())
        self.assertEqual((self.client._readers, self.client._futures, self.client._flying()), ({}, {}, 0))

    def test_no_fd_is_left(self) -> None:
        async def main() -> None:
            await self.client.aput(self.key(), b"x")
            await self.client.aget(self.key(), out="bytes")
            before = fds()
            for _ in range(50):
                await self.client.aget(self.key(), out="bytes")
            self.assertEqual(fds(), before)

        asyncio.run(main())

    def test_the_loop_goes_on_meanwhile(self) -> None:
        """Nothing blocks it, not even a node that stands still."""
        async def main(store: Store, client: tarn.Client) -> None:
            await client.aput("a", bytes(100))
            store.pause()
            get = asyncio.ensure_future(client.aget_into("a", bytearray(100), timeout=30))
            ticks = 0
            begin = time.monotonic()
            while time.monotonic() < begin + 0.3:
                await asyncio.sleep(0.01)
                ticks += 1
            self.assertFalse(get.done())
            self.assertGreater(ticks, 5)
            store.resume()
            self.assertEqual((await get).nbytes, 100)

        with Store() as store, tarn.Client(store.uri, transports="tcp") as client:
            asyncio.run(main(store, client))


class Loops(StoreCase):
    def test_several_threads(self) -> None:
        """One client, a loop in each of four threads, and blocking and submitted calls beside them."""
        wrong: list = []

        async def main(name: str) -> None:
            async def one(i: int) -> None:
                key = self.key(f"{name}/{i}")
                await self.client.aput(key, key.encode())
                if await self.client.aget(key, out="bytes") != key.encode():
                    wrong.append(key)

            await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(60))), 60)

        def run(name: str) -> None:
            try:
                asyncio.run(main(name))
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=run, args=(str(t),)) for t in range(4)]
        for t in threads:
            t.start()
        for i in range(60):
            key = self.key(f"main/{i}")
            op = self.client.submit_put({key: key.encode()})
            if i % 3:
                op.wait()
            while not op.done:
                time.sleep(0.001)
            self.assertEqual(self.client.get(key, out="bytes"), key.encode())
        for t in threads:
            t.join(60)
            self.assertFalse(t.is_alive())
        self.assertEqual(wrong, [])

    def test_one_loop_after_the_other(self) -> None:
        for i in range(3):
            asyncio.run(self.client.aput(self.key(str(i)), b"x"))
        self.assertEqual(self.client._readers, {})


class Ends(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Store()
        self.addCleanup(self.store.close)
        self.client = tarn.Client(self.store.uri, transports="tcp")
        self.addCleanup(self.client.close)
        self.client.put("a", b"x" * 100)
        self.store.pause()
        self.addCleanup(self.store.resume)

    def test_canceled_task(self) -> None:
        async def main() -> None:
            buffer = bytearray(100)
            task = asyncio.ensure_future(self.client.aget_into("a", buffer, timeout=60))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(self.client._flying(), 0, "it goes on")
            buffer.extend(b"nobody holds it")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.client.aget("a", out="bytes", timeout=60), 0.05)
            self.assertEqual(self.client._flying(), 0)

        asyncio.run(main())
        self.assertEqual((self.client._readers, self.client._futures), ({}, {}))

    def test_end_of_the_loop(self) -> None:
        async def main() -> None:
            asyncio.ensure_future(self.client.aget("a", out="bytes", timeout=60))
            await asyncio.sleep(0.05)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(main())
        self.assertEqual(self.client._flying(), 0)

    def test_loop_closed_first(self) -> None:
        """A task that nobody ends goes with the client at the latest."""
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
        task = loop.create_task(self.client.aget("a", out="bytes", timeout=60))
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        del task
        self.client.close()
        gc.collect()
        self.assertEqual((self.client._flying(), self.client._readers, self.client._futures), (0, {}, {}))

    def test_close_while_tasks_wait(self) -> None:
        async def main(close: object) -> None:
            before = fds()
            tasks = [asyncio.ensure_future(self.client.aget_into("a", bytearray(100), timeout=60)) for _ in range(3)]
            await asyncio.sleep(0.05)
            await close()
            done, pending = await asyncio.wait(tasks, timeout=10)
            self.assertFalse(pending)
            for t in done:
                self.assertIsInstance(t.exception(), (tarn.Canceled, tarn.NodeDown))
            with self.assertRaises(tarn.Closed):
                await self.client.aget("a", out="bytes")
            self.assertLessEqual(fds(), before)

        async def here() -> None:
            self.client.close()

        async def in_a_thread() -> None:
            await asyncio.get_running_loop().run_in_executor(None, self.client.close)

        for close in (here, in_a_thread):
            with self.subTest(close.__name__):
                asyncio.run(main(close))
                self.store.resume()
                self.client = tarn.Client(self.store.uri, transports="tcp")
                self.addCleanup(self.client.close)
                self.assertEqual(len(self.client.get("a", out="bytes")), 100)
                self.store.pause()

    def test_deadline(self) -> None:
        async def main() -> None:
            with self.assertRaises((tarn.Timeout, tarn.NodeDown)):
                await self.client.aget_into("a", bytearray(100), timeout=0.2)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
