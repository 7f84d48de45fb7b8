"""Mutated classes and functions, exceptions, generators, custom special methods, NumPy numbers."""

import functools
import operator

import numpy as np
import torch

from tests.hostile.cases import State, case, put, with_globals


@case(lambda p: p.s.__dict__.pop("v"), lambda p: setattr(p.s, "k", 7.0))
def cached_property():
    class C:
        k = 2.0

        @functools.cached_property
        def v(s):
            return s.k * 2

    c = C()

    def f(x):
        return x * c.v

    f.s = c
    return f


@case(lambda p: p.__globals__.__setitem__("G", 4.0))
def global_variable_written():
    def f(x):
        global G
        y = x * G
        G = G * 0.5
        return y

    return with_globals(f, {"G": 1.0})


@case()
def nonlocal_variable_written():
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return x * n

    return f


@case()
def nonlocal_tensor_written():
    acc = torch.zeros(3)

    def f(x):
        nonlocal acc
        acc = acc + x
        return acc * 2

    return f


@case(put("k", -1.0), put("k", 2.0))
def exceptions_with_effects():
    s = State(k=1.0, log=[])

    def f(x):
        try:
            s.log.append("a")
            if s.k < 0:
                raise ValueError("neg", s.k)
            s.log.append("b")
        except ValueError as e:
            s.log.append(e.args)
            return x - 1
        else:
            s.log.append("else")
        finally:
            s.log.append("fin")
        return x * s.k

    f.s = s
    return f


@case(put("k", 1.0), put("k", -2.0))
def escaping_exception():
    s = State(k=-1.0, log=[])

    def f(x):
        s.log.append(1)
        if s.k < 0:
            raise KeyError("boom")
        return x * s.k

    f.s = s
    return f


@case()
def chained_exceptions():
    def f(x):
        try:
            try:
                {}["q"]
            except KeyError as e:
                raise ValueError("v") from e
        except ValueError as e:
            return x + 1, type(e.__cause__).__name__, e.__context__ is e.__cause__

    return f


@case()
def exception_group():
    def f(x):
        r = []
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as e:
            r.append(len(e.exceptions))
        except* TypeError as e:
            r.append("t")
        return x, r

    return f


@case()
def generator_close():
    log = []

    def g():
        try:
            yield 1.0
            yield 2.0
        finally:
            log.append("closed")

    def f(x):
        it = g()
        y = x * next(it)
        it.close()
        return y

    f.s = log
    return f


@case()
def generator_throw():
    log = []

    def g():
        while True:
            try:
                v = yield 1.0
            except ValueError as e:
                log.append(str(e))
                yield 5.0

    def f(x):
        it = g()
        next(it)
        return x * it.throw(ValueError("t"))

    f.s = log
    return f


@case()
def generator_send_and_return():
    def g(x):
        tot = x
        while (v := (yield tot)) is not None:
            tot = tot + v
        return tot * 2

    def h(x):
        r = yield from g(x)
        yield r

    def f(x):
        it = h(x)
        next(it)
        it.send(1.0)
        it.send(x)
        return next(it)

    return f


@case()
def abandoned_generator():
    log = []

    def g():
        try:
            yield 1.0
        finally:
            log.append(1)

    def f(x):
        it = g()
        next(it)
        del it
        return x * len(log)

    f.s = log
    return f


@case()
def closure_created_inside():
    def f(x):
        n = [0]

        def inc(k=2.0):
            n[0] += 1
            return x * k * n[0]

        a = inc()
        b = inc(3.0)
        return a + b, inc

    return f


@case()
def default_mutated():
    def h(x, acc=[]):
        acc.append(1)
        return x * len(acc)

    def f(x):
        return h(x) + h(x)

    f.s = h
    return f


@case(
    lambda p: setattr(p.s, "__defaults__", (3.0,)),
    lambda p: setattr(p.s, "__kwdefaults__", {"b": 4.0}),
)
def defaults_replaced():
    def h(x, a=2.0, *, b=1.0):
        return x * a + b

    def f(x):
        return h(x)

    f.s = h
    return f


@case(lambda p: setattr(p.s, "__code__", (lambda x: x * 9).__code__))
def code_replaced():
    def h(x):
        return x * 2

    def f(x):
        return h(x)

    f.s = h
    return f


