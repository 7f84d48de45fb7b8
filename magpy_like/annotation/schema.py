"""Schema of annotations: the six properties of an operation in MagPy, section 5.2.

An annotation is data: this module checks a mapping, read from YAML or passed from Python, and
builds an :class:`Annotation` from it.

Beyond the paper's properties there are a few flags, for operations that the paper's prose treats
specially: ``global_state`` (a setter of torch state that belongs in the operator graph),
``state_read`` (pure but for process-wide state, which a guard can check by calling again),
``random`` (a draw that the mock repeats), ``replay`` (an effect that the mock repeats by calling
again with the same constants), ``calls`` (inputs that it calls with parts of the others) and
``reason`` with ``detail`` (why an operation is dynamic: the name of a ``SplitReason``, and a verb
phrase that ``explain`` shows, such as ``reads the clock``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from magpy_like.errors import closest_name
from magpy_like.split_reasons import SplitCause, SplitReason


class ValueRead(enum.Enum):
    """The depth to which an operation reads an input, in ascending order."""

    NONE = "none"  # moves the reference only
    IDENTITY = "identity"  # its identity (id, weak references)
    TYPE = "type"  # its type; of a tensor: its metadata
    LENGTH = "length"  # its type and len()
    KEYS = "keys"  # the keys of a mapping or members of a set, in order
    ELEMENTS = "elements"  # the objects that it holds directly, in order; plain values by value
    PAIRS = "pairs"  # its elements and theirs: a mapping, or a sequence of keys and values
    ALL = "all"  # its value, to any depth; of a tensor: its data


class RelationKind(enum.Enum):
    """How a variable refers to another one: the labels of the RefGraph's edges."""

    # Every look-up of an edge hashes one. *Measured*: enum's hash, of the name, is Python code, and
    # takes 2 % of a first call (ResNet).
    __hash__ = object.__hash__

    CONSTANT = "constant"  # outlives the call: a class, a module, a cached result
    LOCAL = "local"
    CELL = "cell"
    GLOBAL = "global"
    ATTRIBUTE = "attribute"
    HAS_ATTRIBUTE = "has attribute"  # the output: whether there is one
    SLOT = "slot"
    DICT = "__dict__"
    ITEM = "item"  # by position: list, tuple, deque
    KEY = "key"  # by dictionary key; ITEM and KEY are one `x[k]` when the type is not known
    MEMBERSHIP = "membership"  # the output: whether a key or value is in the input
    LENGTH = "length"  # the output is the input's length
    TYPE = "type"  # the output is the input's type
    ITERATION = "iteration"  # the output is, or yields, the items of the input
    ELEMENT = "element"  # the output is one of the input's elements, chosen by the operation
    ARGUMENT = "argument"  # the output is one of the inputs, chosen by the operation
    SELF = "self"  # the output is the input
    COPY = "copy"  # the output is new and contains the same elements
    MAPPING = "mapping"  # the mapping of a mapping proxy, or of a view of a dictionary
    CONTEXT = "context"  # the value of a context variable
    CLOSURE = "closure"
    DEFAULT = "default argument"


class DataShape(enum.Enum):
    """When the shape of an operator's output depends on the data of its inputs."""

    NEVER = "never"
    ALWAYS = "always"  # nonzero, unique
    MASK_INDEX = "mask index"  # x[mask]
    ONE_ARGUMENT = "one argument"  # where(condition)
    SIZE_NOT_GIVEN = "size not given"  # one_hot(x), one_hot(x, -1)
    TENSOR_ARGUMENT = "tensor argument"  # repeat_interleave(x, repeats)


_ITERATING = (ValueRead.KEYS, ValueRead.ELEMENTS, ValueRead.PAIRS, ValueRead.ALL)


