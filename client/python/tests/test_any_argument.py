# SPDX-License-Identifier: Apache-2.0
"""Any value for any argument: a call raises an exception of one line, or none. Process and client continue."""
from __future__ import annotations

import array
import asyncio
import contextlib
import inspect
import math
import random
import threading
import unittest
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import tarn
from store import StoreCase

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None

RANDOM_CALLS = 3000


class Evil:
    """Whatever is asked of it fails."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise ArithmeticError("evil")

    __len__ = __iter__ = __getitem__ = __float__ = __index__ = __bool__ = __str__ = __array__ = __dlpack__ = _fail
    __dlpack_device__ = items = keys = getEffectiveLevel = __hash__ = _fail


class NoCapsule:
    def __dlpack__(self, **_: Any) -> Any:
        return 5

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)


class Interface:
    def __init__(self, **interface: Any) -> None:
        self.interface = interface

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.interface


JUNK = [None, True, 0, -1, 1 << 70, 0.001, math.nan, "", "x", "\ud800", "a\0", "a\nb", b"", bytearray(2), [], [None],
        [[b""]], (), {}, {"a": 1}, {1}, object(), int, len, range(2), array.array("u", "x"), Evil(), [Evil()],
        NoCapsule(), Interface(),
        Interface(data=(1, False), shape=(-1,), typestr="<f4"),
        Interface(data=(1, False), shape=(1 << 80,), typestr="<f4"),
        Interface(data=(1, False), shape=(1, 2), strides=(1 << 62, 1 << 62), typestr="<f4", mask=1)]
if np is not None:
    JUNK += [np.array([None]), np.zeros(2, "M8[s]"), np.ma.masked_array([1.0], [1]), np.float32(1), np.zeros((0, 2)),
             np.broadcast_to(np.zeros(1, "u1"), 8), np.zeros((4, 4), "f4").T[::2, ::-1], np.dtype("O"), np.int64]
if torch is not None:
    JUNK += [torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(1).expand(4), torch.complex32,
             torch.zeros(2, dtype=torch.complex64).conj(), torch.quantize_per_tensor(torch.zeros(2), 1, 0, torch.qint8)]

# What a call is to look like when each of its arguments is junk in turn.
CALLS = {
    "put": (["k", b"1"], dict(dtype="u8", shape=(1,), replace=True, pin=False, ttl=9.0, replicas=1, place="local",
                              timeout=2.0, chain="a")),
    "put_many": ([{"k": b"1"}], dict(replace=True, ttl=9.0, timeout=2.0, chain=True)),
    "get": (["k"], dict(out="bytes", timeout=2.0)),
    "get_many": ([["k"]], dict(out="bytes", hits=None, timeout=2.0)),
    "get_into": (["k", bytearray(1)], dict(offset=0, timeout=2.0)),
    "get_into_many": ([["k"], [bytearray(1)]], dict(hits=None, timeout=2.0)),
    "lookup": ([["k"]], dict(timeout=2.0)),
    "match_prefix": ([["k"]], dict(stride=1, timeout=2.0)),
    "exists": (["k"], dict(timeout=2.0)),
    "remove": (["none"], dict(timeout=2.0)),
    "put_session": ([{"session": ("u8", (1,))}], dict(replace=True, ttl=9.0, timeout=2.0)),
    "touch": (["k"], {}),
    "pin": (["k"], dict(ttl=1.0, timeout=2.0)),
    "unpin": (["k"], dict(timeout=2.0)),
    "view": (["k"], dict(out="bytes", timeout=2.0)),
    "stat": (["k"], dict(timeout=2.0)),
    "list": (["k"], dict(timeout=2.0)),
    "nodes": ([], dict(timeout=2.0)),
    "submit_get_into": ([["k"], [bytearray(1)]], dict(hits=None, after=None, timeout=2.0)),
    "submit_put": ([{"k": b"1"}], dict(replace=True, place="local", timeout=2.0)),
    "load": ([{"k": bytearray(1)}], dict(progress=False, chunk=1, timeout=2.0)),
    "save": ([{"k": b"1"}], dict(progress=False, chunk=1, replace=True)),
    "register": ([bytearray(1)], {}),
    "table": ([1], dict(device=0, timeout=2.0)),
    "window": ([bytearray(1)], {}),
    "reach": (["none"], dict(timeout=2.0)),
    "connect": (["127.0.0.1:1"], dict(hello=b"", timeout=2.0)),
}

AWAITED = {
    "aput": CALLS["put"], "aput_many": CALLS["put_many"], "aget": CALLS["get"], "aget_many": CALLS["get_many"],
    "aget_into": CALLS["get_into"], "aget_into_many": CALLS["get_into_many"], "aexists": CALLS["exists"],
    "aremove": CALLS["remove"], "alookup": CALLS["lookup"], "amatch_prefix": CALLS["match_prefix"],
    "areach": CALLS["reach"], "aconnect": CALLS["connect"],
}

# Of the connector, which takes no options.
BATCHES = {
    "submit_batch_get": ([["k"], [bytearray(1)]], {}), "submit_batch_set": ([["k"], [b"1"]], {}),
    "submit_batch_exists": ([["k"]], {}), "submit_batch_delete": ([["none"]], {}),
}

Arguments = Tuple[List[Any], Dict[str, Any]]


def with_junk(arguments: List[Any], options: Dict[str, Any]) -> Iterator[Tuple[str, Arguments]]:
    """Junk for one of them in turn."""
    for n, junk in enumerate(JUNK):
        for i in range(len(arguments)):
            yield f"argument {i}, junk {n}", ([*arguments[:i], junk, *arguments[i + 1:]], options)
        for name in options:
            yield f"{name}=, junk {n}", (arguments, {**options, name: junk})


class AnyArgument(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.client.put({"k": b"1", "eight": b"12345678"}, replace=True)

    def impatient(self, timeout: float) -> tarn.Client:
        """A client whose calls end soon. Opening one may take longer on a busy machine."""
        for _ in range(100):
            with contextlib.suppress(tarn.Timeout):
                return self.open(timeout=timeout)
        return self.open(timeout=timeout)

    def say(self, call: Callable[[], Any]) -> Optional[Any]:
        try:
            result = call()
            if isinstance(result, tarn.Operation):  # the next one has the same memory
                result.wait(20.0)
            return asyncio.run(result) if inspect.iscoroutine(result) else result
        except (tarn.Error, TypeError, ValueError, IndexError) as e:
            self.assertTrue(str(e))
            self.assertNotIn("\n", str(e))
        except ArithmeticError as e:
            self.assertEqual(str(e), "evil")
        return None

    def check(self, owner: Any, calls: Dict[str, Arguments]) -> None:
        for method, (arguments, options) in calls.items():
            for what, (some, named) in with_junk(arguments, options):
                with self.subTest(method=method, what=what):
                    self.say(lambda: getattr(owner, method)(*some, **named))
        self.assertEqual(self.client.get("eight", out="bytes"), b"12345678")

    def test_calls(self) -> None:
        self.check(self.client, CALLS)

    def test_awaited(self) -> None:
        self.check(self.client, AWAITED)

    def test_connector(self) -> None:
        with tarn.Connector(self.store.uri) as connector:
            self.check(connector, BATCHES)

    def test_sessions_operations_hits(self) -> None:
        with self.client.put_session({self.key(): ("u8", (4,))}) as session:
            self.check(session, {"write": ([0, b"1"], dict(offset=0, after=None, timeout=1.0)),
                                 "__exit__": ([None, None, None], {}), "commit": ([], dict(timeout=1.0))})
        self.check(self.client.submit_get_into(["k"], [bytearray(1)]),
                   {"wait": ([1.0], {}), "stream_wait": ([None], {})})
        self.check(self.client.lookup(["k"]), {"tensor": ([0], {})})

    def test_windows(self) -> None:
        client = self.impatient(0.05)
        with client.window(bytearray(64)) as window, window.lease(write=True) as lease:
            self.check(window, {"lease": ([[(0, 8), (16, 4, 8, 2)]], dict(write=True, ttl=9.0)),
                                "notification": ([0.001], {})})
            for what, (run, _) in with_junk([0, 8, 8, 2], {}):
                with self.subTest(what=what):
                    self.say(lambda: window.lease([tuple(run)]))
            self.check(lease, {"publish": (["name"], dict(ttl=9.0, timeout=2.0)),
                               "expect": ([1], dict(n=1, timeout=0.001)), "aexpect": ([1], dict(n=1, timeout=0.001))})
            reach = client.reach(lease.descriptor, timeout=20)
            notify = dict(offset=0, timeout=2.0, notify=(1, b""))
            moves = {"read": ([bytearray(8)], dict(offset=0, timeout=2.0)), "write": ([b"12345678"], notify),
                     "submit_read": ([[(0, bytearray(8))]], dict(offset=0, after=None, timeout=2.0)),
                     "submit_write": ([[(0, b"1")]], {**notify, "after": None}),
                     "aread": ([bytearray(8)], dict(offset=0, timeout=2.0)), "awrite": ([b"12345678"], notify)}
            self.check(reach, moves)
            for junk in JUNK:
                for move in ("read", "write"):
                    for value in ([(0, junk)], [(junk, bytearray(1))], [(0, bytearray(1)), junk]):
                        self.say(lambda: getattr(reach, move)(value))
                self.say(lambda: reach.write([], notify=(junk, b"")))
                self.say(lambda: reach.write([], notify=(1, junk)))
            self.check(lease, {"__exit__": ([None, None, None], {}), "recall": ([1.0], {})})
            self.check(window, {"__exit__": ([None, None, None], {}), "close": ([1.0], {})})

    def test_channels(self) -> None:
        client = self.impatient(0.005)
        listener = client.listen()
        self.check(listener, {"accept": ([0.001], {}), "aaccept": ([0.001], {})})
        with self.open().connect(listener.address) as there, listener.accept(20) as here:
            answers = threading.Thread(target=self.receive_all, args=(there,))
            answers.start()
            send, recv = ([b"1", 1], dict(timeout=0.005)), ([bytearray(8), 2], dict(timeout=0.001))
            self.check(here, {"send": send, "asend": send, "submit_send": send, "recv_into": recv, "arecv_into": recv,
                              "submit_recv_into": recv, "recv": ([2, 8], dict(timeout=0.001)),
                              "arecv": ([2, [1, 2]], dict(timeout=0.001))})
            for junk in JUNK:
                for call in (here.send, here.recv_into):
                    self.say(lambda: call([bytearray(1), junk], 1, timeout=0.001))
                self.say(lambda: here.recv(1, [8, junk], timeout=0.001))
            here.send(b"the end", 1, timeout=20)
            answers.join()
            self.check(here, {"__exit__": ([None, None, None], {})})
            self.assertTrue(here.closed)

    def receive_all(self, channel: tarn.Channel) -> None:
        """With tag 1, until the last message."""
        last = False
        while not last:
            with contextlib.suppress(tarn.SizeMismatch, tarn.Again):
                last = channel.recv(1, timeout=60) == b"the end"

    def test_window_memory(self) -> None:
        for what, (some, options) in with_junk([8], dict(huge=False)):
            with self.subTest(what=what):
                self.say(lambda: tarn.WindowMemory(*some, **options))

    def test_clients(self) -> None:
        named = dict(ns="default", transports="tcp", secret="x", timeout=1.0, workers=1, log=None, listen=None)
        for what, (some, options) in with_junk([self.store.uri], named):
            with self.subTest(what=what):
                client = self.say(lambda: tarn.Client(*some, **options))
                if client is not None:
                    client.close()

    def test_pieces(self) -> None:
        for what, (some, options) in with_junk([1, 1, 1, 1], dict(device=None, stream=None, keep=None)):
            with self.subTest(what=what):
                self.say(lambda: tarn.Piece(*some, **options))

    def test_at_random(self) -> None:
        """Several at once."""
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        every = {**CALLS, **AWAITED}
        for n in range(RANDOM_CALLS):
            method = rng.choice(list(every))
            arguments, options = every[method]
            some = [rng.choice(JUNK) if rng.random() < 0.4 else a for a in arguments]
            named = {name: rng.choice(JUNK) if rng.random() < 0.4 else o for name, o in options.items()
                     if rng.random() < 0.5}
            with self.subTest(seed=seed, call=n, method=method):
                self.say(lambda: getattr(self.client, method)(*some, **named))
        self.assertEqual(self.client.get("eight", out="bytes"), b"12345678")


if __name__ == "__main__":
    unittest.main()
