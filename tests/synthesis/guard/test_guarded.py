"""Necessity of each condition: without it, a call that breaks it would differ from eager mode.

A call that differs in a property on which a program relies must miss: if that condition is forced
to hold, its answer differs from eager's.
"""

import sys
from typing import Any

import pytest
import torch

import magpy_like as magpy
from magpy_like.synthesis.guard.conditions import Kind
from tests import conditions, mutants
from tests.compare import assert_same
from tests.seeding import seed
from tests.synthesis.guard.guarded import PROGRAMS, Program


def answers(case: Program, *, compiled: bool, after_split: bool) -> tuple[Any, int]:
    """Results and arguments after each call, and the number of calls that a record served."""
    made, calls = case.make()
    now: list[Any] = []
    opaque_call = magpy.disable(lambda: now[0]())

    def split() -> Any:
        return made(*opaque_call())

    program = target = split if after_split else made
    if compiled:
        program = magpy.compile(target, backend=case.backend)
    outcomes = []
    for now[:] in [[call] for call in calls]:
        seed(0)
        args, kwargs = () if after_split else now[0](), {}
        if args and isinstance(args[0], tuple):
            args, kwargs = args
        try:
            result = program(*args, **kwargs)
        except Exception as error:
            result = type(error), str(error)
        outcomes.append((result, args))
    torch.set_grad_enabled(True)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return (outcomes, target), magpy.cache_info(program).hits if compiled else 0


def differ(a: Any, b: Any) -> bool:
    try:
        assert_same(a, b)
    except AssertionError:
        return True
    return False


def kinds_that_matter(case: Program, *, after_split: bool) -> set[str]:
    """Kinds of conditions without which some answer differs from eager's."""
    expected, _ = answers(case, compiled=False, after_split=after_split)
    run = conditions.Run()
    with conditions.noted(run):
        actual, hits = answers(case, compiled=True, after_split=after_split)
    assert_same(actual, expected)
    assert hits, "no record has served any call"
    found = set()
    for kind in {kind for number in run.failed for kind in run.checks[number].kinds}:
        with conditions.noted(conditions.Run(forced=[kind])):
            forced, _ = answers(case, compiled=True, after_split=after_split)
        if differ(forced, expected):
            found.add(kind)
    return found


@pytest.mark.parametrize("after_split", [False, True], ids=["at entry", "after a split"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_call_that_breaks_a_condition_must_miss(name, after_split):
    case = PROGRAMS[name]
    if after_split and not case.after_split:
        return
    found = kinds_that_matter(case, after_split=after_split)
    assert found or not case.kinds
    assert after_split or case.kinds <= found


def test_each_kind_of_condition_has_a_program_that_needs_it():
    shown = set().union(*(case.kinds for case in PROGRAMS.values()))
    assert shown == set(Kind)


NOT_NEEDED = {
    "Metadata: t->device() != device": "the dispatch keys tell all but GPUs apart",
    "read_torch_state: a.get_fw_grad_mode()": "only native code queries it, which no record "
    "holds; it is compared in one word with bits that are needed",
    "read_torch_state: a.get_inference_mode()": "dispatch keys contain it; compared in one word, "
    "too",
    "is_as_found: Py_TYPE(tensor) == type": "a program that reads the class of a fixed tensor has "
    "a condition of its own on it; the comparison in detail has this one, too",
    **dict.fromkeys(
        (
            "check_dict: !found && PyErr_Occurred()",
            "check_type: !found && PyErr_Occurred()",
            "record_change: PyErr_Occurred()",
        ),
        "exceptions of comparisons, which tests/native raises",
    ),
    "note_block: typeid(*found) == typeid(c10::TensorImpl)": "the subclasses that have no strides "
    "raise, which ends the comparison, and those that have keep them in the block as well",
    "note_block: found->layout() == c10::kStrided": "tensors of other layouts have subclasses",
    "note_block: !found->key_set().has_any(c10::python_ks)": "no record holds a tensor whose class "
    "computes its sizes in Python",
    **{
        name: "before Python 3.13 the dictionary of an instance keeps its values itself"
        for name in mutants.comparisons()
        if "inline" in name and sys.version_info < (3, 13)
    },
    "TorchState: included == o.included": "under a transform or a mode for operators, which "
    "include some, no record is looked up, nor after a split; native code may include others",
}
"""Native comparisons that no program recorded without a GPU needs, and why they stay."""
_first = [(name, after_split) for after_split in (False, True) for name in PROGRAMS]
"""Programs, and whether after a split; those that needed a comparison most recently come first."""


@pytest.mark.full
@pytest.mark.parametrize("comparison", sorted(set(mutants.comparisons()) - NOT_NEEDED.keys()))
def test_each_native_comparison_has_a_program_that_needs_it(comparison):
    for name, after_split in list(_first):
        case = PROGRAMS[name]
        if after_split and not case.after_split:
            continue
        expected, _ = answers(case, compiled=False, after_split=after_split)
        with mutants.disabled(comparison):
            actual, _ = answers(case, compiled=True, after_split=after_split)
        if differ(actual, expected):
            _first.remove((name, after_split))
            _first.insert(0, (name, after_split))
            return
    raise AssertionError("no program needs it")


def test_comparisons_listed_as_unneeded_exist():
    assert NOT_NEEDED.keys() <= set(mutants.comparisons())
