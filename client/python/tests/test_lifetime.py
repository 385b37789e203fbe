# SPDX-License-Identifier: Apache-2.0
"""What ends when: close, fork, threads, Ctrl-C, the interpreter's end; and that nothing is left behind."""
from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import unittest
import weakref
from typing import Any, Callable, List

import tarn
from store import Store, StoreCase, state, stop

SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")
THREADS_SANITIZED = "tsan.so" in os.environ.get("LD_PRELOAD", "")
LATE_S = 5.0 if SANITIZED else 1.5  # 0.1 where the machine is idle


def run_python(code: str, *args: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Another interpreter with the same paths."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run([sys.executable, "-c", code, *args], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, timeout=timeout)


class Running:
    """A call in a thread of its own, its outcome or exception kept."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as e:
            self.error = e

    def join(self, seconds: float = 30) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise AssertionError("the call does not end")

    def running(self) -> bool:
        return self._thread.is_alive()


def until(what: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("not within time")
        time.sleep(0.002)  # a poll, not synchronisation


class Close(StoreCase):
    def test_use_after_close(self) -> None:
        c = self.open()
        c.put(self.key(), b"1")
        hits = c.lookup([self.key()])
        c.close()
        c.close()
        self.assertTrue(c.closed)
        for call in (lambda: c.put(self.key(), b"1"), lambda: c.get(self.key(), out="bytes"), lambda: c.exists("k"),
                     lambda: c.get_into("k", bytearray(1)), lambda: c.get_into_many(["k"], [bytearray(1)]),
                     lambda: c.put_many({"k": b"1"}), lambda: c.lookup(["k"]), lambda: c.remove("k"),
                     lambda: c.stats(), lambda: hits.states, lambda: hits[0], lambda: hits.tensor(0),
                     lambda: c.__enter__()):
            with self.assertRaises(tarn.Closed):
                call()

    def test_context_manager(self) -> None:
        with self.open() as c:
            c.put(self.key(), b"1")
        self.assertTrue(c.closed)
        with self.assertRaises(ZeroDivisionError), self.open() as c:
            1 // 0
        self.assertTrue(c.closed)

    def test_never_opened(self) -> None:
        c = tarn.Client.__new__(tarn.Client)
        with self.assertRaises(tarn.Closed):
            c.put("k", b"1")
        c.close()

    def test_init_twice(self) -> None:
        with self.assertRaises(tarn.Invalid):
            self.client.__init__(self.store.uri)
        self.client.put(self.key(), b"1")

    def test_close_waits_for_running_calls(self) -> None:
        store = Store()
        self.addCleanup(store.close)
        c = tarn.Client(store.uri, transports="tcp", timeout=1.0)
        c.put("k", b"x" * 100, timeout=20.0)
        store.pause()
        self.addCleanup(store.resume)
        call = Running(lambda: c.put("l", b"1"))
        until(lambda: c._calls > 0)
        closing = Running(lambda: (c.close(), c._calls))
        until(lambda: c.closed)
        with self.assertRaises(tarn.Closed):
            c.get("k", out="bytes")
        call.join()
        closing.join()
        self.assertIsInstance(call.error, tarn.Error)
        self.assertNotIsInstance(call.error, tarn.Closed)
        self.assertEqual(closing.result, (None, 0))

    def test_many_close_at_once(self) -> None:
        for _ in range(10):
            c = self.open()
            runs = [Running(c.close) for _ in range(4)] + [Running(lambda: c.exists("k")) for _ in range(4)]
            for r in runs:
                r.join()
                self.assertTrue(r.error is None or isinstance(r.error, tarn.Closed), r.error)

    def test_clients_are_collected(self) -> None:
        c = tarn.Client(self.store.uri)
        ref = weakref.ref(c)
        hits = c.lookup(["k"])
        del c
        gc.collect()
        self.assertIsNotNone(ref())  # the hits have it
        del hits
        gc.collect()
        self.assertIsNone(ref())


class Threads(StoreCase):
    def test_eight_threads_one_client(self) -> None:
        def work(t: int) -> None:
            for i in range(100):
                key, value = self.key(f"{t}/{i}"), bytes([t, i]) * 512
                self.client.put(key, value)
                into = bytearray(1024)
                self.client.get_into(key, into)
                if into != value or self.client.get(key, out="bytes") != value:
                    raise AssertionError("other bytes")

        runs = [Running(lambda t=t: work(t)) for t in range(8)]
        for r in runs:
            r.join()
            self.assertIsNone(r.error)

    def test_the_gil_is_released(self) -> None:
        """While one thread waits in a call, others run."""
        store = Store()
        self.addCleanup(store.close)
        c = tarn.Client(store.uri, transports="tcp", timeout=20.0)
        self.addCleanup(c.close)
        c.put("k", b"1")
        c.get("k", out="bytes")
        store.pause()  # a get that has its link waits for the node, however slow this host is
        self.addCleanup(store.resume)
        call = Running(lambda: c.get("k", out="bytes"))
        until(lambda: c._calls > 0)
        for _ in range(1000):
            time.sleep(0)  # not synchronisation: gives the GIL away
        self.assertTrue(call.running())
        store.resume()
        call.join()
        self.assertIsNone(call.error)


class Fork(StoreCase):
    def child(self, what: Callable[[], None]) -> int:
        """Exit status of a forked child that does so."""
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                what()
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_the_parents_client(self) -> None:
        self.client.put(self.key(), b"1")
        hits = self.client.lookup([self.key()])
        before = time.monotonic()

        def use() -> None:
            for call in (lambda: self.client.get(self.key(), out="bytes"), lambda: self.client.put("x", b"1"),
                         lambda: hits.states, lambda: self.client.exists("x")):
                try:
                    call()
                    raise AssertionError("no exception")
                except tarn.Forked as e:
                    assert "child" in str(e)
            self.client.close()

        self.assertEqual(self.child(use), 0)
        self.assertLess(time.monotonic() - before, 5)
        self.assertEqual(self.client.get(self.key(), out="bytes"), b"1")

    @unittest.skipIf(THREADS_SANITIZED, "ThreadSanitizer: no threads in the child of a process that has some")
    def test_a_client_of_its_own(self) -> None:
        self.client.put(self.key(), b"1")

        def use() -> None:
            with tarn.Client(self.store.uri) as c:
                assert c.get(self.key(), out="bytes") == b"1"
                c.put(self.key("2"), b"22")

        self.assertEqual(self.child(use), 0)
        self.assertEqual(self.client.get(self.key("2"), out="bytes"), b"22")

    @unittest.skipIf(SANITIZED, "sanitizers: the child finds their locks held")
    def test_fork_while_threads_are_in_calls(self) -> None:
        stop = threading.Event()

        def work(t: int) -> None:
            while not stop.is_set():
                self.client.put(self.key(str(t)), b"x" * 4096, replace=True)

        runs = [Running(lambda t=t: work(t)) for t in range(4)]

        def use() -> None:
            try:
                self.client.exists("k")
                raise AssertionError("no exception")
            except tarn.Forked:
                pass
            self.client.close()
            with tarn.Client(self.store.uri) as c:
                c.put(self.key("child"), b"1", replace=True)

        for _ in range(5):
            self.assertEqual(self.child(use), 0)
        stop.set()
        for r in runs:
            r.join()
            self.assertIsNone(r.error)

    @unittest.skipIf(THREADS_SANITIZED, "ThreadSanitizer: no threads in the child of a process that has some")
    def test_multiprocessing(self) -> None:
        code = """
import multiprocessing, sys, tarn
uri = sys.argv[1]
c = tarn.Client(uri)
c.put("mp", b"1")
def work(i):
    with tarn.Client(uri) as mine:
        return bytes(mine.get("mp", out="bytes"))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(pool.map(work, range(8)) == [b"1"] * 8)
"""
        done = run_python(code, self.store.uri)
        self.assertEqual((done.stdout.strip(), done.returncode), ("True", 0), done.stderr)


class Interrupt(unittest.TestCase):
    """SIGINT to a process whose main thread is in a call on a node, or a Redis, that stands still."""

    CODE = """
import sys, time, tarn
SPECS = {"s%d" % i: ("uint8", (1000,)) for i in range(3)}
def session(): return c.put_session(SPECS, timeout=60.0)
calls = {
    "put": lambda: c.put("new", b"1"),
    "get": lambda: c.get_into("k", bytearray(100)),
    "large": lambda: c.get_into("large", bytearray(20 << 20)),
    "remove": lambda: c.remove("k"),
    "view": lambda: near.view("k"),
    "pin": lambda: c.pin("k"),
    "unpin": lambda: c.unpin("k"),
    "touch": lambda: c.touch(["k"]),
    "begin": session,
    "write": lambda: s.write("s0", b"1" * 1000),
    "commit": lambda: s.commit(timeout=60.0),
    "open": lambda: tarn.Client(sys.argv[1], timeout=60.0),
    "lookup": lambda: c.lookup(["other"]),
    "stat": lambda: c.stat("k"),
    "list": lambda: c.list(),
    "nodes": lambda: c.nodes(),
    "view of another": lambda: c.view("other"),
}
for line in sys.stdin:
    what = line.strip()
    near = tarn.Client(sys.argv[1], timeout=60.0)
    c = tarn.Client(sys.argv[1], transports="tcp", timeout=60.0)
    c.get("k", out="bytes")
    s = session() if what in ("write", "commit") else None
    for key in SPECS if what == "commit" else ():
        s.write(key, b"1" * 1000)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("in", flush=True)
        calls[what]()
        print("done", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    c.close()
    near.close()
"""
    OF_NODE = ("put", "get", "large", "remove", "view", "pin", "unpin", "touch", "begin", "write", "commit")
    OF_REDIS = ("open", "lookup", "stat", "list", "nodes", "pin", "view of another")

    def test_ctrl_c(self) -> None:
        with Store() as store:
            with tarn.Client(store.uri) as c:
                c.put("k", b"x" * 100)
                c.put("large", bytearray(20 << 20))
            with open(f"/proc/{store.pid}/task/{store.pid}/children") as f:
                redis = int(f.read().split()[0])
            path = os.pathsep.join(p for p in sys.path if p)
            p = subprocess.Popen([sys.executable, "-c", self.CODE, store.uri], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
            try:
                for pid, calls in ((store.pid, self.OF_NODE), (redis, self.OF_REDIS)):
                    for what in calls:
                        self.interrupt(p, pid, what)
                assert p.stdin
                p.stdin.close()
                self.assertEqual(p.wait(20), 0)
            finally:
                p.kill()
                p.wait()
                assert p.stdin and p.stdout
                p.stdin.close()
                p.stdout.close()

    def interrupt(self, p: "subprocess.Popen[str]", stands: int, what: str) -> None:
        assert p.stdin and p.stdout
        p.stdin.write(what + "\n")
        p.stdin.flush()
        self.assertEqual(p.stdout.readline(), "ready\n", what)
        stop(stands)
        try:
            p.stdin.write("\n")
            p.stdin.flush()
            self.assertEqual(p.stdout.readline(), "in\n", what)
            time.sleep(0.1)
            until(lambda: "S" in state(p.pid))
            sent = time.monotonic()
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.stdout.readline(), "interrupted\n", what)
            took = time.monotonic() - sent
            self.assertLess(took, LATE_S, what)
        finally:
            os.kill(stands, signal.SIGCONT)
        p.stdin.write("\n")
        p.stdin.flush()


class Exit(StoreCase):
    def test_open_clients(self) -> None:
        done = run_python("import sys, tarn\n"
                          "c = tarn.Client(sys.argv[1]); c.put('exit1', b'1')\n"
                          "keep = [tarn.Client(sys.argv[1]) for _ in range(3)]\n"
                          "class Late:\n"
                          "    def __del__(self):\n"
                          "        try: c.exists('k')\n"
                          "        except tarn.Closed: print('closed')\n"
                          "late = Late(); late.me = late\n", self.store.uri)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_daemon_threads_in_calls(self) -> None:
        code = """
import sys, threading, tarn
c = tarn.Client(sys.argv[1])
c.put_many({f"exit/{i}": bytes(4096) for i in range(8)}, replace=True)
started = threading.Barrier(9)
def work(i):
    started.wait()
    try:
        while True:
            c.get_into(f"exit/{i}", bytearray(4096))
    except tarn.Closed:
        pass
for i in range(8):
    threading.Thread(target=work, args=(i,), daemon=True).start()
started.wait()
"""
        for _ in range(3):
            done = run_python(code, self.store.uri)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_exception_ends_the_program(self) -> None:
        done = run_python("import sys, tarn\nc = tarn.Client(sys.argv[1])\nc.get('no such thing', out='bytes')\n",
                          self.store.uri)
        self.assertEqual(done.returncode, 1)
        self.assertIn("tarn._errors.NotFound", done.stderr)

    def test_nothing_is_imported(self) -> None:
        done = run_python("import sys, tarn; print([m for m in ('numpy', 'torch', 'tqdm', 'asyncio') "
                          "if m in sys.modules])")
        self.assertEqual(done.stdout.strip(), "[]", done.stderr)


class Leaks(StoreCase):
    def references(self, call: Callable[[], Any], *objects: Any) -> None:
        call()
        before = [sys.getrefcount(o) for o in objects]
        for _ in range(50):
            call()
        self.assertEqual([sys.getrefcount(o) for o in objects], before)

    def test_references(self) -> None:
        key, miss, value = self.key(), self.key("none"), bytearray(100)
        self.client.put(key, value)
        self.client.put(self.key("array"), bytes(400), dtype="f32", shape=(100,))

        def wrong(call: Callable[[], Any]) -> Callable[[], None]:
            def f() -> None:
                with self.assertRaises((tarn.Error, TypeError)):
                    call()
            return f

        c = self.client
        for call in (lambda: c.put(key, value, replace=True), lambda: c.get_into(key, value),
                     lambda: c.get_into_many([key, miss], [value, [value, value]]),
                     lambda: c.put_many([(key, value), (miss, value)]), lambda: c.remove(miss),
                     lambda: c.exists([key, miss]), lambda: c.lookup([key, miss]).states,
                     lambda: c.get_many([key, miss], out="bytes"),
                     wrong(lambda: c.get_into(miss, value)), wrong(lambda: c.get_into(key, [value, 1])),
                     wrong(lambda: c.get_into(self.key("array"), memoryview(value).cast("f"))),
                     wrong(lambda: c.put_many([(key, value), 1])), wrong(lambda: c.put(key, value)),
                     wrong(lambda: c.get_into_many([key], [value, value]))):
            self.references(call, key, miss, value, c, value)
        value.append(1)  # no buffer is exported any more

    def test_memory(self) -> None:
        keys = [self.key(str(i)) for i in range(64)]
        values = [bytearray(1000) for _ in keys]

        def work() -> None:
            self.client.put_many(zip(keys, values), replace=True)
            self.client.get_into_many(keys, values)
            self.client.get_many(keys, out="bytes")
            self.client.match_prefix(keys)
            with tarn.Client(self.store.uri) as c:
                c.exists(keys)
            for wrong in (lambda: self.client.get(self.key("none"), out="bytes"), lambda: self.client.put(keys[0], 1)):
                try:
                    wrong()
                except (tarn.Error, TypeError):
                    pass

        for _ in range(5):
            work()
        gc.collect()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        work()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(30):
            work()
        gc.collect()
        self.assertLess(tracemalloc.get_traced_memory()[0] - before, 20000)

    def test_buffers_stay_while_they_are_used(self) -> None:
        """The list is emptied by another thread while the call runs."""
        keys = [self.key(str(i)) for i in range(100)]
        self.client.put_many((k, k.encode() * 50) for k in keys)
        for _ in range(50):
            names, buffers = list(keys), [bytearray(len(k.encode()) * 50) for k in keys]
            call = Running(lambda: self.client.get_into_many(names, buffers))
            names.clear()
            buffers.clear()
            call.join()
            self.assertTrue(call.error is None or isinstance(call.error, tarn.Invalid), call.error)


class Log(StoreCase):
    def test_lines_come_to_the_logger(self) -> None:
        logger = logging.getLogger("tarn.test")
        logger.setLevel(logging.DEBUG)
        with self.assertLogs(logger, logging.DEBUG) as seen:
            c = self.open(log=logger)
            c.put(self.key(), b"1")
            c.get(self.key(), out="bytes")
            c.close()
        self.assertTrue(any(self.key()[:10] in line for line in seen.output), seen.output)

    def test_a_logger_that_fails(self) -> None:
        class Bad(logging.Logger):
            def log(self, *a: Any, **k: Any) -> None:
                raise ZeroDivisionError

        errors: List[Any] = []
        old = sys.unraisablehook
        sys.unraisablehook = errors.append
        try:
            c = self.open(log=Bad("bad", logging.DEBUG))
            c.put(self.key(), b"1")
            c.close()
        finally:
            sys.unraisablehook = old
        self.assertTrue(errors)


class Failures(StoreCase):
    def test_batch_error(self) -> None:
        store = Store()
        self.addCleanup(store.close)
        c = tarn.Client(store.uri, transports="tcp", timeout=0.3)
        self.addCleanup(c.close)
        c.put("a", b"1", timeout=20.0)
        # Opens the link: opening one to a node that stands still keeps all items waiting.
        c.get("a", out="bytes", timeout=20.0)
        hits = c.lookup(["a", "b"], timeout=20.0)
        store.pause()
        self.addCleanup(store.resume)
        with self.assertRaises(tarn.BatchError) as e:
            c.get_many(["a", "b"], out="bytes", hits=hits)
        self.assertEqual(e.exception.results, [None, None])
        self.assertEqual(list(e.exception.errors), [0])
        self.assertEqual(e.exception.errors[0].key, "a")
        self.assertIn(type(e.exception.errors[0]), (tarn.Timeout, tarn.NodeDown, tarn.NotReachable))
        self.assertEqual(e.exception.errors[0].peer, "node0", str(e.exception))
        self.assertEqual(e.exception.peer, "node0")
        self.assertTrue(e.exception.remedy)

    def test_a_node_that_pauses_is_waited_for(self) -> None:
        """Also in the main thread, where waits are cut up for Ctrl-C: nothing is given up and begun anew."""
        store = Store()
        self.addCleanup(store.close)
        c = tarn.Client(store.uri, transports="tcp", timeout=20.0)
        self.addCleanup(c.close)
        c.put("a", b"1")
        c.get("a", out="bytes")
        into = bytearray(1)
        for call in (lambda: c.get_into("a", into), lambda: c.pin("a"), lambda: c.unpin("a")):
            store.pause()
            self.addCleanup(store.resume)
            timer = threading.Timer(1.5, store.resume)
            timer.start()
            self.addCleanup(timer.cancel)
            call()
        self.assertEqual(into, b"1")

    def test_timeout_is_kept(self) -> None:
        store = Store()
        self.addCleanup(store.close)
        c = tarn.Client(store.uri, transports="tcp")
        self.addCleanup(c.close)
        c.put("a", b"1")
        store.pause()
        self.addCleanup(store.resume)
        for call, names in ((lambda: c.get("a", out="bytes", timeout=0.4), True),
                            (lambda: c.put("b", b"1", timeout=0.4), False)):
            began = time.monotonic()
            with self.assertRaises((tarn.Timeout, tarn.NodeDown)) as e:
                call()
            self.assertLess(time.monotonic() - began, 4)
            if names:
                self.assertEqual(e.exception.peer, "node0", str(e.exception))
            self.assertTrue(e.exception.remedy)


if __name__ == "__main__":
    unittest.main()
