"""Descriptors, metaclasses, weak references, slots, dictionary views, data classes."""

import collections
import dataclasses
import enum
import typing
import weakref

from tests.hostile.cases import State, case, put


@case(put("k", 3.0))
def data_descriptor():
    class D:
        def __init__(s):
            s.n = 0

        def __get__(s, o, c):
            s.n += 1
            return o.k * s.n

        def __set__(s, o, v):
            o.k = v

    class C:
        d = D()

    c = C()
    c.k = 2.0

    def f(x):
        return x * c.d

    f.s = c
    return f


@case()
def shadowed_non_data_descriptor():
    class D:
        def __get__(s, o, c):
            return 5.0

    class C:
        d = D()

    c = C()

    def f(x):
        y = x * c.d
        c.d = 2.0
        z = y * c.d
        del c.d
        return z + c.d

    f.s = c
    return f


@case(lambda p: p.s.__dict__.__setitem__("d", 7.0), lambda p: p.s.__dict__.pop("d"))
def instance_attribute_shadows_descriptor():
    class D:
        def __get__(s, o, c):
            return 5.0

    class C:
        d = D()

    c = C()

    def f(x):
        return x * c.d

    f.s = c
    return f


@case(lambda p: setattr(p.s, "k", 9.0), lambda p: p.s.__dict__.__setitem__("missing", 4.0))
def dynamic_getattr():
    class C:
        def __getattr__(s, n):
            if n == "missing":
                return s.k
            raise AttributeError(n)

    c = C()
    c.k = 2.0

    def f(x):
        return x * c.missing + getattr(c, "other", 1.0)

    f.s = c
    return f


@case(lambda p: setattr(p.s, "other", 3.0))
def getattr_with_default():
    c = State(k=1.0)

    def f(x):
        return x * getattr(c, "other", 2.0)

    f.s = c
    return f


@case()
def custom_setattr():
    class C:
        def __setattr__(s, n, v):
            object.__setattr__(s, n, v)
            object.__setattr__(s, "n", s.__dict__.get("n", 0) + 1)

    c = C()

    def f(x):
        c.a = x * 2
        c.b = x.sum()
        return c.a + c.b

    f.s = c
    return f


@case()
def custom_delattr():
    class C:
        def __delattr__(s, n):
            s.deleted = n
            object.__delattr__(s, n)

    c = C()

    def f(x):
        c.a = x
        del c.a
        return x + len(c.deleted)

    f.s = c
    return f


@case(lambda p: setattr(type(p.s), "k", 4.0), lambda p: setattr(type(type(p.s)), "m", 4.0))
def metaclass_attribute():
    class M(type):
        m = 2.0

        def __getattr__(c, n):
            if n == "dyn":
                return 3.0
            raise AttributeError(n)

    class C(metaclass=M):
        k = 1.5

    c = C()

    def f(x):
        return x * C.m * type(c).dyn * c.k

    f.s = c
    return f


@case()
def metaclass_call():
    class M(type):
        count = 0

        def __call__(cls, *a):
            M.count += 1
            o = super().__call__(*a)
            o.made = M.count
            return o

    class C(metaclass=M):
        def __init__(s, x):
            s.x = x

    def f(x):
        o = C(x)
        return o.x * o.made, o.made

    return f


@case(lambda p: setattr(p.s, "k", 4.0))
def metaclass_instancecheck():
    s = State(k=2.0)

    class M(type):
        def __instancecheck__(cls, o):
            return s.k > 3

    class C(metaclass=M):
        pass

    def f(x):
        return x * 2 if isinstance(x, C) else x

    f.s = s
    return f


@case(lambda p: p.s.pop("a"), lambda p: p.s.update(a=3))
def weak_reference():
    class Thing:
        k = 2.0

    box = {"a": Thing()}
    r = weakref.ref(box["a"])

    def f(x):
        o = r()
        return x * o.k if o is not None else x

    f.s = box
    return f


@case()
def weak_reference_callback():
    class Thing:
        pass

    log = []

    def f(x):
        o = Thing()
        r = weakref.ref(o, lambda _: log.append(1))
        del o
        return x * len(log), r() is None

    f.s = log
    return f


@case()
def weak_value_dictionary():
    class Thing:
        def __init__(s, k):
            s.k = k

    w = weakref.WeakValueDictionary()
    keep = []

    def f(x):
        o = Thing(x.sum())
        w["a"] = o
        keep.append(o)
        return w["a"].k * len(w)

    f.s = keep
    return f


@case(lambda p: p.s.update(z=5.0), lambda p: p.s.pop("a"))
def dictionary_views():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        ks = d.keys()
        vs = d.values()
        its = d.items()
        y = x * sum(vs) + len(ks)
        d["t"] = 3.0
        z = y + len(its)
        del d["t"]
        return z, list(ks), ("a" in ks), ks & {"a", "q"}, ("b", 2.0) in its

    f.s = d
    return f


