"""Conditions of guards, as data: kind, source text, and description."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Kind(enum.StrEnum):
    """Kinds of conditions. For each, a program in the tests is wrong without it."""

    # Arguments and process-wide state.
    POSITIONAL_ARGUMENTS = "arguments: their number, no keywords"
    KEYWORD_ARGUMENTS = "arguments: their number and keywords"
    KEYWORD_ORDER = "arguments: order of the keywords in a ** parameter"
    TORCH_MODES = "state: torch's modes"
    DEFAULT_DEVICE = "state: default device"
    STATE_READ = "state: result of a call on known arguments"
    STATE_READ_OF_FETCHED = "state: result of a call on fetched variables"
    ABSTRACT_CLASS = "state: abstract class without a registered class"
    CACHED_CALL = "state: entry of a function's cache"
    # Fetched variables.
    VALUE = "fetched: plain value"
    VALUE_TYPE = "plain value: its type"
    VALUE_TEXT = "plain value: its text"
    VALUE_EQUALITY = "plain value: equality"
    MEMBER = "fetched: key in a dictionary"
    TYPE = "fetched: type"
    TENSOR = "fetched: tensor metadata"
    SCALAR_VALUE = "fetched: value of an instance of a number's or string's subclass"
    NOT_EXHAUSTED = "fetched: iterator not exhausted"
    DEQUE_MAXLEN = "fetched: maxlen of a deque"
    FUNCTION_CODE = "fetched: code of a function"
    DEFAULT_FACTORY = "fetched: factory of a defaultdict"
    DICT_KEYS = "fetched: keys of a dictionary"
    DICT_LENGTH = "fetched: length of a dictionary"
    SET_MEMBERS = "fetched: members of a set"
    LENGTH = "fetched: length"
    NOT_EMPTY = "fetched: container not empty"
    ARRAY_METADATA = "fetched: metadata of an array"
    ARRAY_CONTENTS = "fetched: contents of an array"
    # Fixed objects.
    FIXED_ARGUMENT = "fixed: argument"
    FIXED_IN_FETCHED = "fixed: part of a fetched variable"
    FIXED_IN_FIXED = "fixed: part of a fixed object"
    FIXED_TYPE = "fixed: class of an instance"
    FIXED_TENSOR = "fixed: tensor metadata"
    FIXED_TENSOR_AS_FOUND = "fixed: tensor metadata that the program changes"
    FIXED_FUNCTION_CODE = "fixed: code of a function"
    FIXED_DEFAULT_FACTORY = "fixed: factory of a defaultdict"
    FIXED_KEYS = "fixed: keys of a dictionary"
    FIXED_ORDERED_KEYS = "fixed: keys of an OrderedDict, or keys such as floats and tuples"
    FIXED_SET_MEMBERS = "fixed: members of a set"
    FIXED_LENGTH = "fixed: length of a list or dictionary"
    FIXED_OTHER_LENGTH = "fixed: length of another container"
    FIXED_NOT_EMPTY = "fixed: container not empty"
    FIXED_ARRAY_METADATA = "fixed: metadata of an array"
    FIXED_ARRAY_CONTENTS = "fixed: contents of an array"
    FIXED_VALUE = "fixed: plain value in a fixed object"
    FIXED_MEMBER = "fixed: key in a fixed dictionary"
    # Locations in fixed objects, as the native watch compares them.
    STORED_ATTRIBUTE = "location: attribute of an instance"
    STORED_TYPE_ATTRIBUTE = "location: attribute of a class"
    STORED_MRO = "location: method resolution order"
    STORED_FUNCTION_SLOT = "location: slot of a function"
    STORED_CELL = "location: cell"
    STORED_ENTRY = "location: entry of a dictionary or list"
    STORED_DEFAULTS = "location: positional defaults"
    STORED_KEYWORD_DEFAULTS = "location: dictionary of keyword defaults"
    STORED_KEYWORD_DEFAULT = "location: keyword default"
    STORED_ELSEWHERE = "location: any other"
    OWN_DICTIONARY = "location: dictionary of an instance, for an attribute"
    OWN_DICTIONARY_READ = "location: dictionary of an instance, read itself"
    HOLDER = "location: instance keeps its dictionary"
    # Absence.
    ABSENT_ATTRIBUTE = "absence: attribute"
    ABSENT_KEY = "absence: key"
    ABSENT_ELSEWHERE = "absence: any other"
    ABSENT_IN_FIXED = "absence: in a fixed object"
    ABSENT_IDENTITY_KEY = "absence: key compared by identity"
    ABSENT_IDENTITY_KEY_IN_FIXED = "absence: key compared by identity, in a fixed object"
    # Aliasing and distinctness.
    ALIAS = "aliasing: same object under two names"
    ALIASING_OF_ENTRIES = "aliasing: entries of functions' caches"
    DISTINCT = "distinctness: two fetched variables"
    DISTINCT_FROM_FIXED = "distinctness: a fetched variable and a fixed object"
    NOT_A_FIXED_OBJECT = "distinctness: a fetched variable and all fixed objects"
    DISTINCT_COMPARED = "distinctness: objects that native code compared"
    SEPARATE_ITERATORS = "distinctness: iterators without common elements"
    SHARED_MEMORY = "aliasing: memory shared by tensors"
    NO_SHARED_MEMORY = "aliasing: no memory shared with fixed tensors"
    WRITABILITY = "aliasing: changed tensors are no leaves of autograd's graph"
    SEPARATE_HISTORIES = "aliasing: no tensor computed from one that gradients are taken by"
    NO_GRADIENT_HOOKS = "aliasing: no hooks on a tensor that gradients are taken by"
    # Lifted values.
    LIFTED_VALUE = "lifted: expression over lifted values"
    SIZE_RELATION = "lifted: relation of sizes"
    SIZE_RANGE = "lifted: range of a size"
    LOWER_BOUND = "lifted: lower bound of a number"
    UPPER_BOUND = "lifted: upper bound of a number"
    # Conditions of mocks.
    SPECULATED_VALUE = "speculated: value after the operator graph"
    EARLY_SPECULATED_VALUE = "speculated: value checked inside the operator graph"


class Part(NamedTuple):
    """One of several expressions that a condition consists of."""

    kind: Kind
    source: str


class Aspect(enum.Enum):
    """What a condition on an argument compares."""

    IDENTITY = enum.auto()
    VALUE = enum.auto()
    SIZES = enum.auto()


class ArgumentKey(NamedTuple):
    """What an argument must be for a condition to hold, as data: records are indexed by it."""

    argument: int | str
    """Position or keyword."""
    aspect: Aspect
    expected: Hashable
    """The key of the argument as :func:`argument_key` returns it, if the condition holds."""


INDEXED_TYPES = frozenset({bool, int, str, bytes, type(None)})
"""Types of plain values that are the same exactly if they are equal and of one type."""
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def argument_key(aspect: Aspect, value: Any) -> Hashable:
    """A key that is the same for two arguments if they are the same in one aspect.

    Calls no code of the program. For a value that has no such key the result is None, which is the
    key of no condition.
    """
    kind = type(value)
    if aspect is Aspect.IDENTITY:
        return id(value)
    if aspect is Aspect.VALUE:
        return (kind, value) if kind in INDEXED_TYPES else None
    return value.shape if kind in _TENSORS else None


Test = str | Sequence[Part]
"""Source text of a condition, whole or in parts that must all hold."""


@dataclass
class Condition:
    """One condition of a guard."""

    kinds: tuple[Kind, ...]
    """Its kind, the most specific first: a location in a fixed object, then the reason for it."""
    description: str
    """The condition in words, as shown when it fails; "" if the native watch describes it."""
    source: str = ""
    """Python expression over variables of the guard; "" if native code checks the condition."""
    sentences: tuple[str, ...] = ()
    """Its text for ``explain``, which also decides whether one record covers another."""
    is_about_lifted: bool = False
    """Whether it constrains a lifted value, so that a more general record need not share it."""
    key: ArgumentKey | None = None
    """What an argument must be for it to hold; None if that is not known."""
