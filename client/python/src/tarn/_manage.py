# SPDX-License-Identifier: Apache-2.0
"""Looking at the store, and registering memory: what moves no tensor bytes."""
from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _aio, _tarn
from ._errors import Closed, Key

_LISTEN_S = 1.0  # of one subscription: close() waits for its end
_LOOK_S = 0.05   # Ctrl-C


class Copy(NamedTuple):
    """One of an object's copies."""

    node: str
    pool: str
    transport: Optional[str]  # what a get from here would use; None: nothing reaches it
    offset: int               # bytes, in the pool
    gen: int
    slot: int


class ObjectInfo(NamedTuple):
    """What the directory says of one object."""

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
    transport: Optional[str]  # what this client would use; None: nothing reaches it


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
    """An object that came or went."""

    what: str  # stored, removed, evicted, expired
    key: bytes
    node: str
    pool: str
    nbytes: int


class Transport(NamedTuple):
    name: str
    why: Optional[str]  # it is not usable; None: it is


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
        """What the directory says of one object, asked afresh. Raises NotFound."""
        [found] = self._stat(key, timeout)
        return _object(*found)

    def list(self, match: Optional[str] = None, *, timeout: Optional[float] = None) -> List[ObjectInfo]:
        """Every object whose escaped key (as `tarn ls` shows it) matches the glob; None: all. In no order; one that
        comes or goes meanwhile may be there twice or not at all. Asks for the whole namespace: not for a data path.
        """
        return [_object(*o) for o in self._list(match, timeout)]

    def nodes(self, *, timeout: Optional[float] = None) -> List[NodeInfo]:
        """Every node of the namespace, asked afresh."""
        return [_node(*n) for n in self._nodes(timeout)]

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """Objects as they come and go, for `timeout` seconds; None: until the client is closed.

            for e in client.events(10): print(e.what, e.key)

        Listens from the first next() on. Events are hints: those of moments when nobody listens are lost, as between
        two of the subscriptions that this makes, one a second.
        """
        timeout = _tarn._seconds("timeout", timeout)
        self._event_fd()  # one that is closed says so
        got: "queue.SimpleQueue[Union[Event, Exception, None]]" = queue.SimpleQueue()
        stop = threading.Event()
        threading.Thread(target=_listen, args=(self, timeout, got.put, stop), name="tarn-events", daemon=True).start()
        try:
            while True:
                try:
                    event = got.get(timeout=_LOOK_S)  # not for long: Ctrl-C does not end it
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
        """Announces memory that later calls will use, once, so that transports which need it (RDMA) do not register
        it in every call.

        value   an array, a tensor or another buffer, or (address, bytes)
        device  of an address: the GPU, as CUDA counts; None: asked of CUDA

        close() it, or leave its with block, before the memory is unmapped. Memory of a buffer stays as long as the
        Registration does. Registering within what is registered is allowed and cheap.

        Raises Invalid (no memory there), Unsupported, SystemFailure (above all the limit of locked memory, ulimit -l).
        """
        if isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, int) for n in value):
            value = _tarn.Piece(*value, device=device)
        return self._register(value)


def _listen(client: Managing, timeout: Optional[float], put: Callable[[Any], None], stop: threading.Event) -> None:
    """A thread's: libtarn calls back as long as it listens. Ends with None, or an exception."""
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
