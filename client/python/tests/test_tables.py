# SPDX-License-Identifier: Apache-2.0
"""Hit tables: rows that a GPU gets by itself. Over a STAND-IN for CUDA (see test_played_cuda), which shows the
package's logic, and on a GPU with torch."""
from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from typing import Any, Callable, Iterator, List, Optional, Sequence

import played_cuda
import tarn
import test_played_cuda
from store import StoreCase
from test_played_cuda import CHILD

try:
    import torch
except ImportError:
    torch = None

LATER_S = 20.0
NOT_FOUND, STALE, INVALID = tarn.NotFound.code, tarn.Stale.code, tarn.Invalid.code


def content(nbytes: int, salt: int) -> bytes:
    return bytes((i * 37 + i // 251 + salt) % 256 for i in range(nbytes))


def int32s(numbers: Sequence[int]) -> bytes:
    return b"".join(n.to_bytes(4, sys.byteorder, signed=True) for n in numbers)


class Cases(StoreCase):
    """A subclass has a kind of arrays of GPU 0."""

    def array(self, dtype: str, *shape: int, data: bytes = b"") -> Any:
        raise NotImplementedError

    def read(self, array: Any, nbytes: int) -> bytes:
        """After the work of its stream."""
        raise NotImplementedError

    def column(self, array: Any) -> Any:
        """The first column of a two-dimensional array."""
        raise NotImplementedError

    def rows(self, *numbers: int) -> Any:
        return self.array("int32", len(numbers), data=int32s(numbers))

    def codes(self, status: Any, n: int) -> List[int]:
        got = self.read(status, 4 * n)
        return [int.from_bytes(got[4 * i:4 * i + 4], sys.byteorder, signed=True) for i in range(n)]

    def put(self, n: int, nbytes: int) -> List[str]:
        keys = [self.key(str(i)) for i in range(n)]
        self.client.put_many({k: content(nbytes, i) for i, k in enumerate(keys)}, replace=True)
        return keys

    def one(self, table: tarn.Table, nbytes: int) -> Any:
        """Page 0's bytes, or the code that it has instead."""
        out = self.array("uint8", 1, nbytes)
        code = self.codes(table.gather(self.rows(0), out), 1)[0]
        return code or self.read(out, nbytes)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LATER_S
        while not condition():
            self.assertLess(time.monotonic(), end, "it has not come true")

    # --- gathers

    def test_rows_of_pages(self) -> None:
        seed = random.randrange(1 << 30)
        print("seed", seed)
        for width in (576, 656, 33):
            keys = self.put(5, 64 * width)
            table = self.client.table(5)
            self.assertEqual(table.set(keys), [0] * 5)
            numbers = random.Random(seed).choices(range(5 * 64), k=100)
            out = self.array("uint8", 100, width)
            status = table.gather(self.rows(*numbers), out, rows_per_page=64)
            self.assertEqual(self.codes(status, 100), [0] * 100)
            want = [content(64 * width, r // 64)[r % 64 * width:(r % 64 + 1) * width] for r in numbers]
            self.assertEqual(self.read(out, 100 * width), b"".join(want))
            table.close()

    def test_rows_of_any_dtype(self) -> None:
        table = self.client.table(2)
        table.set(self.put(2, 64))
        out = self.array("float32", 2, 16)
        self.assertEqual(self.codes(table.gather(self.rows(1, 0), out), 2), [0, 0])
        self.assertEqual(self.read(out, 128), content(64, 1) + content(64, 0))

    def test_parts_of_rows(self) -> None:
        table = self.client.table(1)
        table.set(self.put(1, 1000))
        out = self.array("uint8", 2, 48, data=b"\xee" * 96)
        status = table.gather(self.rows(0, 3), out, offset=100, row_bytes=40, rows_per_page=8)
        self.assertEqual(self.codes(status, 2), [0, 0])
        page, gap = content(1000, 0), b"\xee" * 8
        self.assertEqual(self.read(out, 96), page[100:140] + gap + page[220:260] + gap)

    def test_status_of_the_caller(self) -> None:
        table = self.client.table(3)
        table.set(self.put(1, 64))
        status = self.array("int32", 4)
        self.assertIs(table.gather(self.rows(0, 1, 3, -1), self.array("uint8", 4, 64), status=status), status)
        self.assertEqual(self.codes(status, 4), [0, NOT_FOUND, INVALID, INVALID])

    def test_no_rows(self) -> None:
        table = self.client.table(1)
        table.gather(self.rows(), self.array("uint8", 0, 64))

    def test_a_stream_of_the_caller(self) -> None:
        table = self.client.table(1)
        table.set(self.put(1, 64))
        out = self.array("uint8", 1, 64)
        self.assertEqual(self.codes(table.gather(self.rows(0), out, stream=0), 1), [0])
        with self.assertRaises(TypeError):
            table.gather(self.rows(0), out, stream="0")

    # --- objects

    def test_a_table_of_hits(self) -> None:
        keys = [*self.put(2, 64), self.key("none")]
        hits = self.client.lookup(keys)
        self.assertEqual(hits.keys, tuple(keys))
        self.client.remove(keys[1:2])  # the table has the hit, and a kernel sees that it is stale
        with tarn.Table(hits) as table:
            self.assertEqual((table.npages, table.device), (3, 0))
            out = self.array("uint8", 3, 64)
            codes = self.codes(table.gather(self.rows(0, 1, 2), out), 3)
            self.assertEqual((codes[0], codes[2]), (0, NOT_FOUND))
            self.assertIn(codes[1], (STALE, NOT_FOUND))
            self.assertEqual(self.read(out, 64), content(64, 0))
        self.assertTrue(table.closed)

    def test_set(self) -> None:
        keys = [*self.put(3, 64), self.key("none")]
        with self.client.table(5) as table:
            self.assertEqual(table.set([]), [])
            self.assertEqual(table.set(keys[2:], 1), [0, NOT_FOUND])
            self.assertEqual(table.set(keys[:1], first=4, hits=self.client.lookup(keys[:1])), [0])
            out = self.array("uint8", 5, 64)
            codes = self.codes(table.gather(self.rows(0, 1, 2, 3, 4), out), 5)
            self.assertEqual(codes, [NOT_FOUND, 0, NOT_FOUND, NOT_FOUND, 0])
            self.assertEqual(self.read(out, 128)[64:], content(64, 2))

    def test_set_refuses(self) -> None:
        keys = self.put(3, 64)
        table = self.client.table(2)
        hits, other = self.client.lookup(keys), self.open().lookup(keys[:1])
        wrong: List[Any] = [
            lambda: table.set(keys), lambda: table.set(keys[:1], 2), lambda: table.set(keys[:1], -1),
            lambda: table.set([""]), lambda: table.set(keys[:1], hits=other), lambda: table.set(keys[:1], hits=hits),
            lambda: self.client.table(0), lambda: self.client.table(1 << 25), lambda: self.client.table(1, 99),
            lambda: self.client.table(1, -1), lambda: tarn.Table(self.client.lookup([])),
        ]
        for i, call in enumerate(wrong):
            with self.subTest(i=i), self.assertRaises(tarn.Invalid):
                call()
        types: List[Any] = [lambda: table.set("key"), lambda: table.set(7), lambda: table.set([1]),
                            lambda: table.set(keys[:1], "0"), lambda: table.set(keys[:1], hits=keys),
                            lambda: tarn.Table(keys), lambda: self.client.table("1"), lambda: tarn.Table()]
        for i, call in enumerate(types):
            with self.subTest(i=i), self.assertRaises(TypeError):
                call()

    def test_an_object_that_is_replaced(self) -> None:
        [key] = self.put(1, 64)
        table = self.client.table(1)
        table.set([key])
        for salt in range(1, 10):
            self.client.put(key, content(64, salt), replace=True)
            self.assertIn(self.one(table, 64), (STALE, content(64, salt)))
            self.until(lambda: self.one(table, 64) == content(64, salt))

    def test_an_object_that_comes_later(self) -> None:
        table = self.client.table(1)
        self.assertEqual(table.set([self.key("0")]), [NOT_FOUND])
        self.assertEqual(self.one(table, 64), NOT_FOUND)
        self.put(1, 64)
        self.until(lambda: self.one(table, 64) == content(64, 0))

    # --- wrong arrays

    def refused(self, table: tarn.Table, what: str, *args: Any, **options: Any) -> None:
        with self.subTest(what), self.assertRaisesRegex(tarn.Invalid, what):
            table.gather(*args, **options)

    def test_gather_refuses(self) -> None:
        table = self.client.table(2)
        table.set(self.put(2, 64))
        rows, out = self.rows(0, 1), self.array("uint8", 2, 64, data=b"\xee" * 128)
        self.refused(table, "rows: of dtype i64", self.array("int64", 2), out)
        self.refused(table, "rows: has 2 dimensions", self.array("int32", 2, 1), out)
        self.refused(table, "rows: its elements lie 8 bytes apart", self.column(self.array("int32", 2, 2)), out)
        self.refused(table, "rows: lies on device -1", bytearray(8), out)
        self.refused(table, "out: lies on device -1", rows, bytearray(128))
        self.refused(table, "out: has 1 dimensions", rows, self.array("uint8", 128))
        self.refused(table, "out: 3 rows for 2 numbers", rows, self.array("uint8", 3, 64))
        self.refused(table, "out: rows of 0 bytes", rows, self.array("uint8", 2, 0))
        self.refused(table, "out: rows of 64 bytes for row_bytes=65", rows, out, row_bytes=65)
        self.refused(table, "row_bytes: 0", rows, out, row_bytes=0)
        self.refused(table, "rows_per_page: 0", rows, out, rows_per_page=0)
        self.refused(table, "offset", rows, out, offset=-1)
        self.refused(table, "status: of dtype f32", rows, out, status=self.array("float32", 2))
        self.refused(table, "status: 1 elements for 2 rows", rows, out, status=self.array("int32", 1))
        self.refused(table, "status: lies on device -1", rows, out, status=bytearray(8))
        for wrong in (None, 7, "rows", [0, 1]):
            with self.assertRaises((TypeError, tarn.Invalid)):
                table.gather(wrong, out)
        self.assertEqual(self.read(out, 128), b"\xee" * 128)

    # --- closing

    def test_closed(self) -> None:
        rows, out = self.rows(0), self.array("uint8", 1, 64)
        table = self.client.table(1)
        with table as same:
            self.assertIs(same, table)
            self.assertFalse(table.closed)
        table.close()
        self.assertTrue(table.closed)
        with self.assertRaisesRegex(tarn.Closed, "table: it was closed"):
            table.gather(rows, out)
        with self.assertRaises(tarn.Closed):
            table.set([self.key()])

    def test_the_client_is_closed_first(self) -> None:
        rows, out = self.rows(0), self.array("uint8", 1, 64)
        client = self.open()
        table, forgotten = client.table(1), client.table(1)
        hits = client.lookup(self.put(1, 64))
        client.close()
        self.assertTrue(table.closed)
        for call in (lambda: table.gather(rows, out), lambda: table.set([self.key()]), lambda: client.table(1),
                     lambda: tarn.Table(hits)):
            with self.assertRaises(tarn.Closed):
                call()
        table.close()
        del forgotten

    def test_a_table_keeps_its_client(self) -> None:
        keys = self.put(1, 64)
        table = tarn.Client(self.store.uri).table(1)
        table.set(keys)
        self.assertEqual(self.one(table, 64), content(64, 0))

    def test_the_interpreter_exits(self) -> None:
        code = "import sys, tarn; c = tarn.Client(sys.argv[1]); t = [c.table(4), tarn.Table(c.lookup(['k']))]"
        done = subprocess.run([sys.executable, "-c", code, self.store.uri], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_child_process(self) -> None:
        table = self.client.table(1)
        pid = os.fork()
        if pid == 0:  # it says by its status that all went well
            try:
                with contextlib.suppress(tarn.Forked):
                    table.set([self.key()])
                    os._exit(1)
                table.close()
                os._exit(0 if table.closed else 2)
            finally:
                os._exit(3)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        table.set(self.put(1, 64))
        self.assertEqual(self.one(table, 64), content(64, 0))

    # --- threads

    def test_threads_take_turns(self) -> None:
        keys = self.put(4, 64)
        table = self.client.table(4)
        table.set(keys)
        failed: List[BaseException] = []

        def keep_setting() -> None:
            try:
                for _ in range(50):
                    table.set(keys)
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=keep_setting) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.assertIn(self.one(table, 64), (STALE, content(64, 0)))  # stale: while it is set
        self.assertEqual(failed, [])
        self.assertEqual(self.one(table, 64), content(64, 0))

    def test_a_handler_in_the_middle_of_a_call(self) -> None:
        """It must not wait for its own thread."""
        keys = self.put(1, 64)
        table = self.open().table(1)  # whose client has no link to the node yet
        said: List[Optional[str]] = []

        def handler(*_: Any) -> None:
            try:
                table.close()
                said.append(None)
            except tarn.Busy as e:
                said.append(str(e))

        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.store.pause()
        self.addCleanup(self.store.resume)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        self.assertNotEqual(table.set(keys, timeout=2.0), [0])
        self.store.resume()
        self.assertEqual(len(said), 1)
        self.assertIn("in the middle of a call", said[0] or "")
        self.until(lambda: self.one(table, 64) == content(64, 0))  # the table's thread looks again


class Played(test_played_cuda.PlayedCase, Cases):
    """Tensors that only look like torch's."""

    def array(self, dtype: str, *shape: int, data: bytes = b"") -> Any:
        t = played_cuda.Tensor(self.driver, 0, shape, dtype=f"torch.{dtype}")
        if data:
            self.driver.write(t.at, data)
        return t

    def read(self, array: Any, nbytes: int) -> bytes:
        return self.driver.read(array.data_ptr(), nbytes)

    def column(self, array: Any) -> Any:
        return played_cuda.Tensor(self.driver, 0, array.shape[:1], strides=(array.shape[1],), at=array.at,
                                  dtype=array.dtype)

    def test_another_gpu(self) -> None:
        table = self.client.table(1)
        there = played_cuda.Tensor(self.driver, 1, (1, 64), dtype="torch.uint8")
        self.refused(table, "out: lies on device 1 .*an array on GPU 0", self.rows(0), there)

    def test_rows_that_overlap(self) -> None:
        table, whole = self.client.table(2), self.array("uint8", 2, 64)
        for step in (63, 0):
            out = played_cuda.Tensor(self.driver, 0, (2, 64), strides=(step, 1), at=whole.at, dtype="torch.uint8")
            self.refused(table, "not overlap", self.rows(0, 1), out)

    def test_rows_with_gaps(self) -> None:
        table, whole = self.client.table(2), self.array("uint8", 2, 80, data=b"\xee" * 160)
        table.set(self.put(2, 64))
        out = played_cuda.Tensor(self.driver, 0, (2, 64), strides=(80, 1), at=whole.at, dtype="torch.uint8")
        self.assertEqual(self.codes(table.gather(self.rows(1, 0), out), 2), [0, 0])
        self.assertEqual(self.read(whole, 160),
                         content(64, 1) + b"\xee" * 16 + content(64, 0) + b"\xee" * 16)

    def test_arrays_of_other_libraries(self) -> None:
        table = self.client.table(1)
        table.set(self.put(1, 64))
        rows, out, status = self.rows(0), self.array("float32", 1, 16), self.array("int32", 1)

        class Interface:
            def __init__(self, t: Any, typestr: str, readonly: bool = False) -> None:
                self.__cuda_array_interface__ = {"shape": t.shape, "typestr": typestr, "data": (t.at, readonly),
                                                 "version": 3}

            __cuda_array_interface__ = {}

        same = Interface(status, "<i4")
        self.assertIs(table.gather(Interface(rows, "<u4", True), Interface(out, "<f4"), status=same), same)
        self.assertEqual(self.codes(status, 1), [0])
        self.assertEqual(self.read(out, 64), content(64, 0))
        self.refused(table, "status: none, and out is no torch tensor", rows, Interface(out, "<f4"))
        self.refused(table, "read-only", rows, Interface(out, "<f4", True))
        self.refused(table, "read-only", rows, out, status=Interface(status, "<i4", True))

    def test_dlpack_orders_nothing(self) -> None:
        """The producer is not asked to make a stream wait, which a capture forbids."""
        asked: List[Any] = []

        class Producer:
            def __dlpack_device__(self) -> Any:
                return (2, 0)

            def __dlpack__(self, stream: Any = None) -> Any:
                asked.append(stream)
                raise ValueError("asked")

        table = self.client.table(1)
        with self.assertRaisesRegex(ValueError, "asked"):
            table.gather(Producer(), self.array("uint8", 1, 64))
        with self.assertRaisesRegex(ValueError, "asked"):
            self.client.put(self.key(), Producer())
        self.assertEqual(asked, [-1, 1])

    def test_no_event_and_one_stream(self) -> None:
        """Nothing but the launch: of its stream, which other work holds up, nothing is asked."""
        table = self.client.table(1)
        table.set(self.put(1, 64))
        rows, out, status = self.rows(0), self.array("uint8", 1, 64), self.array("int32", 1)
        self.hold(0)
        before = self.driver.lib.played_records()
        table.gather(rows, out, status=status)
        self.assertEqual(self.driver.lib.played_records(), before)

    def test_without_torch(self) -> None:
        table = self.client.table(1)
        table.set(self.put(1, 64))
        loaded = sys.modules.pop("torch")
        self.addCleanup(sys.modules.__setitem__, "torch", loaded)
        piece, status = self.array("uint8", 1, 64), self.array("int32", 1)
        with self.assertRaises(RuntimeError):  # these look like torch's
            table.gather(self.rows(0), piece, status=status)


class OverPlayedGpus(test_played_cuda.OverTheStandin):
    FILE = os.path.abspath(__file__)


class OnGpu(Cases):
    @classmethod
    def setUpClass(cls) -> None:
        if torch is None:
            raise unittest.SkipTest("torch: not installed")
        if not torch.cuda.is_available():
            raise unittest.SkipTest("gpu: torch sees none")
        super().setUpClass()

    def array(self, dtype: str, *shape: int, data: bytes = b"") -> Any:
        kind = getattr(torch, dtype)
        if not data:
            return torch.zeros(shape, dtype=kind, device="cuda:0")
        return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape).to("cuda:0")

    def read(self, array: Any, nbytes: int) -> bytes:
        return bytes(array.contiguous().view(torch.uint8).flatten()[:nbytes].tolist())

    def column(self, array: Any) -> Any:
        return array[:, 0]

    def test_in_a_graph(self) -> None:
        """Rows that the graph has chosen; statuses that it has checked; whatever the rows are then."""
        table = self.client.table(4)
        table.set(self.put(4, 64 * 576))
        scores = torch.zeros(256, device="cuda:0")
        out = torch.zeros(8, 576, dtype=torch.uint8, device="cuda:0")
        given = torch.ones(8, dtype=torch.int32, device="cuda:0")

        def step() -> Any:
            rows = scores.topk(8).indices.to(torch.int32)
            table.gather(rows, out, rows_per_page=64, status=given)
            again = torch.empty_like(out)
            made = table.gather(rows, again, rows_per_page=64)
            return rows, again, made, ((given == 0) & (made == 0)).all()

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows, again, made, fine = step()
        for salt in range(20):
            scores.copy_(torch.rand(256, generator=torch.Generator().manual_seed(salt)))
            self.until(lambda: graph.replay() or bool(fine))  # the table lapses now and then
            self.assertEqual(self.codes(made, 8), [0] * 8)
            want = b"".join(content(64 * 576, r // 64)[r % 64 * 576:(r % 64 + 1) * 576] for r in rows.tolist())
            self.assertEqual(self.read(out, 8 * 576), want)
            self.assertTrue(torch.equal(out, again))

    @contextlib.contextmanager
    def without_calls(self) -> Iterator[None]:
        """The block calls nothing of the package."""
        calls: List[str] = []

        def note(frame: Any, event: str, arg: Any) -> None:
            owners = [frame.f_globals.get("__name__")] if event == "call" else []
            if event == "c_call":
                owners = [getattr(arg, "__module__", None), type(getattr(arg, "__self__", None)).__module__]
            calls.extend(str(o) for o in owners if str(o).split(".")[0] in ("tarn", "_tarn"))

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
        self.assertEqual(calls, [])

    def beside(self, gather: Callable[[], None], product: Callable[[], None]) -> Any:
        """A graph of both, on a stream each. All kernels have run before it is captured."""
        side = torch.cuda.Stream()

        def both() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                product()
            gather()
            torch.cuda.current_stream().wait_stream(side)

        both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            both()
        return graph

    def test_replays_without_the_host(self) -> None:
        """The graph itself moves on to other rows, and compares all that a gather has brought."""
        with self.assertRaises(AssertionError), self.without_calls():
            self.client.stats()
        seed = random.randrange(1 << 30)
        print("seed", seed)
        npages, width, n, replays, step = 40, 576, 2048, 100_000, 7
        table = self.client.table(npages)
        table.set(self.put(npages, 64 * width))
        pages = b"".join(content(64 * width, i) for i in range(npages))
        truth = self.array("uint8", 64 * npages, width, data=pages)
        rows, out, status = self.rows(*range(n)), self.array("uint8", n, width), self.array("int32", n)
        good, wrong = self.array("int64", 1), self.array("int64", 1)
        a, b, product = torch.rand(512, 512).cuda(), torch.rand(512, 512).cuda(), self.array("float32", 512, 512)

        def gather() -> None:
            rows.add_(step).remainder_(len(truth))
            table.gather(rows, out, rows_per_page=64, status=status)
            fine = status == 0
            good.add_(fine.sum())
            wrong.add_((fine & (out != truth[rows.long()]).any(1)).sum())

        graph = self.beside(gather, lambda: torch.mm(a, b, out=product))
        rows.copy_(self.rows(*range(n)))
        for counted in (good, wrong, product):
            counted.zero_()
        torch.cuda.synchronize()
        stats, done = self.client.stats(), 0
        for stop in sorted(random.Random(seed).sample(range(1, replays), 9)) + [replays]:
            with self.without_calls():
                for _ in range(stop - done):
                    graph.replay()
                torch.cuda.synchronize()
            done = stop
            numbers = [(k + step * done) % len(truth) for k in range(n)]
            self.assertEqual(rows.tolist(), numbers)
            codes, got = self.codes(status, n), self.read(out, n * width)
            for i, (code, number) in enumerate(zip(codes, numbers)):  # of all rows only if the table has not lapsed
                if code == 0:
                    self.assertEqual(got[i * width:(i + 1) * width], pages[number * width:(number + 1) * width])
        print(f"{replays} replays: {int(good)} of {n * replays} rows good, {int(wrong)} wrong")
        self.assertEqual(codes, [0] * n)
        self.assertEqual(int(wrong), 0)
        self.assertGreater(int(good), 0.9 * n * replays)
        self.assertEqual(self.client.stats(), stats)
        torch.testing.assert_close(product, a @ b, rtol=1e-4, atol=1e-4)

    def test_beside_a_product(self) -> None:
        """A gather from a CPU pool waits for the bus, and leaves the GPU to others."""
        n, nbytes, gathers = 512, 4096, 8
        table = self.client.table(n)
        table.set(self.put(n, nbytes))
        rows = self.rows(*random.Random(1).sample(range(n), n))
        out, status = self.array("uint8", n, nbytes), self.array("int32", n)
        a, b, product = torch.rand(512, 512).cuda(), torch.rand(512, 512).cuda(), self.array("float32", 512, 512)

        def times(f: Callable[[], None], count: int) -> Callable[[], None]:
            def run() -> None:
                for _ in range(count):
                    f()

            return run

        def took_us(graph: Any) -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(10):
                graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end) * 100)

        def fastest_us(*graphs: Any) -> list[float]:
            """In turn, for others may use the GPU, too."""
            return [min(took) for took in zip(*([took_us(g) for g in graphs] for _ in range(100)))]

        def gather() -> None:
            table.gather(rows, out, status=status)

        def multiply() -> None:
            torch.mm(a, b, out=product)

        nothing = times(multiply, 0)
        gathering = self.beside(times(gather, gathers), nothing)
        one, hundred = fastest_us(gathering, self.beside(nothing, times(multiply, 100)))
        products = max(1, round(one / hundred * 100))
        one, other, both = fastest_us(gathering, self.beside(nothing, times(multiply, products)),
                                      self.beside(times(gather, gathers), times(multiply, products)))
        print(f"{gathers} gathers of {n} rows {one:.0f} us, {products} products {other:.0f} us, both {both:.0f} us: "
              f"{both / (one + other):.2f} of the sum")
        self.assertEqual(self.codes(status, n), [0] * n)
        self.assertLess(both, 0.85 * (one + other))

    def test_on_the_current_stream(self) -> None:
        """A gather comes behind the stream's earlier work, and before its later work."""
        table = self.client.table(2)
        table.set(self.put(2, 64))
        rows, out = self.rows(0), self.array("uint8", 1, 64)
        ones = torch.ones(1, dtype=torch.int32, device="cuda:0")
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            rows.copy_(ones)
            status = table.gather(rows, out)
            got = out.clone()
        side.synchronize()
        self.assertEqual(self.codes(status, 1), [0])
        self.assertEqual(self.read(got, 64), content(64, 1))

    def test_dlpack(self) -> None:
        class Dlpack:
            def __init__(self, t: Any) -> None:
                self.t = t

            def __dlpack_device__(self) -> Any:
                return self.t.__dlpack_device__()

            def __dlpack__(self, stream: Any = None) -> Any:
                return self.t.__dlpack__(stream=stream)

        table = self.client.table(1)
        table.set(self.put(1, 64))
        out, status = self.array("uint8", 1, 64), self.array("int32", 1)
        table.gather(Dlpack(self.rows(0)), Dlpack(out), status=Dlpack(status))
        self.assertEqual(self.codes(status, 1), [0])
        self.assertEqual(self.read(out, 64), content(64, 0))

    def test_another_gpu(self) -> None:
        if torch.cuda.device_count() < 2:
            self.skipTest("gpus: torch sees one")
        there = torch.zeros(1, 64, dtype=torch.uint8, device="cuda:1")
        self.refused(self.client.table(1), "out: lies on device 1", self.rows(0), there)


class KeysOfHits(StoreCase):
    def test_every_look_up_keeps_them(self) -> None:
        keys = [self.key(), self.key("other").encode()]
        self.assertEqual(self.client.lookup(k for k in keys).keys, tuple(keys))
        given = list(keys)
        hits = self.client.match_prefix(given, stride=2)
        given.clear()
        self.assertEqual(hits.keys, tuple(keys))
        self.assertEqual(self.client.lookup([]).keys, ())

        async def later() -> tarn.Hits:
            return await self.client.amatch_prefix(list(keys))

        self.assertEqual(asyncio.run(later()).keys, tuple(keys))


class WithoutGpu(StoreCase):
    def test_no_gpu(self) -> None:
        self.client.put(self.key(), bytes(64))
        hits = self.client.lookup([self.key()])
        try:
            self.client.table(1)
        except tarn.Unavailable as e:
            self.assertTrue(str(e))
            with self.assertRaises(tarn.Unavailable):
                tarn.Table(hits)
        else:
            self.skipTest("no-gpu: there is one")


def load_tests(loader: unittest.TestLoader, tests: Any, pattern: Any) -> unittest.TestSuite:
    if CHILD in sys.argv:
        return loader.loadTestsFromTestCase(Played)
    cases = (OverPlayedGpus, OnGpu, KeysOfHits, WithoutGpu)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != CHILD] if CHILD in sys.argv else None)
