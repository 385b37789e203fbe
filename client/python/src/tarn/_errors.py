# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class for each code of libtarn (include/tarn/error.h), and three of the package's own."""
from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Type, Union

from . import _tarn

Key = Union[bytes, str]


# A remedy begins with one of these words, or is a question.
_ADVISES = re.compile(
    r"(add|allow|ask|begin|call|cancel|close|connect|convert|correct|count|do|drain|end|fill|get|give|grant|install|"
    r"keep|look|make|move|name|open|pass|put|raise|read|receive|record|release|remove|replace|reshape|run|see|send|set|"
    r"size|start|stop|take|try|use|wait|wait\(\)|write) |.*\?$", re.DOTALL)


def _remedy_in(sentence: str) -> Optional[str]:
    last = sentence.rpartition(": ")[2]
    return last if last != sentence and _ADVISES.match(last) else None


_CODES = {row[0]: code for code, row in _tarn.errors.items()}
_BY_CODE: Dict[int, Type[Error]] = {}


class Error(Exception):
    """Base of all errors of tarn. `str(e)` is one sentence: object, cause, remedy.

    code    the negative number, as lists of results hold it
    name    its name: "NOT_FOUND"
    key     the key that it is about, as it was given; None: none, or several
    peer    id of the node that it is about, if the sentence names one
    remedy  what to do: the end of the sentence
    """

    code: int = 0
    name: str = "ERROR"
    _remedy: str = "see the nodes' logs and `tarn doctor`"  # used if the sentence ends with the cause

    def __init_subclass__(cls, *, name: str = "", remedy: str = "") -> None:
        super().__init_subclass__()
        if name:
            cls.name, cls.code, cls._remedy = name, _CODES[name], remedy
            _BY_CODE[cls.code] = cls

    def __init__(self, message: str = "", *, key: Optional[Key] = None, code: Optional[int] = None) -> None:
        cause = message or _text(self.code if code is None else code)
        cause = cause.replace("\n", "\\n")  # a given name may contain it
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


class NotFound(Error, KeyError, name="NOT_FOUND",
               remedy="put it first, or use get_many() or exists(), where a miss is no error"):
    """No such key."""


class Exists(Error, name="EXISTS", remedy="put with replace=True to take its place"):
    """The key exists already: put with replace=True to take its place."""


class Invalid(Error, ValueError, name="INVALID", remedy="correct the call, help(tarn.Client) has its arguments"):
    """The call itself is wrong."""


class SizeMismatch(Error, ValueError, name="SIZE", remedy="give a buffer of the object's size, which stat() tells"):
    """The buffer and the object differ in size.

    nbytes  of a message that was longer than its receive: what was sent; a list for a list; None if it is not known
    """

    nbytes: Any = None


class TensorMismatch(Error, ValueError, name="TENSOR_MISMATCH",
                     remedy="give a buffer of the object's dtype and shape, which stat() tells"):
    """The buffer's dtype or shape are not the object's."""


class TooLarge(Error, ValueError, name="TOO_LARGE", remedy="put it in parts, or start a node with a larger pool"):
    """Larger than any pool."""


class FormatError(Error, ValueError, name="FORMAT", remedy="write it again"):
    """A malformed file or record."""


class Unsupported(Error, name="UNSUPPORTED", remedy="convert the value first, or give its bytes"):
    """Not supported here."""


class Closed(Error, name="CLOSED", remedy="open another one"):
    """The client was closed."""


class Full(Error, name="FULL", remedy="remove or unpin something, or start a node with a larger pool"):
    """No room, and nothing can be evicted."""


class Timeout(Error, TimeoutError, name="TIMEOUT", remedy="give a longer timeout, or look at the node and at Redis"):
    """The deadline has passed."""


class Canceled(Error, name="CANCELED", remedy="do it again if it is wanted"):
    """Canceled by the caller."""


class Busy(Error, name="BUSY", remedy="wait for what uses it, then try again"):
    """In use."""


class Again(Error, name="AGAIN", remedy="try again in a moment"):
    """Not possible at this moment (a queue is full, say); the same call may succeed later."""


class NodeDown(Error, ConnectionError, name="NODE_DOWN", remedy="look at the node, or start it again"):
    """The storage node does not answer."""


class DirectoryError(Error, ConnectionError, name="DIRECTORY", remedy="look at Redis and at its address"):
    """The directory (Redis) does not answer, or refuses."""


class Protocol(Error, name="PROTOCOL", remedy="see whether that address is a tarnd's, and of which version"):
    """The peer does not speak this protocol."""


class Stale(Error, name="STALE", remedy="get it again"):
    """The object has moved or was replaced."""


class NotReachable(Error, name="NOT_REACHABLE", remedy="see `tarn info` for the transports that both sides have"):
    """No transport reaches the pool."""


class AuthError(Error, name="AUTH", remedy="give the nodes' secret, as secret= or in TARN_SECRET"):
    """Authentication failed."""


class VersionError(Error, name="VERSION", remedy="install the version of tarn that the nodes have"):
    """The peer speaks another version."""


class Unavailable(Error, name="UNAVAILABLE", remedy="see `tarn info` for what this machine has"):
    """Not available on this machine."""


class NoMemory(Error, MemoryError, name="NO_MEMORY", remedy="close what is not used, or make the call smaller"):
    """Out of memory."""


class SystemFailure(Error, OSError, name="SYSTEM", remedy="see the system's limits (ulimit -a) and its log"):
    """A system call failed."""


class ConfigError(Error, name="CONFIG", remedy="correct the setting, `tarn --help` lists them"):
    """Wrong configuration."""


class InDoubt(Error, name="IN_DOUBT", remedy="do it again to be sure"):
    """Done, but an old copy may still be read for a while: the message says where and for how long."""


class Forked(Error, name="FORKED", remedy="open another client in the child process"):
    """The client was opened before fork(): open one of its own in the child process."""


class BatchError(Error):
    """Some of many failed for another reason than a miss.

    results  what the call would have returned, None for those that failed
    errors   {index: Error}; the sentence ends with the first error's, so peer and remedy are the first error's
    """

    def __init__(self, message: str, results: List[Any], errors: Dict[int, Error]) -> None:
        first = errors[min(errors)]
        super().__init__(message, key=None, code=first.code)
        self.results = results
        self.errors = errors

    def __reduce__(self) -> Any:
        return (BatchError, (self.message, self.results, self.errors))


# What sentences of libtarn name, and its name in Python.
_NAMES = {": raise timeout_ms": ": raise timeout", "one with TARN_LEASE_WRITE": "one with write=True",
          "(tarn_window_new)": "(Client.window())", "tarn_options.secret": "Client(secret=)",
          "set tarn_options.listen to": "set Client(listen=) to", "tarn_channel_listen()": "Client.listen()"}


def _text(code: int) -> str:
    return _tarn.errors[code][2] if code in _tarn.errors else f"error {code}"


def error_of(code: int, key: Optional[Key] = None, message: Optional[str] = None) -> Error:
    """Returns the exception for a negative code in a list of results; does not raise it."""
    cls = _BY_CODE.get(code, Error)
    if message is None:
        message = _text(code) if key is None else f"key {key!r}: {_text(code)}"
    for name, here in _NAMES.items():
        message = message.replace(name, here)
    return cls(message, key=key, code=code)


def _make(code: int, key: Optional[Key], why: Optional[str]) -> Error:
    return error_of(code, key, why or None)


_tarn._set_error_maker(_make)
