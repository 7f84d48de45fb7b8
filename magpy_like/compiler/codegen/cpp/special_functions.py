"""Special functions for C++ kernels: ATen's own scalar versions, behind plain C names.

The headers that define them take seconds to compile, so kernels do not include them: they call
``sp_NAME`` (double) and ``sp_NAMEf`` (float) out of one library, which is compiled when the first
kernel needs it and then is on disk.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import torch

from magpy_like.compiler.ir.ops import SPECIAL
from magpy_like.disk_cache import code_cache

#: ops name -> how ATen spells it, where that is not ``calc_NAME``.
_SPELLING = {
    "zeta": "zeta<T>(x, y)",
    "polygamma": "y == 0 ? calc_digamma(x) : y == 1 ? trigamma(x) : calc_polygamma(x, int(y))",
    **{name: f"{name}_forward(x)" for name, count in SPECIAL.items()
       if count == 1 and re.search("bessel|airy", name)},
    **{name: f"{name}_forward(x, y)" for name in SPECIAL if "polynomial" in name},
}  # fmt: skip
_PARAMETERS = {1: "x", 2: "x, y"}


def uses_special(text: str) -> bool:
    """Does C++ text call one of these functions?"""
    return " m_special_" in text


def declarations() -> str:
    """The functions as kernels see them."""
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
    """Compile and load the library, so that kernels loaded later find its functions.

    Raises what :func:`code_cache.compile_cpp` raises.
    """
    include = Path(torch.__file__).parent / "include"
    path = code_cache.compile_cpp(
        _source(), name="magpy_special", flags=("-O2", f"-I{include}", f"-DTORCH_{_version()}")
    )
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _version() -> str:
    """The headers belong to this torch: another one needs another library."""
    return re.sub(r"\W", "_", torch.__version__)
