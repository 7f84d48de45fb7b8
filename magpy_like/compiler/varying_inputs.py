"""Inputs of a graph whose sizes vary, learnt from the forms of the inputs that it was given.

Behind a loop whose number of rounds varies, tensors have other sizes at every call, and nobody says
beforehand which. The sizes that have differed become symbols, and what compiling relies on becomes
a condition on them (PyTorch 2, section 3.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from magpy_like.torch_compat.fake_tensors import FakeTensorMode
from magpy_like.torch_interop.symbols import SymbolName

InputForm = tuple[Any, ...]


def input_form(tensor: torch.Tensor) -> InputForm:
    """What a compiled graph relies on of an input."""
    return (
        tensor.dtype, tensor.device, tensor.requires_grad, tuple(tensor.shape), tensor.stride()
    )  # fmt: skip


class VaryingInputs:
    """Example inputs for a graph, with symbols for sizes that differ between two calls."""

    def __init__(
        self, args: Sequence[Any], forms: Sequence[InputForm | None], earlier: Any
    ) -> None:
        """``forms`` are those of the inputs that may vary, None for others; ``earlier`` are the
        forms of another call.

        Raises:
            ValueError: they differ in more than sizes that can have symbols.
        """
        self.env = ShapeEnv(duck_shape=False, assume_static_by_default=True)
        mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.examples: list[Any] = []
        self._symbols: list[Any] = []
        self._places: list[tuple[int, int, int]] = []
        """Of each symbolic number: the input, whether it is a stride (1), the dimension."""
        self._fixed: list[tuple[int, InputForm]] = []
        for position, (value, now, before) in enumerate(zip(args, forms, earlier, strict=True)):
            if now is None or before is None or now == before:
                fixed = isinstance(value, torch.Tensor)
                self.examples.append(
                    mode.from_tensor(value, static_shapes=True) if fixed else value
                )
                if now is not None:
                    self._fixed.append((position, now))
                continue
            sizes, strides = self._layout(position, now, before)
            self._fixed.append((position, (*now[:3], tuple(map(_known, sizes)))))
            with mode, torch.inference_mode(False):
                dtype, device, gradients = now[:3]
                self.examples.append(
                    torch.empty_strided(
                        sizes, strides, dtype=dtype, device=device, requires_grad=gradients
                    )
                )
            for kind, numbers in enumerate((sizes, strides)):
                self._symbols += numbers
                self._places += [(position, kind, dim) for dim in range(len(numbers))]

    def _layout(
        self, position: int, now: InputForm, before: InputForm
    ) -> tuple[list[Any], list[Any]]:
        if now[:3] != before[:3] or len(now[3]) != len(before[3]):
            raise ValueError("more than sizes differ")
        sizes: list[Any] = []
        for dim, (size, other) in enumerate(zip(now[3], before[3], strict=True)):
            if size != other and min(size, other) < 2:
                raise ValueError("0 and 1 are sizes like no others")
            sizes.append(size if size == other else self._symbol(f"input_{position}_{dim}", size))
        strides: dict[int, Any] = {}
        order = sorted(range(len(sizes)), key=lambda dim: (now[4][dim], -dim))
        for at, dim in enumerate(order):
            inner = order[at - 1] if at else None
            strides[dim] = now[4][dim]
            if inner is not None and all(
                f[4][dim] == f[3][inner] * f[4][inner] for f in (now, before)
            ):
                strides[dim] = sizes[inner] * strides[inner]
            elif now[4][dim] != before[4][dim]:
                raise ValueError("strides differ in a way of their own")
        return sizes, [strides[dim] for dim in range(len(sizes))]

    def _symbol(self, name: str, size: int) -> torch.SymInt:
        origin = SymbolName(name)
        symbol = self.env.create_symbol(size, origin, dynamic_dim=DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=size, source=origin)

    def condition(self) -> Callable[[Sequence[InputForm | None]], bool]:
        """Whether what was compiled for the examples serves inputs of other forms."""
        text = self.env.produce_guards_expression(self._symbols)
        evaluate, fixed, places = self.env.evaluate_guards_expression, self._fixed, self._places

        def admits(forms: Sequence[InputForm | None]) -> bool:
            for position, wanted in fixed:
                given = forms[position]
                if given is None or not _is_like(given, wanted):
                    return False
            numbers = [forms[position][3 + kind][dim] for position, kind, dim in places]  # type: ignore[index]
            return text is None or bool(evaluate(text, numbers))

        return admits


def _is_like(given: InputForm, wanted: InputForm) -> bool:
    if len(wanted) == len(given):
        return given == wanted
    return (
        given[:3] == wanted[:3]
        and len(given[3]) == len(wanted[3])
        and all(
            known is None or known == size for known, size in zip(wanted[3], given[3], strict=True)
        )
    )


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None
