"""Generated programs with branches on tensors: eager's results on all paths."""

import textwrap

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import magpy_like as magpy
from tests.compare import assert_same

TENSORS = ("a", "b", "c")
EXPRESSIONS = (
    "{v}",
    "{v} * 0.5",
    "{v} + {v}",
    "{v}.sin()",
    "torch.relu({v}) - {v}.mean()",
    "w * {v}",
    "({v} if {p} else {v})",
    "helper({v}, {v})",
    "{v}.detach() + n",
    "{v}[:]",
)
PREDICATES = (
    "{v}.sum() > 0",
    "({v} > {v}).any()",
    "not {v}[0] > 0.1 * n",
    "{p} and {p}",
    "{p} or {v}.max() < 1",
)
STATEMENTS = (
    "{v} = {e}",
    "{v} = {e}",
    "{v}, {v} = {e}, {v}",
    "n = n + 1",
    "pair = ({e}, n, ({v},))",
    "{v} += {v}",
    "log.append({e})",
    "state.seen = {v}",
    "return {e}, log",
    "return {e}",
    "if {p}:\n{b}",
    "if {p}:\n{b}",
    "if {p}:\n{b}\nelse:\n{b}",
    "if {p}:\n{b}\nelif {p}:\n{b}\nelse:\n{b}",
    "if {p}: return {v}",
    "for i in range(2):\n{b}\n    if {p}: break",
    "k = {v} * 2\nwhile k.norm() > 1:\n{b}\n    k = k * 0.5\n    n = n + 1",
    "for f in (0.5, -1.5):\n{b}\n    if {p}: continue\n    {v} = {v} * f",
)


def fill(draw, templates, depth):
    """One of the templates; at depth 0 one of the first ones, which have few parts."""
    text = draw(
        st.sampled_from(templates if depth > 0 else templates[: min(4, len(templates) - 3)])
    )
    for part, make in PARTS.items():
        while part in text:
            text = text.replace(part, make(draw, depth - 1), 1)
    return text


def block(draw, depth):
    count = draw(st.integers(1, 3))
    return "\n".join(fill(draw, STATEMENTS, depth) for _ in range(count))


PARTS = {
    "{b}": lambda draw, depth: textwrap.indent(block(draw, depth), "    "),
    "{p}": lambda draw, depth: fill(draw, PREDICATES, depth),
    "{e}": lambda draw, depth: fill(draw, EXPRESSIONS, depth),
    "{v}": lambda draw, _: draw(st.sampled_from(TENSORS)),
}


@st.composite
def programs(draw):
    return f"""
def helper(a, b):
    w, n, log, state = 2.0, 0, [], State()
    c = a - b
{textwrap.indent(block(draw, 1).replace("helper", "torch.add").replace(", log", ""), "    ")}
    return c

def main(a, b, w, log, state):
    n, pair = 0, None
    c = a + b
{textwrap.indent(block(draw, 3), "    ")}
    if {fill(draw, PREDICATES, 2)}:
{textwrap.indent(block(draw, 2), "    " * 2)}
    return a, b, c, n, pair
"""


class State:
    seen = None


def outcome(function, seed, gradients):
    """Results, mutations and exceptions of a call, and the gradients of its arguments."""
    generator = torch.Generator().manual_seed(seed)
    arguments = [torch.randn(3, generator=generator) * 2 for _ in range(2)]
    w = torch.tensor(1.5, requires_grad=gradients)
    leaves = [tensor.requires_grad_(gradients) for tensor in arguments]
    a, b = (leaf * 1 for leaf in leaves)
    log, state = [], State()
    try:
        result = function(a, b, w, log, state)
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        result = type(error)
    after = result, (a, b), log, vars(state)
    loss = sum(t.sum() for t in tensors(result) if t.requires_grad)
    try:
        if isinstance(loss, torch.Tensor):
            loss.backward()
    except RuntimeError:  # the program changed a tensor that the backward pass needs
        return after, None
    return after, [leaf.grad for leaf in (*leaves, w)]


def _is_zero_or_none(gradient):
    return gradient is None or not gradient.any()


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, tuple | list) else []


def check(text, gradients, backend="eager"):
    names = {"torch": torch, "State": State}
    exec(text, names)
    program = names["main"]
    fast = magpy.compile(program, backend=backend)
    for seed in (0, 1, 2, 3, 0, 4):
        found, expected = outcome(fast, seed, gradients), outcome(program, seed, gradients)
        if backend == "aot_eager" and None not in (found[1], expected[1]):
            # torch's own backend leaves zeros where no result depends on an input.
            pairs = zip(found[1], expected[1], strict=True)
            left = [
                None if theirs is None and _is_zero_or_none(mine) else mine
                for mine, theirs in pairs
            ]
            found = (found[0], left)
        assert_same(found, expected, what=f"{seed}")
    return fast


SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=25, derandomize=True, **SETTINGS)
@given(programs(), st.booleans())
def test_generated_branches(text, gradients):
    check(text, gradients)


# Several tests, so that processes can share them.
@pytest.mark.full
@pytest.mark.parametrize("share", range(3))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("gradients", [False, True])
def test_many_generated_branches(gradients, backend, share):
    @hypothesis.seed(share)
    @settings(max_examples=80, **SETTINGS)
    @given(programs())
    def checked(text):
        check(text, gradients, backend)

    checked()
