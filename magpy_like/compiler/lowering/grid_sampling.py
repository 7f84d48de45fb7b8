"""Samples of a volume at the positions of a grid.

ATen's kernel for images uses the processor's gathers and computes each position once for all
channels, so it stays, as do the gradients. ATen's kernel for volumes processes one element at a
time; its order of operations is kept, and with it the results for NaN and infinite positions.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from magpy_like.compiler.compiler_errors import Unsupported
from magpy_like.compiler.ir import loop_ir
from magpy_like.compiler.ir.index_arithmetic import Expr
from magpy_like.compiler.ir.loop_ir import Box, Index
from magpy_like.compiler.ir.ops import Value, ops
from magpy_like.compiler.lowering.graph_lowering import Graph
from magpy_like.compiler.lowering.lowering_table import aten, const, lower

LINEAR, NEAREST = range(2)
ZEROS, BORDER, REFLECTION = range(3)
#: Integers up to this are exact in float32.
MAX_EXACT_FLOAT = 2**23


@dataclass(frozen=True)
class Tap:
    """An element along one dimension that a sample reads: its index, its weight, and the test that
    it exists (None: always)."""

    at: Value
    weight: Value
    is_inside: Value | None


@dataclass(frozen=True)
class Sampling:
    """The sampling of one dimension of ``size`` elements."""

    size: int
    mode: int
    padding: int
    corners: bool

    def position(self, x: Value) -> Value:
        """The position, in elements, of a normalised grid coordinate ``x``."""
        return self._apply_padding(self._unnormalize(x))

    def taps(self, x: Value) -> list[Tap]:
        """The elements that a sample at position ``x`` reads."""
        one = const(1, x)
        if self.mode == NEAREST:
            at = ops.round(x)
            return [Tap(at, one, self._is_inside(at))]
        first = ops.floor(x)
        second = ops.add(first, one)
        exists = ops.le(second, const(self.size - 1, x))  # for positions clamped by the padding
        return [
            Tap(first, ops.sub(second, x), self._is_inside(first)),
            Tap(second, ops.sub(x, first), exists if self.padding else self._is_inside(second)),
        ]

    def _unnormalize(self, x: Value) -> Value:
        """From [-1, 1] to elements: between the centres of the outer ones, or their outer edges."""
        x = ops.add(x, const(1, x))
        if self.corners:
            return ops.mul(ops.truediv(x, const(2, x)), const(self.size - 1, x))
        return ops.truediv(
            ops.sub(ops.mul(x, const(self.size, x)), const(1, x)),
            const(2, x),
        )

    def _apply_padding(self, x: Value) -> Value:
        """Clamp or reflect into the volume, as the padding mode requires; NaN becomes the last
        element."""
        if self.padding == ZEROS:
            return x
        if self.padding == REFLECTION:
            x = self._reflect(x)
        zero, last = const(0, x), const(self.size - 1, x)
        x = ops.where(ops.lt(x, zero), zero, x)
        return ops.where(ops.lt(x, last), x, last)

    def _reflect(self, x: Value) -> Value:
        """Reflect at the centres of the outer elements, or at their outer edges."""
        low, span = (0.0, self.size - 1) if self.corners else (-0.5, self.size)
        if span == 0:
            return const(0, x)
        low_, span_ = const(low, x), const(span, x)
        distance = ops.abs(ops.sub(x, low_))
        rest = ops.fmod(distance, span_)
        times = ops.floor(ops.truediv(distance, span_))
        turn = ops.eq(ops.fmod(times, const(2, x)), const(1, x))
        return ops.add(ops.where(turn, ops.sub(span_, rest), rest), low_)

    def _is_inside(self, at: Value) -> Value | None:
        """The test that the element exists; None for positions clamped by the padding."""
        if self.padding != ZEROS:
            return None
        return ops.logical_and(ops.ge(at, const(0, at)), ops.le(at, const(self.size - 1, at)))


def _element(
    dims: Sequence[Sampling], taps: Sequence[Tap]
) -> tuple[list[Expr], Value | None]:  # fmt: skip
    """(an element of the volume, test that all taps exist); another element where they do not."""
    is_inside: Value | None = None
    for tap in taps:
        if tap.is_inside is not None:
            is_inside = (
                tap.is_inside if is_inside is None else ops.logical_and(is_inside, tap.is_inside)
            )
    all_positions = [_to_index(_zero_outside(is_inside, tap.at)) for tap in taps]
    return [
        ops.indirect(at, dim.size) for at, dim in zip(all_positions, dims, strict=True)
    ], is_inside


def _zero_outside(is_inside: Value | None, value: Value) -> Value:
    """``value`` inside the volume, and zero elsewhere."""
    return value if is_inside is None else ops.where(is_inside, value, const(0, value))


def _to_index(x: Value) -> Value:
    """A whole number from 0 to below ``MAX_EXACT_FLOAT`` as an integer.

    Taken from its bits, which is cheaper than a conversion that handles overflow.
    """
    wide = x.dtype == torch.float64
    digits, integer = (52, torch.int64) if wide else (23, torch.int32)
    start = struct.unpack("<q" if wide else "<i", struct.pack("<d" if wide else "<f", 2.0**digits))
    bits = ops.bitcast(ops.add(x, const(2.0**digits, x)), integer)
    return ops.sub(bits, ops.constant(start[0], integer))


def _realize_positions(graph: Graph, grid: Box, k: int, dim: Sampling) -> Box:
    """The positions along one dimension, realized once for all channels."""

    def inner(index: Index) -> Value:
        return dim.position(grid.load([*index, sympy.Integer(k)]))

    size = grid.size[:-1]
    positions = loop_ir.pointwise(
        graph, grid.device, grid.dtype, size, inner, [grid], operations=12
    )
    positions.realize()
    return positions


@lower(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    graph: Graph, volume: Box, grid: Box, mode: int, padding: int, corners: bool
) -> Box:
    """``volume`` [n, c, depth, height, width] at ``grid`` [n, *out, 3], x first."""
    static = all(s.is_Integer and 0 < s < MAX_EXACT_FLOAT for s in volume.size[2:])
    floats = volume.dtype == grid.dtype and volume.dtype in (torch.float32, torch.float64)
    if not static or not floats or volume.device.type != "cpu" or grid.device != volume.device:
        raise Unsupported("aten.grid_sampler_3d", "this dtype or device, or a symbolic volume")
    dims = [Sampling(int(s), mode, padding, corners) for s in volume.size[2:]]
    volume.realize()
    all_positions = [
        _realize_positions(graph, grid, k, dim) for k, dim in zip((2, 1, 0), dims, strict=True)
    ]

    def inner(index: Index) -> Value:
        n, c, *out = index
        axes = [
            dim.taps(positions.load([n, *out]))
            for dim, positions in zip(dims, all_positions, strict=True)
        ]
        total = ops.constant(0, volume.dtype)
        for taps in itertools.product(*axes):
            element, is_inside = _element(dims, taps)
            value = volume.load([n, c, *element])
            if mode == NEAREST:
                return _zero_outside(is_inside, value)
            for tap in reversed(taps):
                value = ops.mul(value, tap.weight)
            # Elements outside are skipped, even with a NaN weight.
            total = ops.add(total, _zero_outside(is_inside, value))
        return total

    size = [volume.size[0], volume.size[1], *grid.size[1:-1]]
    return loop_ir.pointwise(
        graph, volume.device, volume.dtype, size, inner, [volume, *all_positions], operations=150,
        expensive=True,
    )  # fmt: skip