@dataclass(frozen=True, slots=True)
class InputProperty:
    """``ValueRead`` and ``InPlace`` of one input."""

    value_read: ValueRead = ValueRead.ALL
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class RelationProperty:
    """The output is reached from input ``of`` by a relation of this kind.

    Positions of inputs, which count the receiver as 0: ``key`` of the attribute name, key or index,
    ``default`` of the result if there is no such entry, ``value`` of the value that a write stores.
    """

    kind: RelationKind
    of: int | str = 0
    key: int | None = None
    default: int | None = None
    value: int | None = None
    access: Literal["read", "write"] = "read"


@dataclass(frozen=True, slots=True)
class OutputProperty:
    """``InPlace`` and ``Relation`` of the output, and the dependence of its shape on data."""

    in_place: bool = False
    relation: RelationProperty | None = None
    shape_from_data: DataShape = DataShape.NEVER


@dataclass(frozen=True, slots=True)
class Annotation:
    """The properties of one operation; ``source`` is the file and line of their text.

    ``changes_if`` is the position of the argument that switches in-place changes on, such as
    ``training`` of a normalisation.
    """

    operation: str
    as_op_node: bool
    pure_closure: bool
    inputs: Mapping[int | str, InputProperty]
    default_input: InputProperty
    output: OutputProperty
    source: str
    global_state: bool = False
    state_read: bool = False
    random: bool = False
    replay: bool = False
    reason: SplitReason | None = None
    detail: str = ""
    calls: tuple[int | str, ...] = ()
    changes_if: int | None = None

    def input(self, position: int | str) -> InputProperty:
        """The property of the input at a position (receiver first) or of a keyword."""
        return self.inputs.get(position, self.default_input)

    def changes(self, position: int | str, value: object) -> bool:
        """True if a call may change this input, in place or as an iterator that advances."""
        properties = self.input(position)
        return properties.in_place or (
            properties.value_read in _ITERATING and isinstance(value, Iterator)
        )

    def writes_to(self, position: int | str, args: Sequence[Any]) -> bool:
        """True if a call with these arguments may write to the tensor at a position."""
        switch = self.changes_if
        is_off = switch is not None and switch < len(args) and args[switch] is False
        return self.input(position).in_place and not is_off

    @property
    def dynamic(self) -> bool:
        """True if every call splits the program."""
        return not self.pure_closure and not (self.as_op_node or self.random or self.replay)

    def split_cause(self, name: str, otherwise: SplitReason, detail: str = "") -> SplitCause:
        """The cause of a split at a call of the operation.

        Args:
            name: the name of the operation in the program.
            otherwise: the reason if the annotation has none; ``detail`` likewise.
        """
        detail = self.detail if self.reason else detail
        text = f"calls {name}, which {detail}" if detail else f"calls {name}"
        return SplitCause(self.reason or otherwise, text, name)


FLAGS = ("as_op_node", "pure_closure", "global_state", "state_read", "random", "replay")
PROPERTIES = frozenset(
    (*FLAGS, "inputs", "default_input", "output", "reason", "detail", "calls", "changes_if")
)

_OF_RELATIONS = ("kind", "of", "key", "default", "value", "access")
_VALUE_READS = {read.name: read for read in ValueRead}
_DATA_SHAPES = {shape.name: shape for shape in DataShape}
_RELATION_KINDS = {kind.name: kind for kind in RelationKind}
_REASONS = {reason.name: reason for reason in SplitReason}


