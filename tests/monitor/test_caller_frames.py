"""Frames that a program inspects: those of its callers, and none of this package."""

import gc
import inspect
import sys
import threading
import traceback
import weakref

import pytest
import torch

import magpy_like as magpy


def _frame(x):
    frame = sys._getframe(1)
    return x * 2, frame.f_code.co_name, frame.f_locals.get("mark")


def _frame_after_a_split(x):
    y = x * 2
    frame = sys._getframe(1)
    return y + 1, frame.f_code.co_name, frame.f_locals["mark"]


def _stack(x):
    return x * 2, [entry.function for entry in inspect.stack()[:3]]


def _back(x):
    return x * 2, inspect.currentframe().f_back.f_code.co_filename


def _frame_of_inner_function(x):
    def inner():
        return sys._getframe(2).f_code.co_name

    return x * 2, inner()


def _extracted_stack(x):
    return x * 2, [entry.name for entry in traceback.extract_stack()[-3:]]


def _traceback_of_caught_exception(x):
    try:
        raise ValueError
    except ValueError as error:
        return x * 2, error.__traceback__.tb_frame.f_back.f_code.co_name


def _frame_in_a_callback(x):
    return x * 2, list(map(lambda _: sys._getframe(2).f_code.co_name, [1]))


class _Frames(torch.nn.Module):
    def forward(self, x):
        names, frame = [], sys._getframe()
        while frame is not None and frame.f_code is not _call.__code__:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return x * 2, names


def _call(program, x):
    mark = 7
    result = program(x)
    assert mark == 7
    return result


_PROGRAMS = [
    _frame, _frame_after_a_split, _stack, _back, _frame_of_inner_function, _extracted_stack,
    _traceback_of_caught_exception, _frame_in_a_callback, _Frames(),
]  # fmt: skip


@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda p: getattr(p, "__name__", "module"))
def test_outermost_function_finds_its_caller(program):
    compiled = magpy.compile(program, backend="eager")
    for i in range(4):
        x = torch.tensor([1.0, float(i)])
        assert str(_call(compiled, x)) == str(_call(program, x)), f"call {i}"


def test_program_at_its_record_limit_finds_its_caller():
    def program(x, number):
        return x * number, sys._getframe(1).f_code.co_name

    compiled = magpy.compile(program, backend="eager", dynamic=False, options={"record_limit": 1})
    with pytest.warns(UserWarning, match="runs eagerly from now on"):
        for i in range(4):
            assert compiled(torch.ones(1), i)[1] == sys._getframe().f_code.co_name


def test_nested_compiled_functions_find_their_callers():
    def inner(x):
        return x + 1, sys._getframe(1).f_code.co_name

    fast = magpy.compile(inner, backend="eager")

    def outer(x):
        y, name = fast(x * 2)
        return y, name, sys._getframe(1).f_code.co_name

    compiled = magpy.compile(outer, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(1))[1:] == ("outer", sys._getframe().f_code.co_name)


def test_kept_frames_lead_to_the_callers_and_keep_nothing_else_alive():
    compiled = magpy.compile(lambda x: (x * 2, sys._getframe()), backend="eager")

    def call():
        held = torch.nn.Linear(1, 1)
        frame = compiled(torch.ones(1))[1]
        assert frame.f_back is sys._getframe()
        return frame, weakref.ref(held)

    for _ in range(3):
        frame, held = call()
        assert frame.f_back.f_code is call.__code__
        del frame
        gc.collect()  # the frames form a reference cycle
        assert held() is None


def test_caller_continues_after_the_program_has_raised():
    def program(x, n):
        if n:
            return compiled(x, n - 1)
        raise KeyError(sys._getframe(1).f_code.co_name)

    compiled = magpy.compile(program, backend="eager")
    for _ in range(3):
        with pytest.raises(KeyError, match="program"):
            compiled(torch.ones(1), 3)
        assert sys._getframe().f_code.co_name.startswith("test_caller_continues")


def test_programs_in_threads_find_their_own_callers():
    compiled = magpy.compile(_frame, backend="eager")
    found = []

    def work():
        for i in range(10):
            found.append(_call(compiled, torch.ones(i % 2 + 1))[1:])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [("_call", 7)] * 40
