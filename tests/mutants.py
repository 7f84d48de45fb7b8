"""The native part of guards, in which one comparison at a time can be left out."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from magpy_like import native

_TURNS_AWAY, _LETS_PASS = "mutant != {0} && ({1})", "mutant == {0} || ({1})"
_COMPARISONS = [
    (r"(?<=if \()(.+)(?=\) return (?:\"|fail\(|false))", _TURNS_AWAY),
    (r"(?<=if \()(held\(args\[0\], args\[i\]\))(?=\) Py_RETURN_FALSE)", _TURNS_AWAY),
    (r"(?<=if \()(Py_TYPE\(t\.object\) != t\.type|\*h\.where != h\.dict)(?=\))", _TURNS_AWAY),
    (r"(?<=if \()(key != wanted)(?= &&)", _TURNS_AWAY),
    (r"(?<=\()(!p\.equal)(?= \|\|)", f"({_TURNS_AWAY})"),
    (r"(?<=\|\| )(Py_TYPE\(found\) != Py_TYPE\(p\.expected\))", f"({_TURNS_AWAY})"),
    (r"(?<=if \()(version_of\(o\.object\) == o\.version)(?=\) continue)", _LETS_PASS),
    (r"(?<=if \()(o\.version && t->tp_version_tag == o\.version)(?= &&)", _LETS_PASS),
    (r"(?<=return )(matches\(o\.places\[0\], found\)|good)(?= \|\| fail)", _LETS_PASS),
    (r"(?<=return )(p\.expected == absent|same == 1)(?=;)", _LETS_PASS),
    (r"(?<=return )(std::signbit\(.+\) == .+\))(?=;)", _LETS_PASS),
    (r"(?<= )(\w+ == o\.\w+)(?= &&|;)", f"({_LETS_PASS})"),
    (r"(a\.get_\w+\(\)|\(long\)c10::get_default\w+\(\))", "(mutant == {0} ? 0 : (long){1})"),
]
"""Comparisons as they are written, and how each is left out."""
_METHODS = "PyMethodDef module_methods[] = {"
_SWITCH = """
PyObject *leave_out(PyObject *, PyObject *number) {
  mutant = PyLong_AsLong(number);
  Py_RETURN_NONE;
}
"""


def _mutated() -> tuple[str, list[str]]:
    """The source text, and what is left out by number: where it stands and what it says."""
    names: list[str] = []
    lines = native.source_of("guards").splitlines()
    where, begun = "", False
    for i, line in enumerate(lines):
        begun |= "first_difference(PyObject *tensor) const" in line
        named = re.match(r"\s*case (\w+):|\s*[\w:]+ [*]?(\w+)\(.*\{$|struct (\w+) \{", line)
        where = next(filter(None, named.groups())) if named else where
        if begun and not line.lstrip().startswith("//"):
            for pattern, instead in _COMPARISONS:

                def leave_out(found: re.Match[str], instead: str = instead, at: str = where) -> str:
                    again = sum(name.startswith(f"{at}: {found[0]}") for name in names)
                    names.append(f"{at}: {found[0]}" + (f" ({again + 1})" if again else ""))
                    return instead.format(len(names) - 1, found[0])

                line = re.sub(pattern, leave_out, line)
            lines[i] = line
    text = "\n".join(lines)
    text = text.replace("namespace {\n", "namespace {\n\nlong mutant = -1;\n", 1)
    text = text.replace(_METHODS, f'{_SWITCH}{_METHODS}{{"leave_out", leave_out, METH_O, ""}},')
    text = re.sub(
        r"absent = PyObject_CallFunction\(.+\);",
        'absent = PyObject_GetAttrString(PyImport_ImportModule("magpy_like.native"), "ABSENT");',
        text,
    )
    return text, names


@functools.cache
def comparisons() -> list[str]:
    """What can be left out."""
    return _mutated()[1]


@functools.cache
def _module() -> Any:
    module = native.build("guards", _mutated()[0], *native.WITH_TORCH)
    probe = torch.empty(0)
    assert module.calibrate(probe, probe._cdata)
    return module


@contextlib.contextmanager
def left_out(comparison: str) -> Iterator[None]:
    """Guards that are made meanwhile do not compare that."""
    module = _module()
    with contextlib.ExitStack() as stack:
        for name in ("Watch", "TensorCheck", "StateCheck", "attribute", "lacks"):
            for user in [m for n, m in sys.modules.items() if n.startswith("magpy_like.")]:
                if getattr(user, name, None) is getattr(native, name):
                    if user is not native:
                        stack.enter_context(mock.patch.object(user, name, getattr(module, name)))
        module.leave_out(comparisons().index(comparison))
        try:
            yield
        finally:
            module.leave_out(-1)
