"""Control flow: generators, exceptions, context managers, closures, and alternating state."""

import torch
from torch import nn

from tests.hostile.cases import State, case


@case(
    lambda p: setattr(p.s.m, "training", False),
    lambda p: p.s.m.train(),
    lambda p: setattr(p.s, "m", nn.Dropout(0.9)),
    lambda p: setattr(p.s.m, "p", 0.1),
)
def module_training_mode():
    s = State(m=nn.Dropout(0.5))

    def f(x):
        return s.m(x)

    f.s = s
    return f


@case(
    lambda p: p.s.append(nn.ReLU()),
    lambda p: p.s.__setitem__(0, nn.Sigmoid()),
    lambda p: p.s.__delitem__(0),
)
def module_list():
    m = nn.ModuleList([nn.Identity(), nn.ReLU()])

    def f(x):
        for l in m:
            x = l(x) + len(m)
        return x

    f.s = m
    return f


@case(lambda p: p.s.pop("a"), lambda p: p.s.__setitem__("b", nn.Parameter(torch.ones(3) * 5)))
def parameter_dictionary():
    m = nn.ParameterDict({"a": torch.ones(3), "b": torch.ones(3) * 2})

    def f(x):
        return sum((x * v for v in m.values()), x), list(m.keys())

    f.s = m
    return f


@case(lambda p: setattr(p.s, "f", lambda x: x * 9), lambda p: delattr(p.s, "f"))
def method_shadowed():
    class C:
        def f(s, x):
            return x * 2

    c = C()

    def g(x):
        return c.f(x)

    g.s = c
    return g


@case(lambda p: setattr(p.s, "forward", lambda x: x * 9))
def module_forward_shadowed():
    class M(nn.Module):
        def forward(s, x):
            return x * 2

    m = M()

    def g(x):
        return m(x)

    g.s = m
    return g


@case()
def two_generators_interleaved():
    def gen(n):
        for i in range(n):
            yield i

    def f(x):
        a, b = gen(3), gen(3)
        t = 0
        for i in a:
            t += i * next(b)
        return x * t, next(b, None), next(a, "end")

    return f


@case()
def generator_held_outside():
    def gen():
        i = 0
        while True:
            i += 1
            yield i

    g = gen()

    def f(x):
        return x * next(g)

    return f


@case()
def generator_expression_with_state():
    l = [1, 2]

    def f(x):
        g = (i for i in l)
        l.append(3)
        r = list(g)
        l.pop()
        return x * sum(r)

    f.s = l
    return f


@case()
def try_in_loop():
    l = [1, 0, "a", 2]

    def f(x):
        out = []
        for v in l:
            try:
                if v == 2:
                    break
                out.append(1 / v)
            except ZeroDivisionError:
                out.append("zd")
                continue
            except TypeError as e:
                out.append(str(e))
            finally:
                out.append("f")
        else:
            out.append("never")
        return x * len(out), out

    f.s = l
    return f


@case()
def several_context_managers():
    log = []

    class C:
        def __init__(s, n):
            s.n = n

        def __enter__(s):
            log.append(("in", s.n))
            return s

        def __exit__(s, *a):
            log.append(("out", s.n, a[0] and a[0].__name__))
            return s.n == 1

    def f(x):
        with C(1) as a, C(2) as b:
            x = x * a.n * b.n
            raise KeyError("q")
        return x + len(log)

    f.s = log
    return f


@case()
def return_in_finally():
    def g(x):
        try:
            raise ValueError
        finally:
            return x * 2

    def f(x):
        return g(x)

    return f


@case()
def reraise():
    def f(x):
        try:
            try:
                raise ValueError("a")
            except ValueError as e:
                e.add_note("n")
                raise
        except ValueError as e:
            return x * len(e.__notes__), e.args

    return f


@case()
def assertion_message():
    def f(x):
        try:
            assert x.dim() == 2, f"dim {x.dim()}"
        except AssertionError as e:
            return x, str(e)

    return f


@case()
def lambda_defaults_in_loop():
    def f(x):
        fs = [lambda v, i=i: v * i for i in range(3)]
        gs = [lambda v: v * j for j in range(3)]
        return sum(g(x) for g in fs), sum(g(x) for g in gs)

    return f


@case()
def class_scope():
    def f(x):
        k = 3.0

        class C:
            a = k
            b = [k * i for i in range(2)]

            def m(s):
                return s.a + C.b[1]

            __slots__ = ("q",)

        c = C()
        c.q = x
        return c.q * c.m()

    return f


@case()
def augmented_item_assignment():
    d = {"a": [1.0], "t": torch.zeros(3)}

    def f(x):
        d["a"][0] += 1
        d["t"] += x
        d["n"] = d.get("n", 0) + 1
        return x * d["a"][0] + d["t"]

    f.s = d
    return f


@case()
def augmented_tuple_assignment_error():
    t = ([1],)

    def f(x):
        try:
            t[0] += [2]
        except TypeError as e:
            return x * len(t[0]), str(e)

    f.s = t
    return f


@case()
def nested_star_expressions():
    def f(x):
        (a, (b, *c)), d = (1, (2, 3, 4)), [5]
        return x * a * b, c, {*c, *d}, [*c, *"ab"], {**{"q": 1}, **{"q": 2}}

    return f


@case()
def f_string_formats():
    v = 3.14159

    def f(x):
        return x, f"{v:.2f}{v=:>10}{'a'!r:>5}{10:#x}{x.shape}{len(x):03d}"

    return f


@case(lambda p: p.s.append(3))
def sorting_stability():
    l = [2, 1]

    def f(x):
        l2 = sorted(l, key=lambda v: (v % 2, -v))
        return x * l2[0], l2, max(l, default=0), sum(map(float, l))

    f.s = l
    return f
