"""Look-up of annotations by operation, and the public functions that add annotations.

Operations are function objects: a built-in function, the descriptor of a method or property, a
class (for a call of the class), or an instance of a native callable type. :func:`resolve` maps a
callee to such an operation and its receiver; :func:`lookup` finds its annotation by identity. The
first look-up reads the files and binds their rules to objects of imported modules; rules for other
modules are bound once these are imported.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.annotation.loader import Rule, is_pattern, read_rules
from magpy_like.annotation.schema import Annotation, SchemaError, build
from magpy_like.arguments import check
from magpy_like.errors import AnnotationError, closest_name
from magpy_like.native.instance_checks import is_instance
from magpy_like.torch_patches import no_garbage_collection

_log = logging.getLogger(__name__)


class _Null:
    """The receiver of a call without a receiver."""

    def __repr__(self) -> str:
        return "NULL"


NULL: Final = _Null()

_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
_OTHER_SCHEMAS = ("opcodes.yaml", "operators.yaml")  # about instructions and names, not objects
_PROPERTY = (types.GetSetDescriptorType, types.MemberDescriptorType, property)


class Table:
    """Annotations by the identity of the operation; keeps the operations alive.

    A name that does not exist is an error in a ``strict`` table. The process's table is not strict
    with the shipped files: another version of a library may lack a function.
    """

    def __init__(self, strict: bool = True) -> None:
        self._strict = strict
        self._reads: dict[int, tuple[object, Annotation]] = {}
        self._writes: dict[int, tuple[object, Annotation]] = {}
        self._instances: dict[type, Annotation] = {}
        self._bound: dict[tuple[int, bool], bool] = {}  # (operation, is write) -> by an exact name
        self._replaced: set[tuple[int, bool]] = set()  # annotated by the user, before the files
        self._sets: dict[str, Any] = {}
        self._pending: list[Rule] = []
        self._modules_seen = 0
        self._loaded = False
        self._lock = threading.RLock()

    def lookup(self, operation: object, write: bool = False) -> Annotation | None:
        """The annotation of an operation, or of the assignment of a property (``write``)."""
        entries = self._writes if write else self._reads
        entry = entries.get(id(operation))
        if entry is not None:
            return entry[1]
        if not self._loaded or (self._pending and len(sys.modules) != self._modules_seen):
            self._complete()
            entry = entries.get(id(operation))
            if entry is not None:
                return entry[1]
        return None if write else self.instance(type(operation))

    def instance(self, kind: type) -> Annotation | None:
        """The annotation of calls of a type's instances."""
        for base in kind.__mro__:
            annotation = self._instances.get(base)
            if annotation is not None:
                return annotation
        return None

    def entries(self) -> Iterator[tuple[object, Annotation, bool]]:
        """All annotated operations, as (operation, annotation, is a property's assignment)."""
        self._complete()
        yield from (
            (operation, annotation, False) for operation, annotation in self._reads.values()
        )
        yield from (
            (operation, annotation, True) for operation, annotation in self._writes.values()
        )

    def instance_types(self) -> Mapping[type, Annotation]:
        """The annotations of calls of instances, by type."""
        self._complete()
        return self._instances

    def add(self, operation: object, annotation: Annotation, write: bool = False) -> None:
        """Annotate one object; overrides the files."""
        self._complete()
        with self._lock:
            entries = self._writes if write else self._reads
            entries[id(operation)] = (operation, annotation)
            self._replaced.add((id(operation), write))

    def load(self, path: Path) -> None:
        """Read one file of a user; overrides earlier files.

        Raises:
            AnnotationError: an entry is invalid, or names something that does not exist.
        """
        self._complete()
        with self._lock:
            rules, sets = read_rules(path, self._sets)
            self._sets.update(sets)
            files, strict, replaced = self._bound, self._strict, self._replaced
            self._bound, self._strict, self._replaced = {}, True, set()
            try:
                for rule in rules:
                    if not self._bind(rule):
                        raise rule.error(_not_imported(rule), *_first(rule))
            finally:
                replaced.update(self._bound)
                self._bound, self._strict, self._replaced = files, strict, replaced

    def load_directory(self, directory: Path) -> None:
        """Read all files of a directory, the shared sets first."""
        try:
            with no_garbage_collection():
                self._load_files(directory)
        finally:
            self._loaded = True  # last: other threads look up without the lock from now on

    def _load_files(self, directory: Path) -> None:
        for path in sorted(directory.glob("*.yaml")):
            if path.name in _OTHER_SCHEMAS:
                continue
            rules, sets = read_rules(path, self._sets)
            if path.name.startswith("_"):
                self._sets.update(sets)
            self._pending.extend(rules)
        self._bind_pending()

    def _complete(self) -> None:
        with self._lock:
            if not self._loaded:
                self.load_directory(annotations_dir())
            elif len(sys.modules) != self._modules_seen:
                self._bind_pending()

    def _bind_pending(self) -> None:
        modules = len(sys.modules)
        self._pending = [rule for rule in self._pending if not self._bind(rule)]
        self._modules_seen = modules  # last: until then, other threads wait for the lock

    def _bind(self, rule: Rule) -> bool:
        """Bind a rule to objects; False if one of its modules is not imported yet."""
        if not rule.namespaces:
            return self._bind_instances(rule)
        owners = []
        for path in rule.namespaces:
            owner = _locate(path.rstrip("?"))
            if owner is _UNIMPORTED:
                return False
            if owner is not _ABSENT:
                owners.append((path.rstrip("?"), owner))
            elif not path.endswith("?"):
                fault = f"no such namespace{_closest(path)}"
                self._unknown(rule.error(fault, path, _first(rule)[1]))
        for name, line in rule.names:
            if is_pattern(name):
                self._bind_pattern(rule, owners, name, line)
            else:
                self._bind_name(rule, owners, name, line)
        return True

    def _bind_instances(self, rule: Rule) -> bool:
        for name, line in rule.names:
            kind = _locate(name.rstrip("?"))
            if kind is _UNIMPORTED:
                return False
            if is_instance(kind, type):
                self._instances[kind] = rule.annotation(name.rstrip("?"), line)
            elif not name.endswith("?"):
                self._unknown(rule.error(f"no such type{_closest(name)}", name, line))
        return True

    def _bind_name(
        self, rule: Rule, owners: list[tuple[str, object]], written: str, line: int
    ) -> None:
        name = written.rstrip("?")
        write = name.endswith("=")
        name = name.rstrip("=")
        found = False
        for path, owner in owners:
            operation = _member(owner, name)
            if operation is _ABSENT:
                continue
            found = True
            self._put(rule, f"{path}.{name}", operation, write, line, exact=True)
        if owners and not found and not written.endswith("?"):
            path, owner = owners[0]
            fault = f"unknown function: {path} has no {name}{closest_name(name, dir(owner))}"
            self._unknown(rule.error(fault, written, line))

    def _bind_pattern(
        self, rule: Rule, owners: list[tuple[str, object]], pattern: str, line: int
    ) -> None:
        write = pattern.endswith("=")
        pattern = pattern.rstrip("=")
        for path, owner in owners:
            for name in dir(owner) if is_instance(owner, types.ModuleType) else list(vars(owner)):
                if not fnmatchcase(name, pattern) or name in rule.exclude:
                    continue
                operation = _member(owner, name)
                if operation is not _ABSENT and _kind(operation) in rule.kinds:
                    self._put(rule, f"{path}.{name}", operation, write, line, exact=False)

    def _unknown(self, error: AnnotationError) -> None:
        if self._strict:
            raise error
        _log.warning("skipped an annotation: %s", error)

    def _put(
        self, rule: Rule, name: str, operation: object, write: bool, line: int, *, exact: bool
    ) -> None:
        """Exact names override patterns in any order; earlier rules override later ones."""
        entries = self._writes if write else self._reads
        key = (id(operation), write)
        if key in self._replaced:
            return
        if key in self._bound and (self._bound[key] or not exact):
            earlier = entries[id(operation)][1]
            if exact and not _same(earlier, rule.properties):
                raise rule.error(f"duplicate: also annotated at {earlier.source}", name, line)
            return
        self._bound[key] = exact
        annotation = rule.annotation(name, line)
        entries[id(operation)] = (operation, annotation)
        if is_instance(operation, property):
            accessor = operation.fset if write else operation.fget
            if accessor is not None:
                self._reads[id(accessor)] = (accessor, annotation)


