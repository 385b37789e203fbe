# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes: what one sends, the other receives; and what happens when either ends, stands still
or gives up. test_channel_life.py has what needs one process."""
from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
import unittest
from typing import Any, Awaitable, Callable, Type

import tarn
from store import StoreCase, ctrl_c, stop
from test_lifetime import SANITIZED, Running, until
from test_windows import LARGE, Peer, pattern

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None

ROOM = 1 << 20
SIZES = (0, 1, 4096, 4097, 65536, ROOM)
MANY = pattern(ROOM)
# What the peer sends and receives with.
HELPERS = """
import asyncio; from test_windows import pattern; MANY = pattern(1 << 20)
def answers(n, tag): [ch.send(ch.recv(tag, 1 << 20), tag) for _ in range(n)]
"""


class Both:
    """Over a channel to another process, where it is `ch`."""

    TRANSPORT: str

    def memory(self, nbytes: int) -> Any:
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.peer = Peer(self.store.uri, self.TRANSPORT)
        self.addCleanup(self.peer.close)
        self.listener = self.client.listen()
        for line in HELPERS.strip().splitlines():
            self.does(line)
        self.does(f"ch = c.connect({self.listener.address!r}, hello=b'gpu 3')")
        self.channel = self.listener.accept(20)
        self.addCleanup(lambda: self.channel.close())
        self.view = memoryview(self.memory(ROOM))
        self.window = self.client.window(self.view)
        self.addCleanup(self.window.close)

    def does(self, line: str, said: str = "None") -> None:
        self.assertEqual(self.peer(line), said)

    def raises(self, call: Callable[[], Any], kind: Type[tarn.Error], *words: str) -> Any:
        with self.assertRaises(kind) as e:
            call()
        for word in words:
            self.assertIn(word, str(e.exception))
        return e.exception

    def fails(self, line: str, kind: Type[tarn.Error]) -> None:
        said = self.peer(line)
        self.assertTrue(said.startswith(kind.__name__ + ": "), said)

    # --- messages ---

    def test_all_sizes_both_ways(self) -> None:
        self.peer.begin(f"answers({2 * len(SIZES)}, 7)")
        for nbytes in SIZES:
            data = pattern(nbytes)
            self.channel.send(data, 7)
            self.view[:] = b"\xee" * ROOM
            self.assertEqual(self.channel.recv_into(self.view, 7), nbytes)
            self.assertEqual(bytes(self.view[:nbytes]), data)
            self.assertEqual(bytes(self.view[nbytes:nbytes + 4]), b"\xee" * min(4, ROOM - nbytes))
            self.channel.send(data, 7)
            got = self.channel.recv(7, nbytes)
            self.assertEqual((bytes(got), got.readonly), (data, False))
        self.assertEqual(self.peer.answer(), "None")

    def test_vectors(self) -> None:
        self.does("def back(n, each): ch.send(ch.recv(1, [each] * n), 2)")
        for n, each in ((0, 0), (1, 5), (1, 9000), (3, 4), (8192, 0), (8192, 16)):
            self.peer.begin(f"back({n}, {each})")
            parts = [self.view[i * each:i * each + (i % (each + 1))] for i in range(n)]
            for i, part in enumerate(parts):
                part[:] = MANY[i:i + len(part)]
            expected = [bytes(part) for part in parts]
            self.channel.send(parts, 1)
            for part in parts:
                part[:] = bytes(len(part))
            room = [self.view[i * each:(i + 1) * each] for i in range(n)]
            self.assertEqual(self.channel.recv_into(room, 2), [len(e) for e in expected])
            self.assertEqual([bytes(r[:len(e)]) for r, e in zip(room, expected)], expected)
            self.assertEqual(self.peer.answer(), "None")
        for call in (self.channel.send, self.channel.recv_into):
            self.raises(lambda: call([bytearray(0)] * 8193), tarn.Invalid, "8193 items: at most 8192")

    def test_arrays(self) -> None:
        if np is None:
            self.skipTest("numpy: not installed")
        self.peer.begin("answers(4, 1)")
        grid = np.frombuffer(self.view, "f4").reshape(512, 512)
        for array in (np.arange(1000.0), np.arange(90000, dtype="i2").reshape(300, 300)[::2, 5:], np.array(7, "u8"),
                      np.zeros((0, 4))):
            self.channel.send(array, 1)
            grid[:] = 0
            into = grid[:array.nbytes // 200 + 1, ::-7] if array.ndim < 2 else grid[3:-3]  # of any strides
            self.assertEqual(self.channel.recv_into(into, 1), array.nbytes)
            self.assertEqual(into.tobytes()[:array.nbytes], array.tobytes())
        self.assertEqual(self.peer.answer(), "None")

    def test_tensors(self) -> None:
        if torch is None:
            self.skipTest("torch: not installed")
        self.peer.begin("answers(2, 1)")
        tensor, room = torch.arange(9000.0).reshape(90, 100).t(), torch.frombuffer(self.view, dtype=torch.float32)
        for part in (tensor[:5], tensor):
            self.channel.send(part, 1)
            self.assertEqual(self.channel.recv_into(room[1:part.numel() + 1], 1), part.numel() * 4)
            self.assertTrue(torch.equal(room[1:part.numel() + 1].reshape(part.shape), part))
        self.assertEqual(self.peer.answer(), "None")

    def test_order_and_tags(self) -> None:
        self.does("ops = [ch.submit_send(bytes([i]), i % 2) for i in range(20)]")
        odd = [self.channel.recv(1)[0] for _ in range(10)]
        self.does("[op.done for op in ops[0::2]]", repr([False] * 10))  # nobody has received those
        even = [self.channel.recv(0)[0] for _ in range(10)]
        self.assertEqual((even, odd), (list(range(0, 20, 2)), list(range(1, 20, 2))))
        self.does("[op.wait() for op in reversed(ops)]", repr([None] * 20))
        self.does("[op.done for op in ops]", repr([True] * 20))
        self.does("ops[0].wait()")  # as often as one likes

    def test_both_directions_at_once(self) -> None:
        self.peer.begin(f"ops = [f() for _ in range(8) for f in (lambda: ch.submit_send(MANY, 1), "
                        f"lambda: ch.submit_recv_into(bytearray(9), 2))]; [op.wait() for op in ops]")
        sends = [self.channel.submit_send(b"123456789", 2) for _ in range(8)]
        for _ in range(8):
            self.assertEqual(self.channel.recv_into(self.view, 1), ROOM)
            self.assertEqual(self.view, MANY)
            self.view[:] = bytes(ROOM)
        for op in sends:
            op.wait()
        self.assertEqual(self.peer.answer(), "None")

    def test_a_longer_message(self) -> None:
        """Both ends are told, and no byte is written, within or beyond."""
        for room, sent in ((0, 1), (8, 9), (4096, 4097), (5000, 5001), (5000, ROOM), (8, ROOM)):
            self.view[:] = b"\xee" * ROOM
            op = self.channel.submit_recv_into(self.view[64:64 + room], 1)
            self.fails(f"ch.send(pattern({sent}), 1)", tarn.SizeMismatch)
            e = self.raises(op.wait, tarn.SizeMismatch, f"{sent} bytes", f"at most {room}")
            self.assertEqual((e.nbytes, bytes(self.view)), (sent, b"\xee" * ROOM))
        op = self.channel.submit_recv_into([self.view[:8], self.view[8:16]], 1)
        self.fails("ch.send([b'123', b'123456789'], 1)", tarn.SizeMismatch)
        self.assertEqual(self.raises(op.wait, tarn.SizeMismatch).nbytes, [3, 9])
        op = self.channel.submit_recv_into([bytearray(8)], 1)
        self.fails("ch.send([b'1', b'2'], 1)", tarn.SizeMismatch)
        self.assertIsNone(self.raises(op.wait, tarn.SizeMismatch, "2 items").nbytes)
        self.assertEqual(bytes(self.view), b"\xee" * ROOM)
        self.peer.begin("answers(1, 1)")
        self.channel.send(b"goes on", 1)
        self.assertEqual(self.channel.recv(1), b"goes on")

    def test_several_threads(self) -> None:
        """Each sends and receives by a tag of its own, and all by a tag that they share."""
        threads, rounds = 4, 25
        self.does(f"import threading; ts = [threading.Thread(target=answers, args=({rounds}, t)) for t in "
                  f"range({threads})] + [threading.Thread(target=answers, args=({rounds}, 99)) for t in "
                  f"range({threads})]; [t.start() for t in ts]")
        seen: Any = []

        def own(tag: int) -> None:
            for i in range(rounds):
                data = pattern(tag * 3000 + i)
                self.channel.send(data, tag)
                self.assertEqual(self.channel.recv(tag, 16384), data)

        def shared(thread: int) -> None:
            for i in range(rounds):
                self.channel.send(b"%d %d" % (thread, i), 99)
                seen.append(bytes(self.channel.recv(99)))

        runs = [Running(lambda t=t: own(t)) for t in range(threads)]
        runs += [Running(lambda t=t: shared(t)) for t in range(threads)]
        for run in runs:
            run.join(60)
            self.assertIsNone(run.error)
        self.assertEqual(sorted(seen), sorted(b"%d %d" % (t, i) for t in range(threads) for i in range(rounds)))
        self.does("[t.join() for t in ts].count(None)", str(2 * threads))

    # --- connecting ---

    def test_peers(self) -> None:
        peer = self.channel.peer
        self.assertEqual((peer.ip, peer.hello), ("127.0.0.1", b"gpu 3"))
        self.does("ch.peer.address", repr(self.listener.address))
        self.does(f"more = c.connect({self.listener.path!r}, hello=bytearray(256))")
        more = self.listener.accept(20)
        self.assertEqual((more.peer.id, more.peer.hello), (peer.id, bytes(256)))
        self.fails(f"c.connect({self.listener.path!r}, hello=bytes(257))", tarn.Invalid)
        other = self.open().connect(self.listener.address)
        self.assertNotEqual(self.listener.accept(20).peer.id, peer.id)
        self.assertIn("open", repr(other))
        more.close()
        self.assertEqual(more.peer.id, peer.id)  # also of a closed one
        self.assertIn("closed", repr(more))

    def test_half_open_connections_block_nobody(self) -> None:
        host, port = self.listener.address.rsplit(":", 1)
        for said in (b"", b"*2\r\n$7\r\nCONN", b"nonsense\r\n"):
            s = socket.create_connection((host, int(port)))
            self.addCleanup(s.close)
            s.sendall(said)
        self.raises(lambda: self.listener.accept(0.05), tarn.Timeout, self.listener.address)
        self.does(f"more = c.connect({self.listener.address!r})")
        self.listener.accept(20)

    def test_nobody_to_connect_to(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.raises(lambda: self.client.connect(f"127.0.0.1:{s.getsockname()[1]}"), tarn.NodeDown)
        lender = self.open()
        with lender.window(bytearray(8)) as w:
            address = next(word for word in w.descriptor.split() if word.startswith("127.0.0.1:"))
            self.raises(lambda: self.client.connect(address), tarn.NotFound, "Client.listen()")
        for wrong in ("", "x", "127.0.0.1", "/" * 200):
            self.raises(lambda: self.client.connect(wrong), tarn.Error)

    # --- ends ---

    def test_the_peer_is_killed(self) -> None:
        """Before it is accepted, under a send, and under receives of each kind."""
        other = Peer(self.store.uri, self.TRANSPORT)
        self.addCleanup(other.close)
        self.assertEqual(other(f"ch = c.connect({self.listener.address!r}); op = ch.submit_send(b'1')"), "None")
        other.kill()

        try:
            with self.listener.accept(0.05) as channel:
                self.raises(lambda: channel.recv(timeout=20), tarn.NodeDown)
        except tarn.Timeout:
            pass  # it was noticed before, so there is nothing to accept
        calls = [lambda: self.channel.send(bytes(10), 1, timeout=60),
                 lambda: self.channel.send(self.view, 2, timeout=60),
                 lambda: self.channel.recv(3, timeout=60), lambda: self.channel.recv(4, ROOM, timeout=60),
                 lambda: self.channel.recv_into(self.view, 5, timeout=60),
                 lambda: asyncio.run(self.channel.asend(b"1", 6, timeout=60)),
                 lambda: asyncio.run(self.channel.arecv(7, timeout=60))]
        runs = [Running(call) for call in calls]
        until(lambda: self.client._flying() == len(calls))
        self.peer.kill()
        for run in runs:
            run.join(40)
            self.assertIsInstance(run.error, tarn.NodeDown)
            self.assertIn(self.channel.peer.address, str(run.error))
        for call in calls:
            self.raises(call, tarn.NodeDown)

    def test_the_peer_is_killed_while_messages_flow(self) -> None:
        self.peer.begin("while True: ch.send(MANY, 1)")
        for _ in range(3):
            self.channel.recv_into(self.view, 1, timeout=20)
        self.peer.kill()
        with self.assertRaises((tarn.NodeDown, tarn.Again)):
            while True:
                self.assertEqual(self.channel.recv_into(self.view, 1, timeout=20), ROOM)
                self.assertEqual(self.view, MANY)

    def test_the_peer_stands_still(self) -> None:
        stop(self.peer.pid)
        try:
            self.raises(lambda: self.channel.send(b"1", 1, timeout=0.1), tarn.Timeout, "tag 1")
            self.raises(lambda: self.channel.recv_into(bytearray(1), 1, timeout=0.1), tarn.Timeout)
            self.raises(lambda: self.channel.recv_into(self.view, 1, timeout=0.1), tarn.Timeout)
            self.raises(lambda: asyncio.run(self.channel.asend(b"1", 1, timeout=0.1)), tarn.Timeout)
            self.raises(lambda: asyncio.run(self.channel.arecv(1, ROOM, timeout=0.1)), tarn.Timeout)
        finally:
            os.kill(self.peer.pid, signal.SIGCONT)
        self.peer.begin("answers(1, 1)")
        self.channel.send(b"goes on", 1, timeout=20)
        self.assertEqual(self.channel.recv(1, timeout=20), b"goes on")

    def test_the_peer_closes_it(self) -> None:
        waiting = Running(lambda: self.channel.recv_into(self.view, timeout=60))
        until(lambda: self.client._flying() == 1)
        self.does("ch.close(); ch.close()")
        waiting.join()
        self.assertIsInstance(waiting.error, tarn.NodeDown)
        self.fails("ch.send(b'1')", tarn.Closed)
        self.fails("ch.submit_recv_into(bytearray(1))", tarn.Closed)

    def test_with_left_by_an_exception(self) -> None:
        waiting: Any = None
        with self.assertRaises(ZeroDivisionError), self.channel as channel:
            waiting = [Running(lambda: channel.recv_into(self.view, 1, timeout=60)),
                       Running(lambda: channel.send(self.view, 2, timeout=60))]
            until(lambda: self.client._flying() == 2)
            1 // 0
        for run in waiting:
            run.join()
            self.assertIsInstance(run.error, tarn.Closed)
        self.assertTrue(self.channel.closed)
        self.raises(lambda: self.channel.recv(), tarn.Closed, "connect again")
        self.fails("ch.recv(1, timeout=20)", tarn.NodeDown)

    def test_ctrl_c_ends_a_receive(self) -> None:
        with ctrl_c(self, 0.2):
            self.channel.recv_into(self.view, 1, timeout=60)
        self.untouched_by_the_next(self.view)

    def untouched_by_the_next(self, view: memoryview) -> None:
        """The peer's next message goes to the next receive, and not here."""
        view[:] = b"\xee" * len(view)
        self.peer.begin(f"ch.send(pattern({len(view)}), 1)")
        self.assertEqual(self.channel.recv(1, len(view), timeout=20), pattern(len(view)))
        self.assertEqual(self.peer.answer(), "None")
        self.assertEqual(bytes(view), b"\xee" * len(view))

    # --- asyncio ---

    def test_asyncio(self) -> None:
        self.does("async def both(): a, b, _ = await asyncio.gather(ch.arecv(1, 50000), ch.arecv(2, [4, 9000]), "
                  "ch.asend(pattern(70000), 3)); return len(a), [bytes(x[:2]) for x in b]")
        self.peer.begin("asyncio.run(both())")

        async def here() -> Any:
            got = await asyncio.gather(self.channel.arecv_into(self.view, 3), self.channel.asend(bytes(50000), 1),
                                       self.channel.asend([b"1234", pattern(8000)], 2))
            return got

        self.assertEqual(asyncio.run(here()), [70000, None, None])
        self.assertEqual(bytes(self.view[:70000]), pattern(70000))
        self.assertEqual(self.peer.answer(), repr((50000, [b"12", pattern(2)])))

    def canceled(self, call: Callable[[], Awaitable[Any]]) -> None:
        async def cancel() -> None:
            task = asyncio.ensure_future(call())
            while self.client._flying() == 0:
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())
        self.assertEqual(self.client._flying(), 0)

    def test_a_canceled_receive_writes_nothing(self) -> None:
        for nbytes in (8, ROOM):
            view = self.view[:nbytes]
            self.canceled(lambda: self.channel.arecv_into(view, 1, timeout=60))
            self.untouched_by_the_next(view)
            self.canceled(lambda: self.channel.arecv(1, nbytes, timeout=60))
            self.untouched_by_the_next(view)

    def test_a_receive_that_is_canceled_while_it_is_written(self) -> None:
        """By a sender that never stops: what is in the memory when the call has ended stays."""
        self.peer.begin("while True: ch.send(MANY, 1)")
        for delay in range(30):
            async def cancel() -> None:
                task = asyncio.ensure_future(self.channel.arecv_into(self.view, 1, timeout=20))
                await asyncio.sleep(delay * 1e-4)  # any moment will do
                task.cancel()
                await asyncio.wait([task])

            asyncio.run(cancel())
            self.view[:] = bytes(ROOM)
            got = self.channel.recv(1, ROOM, timeout=20)  # the sender goes on
            self.assertEqual(got, MANY)
            self.assertEqual(bytes(self.view), bytes(ROOM))
        self.peer.kill()

    def test_a_canceled_send(self) -> None:
        self.canceled(lambda: self.channel.asend(b"canceled", 1, timeout=60))
        self.canceled(lambda: self.channel.asend(self.view, 1, timeout=60))
        op = self.channel.submit_send(b"next", 1)
        self.does("bytes(ch.recv(1, 1 << 20))", "b'next'")
        op.wait()


