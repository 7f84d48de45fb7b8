"""Protocols: iteration, copying, standard containers, custom operators and classes."""

import collections
import copy
import functools
import itertools

from tests.hostile.cases import State, case


@case()
def partialmethod_and_singledispatch():
    class C:
        def m(s, x, k):
            return x * k

        p = functools.partialmethod(m, k=4.0)

    @functools.singledispatch
    def d(v):
        return 1.0

    @d.register
    def _(v: int):
        return 2.0

    @d.register(str)
    def _(v):
        return 3.0

    def f(x):
        return C().p(x) * d(3) * d("a") * d(2.5)

    return f


@case()
def total_ordering():
    @functools.total_ordering
    class C:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    a, b = C(1), C(2)

    def f(x):
        return x * 2 if a >= b else x * 3, sorted([b, a])[0] is a, max(a, b) is b

    f.s = a
    return f


@case(lambda p: p.s.append(4))
def comprehensions():
    l = [1, 2, 3]

    def f(x):
        a = [i * 2 for i in l if i > 1]
        b = {i: x * i for i in l}
        c = {i % 2 for i in l}
        d = sum(i for i in l)
        e = list(map(lambda i: i + 1, l))
        g = [*zip(l, l[1:])]
        return b, a, c, x * d, e, g, dict(enumerate(l)), list(reversed(l)), any(i > 3 for i in l)

    f.s = l
    return f


@case()
def star_args():
    def h(*a, k=1.0, **kw):
        return a[0] * k * len(a) + len(kw), kw

    def f(x):
        a, *b = [x, 1, 2]
        return h(*[x, x], **{"k": 2.0, "z": 3}), h(x, *b, q=1), b

    return f


@case(lambda p: p.s.__setitem__("n", [1, 2, 3]))
def string_methods():
    s = {"n": ["a", "b"]}

    def f(x):
        return (
            x * len(",".join(map(str, s["n"]))),
            f"{len(s['n']):>3}",
            "a-b".split("-"),
            "%d" % 3,
            "x".center(5),
            "Abc".lower().replace("a", "q"),
        )

    f.s = s
    return f


@case()
def copies():
    l = [[1.0], {"a": 2.0}]

    class C:
        pass

    c = C()
    c.l = l

    def f(x):
        m = copy.deepcopy(l)
        m[0].append(3.0)
        n = copy.copy(c)
        n.l = m
        d = copy.deepcopy(c)
        t = copy.deepcopy(x)
        t += 1
        return x * len(m[0]), m, n, d, t, d.l is l

    f.s = c
    return f


@case()
def counter_and_defaultdict():
    c = collections.Counter("aab")
    d = collections.defaultdict(list)
    o = collections.OrderedDict(a=1, b=2)
    q = collections.deque([1.0, 2.0], maxlen=3)

    def f(x):
        c["a"] += 1
        d["k"].append(len(d))
        o.move_to_end("a")
        q.append(q[0] + 1)
        q.rotate(1)
        return x * c.most_common(1)[0][1], list(o), list(q)

    f.s = (c, d, o, q)
    return f


@case()
def chainmap_and_userdict():
    a = {"x": 1.0}
    b = {"y": 2.0}
    m = collections.ChainMap(a, b)
    u = collections.UserDict(z=3.0)

    def f(x):
        u["w"] = len(u)
        return x * m["x"] * m["y"] * u["z"], list(m), u

    f.s = (a, b, u)
    return f


@case()
def iteration_protocol():
    class It:
        def __init__(s, n):
            s.n = n

        def __iter__(s):
            s.i = 0
            return s

        def __next__(s):
            if s.i >= s.n:
                raise StopIteration
            s.i += 1
            return s.i

    class Seq:
        def __getitem__(s, i):
            if i > 3:
                raise IndexError
            return i * 1.0

    class L:
        def __len__(s):
            return 3

        def __getitem__(s, i):
            return i

        def __contains__(s, v):
            return v == "q"

    it = It(3)
    sq = Seq()
    l = L()

    def f(x):
        for v in it:
            x = x * v
        return (
            x * sum(sq),
            list(it),
            list(reversed(l)),
            "q" in l,
            2.0 in sq,
            iter(lambda: 3, 3).__next__ is None,
        )

    return f


