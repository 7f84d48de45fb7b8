"""Models of the zoo, ready to be called, eager or compiled by anyone."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import magpy_like as magpy
from benchmarks.common import differs
from tests.models import ZOO, Size

COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda target: target,
    "inductor": torch.compile,
    "magpy": magpy.compile,
    # Our compiler behind Dynamo's capture, to tell the two halves apart.
    "magpy-backend": lambda target: torch.compile(target, backend="magpy"),
}


def prepared(
    name: str, mode: str, compiler: str, batch: int, size: Size = "real", device: str = "cpu"
) -> tuple[Callable[[], Any], Any]:
    """A call of the compiled model (a forward pass, or a training step without the optimizer),
    and the compiled model."""
    zoo = ZOO[name]
    model = zoo.make(seed=0, size=size).to(device)
    args, kwargs = zoo.inputs(model, seed=1, batch=batch)
    if mode == "training":
        model.train()
    compiled = COMPILERS[compiler](model)

    def infer() -> Any:
        with torch.no_grad():
            return compiled(*args, **kwargs)

    def train() -> None:
        model.zero_grad(set_to_none=True)
        zoo.loss(compiled(*args, **kwargs)).backward()

    return (infer if mode == "inference" else train), compiled


def inferred_exactly(name: str, batch: int, size: Size = "real") -> Any:
    """What the model infers in float64 on the CPU."""
    zoo = ZOO[name]
    model = zoo.make(seed=0, size=size).double()
    args, kwargs = zoo.inputs(model, seed=1, batch=batch)
    with torch.no_grad():
        return model(*args, **kwargs)


def is_further_off(actual: Any, eager: Any, exact: Any) -> bool:
    """Whether a tensor of results that differs from eager's is more than twice as far from the
    exact one.

    A deep model may make much of what a convolution rounds: then eager's results are no nearer to
    the truth than others that are not close to them. Those that are close to them are not asked:
    a loss, one number, may be exact in eager mode by chance."""
    trees = (pytree.tree_leaves(tree) for tree in (actual, eager, exact))
    triples = [three for three in zip(*trees, strict=True) if differs(*three[:2], equal_nan=True)]
    return not all((a - true).norm() <= 2 * (e - true).norm() for a, e, true in triples)
