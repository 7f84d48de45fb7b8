"""Arguments of every kind, which guards must distinguish."""

import collections
import functools
import itertools
import math

import numpy as np
import torch
from torch import nn

from tests.hostile.cases import State, case
from tests.programs import tensor


def inputs_with(*objs):
    return [(lambda o=o: (tensor(1.0, -2.0, 3.0), o)) for o in objs for _ in range(2)] + [
        (lambda o=o: (tensor(4.0, -2.0, 3.0), o)) for o in objs
    ]


class Configuration:
    def __init__(s, k):
        s.k = k


@case(inputs=inputs_with(lambda v: v * 2, lambda v: v * 3, abs))
def function_passed_to_apply():
    def f(x, fn):
        return x.clone().apply_(fn)

    return f


@case(inputs=inputs_with(lambda v: v * 2, lambda v: v * 3))
def function_passed_to_vmap():
    def f(x, fn):
        return torch.vmap(fn)(x)

    return f


@case(
    inputs=inputs_with(
        np.array([1.0, 2.0, 3.0], dtype=np.float32), np.array([1.0, 2.0, 4.0], dtype=np.float32)
    )
)
def array_argument_of_operator():
    def f(x, a):
        return x * torch.as_tensor(a) + torch.tensor(a)

    return f


@case(inputs=inputs_with(Configuration(2.0), Configuration(3.0)))
def object_passed_to_custom_function():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            return x * c.k

        @staticmethod
        def backward(ctx, g):
            return g, None

    def f(x, c):
        return Fn.apply(x, c)

    return f


@case(inputs=inputs_with(Configuration([2.0]), Configuration([3.0]), Configuration((3.0,))))
def list_passed_to_custom_function():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            return x * c.k[0] * len(c.__dict__)

        @staticmethod
        def backward(ctx, g):
            return g, None

    def f(x, c):
        return Fn.apply(x, c)

    return f


@case(inputs=inputs_with(slice(0, 2), slice(1, 3), (slice(0, 1),), [0, 1], [1, 2], None, ..., True))
def index_objects():
    def f(x, i):
        return x[i]

    return f


@case(inputs=inputs_with(torch.float64, torch.int32, torch.float32))
def dtype_argument():
    def f(x, d):
        return x.to(d), torch.zeros(2, dtype=d)

    return f


@case(inputs=inputs_with((3, 1), [1, 3], torch.Size([3])))
def size_argument():
    def f(x, s):
        return x.reshape(s), x.view(*s), torch.zeros(s)

    return f


@case(inputs=inputs_with({"dim": 0}, {"dim": 0, "keepdim": True}, {}))
def keyword_arguments_of_operator():
    def f(x, k):
        return x.sum(**k)

    return f


@case(inputs=inputs_with("sum", "mean", "none"))
def string_argument_of_operator():
    def f(x, r):
        return nn.functional.mse_loss(x, x + 1, reduction=r)

    return f


@case(
    inputs=inputs_with(
        nn.ReLU(),
        nn.Sigmoid(),
        torch.relu,
        torch.sigmoid,
        torch.nn.functional.gelu,
        lambda x: x * 3,
        functools.partial(torch.mul, other=3),
    )
)
def callable_arguments():
    def f(x, m):
        return m(x)

    return f


@case(
    inputs=inputs_with(
        [1, 2],
        [1, 2, 3],
        (1, 2),
        {1: 2},
        {1, 2},
        "ab",
        b"ab",
        range(3),
        collections.deque([1, 2]),
        frozenset([1]),
        np.arange(3),
    )
)
def sized_arguments():
    def f(x, o):
        return x * len(o), [v for v in o], bool(len(o) > 2)

    return f


@case(inputs=inputs_with(1, 1.0, True, np.float32(1), np.int64(1), "1", None, 1 + 0j))
def branch_on_type():
    def f(x, o):
        return (
            x
            if o is None
            else x * 2
            if isinstance(o, bool)
            else x * 3
            if isinstance(o, int)
            else x * 4
            if isinstance(o, float)
            else x * 5
            if isinstance(o, str)
            else x * 6
        )

    return f


