"""The states of torch's default random generators."""

from __future__ import annotations

import threading

import torch

_lock = threading.Lock()
"""``get_state`` holds the generator's lock while a garbage collection may let another thread run,
which would wait for the same lock without letting go of the interpreter: *seen* on torch 2.14."""


def generator_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Torch's default generators with their states: of the CPU, and of GPUs in use."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    with _lock:
        return [(found, found.get_state()) for found in (torch.default_generator, *on_gpus)]


def restore_generators(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Reset generators to states from :func:`generator_states`."""
    for generator, state in states:
        generator.set_state(state)
