# SPDX-License-Identifier: Apache-2.0
"""Builds the extension tarn._tarn against libtarn.

TARN_LIB_DIR      where libtarn.so is (default: build/ at the root of the sources)
TARN_INCLUDE_DIR  where tarn/tarn.h is (default: include/ there)
"""
import glob
import os

from setuptools import Extension, setup

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
lib_dir = os.environ.get("TARN_LIB_DIR") or os.path.join(root, "build")
include_dir = os.environ.get("TARN_INCLUDE_DIR") or os.path.join(root, "include")

# setuptools wants paths relative to this file.
sources = sorted(os.path.relpath(f, here) for f in glob.glob(os.path.join(here, "src/ext/*.c")))
headers = sorted(os.path.relpath(f, here) for f in glob.glob(os.path.join(here, "src/ext/*.h")))

setup(
    ext_modules=[
        Extension(
            "tarn._tarn",
            sources=sources,
            depends=headers,
            include_dirs=[include_dir],
            library_dirs=[lib_dir],
            runtime_library_dirs=[os.path.abspath(lib_dir)],
            libraries=["tarn", "dl"],
            extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers"],
        )
    ]
)
