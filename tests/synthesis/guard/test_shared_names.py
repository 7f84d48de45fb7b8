"""Locations under two names: module attributes as globals, and the ``warnings`` filters."""

import types
import warnings

import pytest
import torch

import magpy_like as magpy
from tests.programs import Twins, check_results, check_stateful, one


def module_and_program(body: str):
    """Returns a function that creates a program which sees its own module as ``here``."""
    code = compile(body, "<program>", "exec")

    def make():
        module = types.ModuleType("loaded")
        module.__dict__.update(here=module)
        exec(code, module.__dict__)
        return module.__dict__["program"]

    return make


def module_of(program):
    return program.__globals__["here"]


SWAPPED = """
items = ["a", "b"]

def add(what):
    items.insert(0, what)

def program(x):
    kept = here.items
    here.items = kept[:]
    add("c")
    n = len(items)
    here.items = kept
    return x * n
"""

SET_AS_ATTRIBUTE = """
scale = 2.0

def program(x):
    here.scale = x
    return scale + 1
"""

SET_AS_GLOBAL = """
scale = 2.0

def program(x):
    global scale
    scale = x * 2
    return here.scale + 1
"""


def test_functions_see_a_list_swapped_through_a_module_attribute():
    twins = check_stateful(module_and_program(SWAPPED), one(), changes=[_longer])
    assert module_of(twins.target).items == module_of(twins.eager).items


def _longer(program):
    module_of(program).items.append("z")


@pytest.mark.parametrize("body", [SET_AS_ATTRIBUTE, SET_AS_GLOBAL])
def test_name_set_as_attribute_or_global_is_read_as_the_other(body):
    twins = check_results(module_and_program(body), one(), one(5.0, 6.0, 7.0))
    assert torch.equal(module_of(twins.target).scale, module_of(twins.eager).scale)


def test_program_that_silences_warnings_hits():
    def program(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x.relu()

    before = list(warnings.filters)
    check_stateful(lambda: program, one())
    assert warnings.filters == before


def shown(program, *args):
    """The warnings of a call under a filter that shows all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(*args)
    return [str(warning.message) for warning in caught]


def silenced(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not to be seen", stacklevel=1)
        y = x + 1
    warnings.warn("to be seen", stacklevel=1)
    return y


def silenced_later(x):
    warnings.warn("to be seen", stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x + 1


@pytest.mark.parametrize("program", [silenced, silenced_later])
def test_warning_is_shown_according_to_the_filters_at_its_time(program):
    compiled = magpy.compile(program, backend="eager")
    for _ in range(5):
        assert shown(compiled, torch.ones(2)) == shown(program, torch.ones(2)) == ["to be seen"]


class KeepsLastResult(torch.nn.Module):
    """Keeps its last result; only checks whether there is one."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        y = x * (1.0 if self.last is None else 2.0)
        self.last = y + 1
        return y


def test_replaced_tensor_that_is_not_used_is_guarded():
    twins = Twins(KeepsLastResult)
    for i in range(5):
        twins.call(one(), hit=None if i < 2 else True)
    twins.change(lambda module: setattr(module, "last", torch.ones(2, dtype=torch.int64)))
    twins.call(one(), hit=False)
    twins.change(lambda module: setattr(module, "last", None))
    twins.call(one(), hit=True)
