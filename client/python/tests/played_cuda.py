# SPDX-License-Identifier: Apache-2.0
"""For tests: GPUs played by tests/standin, and a module that looks like torch to the package. It shows logic, and
nothing about GPUs.

A process that uses it is started by run(): libtarn, built with CUDA=standin, and the driver come from a folder made
by build().
"""
from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys
import types
from typing import Any, List, Optional, Tuple

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def build(into: str) -> None:
    """libtarn.so.0 with the played driver in it, and a libcuda.so.1 that leads there."""
    cc = shlex.split(os.environ.get("CC", "cc"))
    lib = os.path.join(os.environ.get("TARN_BUILD", "build"), "libtarn.a")
    libs = subprocess.run(["pkg-config", "--libs", "hiredis"], check=True, capture_output=True, text=True)
    subprocess.run([*cc, "-shared", "-fPIC", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-I", ROOT, "-I", f"{ROOT}/include",
                    "-Wl,-soname,libtarn.so.0", "-o", f"{into}/libtarn.so.0",
                    os.path.join(os.path.dirname(__file__), "played_driver.c"), "-Wl,--whole-archive", lib,
                    "-Wl,--no-whole-archive", *libs.stdout.split(), "-lm", "-pthread"], check=True)
    subprocess.run([*cc, "-shared", "-fPIC", "-x", "c", "/dev/null", "-x", "none", "-Wl,--no-as-needed",
                    f"{into}/libtarn.so.0", "-Wl,-soname,libcuda.so.1", "-o", f"{into}/libcuda.so.1"], check=True)


def run(argv: List[str], folder: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "LD_PRELOAD": f"{folder}/libtarn.so.0", "LD_LIBRARY_PATH": folder,
           "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, timeout=120)


class Driver:
    """In such a process."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")  # as whoever has memory of a GPU has loaded it
        self.lib.played_stream.restype = self.lib.played_default_stream.restype = ctypes.c_void_p
        self.lib.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.lib.cuMemcpy.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
        for name in ("played_hold", "played_let_go", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"):
            getattr(self.lib, name).argtypes = [ctypes.c_void_p]

    def alloc(self, device: int, nbytes: int) -> int:
        at = ctypes.c_size_t()
        self.check(self.lib.cuCtxPushCurrent_v2(device + 1))
        self.check(self.lib.cuMemAlloc_v2(ctypes.byref(at), nbytes))
        self.check(self.lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        return at.value

    def write(self, at: int, data: bytes) -> None:
        source = ctypes.create_string_buffer(data, len(data))
        self.check(self.lib.cuMemcpy(at, ctypes.addressof(source), len(data)))

    def read(self, at: int, nbytes: int) -> bytes:
        out = ctypes.create_string_buffer(nbytes)
        self.check(self.lib.cuMemcpy(ctypes.addressof(out), at, nbytes))
        return out.raw

    @staticmethod
    def check(rc: int) -> None:
        if rc != 0:
            raise AssertionError(f"the played driver says {rc}")


class Device:
    def __init__(self, type: str, index: Optional[int]) -> None:
        self.type, self.index = type, index


class Tensor:
    """As much of torch.Tensor as the package asks; strides in elements."""

    is_cpu = False

    def __init__(self, driver: Driver, device: int, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]] = None,
                 at: Optional[int] = None, dtype: str = "torch.float32") -> None:
        self.driver, self.dtype = driver, dtype
        dense, n = [], 1
        for d in reversed(shape):
            dense.insert(0, n)
            n *= d
        self._strides = tuple(dense) if strides is None else strides
        self._dense = self._strides == tuple(dense)
        self.shape = shape
        self.device = Device("cuda", device)
        self.at = driver.alloc(device, max(4 * n, 4)) if at is None else at

    def new_empty(self, shape: Tuple[int, ...], dtype: str) -> "Tensor":
        return Tensor(self.driver, self.get_device(), shape, dtype=dtype)

    def get_device(self) -> int:
        return self.device.index or 0

    def data_ptr(self) -> int:
        return self.at

    def stride(self) -> Tuple[int, ...]:
        return self._strides

    def is_contiguous(self) -> bool:
        return self._dense

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False


class Streams:
    """torch's current streams, one a device; torch is put into sys.modules."""

    def __init__(self, driver: Driver, devices: int) -> None:
        self.current: List[Any] = [driver.lib.played_stream(d) for d in range(devices)]
        torch: Any = types.ModuleType("torch")
        torch.int32 = "torch.int32"
        torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: self.current[device])
        sys.modules["torch"] = torch
