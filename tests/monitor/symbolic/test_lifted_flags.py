"""Bools that vary between calls: one record serves both values, or the value is guarded."""

import itertools
import sys

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.bytecode.local_uses import local_uses
from tests.compare import assert_same

pytestmark = pytest.mark.usefixtures("reset_magpy")

COND = torch.ops.higher_order.cond


def _branch(x, flag):
    y = x * 2 if flag else x.sin()
    return y + 1


def _two_branches(x, flag):
    if flag:
        x = x + 1
    if not flag:
        x = x * 3
    return x


def _tested_again_in_a_branch(x, flag):
    if flag:
        y = x * flag + (3 if flag else 4)
    else:
        y = x * flag + (5 if flag else 6)
    return y


def _returns(x, flag):
    if flag:
        return x + 1
    for _ in range(2):
        if not flag:
            return x - 1
    return None


def _length_of_a_loop(x, flag):
    count = 2 if flag else 4
    for _ in range(count):
        x = x + 1
    return x, count, torch.zeros(count)


def _branch_in_a_loop(x, flag):
    for i in range(3):
        x = x + i if flag else x * 0.5
    return x


def _while(x, flag):
    while flag:
        x = x + 1
        if x.shape[0]:
            break
    return x


def _arithmetic(x, flag):
    count = flag + 2
    return (x * flag + flag) * (3 - flag), count, 2.5 * flag, float(flag), 7 // (int(flag) + 1)


def _chosen_numbers(x, flag):
    return torch.add(x, 1 if flag else 2, alpha=3 if flag else 4)


def _several(x, flag):
    pair, factor = ((x + 1, x), 2) if flag else ((x - 1, x), 3)
    return pair, pair[0] * factor


def _helper(y, use, scale=1):
    if use:
        y = y.cos()
    return y * scale


def _in_functions(x, flag):
    return _helper(x, flag) + _helper(x, scale=flag, use=flag)


def _in_methods(x, flag):
    return _Helped().help(x, flag)


class _Helped:
    def help(self, x, flag, again=True):
        return self.help(x + flag, flag, again=False) if again else x * flag


def _recursion(x, flag, depth=3):
    return _recursion(x + 1 if flag else x, flag, depth - 1) if depth else x * flag


def _is_not_none(x, flag):
    if flag is None or not flag:
        return x
    return x + 1


ONE_RECORD = {
    function.__name__.lstrip("_"): function
    for function in (
        *(_branch, _two_branches, _tested_again_in_a_branch, _returns, _length_of_a_loop),
        *(_branch_in_a_loop, _while, _arithmetic, _chosen_numbers, _several, _in_functions),
        *(_in_methods, _recursion, _is_not_none),
    )
}
"""Programs that need no constant value of the flag."""


def _returned(x, flag):
    return x + 1, flag


def _identity(x, flag):
    return x + 1 if flag is True else x - 1


def _equality(x, flag):
    return x + 1 if flag == 1 else x - 1


def _stored(x, flag):
    return x + 1, [flag], {"flag": flag}


def _text(x, flag):
    return x + 1, f"{flag}", str(flag), repr(flag)


def _reassigned(x, flag):
    flag = not flag
    return x + 1 if flag else x - 1


def _truth_as_value(x, flag):
    return (flag and x), (flag or 2)


def _bits(x, flag):
    return x, flag & True, flag | 2, flag ^ True, -flag


def _of_bool_tensors(x, flag):
    return (x > 0) * flag, (x > 0) & flag


def _closure(x, flag):
    def inner(y):
        return y * flag

    return inner(x)


def _comprehension(x, flag):
    return [x * flag for _ in range(2)], sum(x + flag for _ in range(2))


def _generator(x, flag):
    def inner(given):
        yield x * given

    return list(inner(flag))


def _reads_locals(x, flag):
    return x + 1, locals()["flag"]


def _unpacked_arguments(x, flag):
    return _helper(*(x, flag)), _helper(x, **{"use": flag})


def _collected_arguments(x, flag):
    def inner(*rest, **more):
        return x + 1, rest, more

    return inner(flag, flag=flag)


def _keyword_of_an_operator(x, flag):
    return x.sum(dim=0, keepdim=flag)


def _index(x, flag):
    return x[flag], [1, 2][flag]


def _log(x, flag, log):
    if flag:
        log.append(1)
    return x * flag