@case()
def dictionary_mutated_during_iteration():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        try:
            for k in d:
                x = x + d[k]
                d[k + "x"] = 1.0
        except RuntimeError as e:
            d.pop("ax", None)
            return x, str(e)
        return x

    f.s = d
    return f


@case()
def list_mutated_during_iteration():
    l = [1.0, 2.0, 3.0]

    def f(x):
        for v in l:
            x = x * v
            if len(l) < 5:
                l.append(v + 1)
        return x

    f.s = l
    return f


@case(lambda p: setattr(p.s, "a", 3.0))
def slots():
    class C:
        __slots__ = ("a", "b")

    c = C()
    c.a = 2.0

    def f(x):
        c.b = x * c.a
        c.a = c.a + 1 if c.a < 5 else 1.0
        return c.b

    f.s = c
    return f


@case()
def deleted_slots():
    class C:
        __slots__ = ("a", "b")

    c = C()
    c.a = 2.0

    def f(x):
        c.b = x
        del c.b
        return x * c.a, hasattr(c, "b")

    f.s = c
    return f


@case(lambda p: setattr(p.s, "k", -3.0))
def assignment_expression():
    s = State(k=2.0, l=[])

    def f(x):
        if (y := s.k * 2) > 0:
            x = x * y
        s.l = [z for v in (1, 2, 3) if (z := v * 2) > 2]
        return x, y, z

    f.s = s
    return f


@case(put("v", [1, 2]), put("v", {"a": 1.0, "b": 2}), put("v", 5), put("v", "q"), put("v", None))
def match_statement():
    @dataclasses.dataclass
    class P:
        a: float
        b: float

    s = State(v=P(1.0, 2.0))

    def f(x):
        match s.v:
            case P(a=1.0, b=b):
                return x * b
            case [a, *r]:
                return x * a + len(r)
            case {"a": a, **r}:
                return x * a + len(r)
            case int(n) if n > 3:
                return x * n
            case None:
                return x
            case _:
                return -x

    f.s = s
    return f


@case(lambda p: setattr(p.s, "a", 3.0))
def data_class():
    @dataclasses.dataclass(order=True)
    class P:
        a: float
        b: list = dataclasses.field(default_factory=list)
        c: float = dataclasses.field(init=False)

        def __post_init__(s):
            s.c = s.a * 2

    p = P(1.0)

    def f(x):
        q = dataclasses.replace(p, a=p.a + 1)
        q.b.append(1)
        return x * q.c, q, q > p, dataclasses.asdict(q), p == q

    f.s = p
    return f


@case()
def frozen_data_class():
    @dataclasses.dataclass(frozen=True)
    class P:
        a: float

    p = P(2.0)

    def f(x):
        try:
            p.a = 3.0
        except dataclasses.FrozenInstanceError as e:
            return x * p.a, str(e), hash(p) == hash(P(2.0)), p

    return f


@case(put("c", 2), put("c", 99))
def enumerations():
    class E(enum.Enum):
        A = 1
        B = 2

    class F(enum.Flag):
        X = 1
        Y = 2

    class Whole(enum.IntEnum):
        P = 3

    s = State(c=1)

    def f(x):
        try:
            e = E(s.c)
        except ValueError as err:
            return x, str(err)
        return (
            x * e.value,
            e.name,
            e is E.A,
            F.X | F.Y,
            x * Whole.P,
            [m for m in E],
            E["A"],
            F.X in (F.X | F.Y),
            str(e),
            f"{Whole.P}",
        )

    f.s = s
    return f


@case(lambda p: setattr(p.s, "t", p.s.t._replace(a=5.0)))
def named_tuple():
    T = collections.namedtuple("T", "a b", defaults=[3.0])
    s = State(t=T(1.0))

    def f(x):
        t = s.t._replace(b=s.t.b + 1)
        a, b = t
        return x * a * b, t, t._asdict(), T._make([x, 2]), t._fields

    f.s = s
    return f


@case()
def typing_namedtuple():
    class T(typing.NamedTuple):
        a: float
        b: float = 2.0

        def tot(s):
            return s.a + s.b

    def f(x):
        t = T(1.0)
        return x * t.tot(), T(x, b=x), t == T(1.0)

    return f


@case(lambda p: setattr(p.s, "_k", 5.0))
def property_with_effect():
    class C:
        n = 0
        _k = 2.0

        @property
        def k(s):
            s.n += 1
            return s._k

        @k.setter
        def k(s, v):
            s._k = v
            s.set = True

        @k.deleter
        def k(s):
            s._k = 1.0

    c = C()

    def f(x):
        y = x * c.k
        c.k = c._k + 1 if c._k < 4 else 2.0
        return y * c.n

    f.s = c
    return f
