# SPDX-License-Identifier: Apache-2.0
"""Windows: memory of this client that others read and write, and theirs for this one (include/tarn/window.h)."""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional, Tuple

from . import _aio, _tarn
from ._errors import Closed, Timeout, error_of

_WAIT_S = 10.0  # an iterator waits so long, again and again


class Notification(NamedTuple):
    """What a writer told with a write, whose bytes are in place."""

    tag: int
    data: bytes
    peer: str  # who: "unix:uid=1000,pid=4711" or an address
    lease: _tarn.Lease


class Window(_tarn.Window):
    """Memory that a client lends: see Client.window(). A context manager, which closes it.

    It keeps the memory until it is closed, and ends when nothing refers to it or its leases. Iterating over it gives
    notifications as they come, until it is closed.
    """

    def notification(self, timeout: Optional[float] = None) -> Notification:
        """Waits for the oldest notification of the window's leases, and takes it. Raises Timeout, Closed."""
        return Notification(*self._notification(timeout))

    def __iter__(self) -> Iterator[Notification]:
        while True:
            try:
                yield self.notification(_WAIT_S)
            except Timeout:
                continue
            except Closed:
                return

    def __repr__(self) -> str:
        return f"<tarn.Window of {self.nbytes} bytes, {'closed' if self.closed else 'open'}>"


class Reach(_tarn.Reach):
    """A lease of another client: see Client.reach(). Keeps its client; any number of threads may use it."""

    def submit_read(self, value: Any, offset: int = 0, *, after: Any = None,
                    timeout: Optional[float] = None) -> _tarn.Operation:
        """As read(), but returns at once; the Operation's wait() returns a list: 0 or a negative code for each value.

        after    a torch.cuda.Event (or cudaEvent_t as int) recorded after the kernels that still use the buffers;
                 None: after all work that torch's current streams have so far
        timeout  seconds from now

        The operation keeps the buffers until it is complete.
        """
        self._client._make_room()
        return self._submit_read(value, offset, after=after, timeout=timeout)

    def submit_write(self, value: Any, offset: int = 0, *, after: Any = None, timeout: Optional[float] = None,
                     notify: Optional[Tuple[int, Any]] = None) -> _tarn.Operation:
        """As write(), but returns at once; the Operation's wait() returns a list: 0 or a negative code for each value,
        or raises what the notification failed with. Do not change the values until it is complete. `after`: recorded
        after the kernels that write the values."""
        self._client._make_room()
        return self._submit_write(value, offset, after=after, timeout=timeout, notify=notify)

    async def aread(self, value: Any, offset: int = 0, *, timeout: Optional[float] = None) -> None:
        """As read(), for asyncio. The operation uses the buffers until this returns or raises."""
        await self._finish(self._submit_read(value, offset, timeout=timeout))

    async def awrite(self, value: Any, offset: int = 0, *, timeout: Optional[float] = None,
                     notify: Optional[Tuple[int, Any]] = None) -> None:
        """As write(), for asyncio."""
        await self._finish(self._submit_write(value, offset, timeout=timeout, notify=notify))

    async def _finish(self, op: _tarn.Operation) -> None:
        for code in await self._client._finish(op):
            if code:
                raise error_of(code, None, op._why or None)

    def __repr__(self) -> str:
        return f"<tarn.Reach of {self.nbytes} bytes>"


class Windows(_aio.Async):
    def window(self, value: Any) -> Window:
        """Lends memory: others read and write it straight, without a node, as far as its leases allow.

        value  a contiguous array, tensor or another buffer that can be written to, or a tarn.Piece

        Arrays over tarn.WindowMemory are reached by peers of this host without a copy, other memory by tcp. The Window
        keeps the value until it is closed.

        Raises Invalid (read-only, no bytes), Unsupported (not contiguous; memory that cannot be lent), Busy (too many
        windows), SystemFailure.
        """
        return Window(self, value)

    async def areach(self, descriptor: str, *, timeout: Optional[float] = None) -> Reach:
        """As reach(), for asyncio."""
        reach: Reach = await self._finish(Reach._submit(self, descriptor, timeout))
        return reach

    def reach(self, descriptor: str, *, timeout: Optional[float] = None) -> Reach:
        """Asks the lender of a lease, once, for what reads and writes of it need.

        descriptor  of a Lease or Window, or the name by which a lease was published

        Raises Invalid (neither, or altered, or of another namespace), NotFound (nobody lends by that name), Stale (the
        lease has ended), NodeDown (the lender does not answer), AuthError, VersionError.
        """
        return Reach(self, descriptor, timeout=timeout)
