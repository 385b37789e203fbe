# SPDX-License-Identifier: Apache-2.0
"""Client: the parts that are not in the extension, above all get(), which makes the array that it returns."""
from __future__ import annotations

import atexit
import os
import re
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Union, overload

from . import _aio, _arrays, _bulk, _channels, _tarn
from ._errors import BatchError, Error, Key, error_of

if TYPE_CHECKING:
    from typing import Literal

    from torch import Tensor

    from ._arrays import Array

_SIZE = -4
_NOT_FOUND = -1
_TRIES = 8  # of a get, while its object is replaced by others of other sizes

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client(_bulk.Bulk, _channels.Channels):
    """A connection to the store; any number of threads may use it at once.

    uri         redis://[user[:password]@]host[:port][/db], unix:///path, or with Redis Sentinel
                redis+sentinel://[user[:password]@]host[:port][,host...]/name[/db]; None: $TARN_REDIS
    ns          namespace
    transports  comma list in order of preference: "shm,tcp"
    secret      shared secret of the nodes; None: $TARN_SECRET, else the one that a node made itself and put into Redis
    timeout     seconds: the deadline of calls without a timeout of their own
    workers     threads for submitted operations; 0: 2
    log         a logging.Logger, or None
    listen      "host:port" where peers reach this client's windows and channels; port 0: a free one; None:
                "127.0.0.1:0"

    Raises DirectoryError, ConfigError, Unavailable. Every call may raise DirectoryError (Redis does not answer), Closed
    (after close()), Forked (in a child process) and TypeError (an argument of the wrong type). The asynchronous calls
    raise the same as those without the "a".
    """

    _guess = 0  # bytes of the last object got
    _name: Optional[str] = None

    def __init__(self, uri: Optional[str] = None, *, ns: Optional[str] = None, transports: Optional[str] = None,
                 secret: Optional[str] = None, timeout: float = 5.0, workers: int = 0,
                 log: Any = None, listen: Optional[str] = None) -> None:
        super().__init__(uri, ns=ns, transports=transports, secret=secret, timeout=timeout, workers=workers,
                         log=log, listen=listen)
        self._name = _name_of(uri, ns)
        _clients.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._name else "never opened"
        return f"<tarn.Client {self._name} {state}>" if self._name else f"<tarn.Client {state}>"

    def __getitem__(self, key: Key) -> Array:
        """As get(key)."""
        return self.get(key)

    def __contains__(self, key: object) -> bool:
        """As exists(key)."""
        if not isinstance(key, (bytes, str)):
            raise TypeError(f"key: of type {type(key).__name__}: give bytes or a str")
        return self.exists(key)

    __iter__ = None  # __getitem__() takes keys, not numbers

    @overload
    def get(self, key: Key, *, out: Literal["numpy"] = "numpy", device: None = None,
            timeout: Optional[float] = None) -> Array: ...
    @overload
    def get(self, key: Key, *, out: Literal["bytes"], device: None = None,
            timeout: Optional[float] = None) -> bytearray: ...
    @overload
    def get(self, key: Key, *, out: Literal["torch"], device: Any = None,
            timeout: Optional[float] = None) -> Tensor: ...
    @overload
    def get(self, key: Key, *, out: str = "torch", device: Any, timeout: Optional[float] = None) -> Tensor: ...
    def get(self, key: Key, *, out: str = "numpy", device: Any = None, timeout: Optional[float] = None) -> Any:
        """The object as a new array of its dtype and shape.

        out     "numpy", "torch" or "bytes" (a bytearray: dtype and shape are lost)
        device  torch device of the result; implies out="torch"

        Raises NotFound, and what get_into() raises.
        """
        [value] = self._get([key], out, device, None, timeout, self._raise_one)
        return value

    @overload
    def get_many(self, keys: Iterable[Key], *, out: Literal["numpy"] = "numpy", device: None = None,
                 hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Optional[Array]]: ...
    @overload
    def get_many(self, keys: Iterable[Key], *, out: Literal["bytes"], device: None = None,
                 hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Optional[bytearray]]: ...
    @overload
    def get_many(self, keys: Iterable[Key], *, out: Literal["torch"], device: Any = None,
                 hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Optional[Tensor]]: ...
    @overload
    def get_many(self, keys: Iterable[Key], *, out: str = "torch", device: Any,
                 hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Optional[Tensor]]: ...
    def get_many(self, keys: Iterable[Key], *, out: str = "numpy", device: Any = None,
                 hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Any]:
        """The objects as new arrays, None for each that does not exist.

        Give the `hits` of lookup() or match_prefix() to save a round trip to the directory.
        Raises BatchError when some failed for another reason: its `results` has the others.
        """
        return self._get(_list_of(keys), out, device, hits, timeout, _raise_many)

    @overload
    async def aget(self, key: Key, *, out: Literal["numpy"] = "numpy", device: None = None,
                   timeout: Optional[float] = None) -> Array: ...
    @overload
    async def aget(self, key: Key, *, out: Literal["bytes"], device: None = None,
                   timeout: Optional[float] = None) -> bytearray: ...
    @overload
    async def aget(self, key: Key, *, out: Literal["torch"], device: Any = None,
                   timeout: Optional[float] = None) -> Tensor: ...
    @overload
    async def aget(self, key: Key, *, out: str = "torch", device: Any, timeout: Optional[float] = None) -> Tensor: ...
    async def aget(self, key: Key, *, out: str = "numpy", device: Any = None, timeout: Optional[float] = None) -> Any:
        """As get(), for asyncio."""
        [value] = await self._aget([key], out, device, None, timeout, self._raise_one)
        return value

    @overload
    async def aget_many(self, keys: Iterable[Key], *, out: Literal["numpy"] = "numpy", device: None = None,
                        hits: Optional[_tarn.Hits] = None,
                        timeout: Optional[float] = None) -> List[Optional[Array]]: ...
    @overload
    async def aget_many(self, keys: Iterable[Key], *, out: Literal["bytes"], device: None = None,
                        hits: Optional[_tarn.Hits] = None,
                        timeout: Optional[float] = None) -> List[Optional[bytearray]]: ...
    @overload
    async def aget_many(self, keys: Iterable[Key], *, out: Literal["torch"], device: Any = None,
                        hits: Optional[_tarn.Hits] = None,
                        timeout: Optional[float] = None) -> List[Optional[Tensor]]: ...
    @overload
    async def aget_many(self, keys: Iterable[Key], *, out: str = "torch", device: Any,
                        hits: Optional[_tarn.Hits] = None,
                        timeout: Optional[float] = None) -> List[Optional[Tensor]]: ...
    async def aget_many(self, keys: Iterable[Key], *, out: str = "numpy", device: Any = None,
                        hits: Optional[_tarn.Hits] = None, timeout: Optional[float] = None) -> List[Any]:
        """As get_many(), for asyncio."""
        return await self._aget(_list_of(keys), out, device, hits, timeout, _raise_many)

    @overload
    def view(self, key: Key, *, out: Literal["numpy"] = "numpy", timeout: Optional[float] = None) -> Array: ...
    @overload
    def view(self, key: Key, *, out: Literal["bytes"], timeout: Optional[float] = None) -> memoryview: ...
    @overload
    def view(self, key: Key, *, out: Literal["torch"], timeout: Optional[float] = None) -> Tensor: ...
    def view(self, key: Key, *, out: str = "numpy", timeout: Optional[float] = None) -> Any:
        """The object's bytes in place, in a pool on this host: an array of its dtype and shape, without a copy.

        out      "numpy" (read-only), "torch", or "bytes" (a read-only memoryview)
        timeout  seconds

        The bytes stay valid and unchanged as long as something refers to the array's memory, even if the object is
        evicted, replaced or removed, and even after close(). Do not keep views for long: their room cannot be reused.

        An object in a GPU pool can only be viewed with out="torch": a tensor on that GPU. Drop it when the kernels
        that read it have ended.

        torch has no read-only tensors. **Never write to a view**: this would change the object for everyone.

        Raises NotFound, NotReachable (no copy on this host: use get()), Again (too many views), NodeDown, Timeout;
        BufferError for an object in a GPU pool and another `out`.
        """
        return _arrays.maker(out, None).view(self._view(key, timeout=timeout))

    def _get(self, keys: List[Key], out: str, device: Any, hits: Optional[_tarn.Hits], timeout: Optional[float],
             fail: Callable[[List[Key], List[Any], List[int], Dict[int, str]], None]) -> List[Any]:
        """The sizes are not known yet. So each buffer is as large as the last object, which fits the blocks of a cache.
        If the size is wrong, the get returns the right one and moves no bytes."""
        make = _arrays.maker(out, device)
        until = self._until(timeout)
        sizes = _sizes_of(hits, len(keys)) if hits is not None else [self._guess_for(make, len(keys))] * len(keys)
        buffers = [make.buffer(n) for n in sizes]
        results: List[Any] = [None] * len(keys)
        codes = [_SIZE] * len(keys)
        said: Dict[int, str] = {}
        fetched, why = self._fetch_many(keys, buffers, hits=hits, timeout=timeout)
        left: Sequence[int] = range(len(keys))
        for _ in range(_TRIES):
            if why:
                _note(said, left, fetched, why)
            left = self._take(make, left, fetched, buffers, results, codes)
            if not left:
                break
            fetched, why = self._fetch_many([keys[i] for i in left], [buffers[i] for i in left],
                                            timeout=max(until - time.monotonic(), 0.001))
        if any(codes):
            fail(keys, results, codes, said)
        return results

    async def _aget(self, keys: List[Key], out: str, device: Any, hits: Optional[_tarn.Hits], timeout: Optional[float],
                    fail: Callable[[List[Key], List[Any], List[int], Dict[int, str]], None]) -> List[Any]:
        make = _arrays.maker(out, device)
        until = self._until(timeout)
        sizes = _sizes_of(hits, len(keys)) if hits is not None else [self._guess_for(make, len(keys))] * len(keys)
        buffers = [make.buffer(n) for n in sizes]
        results: List[Any] = [None] * len(keys)
        codes = [_SIZE] * len(keys)
        said: Dict[int, str] = {}
        left: Sequence[int] = range(len(keys))
        for _ in range(_TRIES):
            op = self._submit_get([keys[i] for i in left], [buffers[i] for i in left], hits=hits,
                                  timeout=max(until - time.monotonic(), 0.001), what=_aio.FETCH)
            fetched = await self._finish(op)
            if op._why:
                _note(said, left, fetched, op._why)
            left = self._take(make, left, fetched, buffers, results, codes)
            hits = None
            if not left:
                break
        if any(codes):
            fail(keys, results, codes, said)
        return results

    def _until(self, timeout: Optional[float]) -> float:
        seconds: float = self.timeout if timeout is None else _tarn._seconds("timeout", timeout)
        return time.monotonic() + seconds

    def _take(self, make: Any, left: Sequence[int], fetched: Any, buffers: List[Any], results: List[Any],
              codes: List[int]) -> List[int]:
        """For the keys `left`: makes arrays of those that were got, and new buffers for those of another size. Returns
        the latter."""
        again = []
        for i, (code, info) in zip(left, fetched):
            codes[i] = code
            if code == 0:
                results[i] = make.array(buffers[i], info)
            elif code == _SIZE:
                buffers[i] = make.buffer(info.nbytes)
                self._guess = info.nbytes
                again.append(i)
        return again

    def _guess_for(self, make: Any, n: int) -> int:
        return self._guess if n * self._guess <= make.guesses_max else 0

    def _raise_one(self, keys: List[Key], results: List[Any], codes: List[int], said: Dict[int, str]) -> None:
        raise error_of(codes[0], keys[0], said.get(0))


