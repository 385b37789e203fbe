# SPDX-License-Identifier: Apache-2.0
"""Windows: what a process lends, and another one reads and writes."""
from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import unittest
import weakref
from typing import Any, Callable, List, Optional, Type

import tarn
from store import StoreCase
from test_lifetime import SANITIZED, THREADS_SANITIZED, Running, until

try:
    import numpy as np
except ImportError:
    np = None

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
        self.peer("import asyncio")
        self.peer("async def both(): out = bytearray(3); await asyncio.gather(r.awrite(b'abc', notify=(1, b'')), "
                  "r.aread(out, 100)); return bytes(out)")
        self.assertEqual(self.peer("asyncio.run(both())"), repr(pattern(103)[100:]))
        lease.expect(1)
        self.assertEqual(bytes(self.view[:3]), b"abc")
        lease.recall()
        self.fails("asyncio.run(r.aread(bytearray(1)))", tarn.Stale)

    def test_killed_writer(self) -> None:
        lease = self.lease(write=True)
        expecting = Running(lambda: lease.expect(1, timeout=60))
        self.peer.kill()
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
            os.kill(self.peer.pid, signal.SIGSTOP)
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
        os.kill(self.peer.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.peer.pid, signal.SIGCONT)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            r.read(bytearray(BYTES), timeout=60)
        timer.join()


