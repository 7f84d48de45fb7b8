"""Special methods with effects, container subclasses, enumerations, mutated functions."""

import collections
import dataclasses
import enum
import operator

from tests.hostile.cases import State, case, put


@case(put("m", "b"), put("m", "a"))
def special_methods_with_effects():
    s = State(m="a", n=0)

    class C:
        def __len__(q):
            s.n += 1
            return 2 if s.m == "a" else 3

        def __hash__(q):
            return 1 if s.m == "a" else 2

        def __eq__(q, o):
            return s.m == "a"

        def __dir__(q):
            return ["x", s.m]

        def __iter__(q):
            return iter(s.m * 2)

        def __reversed__(q):
            return iter([s.m])

        def __contains__(q, k):
            return k == s.m

        def __call__(q, *a, **k):
            return len(a) + len(k) + (s.m == "a")

        def __round__(q, n=None):
            return 5 if s.m == "a" else 6

        def __abs__(q):
            return 2.0

        def __divmod__(q, o):
            return (1, 2)

        def __trunc__(q):
            return 7

        def __length_hint__(q):
            return 9

        def __sizeof__(q):
            return 3

        def __bytes__(q):
            return s.m.encode()

        def __getstate__(q):
            return {"m": s.m}

    c = C()
    d = C()

    def f(x):
        return (
            x * len(c),
            {c} == {d},
            c == d,
            c in [d],
            dir(c),
            list(c),
            list(reversed(c)),
            "a" in c,
            c(1, 2, z=3),
            round(c),
            abs(c),
            divmod(c, 2),
            int(c) if hasattr(c, "__int__") else 0,
            bytes(c),
            operator.length_hint(c),
            len({c, d}),
        )

    f.s = s
    return f


@case()
def container_subclass_with_effects():
    log = []

    class L(list):
        def __setitem__(s, k, v):
            log.append(("set", k))
            super().__setitem__(k, v)

        def __getitem__(s, k):
            log.append(("get", k))
            return super().__getitem__(k)

        def __delitem__(s, k):
            log.append(("del", k))
            super().__delitem__(k)

        def __len__(s):
            log.append("len")
            return super().__len__()

        def __iter__(s):
            log.append("iter")
            return super().__iter__()

        def __add__(s, o):
            log.append("add")
            return L(list.__add__(s, o))

    l = L([1.0, 2.0, 3.0])

    def f(x):
        log.clear()
        l[0] = l[1] + 1
        l[-1] += 1
        r = len(l)
        t = [v for v in l]
        u = l + [1]
        v = l[0:2]
        a, b, c = l
        return (
            x * l[0],
            r,
            t,
            len(log),
            type(u).__name__,
            (a, b, c),
            max(l),
            sorted(l),
            tuple(l),
            [*l],
            sum(l),
        )

    f.s = (l, log)
    return f


@case()
def dictionary_subclass_with_missing():
    class D(dict):
        def __missing__(s, k):
            s[k] = v = len(s)
            return v

        def __getitem__(s, k):
            return dict.__getitem__(s, k) if dict.__contains__(s, k) else s.__missing__(k)

        def get(s, k, d=None):
            return 42

        def keys(s):
            return ["fake"]

    d = D(a=1)

    def f(x):
        return x * d["b"], d.get("a"), {**{"z": 1}}, list(d), "a" in d, d.keys(), len(d)

    f.s = d
    return f


@case()
def ordered_dictionary_subclass():
    class Thing(collections.OrderedDict):
        def __setitem__(s, k, v):
            super().__setitem__(k, v)
            s.move_to_end(k, last=False)

    o = Thing()
    o["a"] = 1
    o["b"] = 2

    def f(x):
        o["c"] = len(o)
        o["a"] = 5
        return (
            x * len(o),
            list(o.items()),
            next(iter(o)),
            o.popitem(last=True) if len(o) > 2 else None,
        )

    f.s = o
    return f