def _list_of(keys: Iterable[Key]) -> List[Key]:
    if isinstance(keys, (bytes, str)):
        raise TypeError(f"keys: of type {type(keys).__name__}: give a list of keys, or call get() for one")
    if not hasattr(keys, "__iter__") and not hasattr(keys, "__getitem__"):
        raise TypeError(f"keys: of type {type(keys).__name__}: give a list of keys, each bytes or a str")
    return list(keys)


def _name_of(uri: Optional[str], ns: Optional[str]) -> str:
    """For repr(): without passwords."""
    directory = uri or os.environ.get("TARN_REDIS") or "redis://127.0.0.1:6379"
    login = r"://.*" if re.search(r"\?sentinel_.*@", directory) else r"://(?!/).*@"
    shown = re.sub(login, "://***@", directory)
    return re.sub(r"\?sentinel_.*", "?***", shown) + f" ns={ns or 'default'}"


def _sizes_of(hits: _tarn.Hits, n: int) -> List[int]:
    if not isinstance(hits, _tarn.Hits):
        raise TypeError(f"hits: of type {type(hits).__name__}: give the Hits of lookup() or match_prefix()")
    tensors = (hits.tensor(i) if i < len(hits) else None for i in range(n))
    return [t.nbytes if t is not None else 0 for t in tensors]


def _note(said: Dict[int, str], left: Sequence[int], fetched: Any, why: str) -> None:
    """A call's sentence is about its first key that failed."""
    said[next((i for i, (code, _) in zip(left, fetched) if code), -1)] = why


def _raise_many(keys: List[Key], results: List[Any], codes: List[int], said: Dict[int, str]) -> None:
    errors = {i: error_of(c, keys[i], said.get(i)) for i, c in enumerate(codes) if c not in (0, _NOT_FOUND)}
    if errors:
        first = errors[min(errors)]
        raise BatchError(f"{len(errors)} of {len(keys)} gets failed, the first: {first}", results, errors)


@atexit.register
def _close_all() -> None:
    """At exit: waits for running calls, then closes the C clients."""
    for c in list(_clients):
        try:
            c.close()
        except Error:
            pass
