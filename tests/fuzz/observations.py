"""Everything that one call of a program does, and the comparison of two calls."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import re
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.compare import assert_same
from tests.programs import tensors_in
from tests.seeding import seed

Observation = dict[str, Any]


def observe(
    module: types.ModuleType, call: Callable[..., Any], number: int, *, exact: bool
) -> Observation:
    """Call ``call`` with the arguments of call ``number``, and collect all that can be observed.

    ``exact``: the texts of errors in the backward pass count.
    """
    names = vars(module)
    exec(_compiled(names["CHANGES"][number]), names)
    del names["leaves"][names["leaves_of_modules"] :]
    _seed(number)
    args, kwargs = names[f"call_{number}"]()
    output = io.StringIO()
    result, error = None, None
    _seed(number)
    before = [(t, t._version) for t in tensors_in([args, kwargs, _state(names)])]
    with contextlib.redirect_stdout(output):
        try:
            result = call(*args, **kwargs)
        except Exception as raised:
            error = _describe_error(raised, module.__file__)
    drawn = torch.rand(1), random.random(), float(np.random.rand())
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype()
    _set_modes()
    state = _state(names)
    changes = [t._version - version for t, version in before]
    versions = changes + [tensor._version for tensor in tensors_in([result])]
    found = {
        "error": error, "output": output.getvalue(), "random": drawn, "modes": modes,
        "result": result, "arguments": (args, kwargs), "globals": state, "versions": versions,
    }  # fmt: skip
    if names["BACKWARD"] != "none":
        found["write"] = _write(names, [result, args, kwargs], number)
        found["backward"] = _backward(names, [result, args, kwargs], exact)
        # One that raises has given some leaves their gradients, by the order of autograd's nodes.
        raised = isinstance(found["backward"], tuple)
        found["gradients"] = [] if raised else [leaf.grad for leaf in names["leaves"]]
    return found


def reading_autograd_state(call: Callable[..., Any], file: str) -> Callable[..., Any]:
    """``call``, during which something reads the autograd nodes of local variables and arguments at
    each line of a file, as a debugger does.

    Autograd updates the node of a view whose base was written to when it is read. Unread, eager
    mode admits ``requires_grad_(False)`` and ``detach_``, and refuses writes, by the old one.
    """

    given: list[Any] = []

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        for value in [*frame.f_locals.values(), given]:
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, torch.Tensor):
                    with contextlib.suppress(RuntimeError):
                        _ = item.grad_fn
        return trace

    def run(*args: Any, **kwargs: Any) -> Any:
        before = sys.gettrace()
        given[:] = tensors_in([args, kwargs])
        sys.settrace(trace)
        try:
            return call(*args, **kwargs)
        finally:
            sys.settrace(before)

    return run


def _write(names: dict[str, Any], roots: list[Any], number: int) -> Any:
    """Write to tensors between the call and its backward pass; returns the kind of error."""
    tensors = [tensor for tensor in tensors_in(roots) if tensor.is_floating_point()]
    try:
        with torch.no_grad():
            exec(_compiled(names["WRITES"][number]), names | {"tensors": tensors})
    except (IndexError, RuntimeError) as error:  # no tensors, or elements that share memory
        return type(error)
    return None


@functools.cache
def _compiled(change: str) -> types.CodeType:
    """A change of state, with the same code objects for all copies of a program."""
    return compile(change, "<change>", "exec")


def _state(names: dict[str, Any]) -> dict[str, Any]:
    """The globals of a program that it may change."""
    own = ("program", "CHANGES", "WRITES", "BACKWARD")
    return {
        name: value
        for name, value in names.items()
        if not name.startswith(("__", "call_"))
        and name not in own
        and not isinstance(value, types.ModuleType)
    }


def _seed(number: int) -> None:
    seed(number)
    random.seed(number)
    np.random.seed(number)


def _set_modes() -> None:
    """Undo what a program has left behind."""
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)


def _describe_error(error: BaseException, file: str | None) -> tuple[Any, ...]:
    """Type, arguments, the last line of the program, and the same of the cause and context."""
    chain: list[Any] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 5:
        frames = traceback.extract_tb(link.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        cause = link.__cause__ is not None
        chain.append(
            (type(link), link.args, vars(link), lines[-1:], cause, link.__suppress_context__)
        )
        link = link.__cause__ or link.__context__
    return tuple(chain)


def _has_node(tensor: torch.Tensor) -> bool:
    """True if a tensor was computed from leaves; a view whose base was written to otherwise has no
    gradient."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return False


