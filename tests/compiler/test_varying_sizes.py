"""Graphs with varying sizes and numbers are compiled once and equal eager at every call."""

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

from magpy_like.compiler import compile_fx, kernel_build
from magpy_like.compiler.codegen import launcher
from magpy_like.compiler.codegen.cpp import cpp_printer
from tests.compare import assert_same
from tests.compiler.programs import tensors
from tests.seeding import seed

pytestmark = pytest.mark.filterwarnings("error::magpy_like.compiler.compiler_errors.MagpyWarning")


@dataclasses.dataclass
class Capture:
    """Creates the symbolic inputs that a capture passes to the compiler."""

    env: ShapeEnv = dataclasses.field(default_factory=ShapeEnv)

    def __post_init__(self):
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.count = 0

    def input(self, value):
        """A fake tensor with symbolic sizes, or a symbolic number."""
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
        """True if the guards of the compilation hold for ``args``."""
        values = {}
        for fake, arg in zip(fakes, args):
            if isinstance(fake, torch.Tensor):
                values |= {f.node._expr: n for f, n in zip(fake.shape, arg.shape)}
            else:
                values[fake.node._expr] = arg
        return all(guard.expr.subs(values) for guard in self.env.guards)


def compiled(function, *args):
    return compile_with_guards(function, args)[0]


def compile_with_guards(function, args):
    gm = fx.symbolic_trace(function)
    capture = Capture()
    fakes = [capture.input(a) for a in args]
    fast = compile_fx(gm, fakes, options={"strict": True})
    return fast, lambda arguments: capture.admits(fakes, arguments)


def copies(args):
    return [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in args
    ]


def assert_one_graph_serves(function, *calls):
    """Compiles for the arguments of the first call, then compares all calls with eager: results,
    mutated arguments, gradients, random state."""
    fast, admits = compile_with_guards(function, calls[0])
    for args in calls:
        assert admits(args)
        seen = []
        for call in (fast, function):
            arguments = copies(args)
            seed(0)
            result = call(*arguments)
            out = [t for t in tensors(result) if t.requires_grad]
            if out:
                sum((t * t).sum() for t in out).backward()
            gradients = [a.grad for a in tensors(arguments)]
            leaves = pytree.tree_leaves(result)  # the caller restores the structure
            seen.append((leaves, arguments, gradients, torch.get_rng_state()))
        assert_same(*seen)


def floats(*sizes, grad=False):
    return torch.randn(sizes, requires_grad=grad)


SIZES = [(5, 7), (3, 9), (11, 4)]


def assert_one_graph_serves_sizes(function, grad=False):
    assert_one_graph_serves(function, *((floats(*size, grad=grad),) for size in SIZES))


# --- sizes --------------------------------------------------------------------------------------


def test_loops_of_varying_size_equal_eager():
    assert_one_graph_serves_sizes(
        lambda x: (torch.softmax(x, -1) * x, x.mean(0), x.var(1), x.t() + 1), grad=True
    )


def test_sizes_as_numbers_equal_eager():
    assert_one_graph_serves_sizes(
        lambda x: (x * x.shape[0] / x.shape[1] + x.numel(), x.shape[0] * 2), grad=True
    )


def test_each_size_is_computed_once_per_call(monkeypatch):
    sources, define = [], kernel_build.define
    monkeypatch.setattr(
        kernel_build, "define", lambda text, names: sources.append(text) or define(text, names)
    )

    def function(x):
        y = torch.cat([x, x * 2, x - 1]) @ x.t()
        return y.sin() @ x, (y @ x).cos(), torch.cat([y, y + 1]) @ x

    assert_one_graph_serves_sizes(function)
    (source,) = sources
    (symbol,) = re.findall(r"^    (s\d+) = ", source, re.M)[:1]
    assert source.count(f" = 3*{symbol}\n") == 1
    assert source.count(f"3*{symbol}") == 1 and source.count(f"6*{symbol}") == 1, source


def test_slices_of_varying_size_equal_eager():
    assert_one_graph_serves_sizes(
        lambda x: (x[1:, :-1] * 2, x[:2], x[-2:] + 1, x[:, ::2] + 1, x[:, 2:] * 2, x[:99] * 3),
        grad=True,
    )


def test_size_expression_guarded_as_one_broadcasts():
    """The guard fixes the expression to 1, but none of its symbols."""

    def program(x, k):
        y = x.narrow(0, 0, torch.sym_max(1, x.shape[0] - k))
        return y * x + 1, x - (y + 1), y * 2

    assert_one_graph_serves(
        program,
        (floats(6, 7, grad=True), 5), (floats(4, 5, grad=True), 3), (floats(3, 9, grad=True), 7),
    )  # fmt: skip


