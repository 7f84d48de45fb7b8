"""Adversarial programs, each compared with eager over many calls and changes of state."""

import pytest

from tests.hostile import (  # noqa: F401 (register their programs)
    access_paths,
    arguments,
    classes,
    flow,
    libraries,
    objects,
    operators,
    protocols,
    special_methods,
    tensors,
    torch_state,
)
from tests.hostile.cases import CASES
from tests.programs import Twins


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_every_call_equals_eager(name):
    case = CASES[name]
    twins = Twins(case.make)
    for i, inputs in enumerate(case.inputs):
        twins.call(inputs, why=f"call {i}", backward=case.backward)
    for i, change in enumerate(case.changes):
        twins.change(change)
        for j, inputs in enumerate(case.inputs[:2]):
            twins.call(inputs, why=f"change {i}, call {j}", backward=case.backward)
    for i, inputs in enumerate(case.inputs):
        twins.call(inputs, why=f"call {i} after all changes", backward=case.backward)
