"""Tensors in all locations: arguments, attributes, containers, closures, globals, parameters."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same
from tests.programs import Twins, check, check_results, check_stateful, load, matrix, one, tensor

# --- guarded properties of a tensor --------------------------------------------------------------

OTHERS = {
    "shape": lambda: torch.ones(4),
    "dimensions": lambda: torch.ones(3, 1),
    "dtype": lambda: torch.ones(3, dtype=torch.float64),
    "strides": lambda: torch.ones(6)[::2],
    "gradient": lambda: torch.ones(3, requires_grad=True),
    "class": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
    "layout": lambda: torch.ones(3).to_sparse(),
    "device": lambda: torch.ones(3, device="meta"),
    "not a tensor": lambda: 3.0,
    "array": lambda: np.ones(3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_tensor_of_another_kind_must_miss(name):
    def program(x):
        return x * 2

    check(program, lambda: (torch.ones(3),), other=[lambda: (OTHERS[name](),)])


def test_values_are_not_guarded():
    def program(x):
        return x.relu() + x.sum()

    twins = check(program, one())
    for i in range(3):
        twins.call(one(i, -i, 7), hit=True)


# --- in-place ------------------------------------------------------------------------------------

IN_PLACE = {
    "operator": lambda x, y: x.__iadd__(y),
    "method": lambda x, y: x.mul_(2).add_(y),
    "item": lambda x, y: x.__setitem__(0, y[1]),
    "slice": lambda x, y: x.__setitem__(slice(1, None), 0),
    "mask": lambda x, y: x.__setitem__(x > 0, 5),
    "view": lambda x, y: x.view(-1).add_(1),
    "row": lambda x, y: x[0].fill_(3),
    "transposed": lambda x, y: x.t().mul_(y.sum()),
    "view then read": lambda x, y: (x.view(-1)[0].zero_(), x + 1),
    "copy": lambda x, y: x.copy_(y * 2),
    "out": lambda x, y: torch.add(x, y, out=x),
    "functional": lambda x, y: F.relu(x, inplace=True),
    "returned view": lambda x, y: (x[0], x[:, 1:], x.add_(1)),
    "changed after the view": lambda x, y: _view_then_change(x, y),
    "foreach": lambda x, y: torch._foreach_add_([x, y], 1),
    "index": lambda x, y: x.index_add_(0, torch.tensor([0]), y[:1]),
    "chunks": lambda x, y: [c.add_(i) for i, c in enumerate(x.chunk(2, 1))],
    "init": lambda x, y: nn.init.constant_(x, 4.0),
}  # fmt: skip


def _view_then_change(x, y):
    row = x[0]
    x += y
    return row, row * 2, x


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_change_of_an_argument(name):
    def program(x, y):
        before = x.sum()
        return before, IN_PLACE[name](x, y)

    twins = Twins(lambda: program)
    for i in range(4):
        twins.call(lambda: (matrix(2, 2) + i, matrix(2, 2)), hit=i > 0, why=f"call {i}")


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_change_of_a_tensor_from_a_closure(name):
    def make():
        kept = {"x": matrix(2, 2)}

        def program(y):
            return IN_PLACE[name](kept["x"], y)

        return program

    twins = Twins(make)
    for i in range(4):
        twins.call(lambda: (matrix(2, 2) + 1,), why=f"call {i}")


METADATA_CHANGES = {
    "squeeze_": lambda x: x.squeeze_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "transpose_": lambda x: x.transpose_(0, -1),
    "as_strided_": lambda x: x.as_strided_((2,), (1,), 3),
    "changed in between": lambda x: x.add_(1).transpose_(0, 2).mul_(2).squeeze_(1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magpy"])
@pytest.mark.parametrize("name", METADATA_CHANGES)
def test_in_place_change_of_shape_or_strides_of_an_argument(name, backend):
    def program(x, y):
        METADATA_CHANGES[name](x)
        return y * 2, x + 1, x

    for dynamic in (None, True):
        twins = Twins(lambda: program, backend=backend, dynamic=dynamic)
        for k in range(3):
            twins.call(lambda k=k: (torch.arange(12.0).view(3, 1, 4) + k, torch.ones(2)))


RESHAPED = {
    "before a write": lambda x: x.unsqueeze_(0).scatter_(0, torch.zeros_like(x).long()[None], 1),
    "between writes": lambda x: (x.add_(1).t_(), x.mul_(2)),
    "by out": lambda x: (torch.sum(x.clone(), -1, out=x), x.mul_(2)),
    "through another": lambda x: (x.swapaxes_(0, -1), x.detach().__setitem__(0, 7)),
}


@pytest.mark.filterwarnings("ignore:.*was resized", "ignore:magpy compiler")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", RESHAPED)
def test_in_place_change_of_shape_of_a_view(name, dynamic):
    def program(whole, part):
        RESHAPED[name](part)
        return part

    def inputs():
        whole = torch.arange(36.0).view(4, 9)
        return whole, whole[1:, 1::2]

    twins = Twins(lambda: program, backend="magpy", dynamic=dynamic)
    for _ in range(3):
        twins.call(inputs)


def test_out_argument_of_the_right_size_is_compiled():
    def program(x, y):
        torch.add(x, 1, out=y)
        return y * 2

    twins = Twins(lambda: program, backend="magpy")
    for k in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            twins.call(lambda k=k: (torch.ones(3) * k, torch.zeros(3)), hit=k > 0)


def test_in_place_change_of_an_intermediate_that_is_kept():
    def program(x):
        y = x * 2
        view = y[0]
        y.add_(1)
        return view, y, [y]

    check(program, lambda: (matrix(2, 2),))


def test_statement_forms_of_in_place_change():
    def program(x, y, n):
        x += y
        x[0] *= 2
        x[:, 1] -= n
        y **= 2
        alias = x
        alias @= torch.eye(2)
        return alias is x

    check(
        program,
        lambda: (matrix(2, 2), matrix(2, 2), 3),
        other=[lambda: (matrix(2, 2), matrix(2, 2), 4)],
    )


# --- aliasing between arguments ------------------------------------------------------------------

SHARED = {
    "same tensor": lambda: (lambda t: (t, t))(matrix(2, 2)),
    "distinct": lambda: (matrix(2, 2), matrix(2, 2)),
    "same memory": lambda: (lambda t: (t, t.view(2, 2)))(matrix(2, 2)),
    "overlapping": lambda: (lambda t: (t[:2], t[1:]))(matrix(3, 2)),
    "halves": lambda: (lambda t: (t[:2], t[2:]))(matrix(4, 2)),
    "detached": lambda: (lambda t: (t, t.detach()))(matrix(2, 2)),
    "nested": lambda: (lambda t: (t, t[:]))(matrix(2, 2)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("recorded", SHARED)
def test_memory_shared_by_arguments_may_differ_from_the_recorded_call(recorded, backend):
    def program(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y, x is y, x

    twins = Twins(lambda: program, backend=backend)
    twins.call(SHARED[recorded], hit=False)
    for name, shared in SHARED.items():
        twins.call(shared, why=name)
    for name, shared in SHARED.items():
        twins.call(shared, why=f"{name} again")


def test_same_tensor_twice_without_a_change():
    def program(x, y):
        return [x, y], x + y

    same = lambda: (lambda t: (t, t))(tensor(1, 2))
    check_results(lambda: program, lambda: (tensor(1, 2), tensor(3, 4)), same)
    check_results(lambda: program, same, lambda: (tensor(1, 2), tensor(3, 4)))


def test_identity_of_tensors_decides_a_branch():
    def program(x, y):
        return x * 2 if x is y else x + y

    same = lambda: (lambda t: (t, t))(tensor(1, 2))
    distinct = lambda: (tensor(1, 2), tensor(3, 4))
    check(program, distinct, other=[same])
    check(program, same, other=[distinct])


def test_output_aliases_the_input_or_itself():
    def program(x):
        y = x.view(-1)
        z = x + 1
        return x, y, z, z[0], z.t(), [z, y]

    check(program, lambda: (matrix(2, 3),))


# --- locations of tensors ------------------------------------------------------------------------


def test_tensor_in_a_closure_is_used_and_replaced():
    def make():
        weight = tensor(1, 2, 3)
        table = {"w": [tensor(4, 5, 6)]}

        def program(x):
            return x * weight + table["w"][0]

        program.table = table
        return program

    def rebind(p):
        p.__closure__[p.__code__.co_freevars.index("weight")].cell_contents = torch.ones(3, 3)

    def other_shape(p):
        p.table["w"][0] = torch.ones(3, 1)

    check_stateful(make, one(), changes=[rebind, other_shape])


def test_replaced_tensor_in_a_closure_is_read_at_each_call():
    def make():
        table = {"w": tensor(1, 2, 3)}

        def program(x):
            return x * table["w"]

        program.table = table
        return program

    twins = Twins(make)
    for i in range(4):
        twins.change(lambda p: p.table.update(w=tensor(i, i, i)))
        twins.call(one())


def test_tensor_in_a_global_is_used_and_changed():
    make = load("""
