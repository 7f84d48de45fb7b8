"""Custom functions are compiled only if their backward passes depend on their arguments alone."""

import functools
import math
import random
import re

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import magpy_like as magpy
from magpy_like.graph_operators.node_metadata import AS_IS
from tests.compare import assert_same
from tests.programs import load

LOG, BUFFER, STATE = [], torch.zeros(3), {"count": 0, "scale": 2.0}
SCALE = 2.0


class Settings:
    scale = 3.0


def clamped(gradient):
    return gradient.clamp(-1, 1)


def scaled(gradient):
    return gradient * SCALE


def log(ctx, gradient):
    LOG.append(1)
    return gradient * len(LOG)


def write(ctx, gradient):
    BUFFER.add_(1)
    return gradient * BUFFER


def count(ctx, gradient):
    STATE["count"] += 1
    return gradient * STATE["count"]


def count_in_variable(ctx, gradient):
    global SCALE
    SCALE += 1
    return gradient


def read_in_inner_function(ctx, gradient):
    return [scaled(g) for g in (gradient,)][0]


def closure():
    count = 0

    def backward(ctx, gradient):
        nonlocal count
        count += 1
        return gradient * count

    return backward


def times_scale(function):
    @functools.wraps(function)
    def wrapped(ctx, gradient):
        LOG.append(2)
        return function(ctx, gradient) * SCALE

    return wrapped


DEPENDENT = {
    "appends": lambda: log,
    "class attribute": lambda: lambda ctx, gradient: gradient * Settings.scale,
    "closure": closure,
    "decorated": lambda: times_scale(lambda ctx, gradient: gradient * 3),
    "decorated, once differentiable": lambda: once_differentiable(times_scale(log)),
    "gradient mode": lambda: lambda ctx, gradient: gradient * (1 + torch.is_grad_enabled()),
    "in a function": lambda: read_in_inner_function,
    "once differentiable": lambda: once_differentiable(log),
    "random number": lambda: lambda ctx, gradient: gradient * random.random(),
    "reads a number": lambda: lambda ctx, gradient: gradient * SCALE,
    "sets a global": lambda: count_in_variable,
    "sets an entry": lambda: count,
    "writes to a tensor": lambda: write,
}
"""Functions that make backward passes."""


def zeroed(ctx, gradient):
    copy = gradient.clone()
    copy[gradient > 0] = 0
    copy += 1
    return copy.mul_(2)


INDEPENDENT = {
    "builtins": lambda ctx, gradient: gradient * float(len(gradient.shape)),
    "functional": lambda ctx, gradient: F.relu(gradient),
    "in a function": lambda ctx, gradient: [clamped(g) for g in (gradient,)][0],
    "in an inner function": lambda ctx, gradient: (lambda: gradient.neg())(),
    "mathematics": lambda ctx, gradient: gradient * math.sqrt(2) * math.pi,
    "method": lambda ctx, gradient: gradient.neg(),
    "once differentiable": once_differentiable(lambda ctx, gradient: clamped(gradient)),
    "writes to a copy": zeroed,
    "operator": lambda ctx, gradient: torch.where(gradient > 0, gradient.to(torch.float32), 0),
}


def program_with(backward, forward=lambda ctx, x: x * 2):
    class Doubled(torch.autograd.Function):
        """Has the given functions."""

    Doubled.forward, Doubled.backward = staticmethod(forward), staticmethod(backward)
    return lambda x: Doubled.apply(x.sin()) + 1


def observe(call):
    global SCALE
    SCALE, STATE["count"] = 2.0, 0
    LOG.clear()
    BUFFER.zero_()
    random.seed(0)
    found = []
    for number in range(4):
        SCALE += number
        Settings.scale = number
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        found.append((x.grad, len(LOG), BUFFER.clone(), STATE["count"], SCALE, random.random()))
    return found


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("backward", DEPENDENT.values(), ids=DEPENDENT)
def test_state_that_a_backward_pass_reads_or_changes(backward, backend):
    expected = observe(program_with(backward()))
    run = magpy.compile(program_with(backward()), backend=backend)
    assert_same(observe(run), expected)
    assert magpy.cache_info(run).hits > 0


