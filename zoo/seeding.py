"""Seeds of random numbers."""

import torch


def seed(value: int) -> None:
    """As ``torch.manual_seed``, which records a stack for each kind of device that is not in use;
    that costs more than a small model's call."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
