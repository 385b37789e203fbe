# SPDX-License-Identifier: Apache-2.0
"""Windows between two processes: what one lends, the other reads and writes. test_lending.py has the rest."""
from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import unittest
from typing import Any, List, Optional, Type

import tarn
from store import StoreCase, ctrl_c, stop
from test_lifetime import SANITIZED, Running, until

BYTES = 1 << 16
LARGE = 64 << 20

# Says what a line evaluates to, or the exception's class and sentence.
PEER = """
import sys, tarn
names = {"tarn": tarn, "c": tarn.Client(sys.argv[1], transports=sys.argv[2], timeout=20.0)}
print("ready", flush=True)
for line in sys.stdin:
    try:
        try:
            code = compile(line, "peer", "eval")
        except SyntaxError:
            code = compile(line, "peer", "exec")
        said = repr(eval(code, names))
    except tarn.Error as e:
        said = f"{type(e).__name__}: {e}"
    print(said, flush=True)
"""


class Peer:
    """Another process with a client `c`. It evaluates what it is given."""

    def __init__(self, uri: str, transports: str) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        self.process = subprocess.Popen([sys.executable, "-c", PEER, uri, transports], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        self.pid = self.process.pid
        assert self.answer() == "ready"

    def begin(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def __call__(self, line: str) -> str:
        self.begin(line)
        return self.answer()

    def reach(self, descriptor: str, name: str = "r") -> None:
        said = self(f"{name} = c.reach({descriptor!r})")
        assert said == "None", said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


def pattern(nbytes: int) -> bytes:
    return bytes((7 * i + i // 251) % 256 for i in range(nbytes))


class Both:
    """Between two processes."""

    TRANSPORT: str

    def memory(self, nbytes: int) -> Any:
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.peer = Peer(self.store.uri, self.TRANSPORT)
        self.addCleanup(self.peer.close)
        self.view = memoryview(self.memory(BYTES))
        self.view[:] = pattern(BYTES)
        self.window = self.client.window(self.view)
        self.addCleanup(self.window.close)

    def lease(self, *args: Any, **options: Any) -> Any:
        """One that the peer has reached, as `r`."""
        lease = self.window.lease(*args, **options)
        self.peer.reach(lease.descriptor)
        return lease

    def fails(self, line: str, kind: Type[tarn.Error], *words: str) -> None:
        said = self.peer(line)
        self.assertTrue(said.startswith(kind.__name__ + ": "), said)
        for word in words:
            self.assertIn(word, said)

    def test_read_and_write(self) -> None:
        lease = self.lease(write=True)
        self.assertEqual(self.peer("r.nbytes"), str(BYTES))
        self.peer(f"out = bytearray({BYTES}); r.read(out)")
        self.assertEqual(self.peer("bytes(out)"), repr(pattern(BYTES)))
        self.peer("r.write(b'abc', 1000)")
        self.peer("part = bytearray(3); r.read(part, offset=1000)")
        self.assertEqual(self.peer("bytes(part)"), "b'abc'")
        lease.recall()
        self.assertEqual(bytes(self.view[998:1005]), pattern(BYTES)[998:1000] + b"abc" + pattern(BYTES)[1003:1005])

    def test_scattered(self) -> None:
        lease = self.lease([(100, 10), (1000, 5, 50, 4), (90, 10)], True)
        self.assertEqual(self.peer("r.nbytes"), "40")
        p = pattern(BYTES)
        expected = p[100:110] + b"".join(p[1000 + 50 * i:1005 + 50 * i] for i in range(4)) + p[90:100]
        self.peer("a, b = bytearray(15), bytearray(25); r.read([(25, a), (0, b)])")
        self.assertEqual(self.peer("bytes(b + a)"), repr(expected))
        self.peer("r.write([(9, [b'xy', b'z']), (30, b'1')])")
        lease.recall()
        self.assertEqual(bytes(self.view[108:111]), p[108:109] + b"x" + p[110:111])
        self.assertEqual((bytes(self.view[1000:1002]), self.view[90:91]), (b"yz", b"1"))

    def test_notifications(self) -> None:
        lease, other = self.lease(write=True), self.window.lease([(0, 8)], True)
        self.peer.reach(other.descriptor, "other")
        for line in ("r.write(b'1', notify=(7, b'first'))", "other.write([], notify=(7, b''))",
                     "r.write(b'2', 1, notify=(2**64 - 1, bytearray(256)))", "r.write(b'3', 2, notify=(7, b'x'))"):
            self.assertEqual(self.peer(line), "None")
        first = self.window.notification()
        self.assertEqual((first.tag, first.data), (7, b"first"))
        self.assertIs(first.lease, lease)
        self.assertIn(f"pid={self.peer.pid}", first.peer)
        second = self.window.notification()
        self.assertIs(second.lease, other)
        lease.expect(2**64 - 1)
        lease.expect(7)
        with self.assertRaises(tarn.Timeout):
            lease.expect(7, timeout=0.02)
        self.assertEqual(bytes(self.view[:3]), b"123")

    def test_expect_waits(self) -> None:
        lease = self.lease(write=True)
        self.peer.begin("for i in range(3): r.write(bytes([i]) * 100, 100 * i, notify=(5, b''))")
        lease.expect(5, n=3)
        self.assertEqual(bytes(self.view[:300]), b"\0" * 100 + b"\1" * 100 + b"\2" * 100)
        self.assertEqual(self.peer.answer(), "None")

    def test_notification_fd_and_iteration(self) -> None:
        lease = self.lease(write=True)
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        seen = loop.create_future()

        def readable() -> None:
            loop.remove_reader(self.window.notification_fd)
            seen.set_result(self.window.notification().tag)

        loop.add_reader(self.window.notification_fd, readable)
        self.peer.begin("r.write([], notify=(4, b''))")
        self.assertEqual(loop.run_until_complete(asyncio.wait_for(seen, 20)), 4)
        self.peer.answer()
        tags: List[int] = []
        run = Running(lambda: tags.extend(n.tag for n in self.window))
        self.peer("for i in range(3): r.write([], notify=(i, b''))")
        until(lambda: len(tags) == 3)
        self.window.close()
        run.join()
        self.assertEqual((run.error, tags), (None, [0, 1, 2]))
        del lease

    def test_recall_while_a_reader_reads(self) -> None:
        self.view[:] = b"\1" * BYTES
        lease = self.lease()
        self.peer(f"wrong = n = 0; out = bytearray({BYTES}); whole = bytes([1]) * {BYTES}")
        self.peer.begin("while not r.read(out): wrong += out != whole; n += 1; "
                        "n == 20 and print('reading', flush=True)")
        self.assertEqual(self.peer.answer(), "reading")
        lease.recall()
        self.view[:] = b"\2" * BYTES
        self.assertTrue(self.peer.answer().startswith("Stale: "))
        self.assertEqual(self.peer("wrong"), "0")
        self.fails("r.read(bytearray(1))", tarn.Stale, "ask the lender")
        gone = self.window.lease().descriptor  # nobody refers to the lease
        self.fails(f"c.reach({gone!r})", tarn.Stale)

    def test_submitted(self) -> None:
        lease = self.lease(write=True)
        self.peer("a = bytearray(8); op = r.submit_read([(8, a), (0, bytearray(4))])")
        self.assertEqual(self.peer("op.wait()"), "[0, 0]")
        self.assertEqual(self.peer("bytes(a)"), repr(pattern(16)[8:]))
        self.assertEqual(self.peer("r.submit_write(b'late', 4, notify=(3, b'd')).wait()"), "[0]")
        lease.expect(3)
        self.assertEqual(bytes(self.view[4:8]), b"late")
        self.peer(f"op = r.submit_write([(0, b'1'), ({BYTES}, b'1')], notify=(3, b''))")
        self.assertEqual(self.peer("op.wait()"), f"[0, {tarn.SizeMismatch.code}]")
        with self.assertRaises(tarn.Timeout):  # a part has failed, so it is not told
            lease.expect(3, timeout=0.02)

    def test_asyncio(self) -> None:
        lease = self.lease(write=True)
        lease_text = lease.descriptor
        self.peer("import asyncio")
        self.peer("async def both(): out = bytearray(3); await asyncio.gather(r.awrite(b'abc', notify=(1, b'')), "
                  "r.aread(out, 100)); return bytes(out)")
        self.assertEqual(self.peer("asyncio.run(both())"), repr(pattern(103)[100:]))
        lease.expect(1)
        self.assertEqual(bytes(self.view[:3]), b"abc")
        self.does_asyncio(lease)
        lease.recall()
        self.fails("asyncio.run(r.aread(bytearray(1)))", tarn.Stale)
        self.fails(f"asyncio.run(c.areach({lease_text!r}))", tarn.Stale)

    def does_asyncio(self, lease: Any) -> None:
        """Reaching and expecting; one that was canceled has taken nothing."""
        self.peer(f"async def tell(n): r = await c.areach({lease.descriptor!r}); "
                  "[await r.awrite([], notify=(2, b'')) for _ in range(n)]; return r.nbytes")

        async def expect() -> None:
            canceled = asyncio.ensure_future(lease.aexpect(2, n=2, timeout=60))
            both = asyncio.gather(lease.aexpect(2, timeout=20), lease.aexpect(2, timeout=20))
            await asyncio.sleep(0)
            canceled.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await canceled
            self.peer.begin("asyncio.run(tell(3))")
            await both
            await lease.aexpect(2, n=1, timeout=20)
            with self.assertRaises(tarn.Timeout):
                await lease.aexpect(2, timeout=0.02)

        asyncio.run(expect())
        self.assertEqual(self.peer.answer(), str(BYTES))

    def test_killed_writer(self) -> None:
        lease = self.lease(write=True)

        async def expect() -> None:
            await lease.aexpect(1, timeout=60)

        runs = [Running(lambda: lease.expect(1, timeout=60)), Running(lambda: asyncio.run(expect()))]
        self.peer.kill()
        for expecting in runs:
            expecting.join(40)
            self.assertIsInstance(expecting.error, tarn.NodeDown)
            self.assertIn(f"pid={self.peer.pid}", str(expecting.error))
        lease.recall()

    def test_the_lender_is_gone(self) -> None:
        lender = Peer(self.store.uri, self.TRANSPORT)
        self.addCleanup(lender.close)
        lender("w = c.window(tarn.WindowMemory(100))")
        descriptor = lender("w.descriptor").strip("'")
        r = self.open(transports=self.TRANSPORT).reach(descriptor)
        r.read(bytearray(100))
        lender.kill()

        def gone() -> bool:
            try:
                r.read(bytearray(100))
                return False
            except tarn.NodeDown as e:
                self.assertIn(descriptor.split()[3], str(e))  # its address
                return True

        until(gone)

    def test_refused(self) -> None:
        lease = self.lease([(0, 100)])
        for line in ("r.write(b'1')", "r.write([], notify=(1, b''))", "r.submit_write(b'1').wait()"):
            self.fails(line, tarn.AuthError, "write=True")
        for line in ("r.read(bytearray(101))", "r.read(bytearray(1), 100)", "r.read(bytearray(1), 2**64 - 1)"):
            self.fails(line, tarn.SizeMismatch, "the lease has 100: give a range inside of it")
        self.fails("r.read([(0, bytearray(1)), (100, bytearray(1))])", tarn.SizeMismatch, "item 1")
        self.fails("r.read(b'1')", tarn.Invalid)
        self.assertEqual(self.peer("r.read(bytearray(0), 100)"), "None")
        lease.recall()

    def test_closed_window(self) -> None:
        lease = self.lease(write=True)
        whole = self.window.descriptor
        self.peer.reach(whole, "whole")
        self.assertEqual(whole, self.window.descriptor)
        self.window.close()
        self.window.close()
        for line in ("r.write(b'1')", "whole.read(bytearray(1))"):
            self.fails(line, tarn.Stale)
        self.assertTrue(self.window.closed)
        for call in (self.window.lease, self.window.notification, lambda: self.window.descriptor,
                     lambda: self.window.notification_fd, lambda: lease.descriptor, lambda: lease.expect(1),
                     lambda: lease.publish("x")):
            with self.assertRaises(tarn.Closed):
                call()
        lease.recall()
        # The next window has its number, and another token.
        with self.client.window(self.view):
            self.fails(f"c.reach({whole!r})", tarn.AuthError, "the token is not its own")

    def test_the_client_is_closed(self) -> None:
        lender = self.open()
        window = lender.window(self.memory(100))
        lease = window.lease(write=True)
        self.peer.reach(lease.descriptor)
        waiting = [Running(lambda: lease.expect(1, timeout=60)), Running(lambda: window.notification(60)),
                   Running(lambda: list(window))]
        until(lambda: lender._calls == 3)
        lender.close()
        for run in waiting:
            run.join(10)
        self.assertEqual([type(run.error) for run in waiting], [tarn.Closed, tarn.Closed, type(None)])
        self.assertIn(self.peer("r.write(b'1')").split(":")[0], ("Stale", "NodeDown"))
        with self.assertRaises(tarn.Closed):
            window.lease()
        lease.recall()
        window.close()

    def test_names(self) -> None:
        lease = self.window.lease()
        lease.publish(f"pages-{self.TRANSPORT}")
        self.peer.reach(f"pages-{self.TRANSPORT}")
        self.assertEqual(self.peer("r.nbytes"), str(BYTES))
        with self.window.lease() as other, self.assertRaises(tarn.Exists):
            other.publish(f"pages-{self.TRANSPORT}")
        for wrong in ("", "a b", "x" * 64):
            with self.assertRaises(tarn.Invalid):
                lease.publish(wrong)
        self.fails("c.reach('nobody')", tarn.NotFound, "nobody")


class OverShm(Both, StoreCase):
    TRANSPORT = "shm"

    def memory(self, nbytes: int) -> Any:
        return tarn.WindowMemory(nbytes)

    @unittest.skipIf(SANITIZED, "sanitizers: the peer is stopped in their code")
    def test_a_peer_that_stands_still(self) -> None:
        """In the middle of a copy. A handler of signals that leases does not wait for the lock of leases."""
        memory = memoryview(tarn.WindowMemory(LARGE))
        window = self.client.window(memory)
        self.addCleanup(window.close)
        self.peer(f"data = bytes({LARGE})")
        before = signal.signal(signal.SIGUSR1, lambda *_: window.lease().recall())
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        for _ in range(50):  # until it was stopped in a copy
            lease = window.lease(write=True)
            self.peer.reach(lease.descriptor)
            self.peer("n = 0")
            self.peer.begin("while True: r.write(data); n += 1; n == 3 and print('writing', flush=True)")
            self.assertEqual(self.peer.answer(), "writing")
            stop(self.peer.pid)
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            try:
                lease.recall(timeout=0.5)
                busy: Optional[tarn.Busy] = None
            except tarn.Busy as e:
                busy = e
            timer.join()
            os.kill(self.peer.pid, signal.SIGCONT)
            self.assertTrue(self.peer.answer().startswith("Stale: "))
            if busy:
                break
        self.assertIn(f"process {self.peer.pid} ", str(busy))
        with self.assertRaises(tarn.Stale):
            lease.expect(1)
        lease.recall()


class OverTcp(Both, StoreCase):
    TRANSPORT = "tcp"

    def memory(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    def test_ctrl_c_ends_a_read(self) -> None:
        """Of a lender that stands still."""
        self.peer(f"w = c.window(bytearray({BYTES}))")
        r = self.open(transports="tcp").reach(self.peer("w.descriptor").strip("'"))
        r.read(bytearray(BYTES))
        stop(self.peer.pid)
        self.addCleanup(os.kill, self.peer.pid, signal.SIGCONT)
        with ctrl_c(self, 0.2):
            r.read(bytearray(BYTES), timeout=60)

if __name__ == "__main__":
    unittest.main()
