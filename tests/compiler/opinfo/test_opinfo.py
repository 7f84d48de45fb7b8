"""Compiled operators of torch's OpInfo database equal eager."""

import json
import zlib

import pytest
import torch

from magpy_like.compiler import compile_fx
from tests.compiler.opinfo import coverage, harness

NAMES = sorted(harness.operators())
# A fixed sample of the operators, for quick runs.
SOME = [name for name in NAMES if zlib.crc32(name.encode()) % 9 == 0]
SOME_SAMPLES = 3


def check(name, dtypes, *, gradient=False, limit=None):
    op = harness.operators()[name]
    _, problems = harness.sweep(op, dtypes, compile_fx, gradient=gradient, limit=limit)
    if problems:
        shown = "\n".join(map(str, problems[:10]))
        pytest.fail(f"{len(problems)} samples differ from eager's:\n{shown}", pytrace=False)


@pytest.mark.parametrize("name", SOME)
def test_sample_of_operators_equals_eager(name):
    # One further dtype, which varies with the operator.
    extra_dtypes = [d for d in harness.FORWARD_DTYPES[1:] if d in harness.operators()[name].dtypes]
    if extra_dtypes:
        extra_dtypes = [extra_dtypes[zlib.crc32(name.encode()) // 9 % len(extra_dtypes)]]
    check(name, [torch.float32, *extra_dtypes], limit=SOME_SAMPLES)
    check(name, [torch.float32], gradient=True, limit=SOME_SAMPLES)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_equals_eager(name):
    check(name, harness.FORWARD_DTYPES)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_operators_gradients_equal_eager(name):
    check(name, [torch.float32], gradient=True)


# --- the list of operators ---------------------------------------------------------------------


# The list was written with torch 2.13. Earlier versions treat the number of elements that `unique`
# returns in the gradient of `index_fill` as known, and their first samples of `histc` have limits
# that depend on the elements.
LISTED_DIFFERENTLY = {"index_fill", "histc"} if torch.__version__ < "2.13" else set()


def regressions(name):
    """The ATen calls of an operator that are not in the committed list."""
    listed = coverage.committed().get(name)
    if listed is None or name in LISTED_DIFFERENTLY:
        return []
    row = coverage.survey([name])[name]
    found = []
    for column in ("forward", "gradient"):
        if column in row and row[column]["status"] == "fallback":
            before = set(listed.get(column, {}).get("through ATen", ()))
            if new := set(row[column]["through ATen"]) - before:
                found.append(f"{column}: {sorted(new)}")
    return found


@pytest.mark.cpu  # the list was written for it
@pytest.mark.parametrize("name", SOME[::6])
def test_sample_of_operators_has_no_new_fallbacks(name):
    assert regressions(name) == []


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("name", NAMES)
def test_operators_have_no_new_fallbacks(name):
    assert regressions(name) == []


def test_figures_match_the_list():
    text = json.loads(coverage.LIST.read_text())
    assert text["figures"] == coverage.figures(text["operators"])


def test_at_least_85_percent_run_without_fallback():
    assert coverage.figures(coverage.committed())["forward"]["without fallback"] >= 0.85


# --- the harness itself ------------------------------------------------------------------------


def broken(change):
    """A compiler whose graphs return wrong results."""

    def compiler(gm, inputs):
        return lambda *args: [change(out) for out in gm(*args)]

    return compiler


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out + 1e-3, "not close"),
        (lambda out: out.double(), "dtype"),
        (lambda out: out.flatten()[: out.numel() // 2], "shape"),
        (lambda out: torch.stack([out, out], -1)[..., 0], "stride"),
        (lambda out: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["value", "dtype", "shape", "stride", "error"],
)
def test_harness_detects_wrong_results(change, message):
    op = harness.operators()["exp"]
    ran, problems = harness.sweep(op, [torch.float32], broken(change), limit=6)
    assert ran == 3
    assert problems
    assert all(message in problem.message for problem in problems), problems


def test_harness_detects_wrong_gradients():
    def compiler(gm, inputs):
        # Correct values, doubled gradients.
        return lambda *args: [2 * out - out.detach() for out in gm(*args)]

    _, problems = harness.sweep(
        harness.operators()["exp"], [torch.float32], compiler, gradient=True, limit=2
    )
    assert problems
    assert all(problem.gradient for problem in problems)


def test_harness_accepts_eager():
    for name in ("softmax", "nn.functional.max_pool2d", "nn.functional.dropout", "index_put"):
        op = harness.operators()[name]
        for gradient in (False, True):
            ran, problems = harness.sweep(
                op, [torch.float32], lambda gm, inputs: gm, gradient=gradient, limit=4
            )
            assert ran == 4
            assert not problems
