"""Destructors, grad mode, in-place operators, hooks, recursion, classes created inside."""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import typing

import torch

from tests.hostile.cases import State, case, put
from tests.programs import tensor


@case()
def destructor_inside():
    log = []

    class D:
        def __del__(s):
            log.append(1)

    def f(x):
        d = D()
        del d
        return x * len(log)

    f.s = log
    return f


@case()
def destructor_at_return():
    log = []

    class D:
        def __init__(s, x):
            s.x = x

        def __del__(s):
            log.append(s.x * 2)

    def f(x):
        d = D(x + 1)
        return x

    f.s = log
    return f


@case(lambda p: None)
def destructor_of_external_object():
    log = []

    class D:
        def __del__(s):
            log.append(1)

    s = State(d=D())

    def f(x):
        s.d = None
        return x * len(log)

    f.s = log
    return f


@case(put("k", 3.0))
def no_grad_decorator():
    s = State(k=2.0)
    w = torch.ones(3, requires_grad=True)

    @torch.no_grad()
    def h(x):
        return x * w * s.k

    def f(x):
        a = h(x)
        b = x * w
        return a, b, torch.is_grad_enabled()

    f.s = s
    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0),),
    ],
)
def enable_grad_inside():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        with torch.no_grad():
            y = x * w
            with torch.enable_grad():
                z = x * w * 2
        with torch.set_grad_enabled(False):
            q = w * 3
        torch.set_grad_enabled(True)
        return y, z, q

    f.s = w
    return f


@case()
def in_place_on_view():
    def f(x):
        y = x * 1
        v = y[1:]
        v.add_(5)
        v[0] = 9
        w = y.view(3, 1)
        w.mul_(2)
        return y, v, w

    return f


@case()
def in_place_on_view_of_argument():
    def f(x):
        v = x[::2]
        v.mul_(3)
        x[1] += 1
        return v

    return f


@case(
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0), tensor(0.0, 0.0, 0.0)),
        lambda: (tensor(3.0, 2.0, 3.0), tensor(0.0, 1.0, 0.0)),
    ]
)
def out_argument():
    def f(x, o):
        r = torch.add(x, 1, out=o)
        return r is o, o

    return f


@case()
def out_argument_resized():
    def f(x):
        o = torch.empty(0)
        torch.mul(x, 2, out=o)
        return o

    return f


@case()
def new_tensor_resized():
    def f(x):
        y = x.clone()
        y.resize_(2)
        z = x.clone()
        z.resize_(1, 3)
        return y, z

    return f


@case()
def new_tensor_set():
    def f(x):
        y = x.clone()
        z = torch.zeros(3)
        z.set_(y)
        y.add_(1)
        return z, y

    return f


@case()
def requires_grad_inside():
    def f(x):
        y = x.clone()
        y.requires_grad_(True)
        z = (y * y).sum()
        z.backward()
        return y.grad, y.requires_grad

    return f


@case(lambda p: p.s.requires_grad_(False), lambda p: p.s.requires_grad_(True))
def requires_grad_changed():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        return x * w, w.requires_grad

    f.s = w
    return f


@case(
    lambda p: p.s.resize_(4) if False else p.s.data.mul_(2),
    lambda p: setattr(p.s, "data", torch.ones(1)),
)
def data_attribute_changed():
    w = torch.ones(3)

    def f(x):
        return x * w

    f.s = w
    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def tensor_hooks():
    log = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y * y

    return f


@case(
    backward=True,
    inputs=[
        lambda: (tensor(1.0, 2.0, 3.0, grad=True),),
        lambda: (tensor(2.0, 2.0, 3.0, grad=True),),
    ],
)
def tensor_hooks_with_effects():
    log = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append(g.sum()))
        return y * y

    f.s = log
    return f


@case()
def recursion():
    def fib(x, n):
        return x if n < 2 else fib(x, n - 1) + fib(x, n - 2)

    def f(x):
        return fib(x, 6)

    return f


@case(lambda p: setattr(p.s, "n", 5))
def mutual_recursion():
    s = State(n=3)

    def a(x, n):
        return x if n == 0 else b(x * 2, n - 1)

    def b(x, n):
        return x if n == 0 else a(x + 1, n - 1)

    def f(x):
        return a(x, s.n)

    f.s = s
    return f


@case()
def recursion_error():
    def r(x, n):
        return r(x + 1, n + 1)

    def f(x):
        try:
            return r(x, 0)
        except RecursionError as e:
            return x

    return f


@case()
def abstract_class_inside():
    def f(x):
        class A(abc.ABC):
            @abc.abstractmethod
            def m(s, x): ...

        class B(A):
            def m(s, x):
                return x * 2

        try:
            A()
        except TypeError as e:
            msg = str(e)
        return B().m(x), isinstance(B(), A), msg

    return f


@case()
def generic_class_inside():
    T = typing.TypeVar("T")

    def f(x):
        class G(typing.Generic[T]):
            def m(s, x):
                return x * 3

        return G[int]().m(x)

    return f


@case()
def data_class_inside():
    def f(x):
        @dataclasses.dataclass
        class P:
            a: float
            b: float = 2.0

        return x * P(1.0).b

    return f


@case()
def named_tuple_class_inside():
    def f(x):
        T = collections.namedtuple("T", "a b")
        t = T(x, 2.0)
        return t.a * t.b

    return f


@case()
def enumeration_inside():
    def f(x):
        class E(enum.Enum):
            A = 2.0

        return x * E.A.value

    return f


@case()
def exit_stack():
    log = []

    @contextlib.contextmanager
    def cm(n):
        log.append(n)
        try:
            yield n
        finally:
            log.append(-n)

    def f(x):
        with contextlib.ExitStack() as s:
            a = s.enter_context(cm(1))
            b = s.enter_context(cm(2))
            s.callback(log.append, 9)
            x = x * a * b
        return x

    f.s = log
    return f


@case()
def context_manager_suppresses_exception():
    class C:
        def __enter__(s):
            return 2.0

        def __exit__(s, t, v, tb):
            return t is ValueError

    def f(x):
        with C() as k:
            x = x * k
            raise ValueError
        return x

    return f


@case()
def suppress_and_redirect_output():
    def f(x):
        with contextlib.suppress(KeyError):
            {}["a"]
        with contextlib.nullcontext(3.0) as k:
            x = x * k
        with contextlib.closing(State(close=lambda: None)) as q:
            pass
        return x

    return f


@case(
    lambda p: (p.g.__setitem__("G2", 5.0), p.h.cache_clear()), lambda p: p.g.__setitem__("G2", 7.0)
)
def cached_functions():
    ns = {"G2": 2.0, "functools": functools}
    exec("@functools.lru_cache\ndef h(n): return n*G2\ndef f(x): return x*h(3.0)\n", ns)
    f = ns["f"]
    f.h = ns["h"]

    class H:
        pass

    f.g = ns
    f2 = lambda x: f(x)
    f2.g = ns
    f2.h = ns["h"]
    h = H()
    r = ns["f"]
    r.__dict__.clear()

    class P:
        def __call__(s, x):
            return r(x)

    p = P()
    object.__setattr__(p, "_x", 0)
    P.g = property(lambda s: ns)
    P.h = property(lambda s: ns["h"])
    return p


@case()
def wraps_and_partial():
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            w.n = getattr(w, "n", 0) + 1
            return fn(*a, **k)

        return w

    @deco
    def h(x, k=2.0):
        return x * k

    g = functools.partial(h, k=3.0)

    def f(x):
        return g(x) + h(x)

    f.s = h
    return f
