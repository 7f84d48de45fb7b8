"""Varying inputs: symbolic sizes for a graph, inferred from the inputs of two calls.

After a loop whose trip count varies, tensors have other sizes at every call, and nothing declares
which. The sizes that have differed become symbols, and the guards that compiling adds become a
condition on them (PyTorch 2, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic

from magpy_like.torch_compat.autograd import make_nonleaf
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensorMode
from magpy_like.torch_interop.symbols import ShapeEnvironment, SymbolName

InputForm = tuple[Any, ...]


def input_form(tensor: torch.Tensor) -> InputForm:
    """The properties of an input that a compiled graph relies on."""
    gradients = tensor.requires_grad, tensor.is_leaf
    return tensor.dtype, tensor.device, gradients, tuple(tensor.shape), tensor.stride()


class VaryingInputs:
    """Example inputs for a graph, with symbols for sizes that differ between two calls."""

    def __init__(
        self, args: Sequence[Any], forms: Sequence[InputForm | None], earlier: Any
    ) -> None:
        """Compare the forms of two calls.

        Args:
            args: the present inputs.
            forms: of the inputs that may vary, None for others.
            earlier: the forms of another call.

        Raises:
            ValueError: they differ in more than sizes that can become symbols.
        """
        self.env = ShapeEnvironment(duck_shape=False, assume_static_by_default=True)
        mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.examples: list[Any] = []
        self._symbols: list[Any] = []
        self._sources: list[tuple[int, int, int]] = []
        """Per symbolic number: (input, 0 for a size or 1 for a stride, dimension)."""
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
            with mode, torch.inference_mode(False), torch.enable_grad():
                dtype, device, (gradients, is_leaf) = now[:3]
                example = torch.empty_strided(
                    sizes, strides, dtype=dtype, device=device, requires_grad=gradients
                )
                self.examples.append(example if is_leaf else make_nonleaf(example))
            for kind, numbers in enumerate((sizes, strides)):
                self._symbols += numbers
                self._sources += [(position, kind, dim) for dim in range(len(numbers))]

    def _layout(
        self, position: int, now: InputForm, before: InputForm
    ) -> tuple[list[Any], list[Any]]:
        if now[:3] != before[:3] or len(now[3]) != len(before[3]):
            raise ValueError("dtypes, devices, gradients or numbers of dimensions differ")
        sizes: list[Any] = []
        for dim, (size, other) in enumerate(zip(now[3], before[3], strict=True)):
            if size != other and min(size, other) < 2:
                raise ValueError("sizes 0 and 1 are always specialized")
            sizes.append(size if size == other else self._symbol(f"input_{position}_{dim}", size))
        strides: dict[int, Any] = {}
        order = sorted(range(len(sizes)), key=lambda dim: (now[4][dim], -dim))
        for rank, dim in enumerate(order):
            inner = order[rank - 1] if rank else None
            strides[dim] = now[4][dim]
            if inner is not None and all(
                f[4][dim] == f[3][inner] * f[4][inner] for f in (now, before)
            ):
                strides[dim] = sizes[inner] * strides[inner]
            elif now[4][dim] != before[4][dim]:
                raise ValueError("strides differ, and not as products of sizes")
        return sizes, [strides[dim] for dim in range(len(sizes))]

    def _symbol(self, name: str, size: int) -> torch.SymInt:
        origin = SymbolName(name)
        symbol = self.env.create_symbol(size, origin, dynamic_dim=DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=size, source=origin)

    def condition(self) -> Callable[[Sequence[InputForm | None]], bool]:
        """A check that a graph compiled for the examples is valid for inputs of other forms."""
        text = self.env.produce_guards_expression(self._symbols)
        evaluate, fixed, sources = self.env.evaluate_guards_expression, self._fixed, self._sources

        def admits(forms: Sequence[InputForm | None]) -> bool:
            for position, required in fixed:
                form = forms[position]
                if form is None or not _matches(form, required):
                    return False
            numbers = [forms[position][3 + kind][dim] for position, kind, dim in sources]  # type: ignore[index]
            return text is None or bool(evaluate(text, numbers))

        return admits


def _matches(form: InputForm, required: InputForm) -> bool:
    """True if a form equals the required one, which may lack strides and have None for sizes."""
    if len(required) == len(form):
        return form == required
    return (
        form[:3] == required[:3]
        and len(form[3]) == len(required[3])
        and all(
            known is None or known == size for known, size in zip(required[3], form[3], strict=True)
        )
    )


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None