def keep(value):
    def forward(ctx, x):
        ctx.kept = value() if callable(value) else value
        return x * 2

    return forward


OBJECTS = {
    "dictionary": (keep(lambda: STATE), lambda ctx, gradient: gradient * len(ctx.kept)),
    "list": (keep(lambda: LOG), lambda ctx, gradient: (ctx.kept.append(1), gradient)[1]),
    "class instance": (keep(Settings), lambda ctx, gradient: gradient * ctx.kept.scale),
    "function": (keep(lambda: scaled), lambda ctx, gradient: ctx.kept(gradient)),
}


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(("forward", "backward"), OBJECTS.values(), ids=OBJECTS)
def test_objects_that_the_context_keeps(forward, backward, backend):
    program = program_with(backward, forward)
    run = magpy.compile(program, backend=backend)
    assert_same(observe(run), observe(program))
    assert magpy.cache_info(run).hits > 0


@torch.library.custom_op("magpy_backward_code::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("magpy_backward_code::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


for operator in (double, triple):
    operator.register_fake(torch.empty_like)
double.register_autograd(log, setup_context=lambda ctx, inputs, output: LOG.append(0))
triple.register_autograd(lambda ctx, gradient: triple(gradient))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("operator", [double, torch.ops.magpy_backward_code.double])
def test_backward_passes_registered_for_operators(operator, backend):
    def program(x):
        return operator(x.sin()) + 1

    run = magpy.compile(program, backend=backend)
    assert_same(observe(run), observe(program))
    assert magpy.cache_info(run).hits > 0


COMPILED = {
    **{name: program_with(backward) for name, backward in INDEPENDENT.items()},
    "kept number": program_with(lambda ctx, gradient: gradient * ctx.kept, keep(2.0)),
    "kept list": program_with(lambda ctx, gradient: gradient * ctx.kept[1], keep(lambda: [1, 3.0])),
    "kept tuple": program_with(lambda ctx, gradient: gradient * ctx.kept[1], keep((1, 3.0))),
    "registered": lambda x: triple(x.sin()) + 1,
}


@pytest.mark.parametrize("program", COMPILED.values(), ids=COMPILED)
def test_backward_pass_of_its_arguments_alone_is_compiled(program):
    run = magpy.compile(program)
    assert_same(observe(run), observe(program))
    graphs = magpy.explain(run, torch.ones(3)).graphs
    assert graphs
    assert not any(AS_IS in node.meta for graph in graphs for node in graph.graph.nodes)


class Holder:
    def __init__(self, value):
        self.value = value


def itself(kept):
    return kept


def value_of(kept):
    return kept.value


KEPT = {
    "global": (lambda given: SCALE, itself),
    "attribute": (lambda given: Settings.scale, itself),
    "computed": (lambda given: SCALE * 2 + 1, itself),
    "entry": (lambda given: STATE["scale"], itself),
    "list": (lambda given: [SCALE, 1], lambda kept: kept[0]),
    "text": (lambda given: f"{SCALE}", lambda kept: float(kept)),
    "attribute of an argument": (value_of, itself),
    "argument": (itself, value_of),
}
"""Functions that read what a context keeps, and the number in it."""


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("name", KEPT)
def test_numbers_that_differ_between_calls_reach_the_backward_pass(name, backend):
    read, use = KEPT[name]
    make = Holder if "argument" in name else bool

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, given):
            ctx.kept = read(given)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * use(ctx.kept), None

    def program(x, number):
        return Scaled.apply(x.sin(), make(number)) + 1

    def gradients(call):
        global SCALE
        found = []
        for number in (2.0, 2.0, 3.0, 4.0, 5.0):
            SCALE = STATE["scale"] = Settings.scale = number
            x = torch.ones(3, requires_grad=True)
            call(x, number).sum().backward()
            found.append(x.grad)
        return found

    assert_same(gradients(magpy.compile(program, backend=backend)), gradients(program))