def test_padding_by_a_varying_number_may_crop_or_extend():
    assert_one_graph_serves(
        lambda x, k: F.pad(x, (0, k)) + 1,
        (floats(3, 6), 2), (floats(3, 6), -2), (floats(4, 9), 5),
    )  # fmt: skip


@pytest.mark.cpu
def test_interior_windows_of_varying_images_are_not_masked(monkeypatch):
    texts, print_unit = [], cpp_printer.print_unit
    monkeypatch.setattr(
        cpp_printer, "print_unit", lambda unit: texts.append(print_unit(unit)) or texts[-1]
    )
    monkeypatch.setattr(
        kernel_build, "key", lambda gm, kind, trace: None
    )  # bypasses the disk cache

    def function(x):
        return F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 7, 1, 3)

    for widths in ((16, 4, 6, 64), (17, 5, 33, 3)):  # torch 2.11 guards whether a size is even
        sizes = ((2, 3, 9 - 2 * (i % 2), width) for i, width in enumerate(widths))
        assert_one_graph_serves(function, *((floats(*size),) for size in sizes))
        assert "masked(outer, " in texts.pop()


def test_halved_positions_of_odd_size_equal_eager():
    def function(x):
        y = torch.cat([x, x[:, :1]], -1)
        return torch.repeat_interleave(y, 2, -1)[:, : y.shape[1]] * 2

    assert_one_graph_serves(
        function, *((floats(2, width, grad=True),) for width in (9, 10, 8, 7, 12))
    )


def test_attention_rewrite_guards_no_size():
    def program(x):
        y = F.pad(x, (0, 1, 0, 1))
        return (y @ y.mT).softmax(-1) @ y

    assert_one_graph_serves(program, *((floats(*size),) for size in ((2, 3, 5, 7), (3, 3, 9, 4))))


def test_concatenation_and_reshapes_of_varying_size_equal_eager():
    assert_one_graph_serves_sizes(
        lambda x: (torch.cat([x, x * 2]), torch.stack([x, x]), x.t().reshape(-1) * x.flatten()),
        grad=True,
    )


def test_backward_pass_of_varying_size_equals_eager():
    assert_one_graph_serves_sizes(
        lambda x: x.sum() * x.shape[0] + x.repeat(3, 1).sum(0) / x.shape[1], True
    )


def test_running_statistics_of_computed_sizes_equal_eager():
    """The factor is n / (n - 1), and no input of the program has a symbol of n as its size."""

    def program(x, weight, mean, var):
        y = F.conv2d(x, weight, stride=2, padding=1)
        return F.batch_norm(y, mean, var, training=True)

    assert_one_graph_serves(
        program,
        *((floats(b, 3, h, w), floats(4, 3, 3, 3, grad=True), floats(4), floats(4).exp())
          for b, h, w in ((2, 9, 8), (3, 6, 11))),
    )  # fmt: skip


def test_mutated_arguments_of_varying_size_equal_eager():
    def function(x):
        x.add_(x.shape[1])
        return x.sum(0)

    assert_one_graph_serves_sizes(function)


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_varying_floats_are_kernel_arguments(dtype, grad):
    assert_one_graph_serves(
        lambda x, k: (x * k + k**2, torch.full_like(x, k) / 3, torch.where(x > k, x, k)),
        *((floats(*s).to(dtype).requires_grad_(grad), k)
          for s, k in zip(SIZES, (0.5, 1 / 3, -2.25), strict=True)),
    )  # fmt: skip


def test_arithmetic_of_varying_floats_equals_python():
    assert_one_graph_serves(
        lambda x, k: (x.double() * (k * 3.0 + 0.1 - 1.0), k / 3.0 + 0.1 + 0.2),
        *((floats(2), k) for k in (0.1, 1e17, -1 / 3)),
    )


def test_special_floats_equal_eager():
    assert_one_graph_serves(
        lambda x, k: (x + k, x * k), *((floats(3), k) for k in (1.5, float("inf"), -0.0))
    )
    fast = compiled(lambda x, k: x * k, floats(3), 1.5)
    assert fast(torch.ones(3), float("nan")).isnan().all()