_TABLE: Final = Table(strict=False)


def lookup(operation: object, write: bool = False) -> Annotation | None:
    """The annotation of an operation, or of the assignment of a property (``write``), or None."""
    return _TABLE.lookup(operation, write)


def resolve(function: object) -> tuple[Any, Any]:
    """The operation of a call of ``function``, and its receiver or NULL.

    A bound built-in method is resolved to its descriptor and the object it is bound to, an instance
    of a native callable type to the type's ``__call__`` and the instance. Callables without a
    receiver or with an annotation of their own, and ``functools.partial`` objects, are returned.
    """
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        return _resolve_builtin(function)
    if kind is types.MethodType:
        return function.__func__, function.__self__  # type: ignore[attr-defined]
    if kind is types.MethodWrapperType:
        # Through `super` the wrapper need not be the first of its name in the receiver's class.
        owner = function.__objclass__  # type: ignore[attr-defined]
        return owner.__dict__[function.__name__], function.__self__  # type: ignore[attr-defined]
    if kind is types.FunctionType or is_instance(function, (type, *_NATIVE)):
        return function, NULL
    if is_instance(function, functools.partial) or _TABLE.lookup(function) is not None:
        return function, NULL
    call = _inherited(kind, "__call__")
    return (function, NULL) if call is _ABSENT else (call, function)


