"""Graphs whose sizes and numbers vary: compiled once, equal to eager at every call."""

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from magpy_like.compiler import build, compile_fx
from magpy_like.compiler.codegen.cpp import cpp_printer
from magpy_like.compiler.codegen.launcher import launcher
from tests.compare import assert_same
from tests.compiler.programs import tensors
from tests.seeding import seed

pytestmark = pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")


@dataclasses.dataclass
class Capture:
    """What a capture with symbolic sizes hands to the compiler."""

    env: ShapeEnv = dataclasses.field(default_factory=ShapeEnv)

    def __post_init__(self):
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.count = 0

    def input(self, value):
        """A fake tensor, all of its sizes symbolic, or a symbolic number."""
        self.count += 1
        source = ConstantSource(f"input{self.count}")
        if isinstance(value, torch.Tensor):
            context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * value.dim())
            fake = self.mode.from_tensor(value, source=source, symbolic_context=context)
            return fake.requires_grad_(value.requires_grad)
        symbol = self.env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
        make = self.env.create_symfloatnode if type(value) is float else self.env.create_symintnode
        return make(symbol, hint=value, source=source)

    def admits(self, fakes, args):
        """Do the guards of the compilation hold for ``args``?"""
        values = {}
        for fake, arg in zip(fakes, args):
            if isinstance(fake, torch.Tensor):
                values |= {f.node._expr: n for f, n in zip(fake.shape, arg.shape)}
            else:
                values[fake.node._expr] = arg
        return all(guard.expr.subs(values) for guard in self.env.guards)


def compiled(function, *args):
    return prepared(function, args)[0]


def prepared(function, args):
    gm = fx.symbolic_trace(function)
    capture = Capture()
    fakes = [capture.input(a) for a in args]
    fast = compile_fx(gm, fakes, options={"strict": True})
    return fast, lambda given: capture.admits(fakes, given)


def fresh(args):
    return [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in args
    ]


def one_graph_for(function, *calls):
    """Compile for the first call's arguments, then compare all calls with eager: results, written
    arguments, gradients, random state."""
    fast, admits = prepared(function, calls[0])
    for args in calls:
        assert admits(args)
        seen = []
        for call in (fast, function):
            given = fresh(args)
            seed(0)
            result = call(*given)
            out = [t for t in tensors(result) if t.requires_grad]
            if out:
                sum((t * t).sum() for t in out).backward()
            gradients = [a.grad for a in tensors(given)]
            leaves = pytree.tree_leaves(result)  # the caller knows the structure
            seen.append((leaves, given, gradients, torch.get_rng_state()))
        assert_same(*seen)


def floats(*sizes, grad=False):
    return torch.randn(sizes, requires_grad=grad)


SIZES = [(5, 7), (3, 9), (11, 4)]


def each_size(function, grad=False):
    one_graph_for(function, *((floats(*size, grad=grad),) for size in SIZES))


# --- sizes --------------------------------------------------------------------------------------


def test_loops_run_to_the_sizes_of_the_call():
    each_size(lambda x: (torch.softmax(x, -1) * x, x.mean(0), x.var(1), x.t() + 1), grad=True)


def test_sizes_are_numbers_of_the_program():
    each_size(lambda x: (x * x.shape[0] / x.shape[1] + x.numel(), x.shape[0] * 2), grad=True)


def test_a_call_computes_each_size_once(monkeypatch):
    sources, define = [], build.define
    monkeypatch.setattr(
        build, "define", lambda text, names: sources.append(text) or define(text, names)
    )

    def function(x):
        y = torch.cat([x, x * 2, x - 1]) @ x.t()
        return y.sin() @ x, (y @ x).cos(), torch.cat([y, y + 1]) @ x

    each_size(function)
    (source,) = sources
    (symbol,) = re.findall(r"^    (s\d+) = ", source, re.M)[:1]
    assert source.count(f" = 3*{symbol}\n") == 1
    assert source.count(f"3*{symbol}") == 1 and source.count(f"6*{symbol}") == 1, source


def test_slices_follow_pythons_rule_at_every_size():
    each_size(
        lambda x: (x[1:, :-1] * 2, x[:2], x[-2:] + 1, x[:, ::2] + 1, x[:, 2:] * 2, x[:99] * 3),
        grad=True,
    )