def _other_dtypes(x, flag):
    if flag:
        x = x.double()
    return x + 1


def _other_types(x, flag):
    return (x, "yes") if flag else [x]


def _raises(x, flag):
    try:
        if flag:
            raise ValueError("flagged")
        return x + 1
    except ValueError as error:
        return x - 1, str(error)


def _after_a_split(x, flag):
    y = x * flag
    print("", end="")
    return y + flag if flag else y


GUARDED = {
    function.__name__.lstrip("_"): function
    for function in (
        *(_returned, _identity, _equality, _stored, _text, _reassigned, _truth_as_value, _bits),
        *(
            _of_bool_tensors,
            _closure,
            _comprehension,
            _generator,
            _reads_locals,
            _unpacked_arguments,
            _collected_arguments,
        ),
        *(_keyword_of_an_operator, _index, _other_dtypes, _other_types, _raises, _after_a_split),
    )
}
"""Programs that may need the flag's value as a constant."""

VALUES = [True, False, False, True, True, False]


def _compare(program, compiled, *flags):
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(sum(flags)))
    expected = program(x.clone(), *flags)
    found = compiled(x.clone(), *flags)
    assert_same(found, expected)
    assert repr(found) == repr(expected)  # True is not 1


@pytest.mark.parametrize("name", ONE_RECORD)
def test_one_record_serves_both_values(name):
    program = ONE_RECORD[name]
    compiled = magpy.compile(program, backend="eager")
    for flag in VALUES:
        _compare(program, compiled, flag)
    info = magpy.cache_info(compiled)
    assert (info.misses, info.hits) == (2, len(VALUES) - 2)


@pytest.mark.parametrize("name", ONE_RECORD)
def test_general_record_serves_both_values_in_any_order(name):
    """Each of two separately compiled functions sees another order of the values."""
    for first in (True, False):
        magpy.reset()
        compiled = magpy.compile(ONE_RECORD[name], backend="eager")
        for flag in (first, not first, first, not first):
            _compare(ONE_RECORD[name], compiled, flag)
        assert magpy.cache_info(compiled).misses == 2


@pytest.mark.parametrize("name", GUARDED)
def test_specialized_flags_match_eager(name):
    program = GUARDED[name]
    compiled = magpy.compile(program, backend="eager")
    for flag in VALUES:
        _compare(program, compiled, flag)


def test_branch_that_ends_inside_a_handler_leaves_no_exception():
    def attempt(x, fail):
        try:
            if fail:
                raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("second") from error
        finally:
            x = x + 1
        return x

    def program(x, fail):
        try:
            return attempt(x, fail)
        except RuntimeError as error:
            return x * 2, str(error.__cause__)

    compiled = magpy.compile(program, backend="eager")
    for flag in VALUES:
        _compare(program, compiled, flag)
        assert sys.exception() is None


@pytest.mark.parametrize("name", [*ONE_RECORD])
def test_values_of_other_types_miss(name):
    program = ONE_RECORD[name]
    compiled = magpy.compile(program, backend="eager")
    for flag in (True, False, True):
        _compare(program, compiled, flag)
    before = magpy.cache_info(compiled).misses
    _compare(program, compiled, 1)
    assert magpy.cache_info(compiled).misses == before + 1


def test_external_effects_happen_for_one_value_only():
    compiled = magpy.compile(_log, backend="eager")
    for flag in VALUES:
        logs = [], []
        assert_same(compiled(torch.ones(3), flag, logs[0]), _log(torch.ones(3), flag, logs[1]))
        assert logs[0] == logs[1]


def test_five_records_serve_all_combinations_of_four_flags():
    def program(x, a, b, c, d):
        if a:
            x = x + 1
        if b:
            x = x * 2
        elif c and not d:
            x = x.sin()
        return x * d

    compiled = magpy.compile(program, backend="eager")
    combinations = list(itertools.product((True, False), repeat=4))
    for flags in combinations:
        _compare(program, compiled, *flags)
    misses = magpy.cache_info(compiled).misses
    for flags in combinations:
        _compare(program, compiled, *flags)
    assert misses <= 5
    assert magpy.cache_info(compiled).misses == misses


def test_flag_specialized_at_one_use_is_specialized_everywhere():
    def program(x, flag):
        y = x + 1 if flag else x - 1
        return y, flag

    compiled = magpy.compile(program, backend="eager")
    for flag in VALUES:
        _compare(program, compiled, flag)