@case()
def iterators_with_sentinel_and_zip():
    def f(x):
        n = iter([1, 2, 0, 3])
        r = list(iter(lambda: next(n), 0))
        return (
            x * len(r),
            list(itertools.chain([1], (2,), {3})),
            list(itertools.islice(itertools.count(), 2, 5)),
            list(itertools.product("ab", [1, 2])),
            list(itertools.groupby([1, 1, 2]))[0][0],
            list(itertools.accumulate([1, 2, 3])),
            list(zip("ab", [1], strict=False)),
        )

    return f


@case()
def zip_strict_error():
    def f(x):
        try:
            list(zip([1], [1, 2], strict=True))
        except ValueError as e:
            return x, str(e)

    return f


@case()
def custom_in_place_operators():
    class V:
        def __init__(s, v):
            s.v = v

        def __iadd__(s, o):
            s.v = s.v + o
            return s

        def __radd__(s, o):
            return o + s.v

        def __matmul__(s, o):
            return s.v @ o

        def __neg__(s):
            return V(-s.v)

        def __call__(s, x):
            return s.v * x

        def __getitem__(s, k):
            return s.v * len(k) if isinstance(k, tuple) else s.v * k.stop

        def __setitem__(s, k, v):
            s.v = s.v * 0 + v

        def __contains__(s, k):
            return k == 3

        def __pow__(s, o, m=None):
            return s.v**o

    v = V(2.0)

    def f(x):
        nonlocal v
        v += 1.0
        y = x + v
        z = v(x) + v[1, 2] + v[:3]
        v[0] = 2.0
        return y, z, (-v).v, 3 in v, v**2, V(x) @ x

    f.s = v
    return f


@case()
def unpacking_errors():
    def f(x):
        try:
            a, b = [1, 2, 3]
        except ValueError as e:
            m = str(e)
        try:
            [][1]
        except IndexError as e:
            m += str(e)
        try:
            None.foo
        except AttributeError as e:
            m += str(e)
        try:
            undefined_name  # noqa: F821  # noqa: F821
        except NameError as e:
            m += str(e)
        try:
            1 + "a"
        except TypeError as e:
            m += str(e)
        return x, m

    return f


@case()
def deleted_local_variable():
    def f(x):
        y = x * 2
        del y
        try:
            return y  # noqa: F821
        except UnboundLocalError as e:
            return x, str(e)

    return f


@case(lambda p: p.s.__setitem__("v", 5))
def locals_globals_and_vars():
    s = {"v": 3}

    def f(x):
        a = s["v"]
        l = locals()
        return x * l["a"], sorted(l), vars(State(q=1)), "torch" in globals()

    f.s = s
    return f


@case()
def eval_and_exec():
    def f(x):
        y = eval("x*2", {"x": x})
        ns = {}
        exec("z=3", ns)
        return y * ns["z"]

    return f


@case()
def class_by_type_call():
    def f(x):
        C = type("C", (), {"k": 2.0, "m": lambda s, x: x * s.k})
        return C().m(x)

    return f


@case()
def init_subclass():
    reg = []

    class B:
        def __init_subclass__(cls, **kw):
            reg.append((cls.__name__, kw))

    def f(x):
        class A(B, tag=1):
            pass

        return x * len(reg)

    f.s = reg
    return f


@case()
def forms_of_super():
    class A:
        def m(s, x):
            return x + 1

        @classmethod
        def c(cls, x):
            return x * 2

        @staticmethod
        def t(x):
            return x * 3

        @property
        def p(s):
            return 4.0

    class B(A):
        def m(s, x):
            return super().m(x) * super(B, s).p

        @classmethod
        def c(cls, x):
            return super().c(x) + 1

    b = B()

    def f(x):
        return b.m(x), B.c(x), b.c(x), B.t(x), A.m(b, x)

    return f


@case()
def custom_new():
    class C:
        cache = {}

        def __new__(cls, k):
            if k not in cls.cache:
                cls.cache[k] = super().__new__(cls)
            return cls.cache[k]

        def __init__(s, k):
            s.k = k
            s.n = getattr(s, "n", 0) + 1

    def f(x):
        a = C(2.0)
        b = C(2.0)
        return x * a.k, a is b, a.n > 0

    f.s = C
    return f