@case(put("v", 1.5))
def frozen_data_class_with_slots():
    @dataclasses.dataclass(frozen=True, slots=True)
    class P:
        a: float
        b: tuple = ()

    s = State(v=2.0)

    def f(x):
        p = P(s.v, (x,))
        q = dataclasses.replace(p, a=p.a + 1)
        return p, q, hash(P(1.0)) == hash(P(1.0)), P(1.0) == P(1.0), x * q.a

    f.s = s
    return f


@case()
def enumeration_members():
    class C(enum.Enum):
        A = (1, 2.0)
        B = (2, 3.0)

        def __init__(s, i, k):
            s.i = i
            s.k = k

        @property
        def dbl(s):
            return s.k * 2

        @classmethod
        def _missing_(cls, v):
            return cls.A

    s = State(c=C.A)

    def f(x):
        s.c = C.B if s.c is C.A else C.A
        return x * s.c.dbl, C("zz").name, C.A in C, len(C), {C.A: 1}[C.A], list(C.__members__)

    f.s = s
    return f


@case()
def string_enumeration():
    class E(enum.StrEnum):
        X = enum.auto()
        Y = enum.auto()

    def f(x):
        return x * len(E.X), E.X == "x", E("y") is E.Y, f"{E.X}", E.X.upper()

    return f


@case()
def singleton_by_new():
    class Sg:
        inst = None

        def __new__(cls):
            if cls.inst is None:
                cls.inst = object.__new__(cls)
                cls.inst.n = 0
            return cls.inst

        def __init__(s):
            s.n += 1

    def f(x):
        return x * Sg().n

    f.s = Sg
    return f


@case()
def class_getitem_and_index():
    class C:
        n = 0

        def __class_getitem__(cls, k):
            cls.n += 1
            return k * 2

    def f(x):
        return x * C[3], C.n

    f.s = C
    return f


@case()
def descriptor_set_name():
    class D:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, o, c=None):
            return s if o is None else getattr(o, s.n, 1.0)

        def __set__(s, o, v):
            setattr(o, s.n, v * 2)

    class C:
        a = D()
        b = D()

    c = C()

    def f(x):
        c.a = c.a + 1 if c.a < 9 else 1.0
        c.b = x
        return x * c.a + c.b, isinstance(C.a, D)

    f.s = c
    return f


@case(lambda p: setattr(p.s, "k", 5.0))
def shared_closure_cell():
    s = State(k=2.0)

    def mk():
        n = 0

        def inc():
            nonlocal n
            n += s.k

        def get():
            return n

        return inc, get

    inc, get = mk()

    def f(x):
        inc()
        inc()
        return x * get()

    f.s = s
    return f


@case()
def escaping_closure():
    fs = []

    def f(x):
        n = len(fs)

        def g(y):
            nonlocal n
            n += 1
            return y * n + x

        fs.append(g)
        return g(x), fs[-1](x), fs[0](x)

    return f


@case()
def function_attributes_and_name():
    def g(x):
        return x

    def f(x):
        g.count = getattr(g, "count", 0) + 1
        g.__name__ = "h"
        g.__doc__ = "d"
        return x * g.count, g.__name__, g.__qualname__[-1:], g.__doc__

    f.s = g
    return f


@case()
def defaults_changed_inside():
    def g(x, a=1.0):
        return x * a

    def f(x):
        g.__defaults__ = (g.__defaults__[0] + 1,)
        return g(x)

    f.s = g
    return f


@case()
def counter_on_type():
    class C:
        n = 0

        def __init__(s):
            C.n += 1

    def f(x):
        C()
        C()
        return x * C.n

    f.s = C
    return f


@case()
def deleted_items():
    d = {"a": 1, "b": 2, "c": 3}
    l = [1, 2, 3, 4]

    def f(x):
        d["c"] = len(d)
        del d["c"]
        del l[0]
        l.insert(0, 9)
        del l[1:2]
        l.append(5)
        return x * len(l), d

    f.s = (d, l)
    return f