TEXT = """
import torch

def helper(gradient, factor=3):
    return gradient * factor

def outer(gradient):
    return helper(gradient) + 1

class Methods:
    @staticmethod
    def helper(gradient):
        return gradient * 3

class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return {backward}

def program(x):
    return Doubled.apply(x) + 1

def change():
    global helper
    {change}
"""
REPLACED = {
    "function": ("helper(gradient)", "helper = lambda gradient: gradient * 5"),
    "code": ("helper(gradient)", "helper.__code__ = (lambda gradient, factor: gradient).__code__"),
    "default": ("helper(gradient)", "helper.__defaults__ = (5,)"),
    "inner function": ("outer(gradient)", "helper = lambda gradient: gradient * 5"),
    "method": (
        "Methods.helper(gradient)",
        "Methods.helper = staticmethod(lambda gradient: gradient * 5)",
    ),
    "other custom function": (
        "Other.apply(gradient)",
        "Other.forward = staticmethod(lambda ctx, x: x * 5)",
    ),
    "backward pass": (
        "gradient",
        "Doubled.backward = staticmethod(lambda ctx, gradient: gradient * 5)",
    ),
    "attribute of a module": ("torch.square(gradient)", "torch.square = torch.neg"),
}


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize(("backward", "change"), REPLACED.values(), ids=REPLACED)
def test_functions_of_a_backward_pass_that_are_replaced(backward, change, backend, monkeypatch):
    monkeypatch.setattr(torch, "square", torch.square)  # restored at the end
    square, found = torch.square, []
    for compiled in (False, True):
        program = load(TEXT.format(backward=backward, change=change))()
        call = magpy.compile(program, backend=backend) if compiled else program
        for number in range(4):
            x = torch.full((3,), 2.0, requires_grad=True)
            call(x).sum().backward()
            found.append(x.grad)
            if number == 1:
                program.__globals__["change"]()
        torch.square = square
    assert_same(found[4:], found[:4])
    assert not torch.equal(found[1], found[2])


def test_functions_that_a_registered_backward_pass_calls_may_be_replaced(monkeypatch):
    @torch.library.custom_op("magpy_backward_code::quadruple", mutates_args=())
    def quadruple(x: torch.Tensor) -> torch.Tensor:
        return x * 4

    quadruple.register_fake(torch.empty_like)
    quadruple.register_autograd(lambda ctx, gradient: clamped(gradient))
    run = magpy.compile(lambda x: quadruple(x) * 3)
    found = []
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        run(x).sum().backward()
        found.append(x.grad)
        if len(found) == 2:
            monkeypatch.setitem(globals(), "clamped", lambda gradient: gradient * 2)
    assert_same(found, [torch.full((3,), value) for value in (1.0, 1.0, 6.0)])


def count_in_entry(ctx, gradient):
    ctx.kept[0] += 1
    return gradient * ctx.kept[0]


FACTOR = [1]
OF_ONE_CALL = {
    "leaf": lambda ctx, gradient: gradient * (2 if ctx.saved_tensors[0].is_leaf else 3),
    "node": lambda ctx, gradient: gradient * (2 if ctx.saved_tensors[0].grad_fn is None else 3),
    "class": lambda ctx, gradient: (
        gradient * (2 if isinstance(ctx.saved_tensors[0], torch.nn.Parameter) else 3)
    ),
    "layout": lambda ctx, gradient: gradient * (2 if gradient.is_contiguous() else 3),
    "strides": lambda ctx, gradient: gradient * (2 + sum(gradient.stride())),
    "contiguous": lambda ctx, gradient: gradient.contiguous(),
    "list": lambda ctx, gradient: (ctx.kept.append(1), gradient * len(ctx.kept))[1],
    "entry": count_in_entry,
    "class attribute": lambda ctx, gradient: gradient * ctx._forward_cls.scale,
    "attribute of a function": lambda ctx, gradient: gradient * clamped.scale,
    "default argument": lambda ctx, gradient, factor=FACTOR: gradient * factor[0],
}
"""Backward passes that depend on more than the values of tensors."""


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("backward", OF_ONE_CALL.values(), ids=OF_ONE_CALL)
def test_backward_passes_see_the_tensors_and_objects_of_their_call(backward, backend):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.kept = [1]
            return x * 2

    Doubled.backward = staticmethod(backward)

    def gradients(call):
        found = []
        for number in (2, 2, 3):
            FACTOR[0] = clamped.scale = Doubled.scale = number
            x = torch.nn.Parameter(torch.ones(2, 3))
            total = call(x).sum()
            found += [torch.autograd.grad(total, x, retain_graph=True) for _ in range(2)]
        return found

    run = magpy.compile(Doubled.apply, backend=backend)
    program = magpy.compile(lambda x: Doubled.apply(x), backend=backend)
    expected = gradients(Doubled.apply)
    assert_same(gradients(run), expected)
    assert_same(gradients(program), expected)
    assert magpy.cache_info(program).hits


