# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class for each code of libtarn (include/tarn/error.h), and three of the package's own."""
from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Type, Union

from . import _tarn

Key = Union[bytes, str]


class Error(Exception):
    """Whatever tarn reports. `str(e)` is one sentence: object, cause, remedy.

    code    the negative number, as lists of results hold it
    name    its name: "NOT_FOUND"
    key     the key that it was about, as it was given; None: none, or several
    peer    id of the node that it was about, where the sentence names one
    remedy  what helps, where the sentence says it
    """

    code: int = 0
    name: str = "ERROR"
    _remedy: Optional[str] = None  # of a class whose sentences end with the cause

    def __init__(self, message: str = "", *, key: Optional[Key] = None, code: Optional[int] = None) -> None:
        super().__init__(message or _text(self.code if code is None else code))
        self.message: str = str(self.args[0])
        self.key = key
        if code is not None:
            self.code = code
            self.name = _tarn.errors.get(code, ("UNKNOWN",))[0]

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        return (_again, (type(self), self.message, self.key, self.code))

    @property
    def peer(self) -> Optional[str]:
        m = re.search(r"\bnode ([^\s:]+)(?: \(([^)]+)\))?:", self.message)
        return m.group(1) if m else None

    @property
    def remedy(self) -> Optional[str]:
        parts = self.message.split(": ")
        return self._remedy or (parts[-1] if len(parts) >= 3 else None)


def _again(cls: Type[Error], message: str, key: Optional[Key], code: int) -> Error:
    return cls(message, key=key, code=code)


class NotFound(Error, KeyError):
    """No such key."""

    _remedy = "put it first, or use get_many(), where a miss is None"


class Exists(Error):
    """The key exists already: put with replace=True to take its place."""

    _remedy = "put with replace=True to take its place"


class Invalid(Error, ValueError):
    """The call itself is wrong."""


class SizeMismatch(Error, ValueError):
    """The buffer and the object differ in size."""


class TensorMismatch(Error, ValueError):
    """The buffer's dtype or shape are not the object's."""


class TooLarge(Error, ValueError):
    """Larger than any pool."""

    _remedy = "put it in parts, or start a node with a larger pool"


class FormatError(Error, ValueError):
    """A malformed file or record."""


class Unsupported(Error):
    """Not supported here."""


class Closed(Error):
    """The client was closed."""


class Full(Error):
    """No room, and nothing can be evicted."""


class Timeout(Error, TimeoutError):
    """The deadline has passed."""


class Canceled(Error):
    """Canceled by the caller."""


class Busy(Error):
    """In use."""


class Again(Error):
    """Not possible at this moment (a queue is full, say); the same call may succeed later."""


class NodeDown(Error, ConnectionError):
    """The storage node does not answer."""


class DirectoryError(Error, ConnectionError):
    """The directory (Redis) does not answer, or refuses."""


class Protocol(Error):
    """The peer does not speak this protocol."""


class Stale(Error):
    """The object has moved or was replaced."""


class NotReachable(Error):
    """No transport reaches the pool."""


class AuthError(Error):
    """Authentication failed."""


class VersionError(Error):
    """The peer speaks another version."""


class Unavailable(Error):
    """Not available on this machine."""


class NoMemory(Error, MemoryError):
    """Out of memory."""


class SystemFailure(Error, OSError):
    """A system call failed."""


class ConfigError(Error):
    """Wrong configuration."""


class InDoubt(Error):
    """Done, but an old copy may still be read for a while: the message says where and for how long."""


class Forked(Error):
    """The client was opened before fork(): open one of its own in the child process."""


class BatchError(Error):
    """Some of many failed otherwise than by a miss.

    results  as the call would have returned them, None for those that failed
    errors   {index: Error}; the sentence of the first of them says most, and peer and remedy are its own
    """

    def __init__(self, message: str, results: List[Any], errors: Dict[int, Error]) -> None:
        first = errors[min(errors)]
        super().__init__(message, key=None, code=first.code)
        self.results = results
        self.errors = errors

    @property
    def peer(self) -> Optional[str]:
        return self.errors[min(self.errors)].peer

    @property
    def remedy(self) -> Optional[str]:
        return self.errors[min(self.errors)].remedy

    def __reduce__(self) -> Any:
        return (BatchError, (self.message, self.results, self.errors))


_CLASSES: Dict[str, Type[Error]] = {
    "NOT_FOUND": NotFound,
    "EXISTS": Exists,
    "INVALID": Invalid,
    "SIZE": SizeMismatch,
    "TENSOR_MISMATCH": TensorMismatch,
    "TOO_LARGE": TooLarge,
    "FORMAT": FormatError,
    "UNSUPPORTED": Unsupported,
    "CLOSED": Closed,
    "FULL": Full,
    "TIMEOUT": Timeout,
    "CANCELED": Canceled,
    "BUSY": Busy,
    "AGAIN": Again,
    "NODE_DOWN": NodeDown,
    "DIRECTORY": DirectoryError,
    "PROTOCOL": Protocol,
    "STALE": Stale,
    "NOT_REACHABLE": NotReachable,
    "AUTH": AuthError,
    "VERSION": VersionError,
    "UNAVAILABLE": Unavailable,
    "NO_MEMORY": NoMemory,
    "SYSTEM": SystemFailure,
    "CONFIG": ConfigError,
    "IN_DOUBT": InDoubt,
    "FORKED": Forked,
}

_BY_CODE: Dict[int, Type[Error]] = {code: _CLASSES.get(row[0], Error) for code, row in _tarn.errors.items()}
for _code, _cls in _BY_CODE.items():
    if _cls is not Error:
        _cls.code = _code
        _cls.name = _tarn.errors[_code][0]


def _text(code: int) -> str:
    return _tarn.errors[code][2] if code in _tarn.errors else f"error {code}"


def error_of(code: int, key: Optional[Key] = None, message: Optional[str] = None) -> Error:
    """The exception of a negative code, as lists of results hold it. It is returned, not raised."""
    cls = _BY_CODE.get(code, Error)
    if message is None:
        message = _text(code) if key is None else f"key {key!r}: {_text(code)}"
    return cls(message, key=key, code=code)


def _make(code: int, key: Optional[Key], why: Optional[str]) -> Error:
    return error_of(code, key, why or None)


_tarn._set_error_maker(_make)
