# SPDX-License-Identifier: Apache-2.0
"""Channels: messages between two clients, with tags (include/tarn/channel.h)."""
from __future__ import annotations

import contextlib
import operator
from typing import Any, List, NamedTuple, Optional, Tuple, Union, overload

from . import _tarn, _windows
from ._errors import Invalid

_SMALL = 4096  # bytes of a receive that needs no window


class Peer(NamedTuple):
    """The other end of a channel."""

    ip: str
    address: str  # where it answers, "host:port"
    id: int  # the same for all channels with that client
    hello: bytes  # accepted channels: what the connector has told


class Channel(_tarn.Channel):
    """Messages to and from another client: see Client.connect() and Listener.accept(). A context manager, which closes
    it. Any number of threads may use it, in both directions at once.

    A message is a value, or a list of up to 8192 values, which the receiver takes into as many. Sends and receives of a
    tag match in the order in which they were called. Tags are independent of one another.

    Sends and receives raise NodeDown (the peer has ended, or has closed the channel), Timeout, Closed, SizeMismatch
    (at both ends: the message was longer than the receive, or has other items; nothing was written), Invalid.
    """

    @property
    def peer(self) -> Peer:
        address, id, hello = self._peer
        return Peer(address.rpartition(":")[0].strip("[]"), address, id, hello)

    def send(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> None:
        """Sends a message, and waits until it has been received."""
        _wait(self._submit_send(value, tag, timeout))

    @overload
    def recv(self, tag: int = 0, nbytes: int = _SMALL, *, timeout: Optional[float] = None) -> memoryview: ...
    @overload
    def recv(self, tag: int, nbytes: Union[List[int], Tuple[int, ...]], *,
             timeout: Optional[float] = None) -> List[memoryview]: ...
    def recv(self, tag: int = 0, nbytes: Any = _SMALL, *, timeout: Optional[float] = None) -> Any:
        """Receives a message into new memory; returns as many bytes as it has, as numpy.frombuffer() takes them.

        nbytes  how many it may have, or a list of that for a message of several values

        Makes a window for more than 4096 bytes: recv_into() is faster for large messages that come often. Raises as
        recv_into().
        """
        with self._room(nbytes) as room:
            return _cut(room, self.recv_into(room, tag, timeout=timeout))

    def recv_into(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> Any:
        """Receives a message into memory of the caller's. Returns its bytes, or a list of that for a list.

        More than 4096 bytes must lie in one window of this client: c.window(array). Parts of it may be received into
        at the same time.

        Also raises Again (the sender gave up in the middle: receive again) and Busy (the sender was stopped in the
        middle of a copy; the memory is its until the window is closed). A SizeMismatch has the size of what was sent as
        `nbytes`. The content is undefined after other exceptions.
        """
        return _wait(self._submit_recv(value, tag, timeout))

    def submit_send(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> _tarn.Operation:
        """As send(), but returns at once; the Operation's wait() returns None. Do not change the value until it is
        complete."""
        self._client._make_room()
        return self._submit_send(value, tag, timeout)

    def submit_recv_into(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> _tarn.Operation:
        """As recv_into(), but returns at once; the Operation's wait() returns the size. It keeps the memory until it is
        complete."""
        self._client._make_room()
        return self._submit_recv(value, tag, timeout)

    async def asend(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> None:
        """As send(), for asyncio. A canceled one may have been received."""
        await self._client._finish(self._submit_send(value, tag, timeout))

    @overload
    async def arecv(self, tag: int = 0, nbytes: int = _SMALL, *, timeout: Optional[float] = None) -> memoryview: ...
    @overload
    async def arecv(self, tag: int, nbytes: Union[List[int], Tuple[int, ...]], *,
                    timeout: Optional[float] = None) -> List[memoryview]: ...
    async def arecv(self, tag: int = 0, nbytes: Any = _SMALL, *, timeout: Optional[float] = None) -> Any:
        """As recv(), for asyncio. A message that is complete when it is canceled is lost."""
        with self._room(nbytes) as room:
            return _cut(room, await self.arecv_into(room, tag, timeout=timeout))

    async def arecv_into(self, value: Any, tag: int = 0, *, timeout: Optional[float] = None) -> Any:
        """As recv_into(), for asyncio. Nothing is written after this returns or raises, also when it is canceled. A
        message that is complete by then is lost."""
        return await self._client._finish(self._submit_recv(value, tag, timeout))

    @contextlib.contextmanager
    def _room(self, nbytes: Any) -> Any:
        """New memory to receive into: a memoryview, or a list of them."""
        several = isinstance(nbytes, (list, tuple))
        sizes = [_size(n) for n in (nbytes if several else [nbytes])]
        total = sum(sizes)
        memory: Any = _tarn.WindowMemory(total) if total > _SMALL else bytearray(total)
        with self._client.window(memory) if total > _SMALL else contextlib.nullcontext():
            rest, room = memoryview(memory), []
            for size in sizes:
                room.append(rest[:size])
                rest = rest[size:]
            yield room if several else room[0]

    def __repr__(self) -> str:
        return f"<tarn.Channel with {self._peer[0]}, {'closed' if self.closed else 'open'}>"


def _size(n: Any) -> int:
    if not hasattr(n, "__index__"):
        raise TypeError(f"nbytes: of type {type(n).__name__}: give a whole number, or a list of them")
    size = operator.index(n)
    if size < 0:
        raise Invalid(f"nbytes: {size}: give 0 or more")
    return size


def _cut(room: Any, nbytes: Any) -> Any:
    return [r[:n] for r, n in zip(room, nbytes)] if isinstance(room, list) else room[:nbytes]


def _wait(op: _tarn.Operation) -> Any:
    """Its result. After Ctrl-C nothing uses the memory any more."""
    try:
        return op.wait()
    except BaseException:
        op.cancel()
        raise


class Listener:
    """Where a client listens: see Client.listen(). It listens until it is closed.

    address    "host:port", for connect()
    path       of the Unix socket, for connect() on this host
    """

    def __init__(self, client: "Channels") -> None:
        self.address, self.path = client._listen()
        self._client = client

    @property
    def accept_fd(self) -> int:
        """Readable while channels wait to be accepted: poll it, never read or close it."""
        return self._client._accept_fd()

    def accept(self, timeout: Optional[float] = None) -> Channel:
        """Waits for the oldest channel that somebody has connected. Its `peer` says who. Raises Timeout, Closed."""
        return Channel._accept(self._client, timeout)

    async def aaccept(self, timeout: Optional[float] = None) -> Channel:
        """As accept(), for asyncio. A canceled one has accepted nothing."""
        return await self._client._first(self.accept_fd, self._accept_now, timeout)

    def _accept_now(self) -> Channel:
        return self.accept(0.001)

    def __repr__(self) -> str:
        return f"<tarn.Listener at {self.address}>"


class Channels(_windows.Windows):
    def listen(self) -> Listener:
        """Lets other clients connect, at `listen` of Client() and at a Unix socket, until this client is closed.

        Raises ConfigError: `listen` is an address that other hosts reach, and this client has no secret.
        """
        return Listener(self)

    def connect(self, address: str, *, hello: Any = b"", timeout: Optional[float] = None) -> Channel:
        """Connects to a client that listens. It need not have accepted yet: messages wait.

        address  "host:port" or the path of a Unix socket, of its Listener
        hello    up to 256 bytes that tell the peer about this client, such as the number of its GPU

        Raises NodeDown (nobody answers), NotFound (the client there does not listen), AuthError, Again (1024 channels
        wait to be accepted there), ConfigError (the peer is on another host, and could not reach this client: open it
        with listen="HOST:0"), VersionError, Timeout.
        """
        return Channel(self, address, hello, timeout)

    async def aconnect(self, address: str, *, hello: Any = b"", timeout: Optional[float] = None) -> Channel:
        """As connect(), for asyncio."""
        channel: Channel = await self._finish(Channel._submit(self, address, hello, timeout))
        return channel