def test_explain_has_the_reason_why_a_custom_function_runs_as_it_is():
    program = program_with(lambda ctx, gradient: gradient.contiguous())
    x = torch.ones(3, requires_grad=True)
    report = str(magpy.explain(magpy.compile(program), x))
    reason = "the backward pass of .*Doubled reads `contiguous` of a tensor"
    assert re.search(f"apply runs as it is: {reason}", report)
    plain = program_with(lambda ctx, gradient: gradient * 2)
    assert "runs as it is" not in str(magpy.explain(magpy.compile(plain), x))


def check_gradients(forward, backward, use, backend="magpy"):
    """Compares what ``use`` computes with the function of these two passes, call by call."""

    class Made(torch.autograd.Function):
        """Has the given functions."""

    Made.forward, Made.backward = staticmethod(forward), staticmethod(backward)

    def program(*args):
        return Made.apply(*args)

    run = magpy.compile(program, backend=backend)
    for _ in range(3):
        assert_same(use(run), use(program))
    assert magpy.cache_info(run).hits


def test_backward_passes_run_outside_the_autocast_of_the_caller():
    def use(call):
        x = torch.ones(2, 2, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = call(x)
        result.backward(torch.eye(2))
        return x.grad

    check_gradients(
        lambda ctx, x: x * 1, lambda ctx, gradient: gradient @ torch.full((2, 2), 257.0), use
    )


def test_tensors_in_containers_of_a_context_have_gradients():
    def forward(ctx, x, w):
        ctx.kept = (w,)
        return x * w

    def use(call):
        x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
        (gradient.sum() + x.sum()).backward()
        return gradient, w.grad

    check_gradients(forward, lambda ctx, gradient: (gradient * ctx.kept[0].sin(), None), use)


def test_attributes_of_a_context_may_be_written_to_before_the_backward_pass():
    def forward(ctx, x, w):
        ctx.w = w
        return x * 2

    def use(call):
        x, w = torch.ones(2, requires_grad=True), torch.ones(2)
        total = call(x, w).sum()
        w.add_(1)
        total.backward()
        return x.grad

    check_gradients(forward, lambda ctx, gradient: (gradient * ctx.w, None), use)


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_global_tensor_that_a_custom_function_returns_has_a_history_of_each_call(backend):
    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return kept[0]

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def program(x):
        return Constant.apply(x)

    run = magpy.compile(program, backend=backend)
    found = []
    for call in (program, run):
        kept = [torch.ones(2)]
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            call(x).sum().backward()
            found.append(x.grad)
    assert_same(found[3:], found[:3])


class Tagged(torch.Tensor):
    """A class of tensors without functions of its own."""


def test_results_keep_the_class_of_tensors():
    run = magpy.compile(lambda x: [x.as_subclass(Tagged) * 2, x + 1])
    doubled = magpy.compile(lambda x: x * 2)
    for _ in range(3):
        assert list(map(type, run(torch.ones(2)))) == [Tagged, torch.Tensor]
        assert type(doubled(torch.ones(2))) is torch.Tensor
        assert type(doubled(torch.ones(2).as_subclass(Tagged))) is Tagged
