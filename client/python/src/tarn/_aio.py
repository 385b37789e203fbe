# SPDX-License-Identifier: Apache-2.0
"""Submitted operations, and asyncio on top: no thread, the client's event fd in the running loop.

The fd is readable while there is something to drain, for every loop that watches it. A drain also returns operations
that others wait for; _deliver() wakes them. So any number of loops, in any number of threads, may use one client.
"""
from __future__ import annotations

import os
import select
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar,
                    Union, overload)

from . import _tarn
from ._errors import Error, Invalid, Key, Timeout, error_of

if TYPE_CHECKING:
    import asyncio

    from ._tarn import Keys

Pairs = Union[Mapping[Any, Any], Iterable[Tuple[Key, Any]]]

GET, FETCH, GET_INFO = 0, 1, 2  # results of _submit_get()
_NONE: Any = object()  # no value was given
_A = TypeVar("_A", bound="Async")
_T = TypeVar("_T")
_FLYING_MAX = 64  # with more operations in flight, a submit drains first


class _Reader:
    """Watches the event fd in one loop, while that loop waits for operations. Belongs to the loop's thread."""

    def __init__(self, client: "Async", loop: asyncio.AbstractEventLoop) -> None:
        self.waiting = 0
        self._loop = loop
        self._fd = os.dup(client._event_fd())  # a copy: the client may be closed first, and its fd's number reused
        loop.add_reader(self._fd, self._ready, client)

    def _ready(self, client: "Async") -> None:
        try:
            client._deliver()
        except Error:
            pass  # it is being closed: close() wakes those who wait

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        os.close(self._fd)