@case(inputs=inputs_with(1, 1.0, True, 0, -0.0, 0.0, float("nan"), float("inf"), 2**70))
def branch_on_number():
    def f(x, o):
        return x * o if o == o and abs(o) < 2**60 else x, o, str(o), repr(o)

    return f


@case(inputs=inputs_with(0.0, -0.0, 0.0, -0.0))
def negative_zero():

    def f(x, o):
        return x * math.copysign(1.0, o), o

    return f


@case(inputs=inputs_with((1, 2), (1.0, 2), (True, 2), [1, 2]))
def equal_values_of_different_type():
    def f(x, o):
        return x * (2 if type(o[0]) is int else 3), o == (1, 2), o

    return f


@case(inputs=inputs_with({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 2, "c": 3}))
def dictionary_order():
    def f(x, d):
        r = x
        for k, v in d.items():
            r = r * v + len(k) + ord(k)
        return r, list(d), tuple(d.values())

    return f


@case(inputs=inputs_with({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}))
def keyword_order():
    def g(**k):
        return list(k)

    def f(x, d):
        return x, g(**d), {**d, "z": 0}

    return f


@case(inputs=inputs_with({1, 2, 3}, {3, 2, 1}, {1, 2}, set()))
def set_iteration():
    def f(x, d):
        return x * sum(d), sorted(d), d | {5}

    return f


@case(
    inputs=inputs_with(
        torch.ones(3),
        torch.ones(3, dtype=torch.float64),
        torch.ones(1),
        torch.ones(3).requires_grad_(),
        torch.ones(6)[::2],
        torch.ones(3, 1),
        nn.Parameter(torch.ones(3)),
        torch.ones(0),
    )
)
def tensor_forms():
    def f(x, o):
        try:
            return x + o, o.is_contiguous(), o.requires_grad, type(o).__name__
        except RuntimeError as e:
            return str(e)

    return f


@case(inputs=inputs_with([torch.ones(3)], [torch.ones(3), torch.zeros(3)], [], (torch.ones(3),)))
def lists_of_tensors():
    def f(x, o):
        o2 = list(o) + [x]
        return torch.stack(o2), sum(o2), len(o)

    return f


@case(
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0),),
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(1.0, 2.0, 3.0),),
    ],
    backward=True,
)
def branch_on_requires_grad():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        return (x * w).sum(), x.requires_grad

    f.s = w
    return f


@case(
    inputs=[
        lambda: (),
        lambda: (tensor(1.0, 2.0),),
        lambda: (tensor(1.0, 2.0), tensor(2.0, 3.0)),
        lambda: (tensor(1.0, 2.0),),
    ]
)
def variadic_arguments():
    def f(*a):
        return sum(a) if a else torch.zeros(1), len(a)

    return f


@case(inputs=[lambda: (tensor(1.0, 2.0),)] * 3)
def tensor_as_default_argument():
    d = torch.ones(2)

    def f(x, y=d):
        y.add_(1)
        return x * y

    f.s = d
    return f


@case()
def state_alternates():
    s = State(on=False)

    def f(x):
        s.on = not s.on
        return x * 2 if s.on else x * 3

    f.s = s
    return f


@case()
def state_cycles():
    it = itertools.cycle([1.0, 2.0, 3.0])

    def f(x):
        return x * next(it)

    return f


@case()
def state_in_a_queue():
    q = collections.deque([1.0, 2.0], maxlen=2)

    def f(x):
        q.append(q[0] + q[1])
        return x * q[-1]

    f.s = q
    return f


@case()
def comparison_of_ids():
    a = [1]
    b = [1]
    s = State(x=a)

    def f(x):
        s.x = b if s.x is a else a
        return x * (2 if s.x is a else 3)

    f.s = s
    return f
