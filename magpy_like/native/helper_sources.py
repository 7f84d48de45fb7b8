"""The C++ modules of the helper: their sources, compiler flags, and what their binaries depend on.

``setup.py`` runs this file on its own, so it imports nothing of magpy_like.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch

FOLDER = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


class Module(NamedTuple):
    """One extension module, ``_magpy_<name>``: the stem of its source, and its use of torch."""

    name: str
    source: str
    uses_torch: bool


MODULES = (
    Module("interrupts", "interrupts", False),
    Module("monitor", "monitor", False),
    Module("guards", "guards", True),
    Module("keys", "container_keys", False),
    Module("dispatch", "operator_count", True),
    Module("loans", "loans", True),
    Module("launch", "kernel_launch", True),
)
FLAGS = ("-O2", "-std=c++20")
INCLUDES = (sysconfig.get_paths()["include"],)

# The process has loaded torch's libraries before the helper, which therefore needs no path to them.
TORCH_INCLUDES = (str(_TORCH / "include"),)
TORCH_LIBRARY_FOLDER = str(_TORCH / "lib")
TORCH_LIBRARIES = ("torch_python", "torch_cpu", "c10")
TORCH_DEFINES = (("_GLIBCXX_USE_CXX11_ABI", str(int(torch.compiled_with_cxx11_abi()))),)


def source_of(stem: str) -> str:
    """The text of one of this folder's C++ files."""
    return (FOLDER / f"{stem}.cpp").read_text()


def headers() -> dict[str, str]:
    """The texts of this folder's headers, by name."""
    return {header.name: header.read_text() for header in sorted(FOLDER.glob("*.h"))}


def identity() -> str:
    """Digest of all that a binary depends on: sources, flags, Python, torch and its ABI, machine.

    The compiler is no part of it: a binary that was compiled elsewhere is used without one. Nor is
    the patch release of Python, or torch's build for one GPU or another: ``helper_loading`` checks
    the layouts of frames and tensors.
    """
    texts = [source_of(module.source) for module in MODULES]
    python = (
        sys.implementation.cache_tag,
        sys.version_info[:2],
        sys.version_info.releaselevel,
        sysconfig.get_config_var("SOABI"),
    )
    release = torch.__version__.partition("+")[0]
    of_torch = (release, torch.version.git_version, TORCH_DEFINES)
    parts = (MODULES, FLAGS, texts, headers(), python, of_torch, platform.machine())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def prebuilt_folder() -> Path:
    """The folder of a wheel's binaries, relative to this one: a wheel may carry several."""
    return Path("prebuilt", identity()[:32])
