# SPDX-License-Identifier: Apache-2.0
"""Inspecting the store, and registering memory: calls that move no tensor bytes."""
from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _aio, _tarn
from ._errors import Closed, Key

_LISTEN_S = 1.0  # length of a subscription: close() waits for its end
_LOOK_S = 0.05   # between checks for Ctrl-C


class Copy(NamedTuple):
    """A copy of an object."""

    node: str
    pool: str
    transport: Optional[str]  # the one that a get from here would use; None: not reachable
    offset: int               # bytes, in the pool
    gen: int
    slot: int


class ObjectInfo(NamedTuple):
    """An object, as the directory describes it."""

    key: bytes
    dtype: str
    shape: Tuple[int, ...]
    nbytes: int
    version: int            # random, new with every put
    born: float             # Unix time of the commit, seconds
    ttl: Optional[float]    # seconds; None: none
    copies: Tuple[Copy, ...]


class PoolInfo(NamedTuple):
    """A pool of a node."""

    name: str
    kind: str
    nbytes: int
    free_nbytes: int
    objects: int
    transport: Optional[str]  # the one that this client would use; None: not reachable


class NodeInfo(NamedTuple):
    """A node of the namespace."""

    id: str
    host: str
    control: str
    unix_path: Optional[str]
    version: str
    state: str
    epoch: int
    started: float     # Unix time, seconds
    same_host: bool    # its Unix socket answered
    pools: Tuple[PoolInfo, ...]


class Event(NamedTuple):
    """An object that appeared or disappeared."""

    what: str  # stored, removed, evicted, expired
    key: bytes
    node: str
    pool: str
    nbytes: int


class Transport(NamedTuple):
    name: str
    why: Optional[str]  # why it is not usable; None: it is usable


def transports() -> List[Transport]:
    """Every transport, in order of preference. Needs no client."""
    return [Transport(*t) for t in _tarn.transports()]


def _object(key: bytes, tensor: _tarn.TensorInfo, version: int, born_ms: int, ttl_ms: int, copies: Any) -> ObjectInfo:
    return ObjectInfo(key, tensor.dtype, tensor.shape, tensor.nbytes, version, born_ms / 1e3, ttl_ms / 1e3 or None,
                      tuple(Copy(*c) for c in copies))


def _node(*fields: Any) -> NodeInfo:
    *texts, epoch, started_ms, same_host, pools = fields
    return NodeInfo._make((*texts, epoch, started_ms / 1e3, same_host, tuple(PoolInfo(*p) for p in pools)))


class Managing(_aio.Async):
    def stat(self, key: Key, *, timeout: Optional[float] = None) -> ObjectInfo:
        """Asks the directory about an object. Raises NotFound."""
        [found] = self._stat(key, timeout)
        return _object(*found)

    def list(self, match: Optional[str] = None, *, timeout: Optional[float] = None) -> List[ObjectInfo]:
        """Every object whose escaped key (as `tarn ls` shows it) matches the glob; None: all. Unordered. An object that
        appears or disappears meanwhile may be listed twice or not at all. Reads the whole namespace: do not use it in a
        data path.
        """
        return [_object(*o) for o in self._list(match, timeout)]

    def nodes(self, *, timeout: Optional[float] = None) -> List[NodeInfo]:
        """Asks the directory for every node of the namespace."""
        return [_node(*n) for n in self._nodes(timeout)]

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """Objects as they appear and disappear, for `timeout` seconds; None: until the client is closed.

            for e in client.events(10): print(e.what, e.key)

        Listens from the first next() on. Events are hints: they are lost while nobody listens, also for a moment each
        second, when this renews its subscription.
        """
        timeout = _tarn._seconds("timeout", timeout)
        self._event_fd()  # raises Closed
        got: "queue.SimpleQueue[Union[Event, Exception, None]]" = queue.SimpleQueue()
        stop = threading.Event()
        threading.Thread(target=_listen, args=(self, timeout, got.put, stop), name="tarn-events", daemon=True).start()
        try:
            while True:
                try:
                    event = got.get(timeout=_LOOK_S)  # short, because Ctrl-C does not interrupt it
                except queue.Empty:
                    continue
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            stop.set()

    def register(self, value: Any, *, device: Optional[int] = None) -> _tarn.Registration:
        """Registers memory once, so that transports that need registration (RDMA) do not register it in every call.

        value   an array, a tensor or another buffer, or (address, bytes)
        device  of an address: the GPU, as CUDA counts; None: asked of CUDA

        Call its close(), or leave its with block, before the memory is unmapped. The Registration keeps the memory of a
        buffer. Registering a part of registered memory is allowed and cheap.

        Raises Invalid (no memory there), Unsupported, SystemFailure (above all the limit of locked memory, ulimit -l).
        """
        if isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, int) for n in value):
            value = _tarn.Piece(*value, device=device)
        return self._register(value)


def _listen(client: Managing, timeout: Optional[float], put: Callable[[Any], None], stop: threading.Event) -> None:
    """Runs in a thread of its own. The last item that it puts is None or an exception."""
    until = None if timeout is None else time.monotonic() + timeout

    def tell(*event: Any) -> bool:
        put(Event(*event))
        return not stop.is_set()

    try:
        while not stop.is_set() and not client.closed:
            left = _LISTEN_S if until is None else min(_LISTEN_S, until - time.monotonic())
            if left <= 0:
                break
            client._events(tell, left)
        put(None)
    except Closed:
        put(None)
    except Exception as e:
        put(e)
