"""The states of torch's default random generators."""

from __future__ import annotations

import torch


def generator_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Torch's default generators with their states: of the CPU, and of GPUs in use."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *on_gpus)]


def restore_generators(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Reset generators to states from :func:`generator_states`."""
    for generator, state in states:
        generator.set_state(state)