def test_varying_integers_are_kernel_arguments():
    assert_one_graph_serves(
        lambda x, k: (x * k + k // 2, x.float() / k, k * 3, torch.zeros(k) + k),
        *((torch.randint(1, 9, size), k) for size, k in zip(SIZES, (5, 2, 13), strict=True)),
    )


def test_float_that_decides_control_flow_is_specialized():
    """Dropout compares its probability with its bounds."""
    assert_one_graph_serves(lambda x, p: F.dropout(x, p), (floats(40), 0.5), (floats(40), 0.25))


# --- data-dependent numbers ---------------------------------------------------------------------


def float_tensor(values):
    return torch.tensor(values, dtype=torch.float32)


MASKED = [
    float_tensor([1, 2, -1]),
    float_tensor([1, 2, -1, 5]),
    float_tensor([1, -1]),
    float_tensor([-1, -2]),
]


def test_masks_and_nonzero_equal_eager():
    assert_one_graph_serves(
        lambda x: (x[x > 0] * 2, (x > 0).nonzero() + 1), *((x,) for x in MASKED)
    )


def test_unbacked_size_of_a_returned_view_equals_eager():
    assert_one_graph_serves(lambda x: x[: (x > 0).nonzero().shape[0]], *((x,) for x in MASKED))


def test_gradients_through_masks_equal_eager():
    assert_one_graph_serves(
        lambda x: x[x > 0] * 2, *((x.clone().requires_grad_(),) for x in MASKED)
    )


def test_unique_equals_eager():
    assert_one_graph_serves(lambda x: x.unique() + 1, *((torch.arange(n) % 3,) for n in (2, 7, 1)))
    assert_one_graph_serves(lambda x: ~x.unique(), *((torch.arange(n) % 2 > 0,) for n in (2, 7, 1)))


def test_unused_result_may_be_missing(monkeypatch):
    """As for booleans on GPUs, where torch computes the values only."""
    unique = torch.ops.aten._unique2.default
    monkeypatch.setitem(launcher._BINDINGS, unique, "of_values")
    monkeypatch.setitem(launcher.COMMON, "of_values", lambda *args: (unique(*args)[0], None, None))
    assert_one_graph_serves(lambda x: x.unique() * 3, *((torch.arange(n) % 3,) for n in (2, 7, 1)))


def test_repeat_interleave_equals_eager():
    assert_one_graph_serves(
        lambda x, n: torch.repeat_interleave(x, n, 0) * 2,
        *((floats(n, 3, grad=True), torch.arange(n)) for n in (4, 2, 6)),
    )


def test_number_read_from_a_tensor_is_a_kernel_argument():
    assert_one_graph_serves(
        lambda x, n: x * n.item() + 1,
        *((floats(2, 3), torch.tensor(k)) for k in (3, -7, 0)),
    )


def test_size_read_from_a_tensor_equals_eager():
    assert_one_graph_serves(
        lambda n: torch.arange(n.item()) + n.item(), *((torch.tensor(k),) for k in (3, 7, 0))
    )


def test_sizes_assumed_equal_may_broadcast():
    """Tracing assumes that the unknown number of positive elements fits."""
    assert_one_graph_serves(
        lambda x, y: x[x > 0] * 2 + y,
        (MASKED[0], floats(2)), (MASKED[1], floats(3)), (MASKED[2], floats(4)),
    )  # fmt: skip


def test_two_unbacked_sizes_may_broadcast():
    assert_one_graph_serves(
        lambda x, y: (x[x > 0] + y[y > 0]) * 2,
        (MASKED[0], MASKED[0]),
        (MASKED[1], float_tensor([1, 1, 1, 0])),
        (MASKED[2], float_tensor([1, 1])),
    )  # fmt: skip


def test_call_that_falls_back_draws_random_numbers_once():
    assert_one_graph_serves(
        lambda x, y: F.dropout(y)[: 2] + x[x > 0] * y,
        (MASKED[0], floats(2)), (MASKED[2], floats(2)),
    )  # fmt: skip


def test_call_that_falls_back_mutates_arguments_once():
    def function(x, y):
        y.add_(1)
        return x[x > 0] + y

    assert_one_graph_serves(function, (MASKED[0], floats(2)), (MASKED[2], floats(2)))


def test_incompatible_sizes_raise_as_in_eager():
    fast = compiled(lambda x, y: x[x > 0] + y, MASKED[0], floats(2))
    with pytest.raises(RuntimeError, match=r"must match the size of tensor b"):
        fast(MASKED[1], floats(2))


def test_layouts_of_results_and_saved_tensors_equal_eager():
    """Every second row of a permuted tensor is neither dense nor row-major."""

    def function(x):
        y = x.permute(2, 0, 1).sigmoid()
        z = y[0:-1:2] * y[1::2]
        return z[1::2].sigmoid() * y[2:3], z, y[::2], z.sum(0, keepdim=True).expand(3, -1, -1)

    assert_one_graph_serves(
        function, *((floats(*s, grad=True),) for s in [(4, 3, 17), (2, 5, 23), (3, 2, 12)])
    )