class SchemaError(Exception):
    """An invalid entry at ``path`` in the mapping; the loader adds file and line."""

    def __init__(self, path: tuple[Any, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def build(operation: str, raw: Mapping[str, Any], source: str) -> Annotation:
    """Check a mapping of properties and build the annotation.

    Raises:
        SchemaError: a property is unknown, of a wrong type or contradicts another one.
    """
    for key in raw:
        if key not in PROPERTIES:
            raise SchemaError((key,), f"unknown property; known are {listed(PROPERTIES, key)}")
    flags = {name: _typed(raw, name, bool, default=False) for name in FLAGS}
    if "pure_closure" not in raw:
        flags["pure_closure"] = flags["as_op_node"]
    _check_flags(raw, flags)
    inputs = _typed(raw, "inputs", dict, default={})
    properties = {
        _position(key, ("inputs", key)): _input(value, ("inputs", key))
        for key, value in inputs.items()
    }
    default = _input(raw["default_input"], ("default_input",)) if "default_input" in raw else None
    output = _output(raw.get("output", {}), ("output",))
    _check_output(output, properties)
    return Annotation(
        operation=operation,
        inputs=MappingProxyType(properties),
        default_input=default or InputProperty(),
        output=output,
        source=source,
        reason=_reason(raw),
        detail=_typed(raw, "detail", str, default=""),
        calls=tuple(
            _position(position, ("calls",)) for position in _typed(raw, "calls", list, default=[])
        ),
        changes_if=_typed(raw, "changes_if", int, default=None),
        **flags,
    )


def _check_flags(raw: Mapping[str, Any], flags: Mapping[str, bool]) -> None:
    pure = flags["pure_closure"]
    if flags["as_op_node"] and not pure:
        raise SchemaError(
            ("as_op_node",), "as_op_node contradicts pure_closure: false; an operator is pure"
        )
    if flags["global_state"] and not flags["as_op_node"]:
        raise SchemaError(
            ("global_state",), "global_state needs as_op_node: true; it is a node of the graph"
        )
    if flags["state_read"] and not pure:
        raise SchemaError(("state_read",), "state_read needs pure_closure: true")
    for mark in ("random", "replay"):
        if flags[mark] and pure:
            raise SchemaError((mark,), f"{mark} contradicts pure_closure: true")
    if "reason" in raw and pure:
        raise SchemaError(("reason",), "a reason is for operations that are not pure")
    if "detail" in raw and "reason" not in raw:
        raise SchemaError(("detail",), "a detail needs a reason")


def _reason(raw: Mapping[str, Any]) -> SplitReason | None:
    if isinstance(raw.get("reason"), SplitReason):  # from Python
        return cast(SplitReason, raw["reason"])
    name = _typed(raw, "reason", str, default=None)
    if name is not None and name not in _REASONS:
        raise SchemaError(("reason",), f"unknown reason; known are {listed(_REASONS, name)}")
    return None if name is None else _REASONS[name]


def _check_output(output: OutputProperty, inputs: Mapping[int | str, InputProperty]) -> None:
    relation = output.relation
    if relation is None or relation.access != "write":
        return
    if not inputs.get(relation.of, InputProperty()).in_place:
        raise SchemaError(
            ("output", "relation", "access"),
            f"a written relation changes input {relation.of}, which is not marked in_place",
        )


def _input(raw: Any, path: tuple[Any, ...]) -> InputProperty:
    """``{value_read: ALL, in_place: true}``, or the same in words: ``ALL in_place``."""
    if isinstance(raw, InputProperty):
        return raw
    if isinstance(raw, ValueRead):
        return InputProperty(raw)
    if isinstance(raw, str):
        words = raw.split()
        in_place = words[1:] == ["in_place"]
        if not words or (len(words) > 1 and not in_place):
            raise SchemaError(path, f"expected 'VALUE_READ' or 'VALUE_READ in_place', not {raw!r}")
        return InputProperty(_value_read(words[0], path), in_place)
    if not isinstance(raw, dict):
        raise SchemaError(path, f"expected a mapping or words, not {_kind(raw)}")
    for key in raw:
        if key not in ("value_read", "in_place"):
            known = listed(("in_place", "value_read"), key)
            raise SchemaError((*path, key), f"unknown property; known are {known}")
    read = raw.get("value_read", ValueRead.ALL)
    return InputProperty(
        read if isinstance(read, ValueRead) else _value_read(read, (*path, "value_read")),
        _typed(raw, "in_place", bool, default=False, path=path),
    )


def _value_read(raw: Any, path: tuple[Any, ...]) -> ValueRead:
    if raw is True or raw is False:  # the paper's form
        return ValueRead.ALL if raw else ValueRead.NONE
    if not isinstance(raw, str) or raw not in _VALUE_READS:
        raise SchemaError(path, f"{raw!r} is no value_read; known are {listed(_VALUE_READS, raw)}")
    return _VALUE_READS[raw]


def _output(raw: Any, path: tuple[Any, ...]) -> OutputProperty:
    if isinstance(raw, OutputProperty):
        return raw
    if not isinstance(raw, dict):
        raise SchemaError(path, f"expected a mapping, not {_kind(raw)}")
    for key in raw:
        if key not in ("in_place", "relation", "shape_from_data"):
            known = listed(("in_place", "relation", "shape_from_data"), key)
            raise SchemaError((*path, key), f"unknown property; known are {known}")
    relation = raw.get("relation")
    shape = raw.get("shape_from_data", DataShape.NEVER)
    if not isinstance(shape, DataShape):
        if shape not in _DATA_SHAPES:
            raise SchemaError(
                (*path, "shape_from_data"),
                f"{shape!r} is not known; known are {listed(_DATA_SHAPES, shape)}",
            )
        shape = _DATA_SHAPES[shape]
    return OutputProperty(
        _typed(raw, "in_place", bool, default=False, path=path),
        None if relation is None else _relation(relation, (*path, "relation")),
        shape,
    )


def _relation(raw: Any, path: tuple[Any, ...]) -> RelationProperty:
    if isinstance(raw, RelationProperty):
        return raw
    if isinstance(raw, RelationKind):
        return RelationProperty(raw)
    if isinstance(raw, str):
        raw = {"kind": raw}
    if not isinstance(raw, dict):
        raise SchemaError(path, f"expected a mapping or a kind, not {_kind(raw)}")
    for key in raw:
        if key not in _OF_RELATIONS:
            raise SchemaError(
                (*path, key),
                f"unknown property of a relation; known are {listed(_OF_RELATIONS, key)}",
            )
    kind = raw.get("kind")
    if isinstance(kind, str):
        kind = _RELATION_KINDS.get(kind)
    if not isinstance(kind, RelationKind):
        given = raw.get("kind")
        known = listed(_RELATION_KINDS, given)
        raise SchemaError((*path, "kind"), f"{given!r} is no kind; known are {known}")
    access = raw.get("access", "read")
    if access not in ("read", "write"):
        raise SchemaError((*path, "access"), f"expected read or write, not {access!r}")
    for name in ("key", "default", "value"):
        _typed(raw, name, int, default=0, path=path)
    return RelationProperty(
        kind,
        _position(raw.get("of", 0), (*path, "of")),
        raw.get("key"),
        raw.get("default"),
        raw.get("value"),
        access,
    )


def _position(raw: Any, path: tuple[Any, ...]) -> int | str:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise SchemaError(path, f"expected a position or a keyword, not {_kind(raw)}")
    if isinstance(raw, int) and raw < 0:
        raise SchemaError(path, "positions count from 0, the receiver first")
    return raw


def _typed(
    raw: Mapping[str, Any], key: str, wanted: type, *, default: Any, path: tuple[Any, ...] = ()
) -> Any:
    if key not in raw:
        return default
    value = raw[key]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise SchemaError((*path, key), f"expected {_NAMES[wanted]}, not {_kind(value)}")
    return value


_NAMES = {
    bool: "true or false",
    dict: "a mapping",
    str: "a string",
    list: "a list",
    int: "a whole number",
}


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def listed(names: Iterable[str], given: object) -> str:
    """The names that may be written, and the closest of them to the one that was."""
    return f"{', '.join(sorted(names))}{closest_name(given, names)}"