class Async(_tarn.Client):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._futures: Dict[Any, "asyncio.Future[None]"] = {}  # of operations, and of who waits for a channel
        self._readers: Dict[asyncio.AbstractEventLoop, _Reader] = {}

    # --- submit ---

    def submit_get_into(self, keys: Iterable[Key], values: Any, *, hits: Optional[_tarn.Hits] = None,
                        after: Any = None, timeout: Optional[float] = None) -> _tarn.Operation:
        """As get_into_many(), but returns at once; the Operation's wait() returns the list.

        after    a torch.cuda.Event (or cudaEvent_t as int) recorded after the kernels that still use the buffers;
                 None: after all work that torch's current streams have so far
        timeout  seconds from now

        The operation keeps keys and buffers until it is complete. Until then the buffers' content is undefined.
        """
        self._make_room()
        return self._submit_get(keys, values, hits, after, timeout)

    def submit_put(self, pairs: Pairs, *, replace: bool = False, pin: bool = False, ttl: Optional[float] = None,
                   replicas: int = 1, place: Optional[str] = None, after: Any = None,
                   timeout: Optional[float] = None, chain: Union[bool, Key] = False) -> _tarn.Operation:
        """As put_many(), but returns at once; the Operation's wait() returns the list.

        after    a torch.cuda.Event (or cudaEvent_t as int) recorded after the kernels that write the values;
                 None: after all work that torch's current streams have so far

        Do not change the values until it is complete.
        """
        self._make_room()
        return self._submit_put(pairs, replace=replace, pin=pin, ttl=ttl, replicas=replicas, place=place, after=after,
                                timeout=timeout, chain=chain)

    def _make_room(self) -> None:
        if self._flying() > _FLYING_MAX:
            self._deliver()

    # --- draining ---

    def _deliver(self) -> None:
        for op in self._drain():
            self._tell(op)

    def _tell(self, op: Any) -> None:
        future = self._futures.pop(op, None)
        if future is None:
            return
        import asyncio

        loop = future.get_loop()
        if asyncio._get_running_loop() is loop:
            _wake(future)
            return
        try:
            loop.call_soon_threadsafe(_wake, future)
        except RuntimeError:
            pass  # that loop is closed: nobody waits there

    def close(self) -> None:
        """Refuses new calls, cancels submitted operations, waits for running calls, ends the client.

        Views keep its memory until they are gone. An operation that is still awaited raises Canceled, or returns
        codes."""
        super().close()
        for op in list(getattr(self, "_futures", ())):  # none where __init__() failed
            self._tell(op)

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- asyncio ---

    async def __aenter__(self: _A) -> _A:
        return self.__enter__()

    async def __aexit__(self, *_: Any) -> None:
        """close() may wait for calls of other threads, so the loop does not run it itself."""
        import asyncio

        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def _finish(self, op: _tarn.Operation) -> Any:
        """Its result. If the task is canceled, the operation is, too, so nothing uses the buffers afterwards."""
        import asyncio  # late, because its import takes longer than ours

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        try:
            reader = self._readers.get(loop)
            if reader is None:
                reader = self._readers[loop] = _Reader(self, loop)
            reader.waiting += 1
            try:
                self._futures[op] = future
                if not op._settled:  # else another thread drained it before the future was there
                    await future
            finally:
                self._futures.pop(op, None)
                reader.waiting -= 1
                if reader.waiting == 0:
                    del self._readers[loop]
                    reader.close()
        except BaseException:
            op.cancel()
            raise
        return op.wait()

    async def _first(self, fd: int, take: Callable[[], _T], timeout: Optional[float]) -> _T:
        """What take() returns, which raises Timeout while there is nothing. `fd` is readable while there is something;
        close() wakes those who wait, and take() raises Closed then."""
        import asyncio

        loop = asyncio.get_running_loop()
        seconds = _tarn._seconds("timeout", timeout) or self.timeout
        until = loop.time() + seconds
        own = os.dup(fd)  # each task watches one of its own
        look = select.poll()
        look.register(own, select.POLLIN)
        try:
            while True:
                ready = loop.create_future()
                self._futures[ready] = ready
                loop.add_reader(own, _wake, ready)
                try:
                    if not self.closed:  # else nobody wakes it
                        await asyncio.wait([ready], timeout=max(until - loop.time(), 0))
                finally:
                    loop.remove_reader(own)
                    self._futures.pop(ready, None)
                late = loop.time() >= until
                if not (late or self.closed or look.poll(0)):
                    continue  # another one has taken it
                try:
                    return take()
                except Timeout:
                    if late:
                        raise
        finally:
            os.close(own)

    @overload
    async def aput(self, key: Key, value: Any, *, dtype: Any = None, shape: Optional[Sequence[int]] = None,
                   timeout: Optional[float] = None, **options: Any) -> None: ...
    @overload
    async def aput(self, key: Mapping[Any, Any], *, timeout: Optional[float] = None, **options: Any) -> None: ...
    async def aput(self, key: Any, value: Any = _NONE, *, dtype: Any = None, shape: Optional[Sequence[int]] = None,
                   timeout: Optional[float] = None, **options: Any) -> None:
        """As put(), for asyncio."""
        pairs = _pairs_of(key, dtype, shape) if value is _NONE else [(key, value)]
        op = self._submit_put(pairs, dtype=dtype, shape=shape, timeout=timeout, **options)
        for code, (one, _) in zip(await self._finish(op), pairs):
            if code:
                raise error_of(code, one, op._why or None)

    async def aput_many(self, pairs: Pairs, **options: Any) -> List[int]:
        """As put_many(), for asyncio."""
        codes: List[int] = await self._finish(self._submit_put(pairs, **options))
        return codes

    async def aget_into(self, key: Key, value: Any, *, offset: Optional[int] = None,
                        timeout: Optional[float] = None) -> _tarn.TensorInfo:
        """As get_into(), for asyncio. The operation uses the buffer until this returns or raises."""
        op = self._submit_get([key], [value], timeout=timeout, what=GET_INFO, offset=offset)
        code: int
        info: _tarn.TensorInfo
        [(code, info)] = await self._finish(op)
        if code:
            raise error_of(code, key, op._why or None)
        return info

    async def aget_into_many(self, keys: Iterable[Key], values: Any, *, hits: Optional[_tarn.Hits] = None,
                             timeout: Optional[float] = None) -> List[int]:
        """As get_into_many(), for asyncio."""
        outcomes: List[int] = await self._finish(self._submit_get(keys, values, hits=hits, timeout=timeout))
        return outcomes

    async def alookup(self, keys: Iterable[Key], *, timeout: Optional[float] = None) -> _tarn.Hits:
        """As lookup(), for asyncio."""
        hits: _tarn.Hits = await self._finish(self._submit_lookup(keys, timeout))
        return hits

    async def amatch_prefix(self, keys: Iterable[Key], *, stride: int = 1,
                            timeout: Optional[float] = None) -> _tarn.Hits:
        """As match_prefix(), for asyncio."""
        hits: _tarn.Hits = await self._finish(self._submit_lookup(keys, timeout, stride))
        return hits

    @overload
    async def aexists(self, keys: Key, *, timeout: Optional[float] = None) -> bool: ...
    @overload
    async def aexists(self, keys: Keys, *, timeout: Optional[float] = None) -> List[bool]: ...
    async def aexists(self, keys: Union[Key, Keys], *, timeout: Optional[float] = None) -> Union[bool, List[bool]]:
        """As exists(), for asyncio."""
        if isinstance(keys, (bytes, str)):
            return (await self.alookup([keys], timeout=timeout))[0] == _tarn.HIT
        return [state == _tarn.HIT for state in (await self.alookup(keys, timeout=timeout)).states]

    @overload
    async def aremove(self, keys: Key, *, timeout: Optional[float] = None) -> bool: ...
    @overload
    async def aremove(self, keys: Keys, *, timeout: Optional[float] = None) -> List[int]: ...
    async def aremove(self, keys: Union[Key, Keys], *, timeout: Optional[float] = None) -> Union[bool, List[int]]:
        """As remove(), for asyncio."""
        if not isinstance(keys, (bytes, str)):
            codes: List[int] = await self._finish(self._submit_remove(keys, timeout))
            return codes
        op = self._submit_remove([keys], timeout)
        code: int
        [code] = await self._finish(op)
        if code not in (0, _NOT_FOUND):
            raise error_of(code, keys, op._why or None)
        return code == 0


_NOT_FOUND = -1


def _pairs_of(values: Any, dtype: Any, shape: Any) -> List[Tuple[Any, Any]]:
    """The pairs of put({key: value, ...})."""
    if not hasattr(values, "items"):
        raise TypeError("put(): a key without a value: give both, or {key: value, ...}")
    if dtype is not None or shape is not None:
        raise Invalid("put: dtype and shape are of one value: put these one by one")
    return list(values.items())


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
