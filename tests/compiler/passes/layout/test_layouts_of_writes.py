"""A tensor that an operator writes to keeps its strides."""

import operator

import pytest
import torch
from torch import fx

import magpy_like as magpy
from magpy_like.compiler.passes.layout.layouts_of_writes import keep_layouts_of_writes
from tests.compiler.programs import same_gradients, seeded
from tests.programs import Twins

ROWS, MASK = torch.tensor([[0, 1, 2]]), seeded(4, 3, seed=2) > 0
WRITES = {
    "addmm": lambda z: z.addmm_(z.clone(), torch.eye(3)),
    "cumprod": lambda z: z.cumprod_(0),
    "cumsum": lambda z: z.cumsum_(1),
    "index_add": lambda z: z.index_add_(0, torch.tensor([1]), torch.ones(1, 3)),
    "index_copy": lambda z: z.index_copy_(0, torch.tensor([1]), torch.ones(1, 3)),
    "index_reduce": lambda z: z.index_reduce_(0, torch.tensor([1]), torch.ones(1, 3), "amax"),
    "masked_fill": lambda z: z.masked_fill_(MASK, 2.0),
    "masked_fill of a view": lambda z: z[1:].masked_fill_(MASK[1:], 2.0),
    "masked_scatter": lambda z: z.masked_scatter_(MASK, torch.arange(12.0)),
    "put": lambda z: z.put_(torch.tensor([3]), torch.tensor([5.0])),
    "renorm": lambda z: z.renorm_(2, 0, 0.5),
    "scatter": lambda z: z.scatter_(0, ROWS, 2.0),
    "scatter_add": lambda z: z.scatter_add_(0, ROWS, torch.ones(1, 3)),
    "scatter_reduce": lambda z: z.scatter_reduce_(0, ROWS, torch.ones(1, 3), "amax"),
    "tril": lambda z: z.tril_(),
    "triu": lambda z: z.triu_(1),
    "add": lambda z: z.add_(torch.ones(4, 3)),
    "out of add": lambda z: torch.add(torch.ones(4, 3), 1, out=z),
    "out of mm": lambda z: torch.mm(torch.ones(4, 3), torch.eye(3), out=z),
    "an entry": lambda z: z.__setitem__(MASK, 1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_written_tensor_keeps_its_strides(write):
    def program(x):
        z = x.t().contiguous().t()
        write(z)
        return z, z.sin()

    twins = Twins(lambda: program, backend="magpy")
    for _ in range(3):
        twins.call(lambda: (seeded(4, 3),))


def written_out(write):
    """Writes the result of an operator on integers to a tensor of this type and layout."""

    def program(dtype, is_transposed, x):
        out = (
            torch.zeros(3, 4, dtype=dtype).t() if is_transposed else torch.zeros(4, 3, dtype=dtype)
        )
        write(x, out)
        return out, out.as_strided((5,), (1,)) + 0

    return program


OUT = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "cat": lambda x, out: torch.cat([x[:1], x[1:]], out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "gt": lambda x, out: torch.gt(x, 0, out=out),
    "into a view": lambda x, out: torch.mul(x, 2, out=out[:, :]),
    "max": lambda x, out: torch.max(x[None].to(out.dtype), 0, out=(out, torch.zeros_like(x))),
    "sort": lambda x, out: torch.sort(x.to(out.dtype), 0, out=(out, torch.zeros_like(x))),
    "sum": lambda x, out: torch.sum(x[None], 0, out=out),
}


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
@pytest.mark.parametrize("write", OUT.values(), ids=list(OUT))
def test_out_keeps_its_strides_whatever_its_type(write, dtype, is_transposed):
    program = written_out(write)
    twins = Twins(lambda: program, backend="magpy")
    for _ in range(2):
        twins.call(lambda: (dtype, is_transposed, torch.arange(12).view(3, 4).t() - 4))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_out_argument_of_another_type_is_written_in_its_layout(is_transposed):
    def program(x, out):
        torch.gt(x, 0, out=out)
        return out.as_strided((5,), (1,)) + 0

    twins = Twins(lambda: program, backend="magpy")
    for _ in range(2):
        out = torch.zeros(3, 4).t() if is_transposed else torch.zeros(4, 3)
        twins.call(lambda out=out: (seeded(3, 4).t(), out.clone()))


def filled(x):
    return torch.empty_strided(x.shape, x.stride()).zero_()


def filled_new(x):
    y = x.new_empty_strided((2, 3), (5, 1)).fill_(2)
    return y, y.t() + 1


def added_to(x):
    y = torch.empty_strided((2, 3), (1, 4))
    y.copy_(x[:2, :3])
    y += 1
    y[0] = 2
    return y, y.stride(), y.is_contiguous()


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("program", [filled, filled_new, added_to])
def test_written_tensor_with_gaps_keeps_its_strides(program):
    twins = Twins(lambda: program, backend="magpy")
    for x in (seeded(3, 4), seeded(3, 9)[:, 2:6], seeded(3, 9)[:, 2:6], seeded(3, 8)[:, ::2]):
        twins.call(lambda x=x: (x,))


def test_writes_to_a_tensor_of_given_strides_without_gaps_are_compiled():
    def program(x):
        y = torch.empty_strided((2, 3), (1, 2)).zero_()
        z = torch.empty_strided((2, 3), (5, 1))
        return y.add_(x), z.copy_(x)

    twins = Twins(lambda: program, backend="magpy", options={"strict": True})
    for _ in range(2):
        twins.call(lambda: (seeded(2, 3),))


def test_gradients_flow_through_a_rewritten_write():
    def program(x, y):
        z = x.t().contiguous().t() * 1
        z.masked_fill_(MASK, 0.0)
        z.index_add_(0, torch.tensor([1, 1], device=x.device), y[:2])
        return z * z

    same_gradients(program, seeded(4, 3), seeded(4, 3, seed=1))


def test_writes_to_contiguous_inputs_and_elementwise_writes_stay():
    def program(x):
        x.masked_fill_(x > 0, 1.0)
        y = x * 2
        y.add_(1)
        return y

    gm = fx.symbolic_trace(program)
    before = gm.code
    assert not keep_layouts_of_writes(gm, [torch.ones(2, 3)])
    assert gm.code == before


WRITES_TO_INPUTS = {
    "add": lambda x: x.add_(torch.ones(2, 3)),
    "clamp": lambda x: x.clamp_(3),
    "cumsum": lambda x: x.cumsum_(1),
    "fill": lambda x: x.fill_(2.0),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "masked_fill": lambda x: x.masked_fill_(x > 3, 2.0),
    "of a row": lambda x: x[0].add_(1),
    "normal": lambda x: x.normal_(generator=torch.Generator(x.device).manual_seed(1)),
    "operator": lambda x: operator.imul(x, 2),
    "relu": lambda x: torch.nn.functional.relu(x, inplace=True),
    "subscript": lambda x: x.__setitem__(x > 3, 1.0),
    "zero": lambda x: x.zero_(),
}
INPUTS = {
    "transposed": lambda: torch.arange(6.0).reshape(3, 2).t(),
    "columns": lambda: torch.arange(12.0).reshape(2, 6)[:, ::2],
    "rows": lambda: torch.arange(12.0).reshape(4, 3)[::2],
    "transposed with gaps": lambda: torch.arange(24.0).reshape(3, 2, 4)[:, :, 0].t(),
    "contiguous": lambda: torch.arange(6.0).reshape(2, 3),
}
COPIES = {
    "contiguous": lambda x: x.contiguous(),
    "contiguous of transposed": lambda x: x.t().contiguous(),
    "reshape of transposed": lambda x: x.t().reshape(-1),
    "contiguous row": lambda x: x[0].contiguous(),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("write", WRITES_TO_INPUTS.values(), ids=WRITES_TO_INPUTS)
def test_written_inputs_are_copied_where_eager_mode_copies(write, make, copy):
    """``contiguous`` and ``reshape`` return a view of the input, or a copy, by its strides."""

    def program(x):
        write(x)
        copied = copy(x)
        copied += 1
        return copied, x * 2

    def observe(function):
        x = make()
        copied, doubled = function(x)
        is_view = copied.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        layouts = copied.stride(), doubled.stride()
        return x.tolist(), x._version, copied.tolist(), doubled.tolist(), is_view, layouts

    fast = magpy.compile(program)
    for _ in range(2):
        assert observe(fast) == observe(program)


WRITES_TO_VIEWS = {
    "chain": lambda x: x.mul_(2).add_(1),
    "as another type": lambda x: x.view(torch.int32).bitwise_or_(1),
    "detached": lambda x: x.detach().mul_(2),
    "expanded": lambda x: x.expand(2, 3).mul_(2),
    "into an expanded `out`": lambda x: torch.mul(x, 2, out=x.expand(2, 3)),
    "keyword": lambda x: torch.nn.functional.relu(input=x, inplace=True),
    "more dimensions": lambda x: x.unsqueeze(0).mul_(2),
    "other sizes": lambda x: x.view(2, 1, 3).mul_(2),
    "transposed": lambda x: x.t().mul_(2),
    "whole": lambda x: x[...].mul_(2),
    "copied into an expanded one": lambda x: x.expand(2, 3).copy_(torch.ones(2, 3)),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("write", WRITES_TO_VIEWS.values(), ids=WRITES_TO_VIEWS)
def test_inputs_written_through_views_are_copied_where_eager_mode_copies(write, make, copy):
    def program(x):
        written = write(x)
        copied = copy(x)
        copied += 1
        written.add_(3)
        return copied, x * 2

    def observe(function):
        x = make()
        copied, doubled = function(x)
        is_view = copied.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return x.tolist(), copied.tolist(), doubled.tolist(), is_view

    fast = magpy.compile(program)
    for _ in range(2):
        assert observe(fast) == observe(program)


ROW_WRITES = ("index_add", "index_copy", "scatter", "scatter_add")


@pytest.mark.parametrize("name", [name for name in WRITES if name not in ROW_WRITES])
def test_results_computed_from_a_written_argument_have_its_layout(name):
    def program(x):
        WRITES[name](x)
        return x * 2

    fast = magpy.compile(program)
    for _ in range(3):
        found, expected = (program(seeded(3, 4).t()) for program in (fast, program))
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


OUT_OF_ANOTHER_TYPE = {
    "sum": lambda x, out: torch.sum(x, 1, out=out),
    "mean": lambda x, out: torch.mean(x, 1, out=out),
    "nansum": lambda x, out: torch.nansum(x, 1, out=out),
    "prod": lambda x, out: torch.prod(x, 1, out=out),
    "logsumexp": lambda x, out: torch.logsumexp(x, 1, out=out),
    "var": lambda x, out: torch.var(x, 1, out=out),
    "std": lambda x, out: torch.std(x, 1, out=out),
    "normal": lambda x, out: torch.normal(x[:, 0], 1.0, out=out),
    "normal of deviations": lambda x, out: torch.normal(0.0, x[:, 0].abs(), out=out),
}
WIDER = [
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.float64),
    (torch.float32, torch.float64),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:magpy_like")
@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize(("dtype", "wider"), WIDER)
@pytest.mark.parametrize("write", OUT_OF_ANOTHER_TYPE.values(), ids=list(OUT_OF_ANOTHER_TYPE))
def test_out_of_a_wider_type_is_computed_in_it(write, dtype, wider, is_argument):
    def program(x, out):
        out = torch.zeros(4, dtype=wider) if out is None else out
        write(x, out)
        return out * 1

    fast = magpy.compile(program)
    x = (seeded(4, 33) * 3 + 1).to(dtype)
    for _ in range(3):
        results = []
        for call in (program, fast):
            torch.manual_seed(0)
            results.append(call(x, torch.zeros(4, dtype=wider) if is_argument else None))
        # The order of a sum may differ, the type in which it is rounded may not.
        torch.testing.assert_close(*results, rtol=64 * torch.finfo(wider).eps, atol=0)


def test_sums_into_a_wider_type_are_compiled():
    def program(x):
        return torch.sum(x, 1, out=torch.zeros(4)), torch.mean(x, 1, out=torch.zeros(4))

    twins = Twins(lambda: program, backend="magpy", options={"strict": True})
    for _ in range(2):
        twins.call(lambda: (seeded(4, 33).half(),))
