"""Calls of the zoo's models, eager or compiled, and the test for wrong results."""

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
    # This project's compiler with Dynamo's capture: separates the effects of capture and compiler.
    "magpy-backend": lambda target: torch.compile(target, backend=dynamo_backend),
}


def prepare_call(
    name: str, mode: str, compiler: str, batch: int, size: Size = "real", device: str = "cpu"
) -> tuple[Callable[[], Any], Any]:
    """Returns a call of a compiled model, and the compiled model.

    The call is a forward pass ("inference") or a training step without optimizer ("training").
    """
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


def infer_in_float64(name: str, batch: int, size: Size = "real", device: str = "cpu") -> Any:
    """Returns the model's results in float64."""
    zoo = ZOO[name]
    model = zoo.make(seed=0, size=size).double().to(device)
    args, kwargs = zoo.inputs(model, seed=1, batch=batch)
    with torch.no_grad():
        return model(*args, **kwargs)


def is_wrong(actual: Any, eager: Any, exact: Callable[[], Any]) -> bool:
    """True if a result differs from eager mode's and has more than twice the error.

    A deep model may amplify the rounding of a convolution: then eager mode's results are no more
    accurate than others that differ from them. A result close to eager mode's is correct whatever
    its error: a loss, one number, may be exact in eager mode by chance.

    Args:
        actual: results of a compiler.
        eager: results in eager mode.
        exact: returns the results in float64; called only if a result differs.
    """
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
