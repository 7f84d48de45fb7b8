"""Standard library, custom autograd functions, imports, and state of modules and classes."""

import math

import numpy as np
import torch
from torch import nn

from tests.hostile.cases import State, case, put, with_globals
from tests.programs import tensor


@case(
    inputs=[
        lambda: (lambda t: (t[:2], t[1:]))(tensor(1.0, 2.0, 3.0)),
        lambda: (tensor(1.0, 2.0), tensor(2.0, 3.0)),
        lambda: (lambda t: (t[1:], t[:2]))(tensor(1.0, 2.0, 3.0)),
    ]
)
def overlapping_arguments():
    def f(x, y):
        x.mul_(2)
        y.add_(1)
        return x + y

    return f


@case()
def aliasing_results():
    def f(x):
        y = x * 2
        v = y[1:]
        return y, v, y, x, x[:1], {"a": y, "b": [v]}

    return f


@case()
def detached_tensor_shares_memory():
    def f(x):
        y = x * 2
        d = y.detach()
        d.add_(1)
        return y, d

    return f


@case()
def from_numpy():
    a = np.ones(3, dtype=np.float32)

    def f(x):
        t = torch.from_numpy(a)
        t.add_(x)
        return t * 2

    f.s = a
    return f


@case()
def custom_function():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            ctx.save_for_backward(x)
            return x * k

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k * ctx.saved_tensors[0], None

    def f(x):
        return Fn.apply(x, 3.0)

    return f


@case(
    put("k", 3.0),
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def custom_function_with_configuration():
    s = State(k=2.0)

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.c = c
            return x * c.k

        @staticmethod
        def backward(ctx, g):
            return g * ctx.c.k, None

    def f(x):
        return Fn.apply(x, s)

    f.s = s
    return f


@case(put("s", "a"))
def subclasses_of_builtins():
    class Str(str):
        def __len__(q):
            return 7

    class Int(int):
        def __add__(q, o):
            return 100

    class L(list):
        def append(q, v):
            list.append(q, v)
            list.append(q, v)

    s = State(s=Str("abc"), i=Int(3), l=L())

    def f(x):
        s.l.append(1)
        return x * len(s.s) * (s.i + 1), len(s.l) > 0

    f.s = s
    return f


@case()
def torch_function_mode():
    class M(torch.overrides.TorchFunctionMode):
        def __torch_function__(s, fn, ty, a=(), k=None):
            if fn is torch.add:
                fn = torch.sub
            return fn(*a, **(k or {}))

    def f(x):
        with M():
            y = torch.add(x, 1)
        return y

    return f


@case()
def torch_function_subclass():
    class T(torch.Tensor):
        @classmethod
        def __torch_function__(cls, fn, ty, a=(), k=None):
            LOG.append(fn.__name__ if hasattr(fn, "__name__") else "")
            return super().__torch_function__(fn, ty, a, k or {})

    LOG = []

    def f(x):
        t = x.as_subclass(T)
        LOG.clear()
        y = t * 2
        n = len(LOG)
        return y.as_subclass(torch.Tensor), n

    return f


@case()
def import_inside():
    def f(x):
        import math as m
        import os.path
        from collections import abc as a

        return x * m.pi, os.path.join("a", "b"), isinstance([], a.Sequence)

    return f


@case(
    lambda p: setattr(math, "zz_test", 3.0) if not hasattr(math, "zz_test") else None,
    lambda p: setattr(math, "zz_test", 4.0),
)
def attribute_of_python_module():
    def f(x):
        return x * getattr(math, "zz_test", 1.0)

    if hasattr(math, "zz_test"):
        del math.zz_test
    return f


@case(lambda p: p.__globals__.__setitem__("len", lambda v: 7))
def shadowed_builtin():
    def f(x):
        return x * len([1, 2])

    return with_globals(f, {})


@case()
def coroutine_inside():
    async def co(x):
        return x * 2

    def f(x):
        c = co(x)
        try:
            c.send(None)
        except StopIteration as e:
            return e.value

    return f


@case()
def text_of_tensor_metadata():
    def f(x):
        return (
            x * x.dim(),
            str(x.dtype),
            str(x.shape),
            x.device.type,
            f"{x.shape[0]}",
            x.numel(),
            len(x),
            x.stride(),
            x.is_contiguous(),
            x.element_size(),
            list(x.size()),
            x.T.shape,
        )

    return f


@case()
def tensor_unpacking():
    def f(x):
        a, b, c = x
        return (
            a + b * c,
            [t * 2 for t in x],
            max(x, key=lambda t: 1) is not None,
            torch.stack([*x]),
            x.tolist.__name__,
        )

    return f


@case()
def boolean_tensor_decides_control_flow():
    def f(x):
        if x.sum() > 3:
            return x * 2
        return x * 3

    return f


@case()
def items_in_list():
    l = []

    def f(x):
        l.append(x.sum().item())
        return x * l[-1]

    f.s = l
    return f


@case()
def forms_of_index_put():
    def f(x):
        y = x.clone()
        y[y > 0] = 9
        y[[0, 2]] += 1
        y[..., -1] = 0
        z = y[None, :, None]
        w = y[torch.tensor([0, 1])]
        return y, z, w

    return f


@case()
def print_inside():
    def f(x):
        print("", end="")
        return x * 2

    return f


@case()
def global_variable_deleted():
    def f(x):
        global QQ
        QQ = x
        y = QQ * 2
        del QQ
        return y

    return with_globals(f, {})


@case()
def nested_functions_with_state():
    def counter():
        n = 0

        def inc():
            nonlocal n
            n += 1
            return n

        return inc

    c = counter()

    def f(x):
        return x * c() * c()

    f.s = None
    return f


@case()
def memoizing_attribute():
    def h(x):
        h.calls += 1
        return x * h.calls

    h.calls = 0

    def f(x):
        return h(x)

    f.s = h
    return f


@case()
def counter_on_class():
    class C:
        n = 0
        reg = []

        def __init__(s):
            type(s).reg.append(1)

    def f(x):
        C()
        return x * len(C.reg)

    f.s = C
    return f


@case()
def property_on_module():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.k = 2.0
            s.register_buffer("b", torch.ones(3))

        @property
        def scale(s):
            s.calls = getattr(s, "calls", 0) + 1
            return s.k

        def forward(s, x):
            s.b = s.b + x
            s.b.mul_(0.5)
            s.last = x * 2
            return x * s.scale * s.b

    m = M()

    def f(x):
        return m(x)

    f.s = m
    return f
