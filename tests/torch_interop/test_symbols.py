"""Shape environments are freed after use, and torch's tables stay bounded."""

import gc
import weakref

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from magpy_like import torch_patches
from magpy_like.torch_compat.tracing.fake_tensors import FakeTensorMode
from magpy_like.torch_compat.tracing.symbolic_expressions import SIZE_RELATIONS
from magpy_like.torch_interop.symbols import ShapeEnvironment
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK


def use(environment, size):
    """Guards, hints and operators of symbolic sizes."""
    mode = FakeTensorMode(shape_env=environment)
    x = mode.from_tensor(torch.ones(size, 3))
    length = x.shape[0]
    torch._check(length > 1)
    torch._check(length * 3 < 90)
    assert length + 2 == size + 2
    with mode:
        return (x * 2).sum(0)


@pytest.mark.parametrize("unbacked", [False, True])
def test_environments_are_freed_after_use(unbacked):
    alive = []
    for size in (5, 6, 7, 8):
        environment = ShapeEnvironment()
        use(environment, size)
        if unbacked:
            torch._check(environment.create_unbacked_symint() >= 0)
        alive.append(weakref.ref(environment))
        del environment
    use(ShapeEnv(), 9)  # torch's tables keep the last one
    gc.collect()
    assert [ref() for ref in alive] == [None] * 4


def test_environments_answer_the_same_question_by_their_own_hints():
    for size in (5, 6):
        environment = ShapeEnvironment()
        use(environment, size)
        [symbol] = [s for s, hint in environment.backed_var_to_val.items() if hint == size]
        hint = getattr(environment, "guarding_hint_or_throw", environment.size_hint)
        assert hint(symbol) == size


def test_tables_of_torch_are_emptied_before_they_grow_large(monkeypatch):
    monkeypatch.setattr(torch_patches, "MAX_TABLE_ENTRIES", 4)
    with FakeTensorMode():
        for number in range(5):
            torch.ones(2) * number
    SIZE_RELATIONS.cache_clear()
    for size in range(5, 11):
        use(ShapeEnv(), size)
    assert len(FakeTensorMode.cache) > 4
    assert SIZE_RELATIONS.cache_info().currsize > 4
    with TRACING_LOCK:
        pass
    assert len(FakeTensorMode.cache) == SIZE_RELATIONS.cache_info().currsize == 0
