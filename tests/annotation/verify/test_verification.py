"""The verifier refutes wrong annotations and accepts correct ones."""

from pathlib import Path

import click.testing
import pytest
import torch

from magpy_like.annotation.annotation_command import annotations
from magpy_like.annotation.lookup import Table
from magpy_like.annotation.verify import Result, verification, verify
from magpy_like.annotation.verify.snapshot import freeze
from tests.annotation.verify import planted

WRONG = {
    "pure, but every call returns another result": (
        "{names: [counts], kinds: [function], pure_closure: true}",
        "pure_closure",
    ),
    "pure, but depends on the process": (
        "{names: [working_directory], pure_closure: true}",
        "pure_closure",
    ),
    "pure, but draws random numbers": (
        "{names: [draws], pure_closure: true}",
        "pure_closure",
    ),
    "pure by value, but returns an identity": (
        "{names: [identity], pure_closure: true}",
        "pure_closure",
    ),
    "not in place, but appends": (
        "{names: [appends], pure_closure: true, inputs: {0: ALL, 1: NONE}}",
        "not in_place",
    ),
    "not in place, but mutates a tensor": (
        "{names: [doubles_in_place], as_op_node: true}",
        "not in_place",
    ),
    "reads nothing, but returns the value": (
        "{names: [looks_at], pure_closure: true, inputs: {0: TYPE}}",
        "value_read[0]: TYPE",
    ),
    "reads the length, but returns the elements": (
        "{names: [looks_at], pure_closure: true, inputs: {0: LENGTH}}",
        "value_read[0]: LENGTH",
    ),
    "reads the type, but returns the length": (
        "{names: [length], pure_closure: true, inputs: {0: TYPE}}",
        "value_read[0]: TYPE",
    ),
    "reads the elements, but returns their contents": (
        "{names: [copy_of_first], pure_closure: true, inputs: {0: ELEMENTS}}",
        "value_read[0]: ELEMENTS",
    ),
    "returns its input, but returns an element": (
        "{names: [first], pure_closure: true, output: {relation: {kind: SELF, of: 0}}}",
        "relation: SELF",
    ),
    "returns an element, but returns a copy": (
        "{names: [copy_of_first], pure_closure: true, output: {relation: {kind: ELEMENT, of: 0}}}",
        "relation: ELEMENT",
    ),
    "looks up a key with the wrong default": (
        "{names: [lookup], pure_closure: true, inputs: {0: TYPE, 2: NONE},"
        " output: {relation: {kind: KEY, of: 0, key: 1, default: 1}}}",
        "relation: KEY",
    ),
    "writes another attribute": (
        "{names: [store], pure_closure: true, inputs: {0: TYPE in_place, 2: NONE},"
        " output: {relation: {kind: ATTRIBUTE, of: 0, key: 1, value: 1, access: write}}}",
        "relation: ATTRIBUTE",
    ),
    "an operator, but reads a tensor into Python": (
        "{names: [largest], as_op_node: true}",
        "shape_from_data",
    ),
    "an operator of known shape, but a mask determines it": (
        "{names: [positive], as_op_node: true}",
        "shape_from_data",
    ),
    "metadata, but reads the data": (
        "{names: [largest], pure_closure: true, inputs: {0: TYPE}}",
        "value_read[0]: TYPE",
    ),
}
CORRECT = {
    "appends": "{names: [appends], pure_closure: true, inputs: {0: TYPE in_place, 1: NONE}}",
    "looks_at": "{names: [looks_at], pure_closure: true}",
    "length": "{names: [length], pure_closure: true, inputs: {0: LENGTH}}",
    "keys": "{names: [keys], pure_closure: true, inputs: {0: KEYS}}",
    "first": "{names: [first], pure_closure: true, inputs: {0: ELEMENTS},"
    " output: {relation: {kind: ELEMENT, of: 0}}}",
    "identity": "{names: [identity], pure_closure: true, inputs: {0: IDENTITY}}",
    "lookup": "{names: [lookup], pure_closure: true, inputs: {0: TYPE, 2: NONE},"
    " output: {relation: {kind: KEY, of: 0, key: 1, default: 2}}}",
    "store": "{names: [store], pure_closure: true, inputs: {0: TYPE in_place, 2: NONE},"
    " output: {relation: {kind: ATTRIBUTE, of: 0, key: 1, value: 2, access: write}}}",
    "working_directory": "{names: [working_directory], pure_closure: true, state_read: true,"
    " inputs: {0: NONE}}",
    "doubles": "{names: [doubles], as_op_node: true}",
    "doubles_in_place": "{names: [doubles_in_place], as_op_node: true,"
    " inputs: {0: ALL in_place}, output: {relation: {kind: SELF, of: 0}}}",
    "positive": "{names: [positive], as_op_node: true, output: {shape_from_data: ALWAYS}}",
}
SAMPLES = """
operations:
  {name}.appends: ["[1], Marker()"]
  {name}.looks_at: ["[1, 2]"]
  {name}.length: ["[Marker(), Marker()]"]
  {name}.keys: ["dict(a=1)"]
  {name}.first: ["[[1], [2]]", "(Marker(),)"]
  {name}.copy_of_first: ["[[1], [2]]"]
  {name}.lookup: ["dict(a=Marker()), 'a', Marker()", "dict(), 'a', Marker()"]
  {name}.store: ["Cell(a=1), 'a', Marker()"]
  {name}.doubles: ["tensor(2, 3)"]
  {name}.doubles_in_place: ["tensor(2, 3)"]
  {name}.largest: ["tensor(2, 3)"]
  {name}.positive: ["tensor(2, 3)"]
"""