import torch
weight = torch.ones(3)
def program(x):
    global weight
    y = x * weight
    weight = weight + 1
    return y
""")
    twins = Twins(make)
    for i in range(5):
        twins.call(one())
        assert_same(twins.target.__globals__["weight"], twins.eager.__globals__["weight"])


def test_attributes_of_tensors():
    def program(x, n):
        x.tag = n
        y = x * 2
        y.tag = ["made", n]
        return y, x.tag, hasattr(x, "other"), getattr(x, "tag")

    check(program, lambda: (tensor(1, 2), 3), other=[lambda: (tensor(1, 2), 4)])

    def tagged(n):
        x = tensor(1, 2)
        x.scale = n
        return (x,)

    def reader(x):
        return x * x.scale

    check(reader, lambda: tagged(2), other=[lambda: tagged(3)])


def test_metadata_decides_a_branch():
    def program(x):
        if x.dim() == 2 and x.shape[1] > 2 and x.dtype == torch.float32 and not x.requires_grad:
            return x.reshape(x.size(0) * x.size(1)), x.numel(), x.stride(), x.is_contiguous()
        return x, x.ndim, x.itemsize

    check(
        program,
        lambda: (matrix(2, 3),),
        other=[
            lambda: (matrix(3, 2),),
            lambda: (matrix(2, 3).double(),),
            lambda: (matrix(2, 3).t(),),
        ],
    )


def test_new_constant_tensors_are_distinct_at_each_call():
    def program(x):
        made = torch.zeros(3)
        also = torch.tensor([1.0, 2, 3])
        return x + made + also, made, also

    twins = check(program, one())
    first = twins.compiled(tensor(1, 2, 3))
    first[1].add_(100)
    first[2].add_(100)
    assert_same(twins.compiled(tensor(1, 2, 3)), twins.eager(tensor(1, 2, 3)))


def test_tensor_returned_from_a_closure_is_that_tensor():
    def make():
        kept = tensor(1, 2)

        def program(x):
            return kept, x + kept

        return program

    twins = check_stateful(make, lambda: (tensor(1, 2),))
    assert twins.compiled(tensor(1, 2))[0] is twins.compiled(tensor(1, 2))[0]


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_reach_arguments_parameters_and_closures(backend):
    def make():
        weight = matrix(3, 3, grad=True)
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight.copy_(matrix(2, 3))
            layer.bias.zero_()

        def program(x, scale):
            hidden = torch.relu(x @ weight)
            return layer(hidden) * scale, hidden.detach(), hidden.sum()

        return program

    twins = Twins(make, backend=backend)
    for i in range(3):
        twins.call(lambda: (matrix(2, 3, grad=True), 2), backward=True, hit=i > 0)
    twins.call(lambda: (matrix(2, 3), 2), backward=True, hit=False)


def test_detach_and_requires_grad_inside():
    def program(x):
        y = (x * 2).detach().requires_grad_()
        z = y * 3
        return x + 1, y, z

    check(program, lambda: (matrix(2, 2, grad=True),), backward=True)


def test_argument_that_is_made_to_require_gradients():
    def program(x):
        x.requires_grad_()
        return x * 2

    check_results(lambda: program, one())


def test_grad_attribute_is_read_and_written():
    def program(x):
        y = x * 2 if x.grad is None else x * x.grad
        return y

    def with_gradient(v):
        def inputs():
            x = tensor(1, 2, grad=True)
            x.grad = tensor(v, v)
            return (x,)

        return inputs

    check_results(
        lambda: program, with_gradient(2), lambda: (tensor(1, 2, grad=True),), with_gradient(3)
    )

    def zero(x):
        x.grad = None
        return x * 2

    check_results(lambda: zero, with_gradient(2), lambda: (tensor(1, 2, grad=True),))


def test_backward_inside_the_program():
    def program(x):
        loss = (x * x).sum()
        loss.backward()
        (g,) = torch.autograd.grad((x * 3).sum(), x)
        return loss.detach(), x.grad, g

    check_results(lambda: program, lambda: (matrix(2, 2, grad=True),))


def test_hooks_on_tensors():
    seen = []

    def program(x):
        y = x * 2
        y.register_hook(lambda g: seen.append(1) or g * 3)
        return y.sum()

    check_results(lambda: program, lambda: (matrix(2, 2, grad=True),))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor * 10, None


def test_autograd_function():
    def program(x, factor):
        return Double.apply(x, factor) + 1

    check(
        program,
        lambda: (matrix(2, 2, grad=True), 3),
        other=[lambda: (matrix(2, 2, grad=True), 4)],
        backward=True,
    )


class Settings:
    def __init__(self, factor):
        self.factor = factor


class ReadsSettingsInBackward(torch.autograd.Function):
    """Reads an argument's attribute in the backward pass only."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        return x * 2

    @staticmethod
    def backward(ctx, g):
        found = ctx.settings[0] if isinstance(ctx.settings, list) else ctx.settings
        return g * found.factor, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("wrap", [lambda settings: settings, lambda settings: [settings]])