def test_a_size_that_is_an_expression_and_1_broadcasts():
    """The guard says that the expression is 1, and no symbol in it has a value."""

    def program(x, k):
        y = x.narrow(0, 0, torch.sym_max(1, x.shape[0] - k))
        return y * x + 1, x - (y + 1), y * 2

    one_graph_for(
        program,
        (floats(6, 7, grad=True), 5), (floats(4, 5, grad=True), 3), (floats(3, 9, grad=True), 7),
    )  # fmt: skip


def test_padding_that_is_a_size_may_crop_or_extend():
    one_graph_for(
        lambda x, k: F.pad(x, (0, k)) + 1,
        (floats(3, 6), 2), (floats(3, 6), -2), (floats(4, 9), 5),
    )  # fmt: skip


@pytest.mark.cpu
def test_windows_are_read_without_masks_inside_an_images_border(monkeypatch):
    texts, print_unit = [], cpp_printer.print_unit
    monkeypatch.setattr(
        cpp_printer, "print_unit", lambda unit: texts.append(print_unit(unit)) or texts[-1]
    )
    monkeypatch.setattr(build, "key", lambda gm, kind, trace: None)  # printed, not found on disk

    def function(x):
        return F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 7, 1, 3)

    for widths in ((16, 4, 6, 64), (17, 5, 33, 3)):  # torch 2.11 asks whether a size is even
        sizes = ((2, 3, 9 - 2 * (i % 2), width) for i, width in enumerate(widths))
        one_graph_for(function, *((floats(*size),) for size in sizes))
        assert "masked(outer, " in texts.pop()


def test_a_loop_whose_position_is_halved_may_be_of_odd_size():
    def function(x):
        y = torch.cat([x, x[:, :1]], -1)
        return torch.repeat_interleave(y, 2, -1)[:, : y.shape[1]] * 2

    one_graph_for(function, *((floats(2, width, grad=True),) for width in (9, 10, 8, 7, 12)))


def test_looking_for_attention_fixes_no_size():
    def program(x):
        y = F.pad(x, (0, 1, 0, 1))
        return (y @ y.mT).softmax(-1) @ y

    one_graph_for(program, *((floats(*size),) for size in ((2, 3, 5, 7), (3, 3, 9, 4))))


def test_concatenation_and_reshapes():
    each_size(
        lambda x: (torch.cat([x, x * 2]), torch.stack([x, x]), x.t().reshape(-1) * x.flatten()),
        grad=True,
    )


def test_the_backward_pass_gets_the_sizes():
    each_size(lambda x: x.sum() * x.shape[0] + x.repeat(3, 1).sum(0) / x.shape[1], True)


def test_running_statistics_count_elements_of_computed_sizes():
    """A factor n / (n - 1), where no tensor of the program has one of n's symbols for a size."""

    def program(x, weight, mean, var):
        y = F.conv2d(x, weight, stride=2, padding=1)
        return F.batch_norm(y, mean, var, training=True)

    one_graph_for(
        program,
        *((floats(b, 3, h, w), floats(4, 3, 3, 3, grad=True), floats(4), floats(4).exp())
          for b, h, w in ((2, 9, 8), (3, 6, 11))),
    )  # fmt: skip


def test_written_arguments():
    def function(x):
        x.add_(x.shape[1])
        return x.sum(0)

    each_size(function)


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_float_is_an_argument_of_the_kernel(dtype, grad):
    one_graph_for(
        lambda x, k: (x * k + k**2, torch.full_like(x, k) / 3, torch.where(x > k, x, k)),
        *((floats(*s).to(dtype).requires_grad_(grad), k)
          for s, k in zip(SIZES, (0.5, 1 / 3, -2.25), strict=True)),
    )  # fmt: skip


def test_floats_are_computed_as_python_does():
    one_graph_for(
        lambda x, k: (x.double() * (k * 3.0 + 0.1 - 1.0), k / 3.0 + 0.1 + 0.2),
        *((floats(2), k) for k in (0.1, 1e17, -1 / 3)),
    )


def test_special_floats():
    one_graph_for(lambda x, k: (x + k, x * k), *((floats(3), k) for k in (1.5, float("inf"), -0.0)))
    fast = compiled(lambda x, k: x * k, floats(3), 1.5)
    assert fast(torch.ones(3), float("nan")).isnan().all()