@pytest.fixture
def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that verifies one rule about a planted operation."""
    monkeypatch.setattr(verification.Samples, "prepare", lambda self: None)
    directory = tmp_path / "samples"
    directory.mkdir()
    (directory / "planted.yaml").write_text(SAMPLES.format(name=planted.__name__))
    monkeypatch.setattr("magpy_like.annotation.verify.samples.annotations_dir", lambda: tmp_path)

    def run(rule: str, isolated: bool = False) -> Result:
        (tmp_path / "planted.yaml").write_text(
            f"operations:\n  - namespace: {planted.__name__}\n    rules:\n      - {rule}\n"
        )
        table = Table()
        table.load_directory(tmp_path)
        (result,) = verify(table, isolated=isolated).results
        return result

    return run


@pytest.mark.parametrize("case", WRONG)
def test_wrong_annotation_is_refuted(case: str, verdicts) -> None:
    rule, claim = WRONG[case]
    assert claim in [verdict.claim for verdict in verdicts(rule).refuted]


@pytest.mark.parametrize("name", CORRECT)
def test_correct_annotation_is_accepted(name: str, verdicts) -> None:
    result = verdicts(CORRECT[name])
    assert result.refuted == []
    assert all(verdict.ok for verdict in result.verdicts)


def test_declared_mutation_that_never_happens_is_a_warning(verdicts) -> None:
    result = verdicts("{names: [looks_at], pure_closure: true, inputs: {0: ALL in_place}}")
    assert result.refuted == []
    assert [v.claim for v in result.verdicts if v.warning] == ["in_place[0]"]


def test_operation_that_ends_its_process_is_reported(verdicts) -> None:
    result = verdicts("{names: [ends_the_process], pure_closure: true}", isolated=True)
    assert result.problem == "it ended its process"
    assert [verdict.ok for verdict in result.verdicts] == [None]


def test_operation_that_never_returns_is_reported(
    verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SECONDS_FOR_ONE", 1)
    result = verdicts("{names: [never_returns], pure_closure: true}", isolated=True)
    assert result.problem == "it took more than 1 s"


def test_compared_tensor_can_be_resized() -> None:
    tensor = torch.zeros(1, dtype=torch.int64)
    freeze(tensor)
    assert tensor.resize_(5, 10).untyped_storage().nbytes() == 400


def test_all_claims_are_counted(verdicts) -> None:
    result = verdicts("{names: [store], pure_closure: true, inputs: {0: ALL, 1: ALL, 5: ALL}}")
    assert result.samples > 0
    assert verification.Report([result]).claims == len(result.verdicts)


@pytest.mark.parametrize("pattern", ["builtins.list.*", "builtins.dict.*", "operator.*"])
def test_some_shipped_annotations_hold(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification.Samples, "prepare", lambda self: None)
    answer = click.testing.CliRunner().invoke(annotations, ["check", "--only", pattern])
    assert answer.exit_code == 0, answer.output
    assert " 0 refuted" in answer.output


@pytest.mark.full
def test_all_shipped_annotations_hold() -> None:
    answer = click.testing.CliRunner().invoke(annotations, ["check"])
    assert answer.exit_code == 0, answer.output
    assert "takes minutes" in answer.output


def test_command_fails_if_a_claim_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "user.yaml"
    path.write_text(
        f"operations:\n  - namespace: {planted.__name__}\n    rules:\n"
        "      - {names: [counts], pure_closure: true}\n"
    )
    answer = click.testing.CliRunner().invoke(
        annotations, ["check", "--only", f"{planted.__name__}.*", str(path)]
    )
    assert answer.exit_code == 1
    assert f"{path}:4: {planted.__name__}.counts: pure_closure" in answer.output


def test_command_reports_the_line_of_an_error(tmp_path: Path) -> None:
    path = tmp_path / "user.yaml"
    path.write_text("operations:\n  - namespace: math\n    rules:\n      - {names: [no_such]}\n")
    answer = click.testing.CliRunner().invoke(annotations, ["check", str(path)])
    assert answer.exit_code == 1
    assert f"{path}:4: no_such: unknown function" in answer.output


SIMILAR = {
    "math.sinn": "'math.sin'",
    "torch.relu": "'torch._C._VariableFunctionsClass.relu'",
    "maths.*": "'math.*'",
    "rellu": "'relu'",
}


@pytest.mark.parametrize("name", SIMILAR)
def test_command_lists_similar_names_where_no_operation_has_the_name(name: str) -> None:
    answer = click.testing.CliRunner().invoke(annotations, ["check", "--only", name])
    assert answer.exit_code == 2
    assert f"no operation is named {name!r}; similar are " in answer.output
    assert SIMILAR[name] in answer.output


def test_command_without_a_similar_name_says_so() -> None:
    answer = click.testing.CliRunner().invoke(annotations, ["check", "--only", "Xyzzyx"])
    assert answer.exit_code == 2
    assert answer.output.endswith("no operation is named 'Xyzzyx'\n")


def test_command_without_a_file_says_what_it_verifies() -> None:
    answer = click.testing.CliRunner().invoke(annotations, ["check", "--only", "math.sin"])
    assert answer.exit_code == 0
    assert "no file is given: verifies the annotations of magpy_like\n" in answer.stderr
    assert answer.stdout.startswith("1 operations")