@case(
    lambda p: setattr(type(p.s), "k", 5.0),
    lambda p: setattr(p.s, "k", 6.0),
    lambda p: delattr(p.s, "k"),
    lambda p: setattr(type(p.s), "m", lambda s, x: x * 100),
    lambda p: setattr(type(p.s).__mro__[1], "z", 3.0),
)
def class_attributes_changed():
    class B:
        z = 1.0

    class C(B):
        k = 2.0

        def m(s, x):
            return x * s.k * s.z

    c = C()

    def f(x):
        return c.m(x)

    f.s = c
    return f


@case(lambda p: setattr(p.s, "__class__", p.alt))
def class_of_object_changed():
    class A:
        def m(s, x):
            return x * 2

    class B:
        def m(s, x):
            return x * 3

    a = A()

    def f(x):
        return a.m(x)

    f.s = a
    f.alt = B
    return f


@case(lambda p: setattr(type(p.s), "__bases__", (p.alt,)))
def bases_changed():
    class A:
        k = 2.0

    class B:
        k = 3.0

    class C(A):
        pass

    c = C()

    def f(x):
        return x * c.k

    f.s = c
    f.alt = B
    return f


@case(put("k", 1.0))
def custom_eq():
    s = State(k=2.0, n=0)

    class C:
        def __init__(q, v):
            q.v = v

        def __eq__(q, o):
            s.n += 1
            return q.v == getattr(o, "v", o)

        def __hash__(q):
            return hash(q.v)

    a = C(1.0)

    def f(x):
        y = x * 2 if a == s.k else x * 3
        return (
            y,
            a in [C(1.0)],
            {a: 1}.get(C(1.0)),
            [C(1.0)].index(a),
            [C(2.0), a].count(1.0),
            a != C(3.0),
        )

    f.s = s
    return f


@case(put("b", False), put("b", True))
def custom_bool():
    s = State(b=True, n=0)

    class C:
        def __bool__(q):
            s.n += 1
            return s.b

    class L:
        def __len__(q):
            return 0 if s.b else 3

    c = C()
    l = L()

    def f(x):
        return (
            (x * 2 if c else x),
            not c,
            (c and 3),
            (c or 4),
            bool(l),
            any([c]),
            all([c, l]),
            [v for v in filter(None, [c])] == [c],
        )

    f.s = s
    return f


@case(put("i", 1), put("i", 2))
def custom_index():
    s = State(i=0)

    class C:
        def __index__(q):
            return s.i

        def __int__(q):
            return s.i + 10

        def __float__(q):
            return s.i + 0.5

    c = C()

    def f(x):
        return (
            x * [1.0, 2.0, 3.0][c],
            int(c),
            float(c),
            range(5)[c],
            "abc"[c],
            hex(c),
            list(range(c)),
            x * float(c),
            [1, 2, 3][c:],
            operator.index(c),
        )

    f.s = s
    return f


@case(put("k", 3.0), put("k", 0.25))
def custom_format():
    s = State(k=2.0)

    class C:
        def __format__(q, sp):
            return f"<{s.k}:{sp}>"

        def __str__(q):
            return f"s{s.k}"

        def __repr__(q):
            return f"r{s.k}"

    c = C()

    def f(x):
        return (
            x * len(f"{c:abc}"),
            f"{c!r} {c!s} {c}",
            "%s %r" % (c, c),
            "{0:x} {0!r}".format(c),
            format(c, "q"),
            str([c]),
        )

    f.s = s
    return f


@case(put("v", np.float64(3.0)), put("v", np.int32(3)), put("v", 3.0), put("v", np.bool_(True)))
def numpy_scalars():
    s = State(v=np.float32(2.0))

    def f(x):
        return x * float(s.v), s.v + 1, type(s.v * 2), x * s.v

    f.s = s
    return f


@case(lambda p: p.s.__setitem__(0, 5.0), lambda p: p.s.resize((4,), refcheck=False))
def numpy_array():
    a = np.array([1.0, 2.0, 3.0])

    def f(x):
        return x * float(a.sum()), a.mean(), a[0], a.shape

    f.s = a
    return f


@case()
def tensor_subclass():
    class T(torch.Tensor):
        def extra(s):
            return s * 2

    def f(x):
        t = x.as_subclass(T)
        u = t.extra() + 1
        return u.as_subclass(torch.Tensor), type(u).__name__

    return f


@case(lambda p: setattr(p.s, "k", 3.0))
def attribute_on_tensor():
    t = torch.ones(3)
    t.k = 2.0

    def f(x):
        t.n = getattr(t, "n", 0) + 1
        return x * t.k + t

    f.s = t
    return f
