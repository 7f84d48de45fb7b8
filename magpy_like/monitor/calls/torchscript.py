"""TorchScript functions translated to Python, which the monitor follows like any Python code.

The translation starts from the inlined graph that TorchScript's interpreter runs, not from the
source of the function, which may have another meaning in Python.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.operators import OpOverload
from magpy_like.torch_compat.torchscript import (
    JitType,
    ListType,
    OptionalType,
    ScriptFunction,
    ScriptNode,
    TensorType,
    TupleType,
)
from magpy_like.torch_patches import compile_source

_UNSUPPORTED_TAGS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.maybe_aliasing_or_mutating,
    torch.Tag.nondeterministic_seeded,
}
_INTEGERS = frozenset({"IntType"})
_NUMBERS = frozenset({"IntType", "FloatType"})
_PLAIN = _NUMBERS | {"BoolType"}
_COMPARED = _PLAIN | {"StringType"}
_LISTS = frozenset({"ListType", "IntType", "NoneType"})
_TENSORS = frozenset({"TensorType", "IntType"})
_ANY: frozenset[str] = frozenset()
"""Operands of any type."""

_INSTRUCTIONS: tuple[tuple[str, int, frozenset[str], str], ...] = (
    ("aten::add aten::sub aten::mul aten::div", 2, _NUMBERS, "{0} {sign} {1}"),
    ("aten::pow", 2, _NUMBERS, "math.pow({0}, {1})"),
    ("aten::neg", 1, _NUMBERS, "-{0}"),
    ("aten::floordiv aten::remainder", 2, _INTEGERS, "{0} {sign} {1}"),
    ("prim::max prim::min", 2, _INTEGERS, "{name}({0}, {1})"),
    ("aten::eq aten::ne", 2, _COMPARED, "{0} {sign} {1}"),
    ("aten::lt aten::le aten::gt aten::ge", 2, _NUMBERS, "{0} {sign} {1}"),
    ("aten::sqrt aten::floor aten::ceil", 1, _NUMBERS, "math.{name}({0})"),
    ("aten::__and__ aten::__or__", 2, frozenset({"BoolType"}), "{0} {sign} {1}"),
    ("aten::__not__", 1, frozenset({"BoolType"}), "not {0}"),
    ("aten::__is__ aten::__isnot__", 2, _ANY, "{0} {sign} {1}"),
    ("aten::Float aten::Int aten::Bool", 1, _PLAIN, "{lower}({0})"),
    ("prim::NumToTensor", 1, _PLAIN, "torch.tensor({0}, device='cpu')"),
    ("aten::size", 1, _TENSORS, "list({0}.size())"),
    ("aten::size", 2, _TENSORS, "{0}.size({1})"),
    ("aten::dim aten::numel aten::is_floating_point aten::is_complex", 1, _TENSORS, "{0}.{name}()"),
    ("prim::device prim::is_cuda prim::dtype", 1, _TENSORS, "{0}.{name}"),
    ("aten::len", 1, _TENSORS | _LISTS, "len({0})"),
    ("aten::__getitem__", 2, _LISTS, "{0}[{1}]"),
    ("aten::slice", 4, _LISTS, "{0}[{1}:{2}:{3}]"),
    ("aten::add", 2, frozenset({"ListType"}), "{0} {sign} {1}"),
    ("prim::TupleIndex", 2, _ANY, "{0}[{1}]"),
    ("prim::unchecked_cast prim::unchecked_unwrap_optional", 1, _ANY, "{0}"),
    ("prim::Uninitialized", 0, _ANY, "None"),
)
"""Instructions with the number and types of their operands, and the expression in Python.

