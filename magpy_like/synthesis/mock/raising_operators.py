"""Operators that may raise for inputs with the types and sizes of the recorded run.

Operators that never do, whatever their inputs' data, are listed; any other one may: for an index
out of bounds, a matrix without an inverse, a custom operator.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.operator_graph.function_nodes import REPLAYED
from magpy_like.monitor.operator_graph.graph_nodes import NUMBER
from magpy_like.monitor.torch_state.torch_modes import SETTERS
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.operators import OpOverload, OpOverloadPacket

NEVER_RAISE = frozenset(
    {
        # Element by element, and along dimensions.
        "abs", "absolute", "neg", "negative", "positive", "sign", "sgn", "reciprocal", "square",
        "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos",
        "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        "sigmoid", "erf", "erfc", "erfinv", "ceil", "round", "trunc", "frac", "nan_to_num",
        "isnan", "isinf", "isfinite", "isneginf", "isposinf", "add", "sub", "rsub", "mul",
        "multiply", "subtract", "truediv", "true_divide", "pow", "lerp", "addcmul", "addcdiv",
        "maximum", "minimum", "fmax", "fmin", "hypot", "copysign", "logaddexp", "logaddexp2",
        "clamp", "clip", "clamp_min", "clamp_max", "where", "lt", "le", "gt", "ge", "eq", "ne",
        "less", "greater", "logical_and", "logical_or", "logical_not", "logical_xor", "and", "or",
        "xor", "invert", "not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
        "masked_fill", "fill", "zero", "xlogy", "sinc", "relu", "relu6", "leaky_relu", "prelu",
        "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid",
        "softplus", "softsign", "softshrink", "hardshrink", "tanhshrink", "log_sigmoid",
        "logsigmoid", "threshold", "glu", "sum", "mean", "var", "std", "var_mean", "std_mean",
        "prod", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "vector_norm",
        "cumsum", "cumprod", "logsumexp", "softmax", "log_softmax", "softmin", "cosine_similarity",
        "dist", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
        "binary_cross_entropy_with_logits", "floor", "deg2rad", "rad2deg", "angle", "conj",
        "conj_physical", "resolve_conj", "resolve_neg", "real", "imag", "lgamma", "digamma",
        "polygamma", "mvlgamma", "i0", "i0e", "i1", "i1e", "entr", "erfcx", "logit", "log_ndtr",
        "ndtr", "ndtri", "xlog1py", "zeta", "nextafter", "heaviside", "isclose", "isreal",
        "signbit", "frexp", "ldexp", "float_power", "bitwise_left_shift", "bitwise_right_shift",
        "gcd", "lcm", "rrelu", "aminmax", "count_nonzero", "cummax", "cummin", "logcumsumexp",
        "nansum", "nanmean", "normalize", "renorm", "diff", "trapz", "trapezoid",
        "cumulative_trapezoid", "sort", "msort", "argsort", "topk", "kthvalue", "median",
        "nanmedian", "mode", "isin", "bucketize", "pairwise_distance", "cdist", "pdist",
        "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss",
        "multilabel_soft_margin_loss", "triplet_margin_loss", "cosine_embedding_loss",
        # Products and layers.
        "matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "addmm", "addmv", "addbmm",
        "baddbmm", "addr", "vdot", "vecdot", "cross", "kron", "trace", "linear", "bilinear",
        "einsum", "tensordot", "fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "rfft", "irfft",
        "rfft2", "irfft2", "rfftn", "irfftn", "fftshift", "ifftshift", "conv1d", "conv2d", "conv3d",
        "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "batch_norm",
        "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm",
        "scaled_dot_product_attention", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
        "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
        "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices",
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "upsample_nearest1d", "upsample_nearest2d",
        "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
        "upsample_trilinear3d", "interpolate", "pixel_shuffle", "pixel_unshuffle", "grid_sampler",
        "affine_grid_generator", "dropout", "alpha_dropout", "feature_dropout",
        "feature_alpha_dropout", "im2col", "col2im", "unfold", "fold",
        # Forms, copies, and tensors out of nothing.
        "view", "view_as", "reshape", "reshape_as", "permute", "transpose", "t", "swapaxes",
        "swapdims", "movedim", "moveaxis", "flatten", "unflatten", "squeeze", "unsqueeze",
        "expand", "expand_as", "broadcast_to", "contiguous", "select", "slice", "ravel",
        "column_stack", "block_diag", "cartesian_prod", "channel_shuffle", "slice_scatter",
        "select_scatter", "diagonal_scatter", "view_as_real", "chunk", "split",
        "split_with_sizes", "unbind", "cat", "concat", "concatenate", "stack", "hstack", "vstack",
        "dstack", "repeat", "tile", "flip", "fliplr", "flipud", "roll", "rot90", "diagonal",
        "diag", "diag_embed", "tril", "triu", "clone", "detach", "alias", "copy", "to", "type",
        "type_as", "float", "double", "half", "bfloat16", "long", "int", "short", "bool", "byte",
        "char", "pad", "constant_pad_nd", "zeros_like", "ones_like", "full_like", "empty_like",
        "new_zeros", "new_ones", "new_full", "new_empty", "rand_like", "randn_like", "size",
        "getattr", "replace_data", "meshgrid", "broadcast_tensors", "atleast_1d", "atleast_2d",
        "atleast_3d", "item",
        # Checks of speculated values, which precede all changes.
        "check_speculated",
        # Modes.
        *(setter.__name__.strip("_") for setter in SETTERS), "set_fwd_grad_enabled",
    }
)  # fmt: skip
_MAKE_TENSORS = frozenset(
    ("zeros", "ones", "full", "empty", "arange", "linspace", "eye", "rand", "randn")
)
"""Never raise without tensors as arguments."""
_DIVISIONS = frozenset(("div", "divide"))
"""Never raise without a rounding mode."""
_SUBSCRIPTS = frozenset(("getitem", "setitem"))

_AUGMENTED = frozenset(
    ("iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior", "ixor", "imatmul")
)


_OF_FLOATS = frozenset(("add", "sub", "mul", "truediv", "lerp", "addcmul", "addcdiv", "pow"))
"""Never raise for a number of type ``float`` that the dtype can represent."""


def largest_safe_float(nodes: Iterable[fx.Node], inputs: Iterable[Any]) -> float:
    """The largest number that all dtypes in a graph can represent, pessimistically."""
    types_found = {torch.float32, *(t.dtype for t in inputs if is_instance(t, torch.Tensor))}
    for node in nodes:
        named = [*node.args, *node.kwargs.values()]
        types_found.update(value for value in named if is_instance(value, torch.dtype))
        if (
            node.target in _SETTERS_OF_TYPES
            or str(getattr(node.target, "__name__", node.target)) in _NARROWS
        ):
            types_found.add(torch.float16)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        types_found.add(torch.float16)
    return min(torch.finfo(found).max for found in types_found if found.is_floating_point)


_NARROWS = {"half", "type", "type_as"}
_SETTERS_OF_TYPES = SETTERS - {set_grad_enabled}


def check_float_range(most: float, *numbers: float) -> None:
    """
    Raises:
        OverflowError: operators may raise for one of these numbers.
    """
    if any(abs(number) > most and not math.isinf(number) for number in numbers):
        raise OverflowError("an operator's number may be too large")


def may_fail(node: fx.Node, floats: Collection[fx.Node] = ()) -> bool:
    """True if an operator may raise for inputs with the types and sizes of the recorded run.

    ``floats`` are the inputs of the graph that are numbers of type ``float``, within range.
    """
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    name = _name_in_torch(node)
    if name is None:
        return True
    if name in _SUBSCRIPTS:
        return any(is_instance(index, fx.Node) for index in node.all_input_nodes[1:])
    numbers = [source for source in node.all_input_nodes if source.meta.get(NUMBER)]
    if numbers:
        known = name in _OF_FLOATS or name in _AUGMENTED
        return not (known and all(number in floats for number in numbers))
    if name in _DIVISIONS:
        return len(node.args) > 2 or bool(node.kwargs)
    if name in _MAKE_TENSORS:
        return bool(node.all_input_nodes)
    return name not in NEVER_RAISE and name not in _AUGMENTED


def _name_in_torch(node: fx.Node) -> str | None:
    """The name of one of torch's operators without the mark of in-place ones; None for others."""
    if node.op == "call_method":
        return str(node.target).strip("_")
    operation: Any = getattr(node.target, REPLAYED, node.target)
    if is_instance(operation, OpOverload):
        operation = operation.overloadpacket
    if is_instance(operation, OpOverloadPacket):
        own = operation._qualified_op_name.startswith("aten::")
    elif is_instance(operation, types.FunctionType):
        own = str(operation.__module__).startswith(("torch.", "magpy_like."))
    else:
        own = is_instance(operation, _NATIVE) and _module_of(operation) in _MODULES
    return _FAMILY.sub("", str(operation.__name__).strip("_")) if own else None


_FAMILY = re.compile("^(foreach|fft|linalg|special)_")
"""Prefixes of operator names that are modules in Python."""


def _module_of(operation: Any) -> str:
    module = str(getattr(operation, "__module__", None) or "torch")
    return module.partition(".")[0]


_MODULES = {"torch", "_operator", "builtins"}
_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)
