"""Reading of annotation files into rules; each entry keeps its line for error messages.

A file has two keys. ``sets`` names groups of properties for reuse; ``operations`` lists groups of
rules, each for the contents of one namespace (a module or a class, by dotted path)::

    operations:
      - namespace: builtins.list
        rules:
          - names: [append]
            pure_closure: true
            inputs: {0: LENGTH in_place, 1: NONE}
          - names: ["*"]                      # all native functions without a rule of their own
            is: pure
      - instances_of: operator.itemgetter     # callable objects of a native type
        is: pure

``names`` holds exact names and patterns; ``except`` takes names out of patterns; ``kinds`` widens
patterns from native functions to ``class``, ``property``, ``function`` or ``instance``; a trailing
``?`` allows a name or namespace to be absent (other versions of Python or torch); a trailing ``=``
annotates the assignment to a property rather than its reading; ``is`` starts from a set. The
remaining keys are the properties of :mod:`magpy_like.annotation.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from magpy_like.annotation.schema import PROPERTIES, Annotation, SchemaError, build, listed
from magpy_like.errors import AnnotationError

KINDS = ("native", "class", "property", "function", "instance")
RULE_KEYS = frozenset(("names", "except", "kinds", "is"))
GROUP_KEYS = frozenset(("namespace", "rules"))


class Entries(dict[Any, Any]):
    """A mapping with the line of each key."""

    def __init__(self, lines: dict[Any, int]) -> None:
        super().__init__()
        self.lines = lines


class Items(list[Any]):
    """A list with the line of each item."""

    def __init__(self, lines: list[int]) -> None:
        super().__init__()
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a file: names of operations, and their properties."""

    namespaces: tuple[str, ...]  # empty for instances_of, where names holds the types
    names: tuple[tuple[str, int], ...]  # with the line of each
    exclude: frozenset[str]
    kinds: frozenset[str]
    properties: Annotation  # with an empty operation
    file: str

    def annotation(self, operation: str, line: int) -> Annotation:
        p = self.properties
        return Annotation(
            operation=operation,
            as_op_node=p.as_op_node,
            pure_closure=p.pure_closure,
            inputs=p.inputs,
            default_input=p.default_input,
            output=p.output,
            source=f"{self.file}:{line}",
            global_state=p.global_state,
            state_read=p.state_read,
            random=p.random,
            replay=p.replay,
            reason=p.reason,
            detail=p.detail,
            calls=p.calls,
            changes_if=p.changes_if,
        )

    def error(self, message: str, name: str, line: int) -> AnnotationError:
        return AnnotationError(message, file=self.file, line=line, key=name)


def is_pattern(name: str) -> bool:
    return "*" in name or "[" in name


def read_rules(path: Path, shared_sets: Mapping[str, Any]) -> tuple[list[Rule], dict[str, Any]]:
    """The rules of one file, and the sets that it defines besides ``shared_sets``.

    Raises:
        AnnotationError: an entry does not follow the schema.
    """
    return _FileReader(path, shared_sets).read()


def read_mapping(path: Path) -> Entries:
    """The mapping that a YAML file holds; mappings and lists in it know their lines.

    Raises:
        AnnotationError: the file cannot be read, or holds something else.
    """
    reader = _FileReader(path, {})
    document = reader._parse()
    if not isinstance(document, Entries):
        raise reader.error("expected a mapping", 1, "file")
    return document