class Exporter:
    """An array that is known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Lending(StoreCase):
    """By two clients of this process."""

    def setUp(self) -> None:
        super().setUp()
        self.peer = self.open()

    def window(self, nbytes: int = 1000) -> tarn.Window:
        window = self.client.window(bytearray(pattern(nbytes)))
        self.addCleanup(window.close)
        return window

    def refused(self, call: Callable[[], Any], kind: Type[BaseException], *words: str) -> None:
        with self.assertRaises(kind) as e:
            call()
        for word in words:
            self.assertIn(word, str(e.exception))

    def test_what_can_be_lent(self) -> None:
        for value, kind, word in ((bytes(8), tarn.Invalid, "can be written to"), (bytearray(), tarn.Invalid, "0 bytes"),
                                  (tarn.Piece(1, 0), tarn.Invalid, "0 bytes"), (5, TypeError, "memory to write to"),
                                  (tarn.Piece(4096, 8, 16, 2), tarn.Unsupported, "make it contiguous"),
                                  ([bytearray(1), bytearray(1)], tarn.Unsupported, "make it contiguous")):
            self.refused(lambda: self.client.window(value), kind, word)
        for nbytes in (0, 1 << 62, -1):
            self.refused(lambda: tarn.WindowMemory(nbytes), tarn.Error)
        try:
            self.assertEqual(len(tarn.WindowMemory(5000, huge=True)), 5000)
        except (tarn.SystemFailure, tarn.NoMemory) as e:
            self.assertIn("reserve huge pages", str(e))
        memory = tarn.WindowMemory(5000)
        self.assertEqual((memory.nbytes, len(memory), bytes(memory)), (5000, 5000, bytes(5000)))
        with self.client.window(memory) as w:
            self.assertEqual((w.nbytes, w.closed, repr(w)), (5000, False, "<tarn.Window of 5000 bytes, open>"))
        self.assertTrue(w.closed)

    def test_window_memory_is_given_back(self) -> None:
        def mapped() -> int:
            with open("/proc/self/maps") as f:
                return f.read().count("memfd:tarn-window")

        before = mapped()
        memory = tarn.WindowMemory(5000)
        view = memoryview(memory)
        self.assertEqual(mapped(), before + 1)
        with self.client.window(memory):
            del memory
        self.assertEqual(mapped(), before + 1)  # the view keeps it
        del view
        self.assertEqual(mapped(), before)

    @unittest.skipIf(np is None, "numpy: not installed")
    def test_arrays_and_views(self) -> None:
        pages = np.frombuffer(tarn.WindowMemory(8 * 3 * 16 * 4), np.float32).reshape(8, 3, 16)
        pages[:] = np.arange(pages.size).reshape(pages.shape)
        with self.client.window(pages) as w:
            for items, expected in (([pages[3], pages[7]], pages[[3, 7]]), (pages[2:4], pages[2:4]),
                                    (pages[:, 1], pages[:, 1]), ([(64, 8), pages[0, 0, :2]], pages[0, [1, 0], :2]),
                                    ((pages[1, ::2], pages[5, 0]), np.concatenate([pages[1, ::2], pages[5, :1]])),
                                    ([(np.int64(0), 4), [pages[1, 0, :1]]], pages[:2, 0, 0])):
                lease = w.lease(items, write=True)
                r = self.peer.reach(lease.descriptor)
                out = np.zeros(expected.shape, np.float32)
                r.read(out)
                np.testing.assert_array_equal(out, expected)
                lease.recall()
            for wrong in (pages.copy(), [pages[0], np.zeros(1)], bytearray(1)):
                self.refused(lambda: w.lease(wrong), tarn.Invalid, "other memory")
            self.refused(lambda: w.lease(pages[:0]), tarn.Invalid, "no bytes")
        with self.client.window(pages[4:]) as w:
            self.refused(lambda: w.lease(pages[3]), tarn.Invalid, "other memory")
            self.assertEqual(w.nbytes, pages[4:].nbytes)
        exporter = Exporter(pages)
        with self.client.window(exporter) as w:
            lease = w.lease(pages[6])  # another view of the same memory
            out = np.zeros(48, np.float32)
            self.peer.reach(lease.descriptor).read(out)
            np.testing.assert_array_equal(out, pages[6].ravel())
        for wrong in (pages[:, :, ::2], pages.transpose(2, 1, 0), pages[::-1]):
            self.refused(lambda: self.client.window(wrong), tarn.Unsupported, "make it contiguous")

    def test_items_refused(self) -> None:
        w = self.window(100)
        for items, kind, word in (([], tarn.Invalid, "no bytes"), ([(0, 101)], tarn.Invalid, "inside of the window"),
                                  ([(0, 0)], tarn.Invalid, "some bytes"), ([(1, 2, 3)], tarn.Invalid, "3 numbers"),
                                  ((0, 10), TypeError, "(offset, bytes)"), ([(0, "1")], TypeError, "items: bytes"),
                                  ([(-1, 1)], tarn.Invalid, "items: offset"), ("x", TypeError, "give"),
                                  ([(90, 5, 6, 2)], tarn.Invalid, "inside of the window")):
            self.refused(lambda: w.lease(items), kind, word)
        self.refused(lambda: w.lease(write="yes"), TypeError, "write")
        self.refused(lambda: w.lease(ttl=0), tarn.Invalid, "ttl")

    def test_arguments_of_moves(self) -> None:
        w = self.window(100)
        lease = w.lease(write=True)
        r = self.peer.reach(lease.descriptor)
        for notify, kind in ((5, TypeError), ((5,), TypeError), ((5, "x"), TypeError), (("x", b""), TypeError),
                             ((-1, b""), tarn.Invalid), ((1, bytes(257)), tarn.Invalid)):
            self.refused(lambda: r.write(b"1", notify=notify), kind, "notify")
        self.refused(lambda: r.read([(0, bytearray(1)), bytearray(1)]), TypeError, "(offset, value)")
        self.refused(lambda: r.read(bytearray(1), -1), tarn.Invalid, "offset")
        r.read([])
        self.assertEqual(r.submit_read([]).wait(), [])
        self.assertEqual(repr(r), "<tarn.Reach of 100 bytes>")

    def test_other_memory_is_not_mapped(self) -> None:
        r = self.open(transports="shm").reach(self.window().descriptor)
        self.refused(lambda: r.read(bytearray(1)), tarn.NotReachable, "no transport")

    def test_where_peers_answer(self) -> None:
        with self.open(listen="127.0.0.1:0").window(bytearray(8)) as w:
            self.assertIn(" 127.0.0.1:", w.descriptor)
        for listen in ("nonsense", "127.0.0.1:99999"):
            self.refused(lambda: self.open(listen=listen).window(bytearray(8)), tarn.Error, listen)

    def test_a_full_queue(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        r = self.peer.reach(lease.descriptor)
        for _ in range(1024):
            r.write([], notify=(1, b""))
        self.refused(lambda: r.write(b"new", notify=(1, b"")), tarn.Again)
        op = r.submit_write(b"new", 3, notify=(1, b""))
        self.refused(op.wait, tarn.Again)
        lease.expect(1, n=1024)
        out = bytearray(6)
        r.read(out)
        self.assertEqual(out, b"newnew")

    def test_descriptors_that_were_cut_or_altered(self) -> None:
        text = self.window().descriptor
        for wrong in (text[:-1], text[:40], text.replace(" r ", " rw "), text.replace("tarn-window 1", "tarn-window 2"),
                      "", "a\nb", text + " x"):
            self.refused(lambda: self.peer.reach(wrong), tarn.Error)
            with self.assertRaises((tarn.Invalid, tarn.VersionError)):
                self.peer.reach(wrong)
        other = self.open(ns="other")
        self.refused(lambda: other.reach(text), tarn.Invalid, "namespace")
        self.refused(lambda: self.peer.reach(text.encode()), TypeError, "descriptor")

    def test_a_lease_ends_by_its_time(self) -> None:
        lease = self.window().lease(ttl=0.001)

        def ended() -> bool:
            try:
                self.peer.reach(lease.descriptor)
                return False
            except tarn.Stale:
                return True

        until(ended)
        lease.recall()

    def test_recall_ends_a_wait(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        run = Running(lambda: lease.expect(1, timeout=60))
        until(lambda: self.client._calls > 0)
        lease.recall()
        run.join(10)
        self.assertIsInstance(run.error, tarn.Stale)
        for call in (lambda: lease.expect(1), lambda: lease.descriptor, lambda: lease.publish("x")):
            self.refused(call, tarn.Stale, "make another one")
        lease.recall()

    def test_close_ends_waits(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        runs = [Running(lambda: lease.expect(1, timeout=60)), Running(lambda: w.notification(60)),
                Running(lambda: list(w))]
        until(lambda: self.client._calls == 3)
        w.close()
        for run in runs:
            run.join(10)
        self.assertEqual([type(run.error) for run in runs], [tarn.Closed, tarn.Closed, type(None)])

    def test_recall_in_a_handler_of_a_wait(self) -> None:
        """The lease is in use by the very thread, so it cannot end: Busy, not a deadlock."""
        lease = self.window().lease(write=True)
        before = signal.signal(signal.SIGUSR1, lambda *_: lease.recall(timeout=0.05))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        self.addCleanup(timer.join)
        self.refused(lambda: lease.expect(1, timeout=30), tarn.Busy, "other threads")
        lease.recall()

    def test_ctrl_c(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        for call in (lambda: lease.expect(1, timeout=60), lambda: w.notification(60)):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                call()
            timer.join()

    def test_context_managers(self) -> None:
        with self.client.window(bytearray(8)) as w:
            with w.lease() as lease:
                r = self.peer.reach(lease.descriptor)
                r.read(bytearray(8))
            self.refused(lambda: r.read(bytearray(8)), tarn.Stale)
            with self.assertRaises(ZeroDivisionError), w.lease() as lease:
                1 // 0
            self.refused(lambda: lease.descriptor, tarn.Stale)
        self.assertTrue(w.closed)

    def test_a_lease_in_use_is_not_recalled(self) -> None:
        """Busy; but an exception of the with block has precedence."""
        client = self.open(timeout=0.1)
        lease = client.window(bytearray(8)).lease()
        self.store.pause()
        self.addCleanup(self.store.resume)
        publishing = Running(lambda: lease.publish("in-use", timeout=20))
        for kind in (tarn.Busy, ZeroDivisionError):
            with self.assertRaises(kind):
                until(lambda: client._calls > 0)
                with lease:
                    1 // (kind is tarn.Busy)
        self.store.resume()
        publishing.join()
        self.assertIsNone(publishing.error)
        lease.recall()

    # --- what keeps what ---

    def test_the_memory_is_kept_while_it_is_lent(self) -> None:
        class Array(bytearray):
            pass

        value = Array(pattern(100))
        ref = weakref.ref(value)
        w = self.client.window(value)
        del value
        gc.collect()
        out = bytearray(100)
        self.peer.reach(w.descriptor).read(out)
        self.assertEqual(out, pattern(100))
        self.assertIsNotNone(ref())
        w.close()
        self.assertIsNone(ref())

    def test_what_nobody_refers_to_ends(self) -> None:
        w = self.client.window(bytearray(8))
        whole = w.descriptor
        lease = w.lease()
        del w
        gc.collect()
        r = self.peer.reach(lease.descriptor)  # the lease keeps the window
        self.peer.reach(whole)
        del lease
        gc.collect()
        self.refused(lambda: r.read(bytearray(8)), tarn.Stale)
        self.refused(lambda: self.peer.reach(whole), tarn.Error)

    def test_notifications_of_a_lease_that_is_gone(self) -> None:
        w = self.window()
        lease, kept = w.lease(write=True), w.lease(write=True)
        self.peer.reach(lease.descriptor).write([], notify=(1, b""))
        self.peer.reach(kept.descriptor).write([], notify=(2, b""))
        del lease
        self.assertEqual(w.notification().tag, 2)

    def test_a_reach_keeps_its_client(self) -> None:
        w = self.window(8)
        r = tarn.Client(self.store.uri).reach(w.descriptor)
        gc.collect()
        r.read(bytearray(8))
        client = self.open()
        r = client.reach(w.descriptor)
        client.close()
        self.refused(lambda: r.read(bytearray(8)), tarn.Closed)
        self.assertEqual(r.nbytes, 8)

    def test_an_operation_keeps_reach_and_memory(self) -> None:
        w = self.window(LARGE // 8)
        lease = w.lease(write=True)
        client = self.open(transports="tcp")
        for _ in range(5):
            client.reach(lease.descriptor).submit_read(bytearray(LARGE // 8))
            client.reach(lease.descriptor).submit_write(bytes(LARGE // 8), notify=(1, b"".join([b"x"] * 5)))
            gc.collect()
        lease.expect(1, n=5, timeout=60)
        client.close()

    def test_any_order_of_ends(self) -> None:
        """At the interpreter's end, too."""
        code = """
import gc, itertools, sys, tarn
for order in itertools.permutations(range(5)):
    c, p = tarn.Client(sys.argv[1]), tarn.Client(sys.argv[1])
    w = c.window(tarn.WindowMemory(4096))
    l = w.lease(write=True)
    r = p.reach(l.descriptor)
    r.write(b"1", notify=(1, b""))
    all = [c, p, w, l, r]
    del c, p, w, l, r
    for i in order:
        all[i] = None
        gc.collect()
c = tarn.Client(sys.argv[1])
w = c.window(bytearray(100)); l = w.lease(); r = tarn.Client(sys.argv[1]).reach(l.descriptor)
class Late:
    pass
late = Late(); late.me = late; late.all = (r, l, w)
"""
        path = os.pathsep.join(p for p in sys.path if p)
        done = subprocess.run([sys.executable, "-c", code, self.store.uri], capture_output=True, text=True, timeout=200,
                              env={**os.environ, "PYTHONPATH": path})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    @unittest.skipIf(THREADS_SANITIZED, "ThreadSanitizer: no threads in the child of a process that has some")
    def test_fork(self) -> None:
        memory = tarn.WindowMemory(8)
        w = self.client.window(memory)
        self.addCleanup(w.close)
        lease = w.lease(write=True)
        r = self.peer.reach(lease.descriptor)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                for call in (w.lease, lambda: w.descriptor, lambda: lease.expect(1), lambda: r.read(bytearray(8)),
                             lambda: r.submit_read(bytearray(8)), lambda: self.client.window(bytearray(1))):
                    try:
                        call()
                        raise AssertionError("no exception")
                    except tarn.Forked:
                        pass
                lease.recall()
                w.close()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        r.write(b"parent", notify=(1, b""))
        lease.expect(1)
        self.assertEqual(bytes(memory)[:6], b"parent")

    def test_references(self) -> None:
        memory = bytearray(100)
        client, peer, data = self.client, self.peer, bytearray(10)

        def work() -> None:
            with client.window(memory) as w, w.lease([(0, 10), (50, 10)], True) as lease:
                r = peer.reach(lease.descriptor)
                r.write(data, notify=(1, data))
                r.submit_read([(0, data), (10, data)]).wait()
                w.notification()
                w.descriptor
                for wrong in (lambda: r.read([(0, data), (1, 1)]), lambda: r.write(data, 1000), lambda: w.lease([data]),
                              lambda: client.window([memory, data]), lambda: r.write(data, notify=(data, data))):
                    with self.assertRaises((tarn.Error, TypeError)):
                        wrong()

        work()
        gc.collect()
        before = [sys.getrefcount(o) for o in (memory, client, peer, data)]
        for _ in range(20):
            work()
        gc.collect()
        self.assertEqual([sys.getrefcount(o) for o in (memory, client, peer, data)], before)
        memory.append(1)  # no buffer is exported any more
        data.append(1)

    def test_notifications_while_leases_go(self) -> None:
        """A notification has a lease that is alive, or is dropped with it."""
        w = self.window()
        kept = w.lease(write=True)
        seen: List[Any] = []
        run = Running(lambda: seen.extend((n.tag, n.lease.descriptor) for n in w))
        for _ in range(300):
            lease = w.lease(write=True)
            self.peer.reach(lease.descriptor).write([], notify=(1, b""))
            del lease
        self.peer.reach(kept.descriptor).write([], notify=(2, b""))
        until(lambda: bool(seen) and seen[-1][0] == 2)
        w.close()
        run.join()
        self.assertIsNone(run.error)

    def test_threads(self) -> None:
        """Leases and moves of many threads at once, while windows come and go."""
        stop = threading.Event()

        def lend(i: int) -> None:
            while not stop.is_set():
                with self.client.window(tarn.WindowMemory(4096)) as w, w.lease(write=True) as lease:
                    r = self.peer.reach(lease.descriptor)
                    r.write(bytes([i]) * 4096, notify=(i, b""))
                    lease.expect(i)
                    out = bytearray(4096)
                    r.read(out)
                    if out != bytes([i]) * 4096:
                        raise AssertionError("other bytes")

        runs = [Running(lambda i=i: lend(i)) for i in range(4)]  # type: ignore[misc]
        threading.Event().wait(1.0)  # how long it runs, not synchronisation
        stop.set()
        for run in runs:
            run.join(60)
            self.assertIsNone(run.error)


class Types(unittest.TestCase):
    def test_not_made_by_hand(self) -> None:
        for call in (lambda: tarn.Lease(), lambda: tarn.Window(None, bytearray(1)),  # type: ignore[arg-type]
                     lambda: tarn.Reach("x", "y"), lambda: tarn.Window.__new__(tarn.Window),  # type: ignore[arg-type]
                     lambda: tarn.Reach.__new__(tarn.Reach)):
            with self.assertRaises(TypeError):
                call()


if __name__ == "__main__":
    unittest.main()
