"""Seeding of torch's random number generators in tests."""

import torch


def seed(value: int) -> None:
    """Fast equivalent of ``torch.manual_seed``, which formats the stack for each unused kind of
    device and dominates the time of many tests."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