def test_object_that_a_backward_pass_reads(backend, wrap):
    twins = Twins(
        lambda: lambda x, settings: ReadsSettingsInBackward.apply(x, settings), backend=backend
    )
    for factor in (2.0, 2.0, 3.0, 3.0):
        make = lambda factor=factor: (matrix(2, 2, grad=True), wrap(Settings(factor)))
        twins.call(make, backward=True)
    assert magpy.cache_info(twins.compiled).hits == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_object_of_a_closure_that_a_backward_pass_reads(backend):
    def make():
        settings = Settings(2.0)

        def program(x):
            return ReadsSettingsInBackward.apply(x, settings)

        program.settings = settings
        return program

    twins = Twins(make, backend=backend)
    for factor in (2.0, 2.0, 3.0, 3.0):
        twins.change(lambda p, factor=factor: setattr(p.settings, "factor", factor))
        twins.call(lambda: (matrix(2, 2, grad=True),), backward=True)


# --- tensors of other kinds ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_shape_of_a_sparse_tensor_is_guarded(layout):
    def program(x):
        return x.to_dense() * x.shape[0]

    make = lambda n: lambda: (torch.eye(n).to_sparse(layout=layout),)
    fast = magpy.compile(program, backend="eager")
    for n in (3, 3, 2, 2, 3):
        assert_same(fast(*make(n)()), program(*make(n)()))
    assert magpy.cache_info(fast).hits == 3


