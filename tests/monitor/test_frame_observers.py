"""Trace and profile functions: a program sees those of eager mode, and its own see its frames."""

import cProfile
import io
import pdb
import sys

import pytest
import torch

import magpy_like as magpy

PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


def helper(x):
    return x + 1


def observer(seen):
    def observe(frame, event, arg):
        if frame.f_code.co_filename == __file__:
            seen.append((event, frame.f_code.co_name))
        return observe

    return observe


@program
def reads_the_observers(x, factor):
    return x * factor, sys.gettrace(), sys.getprofile(), sys._getframe().f_trace


@program
def traces_calls(x, factor):
    seen = []
    before = sys.gettrace()
    sys.settrace(observer(seen))
    y = helper(x) * factor
    sys.settrace(before)
    return y + 1, seen


@program
def traces_its_own_lines(x, factor):
    seen = []
    y, frame, trace = x * factor, sys._getframe(), observer(seen)
    # In one line: a caller's trace function does not trace the lines of a compiled program.
    frame.f_trace, _ = trace, sys.settrace(trace)
    y = helper(y)
    y = y + 1
    sys.settrace(None)
    return y, seen


@program
def leaves_a_trace_function(x, factor):
    y = x * factor
    sys.settrace(ignore)
    return y + 1


def ignore(frame, event, arg):
    return None


@program
def profiles_calls(x, factor):
    seen = []
    sys.setprofile(observer(seen))
    y = helper(x)
    sys.setprofile(None)
    return y * factor, seen


@program
def runs_a_profiler(x, factor):
    y, profile = x * factor, cProfile.Profile()
    profile.enable()
    y = helper(y)
    profile.disable()
    codes = (entry.code for entry in profile.getstats())
    return y, sorted(code.co_name for code in codes if not isinstance(code, str))


@program
def enters_the_debugger(x, factor):
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("next\nnext\np y\ncontinue\n"), stdout=out, nosigint=True)
    debugger.set_trace()
    y = x * factor
    y = y + 1
    sys.settrace(None)  # the debugger goes on while the process has breakpoints of other tests
    return y, out.getvalue()


@pytest.fixture
def observers_restored():
    before = sys.gettrace(), sys.getprofile()
    yield
    sys.settrace(before[0]), sys.setprofile(before[1])


def outcome(function, factor, outer):
    sys.settrace(outer)
    try:
        result = function(torch.ones(1), factor)
        return str(result), sys.gettrace()
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("outer", [None, ignore], ids=["alone", "traced"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_observers_are_those_of_eager_mode(function, outer, observers_restored):
    fast = magpy.compile(function, backend="eager")
    for factor in (2, 2, 2, 3, 2, 4, 2):
        assert outcome(fast, factor, outer) == outcome(function, factor, outer)


def test_explanation_names_the_trace_function():
    report = magpy.explain(traces_calls, torch.ones(1), 2)
    assert magpy.SplitReason.TRACE_FUNCTION in [point.reason for point in report.split_points]
    assert "set it outside" in str(report)


def test_program_that_only_reads_the_observers_is_compiled():
    fast = magpy.compile(reads_the_observers, backend="eager")
    for _ in range(3):
        fast(torch.ones(1), 2)
    assert magpy.cache_info(fast).hits == 2


def test_observers_compare_by_identity(observers_restored):
    class Unequal:
        def __call__(self, frame, event, arg):
            return None

        def __eq__(self, other):
            raise AssertionError

    sys.settrace(Unequal())
    fast = magpy.compile(lambda x: (x * 2, sys.getprofile(), repr(x)), backend="eager")
    for _ in range(3):
        fast(torch.ones(1))
    sys.settrace(None)


def test_monitor_that_ends_in_a_nested_run_restores_the_outer_one():
    """A finalizer runs in the middle of a monitored program and is monitored itself."""
    inner = magpy.compile(lambda x: x + 1, backend="eager")

    class Hook(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return inner(grad)

    def program(x):
        (grad,) = torch.autograd.grad(Hook.apply(x).sum(), x)
        return grad * 3, sys.gettrace()

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        assert str(fast(x)) == str(program(x))