class _FileReader:
    def __init__(self, path: Path, shared_sets: Mapping[str, Any]) -> None:
        self.file = str(path)
        self.path = path
        self.sets: dict[str, Any] = dict(shared_sets)
        self.own_sets: dict[str, Any] = {}

    def error(self, message: str, line: int | None, key: Any) -> AnnotationError:
        return AnnotationError(message, file=self.file, line=line, key=str(key))

    def read(self) -> tuple[list[Rule], dict[str, Any]]:
        document = self._parse()
        if document is None:
            raise self.error("the file is empty; expected sets and operations", 1, "file")
        if not isinstance(document, Entries):
            raise self.error("expected a mapping with sets and operations", 1, "file")
        for key in document:
            if key not in ("sets", "operations"):
                known = listed(("operations", "sets"), key)
                raise self.error(f"unknown key; known are {known}", document.lines[key], key)
        for name, properties in self._mapping(document, "sets").items():
            line = document["sets"].lines[name]
            if name in self.sets:
                raise self.error("this set is defined already", line, name)
            if not isinstance(properties, Entries):
                raise self.error("expected a mapping", line, name)
            self._keys(properties, PROPERTIES | {"is"})
            merged = self._merged(properties)
            self._build(properties, merged, line)
            self.sets[name] = self.own_sets[name] = merged
        rules: list[Rule] = []
        for group, line in self._list(document, "operations"):
            rules.extend(self._group(group, line))
        return rules, self.own_sets

    def _parse(self) -> Any:
        try:
            with self.path.open(encoding="utf-8") as stream:
                node = yaml.compose(stream, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            raise self.error(
                str(error.problem), None if mark is None else mark.line + 1, "file"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise self.error(str(error), None, "file") from None
        return None if node is None else self._value(node)

    def _value(self, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            entries = Entries({})
            for key_node, value_node in node.value:
                key, line = self._value(key_node), key_node.start_mark.line + 1
                if not isinstance(key, str | int):
                    raise self.error("expected a name", line, key)
                if key in entries:
                    raise self.error(
                        f"duplicate key, first written at line {entries.lines[key]}", line, key
                    )
                entries[key] = self._value(value_node)
                entries.lines[key] = line
            return entries
        if isinstance(node, yaml.SequenceNode):
            items = Items([item.start_mark.line + 1 for item in node.value])
            items.extend(self._value(item) for item in node.value)
            return items
        return _scalar(node)

    def _group(self, group: Any, line: int) -> Iterator[Rule]:
        if not isinstance(group, Entries):
            raise self.error("expected a mapping", line, "operations")
        if "instances_of" in group:
            types = group["instances_of"]
            types = types if isinstance(types, Items) else [types]
            names = tuple((self._name(name, group, "instances_of"), line) for name in types)
            yield self._rule(group, (), names, PROPERTIES | {"instances_of", "is"}, line)
            return
        self._keys(group, GROUP_KEYS)
        if "namespace" not in group:
            raise self.error("expected a namespace or instances_of", line, "operations")
        wanted = group["namespace"]
        wanted = wanted if isinstance(wanted, Items) else [wanted]
        namespaces = tuple(self._name(name, group, "namespace") for name in wanted)
        written: dict[str, int] = {}
        for rule, rule_line in self._list(group, "rules"):
            if not isinstance(rule, Entries):
                raise self.error("expected a mapping", rule_line, "rules")
            rule_names = []
            for name, name_line in self._list(rule, "names"):
                name = self._name(name, rule, "names")
                if name in written:
                    raise self.error(
                        f"duplicate: {name} has a rule at line {written[name]} already",
                        name_line,
                        name,
                    )
                written[name] = name_line
                rule_names.append((name, name_line))
            if not rule_names:
                raise self.error("expected a list of names", rule_line, "names")
            yield self._rule(rule, namespaces, tuple(rule_names), PROPERTIES | RULE_KEYS, rule_line)

    def _rule(
        self,
        raw: Entries,
        namespaces: tuple[str, ...],
        names: tuple[tuple[str, int], ...],
        keys: frozenset[str],
        line: int,
    ) -> Rule:
        self._keys(raw, keys)
        kinds = [kind for kind, _ in self._list(raw, "kinds")]
        for kind in kinds:
            if kind not in KINDS:
                raise self.error(
                    f"{kind!r} is no kind; known are {listed(KINDS, kind)}",
                    raw.lines["kinds"],
                    "kinds",
                )
        return Rule(
            namespaces=namespaces,
            names=names,
            exclude=frozenset(name for name, _ in self._list(raw, "except")),
            kinds=frozenset(kinds or ("native",)),
            properties=self._build(raw, self._merged(raw), line),
            file=self.file,
        )

    def _merged(self, raw: Entries) -> dict[str, Any]:
        """The properties of the set that an entry starts from, overridden by its own."""
        merged: dict[str, Any] = {}
        if "is" in raw:
            base = self.sets.get(raw["is"]) if isinstance(raw["is"], str) else None
            if base is None:
                known = listed(self.sets, raw["is"]) or "none"
                raise self.error(
                    f"{raw['is']!r} is no set; known are {known}", raw.lines["is"], "is"
                )
            merged.update(base)
        for key, value in raw.items():
            if key not in PROPERTIES:
                continue
            if key == "inputs" and isinstance(value, dict) and "inputs" in merged:
                value = {**merged["inputs"], **value}
            merged[key] = value
        return merged

    def _build(self, raw: Entries, merged: dict[str, Any], line: int) -> Annotation:
        try:
            return build("", merged, f"{self.file}:{line}")
        except SchemaError as error:
            place: Any = raw
            for step in error.path:
                if not isinstance(place, Entries) or step not in place:
                    break
                line = place.lines[step]
                place = place[step]
            key = ".".join(str(step) for step in error.path)
            raise self.error(error.message, line, key) from None

    def _keys(self, entries: Entries, known: frozenset[str]) -> None:
        for key in entries:
            if key not in known:
                raise self.error(
                    f"unknown key; known are {listed(known, key)}", entries.lines[key], key
                )

    def _mapping(self, entries: Entries, key: str) -> Any:
        value = entries.get(key, {})
        if not isinstance(value, dict):
            raise self.error("expected a mapping", entries.lines[key], key)
        return value

    def _list(self, entries: Entries, key: str) -> list[tuple[Any, int]]:
        value = entries.get(key)
        if key not in entries:
            return []
        if not isinstance(value, Items):
            raise self.error("expected a list", entries.lines[key], key)
        return list(zip(value, value.lines, strict=True))

    def _name(self, name: Any, entries: Entries, key: str) -> str:
        if not isinstance(name, str):
            raise self.error(f"expected a name, not {name!r}", entries.lines[key], key)
        return name


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOOLS = {"true": True, "false": False}


def _scalar(node: yaml.ScalarNode) -> Any:
    """A scalar of YAML: annotations use only strings, integers and booleans."""
    text = node.value
    if node.style:  # quoted, or a block
        return text
    if text.isdecimal():
        return int(text)
    return _BOOLS.get(text, None if text in ("", "~", "null") else text)
