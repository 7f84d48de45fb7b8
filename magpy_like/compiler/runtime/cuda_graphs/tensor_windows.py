"""Windows: tensors over the memory of another tensor, made anew for each call.

A window has a dtype, sizes, strides, an offset, and the bits by which its elements are the
conjugates or the negatives of those in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from magpy_like.compiler.codegen.launcher import view_of
from magpy_like.torch_compat.tensor_memory import reinterpret_tensor, set_conj, set_neg

Window = Callable[[Tensor], Tensor]


def window_like(result: Tensor, owner: Tensor) -> Window:
    """A function that makes, of a tensor like ``owner``, what ``result`` is of ``owner``.

    A view, and a window of another dtype, share the version counter of the tensor.

    Raises:
        ValueError: the elements of ``result`` are larger than those of ``owner``.
    """
    size, stride = result.size(), result.stride()
    if result.dtype == owner.dtype:
        make = view_of if result._is_view() else reinterpret_tensor
        offset = result.storage_offset() - owner.storage_offset()
    else:
        per_element, rest = divmod(owner.element_size(), result.element_size())
        if not per_element or rest:
            raise ValueError(f"a result views elements of {owner.dtype} as {result.dtype}")
        make = _view_as(result.dtype)
        offset = result.storage_offset() - owner.storage_offset() * per_element
    bits = result.is_conj(), result.is_neg()
    if bits == (owner.is_conj(), owner.is_neg()) and result.dtype == owner.dtype:
        return lambda tensor: make(tensor, size, stride, offset)
    return lambda tensor: with_bits(make(tensor, size, stride, offset), *bits)


def _view_as(dtype: torch.dtype) -> Callable[..., Tensor]:
    def make(t: Tensor, size: torch.Size, stride: tuple[int, ...], offset: int) -> Tensor:
        elements = t.untyped_storage().nbytes() // t.element_size()
        whole = without_bits(t.as_strided((elements,), (1,), 0)).view(dtype)
        per_element = t.element_size() // whole.element_size()
        return whole.as_strided(size, stride, t.storage_offset() * per_element + offset)

    return make


def with_bits(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """The tensor, which nobody else holds, with these bits."""
    if conj != tensor.is_conj():
        set_conj(tensor, conj)
    if neg != tensor.is_neg():
        set_neg(tensor, neg)
    return tensor


def without_bits(tensor: Tensor) -> Tensor:
    """The tensor, which nobody else holds, with the elements that are in memory."""
    return with_bits(tensor, False, False)


def over_memory_like(result: Tensor) -> Callable[[torch.UntypedStorage], Tensor]:
    """A function that makes a tensor like ``result`` over other memory, at version 0."""
    dtype, device = result.dtype, result.device
    size, stride, offset = result.size(), result.stride(), result.storage_offset()
    bits = result.is_conj(), result.is_neg()

    def make(memory: torch.UntypedStorage) -> Tensor:
        placed = torch.empty(0, dtype=dtype, device=device).set_(memory, offset, size, stride)
        # ``set_`` counts as a write.
        return with_bits(reinterpret_tensor(placed, size, stride, 0), *bits)

    return make
