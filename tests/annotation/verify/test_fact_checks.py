"""Facts of operators hold on samples, wrong facts are refuted, malformed files are rejected."""

from types import SimpleNamespace

import pytest
import torch

from magpy_like.annotation import operator_facts as module
from magpy_like.annotation.operator_facts import (
    Narrows,
    OperatorFacts,
    Raises,
    Results,
    operator_facts,
    read_entries,
)
from magpy_like.annotation.verify import fact_checks
from magpy_like.annotation.verify.fact_checks import verify_facts
from magpy_like.errors import AnnotationError


def test_shipped_facts_hold_on_the_samples_of_the_opinfo_database():
    results = list(verify_facts())
    assert [r.operation for r in results if r.problem == "it ended its process"] == []
    verdicts = [(r.operation, v) for r in results for v in r.verdicts]
    assert [(name, v.claim, v.detail) for name, v in verdicts if v.ok is False] == []
    held = [v.claim for _, v in verdicts if v.ok]
    assert held.count("raises") > 350 and held.count("repeatable") > 550
    for claim in ("float_scalars", "shape_from_numbers", "results", "saves_result", "new_memory"):
        assert claim in held, claim
    assert {"shares_memory", "narrows", "reads_sizes"} <= {*held}


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("gather", {"raises": Raises.NEVER}),
        ("repeat_interleave", {"shape_from_numbers": False}),
        ("unbind", {"results": Results.FIXED}),
        ("exp", {"saves_result": False}),
        ("t", {"new_memory": True}),
        ("bernoulli", {"repeatable": True}),
        ("unsafe_chunk", {"shares_memory": False}),
        ("half", {"narrows": Narrows.NONE}),
        ("numel", {"reads_sizes": False}),
    ],
)
def test_wrong_fact_is_refuted(name, wrong, monkeypatch):
    def planted(requested):
        return OperatorFacts(**wrong) if requested == name else operator_facts(requested)

    monkeypatch.setattr(fact_checks, "operator_facts", planted)
    monkeypatch.setattr(fact_checks, "_named", lambda entries: {name})
    (result,) = verify_facts(lambda each: each == name)
    assert [v.claim for v in result.refuted] == [*wrong]


def test_larger_inputs_fit_the_other_tensors():
    """native_batch_norm does not check sizes: it writes a mean for each channel of its input."""
    memory = torch.zeros(4)
    args = (None, None, memory[:2], torch.ones(2), True, 0.5, 1e-5)
    sample = SimpleNamespace(input=torch.ones(3, 2, 5), args=args, kwargs={})
    variant = fact_checks._Variant(None, torch.native_batch_norm)
    facts = OperatorFacts(results=Results.FIXED)
    assert fact_checks._result_count(facts, variant, sample) is None
    assert memory.tolist()[2:] == [0, 0]


def test_facts_hold_for_all_variants_of_an_operator():
    assert operator_facts("add_") == operator_facts("__add__") == operator_facts("add")
    assert operator_facts("add").raises is Raises.NEVER
    assert operator_facts("no_such_operator") == OperatorFacts()


def test_properties_of_matching_entries_are_combined():
    assert not operator_facts("dropout").repeatable  # by a pattern
    assert operator_facts("dropout").raises is Raises.NEVER  # by its name


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("operators:\n  - names: [add]\n    rises: NEVER\n", 2, "unknown property"),
        ("operators:\n  - names: [add]\n    raises: SELDOM\n", 2, "expected one of"),
        ("operators:\n  - names: [add]\n    factory: 1\n", 2, "true or false"),
        ("operators:\n  - names: add\n", 2, "list of names"),
    ],
)
def test_malformed_entry_is_rejected_with_file_and_line(text, line, message, tmp_path):
    file = tmp_path / module.FILE
    file.write_text(text)
    with pytest.raises(AnnotationError, match=message) as caught:
        read_entries(file)
    assert caught.value.file == str(file) and caught.value.line == line