def _resolve_builtin(function: Any) -> tuple[Any, Any]:
    receiver = function.__self__
    if receiver is None or is_instance(receiver, types.ModuleType):
        return function, NULL
    name = function.__name__
    if is_instance(receiver, type):
        for base in receiver.__mro__:
            member = base.__dict__.get(name)
            if member is function or is_instance(member, staticmethod):
                return function, NULL
            if is_instance(member, types.ClassMethodDescriptorType) and (
                member.__get__(None, receiver) == function
            ):
                return member, receiver
    kind = type(receiver)
    for base in kind.__mro__:
        member = base.__dict__.get(name)
        # Through `super` the method need not be the first of its name in the receiver's class.
        if is_instance(member, types.MethodDescriptorType) and (
            member.__get__(receiver, kind) == function
        ):
            return member, receiver
    return function, NULL


def annotate(
    fn: Callable[..., Any],
    *,
    pure_closure: bool | None = None,
    as_op_node: bool | None = None,
    inputs: Mapping[int | str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    **properties: Any,
) -> None:
    """Annotate one function (MagPy, section 5.2); replaces an earlier annotation of it.

    Args:
        fn: a function, method or class.
        pure_closure: the call has no effects besides its output and in-place inputs.
        as_op_node: the call is a node of the operator graph.
        inputs: by position (the receiver is 0) or keyword, the depth of the read, and whether the
            input is changed: ``{0: "ELEMENTS in_place", 1: "NONE"}``.
        outputs: properties of the result: ``{"relation": {"kind": "KEY", "of": 0, "key": 1}}``.
        properties: further properties, as in the annotation files.

    Raises:
        AnnotationError: a property is unknown, of a wrong type or contradicts another one; or
            ``fn`` is not callable.
    """
    frame = sys._getframe(1)
    source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    name = getattr(fn, "__qualname__", repr(fn))
    refuse = functools.partial(AnnotationError, file=frame.f_code.co_filename, line=frame.f_lineno)
    if not callable(fn) and not is_instance(fn, _PROPERTY):
        raise refuse("expected a function, method or class", key=name)
    declared = {
        "pure_closure": pure_closure,
        "as_op_node": as_op_node,
        "inputs": None if inputs is None else dict(inputs),
        "output": outputs,
    }
    raw = {key: value for key, value in declared.items() if value is not None} | properties
    try:
        annotation = build(name, raw, source)
    except SchemaError as error:
        path = ".".join(str(step) for step in error.path)
        raise refuse(error.message, key=path) from None
    _TABLE.add(resolve(fn)[0], annotation)


def load_annotations(path: str | Path) -> None:
    """Read a file of annotations, in the format of those in ``annotations/``.

    They override earlier annotations of the same operations.

    Raises:
        AnnotationError: an entry is invalid; has file, line and key.
        ArgumentError: ``path`` is no path.
    """
    check("load_annotations", path=path)
    _TABLE.load(Path(path))


class _Missing:
    pass


_ABSENT: Final = _Missing()
_UNIMPORTED: Final = _Missing()


def _locate(path: str) -> object:
    """The module or class at a dotted path, without importing anything."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        owner: object = sys.modules.get(".".join(parts[:length]))
        if owner is None:
            continue
        for name in parts[length:]:
            owner = _member(owner, name)
            if owner is _ABSENT:
                return _ABSENT
        return owner
    return _UNIMPORTED


def _closest(path: str) -> str:
    """The closest path to one that does not exist, or ``""``."""
    owner = path.rpartition(".")[0]
    found = _locate(owner)
    if found is _ABSENT:
        return _closest(owner)
    return closest_name(path, [f"{owner}.{member}" for member in dir(found)])


def _not_imported(rule: Rule) -> str:
    """Which module of a rule that could not be bound is missing."""
    paths = rule.namespaces or [name for name, _ in rule.names]
    missing = next(path for path in paths if _locate(path.rstrip("?")) is _UNIMPORTED)
    return f"no module {missing} is imported{closest_name(missing, sys.modules)}"


def _member(owner: object, name: str) -> object:
    """A namespace's own attribute: of a class the descriptor, not the value it results in."""
    if is_instance(owner, type):
        member = owner.__dict__.get(name, _ABSENT)
    else:
        member = getattr(owner, name, _ABSENT)
    if is_instance(member, staticmethod | classmethod):
        return member.__func__
    return member


def _inherited(kind: type, name: str) -> object:
    for base in kind.__mro__:
        if name in base.__dict__:
            return _member(base, name)
    return _ABSENT


def _kind(operation: object) -> str:
    # Every library built with Cython has a function type of its own with this name.
    if is_instance(operation, _NATIVE) or type(operation).__name__ == "cython_function_or_method":
        return "native"
    if is_instance(operation, type):
        return "class"
    if is_instance(operation, _PROPERTY):
        return "property"
    if is_instance(operation, types.FunctionType):
        return "function"
    return "instance" if callable(operation) else ""


def _same(left: Annotation, right: Annotation) -> bool:
    return all(
        getattr(left, field) == getattr(right, field)
        for field in Annotation.__slots__
        if field not in ("operation", "source")
    )


def _first(rule: Rule) -> tuple[str, int]:
    return rule.names[0]
