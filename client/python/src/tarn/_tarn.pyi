# SPDX-License-Identifier: Apache-2.0
"""Types of the extension. Docstrings are in the extension itself: help(tarn.Client)."""
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union, overload

Key = Union[bytes, str]
# A buffer (bytes, bytearray, memoryview, array.array), a NumPy array, a torch tensor, an object with
# __cuda_array_interface__ or __dlpack__, a Piece, or a list or tuple of these.
Value = Any
_C = TypeVar("_C", bound="Client")

MISS: int
HIT: int
NODE_DOWN: int
errors: Dict[int, Tuple[str, int, str]]
dtypes: Tuple[str, ...]

def lib_version() -> str: ...
def _set_error_maker(maker: Any) -> None: ...

class TensorInfo(NamedTuple):
    dtype: str
    shape: Tuple[int, ...]
    nbytes: int

class Piece:
    addr: int
    nbytes: int
    stride: int
    count: int
    device: Optional[int]
    stream: Optional[int]
    keep: Any
    def __init__(self, addr: int, nbytes: int, stride: int = 0, count: int = 1, *, device: Optional[int] = None,
                 stream: Optional[int] = None, keep: Any = None) -> None: ...

class Hits:
    pages: int
    states: List[int]
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> int: ...
    def tensor(self, i: int, /) -> Optional[TensorInfo]: ...

class Client:
    closed: bool
    timeout: float
    _calls: int
    def __init__(self, uri: Optional[str] = None, *, ns: Optional[str] = None, transports: Optional[str] = None,
                 secret: Optional[str] = None, timeout: float = 5.0, workers: int = 0, faults: Optional[str] = None,
                 log: Any = None) -> None: ...
    def __enter__(self: _C) -> _C: ...
    def __exit__(self, *exc: Any) -> None: ...
    def close(self) -> None: ...
    def stats(self) -> Dict[str, int]: ...
    def put(self, key: Key, value: Value, *, dtype: Any = None, shape: Optional[Sequence[int]] = None,
            replace: bool = False, pin: bool = False, ttl: Optional[float] = None, replicas: int = 1,
            place: Optional[str] = None, timeout: Optional[float] = None) -> None: ...
    def put_many(self, pairs: Union[Mapping[Any, Value], Iterable[Tuple[Key, Value]]], *, replace: bool = False,
                 pin: bool = False, ttl: Optional[float] = None, replicas: int = 1, place: Optional[str] = None,
                 timeout: Optional[float] = None) -> List[int]: ...
    def get_into(self, key: Key, value: Value, *, offset: Optional[int] = None,
                 timeout: Optional[float] = None) -> TensorInfo: ...
    def get_into_many(self, keys: Sequence[Key], values: Value, *, hits: Optional[Hits] = None,
                      timeout: Optional[float] = None) -> List[int]: ...
    def _fetch_many(self, keys: Sequence[Key], values: Sequence[Value], *, hits: Optional[Hits] = None,
                    timeout: Optional[float] = None) -> Tuple[List[Tuple[int, Optional[TensorInfo]]], str]: ...
    def lookup(self, keys: Sequence[Key], *, timeout: Optional[float] = None) -> Hits: ...
    def match_prefix(self, keys: Sequence[Key], *, stride: int = 1, timeout: Optional[float] = None) -> Hits: ...
    @overload
    def exists(self, keys: Union[bytes, str], *, timeout: Optional[float] = None) -> bool: ...
    @overload
    def exists(self, keys: Sequence[Key], *, timeout: Optional[float] = None) -> List[bool]: ...
    @overload
    def remove(self, keys: Union[bytes, str], *, timeout: Optional[float] = None) -> bool: ...
    @overload
    def remove(self, keys: Sequence[Key], *, timeout: Optional[float] = None) -> List[int]: ...
