"""Reads by native code that no instruction reports.

These are reads of attributes, of the arguments of callbacks, of keys of caches, and of the values
and sizes of tensors.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import Annotation, ValueRead, lookup
from magpy_like.annotation.operator_facts import operator_facts
from magpy_like.monitor.calls.argument_kinds import (
    describe,
    holds_tensor,
    is_followed,
)
from magpy_like.monitor.calls.read_calls import ATTRIBUTES, inputs_of
from magpy_like.monitor.objects import attributes, class_lookup, object_addresses
from magpy_like.monitor.objects.containers import CONTAINERS, elements, hashes_in_python
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.torch_state import tensor_metadata
from magpy_like.native import instance_dict, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact
from magpy_like.refgraph.plain_values import is_identity, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.functorch import VMAP_MODULE

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context


def read_callback_inputs(
    rec: Recording,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Record the reads of native callbacks, which receive parts of the other inputs.

    Raises:
        Split: a callback may change them, or read more than a guard on the inputs covers.
    """
    inputs = inputs_of(args, kwargs)
    for position, function in inputs:
        if position not in annotation.calls:
            continue
        if is_followed(function):
            rec.inspections.compares_keys |= operation is itertools.groupby
            continue
        if function is not None and not _only_reads(function):
            raise Split(
                SplitReason.NATIVE_CALLBACK,
                f"passes {describe(function)} to native code that calls it",
                describe(function),
            )
        for other, value in inputs:
            if other != position:
                if function in object_addresses.ADDRESS_QUERIES and not _has_plain_elements(value):
                    raise Split(
                        SplitReason.NATIVE_CALLBACK,
                        f"passes {describe(function)} to native code that calls it",
                        describe(function),
                    )
                rec.inspections.visit(value, ValueRead.ALL)


def _has_plain_elements(value: Any) -> bool:
    """True for plain values and containers of them, whose elements have no observable address."""
    return is_plain(value) or (type(value) in CONTAINERS and all(map(is_plain, value)))


def _only_reads(function: Any) -> bool:
    """True if a native function depends on the contents of its arguments only."""
    if is_instance(function, operator.itemgetter):
        return True
    annotation = lookup(function)
    if annotation is None:
        return False
    if not annotation.pure_closure or annotation.state_read or annotation.calls:
        return annotation.as_op_node
    inputs = (annotation.default_input, *annotation.inputs.values())
    if any(properties.in_place for properties in inputs):
        return False
    relation = annotation.output.relation
    return relation is None or (relation.access == "read" and relation.kind not in ATTRIBUTES)


def check_tensor_reads(
    context: Context,
    annotation: Annotation,
    operation: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Check that a pure operation reads no tensor's data (section 5.3.1, step 5).

    Raises:
        Split: it reads data, which makes it dynamic.
    """
    by_key = orders_by_key(operation, kwargs)
    for position, value in inputs_of(args, kwargs):
        is_read_in_full = annotation.input(position).value_read is ValueRead.ALL
        if is_plain(value) or not (is_read_in_full or is_instance(value, torch.Tensor)):
            continue  # such as the list of `list.append`, which may be long
        if not holds_tensor(value) or context.recording.constants.hold(value):
            continue
        if by_key and position != "default":
            continue
        if is_read_in_full:
            if getattr(operation, "__objclass__", None) in _HASHING_TYPES and is_instance(
                value, torch.Tensor
            ):
                continue  # sets and dictionaries hash and compare tensors by identity
            cause = annotation.split_cause(
                describe(operation),
                SplitReason.TENSOR_VALUE_READ,
                "reads a tensor's value into Python",
            )
            raise Split(*cause)
        if (
            is_instance(value, torch.Tensor)
            and annotation.input(position).value_read in _READS_SIZES
        ):
            facts = operator_facts(getattr(operation, "__name__", ""))
            if not facts.guarded:
                tensor_metadata.guard_metadata(context, tensor_metadata.getter(operation), value)
            if facts.reads_sizes and not _is_vmap_check(context):
                context.lifted.tensors.specialize_sizes(value)


def _is_vmap_check(context: Context) -> bool:
    """True if `torch.vmap` itself reads the size, which it does in every later call as well."""
    frame = context.frame if context.recording.running.depth else None
    return frame is not None and frame.f_globals.get("__name__") == VMAP_MODULE


_ORDERINGS = {sorted, min, max, list.sort}


def orders_by_key(operation: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if an operation orders elements by a key function in Python only."""
    return operation in _ORDERINGS and kwargs.get("key") is not None and is_followed(kwargs["key"])


_HASHING_TYPES = (set, frozenset, dict)
_READS_SIZES = (ValueRead.TYPE, ValueRead.LENGTH)


def guard_numpy_error_state(rec: Recording) -> None:
    """Guard the state of `np.seterr`: it decides whether NumPy's functions raise or warn."""
    if not any(operation is np.geterr for operation, *_ in rec.state.queries):
        rec.state.queries.append((np.geterr, (), {}, np.geterr()))


READS_ATTRIBUTES = {"__reduce__", "__reduce_ex__", "__getstate__", "format", "format_map"}
"""Native methods that read the attributes of an instance."""
_REDUCING = ("__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
"""Special methods that they look up in its class."""


def read_attributes_inside(rec: Recording, operation: Any, value: Any) -> None:
    """Record that native code reads all attributes of an external instance.

    Raises:
        Split: it is a format string, which may read attributes of attributes. Or the value is one
            of several tensors, according to the data.
    """
    formats = operation in (str.format, str.format_map)
    if not formats and not is_instance(value, torch.Tensor):
        for name in _REDUCING:
            class_lookup.read_class(rec, type(value), name)
    if is_instance(value, torch.Tensor) and not formats:
        rec.inspections.check_no_alias(value, "reads the attributes of")
    node = None if is_plain(value) else rec.variables.node(value)
    if node is None or is_identity(value):
        return
    if is_instance(value, (*CONTAINERS, torch.Tensor)) and (
        formats or instance_dict(value) is None
    ):
        return
    if formats:
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"formats an external {type(value).__qualname__} by str.format",
        )
    attributes.read_all(rec, value)


def guard_cache_keys(rec: Recording, values: Iterable[Any]) -> None:
    """Guard the identity of the instances that a cached function uses as keys.

    Raises:
        Split: the look-up runs a ``__hash__`` or ``__eq__`` of the program.
    """
    for value in values:
        if hashes_in_python(value) and not _hashes_dataclass_fields(value):
            raise Split(
                SplitReason.CACHED_FUNCTION,
                f"passes a {type(value).__qualname__} with a Python __hash__ to a cached function",
            )
        if is_instance(value, tuple | frozenset):
            guard_cache_keys(rec, value)
            continue
        node = None if is_plain(value) else rec.variables.node(value)
        if node is not None and not is_instance(value, CONTAINERS):
            node.facts.add(Fact.IDENTITY)


def _hashes_dataclass_fields(key: Any) -> bool:
    """True if only generated methods of dataclasses hash and compare a key."""
    if is_instance(key, tuple | frozenset):
        return all(
            not hashes_in_python(item) or _hashes_dataclass_fields(item) for item in elements(key)
        )
    for name in ("__hash__", "__eq__"):
        method = lookup_in_type(type(key), name)
        if is_instance(method, types.FunctionType):
            if not method.__code__.co_qualname.startswith(_DATACLASS_METHOD):
                return False
    fields = getattr(type(key), "__dataclass_fields__", ())
    return _hashes_dataclass_fields(tuple(object.__getattribute__(key, name) for name in fields))


_DATACLASS_METHOD = "__create_fn__.<locals>."
