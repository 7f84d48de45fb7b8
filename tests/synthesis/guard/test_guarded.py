"""A call that differs in something that a program relies on is turned away, and must be: with that
condition made to hold by force its answer is another one than eager's."""

from typing import Any

import pytest
import torch

import magpy_like as magpy
from magpy_like.synthesis.guard.conditions import Kind
from tests import conditions, mutants
from tests.compare import assert_same
from tests.seeding import seed
from tests.synthesis.guard.guarded import PROGRAMS, Program


def answers(case: Program, *, compiled: bool, behind: bool) -> tuple[Any, int]:
    """What each call gives and leaves, and how many were answered by a record."""
    made, calls = case.make()
    now: list[Any] = []
    given = magpy.disable(lambda: now[0]())

    def split() -> Any:
        return made(*given())

    program = target = split if behind else made
    if compiled:
        program = magpy.compile(target, backend=case.backend)
    found = []
    for now[:] in [[call] for call in calls]:
        seed(0)
        args, kwargs = () if behind else now[0](), {}
        if args and isinstance(args[0], tuple):
            args, kwargs = args
        try:
            result = program(*args, **kwargs)
        except Exception as error:
            result = type(error), str(error)
        found.append((result, args))
    torch.set_grad_enabled(True)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return (found, target), magpy.cache_info(program).hits if compiled else 0


def differ(a: Any, b: Any) -> bool:
    try:
        assert_same(a, b)
    except AssertionError:
        return True
    return False


def kinds_that_matter(case: Program, *, behind: bool) -> set[str]:
    """The kinds of conditions without which some answer is another one than eager's."""
    expected, _ = answers(case, compiled=False, behind=behind)
    run = conditions.Run()
    with conditions.noted(run):
        actual, hits = answers(case, compiled=True, behind=behind)
    assert_same(actual, expected)
    assert hits, "no record has answered any call"
    found = set()
    for kind in {kind for number in run.failed for kind in run.checks[number].kinds}:
        with conditions.noted(conditions.Run(forced=[kind])):
            forced, _ = answers(case, compiled=True, behind=behind)
        if differ(forced, expected):
            found.add(kind)
    return found


@pytest.mark.parametrize("behind", [False, True], ids=["at entry", "behind a split"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_call_that_differs_in_what_a_program_relies_on_is_turned_away(name, behind):
    case = PROGRAMS[name]
    if behind and not case.behind:
        return
    found = kinds_that_matter(case, behind=behind)
    assert found or not case.kinds
    assert behind or case.kinds <= found


def test_each_kind_of_condition_has_a_program_that_needs_it():
    shown = set().union(*(case.kinds for case in PROGRAMS.values()))
    assert shown == set(Kind)


NOT_NEEDED = {
    "Metadata: t->device() != device": "the dispatch keys tell all but one GPU from another",
    "current_state: a.get_fw_grad_mode()": "only native code asks, which no record holds; "
    "it is compared in one word with what is needed",
    "current_state: a.get_inference_mode()": "the dispatch keys tell; compared in one word, too",
    "TorchState: included == o.included": "under a transform or a mode for operators, which "
    "include some, no record is looked for, nor behind a split; native code may include others",
}
"""Comparisons that no program misses that is recorded without a GPU, and why they stay."""
_first = [(name, behind) for behind in (False, True) for name in PROGRAMS]
"""Programs and whether behind a split, those first that have missed a comparison last."""


@pytest.mark.full
@pytest.mark.parametrize("comparison", sorted(set(mutants.comparisons()) - NOT_NEEDED.keys()))
def test_each_native_comparison_has_a_program_that_needs_it(comparison):
    for name, behind in list(_first):
        case = PROGRAMS[name]
        if behind and not case.behind:
            continue
        expected, _ = answers(case, compiled=False, behind=behind)
        with mutants.disabled(comparison):
            actual, _ = answers(case, compiled=True, behind=behind)
        if differ(actual, expected):
            _first.remove((name, behind))
            _first.insert(0, (name, behind))
            return
    raise AssertionError("no program needs it")


def test_comparisons_that_are_not_needed_are_there():
    assert NOT_NEEDED.keys() <= set(mutants.comparisons())
