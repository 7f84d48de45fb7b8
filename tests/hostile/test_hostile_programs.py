"""Programs as users of ill will would write them, each compared with eager over many calls."""

import pytest

from tests.hostile import (  # noqa: F401 (enter their programs)
    arguments,
    classes,
    flow,
    in_place,
    libraries,
    objects,
    operators,
    own_methods,
    protocols,
    torch_state,
    ways,
)
from tests.hostile.cases import CASES
from tests.programs import Twins


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_every_call_leaves_what_eager_leaves(name):
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
