# SPDX-License-Identifier: Apache-2.0
"""Connector: the object that frameworks for KV caches plug a store in with (LMCache's native connectors)."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import _tarn
from ._client import Client
from ._errors import Error, Exists, Invalid, Key, NotFound, error_of

Completion = Tuple[int, bool, str, Optional[List[bool]]]


class Connector:
    """Batches by number: submit_batch_*() return an id at once, drain_completions() tells what has become of it.

    It opens a client of its own; arguments are Client's. Keys are str or bytes. Buffers (memoryviews, tensors, or what
    else Client.put() takes) are kept until their completion was drained, and belong to the operation until then.

    Any thread may submit and drain. A batch may be drained by one thread before another one knows the id that its
    submit_batch_*() is about to return.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = Client(*args, **options)

    def event_fd(self) -> int:
        """Readable while completions wait: poll it, never read or close it. Gone with close()."""
        return self._client._event_fd()

    def submit_batch_get(self, keys: Sequence[Key], buffers: Sequence[Any]) -> int:
        """Gets each key into its buffer, of the object's size. result: per key, was it got?"""
        return self._client._submit_get(keys, buffers)._id

    def submit_batch_set(self, keys: Sequence[Key], buffers: Sequence[Any]) -> int:
        """Puts each; a key that is there already stays, and is a success. result: per key, is it there?"""
        if isinstance(keys, (bytes, str)):
            raise TypeError(f"keys: of type {type(keys).__name__}: give a list of keys, each bytes or a str")
        if len(keys) != len(buffers):
            raise Invalid(f"buffers: {len(buffers)} for {len(keys)} keys: give as many")
        return self._client._submit_put(list(zip(keys, buffers)))._id

    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """result: per key, can it be read?"""
        return self._client._submit_lookup(keys)._id

    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """result: per key, was it there, and is gone?"""
        return self._client._submit_remove(keys)._id

    def drain_completions(self) -> List[Completion]:
        """(id, ok, error, result) of each batch that has ended since; never waits.

        ok      it was carried out; of a set: every key is there. A key that is not there is no failure of a batch.
        error   one sentence where ok is False, else ""
        result  list of bool, per key; None where the batch failed as a whole
        """
        return [_completion(op) for op in self._client._drain()]

    def close(self) -> None:
        """Cancels what is under way; nothing uses the buffers any more when this returns."""
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
