"""TorchScript functions: followed if they only compute and no tensor decides their control flow."""

import functools
from typing import List, Optional

import pytest
import torch
import torch.nn.functional as F

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.programs import Twins, matrix


@torch.jit.script
def swish(x, beta: float = 1.0):
    return x.mul((x * beta).sigmoid())


@torch.jit.script
def mish(x):
    return x * torch.tanh(F.softplus(x)), x.view(x.size(0), -1)


def _traced(x):
    return x * 2 + torch.ones(3)


traced = torch.jit.trace(_traced, torch.zeros(3))


@torch.jit.script
def padded(x, multiple: int):
    assert x.dim() == 2, "two dimensions"
    size = x.size(0) * x.size(1)
    extra = (multiple - size % multiple) % multiple
    if extra > 0:
        return F.pad(x.reshape(-1), [0, extra])
    return x.reshape(-1)


@torch.jit.script
def rows_and_more(x, shift: Optional[torch.Tensor] = None):
    total = torch.zeros(x.size(0), dtype=x.dtype, device=x.device)
    for i in range(x.size(1)):
        total = total + x[:, i]
    while total.dim() < 3:
        total = total.unsqueeze(0)
    if shift is not None:
        total = total + shift
    sizes: List[int] = x.size()[:1] + [max(x.size(1), 2), -1]
    return total, torch.tensor(min(x.size(0), 7)), x.repeat(1, 2).view(sizes)


@torch.jit.script
def promoted(x):
    if x.dtype == torch.float16 or not x.is_floating_point():
        x = x.to(torch.float32)
    return x * x.size(-1) ** -0.5


@torch.jit.script
def halved(x, n: int):
    if n % 2 == 1:
        return x
    return x / 2


@torch.jit.script
def joined(parts: List[torch.Tensor], shape: List[int]):
    return torch.cat(parts + parts).view(shape + [1])


@torch.jit.script
def hashed(x, n: int):
    return x * ((n * 2654435761) % 1000003)


@torch.jit.script
def divided(x, n: float):
    return x * (1.0 / n)


@torch.jit.script
def first_of(items: List[float]):
    return torch.tensor(items[0])


@torch.jit.script
def returned_lists(items: List[List[int]]):
    return items


@torch.jit.script
def whole(x, n: float):
    return x * 2, int(n)


@torch.jit.script
def branches(x):
    if bool(x.sum() > 0):
        return x + 1
    return x - 1


@torch.jit.script
def changes(x):
    x.add_(1)
    return x * 2


@torch.jit.script
def draws(x):
    return x + torch.rand_like(x)


@torch.jit.script
def picks(x):
    return x[x > 0]


@torch.jit.script
def counts(x):
    return x * 2, int(x.sum())


@torch.jit.script
def odd_names(x, max: int, _inplace: bool = False, *, len: float):
    return x[: min(max, x.size(0))] * len if _inplace else x + max + len


@torch.jit.script
def prints(x):
    print(x.dim())
    return x * 2


OPERATORS = {
    "script": lambda x: swish(x) + 1,
    "arguments": lambda x: (swish(x, beta=2.0), swish(x, 3)),
    "list of tensors": lambda x: (joined((x, x + 1), (2, -1)), joined([x], [-1])),
    "two results, one a view": lambda x: mish(x),
    "traced": lambda x: traced(x),
    "branches on sizes": lambda x: (padded(x, 4), padded(x, 3)),
    "loops": lambda x: (rows_and_more(x), rows_and_more(x, shift=x.sum())),
    "branches on types": lambda x: (promoted(x), promoted(x.int())),
    "arguments of any names": lambda x: (odd_names(x, 1, len=3.0), odd_names(x, 1, True, len=2)),
    "its argument": lambda x: (halved(x, 1) is x, halved(x, 2), halved(x + 1, 3)),
    "partial": lambda x: functools.partial(padded, multiple=5)(x),
}
SPLITTING = {
    "branches": lambda x: branches(x),
    "changes": lambda x: changes(x),
    "draws": lambda x: draws(x),
    "picks": lambda x: picks(x).shape[0] * x,
    "counts": lambda x: x * counts(x)[1],
    "prints": lambda x: prints(x),
}


def inputs():
    return (matrix(2, 3, grad=True),)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("name", OPERATORS)
def test_script_functions_are_captured(name, backend):
    twins = Twins(lambda: OPERATORS[name], backend=backend, fullgraph=True)
    twins.call(inputs, hit=False, backward=True)
    twins.call(inputs, hit=True, backward=True)


