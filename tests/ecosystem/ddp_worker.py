"""One of several processes that train a model together: run by ``test_two_processes``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import magpy_like as magpy

WORLD = 2
ORDERS: dict[str, Callable[[Any, nn.Module], nn.Module]] = {
    "DDP(compile(m))": lambda wrap, m: DistributedDataParallel(wrap(m)),
    "compile(DDP(m))": lambda wrap, m: wrap(DistributedDataParallel(m)),
}


def model() -> nn.Module:
    """Batch norm has buffers, which DDP broadcasts before each forward pass."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def train(wrapped: nn.Module, rank: int) -> dict[str, Any]:
    """Losses of this process's own batches, and the model's state; every second step gathers the
    gradients of two batches before the processes exchange them."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank + 1)
    losses = []

    def backward() -> None:
        loss = wrapped(torch.randn(6, 4, generator=generator)).pow(2).mean()
        loss.backward()
        losses.append(loss.detach())

    for step in range(20):
        optimizer.zero_grad()
        if step % 2:
            with wrapped.no_sync():
                backward()
        backward()
        optimizer.step()
    parameters = [p.detach() for p in wrapped.parameters()]
    return {"losses": losses, "parameters": parameters, "buffers": [*wrapped.buffers()]}


def main(rank: int, order: str, folder: str) -> None:
    """Train eagerly and compiled, and save both results."""
    store = distributed.FileStore(f"{folder}/store", WORLD)
    distributed.init_process_group("gloo", rank=rank, world_size=WORLD, store=store)
    try:
        parts: list[Any] = []

        def wrap(module: Any) -> Any:
            parts.append(magpy.compile(module))
            return parts[-1]

        eager = train(ORDERS[order](lambda m: m, model()), rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", magpy.MagpyWarning)
            compiled = train(ORDERS[order](wrap, model()), rank)
        reports = [str(w.message) for w in caught if issubclass(w.category, magpy.MagpyWarning)]
        found = {"eager": eager, "compiled": compiled, "reports": reports}
        torch.save({**found, "hits": magpy.cache_info(parts[0]).hits}, Path(folder) / f"{rank}")
    finally:
        distributed.destroy_process_group()