def test_nested_tensor_runs_natively():
    def program(x):
        return [part * 2 for part in (x + 1).unbind()]

    make = lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        assert_same(fast(make()), program(make()))


def test_nested_tensor_misses_the_record_of_a_dense_one():
    fast = magpy.compile(lambda x: x * 2, backend="eager")
    fast(torch.ones(2)), fast(torch.ones(2))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert_same(list(fast(nested).unbind()), list((nested * 2).unbind()))


ARRAYS = {
    "index": lambda x, a: x[a],
    "index in a tuple": lambda x, a: x[None, :, None][:, a],
    "tensor": lambda x, a: torch.tensor(a) + x[:2],
    "sum": lambda x, a: x[:2] + torch.as_tensor(a),
    "in a list": lambda x, a: torch.tensor([a[1], a[0]]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_array_argument_of_an_operator_is_guarded(name):
    make = lambda *values: lambda: (tensor(1, 2, 3), np.array(values))
    check(
        ARRAYS[name], make(0, 2), other=[make(1, 2), make(1)] if name == "index" else [make(1, 2)]
    )


# --- global state of torch -----------------------------------------------------------------------


def test_grad_mode_of_the_caller_is_guarded():
    def program(x):
        return x * 2, torch.is_grad_enabled()

    twins = Twins(lambda: program)
    inputs = lambda: (matrix(2, 2, grad=True),)
    twins.call(inputs, hit=False)
    with torch.no_grad():
        twins.call(inputs, hit=False)
        twins.call(inputs, hit=True)
    twins.call(inputs, hit=True)
    with torch.inference_mode():
        twins.call(inputs, hit=False)
        twins.call(inputs, hit=True)
    twins.call(inputs, hit=True)


def test_default_dtype_is_guarded():
    def program(n):
        return torch.ones(n) * 2

    twins = Twins(lambda: program)
    twins.call(lambda: (3,), hit=False)
    torch.set_default_dtype(torch.float64)
    try:
        twins.call(lambda: (3,), hit=False)
    finally:
        torch.set_default_dtype(torch.float32)
    twins.call(lambda: (3,), hit=True)


def test_default_device_is_guarded():
    def program(n):
        return torch.ones(n)

    twins = Twins(lambda: program)
    twins.call(lambda: (3,), hit=False)
    with torch.device("meta"):
        eager, actual = twins.eager(3), twins.compiled(3)
    assert eager.device == actual.device
    twins.call(lambda: (3,))


def test_autocast_of_the_caller_is_guarded():
    def program(x):
        return x @ x

    twins = Twins(lambda: program)
    twins.call(lambda: (matrix(2, 2),), hit=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        twins.call(lambda: (matrix(2, 2),), hit=False)
        twins.call(lambda: (matrix(2, 2),))
    with torch.autocast("cpu", dtype=torch.float16):
        twins.call(lambda: (matrix(2, 2),), hit=False)
    twins.call(lambda: (matrix(2, 2),), hit=True)


def test_autocast_dtype_of_a_program_that_enables_autocast_is_guarded():
    def program(x):
        torch.set_autocast_enabled("cpu", True)
        try:
            return x @ x
        finally:
            torch.set_autocast_enabled("cpu", False)

    twins = Twins(lambda: program)
    before = torch.get_autocast_dtype("cpu")
    try:
        for dtype, hit in ((torch.bfloat16, False), (torch.float16, False), (torch.bfloat16, True)):
            torch.set_autocast_dtype("cpu", dtype)
            twins.call(lambda: (matrix(2, 2),), hit=hit)
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_modes_inside_the_program():
    @torch.no_grad()
    def decorated(x):
        return x * 3

    def program(x):
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * 3
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = x @ x
        with torch.set_grad_enabled(False):
            d = x + 1
        return a, b, c, d, decorated(x), torch.is_grad_enabled()

    check(program, lambda: (matrix(2, 2, grad=True),), backward=True)


def test_inference_mode_inside_the_program():
    def program(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.is_inference()

    check_results(lambda: program, lambda: (matrix(2, 2),))


def test_program_that_changes_the_grad_mode():
    def program(x):
        y = x * 2
        torch.set_grad_enabled(False)
        return y, x * 3

    try:
        for f in (program, magpy.compile(program, backend="eager")):
            for _ in range(3):
                torch.set_grad_enabled(True)
                y, z = f(matrix(2, 2, grad=True))
                assert y.requires_grad and not z.requires_grad
                assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_program_that_changes_the_default_dtype():
    def program(x):
        torch.set_default_dtype(torch.float64)
        return x + torch.ones(3)

    try:
        for f in (program, magpy.compile(program, backend="eager")):
            for _ in range(3):
                torch.set_default_dtype(torch.float32)
                assert f(tensor(1, 2, 3)).dtype == torch.float64
                assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_deterministic_and_thread_settings_are_guarded():
    def program(x):
        return x * torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()

    twins = Twins(lambda: program)
    twins.call(one())
    torch.use_deterministic_algorithms(True)
    try:
        twins.call(one())
    finally:
        torch.use_deterministic_algorithms(False)
    twins.call(one())


def test_function_mode_of_the_caller_sees_the_operators():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    compiled = magpy.compile(lambda x: x * 2 + 1, backend="eager")
    compiled(tensor(1))
    compiled(tensor(1))
    with Mode():
        compiled(tensor(1))
    assert seen


# --- random numbers ------------------------------------------------------------------------------


def test_dropout_draws_as_in_eager_mode():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))

    def program(x):
        return model(x) + torch.rand(8) + torch.randn_like(x), torch.randperm(4)

    twins = check(program, lambda: (matrix(4, 8),))
    torch.manual_seed(3)
    first = [twins.compiled(matrix(4, 8))[0] for _ in range(2)]
    torch.manual_seed(3)
    again = [twins.eager(matrix(4, 8))[0] for _ in range(2)]
    assert_same(first, again)
    assert not torch.equal(first[0], first[1])


def test_generator_that_is_passed():
    def program(x, g):
        return x + torch.rand(3, generator=g)

    compiled = magpy.compile(program, backend="eager")
    kept = torch.Generator(), torch.Generator()
    for seed in (1, 1, 2):
        for g in kept:
            g.manual_seed(seed)
        assert_same(compiled(tensor(1, 2, 3), kept[0]), program(tensor(1, 2, 3), kept[1]))
    other = torch.Generator().manual_seed(5)
    expected = program(tensor(1, 2, 3), torch.Generator().manual_seed(5))
    assert_same(compiled(tensor(1, 2, 3), other), expected)


def test_seed_set_inside():
    def program(x):
        torch.manual_seed(7)
        return x + torch.rand(3)

    check_results(lambda: program, one())


# --- modules -------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.kind = "relu"

    def forward(self, x):
        x = self.norm(self.first(x))
        for layer in self.layers:
            x = self.table[self.kind](layer(x)) * self.scale + self.shift
        return F.dropout(x, 0.5, self.training)


def net():
    torch.manual_seed(1)
    return Net()


def replace_layer(m):
    torch.manual_seed(2)
    m.layers[1] = nn.Linear(4, 4)


def add_layer(m):
    torch.manual_seed(2)
    m.layers.append(nn.Linear(4, 4))


def freeze(m):
    m.scale.requires_grad_(False)


def forward_hook(m):
    torch.utils.hooks.RemovableHandle.next_id = 10_000  # hooks are kept by number
    m.layers[0].register_forward_hook(lambda mod, args, out: out * 2)


def forward_pre_hook(m):
    torch.utils.hooks.RemovableHandle.next_id = 20_000
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def own_forward(m):
    m.layers[0].forward = lambda x: x * 2


def new_parameter(m):
    m.scale = nn.Parameter(torch.full((4,), 2.0))


def new_buffer(m):
    m.shift = torch.ones(4)


def none_buffer(m):
    m.shift = torch.ones(1)


MODULE_CHANGES = {
    "eval": lambda m: m.eval(),
    "submodule eval": lambda m: m.norm.eval(),
    "plain attribute": lambda m: setattr(m, "kind", "tanh"),
    "new parameter": new_parameter,
    "replaced layer": replace_layer,
    "added layer": add_layer,
    "frozen": freeze,
    "forward hook": forward_hook,
    "forward pre-hook": forward_pre_hook,
    "own forward": own_forward,
    "momentum": lambda m: setattr(m.norm, "momentum", 0.5),
    "another class": lambda m: setattr(m.table["relu"], "__class__", nn.Tanh),
    "renamed activation": lambda m: m.table.update({"relu": nn.GELU()}),
    "bias removed": lambda m: setattr(m.first, "bias", None),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_change_of_a_module_must_miss(name):
    check_stateful(net, lambda: (matrix(4, 3),), changes=[MODULE_CHANGES[name]], backward=True)


DATA_CHANGES = {
    "buffer replaced": new_buffer,
    "buffer of another shape": none_buffer,
    "data in place": lambda m: m.scale.data.mul_(3),
    "data replaced": lambda m: setattr(m.scale, "data", torch.full((4,), 5.0)),
    "loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "half and back": lambda m: m.half().float(),
    "double": lambda m: m.double().float(),
    "gradients dropped": lambda m: m.zero_grad(),
    "train again": lambda m: m.train(),
    "data of another layout": lambda m: setattr(
        m.first.weight, "data", m.first.weight.data.t().clone().t()
    ),
}


@pytest.mark.parametrize("name", DATA_CHANGES)
def test_change_of_a_modules_data_is_seen(name):
    twins = Twins(net)
    for _ in range(2):
        twins.call(lambda: (matrix(4, 3),), backward=True)
    twins.change(DATA_CHANGES[name])
    for i in range(2):
        twins.call(lambda: (matrix(4, 3),), backward=True, why=f"after {i}")


def test_other_dtype_of_a_model():
    twins = Twins(net)
    twins.call(lambda: (matrix(4, 3),), hit=False)
    twins.change(lambda m: m.double())
    twins.call(lambda: (matrix(4, 3).double(),), hit=False)
    twins.call(lambda: (matrix(4, 3).double(),), hit=True)


def test_batch_norm_counts_and_averages_at_every_call():
    twins = Twins(net)
    for i in range(4):
        twins.call(lambda: (matrix(4, 3) * i,), hit=i > 0, backward=True)
    assert twins.target.norm.num_batches_tracked == 4


def test_global_module_hook_must_miss():
    from torch.nn.modules import module

    twins = Twins(net)
    twins.call(lambda: (matrix(4, 3),))
    twins.call(lambda: (matrix(4, 3),), hit=True)
    handle = module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        twins.call(lambda: (matrix(4, 3),), hit=False)
    finally:
        handle.remove()
    twins.call(lambda: (matrix(4, 3),), hit=True)


def test_two_instances_of_a_module_equal_eager():
    a, b = net(), net()
    with torch.no_grad():
        b.scale.mul_(3)

    def program(m, x):
        return m(x)

    compiled = magpy.compile(program, backend="eager")
    for m in (a, b, a, b):
        m.eval()
        assert_same(compiled(m, matrix(4, 3)), m(matrix(4, 3)))


def test_copy_of_a_compiled_model_has_its_own_parameters():
    compiled = magpy.compile(net().eval(), backend="eager")
    compiled(matrix(4, 3))
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin.scale.mul_(3)
    assert_same(twin(matrix(4, 3)), twin._orig_mod(matrix(4, 3)))
    assert_same(compiled(matrix(4, 3)), compiled._orig_mod(matrix(4, 3)))


def test_weight_sharing():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            with torch.no_grad():
                self.a.weight.copy_(matrix(3, 3))
                self.b.weight.copy_(matrix(3, 3) * 2)
                self.a.bias.zero_()
                self.b.bias.zero_()
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    def untie(m):
        m.b.weight = nn.Parameter(matrix(3, 3) * 3)

    check_stateful(Tied, lambda: (matrix(2, 3),), changes=[untie], backward=True)


SCALARS = [np.bool_(True), np.complex64(2), np.complex128(2j), np.int8(3)]


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_operators_take_numpy_scalars_as_in_eager_mode(scalar, backend):
    """Torch takes a flag of NumPy as a floating-point number, unlike a flag of Python."""

    def program(x, s):
        flags, whole = x.to(torch.bool), x.int()
        results = flags * s, whole + s, s - whole, torch.full((1,), s), torch.tensor([s])
        return *results, torch.where(flags, s, s), whole == s, torch.pow(whole, s)

    compiled = magpy.compile(program, backend=backend)
    x = torch.tensor([1.0, 2.0])
    for _ in range(3):
        assert_same(compiled(x, scalar), program(x, scalar))
    info = magpy.cache_info(compiled)
    assert info.hits + info.uncompiled == 2


def test_new_tensor_has_the_dtype_of_numpy_scalars():
    def program(x):
        scale = np.float64(0.5)
        table = [[np.float64(1.5), 2.0], [np.float32(3.0), np.int64(4)]]
        return (
            x * torch.tensor(table[0]),
            torch.tensor(scale) + x,
            torch.as_tensor([np.float64(1), 2.0]),
            torch.tensor([np.int32(3), np.int32(5)]),
            torch.tensor([scale], dtype=torch.float16),
            x * scale,
        )

    check(program, one(1.0, 2.0))


@pytest.mark.parametrize("name", ["T", "data", "grad", "grad_fn", "shape", "no_such_name"])
def test_hasattr_on_a_tensor(name):
    def program(x):
        return x * 2 if hasattr(x, name) else x * 3

    check(program, lambda: (matrix(2, 2),))
    assert not magpy.explain(program, matrix(2, 2)).split_points


def test_hasattr_for_an_attribute_set_on_a_tensor():
    def program(x):
        return x * 2 if hasattr(x, "mark") else x * 3

    def marked():
        x = matrix(2, 2)
        x.mark = True
        return (x,)

    check(program, lambda: (matrix(2, 2),), other=[marked])


def test_torch_function_of_a_tensor_subclass_sees_only_the_programs_operators():
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    def new(x):
        return (x.as_subclass(Watched) * 2).sum()

    def external(x):
        return (x * 2).sum()

    for program, argument in ((new, tensor(1, 2)), (external, None)):
        compiled = magpy.compile(program, backend="eager")
        argument = tensor(1, 2).as_subclass(Watched) if argument is None else argument
        runs = []
        for function in (program, compiled, compiled):
            del seen[:]
            function(argument)
            runs.append(list(seen))
        assert runs[1:] == [runs[0], runs[0]] and "mul" in runs[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda size, like: torch.Tensor(size),
        lambda size, like: torch.FloatTensor(size),
        lambda size, like: torch.DoubleTensor(size),
        lambda size, like: like.new(size),
    ],
    ids=["Tensor", "FloatTensor", "DoubleTensor", "new"],
)
@pytest.mark.parametrize("kind", [torch.Size, tuple], ids=["size", "elements"])
def test_legacy_constructors_distinguish_a_size_from_elements(make, kind):
    def program(x):
        return x + make(kind(x.size()), x).fill_(1.0).sum()

    fast = magpy.compile(program, fullgraph=True, backend="eager")
    for x in (torch.ones(3, 4), torch.zeros(3, 4)):
        assert_same(fast(x), program(x))
    assert magpy.cache_info(fast).hits == 1
