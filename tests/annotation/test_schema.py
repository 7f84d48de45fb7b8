"""Invalid annotation files are rejected with file name, line and key."""

from pathlib import Path

import pytest

from magpy_like.annotation.lookup import Table, annotate
from magpy_like.errors import AnnotationError, MagpyError


def load(path: Path, rule: str) -> None:
    path.write_text(f"operations:\n  - namespace: math\n    rules:\n{rule}")
    table = Table()
    table.load_directory(path.parent)


INVALID = {
    "unknown property": ("      - {names: [sin], pure: true}\n", 4, "pure"),
    "wrong type of a flag": ("      - names: [sin]\n        pure_closure: 1\n", 5, "pure_closure"),
    "wrong type of inputs": ("      - {names: [sin], inputs: [1]}\n", 4, "inputs"),
    "unknown value_read": (
        "      - names: [sin]\n        inputs:\n          0: EVERYTHING\n",
        6,
        "inputs.0",
    ),
    "unknown property of an input": (
        "      - names: [sin]\n        inputs:\n          0:\n            reads: ALL\n",
        7,
        "inputs.0.reads",
    ),
    "unknown relation": (
        "      - names: [sin]\n        output:\n          relation: {kind: COUSIN}\n",
        6,
        "output.relation.kind",
    ),
    "negative position": (
        "      - {names: [sin], calls: [0], inputs: {a b: X}}\n",
        4,
        "inputs.a b",
    ),
    "unknown function": (
        "      - names: [cos,\n          no_such]\n        pure_closure: true\n",
        5,
        "no_such",
    ),
    "operator that is not pure": (
        "      - names: [sin]\n        pure_closure: false\n        as_op_node: true\n",
        6,
        "as_op_node",
    ),
    "random but pure": ("      - {names: [sin], random: true, pure_closure: true}\n", 4, "random"),
    "global state that is no node": (
        "      - {names: [sin], global_state: true}\n",
        4,
        "global_state",
    ),
    "state read that is not pure": (
        "      - {names: [sin], state_read: true, pure_closure: false}\n",
        4,
        "state_read",
    ),
    "written relation on an unchanged input": (
        "      - {names: [sin], pure_closure: true,"
        " output: {relation: {kind: ITEM, access: write}}}\n",
        4,
        "output.relation.access",
    ),
    "reason without need": (
        "      - {names: [sin], pure_closure: true, reason: IO}\n",
        4,
        "reason",
    ),
    "unknown reason": (
        "      - {names: [sin], pure_closure: false, reason: why}\n",
        4,
        "reason",
    ),
    "detail without reason": (
        "      - {names: [sin], pure_closure: false, detail: waits}\n",
        4,
        "detail",
    ),
    "duplicate name": ("      - {names: [sin]}\n      - {names: [sin]}\n", 5, "sin"),
    "duplicate key": ("      - names: [sin]\n        reason: a\n        reason: b\n", 6, "reason"),
    "unknown set": ("      - {names: [sin], is: nothing}\n", 4, "is"),
    "unknown kind": ("      - {names: ['*'], kinds: [verb]}\n", 4, "kinds"),
    "no names": ("      - {pure_closure: true}\n", 4, "names"),
    "no mapping": ("      - sin\n", 4, "rules"),
    "no YAML": ("      - {names: [sin\n", 5, "file"),
}


@pytest.mark.parametrize("case", INVALID)
def test_error_names_file_line_and_key(case: str, tmp_path: Path) -> None:
    rule, line, key = INVALID[case]
    path = tmp_path / "bad.yaml"
    with pytest.raises(AnnotationError) as caught:
        load(path, rule)
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), line, key)
    assert str(caught.value).startswith(f"{path}:{line}: {key}: ")
    assert isinstance(caught.value, MagpyError)


