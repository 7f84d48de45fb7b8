"""Generated Python source: lines, the constants they use, and unique names."""

from __future__ import annotations

import builtins
import keyword
import re
import types
from collections.abc import Callable
from typing import Any

from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import answers_in_python, is_instance
from magpy_like.refgraph.plain_values import class_name
from magpy_like.torch_patches import compile_source

_RESERVED = {*dir(builtins), "args", "kwargs", "state", "watch", "run_graph", "NOTHING"}


class Source:
    """A function in the making. Objects without a literal are bound to names in its globals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._constants: dict[int, str] = {}
        self._count = 0

    def emit(self, line: str) -> None:
        """Append a line to the function."""
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Remove and return the lines written so far, to be placed later."""
        lines, self.lines = self.lines, []
        return lines

    def fresh(self, prefix: str) -> str:
        """A new local name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any, hint: str | None = None) -> str:
        """The name of an object, made of its own or of ``hint``; one object has one name."""
        name = self._constants.get(id(value))
        if name is None:
            stem = re.sub(r"\W", "_", hint or _own_name(value))
            if stem in _RESERVED or keyword.iskeyword(stem):
                stem = f"{stem}_"
            name = (
                stem if stem.isidentifier() and stem not in self.names else self.fresh(f"{stem}_")
            )
            while name in self.names:
                name = self.fresh(f"{stem}_")
            self._constants[id(value)] = name
            self.names[name] = value
        return name

    def text(self, name: str, parameters: str) -> str:
        """The source text of the whole function."""
        body = self.lines or ["pass"]
        return f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in body)

    def build(self, name: str, parameters: str) -> Callable[..., Any]:
        """Compile the function; tracebacks through it show its lines."""
        text = self.text(name, parameters)
        namespace: dict[str, Any] = dict(self.names)
        exec(compile_source(f"magpy_like {name}", text), namespace)
        function = namespace[name]
        assert is_instance(function, types.FunctionType)
        return function


def _own_name(value: Any) -> str:
    if answers_in_python(value):
        return type(value).__name__.lower()
    name = getattr(value, "__name__", None)
    return name if is_instance(name, str) else type(value).__name__.lower()


def describe_key(key: Any) -> str:
    """A key of a dictionary for people, without running the program's ``__repr__``."""
    if type(key) is tuple:
        return f"({', '.join(map(describe_key, key))})"
    written = lookup_in_type(type(key), "__repr__")
    if not is_instance(written, types.FunctionType) or written.__module__ == "enum":
        return repr(key)
    return class_name(key) if is_instance(key, type) else f"<{class_name(type(key))}>"


def literal(value: Any) -> str | None:
    """The source text of a plain value, or None when it has no exact one."""
    if value is None or value is ... or is_instance(value, bool):
        return repr(value)
    if type(value) in (int, str, bytes):
        return repr(value)
    if type(value) is float and value == value and value not in (float("inf"), float("-inf")):
        return repr(value)
    return None
