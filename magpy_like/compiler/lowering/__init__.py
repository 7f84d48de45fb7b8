"""Lowerings from ATen operators to the loop IR, one module per family of operators.

``graph_lowering``: the ATen graph as buffers and operations, node by node
``aten_graph_properties``: properties of the traced ATen graph
``lowering_table``: the table of lowerings; promotion, broadcasting, views
``views``: views as index arithmetic
``conversions``: conversions, copies and constant tensors
``pointwise``: elementwise operators
``activations``: activation functions and their gradients
``special_math``: special functions
``reductions``: sums, extrema, variance, softmax
``scans``: running sums, products and extrema
``concatenation``: concatenation, padding, and writes to slices
``gather_scatter``: gathers and scatters
``scatters_in_place``: scatters that write an input of the graph in place
``sorted_search``: binary search, and elements placed in the order of a mask
``histogram``: counts per bin
``pooling``, ``fractional_pooling``: pooling and its gradients
``grid_sampling``: samples of a volume at computed positions
``random_numbers``: dropout
``complex_memory``: complex tensors as pairs of reals
``value_checks``: range checks of indices and probabilities
``vector_products``: products of a matrix and a vector on a GPU
"""

from magpy_like.compiler.lowering import (  # noqa: F401 (each module adds to the table)
    activations,
    complex_memory,
    concatenation,
    conversions,
    fractional_pooling,
    gather_scatter,
    grid_sampling,
    histogram,
    pointwise,
    pooling,
    random_numbers,
    reductions,
    scans,
    sorted_search,
    special_math,
    value_checks,
    vector_products,
    views,
)
from magpy_like.compiler.lowering.lowering_table import LOWERINGS

__all__ = ["LOWERINGS"]
