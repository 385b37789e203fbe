# SPDX-License-Identifier: Apache-2.0
"""Windows between two clients of one process: what can be lent and leased, what ends what, and what keeps what."""
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
from typing import Any, Callable, List, Type

import tarn
from store import StoreCase, ctrl_c
from test_lifetime import THREADS_SANITIZED, Running, until
from test_windows import LARGE, pattern

try:
    import numpy as np
except ImportError:
    np = None


class Exporter:
    """An array that is known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


async def awaits(lease: tarn.Lease) -> None:
    await lease.aexpect(1, timeout=60)


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
        waiting = self.window().lease(write=True, ttl=0.2)
        self.refused(lambda: asyncio.run(awaits(waiting)), tarn.Stale, "has ended")

    def test_recall_ends_a_wait(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        runs = [Running(lambda: lease.expect(1, timeout=60)), Running(lambda: asyncio.run(awaits(lease)))]
        until(lambda: self.client._calls > 0 and self.client._flying() == 1)
        lease.recall()
        for run in runs:
            run.join(10)
            self.assertIsInstance(run.error, tarn.Stale)
        for call in (lambda: lease.expect(1), lambda: lease.aexpect(1), lambda: lease.descriptor,
                     lambda: lease.publish("x")):
            self.refused(call, tarn.Stale, "make another one")
        lease.recall()

    def test_close_ends_waits(self) -> None:
        w = self.window()
        lease = w.lease(write=True)
        runs = [Running(lambda: lease.expect(1, timeout=60)), Running(lambda: w.notification(60)),
                Running(lambda: list(w)), Running(lambda: asyncio.run(awaits(lease)))]
        until(lambda: self.client._calls == 3 and self.client._flying() == 1)
        w.close()
        for run in runs:
            run.join(10)
        self.assertEqual([type(run.error) for run in runs], [tarn.Closed, tarn.Closed, type(None), tarn.Stale])

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
            with ctrl_c(self, 0.1):
                call()

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
                     lambda: tarn.Reach.__new__(tarn.Reach), lambda: tarn.Channel("x", "y"),  # type: ignore[arg-type]
                     lambda: tarn.Channel.__new__(tarn.Channel)):
            with self.assertRaises(TypeError):
                call()


if __name__ == "__main__":
    unittest.main()
