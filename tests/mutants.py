"""Mutants of the native guard checks: the C++ source with one comparison disabled at a time."""

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
from magpy_like.native.helper_loading import WITH_TORCH, build
from magpy_like.native.helper_sources import headers, source_of

_REJECTING, _ACCEPTING = "mutant != {0} && ({1})", "mutant == {0} || ({1})"
_COMPARISONS = [
    (r"(?<=if \()(.+)(?=\) return (?:\"|record_change\(|false))", _REJECTING),
    (r"(?<=if \()(instance_value\(args\[0\], args\[i\]\))(?=\) Py_RETURN_FALSE)", _REJECTING),
    (r"(?<=\()(!p\.equal)(?= \|\|)", f"({_REJECTING})"),
    (r"(?<=\|\| )(Py_TYPE\(found\) != Py_TYPE\(p\.expected\))", f"({_REJECTING})"),
    (r"(?<= )(o\.version && class_version\(.+\) == o\.version)(?=;)", f"({_ACCEPTING})"),
    (
        r"(?<=return )(holds_expected\(o\.locations\[0\], found\)|is_true|same)(?= \|\| record_change)",  # noqa: E501
        _ACCEPTING,
    ),
    (r"(?<=return )(p\.expected == absent|same == 1)(?=;)", _ACCEPTING),
    (r"(?<=return )(std::signbit\(.+\) == .+\))(?=;)", _ACCEPTING),
    (r"(?<= )(\w+ == o\.\w+)(?= &&|;)", f"({_ACCEPTING})"),
    # The fast comparison of tensors.
    (r"(?<=return )(!difference)(?=;)", f"({_ACCEPTING})"),
    (r"(?<=return impl && )(tensor_impl\(tensor\) == impl)", f"({_ACCEPTING})"),
    (r"(?<=&& )(Py_TYPE\(tensor\) == type)(?= && has_same_block)", f"({_ACCEPTING})"),
    (r"(?<= )(impl->requires_grad\(\) == requires_grad)(?=;)", f"({_ACCEPTING})"),
    (r"(?<= )(typeid\(\*found\) == typeid\(c10::TensorImpl\))(?= &&)", f"({_ACCEPTING})"),
    (r"(?<= )(found->layout\(\) == c10::kStrided)(?= &&)", f"({_ACCEPTING})"),
    (r"(?<= )(!found->key_set\(\)\.has_any\(c10::python_ks\))(?=;)", f"({_ACCEPTING})"),
    (r"(?<=if \()(!has_own_sizes)(?=\) return;)", _REJECTING),
    (r"(a\.get_\w+\(\)|\(long\)c10::get_default\w+\(\))", "(mutant == {0} ? 0 : (long){1})"),
]
"""Patterns of comparisons in the source, and the replacement that can disable each."""
_METHODS = "PyMethodDef module_methods[] = {"
_SWITCH = """
PyObject *disable(PyObject *, PyObject *number) {
  mutant = PyLong_AsLong(number);
  Py_RETURN_NONE;
}
"""


def _with_headers(source: str) -> str:
    """The text of a C++ source with the project's own headers in place of their includes, once."""
    texts, included = headers(), set()

    def text(found: re.Match[str]) -> str:
        name = found[1]
        if name in included:
            return ""
        included.add(name)
        return expand(texts[name].replace("#pragma once", ""))

    def expand(source: str) -> str:
        return re.sub(r'^#include "(\w+\.h)"$', text, source, flags=re.MULTILINE)

    return expand(source)


def _mutated_source() -> tuple[str, list[str]]:
    """The mutated source text, and the comparisons by number: location and text."""
    names: list[str] = []
    lines = _with_headers(source_of("guards")).splitlines()
    where, is_in_guards = "", False
    for i, line in enumerate(lines):
        is_in_guards |= "find_difference(PyObject *tensor) const" in line
        named = re.match(r"\s*case (\w+):|\s*[\w:]+ [*]?(\w+)\(.*\{$|struct (\w+) \{", line)
        where = next(filter(None, named.groups())) if named else where
        if is_in_guards and not line.lstrip().startswith("//"):
            for pattern, replacement in _COMPARISONS:

                def disable(
                    found: re.Match[str], replacement: str = replacement, location: str = where
                ) -> str:
                    count = sum(name.startswith(f"{location}: {found[0]}") for name in names)
                    names.append(f"{location}: {found[0]}" + (f" ({count + 1})" if count else ""))
                    return replacement.format(len(names) - 1, found[0])

                line = re.sub(pattern, disable, line)
            lines[i] = line
    text = "\n".join(lines)
    text = text.replace("namespace {\n", "namespace {\n\nlong mutant = -1;\n", 1)
    text = text.replace(_METHODS, f'{_SWITCH}{_METHODS}{{"disable", disable, METH_O, ""}},')
    text = re.sub(
        r"absent = PyObject_CallFunction\(.+\);",
        'absent = PyObject_GetAttrString(PyImport_ImportModule("magpy_like.native"), "ABSENT");',
        text,
    )
    return text, names


@functools.cache
def comparisons() -> list[str]:
    """The comparisons that can be disabled."""
    return _mutated_source()[1]


@functools.cache
def _module() -> Any:
    module = build("guards", _mutated_source()[0], *WITH_TORCH)
    probe = torch.empty(0)
    assert module.calibrate(probe, probe._cdata)
    return module


@contextlib.contextmanager
def disabled(comparison: str) -> Iterator[None]:
    """Disables one comparison in the guards that are created inside the block."""
    module = _module()
    with contextlib.ExitStack() as stack:
        for name in ("Watch", "TensorCheck", "StateCheck", "attribute", "lacks"):
            for user in [m for n, m in sys.modules.items() if n.startswith("magpy_like.")]:
                if getattr(user, name, None) is getattr(native, name):
                    if user is not native:
                        stack.enter_context(mock.patch.object(user, name, getattr(module, name)))
        module.disable(comparisons().index(comparison))
        try:
            yield
        finally:
            module.disable(-1)