def test_flag_is_lifted_inside_a_data_dependent_branch():
    def program(x, flag):
        if x.sum() > 0:
            x = x * flag if flag else x + flag
        elif flag:
            x = x - 1
        return x

    compiled = magpy.compile(program, backend="eager")
    for flag, sign in itertools.product((True, False, True), (1, -1)):
        x = torch.full((3,), float(sign))
        assert_same(compiled(x, flag), program(x, flag))
    assert magpy.cache_info(compiled).misses == 2


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, use, *, twice=False):
        x = self.linear(x)
        if use:
            x = x.relu()
        return x * 2 if twice else x


class _Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, use=True, twice=False):
        return self.layer(x, use, twice=twice) + twice


def test_flags_are_lifted_through_module_calls():
    model = _Model(_Layer())
    compiled = magpy.compile(model, backend="eager")
    for use, twice in itertools.product((True, False), repeat=2):
        x = torch.ones(2, 3)
        assert_same(compiled(x, use, twice=twice), model(x, use, twice=twice))
    misses = magpy.cache_info(compiled).misses
    for use, twice in itertools.product((True, False), repeat=2):
        found, expected = compiled(x, use, twice=twice), model(x, use, twice=twice)
        assert_same(found, expected)
        grads = [torch.autograd.grad(y.sum(), [*model.parameters()]) for y in (found, expected)]
        assert_same(*grads)
    assert misses <= 3
    assert magpy.cache_info(compiled).misses == misses


def _change_arguments(module, args, kwargs):
    x, use = args
    return (x, not use), {"twice": not kwargs["twice"]}


def _replace_forward(layer):
    layer.forward = lambda x, use, *, twice: x * 5 if use else x


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_pre_hook(_change_arguments, with_kwargs=True),
        lambda layer: layer.register_forward_hook(lambda module, args, out: out + args[1]),
        _replace_forward,
    ],
    ids=["pre-hook", "hook", "replaced forward"],
)
def test_flags_of_modules_with_hooks_match_eager(change):
    layer = _Layer()
    change(layer)
    model = _Model(layer)
    compiled = magpy.compile(model, backend="eager")
    for use, twice in [*itertools.product((True, False), repeat=2)] * 2:
        x = torch.ones(2, 3)
        assert_same(compiled(x, use, twice=twice), model(x, use, twice=twice))


def test_compiled_graph_serves_both_values():
    model = _Model(_Layer())
    compiled = magpy.compile(model)
    for use, twice in [*itertools.product((True, False), repeat=2)] * 2:
        x = torch.ones(2, 3)
        assert_same(compiled(x, use, twice=twice), model(x, use, twice=twice))


def test_dynamic_false_guards_the_value():
    compiled = magpy.compile(_branch, backend="eager", dynamic=False)
    for flag in VALUES:
        _compare(_branch, compiled, flag)
    assert magpy.cache_info(compiled).records == 2


def test_explain_names_lifted_flags():
    compiled = magpy.compile(_branch, backend="eager")
    for flag in (True, False):
        _compare(_branch, compiled, flag)
    report = magpy.explain(compiled, torch.ones(3), True)
    assert "args[1]" in report.generalised
    assert report.lifted == ["args[1]"]
    assert any(node.target is COND for graph in report.graphs for node in graph.graph.nodes)


# --- uses of locals in the bytecode --------------------------------------------------------------


def _slot(function, name):
    return function.__code__.co_varnames.index(name)


@pytest.mark.parametrize("name", ["branch", "in_functions", "arithmetic", "is_not_none"])
def test_local_with_known_uses_is_tracked(name):
    function = ONE_RECORD[name]
    assert _slot(function, "flag") in local_uses(function.__code__).tracked


@pytest.mark.parametrize(
    "name",
    ["returned", "stored", "text", "reassigned", "truth_as_value", "closure", "reads_locals"],
)
def test_local_with_unknown_uses_is_not_tracked(name):
    function = GUARDED[name]
    assert _slot(function, "flag") not in local_uses(function.__code__).tracked


def test_stack_slot_with_two_possible_values_is_not_tracked():
    def program(x, flag, other):
        # Too long for CPython to compile once per branch.
        return x * (flag if other else 3) + x.sum() * 2 - x

    uses = local_uses(program.__code__)
    assert _slot(program, "flag") not in uses.tracked
    assert _slot(program, "other") in uses.tracked
