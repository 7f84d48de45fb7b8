"""Special functions for C++ kernels: ATen's scalar versions under plain C names.

The headers that define them take seconds to compile, so kernels do not include them. They call
``sp_NAME`` (double) and ``sp_NAMEf`` (float) of one library, compiled when the first kernel needs
it and kept on disk.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import torch

from magpy_like.compiler.ir.ops import SPECIAL
from magpy_like.disk_cache import cpp_compiler

#: ops name -> ATen's spelling, if it is not ``calc_NAME``.
_SPELLING = {
    "zeta": "zeta<T>(x, y)",
    "polygamma": "y == 0 ? calc_digamma(x) : y == 1 ? trigamma(x) : calc_polygamma(x, int(y))",
    **{name: f"{name}_forward(x)" for name, count in SPECIAL.items()
       if count == 1 and re.search("bessel|airy", name)},
}  # fmt: skip
_PARAMETERS = {1: "x", 2: "x, y"}


def uses_special(text: str) -> bool:
    """True if C++ text calls one of these functions."""
    return " m_special_" in text


def declarations() -> str:
    """Their declarations for kernels."""
    lines = []
    for name, count in SPECIAL.items():
        for ctype, suffix in (("double", ""), ("float", "f")):
            typed = ", ".join(f"{ctype} {p}" for p in _PARAMETERS[count].split(", "))
            lines.append(f'extern "C" {ctype} sp_{name}{suffix}({typed});')
            lines.append(
                f"INLINE {ctype} m_special_{name}({typed}) "
                f"{{ return sp_{name}{suffix}({_PARAMETERS[count]}); }}"
            )
    return "\n".join(lines) + "\n"


def _source() -> str:
    lines = ["#include <ATen/native/Math.h>", 'extern "C" {']
    for name, count in SPECIAL.items():
        call = _SPELLING.get(name, f"calc_{name}({_PARAMETERS[count]})")
        for ctype, suffix in (("double", ""), ("float", "f")):
            typed = ", ".join(f"{ctype} {p}" for p in _PARAMETERS[count].split(", "))
            lines.append(
                f"{ctype} sp_{name}{suffix}({typed}) {{ using T = {ctype}; return T({call}); }}"
            )
    return "\n".join([*lines, "}"]) + "\n"


@functools.cache
def load_special() -> ctypes.CDLL:
    """Compile and load the library, for kernels loaded later.

    Raises the errors of :func:`cpp_compiler.compile_cpp`.
    """
    include = Path(torch.__file__).parent / "include"
    path = cpp_compiler.compile_cpp(
        _source(), name="magpy_special", flags=("-O2", f"-I{include}", f"-DTORCH_{_version()}")
    )
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _version() -> str:
    """The version of the headers: another torch needs another library."""
    return re.sub(r"\W", "_", torch.__version__)