Instructions that differ between the two languages have no row, such as ``max`` of NaNs, nor have
branches on a tensor's value: a program cannot be cut inside such a function.
"""
_EXPRESSIONS: dict[tuple[str, int], list[tuple[frozenset[str], str]]] = {}
for _kinds, _count, _types, _text in _INSTRUCTIONS:
    for _kind in _kinds.split():
        _EXPRESSIONS.setdefault((_kind, _count), []).append((_types, _text))
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "remainder": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "__and__": "&",
    "__or__": "|",
    "__is__": "is",
    "__isnot__": "is not",
}
_OVERFLOW = {f"aten::{name}" for name in ("add", "sub", "mul", "Int", "floor", "ceil")}
"""Integers of TorchScript have 64 bits."""
_LARGE = 2**62
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)
"""Element types by their numbers in TorchScript."""


class _Untranslatable(Exception):
    """An instruction has no translation; the text completes "a function that ..."."""


class _Translation:
    """The translation of a function.

    Attributes:
        python: the function in Python, or None.
        types: the types of the parameters, by name.
        needs: the names of the parameters without a default value.
        reason: the text of ``_Untranslatable`` if there is no function.
    """

    def __init__(self, function: ScriptFunction) -> None:
        self.python: Callable[..., Any] | None = None
        self.types: dict[str, JitType] = {}
        self.needs: set[str] = set()
        self.reason = ""
        try:
            arguments = function.schema.arguments
            self.types = {a.name: a.type for a in arguments}
            self.needs = {a.name for a in arguments if not a.has_default_value()}
            self.python = _Translator(function).function()
        except _Untranslatable as reason:
            self.reason = str(reason)

    def takes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """True if TorchScript receives these arguments without conversion."""
        by_position = dict(zip(self.types, args, strict=False))
        arguments = {**by_position, **kwargs}
        return (
            len(arguments) == len(args) + len(kwargs)
            and self.needs <= arguments.keys() <= self.types.keys()
            and all(
                _accepts_unconverted(self.types[name], value) for name, value in arguments.items()
            )
        )


_translate = functools.lru_cache(256)(_Translation)


def python_equivalent(
    function: ScriptFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """The Python function that is equivalent for these arguments, or None.

    Where its body raises, it calls the TorchScript function, which raises its own exception. So
    only functions without effects and random numbers have one.
    """
    written = _translate(function)
    return written.python if written.takes(args, kwargs) else None


def torchscript_split(function: ScriptFunction) -> Split:
    """The split for a TorchScript function that the monitor does not follow."""
    reason = _translate(function).reason or "converts its arguments"
    return Split(SplitReason.TORCHSCRIPT, f"calls a TorchScript function that {reason}")


def _accepts_unconverted(kind: JitType, value: Any) -> bool:
    if is_instance(kind, OptionalType):
        kind = kind.getElementType()
        return value is None or (
            kind.kind() not in _CONVERTED_TYPES and _accepts_unconverted(kind, value)
        )
    if is_instance(kind, ListType):
        if not any(type(value) is one for one in (list, tuple, torch.Size)):
            return False
        return all(_accepts_unconverted(kind.getElementType(), item) for item in value)
    expected = _PYTHON_TYPES.get(kind.kind(), ())
    return any(type(value) is one for one in expected)


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "TensorType": (torch.Tensor, torch.nn.Parameter),
    "IntType": (int,),
    "FloatType": (float, int),
    "BoolType": (bool,),
    "StringType": (str,),
    "NoneType": (type(None),),
    "DeviceObjType": (torch.device,),
}
_CONVERTED_TYPES = {"FloatType", "ListType"}
"""Types of parameters for which TorchScript converts or copies the argument."""


def _convert(kind: JitType, name: str) -> str:
    """The expression that converts an argument, or an item of one, to the type of a parameter."""
    if is_instance(kind, ListType):
        item = kind.getElementType()
        if item.kind() in _CONVERTED_TYPES:
            return f"[{_convert(item, '_item')} for _item in {name}]"
        return f"list({name})"
    return f"float({name})" if kind.kind() == "FloatType" else name


class _Translator:
    """Translates one function."""

    def __init__(self, script: ScriptFunction) -> None:
        self.script = script
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        """The names in Python, by names in TorchScript."""
        self.globals: dict[str, Any] = {"torch": torch, "math": math}

    def function(self) -> Callable[..., Any]:
        """The function in Python; raises ``_Untranslatable``."""
        graph, arguments = self.script.inlined_graph, self.script.schema.arguments
        parameters, forwarded = [], []
        for value, argument in zip(graph.inputs(), arguments, strict=True):
            name = self.name(value)
            parameters.append(name)
            forwarded.append(f"{argument.name}={name}" if argument.kwarg_only else name)
            converted = _convert(argument.type, name)
            if converted != name:
                self.lines.append(f"        {name} = {converted}")
        self.block(graph, "        ")
        results = [self.value(value) for value in graph.outputs()]
        self.lines.append(f"        return {', '.join(results)}")
        self.globals["_as_it_is"] = ScriptCall(self.script)
        body = self.compiled("body", [
            f"def body({', '.join(parameters)}):",
            "    try:",
            *self.lines,
            "    except Exception:",
            "        pass",
            f"    return _as_it_is({', '.join(forwarded)})",
        ], self.globals)  # fmt: skip
        return self.called_as(arguments, body)

    def called_as(
        self, arguments: list[torch.Argument], body: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A function with the names of the parameters, around ``body``.

        In the body itself the names could hide globals.
        """
        names = [argument.name for argument in arguments]
        by_name = [argument.name for argument in arguments if argument.kwarg_only]
        parameters = [name for name in names if name not in by_name]
        callee = "body"
        while callee in names:
            callee += "_"
        script = self.compiled("script", [
            f"def script({', '.join([*parameters, *(['*'] if by_name else []), *by_name])}):",
            f"    return {callee}({', '.join(names)})",
        ], {callee: body})  # fmt: skip
        script.__defaults__ = tuple(a.default_value for a in arguments if a.has_default_value())
        return script

    def compiled(self, name: str, lines: list[str], names: dict[str, Any]) -> Any:
        code = compile_source(f"TorchScript {self.script.name}: {name}", "\n".join(lines))
        exec(code, names)
        return names.pop(name)

    def block(self, block: Any, indent: str) -> None:
        nodes = list(block.nodes())
        if any(node.kind() == "prim::RaiseException" for node in nodes):
            self.lines.append(f"{indent}raise RuntimeError")
            for value in block.outputs():
                self.names.setdefault(value.debugName(), "None")
            return
        for node in nodes:
            if node.kind() == "prim::If":
                self.branch(node, indent)
            elif node.kind() == "prim::Loop":
                self.loop(node, indent)
            elif node.kind() != "prim::Constant":
                self.lines.append(indent + self.statement(node))
                if node.kind() in _OVERFLOW and node.output().type().kind() == "IntType":
                    name = self.name(node.output())
                    self.lines.append(f"{indent}if not -{_LARGE} < {name} < {_LARGE}:")
                    self.lines.append(f"{indent}    raise OverflowError")

    def branch(self, node: Any, indent: str) -> None:
        results = [self.name(value) for value in node.outputs()]
        self.lines.append(f"{indent}if {self.value(node.inputsAt(0))}:")
        for i, side in enumerate(node.blocks()):
            if i:
                self.lines.append(f"{indent}else:")
            self.block(side, indent + "    ")
            self.assign(results, side.outputs(), indent + "    ")

    def loop(self, node: Any, indent: str) -> None:
        most, condition, *initial = node.inputs()
        (body,) = node.blocks()
        count, *carried = [self.name(value) for value in body.inputs()]
        again = f"_go{count}"
        self.assign([again, *carried], [condition, *initial], indent)
        self.lines.append(f"{indent}{count} = 0")
        self.lines.append(f"{indent}while {count} < {self.value(most)} and {again}:")
        self.block(body, indent + "    ")
        self.assign([again, *carried], body.outputs(), indent + "    ")
        self.lines.append(f"{indent}    {count} = {count} + 1")
        results = [self.name(value) for value in node.outputs()]
        if results:
            self.lines.append(f"{indent}{', '.join(results)} = {', '.join(carried)}")

    def assign(self, names: list[str], values: Iterable[Any], indent: str) -> None:
        texts = [self.value(value) for value in values]
        text = f"{', '.join(names)} = {', '.join(texts)}" if names else "pass"
        self.lines.append(indent + text)

    def statement(self, node: Any) -> str:
        kind, outputs = node.kind(), [self.name(value) for value in node.outputs()]
        if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            return f"[{', '.join(outputs)}] = {self.value(node.inputsAt(0))}"
        return f"{', '.join(outputs)} = {self.expression(node)}"

    def expression(self, node: Any) -> str:
        kind, inputs = node.kind(), list(node.inputs())
        name = kind.partition("::")[2]
        if kind == "prim::ListConstruct":
            return f"[{', '.join(map(self.value, inputs))}]"
        if kind == "prim::TupleConstruct":
            return f"({', '.join(map(self.value, inputs))},)"
        if kind == "aten::tensor":
            return self.tensor(inputs)
        if name in ("eq", "ne") and any(map(_is_dtype, inputs)):
            return f"{self.dtype(inputs[0])} {_SIGNS[name]} {self.dtype(inputs[1])}"
        types = {value.type().kind() for value in inputs}
        if kind == "aten::pow" and types == _INTEGERS:
            raise _Untranslatable("raises an integer to a power")
        for known, text in _EXPRESSIONS.get((kind, len(inputs)), ()):
            if not known or types <= known:
                operands = map(self.value, inputs)
                return text.format(*operands, name=name, lower=name.lower(), sign=_SIGNS.get(name))
        return self.operator(node, inputs)

    def tensor(self, inputs: list[Any]) -> str:
        """``torch.tensor``: TorchScript ignores the default device."""
        data, dtype, device, gradient = inputs
        if gradient.node().kind() != "prim::Constant" or gradient.toIValue():
            raise _Untranslatable("creates a tensor that requires gradients")
        where = self.value(device)
        where = "'cpu'" if where == "None" else where
        return f"torch.tensor({self.value(data)}, dtype={self.dtype(dtype)}, device={where})"

    def operator(self, node: Any, inputs: list[Any]) -> str:
        operator = _functional(node)
        if operator is None:
            raise _Untranslatable(f"runs {node.kind()}")
        name = "_" + str(operator).replace(".", "_")
        self.globals[name] = operator
        parts = []
        for argument, value in zip(operator._schema.arguments, inputs, strict=True):
            of_type = "ScalarType" in str(argument.real_type)
            text = self.dtype(value) if of_type else self.value(value)
            parts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        return f"{name}({', '.join(parts)})"

    def name(self, value: Any) -> str:
        known = self.names.get(value.debugName())
        if known is None:
            known = self.names[value.debugName()] = f"_{len(self.names)}"
        return known

    def value(self, value: Any) -> str:
        """The text of an operand other than an element type."""
        if _is_dtype(value):
            raise _Untranslatable("computes with element types")
        node = value.node()
        if node.kind() != "prim::Constant":
            return self.names[value.debugName()]
        constant = value.toIValue()
        if constant is None or type(constant) in (bool, int, str):
            return repr(constant)
        name = f"_constant_{value.debugName().replace('.', '_')}"
        self.globals[name] = constant
        return name

    def dtype(self, value: Any) -> str:
        """The text of an operand that is an element type, or None."""
        if _is_dtype(value):
            return self.names[value.debugName()]
        if value.node().kind() != "prim::Constant":
            raise _Untranslatable("computes element types")
        constant = value.toIValue()
        if constant is None:
            return "None"
        if constant >= len(_DTYPES):
            raise _Untranslatable("has an unknown element type")
        return f"torch.{_DTYPES[constant]}"


class ScriptCall:
    """Calls a TorchScript function as one operator, where its translation has raised."""

    def __init__(self, script: ScriptFunction) -> None:
        self.script = script

    def __call__(self, *args: Any) -> Any:
        return self.script(*args)


def _is_dtype(value: Any) -> bool:
    return bool(value.node().kind() == "prim::dtype")


def _is_tensors(kind: JitType) -> bool:
    if is_instance(kind, TupleType):
        return all(map(_is_tensors, kind.elements()))
    if is_instance(kind, ListType):
        kind = kind.getElementType()
    return is_instance(kind, TensorType)


def _functional(node: ScriptNode) -> OpOverload | None:
    """The functional operator of a node, if it returns tensors of data-independent shapes."""
    namespace, _, name = node.kind().partition("::")
    if namespace != "aten" or "!" in node.schema():
        return None
    overload = node.schema().partition("(")[0].partition(".")[2] or "default"
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if operator is None or _UNSUPPORTED_TAGS.intersection(operator.tags):
        return None
    return operator if all(_is_tensors(output.type()) for output in node.outputs()) else None
