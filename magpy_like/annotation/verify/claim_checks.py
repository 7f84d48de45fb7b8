"""Checks of claims, one for each kind: run an operation on samples and try to refute the claim.

A claim is one property that an annotation states of one operation. A check returns a verdict: the
claim held on all samples, a sample refuted it, or no sample could test it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import fx

from magpy_like.annotation.data_dependent_sizes import depends_on_data
from magpy_like.annotation.schema import (
    Annotation,
    DataShape,
    RelationKind,
    RelationProperty,
    ValueRead,
)
from magpy_like.annotation.verify.output_relations import Witness, holds
from magpy_like.annotation.verify.samples import Sample, call
from magpy_like.annotation.verify.snapshot import (
    children,
    copied,
    freeze,
    has_value,
    name_inputs,
    unrolled,
)
from magpy_like.annotation.verify.value_variation import NOTHING, vary, vary_data


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check; ``ok`` is None if no sample could test the claim."""

    claim: str
    ok: bool | None
    detail: str = ""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    function: Any
    annotation: Annotation
    write: bool
    unspecified: bool = False  # its output is uninitialised, as that of torch.empty

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return call(self.function, self.write, args, kwargs)


def check(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """Verdicts on all claims of an operation's annotation."""
    if not operation.annotation.pure_closure:
        return
    for claim in (
        repeatable,
        unchanged_inputs,
        changed_inputs,
        unread_inputs,
        output_relation,
        operator_node,
        output_shape,
    ):
        yield from claim(operation, samples)


def repeatable(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """`pure_closure`: equal inputs result in equal outputs, whatever happens in between."""
    annotation = operation.annotation
    if annotation.global_state:
        return  # it is called for its effect
    kept = _kept_objects(annotation)
    tried = False
    for sample in samples:
        args, kwargs = sample.make()
        again: Any = copied((args, kwargs), kept(args, kwargs))
        iterators = any(isinstance(value, Iterator) for value in _inputs(args, kwargs).values())
        if iterators:
            again = sample.make()  # not every iterator can be copied
        before = _frozen_inputs(args, kwargs)
        seeded = annotation.as_op_node  # a random operator draws the same numbers
        first = _outcome(operation, args, kwargs, seeded=seeded)
        if not iterators and _frozen_inputs(args, kwargs) == before:
            # Objects compared by identity are shared: the first run has not changed them.
            shared = kept(args, kwargs)
            again = copied((args, kwargs), functools.partial(_kept_or_valueless, shared))
        if annotation.state_read:
            second = _outcome(operation, *again)
        else:
            with _perturbed():
                second = _outcome(operation, again[0], again[1], seeded=seeded)
        if operation.unspecified and "raised" in (first[0], second[0]):
            continue
        tried = True
        if first != second:
            yield Verdict("pure_closure", False, f"a second call differs for {_show(sample)}")
            return
    yield Verdict("pure_closure", True if tried else None)


def _kept_or_valueless(kept: Callable[[Any], bool], value: Any) -> bool:
    return kept(value) or not has_value(value)


def unchanged_inputs(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """Inputs that are not `in_place` are unchanged."""
    tried = False
    for sample in samples:
        args, kwargs = sample.make()
        inputs = _inputs(args, kwargs)
        before = _frozen_inputs(args, kwargs)
        with _same_generators():
            try:
                result = operation(args, kwargs)
            except Exception:
                continue
        tried = True
        for key, frozen in _frozen_inputs(args, kwargs).items():
            if frozen == before[key] or operation.annotation.changes(key, inputs[key]):
                continue
            yield Verdict(
                "not in_place", False, f"input {key} was changed by the call with {_show(sample)}"
            )
            return
        del result
    yield Verdict("not in_place", True if tried else None)


def changed_inputs(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """At least one sample changes the inputs that are `in_place` (else a warning)."""
    for key, given in operation.annotation.inputs.items():
        if not given.in_place:
            continue
        verdict: bool | None = None
        for sample in samples:
            args, kwargs = sample.make()
            inputs = _inputs(args, kwargs)
            if key not in inputs:
                continue
            verdict = bool(verdict) or _changes(operation, args, kwargs, inputs[key])
            if not verdict and isinstance(inputs[key], torch.Tensor):
                # Some do not change positive or small numbers, such as abs_ and frac_.
                args, kwargs = sample.make()
                with contextlib.suppress(Exception), torch.no_grad():
                    _inputs(args, kwargs)[key].mul_(-3.7).sub_(0.3)
                    verdict = _changes(operation, args, kwargs, _inputs(args, kwargs)[key])
        if verdict is None and isinstance(key, str):
            continue  # a keyword that this operation may lack, such as `out`
        yield Verdict(
            f"in_place[{key}]",
            True if verdict else None,
            "" if verdict is not False else "no sample changes it",
            warning=verdict is False,
        )


def _changes(operation: Operation, args: Any, kwargs: Any, value: Any) -> bool:
    before = freeze(value)
    with contextlib.suppress(Exception), _same_generators():
        operation(args, kwargs)
    return bool(freeze(value) != before)


def unread_inputs(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """`value_read`: the output does not depend on parts of the inputs that are not read."""
    annotation = operation.annotation
    if annotation.state_read:
        return  # a result that the guard reads again may change with the input
    verdicts: dict[int | str, tuple[bool | None, str]] = {}
    for sample in samples:
        for key in _inputs(*sample.make()):
            read = annotation.input(key).value_read
            if read is ValueRead.ALL or verdicts.get(key, (None, ""))[0] is False:
                continue
            verdict = _vary_one(operation, sample, key, read)
            if verdict is not None or key not in verdicts:
                verdicts[key] = (verdict, "" if verdict is not False else _show(sample))
    for key, (ok, shown) in verdicts.items():
        read = annotation.input(key).value_read
        detail = f"the output shows more of input {key}: {shown}" if ok is False else ""
        yield Verdict(f"value_read[{key}]: {read.name}", ok, detail)


# Relations by which the output depends on the input's entry for one key, which is then kept.
_KEYED = (
    RelationKind.ITEM,
    RelationKind.KEY,
    RelationKind.ATTRIBUTE,
    RelationKind.MEMBERSHIP,
    RelationKind.HAS_ATTRIBUTE,
)
# Relations by which the output is the only part of the input that the operation exposes.
_WHOLE = (
    RelationKind.LENGTH,
    RelationKind.DICT,
    RelationKind.SLOT,
    RelationKind.CELL,
    RelationKind.CONTEXT,
    RelationKind.ITERATION,
    RelationKind.COPY,
)


# Reads for which those relations determine the exposed part of the input.
_HANDED_OUT = (ValueRead.TYPE, ValueRead.IDENTITY, ValueRead.KEYS)


# The depth of the objects whose identity an operation may read.
_DEPTH = {ValueRead.IDENTITY: 0, ValueRead.ELEMENTS: 1, ValueRead.PAIRS: 2}


def _parts(value: Any, depth: int | None) -> list[Any]:
    if depth is None:
        return []
    if depth == 0:
        return [value]
    return [part for _, child in children(value) for part in _parts(child, depth - 1)]


def _calls_native(annotation: Annotation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    inputs = _inputs(args, kwargs)
    return any(
        not isinstance(inputs.get(key), types.FunctionType | type(None)) for key in annotation.calls
    )


def _vary_one(operation: Operation, sample: Sample, key: int | str, read: ValueRead) -> bool | None:
    """True if the output does not change with the unread parts of one input."""
    args, kwargs = sample.make()
    value = _inputs(args, kwargs)[key]
    annotation = operation.annotation
    output = annotation.output
    keep = NOTHING
    related = None
    if output.relation is not None and output.relation.of == key:
        related = output.relation
        if related.kind in _WHOLE and read in _HANDED_OUT:
            return None
        if related.kind in _KEYED:
            if related.key is None or related.key >= len(args):
                return None
            keep = args[related.key]
            if related.kind is RelationKind.ITEM and not isinstance(keep, int):
                return None
    elif output.shape_from_data is not DataShape.NEVER:
        return None
    if annotation.calls and key not in annotation.calls and _calls_native(annotation, args, kwargs):
        return None  # then the monitor records the reads of the functions that it calls
    # Objects whose identity the operation may read are shared by both runs.
    shared = {id(part) for part in _parts(value, _DEPTH.get(read))}
    kept = _kept_objects(annotation)(args, kwargs)
    other_args, other_kwargs = copied((args, kwargs), lambda v: id(v) in shared or kept(v))
    if read is ValueRead.NONE:
        # A Marker is not accepted everywhere, so both runs get one.
        args, kwargs = _with((args, kwargs), key, vary(value, read))
    first = _outcome(operation, args, kwargs, related=related)
    if first[0] == "raised":
        return None
    try:
        other = vary(_inputs(other_args, other_kwargs)[key], read, keep)
    except Exception:
        return None
    if other is NOTHING:
        return None
    other_args, other_kwargs = _with((other_args, other_kwargs), key, other)
    return _outcome(operation, other_args, other_kwargs, related=related) == first


def _with(inputs: tuple[tuple[Any, ...], dict[str, Any]], key: int | str, value: Any) -> Any:
    args, kwargs = inputs
    if isinstance(key, int):
        return (*args[:key], value, *args[key + 1 :]), kwargs
    return args, {**kwargs, key: value}


def output_relation(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """`relation`: the output is the object that the relation leads to."""
    relation = operation.annotation.output.relation
    if relation is None:
        return
    verdict: bool | None = None
    for sample in samples:
        args, kwargs = sample.make()
        if relation.of not in _inputs(args, kwargs):
            continue
        witness = Witness(relation, args, kwargs)
        with _same_generators():
            try:
                output = operation(args, kwargs)
            except Exception:
                continue
            held = holds(witness, output, functools.partial(operation, args, kwargs))
        if held is False:
            yield Verdict(f"relation: {relation.kind.name}", False, f"not so for {_show(sample)}")
            return
        verdict = held if held is not None else verdict
    yield Verdict(f"relation: {relation.kind.name}", verdict)


def operator_node(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """`as_op_node`: a graph of this one node results in equal tensors for equal inputs."""
    if not operation.annotation.as_op_node:
        return
    verdict: bool | None = None
    for sample in samples:
        if not _has_tensor(sample.make()):
            args, kwargs = sample.make()
            with _same_generators():
                if not _has_tensor(_quiet(operation, args, kwargs)):
                    continue
        args, kwargs = sample.make()
        graph, tensors = _single_node_graph(operation, *copied((args, kwargs)))
        with _same_generators():
            expected = _outcome(operation, args, kwargs, named=False)
        if expected[0] == "raised":
            continue
        with _same_generators():
            try:
                output = graph(*tensors)
                frozen = _metadata(output) if operation.unspecified else freeze(unrolled(output))
                actual = ("gave", frozen)
            except Exception as error:
                yield Verdict("as_op_node", False, f"the node raises {error!r} for {_show(sample)}")
                return
        if actual != expected:
            yield Verdict("as_op_node", False, f"the node differs for {_show(sample)}")
            return
        verdict = True
    yield Verdict("as_op_node", verdict)


def output_shape(operation: Operation, samples: list[Sample]) -> Iterator[Verdict]:
    """Of an operator: other data changes neither metadata nor plain values of the output."""
    annotation = operation.annotation
    if not annotation.as_op_node or annotation.output.shape_from_data is DataShape.ALWAYS:
        return
    verdict: bool | None = None
    for sample in samples:
        args, kwargs = sample.make()
        if depends_on_data(annotation.output.shape_from_data, args, kwargs):
            continue
        expected = _metadata(_quiet(operation, args, kwargs))
        for key, value in _inputs(*sample.make()).items():
            if not isinstance(value, torch.Tensor):
                continue
            for other in vary_data(value):
                changed = _with(sample.make(), key, other)
                try:
                    with _same_generators():
                        actual = _metadata(operation(*changed))
                except Exception:
                    continue
                if actual != expected:
                    yield Verdict(
                        "shape_from_data",
                        False,
                        f"data of input {key} changes more than the output's data: {_show(sample)}",
                    )
                    return
                verdict = True
    yield Verdict("shape_from_data", verdict)


def _metadata(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (type(value), value.shape, value.dtype, value.layout, value.requires_grad)
    if isinstance(value, numpy.ndarray):
        return (type(value), value.shape, value.dtype)
    if isinstance(value, tuple | list):
        return tuple(map(_metadata, value))
    if isinstance(value, dict):
        return {key: _metadata(part) for key, part in value.items()}
    return freeze(value)


def _single_node_graph(
    operation: Operation, args: Any, kwargs: Any
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    graph = fx.Graph()
    tensors: list[torch.Tensor] = []

    def placeholders(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return graph.placeholder(f"input_{len(tensors)}")
        return value

    arguments = fx.node.map_aggregate(tuple(args), placeholders)
    keywords = fx.node.map_aggregate(dict(kwargs), placeholders)

    def node(*args: Any, **kwargs: Any) -> Any:
        return operation(args, kwargs)

    graph.output(graph.call_function(node, arguments, keywords))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, tuple | list):
        return any(map(_has_tensor, value))
    return isinstance(value, dict) and any(map(_has_tensor, value.values()))


def _outcome(
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    named: bool = True,
    seeded: bool = True,
    related: RelationProperty | None = None,
) -> tuple[Any, ...]:
    """The result or exception of a call, frozen, with inputs and their contents as names.

    An output that ``related`` leads to is replaced by a mark.
    """
    names = name_inputs(args, kwargs) if named else {}
    witness = Witness(related, args, kwargs) if related and related.kind in _KEYED else None
    try:
        with _same_generators() if seeded else contextlib.nullcontext():
            output = operation(args, kwargs)
            if operation.unspecified:
                return ("gave", _metadata(output))
            if witness and holds(witness, output, lambda: None):
                return ("gave", "what the relation leads to")
            if _outlives(operation.annotation):
                return ("gave", id(output))
            return ("gave", freeze(unrolled(output), names))
    except Exception as error:
        return ("raised", type(error).__name__)


def _outlives(annotation: Annotation) -> bool:
    relation = annotation.output.relation
    return relation is not None and relation.kind is RelationKind.CONSTANT


def _quiet(operation: Operation, args: Any, kwargs: Any) -> Any:
    try:
        return operation(args, kwargs)
    except Exception:
        return None


def _inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    inputs: dict[int | str, Any] = dict(enumerate(args))
    inputs.update(kwargs)
    return inputs


def _frozen_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    return {key: freeze(value) for key, value in _inputs(args, kwargs).items()}


def _kept_objects(annotation: Annotation) -> Callable[..., Callable[[Any], bool]]:
    """For ``copied``: inputs whose identity is read are the same object in both runs."""

    def keep(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], bool]:
        shared = {
            id(value)
            for key, value in _inputs(args, kwargs).items()
            if annotation.input(key).value_read is ValueRead.IDENTITY
        }
        return lambda value: id(value) in shared

    return keep


@contextlib.contextmanager
def _same_generators() -> Iterator[None]:
    """All calls inside draw the same random numbers; the generators' states are restored."""
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(0)
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


_noise: list[Any] = []


@contextlib.contextmanager
def _perturbed() -> Iterator[None]:
    """The process in another state, except for modes that every guard checks (grad mode, dtype)."""
    limit = sys.getrecursionlimit()
    directory, options = os.getcwd(), numpy.get_printoptions()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        try:
            _noise[:] = [object() for _ in range(100)]
            gc.collect(0)
            os.environ["MAGPY_PERTURBED"] = str(random.random())
            os.chdir(os.sep)
            sys.setrecursionlimit(limit + 17)
            numpy.set_printoptions(precision=2)
            random.seed(12345)
            numpy.random.seed(12345)
            torch.default_generator.manual_seed(12345)
            yield
        finally:
            numpy.set_printoptions(**options)
            sys.setrecursionlimit(limit)
            os.chdir(directory)
            del os.environ["MAGPY_PERTURBED"]


def _show(sample: Sample) -> str:
    args, kwargs = sample.make()
    shown = [_brief(value) for value in args]
    shown += [f"{key}={_brief(value)}" for key, value in kwargs.items()]
    return f"({', '.join(shown)})"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
