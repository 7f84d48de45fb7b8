"""Random numbers of tests, from seeds."""

import torch


def seed(value: int) -> None:
    """As ``torch.manual_seed``, which writes the whole stack down for each kind of device that is
    not in use: many tests take no longer."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
