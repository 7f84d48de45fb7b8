"""An operator that raises on a matched call leaves what it leaves in eager: all before it, no more.

The guard cannot foresee it: whether an index is in bounds is a matter of what tensors hold.
"""

import logging
import random
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, tensor

TABLE = torch.arange(12.0).reshape(4, 3)


def _inputs(index):
    return lambda: (tensor(1, 2, 3), torch.tensor([0, index]))


def _draws(state, x, i):
    return F.dropout(x, 0.5), TABLE[i], torch.rand(2)


def _draws_with_a_generator(state, x, i):
    return torch.rand(3, generator=state.generator) + F.embedding(i, TABLE)


def _draws_in_python(state, x, i):
    return x * state.random.random() + F.embedding(i, TABLE)


def _changes_an_argument(state, x, i):
    x.mul_(2)
    state.log.append("changed")
    y = TABLE[i] + x
    x.add_(1)
    return y


def _changes_a_buffer(state, x, i):
    state.norm.train()
    y = state.norm(torch.stack([x, x + 1]))
    return TABLE.gather(0, i[:, None]) + y.sum()


def _changes_a_view(state, x, i):
    view = x[1:]
    view.zero_()
    view[0] = 5
    return torch.take(x, i)


def _has_effects_of_python(state, x, i):
    state.log.append(x * 2)
    state.count += 1
    y = TABLE.index_select(0, i)
    state.log.append("behind")
    return y


def _catches(state, x, i):
    x.add_(1)
    try:
        return TABLE[i] * torch.rand(())
    except IndexError as error:
        state.log.append(type(error))
        return x


def _switches_the_grad_mode(state, x, i):
    with torch.no_grad():
        y = TABLE[i]
    return y + x


def _divides(state, x, i):
    x.mul_(3)
    return x.long() // (3 - i[1])


PROGRAMS = [
    _draws, _draws_with_a_generator, _draws_in_python, _changes_an_argument, _changes_a_buffer,
    _changes_a_view, _has_effects_of_python, _catches, _switches_the_grad_mode,
]  # fmt: skip


class State:
    def __init__(self):
        self.log, self.count = [], 0
        self.norm = nn.BatchNorm1d(3)
        self.random = random.Random(1)
        self.generator = torch.Generator()
        self.generator.manual_seed(1)


def _twins(program, **settings):
    def make():
        state = State()
        made = lambda x, i: program(state, x, i)
        made.log, made.norm = state.log, state.norm
        return made, state

    states = []

    def program_of():
        made, state = make()
        states.append(state)
        return made

    return Twins(program_of, **settings), states


def _same_state(eager, compiled):
    assert eager.count == compiled.count
    assert eager.random.getstate() == compiled.random.getstate()
    assert torch.equal(eager.generator.get_state(), compiled.generator.get_state())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magpy"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_exception_and_the_effects_before_it_are_eagers(program, backend):
    twins, states = _twins(program, backend=backend)
    for i, index in enumerate((1, 2, 9, 1, 9, 3)):
        twins.call(_inputs(index), why=f"call {i}")
        _same_state(*states)
        assert torch.is_grad_enabled()
    assert magpy.cache_info(twins.compiled).hits >= 4, "calls that fail run by a record first"


def test_a_division_by_zero_in_a_tensor():
    twins, _ = _twins(_divides)
    for i, divisor in enumerate((1, 2, 3, 1)):
        twins.call(_inputs(divisor), why=f"call {i}")


def _fragile(graph, inputs):
    def run(*args):
        if args[0].sum() > 10:
            raise RuntimeError("a fault of the backend")
        return graph(*args)

    return run


def test_a_graph_that_fails_where_the_program_does_not_is_told_of(caplog):
    fast = magpy.compile(lambda x: x * 2, backend=_fragile)
    fast(tensor(1))
    with caplog.at_level(logging.INFO, "magpy_like.records"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                assert_same(fast(tensor(20)), tensor(40))
    assert "RuntimeError: a fault of the backend" in caplog.text
    (warning,) = caught
    assert "RuntimeError: a fault of the backend" in str(warning.message)
    assert warning.filename == __file__


def test_a_program_that_fails_by_itself_is_no_fault_of_the_graph():
    fast = magpy.compile(lambda i: TABLE[i], backend="eager")
    fast(torch.tensor([1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            with pytest.raises(IndexError):
                fast(torch.tensor([7]))


def test_the_reason_of_a_failure_keeps_no_tensor_alive():
    fast = magpy.compile(lambda x: x * 2, backend=_fragile)
    fast(tensor(1))
    big = tensor(20)
    storage = torch.multiprocessing.reductions.StorageWeakRef(big.untyped_storage())
    fast(big)
    del big
    assert storage.expired()