NEAR = {
    "property": ("      - {names: [sin], pure_closur: true}\n", "'pure_closure'"),
    "kind of a relation": (
        "      - {names: [sin], pure_closure: true, output: {relation: ARGUMENTS}}\n",
        "'ARGUMENT'",
    ),
    "property of a relation": (
        "      - {names: [sin], pure_closure: true, output: {relation: {kind: ITEM, off: 1}}}\n",
        "'of'",
    ),
    "property of an output": (
        "      - {names: [sin], pure_closure: true, output: {in_plac: true}}\n",
        "'in_place'",
    ),
    "property of an input": (
        "      - {names: [sin], pure_closure: true, inputs: {0: {value_rea: ALL}}}\n",
        "'value_read'",
    ),
    "value_read": (
        "      - {names: [sin], pure_closure: true, inputs: {0: ELEMENT}}\n",
        "'ELEMENTS'",
    ),
    "shape": (
        "      - {names: [sin], as_op_node: true, output: {shape_from_data: ALWAYSS}}\n",
        "'ALWAYS'",
    ),
    "reason": (
        "      - {names: [sin], pure_closure: false, reason: WEAK_REFERENC}\n",
        "'WEAK_REFERENCE'",
    ),
    "kind": ("      - {names: ['*'], kinds: [clas]}\n", "'class'"),
    "function": ("      - {names: [sinn], pure_closure: true}\n", "'sin'"),
}


@pytest.mark.parametrize("case", NEAR)
def test_error_names_what_exists_and_is_closest(case: str, tmp_path: Path) -> None:
    rule, closest = NEAR[case]
    with pytest.raises(AnnotationError) as caught:
        load(tmp_path / "bad.yaml", rule)
    assert str(caught.value).endswith(f" (did you mean {closest}?)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("operation: []\n", "did you mean 'operations'"),
        ("sets: {quiet: {pure_closure: true}}\noperations:\n  - namespace: math\n"
         "    rules: [{names: [sin], is: quite}]\n", "known are quiet (did you mean 'quiet'?)"),
        ("operations:\n  - namespace: math\n    rules: [{names: [sin], is: quite}]\n",
         "known are none"),
    ],
)  # fmt: skip
def test_error_of_a_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(AnnotationError) as caught:
        Table().load_directory(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ("torch.functionl", "no such namespace (did you mean 'torch.functional'?)"),
        ("torch.functionl.deeper", "no such namespace (did you mean 'torch.functional'?)"),
        ("mth", "no module mth is imported (did you mean 'math'?)"),
    ],
)
def test_error_names_the_closest_namespace(namespace: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    rules = "[{names: [a], pure_closure: true}]"
    path.write_text(f"operations:\n  - namespace: {namespace}\n    rules: {rules}\n")
    with pytest.raises(AnnotationError) as caught:
        Table().load(path)
    assert message in str(caught.value)


def test_contradicting_rules_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "operations:\n"
        "  - namespace: operator\n    rules: [{names: [abs], pure_closure: true}]\n"
        "  - namespace: _operator\n    rules: [{names: [abs], pure_closure: false}]\n"
    )
    with pytest.raises(AnnotationError, match=r"also annotated at .*bad.yaml:3"):
        Table().load_directory(tmp_path)


def test_unknown_namespace_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("operations:\n  - namespace: math.nowhere\n    rules: [{names: [a]}]\n")
    with pytest.raises(AnnotationError, match="no such namespace"):
        Table().load_directory(tmp_path)


def test_lenient_table_skips_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "operations:\n  - namespace: math\n"
        "    rules: [{names: [no_such, sin], pure_closure: true}]\n"
    )
    import math

    table = Table(strict=False)
    table.load_directory(tmp_path)
    assert table.lookup(math.sin).pure_closure


def test_annotate_rejects_what_files_may_not_contain() -> None:
    def function() -> None: ...

    with pytest.raises(AnnotationError) as caught:
        annotate(function, as_op_node=True, pure_closure=False)
    assert caught.value.key == "as_op_node"
    assert caught.value.file == __file__
    with pytest.raises(AnnotationError) as caught:
        annotate(function, pure_closure="yes")
    assert caught.value.key == "pure_closure"
    with pytest.raises(AnnotationError):
        annotate(function, purity=True)
    with pytest.raises(AnnotationError, match="expected a function"):
        annotate(3, pure_closure=True)
