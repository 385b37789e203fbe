# SPDX-License-Identifier: Apache-2.0
"""Connector: the interface by which KV-cache frameworks use a store (LMCache's native connectors)."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import _tarn
from ._client import Client
from ._errors import Error, Exists, Invalid, Key, NotFound, error_of

Completion = Tuple[int, bool, str, Optional[List[bool]]]


class Connector:
    """Batches by number: submit_batch_*() returns an id at once, drain_completions() returns the results.

    It opens a client of its own and takes Client's arguments. Keys are str or bytes. Buffers are memoryviews, tensors,
    or anything that Client.put() takes. The operation keeps and uses them until its completion is drained.

    Any thread may submit and drain. One thread may drain a batch before another has received its id from
    submit_batch_*().
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = Client(*args, **options)

    def event_fd(self) -> int:
        """Readable while there are completions: poll it, never read or close it. close() ends it."""
        return self._client._event_fd()

    def submit_batch_get(self, keys: Sequence[Key], buffers: Sequence[Any]) -> int:
        """Gets each key into its buffer, which has the object's size. result: per key, was it got?"""
        return self._client._submit_get(keys, buffers)._id

    def submit_batch_set(self, keys: Sequence[Key], buffers: Sequence[Any]) -> int:
        """Puts each. An existing key is left as it is, which is a success. result: per key, does it exist?"""
        if isinstance(keys, (bytes, str)):
            raise TypeError(f"keys: of type {type(keys).__name__}: give a list of keys, each bytes or a str")
        if len(keys) != len(buffers):
            raise Invalid(f"buffers: {len(buffers)} for {len(keys)} keys: give as many")
        return self._client._submit_put(list(zip(keys, buffers)))._id

    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """result: per key, can it be read?"""
        return self._client._submit_lookup(keys)._id

    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """result: per key, was it removed?"""
        return self._client._submit_remove(keys)._id

    def drain_completions(self) -> List[Completion]:
        """(id, ok, error, result) of each batch that has ended since the last call; never waits.

        ok      it succeeded; for a set: every key exists. A missing key does not make a batch fail.
        error   one sentence if ok is False, else ""
        result  list of bool, per key; None where the batch failed as a whole
        """
        return [_completion(op) for op in self._client._drain()]

    def close(self) -> None:
        """Cancels all operations. When it returns, nothing uses the buffers."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<tarn.Connector over {self._client!r}>"

    def __enter__(self) -> "Connector":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _completion(op: _tarn.Operation) -> Completion:
    try:
        outcome = op.wait()
    except Error as e:
        return op._id, False, str(e), None
    kind = op._kind
    if kind == "lookup":
        return op._id, True, "", [state == _tarn.HIT for state in outcome.states]
    no_failure = (0, Exists.code) if kind == "put" else (0, NotFound.code)
    failed = [code for code in outcome if code < 0 and code not in no_failure]
    result = [code >= 0 or (kind == "put" and code == Exists.code) for code in outcome]
    return op._id, not failed, _sentence(op, failed[0]) if failed else "", result


def _sentence(op: _tarn.Operation, code: int) -> str:
    return str(error_of(code, None, op._why or None))
