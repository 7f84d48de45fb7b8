"""State of torch: functorch transforms, gradients, random numbers, modes; built-in operations."""

import contextvars
import inspect
import logging
import math
import random
import re
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from tests.hostile.cases import State, case, put
from tests.programs import tensor


@case()
def functorch_grad():
    def f(x):
        return torch.func.grad(lambda t: (t * t).sum())(x)

    return f


@case()
def functorch_vjp():
    def f(x):
        o, vj = torch.func.vjp(lambda t: t * t, x)
        return o, vj(torch.ones(3))[0]

    return f


@case()
def functorch_jacrev():
    def f(x):
        return torch.func.jacrev(lambda t: t * t)(x)

    return f


@case()
def functorch_jvp():
    def f(x):
        return torch.func.jvp(lambda t: t * t, (x,), (torch.ones(3),))

    return f


@case()
def functorch_hessian():
    def f(x):
        return torch.func.hessian(lambda t: (t * t * t).sum())(x)

    return f


@case(put("k", 4.0))
def functorch_vmap():
    s = State(k=2.0)

    def f(x):
        return torch.vmap(lambda t: t * s.k + 1)(x)

    f.s = s
    return f


@case(lambda p: p.s.weight.data.mul_(2))
def functional_call_of_module():
    m = nn.Linear(3, 1)
    with torch.no_grad():
        m.weight.fill_(0.5)
        m.bias.fill_(1.0)

    def f(x):
        ps = {k: v * 2 for k, v in m.named_parameters()}
        return torch.func.functional_call(m, ps, (x,))

    f.s = m
    return f


@case(put("k", 4.0))
def functorch_grad_with_closure():
    s = State(k=2.0)

    def f(x):
        return torch.func.grad_and_value(lambda t, u: (t * u * s.k).sum(), argnums=1)(x, x + 1)

    f.s = s
    return f


@case()
def functorch_vmap_of_grad():
    def f(x):
        return torch.vmap(torch.func.grad(lambda t: t.sin()))(x)

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def parameter_gradient_none():
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)

    def f(x):
        w.grad = None
        return x * w

    f.s = w
    return f


@case()
def gradient_set_to_tensor():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        w.grad = x * 2
        return x

    f.s = w
    return f


@case()
def zero_grad_in_training():
    torch.manual_seed(0)
    m = nn.Linear(3, 1)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def f(x):
        opt.zero_grad()
        l = m(x).square().mean()
        l.backward()
        opt.step()
        return l.detach()

    f.s = m
    return f


@case()
def batch_norm_in_training():
    m = nn.BatchNorm1d(3)

    def f(x):
        return m(torch.stack([x, x * 2, x + 1]))

    f.s = m
    return f


@case()
def dropout_random_state():
    def f(x):
        return F.dropout(x, 0.5), torch.rand(2), torch.randn_like(x)

    return f


@case()
def python_random():
    r = random.Random(3)

    def f(x):
        return x * r.random() + r.uniform(1, 2), r.randint(1, 5)

    f.s = None
    return f


@case()
def seeding_inside():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(3)

    return f


@case()
def fork_rng():
    def f(x):
        with torch.random.fork_rng():
            a = torch.rand(3)
        return x + a

    return f


@case()
def generator_object():
    g = torch.Generator()
    g.manual_seed(1)

    def f(x):
        return x + torch.rand(3, generator=g)

    return f


@case()
def default_dtype():
    def f(x):
        torch.set_default_dtype(torch.float64)
        try:
            y = torch.ones(2)
        finally:
            torch.set_default_dtype(torch.float32)
        return x, y

    return f


@case()
def autocast_inside():
    m = nn.Linear(3, 3)
    with torch.no_grad():
        m.weight.fill_(0.5)
        m.bias.fill_(0.0)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
        return y, torch.is_autocast_enabled("cpu")

    f.s = m
    return f


@case()
def inference_mode():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.is_inference()

    return f


@case()
def warnings_and_logs():
    lg = logging.getLogger("qq.zz")

    def f(x):
        warnings.warn("hello")
        lg.debug("x %s", 1)
        return x

    return f


@case()
def context_variable():
    v = contextvars.ContextVar("v", default=1.0)

    def f(x):
        t = v.set(v.get() + 1)
        y = x * v.get()
        v.reset(t)
        return y, v.get()

    return f


@case(lambda p: p.s.append(2))
def regular_expressions():
    l = ["a1b22"]

    def f(x):
        return (
            x * len(re.findall(r"\d+", str(l))),
            re.sub("a", "b", l[0]),
            bool(re.match("a", l[0])),
        )

    f.s = l
    return f


@case()
def inspected_signature():
    def h(a, b=2):
        return a

    def f(x):
        return h(x), list(inspect.signature(h).parameters), inspect.isfunction(h)

    return f


@case()
def math_functions():
    def f(x):
        return (
            x * math.sqrt(4) * math.prod([1, 2, 3]),
            math.isclose(1, 1.0),
            divmod(7, 2),
            round(2.567, 1),
            abs(-3),
            pow(2, 3, 5),
            int("ff", 16),
            bin(5),
            complex(1, 2) * x.sum(),
        )

    return f


@case()
def sort_with_key():
    l = [3, 1, 2]

    def f(x):
        l.sort(key=lambda v: -v)
        l.reverse()
        l.insert(0, l.pop())
        return x * l[0], sorted(l, reverse=True), min(l, key=lambda v: abs(v - 2))

    f.s = l
    return f


@case()
def list_operations():
    l = [1, 2, 3]

    def f(x):
        l.extend([4])
        l.remove(4)
        l[1:2] = [2, 2]
        del l[1]
        l += [7]
        l.pop()
        l *= 1
        return x * len(l), l.index(2), l.count(1), l[::-1], l == [1, 2, 3], l < [2]

    f.s = l
    return f


@case()
def set_operations():
    s = {1, 2}

    def f(x):
        s.add(3)
        s.discard(3)
        t = s | {5}
        t ^= {1}
        s.update([2])
        return x * len(t), s < t, s & t, frozenset(s), s.isdisjoint({9})

    f.s = s
    return f


@case()
def dictionary_operations():
    d = {"a": 1}

    def f(x):
        d.setdefault("b", 2)
        d.update(c=3)
        d.pop("c")
        e = d | {"z": 1}
        d.popitem()
        k = next(iter(e))
        return x * len(e), e, k, dict.fromkeys("ab", 0), d.get("q", 5), list(d)

    f.s = d
    return f


@case()
def bytes_operations():
    b = bytearray(b"abc")

    def f(x):
        b[0] = 98
        return x * len(b), bytes(b), memoryview(b)[0]

    f.s = b
    return f


@case()
def tensors_in_containers():
    s = State(l=[torch.ones(3)], d={"t": torch.zeros(3)})

    def f(x):
        s.l.append(x * 2)
        s.d["t"] = s.d["t"] + x
        s.l[0].add_(1)
        if len(s.l) > 2:
            s.l.pop(0)
        return s.l[-1] + s.d["t"]

    f.s = s
    return f


@case(
    inputs=[
        lambda: (lambda t: (t, t))(tensor(1.0, 2.0, 3.0)),
        lambda: (tensor(1.0, 2.0, 3.0), tensor(1.0, 2.0, 3.0)),
        lambda: (lambda t: (t, t.view(3)))(tensor(1.0, 2.0, 3.0)),
        lambda: (lambda t: (t, t))(tensor(4.0, 2.0, 3.0)),
    ]
)
def aliased_arguments():
    def f(x, y):
        x.add_(1)
        return y * 2, x is y

    return f
