"""Formatting of tensors as text, which alone does not split the program."""

import contextlib
import io

import pytest
import torch

import magpy_like as magpy
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")

WIDTH = 10

AS_NUMBERS = {
    "field": lambda t: f"{t:.3f}",
    "several fields": lambda t: f"{t:.3f} of {t:10.1e}|{t.mean():4.1f}",
    "field without a format": lambda t: f"<{t}>",
    "width that is computed": lambda t: f"{t:>{WIDTH + 2}.2f}",
    "format": lambda t: format(t, ".2e"),
    "format without a format": format,
    "method": lambda t: "{:.3f}".format(t),  # noqa: UP032
    "method with positions": lambda t: "{1} {0:.1f}".format(t, 3),  # noqa: UP030, UP032
    "percent": lambda t: "%.3f" % t,  # noqa: UP031
    "percent of several": lambda t: "%s %5.1f%% %d %g" % ("loss", t, 3, t),  # noqa: UP031
    "integer": lambda t: f"{t.argmax():03d}",
    "low precision": lambda t: f"{t.to(torch.bfloat16):.3f}",
    "number of an index": lambda t: f"{t.reshape(1)[0]:.3f}",
}
AS_TENSORS = {
    "representation": lambda t: f"{t!r}",
    "text": lambda t: f"{t!s} {str(t)}",  # noqa: RUF010
    "one dimension": lambda t: f"{t.reshape(1)}",
    "bool": lambda t: f"{t > 0}",
    "parameter": lambda t: f"{torch.nn.Parameter(t.detach())}",
    "percent s": lambda t: "%s" % t,  # noqa: UP031
    "percent d": lambda t: "%d" % t.nan_to_num(),  # noqa: UP031
    "by name": lambda t: "%(t).2f" % {"t": t},  # noqa: UP031
    "conversion": lambda t: "{!r}".format(t),  # noqa: UP032
    "attribute": lambda t: "{0.dtype}".format(t),  # noqa: UP032
}


def _program(text):
    def program(x):
        y = x * 2
        print(text(y.sum()))
        return y + 1

    return program


def _compare(program, compiled, x):
    printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed[0]):
        expected = program(x)
    with contextlib.redirect_stdout(printed[1]):
        found = compiled(x)
    assert_same(found, expected)
    assert printed[1].getvalue() == printed[0].getvalue()
    return printed[0].getvalue()


INPUTS = [torch.full((3,), value) for value in (1.5, -2.0, 0.125, float("nan"), 1e30)]


@pytest.mark.parametrize("name", AS_NUMBERS)
def test_printing_a_formatted_number_splits_once(name):
    program = _program(AS_NUMBERS[name])
    compiled = magpy.compile(program, backend="eager")
    printed = {_compare(program, compiled, x) for x in INPUTS}
    info = magpy.cache_info(compiled)
    assert (info.misses, info.records) == (1, 2)
    assert len(printed) > 1 or name == "integer"


@pytest.mark.parametrize("name", AS_TENSORS)
def test_text_of_a_tensor_matches_eager(name):
    program = _program(AS_TENSORS[name])
    compiled = magpy.compile(program, backend="eager")
    for x in INPUTS:
        _compare(program, compiled, x)


def test_text_that_is_returned_needs_no_split():
    def program(x):
        y = x * 2
        return y + 1, f"{y.sum():.2f}", "%.1f" % y.max()  # noqa: UP031

    compiled = magpy.compile(program, backend="eager", fullgraph=True)
    for x in INPUTS:
        assert_same(compiled(x), program(x))
    assert magpy.cache_info(compiled).misses == 1


def test_text_that_decides_control_flow_matches_eager():
    def program(x):
        return x + 1 if f"{x.sum():.0f}" > "0" else x - 1

    compiled = magpy.compile(program, backend="eager")
    for x in INPUTS:
        assert_same(compiled(x), program(x))


def test_later_write_leaves_the_text_unchanged():
    def program(x):
        y = x * 2
        total = y.sum()
        text = f"{total:.2f}"
        total.add_(1)
        return total, text

    compiled = magpy.compile(program, backend="eager")
    for x in INPUTS:
        assert_same(compiled(x), program(x))


def test_invalid_format_raises():
    def program(x):
        try:
            return f"{x.sum():d}"
        except ValueError as error:
            return str(error)

    compiled = magpy.compile(program, backend="eager")
    for x in INPUTS:
        assert compiled(x) == program(x)


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def __float__(self):
        return self.total / self.count

    def __int__(self):
        return self.count

    def __str__(self):
        return f"{float(self):.2f} of {self.count}"

    def __repr__(self):
        return f"Meter({self.total})"

    def __format__(self, specification):
        return f"{self.total:.1f}{specification}"


class Plain(Meter):
    __format__ = object.__format__


class Represented(Plain):
    __str__ = object.__str__


@pytest.mark.parametrize(
    "formats",
    [
        str, repr, float, int, format, "{0}".format,
        lambda m: f"{m}", lambda m: f"{m!s}", lambda m: f"{m!r}", lambda m: f"mean {m}, {m.total}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Meter, Plain, Represented])
def test_results_of_special_methods_are_lifted(formats, kind):
    _compare_metered(kind, formats, hits=2)


@pytest.mark.parametrize(
    "formats",
    [
        lambda m: f"{m!s:>20}", lambda m: f"{m:b}", lambda m: "%s" % m, lambda m: str([m, m]),
        lambda m: "long" if len(str(m)) > 9 else "short", lambda m: "1" in f"{m}",
        lambda m: float(m) > 1, lambda m: [0] * int(m),
    ],
)  # fmt: skip
def test_reads_of_formatted_numbers_match_eager(formats):
    _compare_metered(Plain, formats)


def _compare_metered(kind, formats, hits=0):
    def program(meter, x):
        meter.update(x.mean().item())
        return formats(meter)

    eager, compiled, fast = kind(), kind(), magpy.compile(program, backend="eager")
    for value in (1.0, 2.5, -3.0, 40.0, 7.0):
        x = torch.full((2,), value)
        outcome = [_outcome(run, meter, x) for run, meter in ((program, eager), (fast, compiled))]
        assert_same((outcome[1], compiled), (outcome[0], eager))
    assert magpy.cache_info(fast).hits >= hits


def _outcome(run, *args):
    try:
        return run(*args)
    except Exception as error:
        return error


def test_part_of_a_text_that_decides_control_flow_matches_eager():
    def program(x):
        return x + 1 if repr(x)[7:-1] == "[1.]" else x - str(x.sum().item()).index(".")

    compiled = magpy.compile(program, backend="eager")
    for number in (1.0, 2.0, 1.0, 30.0, 4.0, 1.0):
        x = torch.full((1,), number)
        assert_same(compiled(x), program(x))