class OverShm(Both, StoreCase):
    TRANSPORT = "shm"

    def memory(self, nbytes: int) -> Any:
        return tarn.WindowMemory(nbytes)

    @unittest.skipIf(SANITIZED, "sanitizers: the peer is stopped in their code")
    def test_the_peer_stands_still_in_a_copy(self) -> None:
        """The memory is its until the window is closed, which is not possible before it goes on."""
        memory = tarn.WindowMemory(LARGE)
        window = self.client.window(memory)
        self.does(f"data = bytes({LARGE})")
        self.peer.begin("while True: ch.send(data, 1, timeout=60)")
        busy = False
        for i in range(100):
            self.channel.recv_into(memory, 1, timeout=20)
            op = self.channel.submit_recv_into(memory, 1, timeout=0.2)
            time.sleep(i % 10 * 1e-3)  # any moment will do
            stop(self.peer.pid)
            try:
                op.wait()
            except tarn.Timeout:
                pass
            except tarn.Busy as e:
                busy = True
                self.assertIn(f"process {self.peer.pid} ", str(e))
                self.raises(lambda: window.close(timeout=0.05), tarn.Busy)
            os.kill(self.peer.pid, signal.SIGCONT)
            if busy:
                break
        self.assertTrue(busy)
        window.close(timeout=20)
        self.peer.kill()


class OverTcp(Both, StoreCase):
    TRANSPORT = "tcp"

    def memory(self, nbytes: int) -> Any:
        return bytearray(nbytes)


if __name__ == "__main__":
    unittest.main()
