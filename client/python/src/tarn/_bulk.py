# SPDX-License-Identifier: Apache-2.0
"""Many objects at once, in chunks, with a progress bar."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import _manage
from ._errors import Invalid, Key

_CHUNK = 256  # objects a call


class Bulk(_manage.Managing):
    def load(self, values: Mapping[Any, Any], *, progress: bool = True, chunk: int = _CHUNK,
             timeout: Optional[float] = None) -> Dict[Any, int]:
        """Gets each object into its buffer, as get_into_many(); returns {key: bytes, or a negative code}.

        values    {key: array, tensor or buffer}
        progress  a bar of tqdm's, where that is installed
        chunk     objects in one call, at least 1
        timeout   seconds for a chunk
        """
        def get(part: List[Tuple[Key, Any]]) -> List[int]:
            return self.get_into_many([k for k, _ in part], [v for _, v in part], timeout=timeout)

        return _in_chunks(values, get, "load", progress, chunk)

    def save(self, values: Mapping[Any, Any], *, progress: bool = True, chunk: int = _CHUNK,
             **options: Any) -> Dict[Any, int]:
        """Puts all, as put_many(), with its options; returns {key: 0, or a negative code}. Others as in load()."""
        return _in_chunks(values, lambda part: self.put_many(part, **options), "save", progress, chunk)


def _in_chunks(values: Mapping[Any, Any], call: Callable[[List[Tuple[Key, Any]]], List[int]], what: str,
               progress: bool, chunk: int) -> Dict[Any, int]:
    if not hasattr(values, "items"):
        raise TypeError(f"{what}: values: of type {type(values).__name__}: give a mapping from keys to them")
    if not isinstance(progress, bool):
        raise TypeError(f"{what}: progress: of type {type(progress).__name__}: give True or False")
    if not isinstance(chunk, int):
        raise TypeError(f"{what}: chunk: of type {type(chunk).__name__}: give a whole number")
    if chunk < 1:
        raise Invalid(f"{what}: chunk={chunk} is no number of objects: give 1 or more")
    pairs = list(values.items())
    codes: Dict[Any, int] = {}
    with _bar(what, len(pairs), progress and bool(pairs)) as bar:
        for part in (pairs[i:i + chunk] for i in range(0, len(pairs), chunk)):
            codes.update(zip((k for k, _ in part), call(part)))
            bar.update(len(part))
    return codes


class _NoBar:
    def __enter__(self) -> "_NoBar":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def update(self, n: int) -> None:
        pass


def _bar(what: str, total: int, wanted: bool) -> Any:
    if wanted:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            pass
        else:
            return tqdm(total=total, desc=what, unit="obj")
    return _NoBar()
