"""Models of the zoo, ready to be called, eager or compiled by anyone."""

from collections.abc import Callable
from typing import Any

import torch

import magpy_like as magpy
from benchmarks.paired_timing import differs
from magpy_like.compiler import dynamo_backend
from magpy_like.torch_compat import pytree
from zoo import ZOO, Size

COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda target: target,
    "inductor": torch.compile,
    "magpy": magpy.compile,
    # Our compiler behind Dynamo's capture, to tell the two halves apart.
    "magpy-backend": lambda target: torch.compile(target, backend=dynamo_backend),
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


def inferred_exactly(name: str, batch: int, size: Size = "real", device: str = "cpu") -> Any:
    """What the model infers in float64."""
    zoo = ZOO[name]
    model = zoo.make(seed=0, size=size).double().to(device)
    args, kwargs = zoo.inputs(model, seed=1, batch=batch)
    with torch.no_grad():
        return model(*args, **kwargs)


def is_wrong(actual: Any, eager: Any, exact: Callable[[], Any]) -> bool:
    """Whether a tensor of results differs from eager's and is more than twice as far from the
    exact one, which is asked for where any differs.

    A deep model may make much of what a convolution rounds: then eager's results are no nearer to
    the truth than others that are not close to them. Those that are close to them are not asked:
    a loss, one number, may be exact in eager mode by chance."""
    leaves = [pytree.tree_leaves(tree) for tree in (actual, eager)]
    differ = [differs(a, e, equal_nan=True) for a, e in zip(*leaves, strict=True)]
    if not any(differ):
        return False
    triples = zip(*leaves, pytree.tree_leaves(exact()), strict=True)
    return not all(
        _distance(a, true) <= 2 * _distance(e, true)
        for (a, e, true), asked in zip(triples, differ, strict=True)
        if asked
    )


def _distance(found: torch.Tensor, true: torch.Tensor) -> float:
    return (found.to(true) - true).norm().item()
