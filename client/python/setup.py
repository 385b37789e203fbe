# SPDX-License-Identifier: Apache-2.0
"""Packs the Python package. The extension is built by the Makefile at the root of the checkout, which links libtarn
and hiredis into it: it needs nothing but libc, and looks for libibverbs and the CUDA driver when they are first used.

    pip install ./client/python     TARN_BUILD=DIR: where to build (build/ in the checkout)
    make wheel
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TARN_BUILD") or ROOT / "build").resolve()
# What a wheel for every Linux of a given glibc may ask of the system (PEP 600).
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s)|ld-linux-.*)\.so\.\d+")


def makefile() -> str:
    try:
        return (ROOT / "Makefile").read_text()
    except OSError:
        sys.exit(f"tarn: there is no Makefile in {ROOT}: build from a checkout, with pip 21.3 or later")


def build_folder() -> str:
    """As make's user names it: what is built knows its headers by that name."""
    return str(BUILD.relative_to(ROOT) if ROOT in BUILD.parents else BUILD)


class BuildByMake(build_ext):
    def build_extension(self, ext: Extension) -> None:
        makefile()
        jobs = [] if "MAKEFLAGS" in os.environ else [f"-j{os.cpu_count() or 1}"]
        subprocess.run(
            ["make", "-C", str(ROOT), *jobs, f"B={build_folder()}", f"PYTHON={sys.executable}", "python"], check=True
        )
        to = Path(self.get_ext_fullpath(ext.name))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / "python" / "tarn" / to.name, to)


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "-W", *arguments], check=True, stdout=subprocess.PIPE).stdout.decode()


def glibc_tag(libraries: List[Path]) -> str:
    """ "manylinux_2_34" when that is the newest glibc asked for, "linux" when they need more than a system has."""
    newest = (2, 17)
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", str(library)))
        if not all(SYSTEM.fullmatch(name) for name in needed):
            return "linux"
        versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("--version-info", str(library)))
        newest = max([newest] + [(int(a), int(b)) for a, b in versions])
    return "manylinux_%d_%d" % newest


class TaggedWheel(bdist_wheel):
    def get_tag(self) -> Tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        built = sorted(Path(self.bdist_dir or ".").rglob("_tarn*.so"))
        if built and platform.startswith("linux_"):
            platform = platform.replace("linux", glibc_tag(built), 1)
        return python, abi, platform


(BUILD / "python").mkdir(parents=True, exist_ok=True)
setup(
    name="tarn",
    version=re.search(r"^VERSION := (\S+)", makefile(), re.M).group(1),
    description="Tensors At Remote Nodes: put and get torch and NumPy tensors, without a server in the data path",
    license="Apache-2.0",
    python_requires=">=3.9",
    packages=["tarn"],
    package_dir={"": "src"},
    package_data={"tarn": ["py.typed", "*.pyi"]},
    ext_modules=[Extension("tarn._tarn", sources=[])],
    extras_require={"numpy": ["numpy"], "torch": ["torch"], "bulk": ["tqdm"]},
    cmdclass={"build_ext": BuildByMake, "bdist_wheel": TaggedWheel},
    # Nothing is written into the sources.
    options={
        "build": {"build_base": str(BUILD / "python" / "build")},
        "egg_info": {"egg_base": str(BUILD / "python")},
    },
    zip_safe=False,
)