def test_one_record_serves_all_sizes():
    twins = Twins(lambda: lambda x: mish(x)[1].shape[0] * swish(x), dynamic=True)
    for rows in (2, 3, 5, 7):
        twins.call(lambda rows=rows: (matrix(rows, 4),))


SIZED = {
    "branches": lambda x: padded(x, 4) * 2,
    "bounds": lambda x: x[: rows_and_more(x[:, :2])[1] - 1] + 1,
    "types": lambda x: promoted(x.t()),
}


@pytest.mark.parametrize("name", SIZED)
def test_branches_on_sizes_are_guarded(name):
    twins = Twins(lambda: SIZED[name], fullgraph=True)
    for rows in (4, 6, 5, 9, 12, 3, 8, 16, 7, 10):
        twins.call(lambda rows=rows: (matrix(rows, 3),))
    assert magpy.cache_info(twins.compiled).misses <= 4


def test_branches_on_numbers_are_guarded():
    # Torch's test utilities replace __call__ of script functions, so a lambda is compiled instead.
    twins = Twins(lambda: lambda x, n: halved(x, n), fullgraph=True)
    for n in (1, 2, 3, 4, 5, 6, 8):
        twins.call(lambda n=n: (matrix(), n))


def test_numbers_wrap_and_divide_as_in_torchscript():
    twins = Twins(lambda: lambda x, n: hashed(x, n))
    for n in (1, 2, 3, 10**9, 10**12, 4, 10**15, 9 * 10**18, 5, 10**10):
        twins.call(lambda n=n: (matrix(), n))
    twins = Twins(lambda: lambda x, n: divided(x, n))
    for n in (1.0, 0.5, 4.0, 0.0, 2.0, -0.0, 3.0, 5, True):
        twins.call(lambda n=n: (matrix(), n))


def test_lists_are_copied_and_converted_to_declared_types():
    twins = Twins(lambda: lambda x, n: (x, first_of([n, 2]), returned_lists([[1], (2,)])))
    for n in (1, 2.5, 3, 4, 1.5, 2.0):
        twins.call(lambda n=n: (matrix(), n))
    twins = Twins(lambda: lambda x, items: (x, returned_lists(items)[0] is items[0], items))
    for n in (1, 2, 3):
        twins.call(lambda n=n: (matrix(), [[n]]))


def test_floats_are_converted_to_64_bit_integers():
    twins = Twins(lambda: lambda x, n: whole(x, n))
    for n in (1.5, 2.5, 1e30, -1e30, 3.5):
        twins.call(lambda n=n: (matrix(), n))


def test_exceptions_are_those_of_torchscript():
    def caught(x):
        try:
            return padded(x[0] if x.sum() > 100 else x, 2)
        except RuntimeError as error:
            return str(error), error.__context__

    for program in (lambda x: padded(x, 4), caught):
        twins = Twins(lambda: program)
        for shape in ((3,), (3,), (3,), (3, 3), (3, 3), (3,), (2, 3), (2, 2, 2)):
            twins.call(lambda shape=shape: (torch.ones(shape),))
        twins.call(lambda: (torch.ones(2, 3),), hit=True)
        twins.call(lambda: (torch.full((2, 3), 100.0),))


INVALID_CALLS = [
    lambda x: swish(x, 2.0, 3.0), lambda x: swish(x, x=x), lambda x: swish(),
    lambda x: swish(x, "b"),
    lambda x: swish(x, None), lambda x: halved(x, 2.0), lambda x: halved(x, n=True),
]  # fmt: skip


@pytest.mark.parametrize("program", INVALID_CALLS)
def test_invalid_arguments_raise_as_in_eager(program):
    twins = Twins(lambda: program)
    for _ in range(3):
        twins.call(inputs)


def test_default_device_has_no_effect():
    fast = magpy.compile(lambda x: rows_and_more(x)[1], backend="eager")
    with torch.device("meta"):
        for _ in range(3):
            assert fast(torch.ones(2, 3, device="cpu")).device.type == "cpu"


def test_replaced_script_function_misses():
    functions = [swish]
    fast = magpy.compile(lambda x: functions[0](x), backend="eager")
    x = matrix()
    assert torch.equal(fast(x), swish(x))
    functions[0] = traced
    assert torch.equal(fast(x), traced(x))


@pytest.mark.parametrize("name", SPLITTING)
def test_functions_that_do_more_than_compute_run_natively(name):
    def make():
        return SPLITTING[name]

    def plain():
        return (matrix(),)

    twins = Twins(make)
    for _ in range(3):
        twins.call(plain)
    twins.call(lambda: (-matrix(),))
    report = magpy.explain(SPLITTING[name], matrix())
    assert any(point.reason is SplitReason.TORCHSCRIPT for point in report.split_points)
