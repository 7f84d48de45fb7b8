"""Facts of tensor operators by name: ``annotations/operators.yaml`` (MagPy, section 5.2).

An annotation describes one function object. A fact describes an operator in all its variants: the
function ``torch.add``, the method ``Tensor.add_``, the instruction ``a += b`` and every overload of
``torch.ops.aten.add``. Capture asks about nodes of a graph, of which it knows the name only.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.annotation.loader import is_pattern, read_mapping
from magpy_like.annotation.schema import listed
from magpy_like.errors import AnnotationError

FILE = "operators.yaml"


class Raises(enum.Enum):
    """When an operator may raise although the dtypes, sizes and numbers of its inputs are known."""

    MAYBE = "for some elements of its inputs"
    NEVER = "never"
    GIVEN_TENSORS = "only if an argument is a tensor"
    ROUNDING = "only with a rounding mode"
    BOUNDS = "only for positions out of bounds, and on a GPU never"


class Results(enum.Enum):
    """How the number of an operator's results depends on the sizes of its inputs."""

    UNKNOWN = "not declared"
    FIXED = "independent of sizes"
    BY_SIZE = "given by a size"


class Narrows(enum.Enum):
    """The floating-point dtype of smaller range that an operator may convert to."""

    NONE = "none"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """The properties of one operator, as ``annotations/operators.yaml`` documents them."""

    raises: Raises = Raises.MAYBE
    float_scalars: bool = False
    shape_from_numbers: bool = True
    results: Results = Results.UNKNOWN
    saves_result: bool = True
    new_memory: bool = False
    factory: bool = False
    repeatable: bool = True
    shares_memory: bool = False
    reads_sizes: bool = True
    guarded: bool = True
    narrows: Narrows = Narrows.NONE


@dataclass(frozen=True, slots=True)
class Entry:
    """One group of names in the file, with the properties that it declares."""

    names: tuple[str, ...]
    properties: Mapping[str, Any]
    source: str
    """File and line."""

    def matches(self, name: str) -> bool:
        return any(
            fnmatchcase(name, each) if is_pattern(each) else name == each for each in self.names
        )


_ENUMS: dict[str, type[enum.Enum]] = {"raises": Raises, "results": Results, "narrows": Narrows}
_PROPERTIES = frozenset(field.name for field in fields(OperatorFacts))


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The entries of a file of operator facts.

    Raises:
        AnnotationError: an entry does not follow the schema; with file, line and key.
    """
    document = read_mapping(path)
    found = []
    for raw in document.get("operators", []):
        line = min(raw.lines.values())

        def error(key: str, message: str, line: int = line) -> AnnotationError:
            return AnnotationError(message, file=str(path), line=line, key=key)

        names = raw.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise error("names", "expected a list of names or patterns")
        declared = {key: value for key, value in raw.items() if key != "names"}
        for key, value in declared.items():
            if key not in _PROPERTIES:
                raise error(key, f"unknown property; known are {listed(_PROPERTIES, key)}")
            if key in _ENUMS:
                if value not in _ENUMS[key].__members__:
                    raise error(key, f"expected one of {', '.join(_ENUMS[key].__members__)}")
                declared[key] = _ENUMS[key][value]
            elif not isinstance(value, bool):
                raise error(key, "expected true or false")
        found.append(Entry(tuple(names), declared, f"{path}:{line}"))
    return tuple(found)


@functools.cache
def shipped_entries() -> tuple[Entry, ...]:
    """The entries of this package's own file."""
    return read_entries(annotations_dir() / FILE)


@functools.cache
def _exact() -> dict[str, list[Mapping[str, Any]]]:
    """Declared properties by exact name: one look-up instead of a walk over all entries."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in shipped_entries():
        for name in entry.names:
            if not is_pattern(name):
                found.setdefault(name, []).append(entry.properties)
    return found


@functools.cache
def operator_facts(name: str) -> OperatorFacts:
    """Facts of the operator that ``name`` is a variant of, without underscores at its ends."""
    name = name.strip("_")
    facts = OperatorFacts()
    for properties in _exact().get(name, ()):
        facts = replace(facts, **properties)
    for entry in shipped_entries():
        if any(is_pattern(each) and fnmatchcase(name, each) for each in entry.names):
            facts = replace(facts, **entry.properties)
    return facts
