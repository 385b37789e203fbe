# SPDX-License-Identifier: Apache-2.0
"""Results of get(): first a buffer of a number of bytes, then an array with dtype and shape over it."""
from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING, Any, Dict, Optional

from ._errors import Invalid, Unavailable, Unsupported

if TYPE_CHECKING:
    import numpy
    from typing_extensions import TypeAlias

    Array: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"

# The store's names, and NumPy's and torch's; NumPy has those in _ML_DTYPES from ml_dtypes.
_NAMES: Dict[str, str] = {
    "u8": "uint8", "i8": "int8", "bool": "bool", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "u16": "uint16", "i16": "int16", "f16": "float16", "bf16": "bfloat16",
    "u32": "uint32", "i32": "int32", "f32": "float32",
    "u64": "uint64", "i64": "int64", "f64": "float64", "c64": "complex64", "c128": "complex128",
}
_LARGE, _HUGE_PAGE = 4 << 20, 2 << 20
# Most bytes of a call's buffers whose size is guessed. Host memory costs nothing until it is touched; a bytearray is
# touched at once.
_GUESSES_HOST, _GUESSES_GPU, _GUESSES_TOUCHED = 1 << 30, 64 << 20, 4 << 20
_ML_DTYPES = ("f8_e4m3", "f8_e5m2", "bf16")


class _Bytes:
    guesses_max = _GUESSES_TOUCHED

    def buffer(self, nbytes: int) -> bytearray:
        return bytearray(nbytes)

    def array(self, buffer: bytearray, info: Any) -> bytearray:
        return buffer

    def view(self, view: Any) -> memoryview:
        return memoryview(view)


def _large(nbytes: int) -> mmap.mmap:
    """Memory of huge pages: the first touches of small pages take longer than the copy. torch asks for none, and
    NumPy's memory is not aligned to them. This has room for `nbytes` from its first aligned address on."""
    pages = -(-nbytes // _HUGE_PAGE) + 1
    memory = mmap.mmap(-1, pages * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Numpy:
    guesses_max = _GUESSES_HOST

    def __init__(self) -> None:
        try:
            import numpy
        except ImportError:
            raise Unsupported("get: out='numpy': NumPy is not installed: install numpy, or get with out='bytes'"
                              ) from None
        self._np = numpy
        self._dtypes: Dict[str, Any] = {}

    def _dtype(self, name: str) -> Any:
        if name not in self._dtypes:
            self._dtypes[name] = self._find(name)
        return self._dtypes[name]

    def _find(self, name: str) -> Any:
        if name not in _ML_DTYPES:
            return self._np.dtype(_NAMES[name])
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(f"get: {name}: NumPy has no such type: install ml_dtypes, or get with out='torch' or "
                              "out='bytes'") from None
        return self._np.dtype(getattr(ml_dtypes, _NAMES[name]))

    def buffer(self, nbytes: int) -> Any:
        if nbytes < _LARGE:
            return self._np.empty(nbytes, "u1")
        whole = self._np.frombuffer(_large(nbytes), "u1")
        at = -whole.__array_interface__["data"][0] % _HUGE_PAGE
        return whole[at : at + nbytes]

    def array(self, buffer: Any, info: Any) -> Any:
        return buffer.view(self._dtype(info.dtype)).reshape(info.shape)

    def view(self, view: Any) -> Any:
        """Read-only, since the view's buffer is; its .base is the view."""
        info = view.info
        return self._np.ndarray(info.shape, self._dtype(info.dtype), view)


class _Torch:
    def __init__(self, device: Any) -> None:
        try:
            import torch
        except ImportError:
            raise Unsupported("get: out='torch': torch is not installed: install torch, or get with out='numpy'"
                              ) from None
        self._torch = torch
        self._device = device
        try:
            self._on_host = torch.empty(0, device=device).is_cpu  # None: torch has a default
        except Exception as e:  # torch has several classes for this
            why = str(e).split("\n")[0].rstrip(".")
            raise Unavailable(f"get: device={device!r}: torch refuses it ({why}): give one that it has, such as 'cpu'"
                              ) from e
        self.guesses_max = _GUESSES_HOST if self._on_host else _GUESSES_GPU

    def buffer(self, nbytes: int) -> Any:
        if not self._on_host or nbytes < _LARGE:
            return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        whole = self._torch.frombuffer(_large(nbytes), dtype=self._torch.uint8)
        at = -whole.data_ptr() % _HUGE_PAGE
        return whole[at : at + nbytes]

    def array(self, buffer: Any, info: Any) -> Any:
        dtype = getattr(self._torch, _NAMES[info.dtype], None)
        if dtype is None:
            raise Unsupported(f"get: {info.dtype}: this torch has no such type: get with out='numpy'")
        return buffer.view(dtype).reshape(info.shape)

    def view(self, view: Any) -> Any:
        """By DLPack, which cannot say read-only, so torch does not warn."""
        return self.array(self._torch.utils.dlpack.from_dlpack(view.dlpack()), view.info)


_numpy: Optional[_Numpy] = None


def maker(out: str, device: Any) -> Any:
    global _numpy
    if device is not None:
        out = "torch"
    elif not isinstance(out, str):
        raise TypeError(f"out: of type {type(out).__name__}: give 'numpy', 'torch' or 'bytes'")
    if out == "numpy":
        _numpy = _numpy or _Numpy()
        return _numpy
    if out == "torch":
        return _Torch(device)
    if out == "bytes":
        return _Bytes()
    raise Invalid(f"out={out!r}: nothing can be made so: give 'numpy', 'torch' or 'bytes'")
