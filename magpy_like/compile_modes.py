"""The modes and options of ``compile``: torch.compile's names, and their meaning here."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magpy_like.errors import ArgumentError, known_names


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
"""Option of the compiler -> the types of its values."""

LIMITS = ("record_limit", "generalise_after")
"""Options of ``compile`` that are limits of capture, for every backend: positive ints. Their
defaults are the fields of ``Config`` of the same names."""


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
        ArgumentError: the mode or an option is unknown, or an option's value has another type.
    """
    if not isinstance(mode, str | None) or mode not in MODES:
        fault = f"unknown mode; there are None, {known_names(mode, filter(None, MODES))}"
        raise ArgumentError("compile", "mode", mode, fault)
    found = dict(options or {})
    for name, value in found.items():
        if name not in OPTIONS:
            fault = f"unknown option; there are {known_names(name, (*OPTIONS, *LIMITS))}"
            raise ArgumentError("compile", f"options[{name!r}]", value, f"{fault}{_of_whom(name)}")
        if not isinstance(value, OPTIONS[name]):
            known = " or ".join(_spelled(kind) for kind in OPTIONS[name])
            raise ArgumentError("compile", f"options[{name!r}]", value, f"takes {known}")
    graphs = MODES[mode]
    if "cuda_graphs" in found:
        graphs = CudaGraphs.ALWAYS if found["cuda_graphs"] else CudaGraphs.NEVER
    return CompileSettings(found.get("strict", False), graphs)


def _spelled(kind: type) -> str:
    return "None" if kind is type(None) else kind.__name__


def _of_whom(name: str) -> str:
    """Where an option that is unknown here does exist, as a clause."""
    from magpy_like.torch_compat.inductor_names import option_names

    return '. It is one of backend="inductor"' if name in option_names() else ""