def _backward(names: dict[str, Any], roots: list[Any], exact: bool) -> Any:
    """Compute gradients of all that was returned or changed; returns the error, if there is one."""
    terms = []
    for tensor in tensors_in(roots):
        if tensor.requires_grad and _has_node(tensor):
            real = tensor.real if tensor.is_complex() else tensor
            terms.append((real.double() * real.double()).sum())
    if not terms:
        return None
    loss = torch.stack(terms).sum()
    try:
        if names["BACKWARD"] == "second":
            sources = [leaf for leaf in names["leaves"] if leaf.requires_grad]
            first = torch.autograd.grad(loss, sources, create_graph=True, allow_unused=True)
            squares = [(g.double() ** 2).sum() for g in first if g is not None and g.requires_grad]
            if squares:
                torch.stack(squares).sum().backward()
            return [None if g is None else g.detach() for g in first]
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        if any(known in text for known in _DOCUMENTED):
            raise Unsupported(text) from error
        return (type(error), _without_node(text) if exact else _is_refusal(text))
    return None


def _without_node(text: str) -> str:
    """The text of an error of autograd without the name of a node: an operator of a merged branch
    is another one."""
    return re.sub(r"which is output \d+ of [\w:]+, ", "", text)


def _is_refusal(text: str) -> bool:
    return any(reason in text for reason in ("modified by an inplace operation", DETACHED))


DETACHED = "saved tensor that has been detached in-place"
_DOCUMENTED = ("no double backward through this", "a compiled backward pass cannot run for a batch")


def saves_less(actual: Observation, expected: Observation) -> bool:
    """True if eager mode alone refuses the backward pass, as a saved tensor was written to, or
    detached. A compiled graph saves what its gradients need, as is documented."""
    refusal = expected.get("backward") == (RuntimeError, True)
    return refusal and not isinstance(actual.get("backward"), tuple)


class Unsupported(Exception):
    """A gradient that a compiled program documents not to compute."""


def find_difference(
    actual: Observation, expected: Observation, tolerance: dict[str, float]
) -> str | None:
    """The first difference between two observations, as text."""
    for name in ("error", "output", "random", "modes"):
        try:
            assert_same(actual[name], expected[name], what=name)
        except AssertionError as error:
            return str(error)
    together = ("result", "arguments", "globals")  # what they share is compared, too
    try:
        assert_same(
            [actual[name] for name in together], [expected[name] for name in together],
            what="call", **tolerance,
        )  # fmt: skip
        for name in ("write", "backward", "gradients", "versions"):
            if name in expected:
                assert_same(actual.get(name), expected[name], **tolerance, what=name)
    except AssertionError as error:
        text = str(error)
        for k, name in enumerate(together):
            text = text.replace(f"call[{k}]", name)
        return text
    return None


_CATEGORIES = (
    "Tensor-likes", "Scalars", "strides", "requires_grad", "is_leaf", "dtype", "shares memory",
    "shares no memory", "another path's object", "another part of the memory", "shape", "type",
    "length", "keys", "elements", "absent", "present", "attributes",
)  # fmt: skip


def kind_of(difference: str) -> str:
    """The kind of a difference: which part of the observation differs, and in what."""
    root = (re.match(r"\w+", difference) or [""])[0]
    found = next((category for category in _CATEGORIES if category in difference), "value")
    return f"{root}: {'value' if found in ('Tensor-likes', 'Scalars') else found}"
