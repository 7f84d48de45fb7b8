"""Facts of a compiled graph that decide if it may become a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphFacts:
    """Facts of a compiled graph that decide about its capture, known when it is compiled.

    ``gpu``: index of the only GPU that it uses; None without one
    ``obstacle``: why it cannot be captured, with the operator and the program's line; None if it
    can
    ``lendable``: positions of results that only the backward pass reads, or a program's gradients
    ``symbolic``: do sizes differ between calls?
    """

    gpu: int | None
    obstacle: str | None
    lendable: tuple[int, ...]
    symbolic: bool
