# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class for each code of libtarn (include/tarn/error.h), and three of the package's own."""
from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Type, Union

from . import _tarn

Key = Union[bytes, str]


# What remedies begin with in the sentences, libtarn's and ours; or they are questions.
_ADVISES = re.compile(
    r"(add|allow|ask|begin|call|cancel|close|convert|correct|count|do|drain|end|fill|get|give|grant|install|keep|look|"
    r"make|move|name|open|pass|put|raise|read|record|release|remove|replace|reshape|run|see|set|size|start|stop|take|"
    r"try|use|wait|wait\(\)|write) |.*\?$", re.DOTALL)


def _remedy_in(sentence: str) -> Optional[str]:
    last = sentence.rpartition(": ")[2]
    return last if last != sentence and _ADVISES.match(last) else None


class Error(Exception):
    """Whatever tarn reports. `str(e)` is one sentence: object, cause, remedy.

    code    the negative number, as lists of results hold it
    name    its name: "NOT_FOUND"
    key     the key that it was about, as it was given; None: none, or several
    peer    id of the node that it was about, where the sentence names one
    remedy  what helps: the end of the sentence
    """

    code: int = 0
    name: str = "ERROR"
    _remedy: str = "see the nodes' logs and `tarn doctor`"  # where the sentence ends with the cause

    def __init__(self, message: str = "", *, key: Optional[Key] = None, code: Optional[int] = None) -> None:
        cause = message or _text(self.code if code is None else code)
        cause = cause.replace("\n", "\\n")  # of a name that was given
        said = self._remedy if cause.endswith(": " + self._remedy) else _remedy_in(cause)
        self.remedy: str = said or self._remedy
        self.message: str = cause if said else f"{cause}: {self.remedy}"
        super().__init__(self.message)
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


def _again(cls: Type[Error], message: str, key: Optional[Key], code: int) -> Error:
    return cls(message, key=key, code=code)


class NotFound(Error, KeyError):
    """No such key."""

    _remedy = "put it first, or use get_many() or exists(), where a miss is no error"


class Exists(Error):
    """The key exists already: put with replace=True to take its place."""

    _remedy = "put with replace=True to take its place"


class Invalid(Error, ValueError):
    """The call itself is wrong."""

    _remedy = "correct the call, help(tarn.Client) has its arguments"


class SizeMismatch(Error, ValueError):
    """The buffer and the object differ in size."""

    _remedy = "give a buffer of the object's size, which stat() tells"


class TensorMismatch(Error, ValueError):
    """The buffer's dtype or shape are not the object's."""

    _remedy = "give a buffer of the object's dtype and shape, which stat() tells"


class TooLarge(Error, ValueError):
    """Larger than any pool."""

    _remedy = "put it in parts, or start a node with a larger pool"


class FormatError(Error, ValueError):
    """A malformed file or record."""

    _remedy = "write it again"


class Unsupported(Error):
    """Not supported here."""

    _remedy = "convert the value first, or give its bytes"


class Closed(Error):
    """The client was closed."""

    _remedy = "open another one"


class Full(Error):
    """No room, and nothing can be evicted."""

    _remedy = "remove or unpin something, or start a node with a larger pool"


class Timeout(Error, TimeoutError):
    """The deadline has passed."""

    _remedy = "give a longer timeout, or look at the node and at Redis"


class Canceled(Error):
    """Canceled by the caller."""

    _remedy = "do it again if it is wanted"


class Busy(Error):
    """In use."""

    _remedy = "wait for what uses it, then try again"


class Again(Error):
    """Not possible at this moment (a queue is full, say); the same call may succeed later."""

    _remedy = "try again in a moment"


class NodeDown(Error, ConnectionError):
    """The storage node does not answer."""

    _remedy = "look at the node, or start it again"


class DirectoryError(Error, ConnectionError):
    """The directory (Redis) does not answer, or refuses."""

    _remedy = "look at Redis and at its address"


class Protocol(Error):
    """The peer does not speak this protocol."""

    _remedy = "see whether that address is a tarnd's, and of which version"


class Stale(Error):
    """The object has moved or was replaced."""

    _remedy = "get it again"


class NotReachable(Error):
    """No transport reaches the pool."""

    _remedy = "see `tarn info` for the transports that both sides have"


class AuthError(Error):
    """Authentication failed."""

    _remedy = "give the nodes' secret, as secret= or in TARN_SECRET"


class VersionError(Error):
    """The peer speaks another version."""

    _remedy = "install the version of tarn that the nodes have"


class Unavailable(Error):
    """Not available on this machine."""

    _remedy = "see `tarn info` for what this machine has"


class NoMemory(Error, MemoryError):
    """Out of memory."""

    _remedy = "close what is not used, or make the call smaller"


class SystemFailure(Error, OSError):
    """A system call failed."""

    _remedy = "see the system's limits (ulimit -a) and its log"


class ConfigError(Error):
    """Wrong configuration."""

    _remedy = "correct the setting, `tarn --help` lists them"


class InDoubt(Error):
    """Done, but an old copy may still be read for a while: the message says where and for how long."""

    _remedy = "do it again to be sure"


class Forked(Error):
    """The client was opened before fork(): open one of its own in the child process."""

    _remedy = "open another client in the child process"


class BatchError(Error):
    """Some of many failed otherwise than by a miss.

    results  as the call would have returned them, None for those that failed
    errors   {index: Error}; the sentence ends with that of the first of them, so peer and remedy are its own
    """

    def __init__(self, message: str, results: List[Any], errors: Dict[int, Error]) -> None:
        first = errors[min(errors)]
        super().__init__(message, key=None, code=first.code)
        self.results = results
        self.errors = errors

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
    return cls(message.replace(": raise timeout_ms", ": raise timeout"), key=key, code=code)  # as it is called here


def _make(code: int, key: Optional[Key], why: Optional[str]) -> Error:
    return error_of(code, key, why or None)


_tarn._set_error_maker(_make)
