"""The modes and options of ``compile``: torch.compile's names, and their meaning here."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class CudaGraphs(enum.Enum):
    """The use of CUDA graphs."""

    NEVER = "never"
    IF_FASTER = "if faster"
    """Where launches take longer than the GPU's work."""
    ALWAYS = "always"
    """Wherever that is possible."""


MODES = {
    None: CudaGraphs.IF_FASTER,
    "default": CudaGraphs.IF_FASTER,
    "reduce-overhead": CudaGraphs.ALWAYS,
    "max-autotune": CudaGraphs.ALWAYS,
    "max-autotune-no-cudagraphs": CudaGraphs.NEVER,
}
"""Mode -> use of CUDA graphs."""

OPTIONS: Mapping[str, tuple[type, ...]] = {
    "cuda_graphs": (bool,),
    "strict": (bool,),
    "trace": (str, os.PathLike, type(None)),
}
"""Option -> the types of its values."""


@dataclass(frozen=True)
class CompileSettings:
    """Settings of one compilation, but for its trace (:mod:`.stage_trace`).

    ``strict``: raise instead of running anything unsupported through ATen
    ``cuda_graphs``: the use of CUDA graphs
    """

    strict: bool
    cuda_graphs: CudaGraphs


def compile_settings(mode: str | None, options: Mapping[str, Any] | None) -> CompileSettings:
    """The settings of a mode and of options.

    Raises:
        ValueError: the mode or an option is unknown, or an option's value has another type.
    """
    if not isinstance(mode, str | None) or mode not in MODES:
        known = ", ".join(repr(name) for name in MODES)
        raise ValueError(f"unknown mode {mode!r}; there are {known}")
    found = dict(options or {})
    if unknown := sorted(map(str, set(found) - set(OPTIONS))):
        raise ValueError(f"unknown options {unknown}; there are {sorted(OPTIONS)}")
    for name, value in found.items():
        if not isinstance(value, OPTIONS[name]):
            known = " or ".join(_spelled(kind) for kind in OPTIONS[name])
            raise ValueError(f"option {name!r} takes {known}, not {value!r}")
    graphs = MODES[mode]
    if "cuda_graphs" in found:
        graphs = CudaGraphs.ALWAYS if found["cuda_graphs"] else CudaGraphs.NEVER
    return CompileSettings(found.get("strict", False), graphs)


def _spelled(kind: type) -> str:
    return "None" if kind is type(None) else kind.__name__
