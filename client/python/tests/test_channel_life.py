# SPDX-License-Identifier: Apache-2.0
"""Channels between two clients of one process: what ends what, what keeps what, and who may connect."""
from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import sys
import unittest
import weakref
from typing import Any, Callable, List, Type

import tarn
from store import StoreCase
from test_lifetime import THREADS_SANITIZED, Running, run_python, until
from test_windows import pattern

LARGE = 1 << 16


class Memory(bytearray):
    """One that weakref takes."""


class Life(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.open()
        self.listener = self.client.listen()
        self.there = self.other.connect(self.listener.address)
        self.here = self.listener.accept()

    def raises(self, call: Callable[[], Any], kind: Type[BaseException], *words: str) -> None:
        with self.assertRaises(kind) as e:
            call()
        for word in words:
            self.assertIn(word, str(e.exception))

    # --- what keeps what ---

    def test_an_operation_that_is_dropped_keeps_its_memory(self) -> None:
        for nbytes in (8, LARGE):
            memory = Memory(nbytes)
            view = memoryview(memory)
            window = self.client.window(view)
            alive = weakref.ref(memory)
            self.here.submit_recv_into(view, 1)
            del view, memory
            gc.collect()
            self.assertIsNotNone(alive())
            self.there.send(pattern(nbytes), 1)
            until(lambda: not self.client._drain() and self.client._flying() == 0)
            self.assertEqual(alive(), pattern(nbytes))
            window.close()
            self.assertIsNone(alive())

    def test_a_coroutine_that_is_dropped(self) -> None:
        """It has not begun, but for lease.aexpect(), which waits from the call on."""
        with self.client.window(bytearray(8)) as window, window.lease(write=True) as lease:
            with self.assertWarns(RuntimeWarning):
                self.here.arecv(1), lease.aexpect(1)
                gc.collect()
            self.assertEqual(self.client._flying(), 1)

    def test_a_channel_that_is_dropped_is_closed(self) -> None:
        """Once nothing waits in it."""
        op = self.here.submit_recv_into(bytearray(8), 1)
        closed = Running(lambda: self.there.recv(2, timeout=30))
        del self.here
        gc.collect()
        self.there.send(b"12", 1)
        self.assertEqual(op.wait(), 2)
        del op
        closed.join()
        self.assertIsInstance(closed.error, tarn.NodeDown)

    def test_no_copies(self) -> None:
        for o in (self.here, self.here.submit_send(b"1")):
            self.raises(lambda: pickle.dumps(o), TypeError, "make one in each process")

    def test_references(self) -> None:
        memory, client, other, data = bytearray(LARGE), self.client, self.other, bytearray(LARGE)
        here, there = self.here, self.there

        async def awaited() -> None:
            await asyncio.gather(here.arecv_into([data[:8], data[:9]]), there.asend((data[:8], data[:1])))
            task = asyncio.ensure_future(here.arecv_into(memory))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        def work() -> None:
            with client.window(memory):
                op = there.submit_send(data)
                here.recv_into(memory)
                op.wait()
                asyncio.run(awaited())
                with other.connect(self.listener.address) as one, self.listener.accept() as two:
                    two.submit_recv_into([memory])
                for wrong in (lambda: here.send([data, 5]), lambda: here.recv_into([memory, b"1"]),
                              lambda: here.recv_into(memory, memory), lambda: here.recv_into(data),
                              lambda: one.send(data), lambda: two.recv_into(memory),
                              lambda: here.recv_into(memory, timeout=0.001)):
                    with self.assertRaises((tarn.Error, TypeError)):
                        wrong()
                with self.assertRaises(tarn.SizeMismatch):
                    op = there.submit_send(memory)
                    here.recv_into([data[:8]])
            with self.assertRaises(tarn.SizeMismatch):
                op.wait()
            client._deliver()

        def counts() -> List[int]:
            gc.collect()
            return [sys.getrefcount(o) for o in (memory, client, other, data, here, there)]

        work()
        before = counts()
        for _ in range(10):
            work()
        self.assertEqual(counts(), before)
        memory.append(1)  # no buffer is exported any more
        data.append(1)

    # --- close ---

    def test_the_window_is_closed(self) -> None:
        """Receives into it are canceled: nothing is written to memory that is not lent any more."""
        memory = bytearray(LARGE)
        window = self.client.window(memory)
        op = self.here.submit_recv_into(memoryview(memory)[4:], 1)
        small = self.here.submit_recv_into(memoryview(memory)[:4], 2)
        waiting = Running(lambda: self.here.recv_into(memory, 3))

        async def awaiting() -> None:
            task = asyncio.ensure_future(self.here.arecv_into(memory, 4))
            while self.client._flying() < 4:
                await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, window.close)
            with self.assertRaises(tarn.Canceled):
                await task

        asyncio.run(awaiting())
        self.raises(op.wait, tarn.Canceled)
        waiting.join()
        self.assertIsInstance(waiting.error, tarn.Canceled)
        self.there.send(b"1234", 2)  # needs no window
        self.assertEqual(small.wait(), 4)
        for tag in (1, 3, 4):
            self.raises(lambda: self.there.send(bytes(LARGE - 4), tag, timeout=0.02), tarn.Timeout)
        self.raises(lambda: self.here.recv_into(memory, 1), tarn.Invalid, "Client.window()")
        self.assertEqual(memory, b"1234" + bytes(LARGE - 4))

    def test_no_receive_begins_in_a_window_that_is_being_closed(self) -> None:
        """close() waits for a call of another thread here, which takes it up to 50 ms."""
        seen: List[Type[BaseException]] = []
        while tarn.Closed not in seen:
            self.assertLess(len(seen), 100)
            memory = bytearray(LARGE)
            window = self.client.window(memory)
            waiting = Running(lambda: window.notification(60))
            until(lambda: self.client._calls == 1)
            closing = Running(window.close)
            until(lambda: window.closed)
            with self.assertRaises((tarn.Closed, tarn.Invalid)) as e:  # Invalid: it has been closed by now
                self.here.recv_into(memory, timeout=20)
            seen.append(type(e.exception))
            for run in (waiting, closing):
                run.join()
            self.assertIsNone(closing.error)

    def test_windows_that_are_dropped_under_receives(self) -> None:
        """By several threads at once, while messages come."""
        stop: List[bool] = []

        def sends() -> None:
            while not stop:
                try:
                    self.there.send(pattern(LARGE), timeout=0.1)
                except (tarn.Timeout, tarn.Stale):
                    pass

        def receives() -> None:
            for i in range(40):
                memory = bytearray(LARGE)
                window = self.client.window(memory)
                op = self.here.submit_recv_into(memory)
                if i % 2:
                    window.close()
                del window
                try:
                    op.wait()
                    self.assertEqual(memory, pattern(LARGE))
                except (tarn.Canceled, tarn.Again):
                    pass

        sending, runs = Running(sends), [Running(receives) for _ in range(3)]
        for run in runs:
            run.join(60)
            self.assertIsNone(run.error)
        stop.append(True)
        sending.join()
        self.assertIsNone(sending.error)

    def test_the_client_is_closed(self) -> None:
        window = self.client.window(bytearray(LARGE))
        lease = window.lease(write=True)

        async def awaiting(call: Callable[[], Any]) -> None:
            await call()

        waiting = [Running(lambda: self.listener.accept(60)), Running(lambda: self.here.recv(1, timeout=60)),
                   Running(lambda: self.here.recv(2, LARGE, timeout=60)),
                   Running(lambda: self.here.send(b"1", timeout=60)),
                   *(Running(lambda c=call: asyncio.run(awaiting(c))) for call in
                     (lambda: self.listener.aaccept(60), lambda: self.here.arecv(3, timeout=60),
                      lambda: lease.aexpect(1, timeout=60)))]
        until(lambda: self.client._flying() == 5 and len(self.client._futures) == 3)
        self.client.close()
        for run in waiting:
            run.join(10)
            self.assertIsInstance(run.error, (tarn.Closed, tarn.Canceled))
        for call in (self.listener.accept, lambda: self.listener.accept_fd, self.client.listen, self.here.recv,
                     lambda: self.client.connect(self.listener.address), lambda: self.here.send(b"1"),
                     lambda: asyncio.run(self.listener.aaccept()), lambda: asyncio.run(self.here.asend(b"1"))):
            self.raises(call, tarn.Closed)
        self.assertTrue(self.here.closed)
        self.here.close()
        self.raises(lambda: self.there.recv(timeout=20), tarn.NodeDown)

    def test_fork(self) -> None:
        if THREADS_SANITIZED:
            self.skipTest("fork: ThreadSanitizer does not follow a child of a process with threads")
        op = self.here.submit_recv_into(bytearray(8), 1)
        pid = os.fork()
        if pid == 0:
            told = 0
            for call in (lambda: self.here.send(b"1"), self.here.recv, self.listener.accept,
                         lambda: self.other.connect(self.listener.address), lambda: asyncio.run(self.here.asend(b"1"))):
                try:
                    call()
                except tarn.Forked:
                    told += 1
            self.here.close()
            del self.here, self.there
            os._exit(told)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 5)
        self.there.send(b"goes on", 1)
        self.assertEqual(op.wait(), 7)

    def test_the_interpreter_ends_with_open_channels(self) -> None:
        # Python itself may abort when a daemon thread writes an exception to stderr while the interpreter ends.
        code = ("import sys, tarn, threading; c = tarn.Client(sys.argv[1], timeout=60); ch = c.connect(sys.argv[2])\n"
                "def recv():\n"
                "    try: ch.recv(1)\n"
                "    except tarn.Error: pass\n"
                "threading.Thread(target=recv, daemon=True).start(); op = ch.submit_send(b'1', 2)\n"
                "print(ch.recv(3).tobytes())")
        ends = Running(lambda: run_python(code, self.store.uri, self.listener.address))
        channel = self.listener.accept(20)
        channel.send(b"end", 3, timeout=20)
        self.raises(lambda: channel.recv(4, timeout=20), tarn.NodeDown)
        ends.join()
        self.assertEqual((ends.result.returncode, ends.result.stdout), (0, "b'end'\n"), ends.result.stderr)

    # --- asyncio ---

    def test_accepting_in_several_loops(self) -> None:
        async def accept() -> List[Any]:
            return [c.peer.hello for c in await asyncio.gather(*(self.listener.aaccept(20) for _ in range(3)))]

        runs = [Running(lambda: asyncio.run(accept())) for _ in range(2)]
        until(lambda: len(self.client._futures) == 6)
        channels = [self.other.connect(self.listener.path, hello=b"%d" % i) for i in range(6)]
        for run in runs:
            run.join()
        self.assertEqual(sorted(sum((run.result for run in runs), [])), [b"%d" % i for i in range(6)])
        self.assertEqual((len(channels), self.client._futures), (6, {}))

    def test_connecting(self) -> None:
        async def connect() -> None:
            channel = await self.other.aconnect(self.listener.address, hello=b"awaited")
            accepted = await self.listener.aaccept(20)
            self.assertEqual((accepted.peer.hello, channel.peer.address), (b"awaited", self.listener.address))
            with self.assertRaises(tarn.Invalid):
                await self.other.aconnect(self.listener.address, hello=bytes(257))
            with self.assertRaises(tarn.NodeDown):
                await self.other.aconnect("127.0.0.1:1")
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                task = asyncio.ensure_future(self.other.aconnect(f"127.0.0.1:{silent.getsockname()[1]}", timeout=60))
                while self.other._flying() == 0:
                    await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        asyncio.run(connect())
        self.assertEqual(self.other._flying(), 0)

    def test_a_canceled_accept_has_accepted_nothing(self) -> None:
        async def cancel() -> None:
            task = asyncio.ensure_future(self.listener.aaccept(60))
            while not self.client._futures:
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(tarn.Timeout):
                await self.listener.aaccept(0.02)

        asyncio.run(cancel())
        later = self.other.connect(self.listener.address, hello=b"later")
        self.assertEqual(self.listener.accept().peer.hello, b"later")
        self.assertEqual((self.client._futures, later.closed), ({}, False))

    # --- who may connect ---

    def test_secrets(self) -> None:
        everywhere = tarn.Client(self.store.uri, listen="0.0.0.0:0", secret="one")
        self.addCleanup(everywhere.close)
        address = "127.0.0.1:" + everywhere.listen().address.rpartition(":")[2]
        self.raises(lambda: self.open(secret="two").connect(address), tarn.AuthError, "Client(secret=)")
        self.open(secret="one").connect(address).close()

    # --- arguments ---

    def test_room(self) -> None:
        for nbytes, kind in ((-1, tarn.Invalid), ("8", TypeError), (2.0, TypeError), (None, TypeError),
                             ([8, -1], tarn.Invalid), ([8, "8"], TypeError), (1 << 62, tarn.Error)):
            self.raises(lambda: self.here.recv(0, nbytes), kind)
            self.raises(lambda: asyncio.run(self.here.arecv(0, nbytes)), kind)
        self.raises(lambda: self.here.recv_into(bytes(8)), tarn.Invalid)
        self.raises(lambda: self.here.recv_into(memoryview(b"8")), tarn.Invalid)
        self.raises(lambda: self.here.recv_into(bytearray(4097)), tarn.Invalid, "Client.window()")
        for call in (self.here.send, self.here.recv_into):
            self.raises(lambda: call(bytearray(1), -1), tarn.Invalid)
            self.raises(lambda: call(bytearray(1), "1"), TypeError)
            self.raises(lambda: call(None), TypeError)
            self.raises(lambda: call(bytearray(1), timeout=-1), tarn.Invalid)
        self.assertEqual(self.client._flying(), 0)


if __name__ == "__main__":
    unittest.main()
