"""The default device, set around a call or inside: constructors create tensors there.

``meta`` is a device that every machine has besides the CPU.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import magpy_like as magpy
from tests.compare import assert_same

DEVICES = ("cpu", "meta")


@pytest.fixture(autouse=True)
def _default_device_reset():
    yield
    torch.set_default_device(None)


def _same(expected, actual):
    """Compares tensors; those without data by their metadata."""
    for a, b in zip(expected, actual, strict=True):
        assert (a.device, a.dtype, a.shape, a.stride()) == (b.device, b.dtype, b.shape, b.stride())
        assert a.requires_grad == b.requires_grad
        if a.device.type == "cpu":
            assert_same(b.detach(), a.detach())


def _constructs(x):
    return (
        torch.zeros(3) + x,
        torch.arange(3),
        torch.tensor([1.0, 2.0]),
        torch.as_tensor(x),
        torch.full((2,), 0.5, device="cpu"),
        torch.zeros_like(x),
        x.new_ones(2),
        torch.linspace(0, 1, 4),
    )


def _calls_torchs_python_functions(x):
    y = F.relu(x) + F.softmax(torch.ones(3), 0) - x.norm()
    return y, F.dropout(1 - y, 0.5, training=False), *y.split(2)


def _reads_default_device(x):
    return x + torch.ones(3), torch.zeros(2, device=torch.get_default_device())


def _sets_default_device(x):
    with torch.device("meta"):
        nowhere = F.relu(torch.ones(3)) * torch.arange(3)
        with torch.device("cpu"):
            here = torch.ones(3)
    return nowhere, here, x * torch.full((3,), 2.0, device=x.device)


class _AddsOnes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + torch.ones(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.full((3,), 2.0)


def _custom_function(x):
    return _AddsOnes.apply(x * 2) * torch.arange(3.0), x


def _differentiates(x):
    return torch.func.grad(lambda v: (v * torch.arange(3.0)).sum())(x), x


PROGRAMS = (
    _constructs, _calls_torchs_python_functions, _reads_default_device, _sets_default_device,
    _custom_function, _differentiates,
)  # fmt: skip


def _inside(device):
    return torch.device(device)


class _DefaultDeviceSet:
    def __init__(self, device):
        self._device = device

    def __enter__(self):
        torch.set_default_device(self._device)

    def __exit__(self, *_):
        torch.set_default_device(None)


@pytest.mark.parametrize("around", [_inside, _DefaultDeviceSet])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_tensors_are_created_on_the_default_device(program, device, around):
    fast = magpy.compile(program, backend="aot_eager")
    for i in range(3):
        with around(device):
            x = torch.arange(3.0) + i
            _same(program(x), fast(x))
    assert magpy.cache_info(fast) == magpy.CacheInfo(hits=2, misses=1, records=1, graphs=1)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_each_default_device_has_a_record(backend):
    program = lambda x: (torch.arange(3) * 2, x + 1)
    fast = magpy.compile(program, backend=backend)
    x = torch.ones(3)
    for _ in range(3):
        _same(program(x), fast(x))
        for device in DEVICES:
            with torch.device(device):
                _same(program(x), fast(x))
    info = magpy.cache_info(fast)
    assert info[1:4] == (3, 3, 3)
    by_operator = 2 if backend == "magpy" else 0  # the compiler takes no tensors on meta
    assert (info.hits, info.uncompiled) == (6 - by_operator, by_operator)
    guards = magpy.explain(fast, x).guards
    assert not any("default device" in guard for guard in guards)
    with torch.device("meta"):
        assert "the default device is meta" in magpy.explain(fast, x).guards


@pytest.mark.parametrize("backend", ["aot_eager", "magpy"])
def test_module_trains_under_a_default_device(backend):
    def run(compiled):
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 1))
            call = magpy.compile(model, backend=backend) if compiled else model
            for i in range(3):
                call(torch.arange(12.0).reshape(4, 3).sin() + i).pow(2).sum().backward()
            if compiled:
                assert magpy.cache_info(call).hits == 2
            return {name: p.grad for name, p in model.named_parameters()}, model.state_dict()

    assert_same(run(True), run(False))


def test_backward_of_a_custom_function_uses_the_default_device_of_its_call():
    fast = magpy.compile(_custom_function, backend="aot_eager")
    for device in ("cpu", "meta", "cpu"):
        grads = []
        for call in (_custom_function, fast):
            x = torch.ones(3, requires_grad=True)
            with torch.device("cpu"):
                y, _ = call(x)
            with torch.device(device):
                torch.autograd.backward(y, torch.ones(3, device="cpu"))
            grads.append(x.grad)
        assert_same(*grads)
    assert magpy.cache_info(fast).hits == 2


def test_exception_restores_the_default_device():
    table = torch.arange(4.0)

    def program(i):
        with torch.device("meta"):
            return table[i], torch.ones(2)

    fast = magpy.compile(program, backend="eager")
    for index in (1, 2, 9, 3):
        i = torch.tensor([index])
        if index == 9:
            with pytest.raises(IndexError):
                fast(i)
        else:
            _same(program(i), fast(i))
        assert torch.get_default_device() == torch.device("cpu")
    assert magpy.cache_info(fast).hits == 3


def test_program_may_leave_another_default_device():
    def program(x):
        torch.set_default_device("meta")
        return torch.ones(2), x + 1

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        created, _ = fast(torch.ones(3, device="cpu"))
        assert created.device.type == "meta"
        assert torch.get_default_device().type == "meta"
        torch.set_default_device(None)


def test_function_mode_of_the_user_receives_every_operator():
    class Counting(TorchFunctionMode):
        def __init__(self):
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            return func(*args, **kwargs or {})

    fast = magpy.compile(lambda x: x.sin() + torch.ones(3), backend="eager")
    for _ in range(2):
        fast(torch.ones(3))
    with torch.device("cpu"), Counting() as mode:
        fast(torch.ones(3, device="cpu"))
    assert torch.Tensor.sin in mode.seen


def test_continuation_runs_under_the_default_device_of_the_split():
    messages = []
    split = magpy.disable(lambda text: messages.append(text))

    def program(x):
        with torch.device("meta"):
            nowhere = torch.ones(3)
            split("inside")
            also = F.relu(torch.zeros(2))
            with torch.device("cpu"):
                here = torch.ones(3) * x
                split("deeper")
            split("outside")
            last = torch.ones(1)
        return nowhere, also, here, last, torch.ones(3)

    fast = magpy.compile(program, backend="eager")
    for i in range(4):
        x = torch.full((3,), float(i))
        _same(program(x), fast(x))
        assert torch._C._len_torch_function_stack() == 0
    assert messages == ["inside", "deeper", "outside"] * 8
    info = magpy.cache_info(fast)
    assert info.hits >= 2
    assert info.records == 4


def test_custom_function_under_an_inner_default_device_matches_eager():
    def program(x):
        with torch.device("cpu"):
            y = _AddsOnes.apply(x)
        return y, torch.ones(3, device="cpu")

    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        x = torch.full((3,), float(i), device="cpu")
        _same(program(x), fast(x))
        with torch.device("meta"):
            _same(program(x), fast(x))


def test_outer_default_device_is_guarded_in_a_continuation():
    split = magpy.disable(lambda: None)

    def program(x):
        with torch.device("meta"):
            split()
            nowhere = torch.ones(3)
        return nowhere, torch.ones(2)

    fast = magpy.compile(program, backend="eager")
    x = torch.ones(3)
    for device in ("cpu", "meta") * 3:
        with torch.device(device):
            _same(program(x), fast(x))
    assert magpy.cache_info(fast).hits >= 4