def test_an_integer_is_an_argument_of_the_kernel():
    one_graph_for(
        lambda x, k: (x * k + k // 2, x.float() / k, k * 3, torch.zeros(k) + k),
        *((torch.randint(1, 9, size), k) for size, k in zip(SIZES, (5, 2, 13), strict=True)),
    )


def test_a_float_that_steers_an_operator_is_compiled_for_one_value_only():
    """Dropout asks whether its probability is within bounds."""
    one_graph_for(lambda x, p: F.dropout(x, p), (floats(40), 0.5), (floats(40), 0.25))


# --- numbers that only a run can tell -----------------------------------------------------------


def some(values):
    return torch.tensor(values, dtype=torch.float32)


MASKED = [some([1, 2, -1]), some([1, 2, -1, 5]), some([1, -1]), some([-1, -2])]


def test_masks_and_nonzero():
    one_graph_for(lambda x: (x[x > 0] * 2, (x > 0).nonzero() + 1), *((x,) for x in MASKED))


def test_a_number_that_only_the_size_of_a_returned_view_needs():
    one_graph_for(lambda x: x[: (x > 0).nonzero().shape[0]], *((x,) for x in MASKED))


def test_gradients_through_masks():
    one_graph_for(lambda x: x[x > 0] * 2, *((x.clone().requires_grad_(),) for x in MASKED))


def test_unique_values():
    one_graph_for(lambda x: x.unique() + 1, *((torch.arange(n) % 3,) for n in (2, 7, 1)))
    one_graph_for(lambda x: ~x.unique(), *((torch.arange(n) % 2 > 0,) for n in (2, 7, 1)))


def test_a_result_that_nobody_has_asked_for_may_be_missing(monkeypatch):
    """As on GPUs for booleans, of which torch finds the values alone."""
    unique = torch.ops.aten._unique2.default
    monkeypatch.setitem(launcher._BINDINGS, unique, "of_values")
    monkeypatch.setitem(launcher.COMMON, "of_values", lambda *args: (unique(*args)[0], None, None))
    one_graph_for(lambda x: x.unique() * 3, *((torch.arange(n) % 3,) for n in (2, 7, 1)))


def test_repeated_rows():
    one_graph_for(
        lambda x, n: torch.repeat_interleave(x, n, 0) * 2,
        *((floats(n, 3, grad=True), torch.arange(n)) for n in (4, 2, 6)),
    )


def test_a_number_read_from_a_tensor_is_an_argument_of_the_kernel():
    one_graph_for(
        lambda x, n: x * n.item() + 1,
        *((floats(2, 3), torch.tensor(k)) for k in (3, -7, 0)),
    )


def test_a_size_read_from_a_tensor():
    one_graph_for(
        lambda n: torch.arange(n.item()) + n.item(), *((torch.tensor(k),) for k in (3, 7, 0))
    )


def test_sizes_that_tracing_took_to_be_equal_may_broadcast():
    """Tracing cannot know how many elements are positive, and takes it that they fit."""
    one_graph_for(
        lambda x, y: x[x > 0] * 2 + y,
        (MASKED[0], floats(2)), (MASKED[1], floats(3)), (MASKED[2], floats(4)),
    )  # fmt: skip


def test_two_sizes_that_only_a_run_can_tell_may_broadcast():
    one_graph_for(
        lambda x, y: (x[x > 0] + y[y > 0]) * 2,
        (MASKED[0], MASKED[0]), (MASKED[1], some([1, 1, 1, 0])), (MASKED[2], some([1, 1])),
    )  # fmt: skip


def test_a_call_that_eager_takes_over_draws_random_numbers_once():
    one_graph_for(
        lambda x, y: F.dropout(y)[: 2] + x[x > 0] * y,
        (MASKED[0], floats(2)), (MASKED[2], floats(2)),
    )  # fmt: skip


def test_a_call_that_eager_takes_over_writes_arguments_once():
    def function(x, y):
        y.add_(1)
        return x[x > 0] + y

    one_graph_for(function, (MASKED[0], floats(2)), (MASKED[2], floats(2)))


def test_sizes_that_do_not_fit_raise_as_in_eager():
    fast = compiled(lambda x, y: x[x > 0] + y, MASKED[0], floats(2))
    with pytest.raises(RuntimeError, match=r"must match the size of tensor b"):
        fast(MASKED[1], floats(2))


def test_results_and_what_the_backward_pass_reads_are_laid_out_as_in_eager():
    """Every second row of a permuted tensor is neither dense nor row-major."""

    def function(x):
        y = x.permute(2, 0, 1).sigmoid()
        z = y[0:-1:2] * y[1::2]
        return z[1::2].sigmoid() * y[2:3], z, y[::2], z.sum(0, keepdim=True).expand(3, -1, -1)

    one_graph_for(
        function, *((floats(*s, grad=True),) for s in [(4, 3, 17), (2, 5, 23), (3, 2, 12)])
    )
