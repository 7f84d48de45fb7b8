"""Programs to suspend: each is a module with ``main()``, see ``tests.splitting.suspension``."""

MANAGERS = '''
class Quiet:
    """Swallows ValueError."""
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        effect("enter " + self.name)
        return self
    def __exit__(self, kind, value, trace):
        log.append(f"exit {self.name} {kind and kind.__name__} {value}")
        return kind is ValueError

class Loud(Quiet):
    def __exit__(self, kind, value, trace):
        effect(f"leave {self.name}")
'''

PROGRAMS = {
    "straight line": """
def main():
    a = effect(1)
    b = effect(2) + a
    return a, b, a < b, -a, not b, [a, *range(b)], {"a": a}, f"{a!r:>4}|{b}"
""",
    "calls in operands": """
def pair(x, *rest, y=0, **more):
    return effect(x), rest, y, more
def main():
    first = [effect("a"), pair(effect(1), 2, 3, y=effect(4), z=pair(5))]
    return first, (effect("b"), pair(*[6, 7]))
""",
    "keywords": """
def f(a, /, b, *, c=3, **d):
    return effect((a, b, c, sorted(d)))
def main():
    options = {"q": 1}
    return f(1, b=effect(2)), f(1, 2, c=effect(5), z=9), f(*(1, 2), **options, c=4)
""",
    "for loops with break, continue and else": """
def main():
    out = []
    for i in range(3):
        for j in range(4):
            if j == i:
                continue
            if effect(j) == 3:
                break
            out.append((i, j))
        else:
            out.append("all")
    else:
        out.append("end")
    return out
""",
    "while with walrus": """
def main():
    n, out = 0, []
    while (n := n + 1) < 5:
        if n % 2 and effect(n):
            out += [m := n * n, m + 1]
    return out, n
""",
    "with that catches": MANAGERS
    + """
def main():
    done = []
    with Quiet("a") as a, Quiet("b"):
        done.append(effect(a.name))
        with Loud("c"):
            done.append(effect(2))
        done.append(effect(3))
    return done
""",
    "return out of with in a loop": MANAGERS
    + """
def find(xs):
    for x in xs:
        with Quiet("q"):
            if effect(x) == 2:
                return x * 10
    return None
def main():
    return find([1, 2, 3])
""",
    "try, except, else, finally": """
def attempt(x):
    try:
        try:
            got = effect(x)
        except ValueError as e:
            log.append(str(e))
            got = effect(-x)
        else:
            got += effect(100)
        finally:
            effect("finally")
    except ValueError:
        return "outer"
    return got
def main():
    return [attempt(1), attempt(2)]
""",
    "exceptions in handlers": """
import sys
def lowest():
    log.append(repr(sys.exception()))
    try:
        effect("lowest")
    except ValueError:
        raise KeyError("low")
    raise IndexError("fine")
def middle():
    try:
        lowest()
    except (KeyError, IndexError) as e:
        first = e
        try:
            raise TypeError("second") from e
        except TypeError as f:
            log.append((repr(f.__cause__), repr(f.__context__)))
            effect("nested")
        log.append(repr(sys.exception()))
        raise
def again():
    raise
def main():
    try:
        middle()
    except LookupError as e:
        log.append((repr(e), repr(e.__context__)))
        try:
            again()
        except LookupError as f:
            return f is e, repr(sys.exception())
    finally:
        log.append(repr(sys.exception()))
""",
    "an exception that nobody catches": """
def low(x):
    return [1, 2][x]
def mid(x):
    try:
        return low(x)
    except KeyError:
        return 0
def main():
    effect(0)
    try:
        return mid(effect(5))
    finally:
        effect("cleanup")
""",
    "three frames, the outermost catches": """
def low(x):
    effect(x)
    return 1 / x
def mid(x):
    return effect("mid") and low(x) + 1
def main():
    out = []
    for x in (1, 0, 2):
        try:
            out.append(mid(x))
        except ZeroDivisionError as e:
            out.append(str(e))
    return out
""",
    "exception groups": """
def main():
    try:
        raise ExceptionGroup("g", [ValueError(effect(1)), KeyError(2), TypeError(3)])
    except* ValueError as e:
        log.append(repr(e.exceptions))
        effect("v")
    except* KeyError as e:
        log.append(repr(e.exceptions))
    return 1
""",
    "comprehensions": """
def main():
    y = "kept"
    a = [effect(y) + 1 for y in range(3) if y != 1]
    b = {x: [z * x for z in range(effect(x))] for x in range(3)}
    c = {(effect(x), w) for x in "ab" for w in (1, 2)}
    d = [lambda: q for q in range(2)]
    return y, a, b, sorted(c), [f() for f in d]
""",
    "a comprehension over an unbound name": """
def main():
    a = [v for v in range(2) if effect(v)]
    try:
        return v
    except UnboundLocalError as e:
        return a, str(e)
""",
    "closures with nonlocal": """
def counter(start):
    n = start
    def step(by=1):
        nonlocal n
        n += effect(by)
        return n
    def read():
        return n
    return step, read
def main(seed=10):
    step, read = counter(seed)
    step(); step(5)
    def own():
        nonlocal seed
        seed += effect(1)
        return seed
    return read(), own(), seed, own()
""",
    "a deleted variable": """
def main():
    a, b = effect(1), 2
    keep = lambda: b
    del a
    effect(3)
    try:
        a
    except UnboundLocalError as e:
        log.append(str(e))
    b = effect(4)
    got = keep()
    del b
    try:
        keep()
    except NameError as e:
        return got, str(e)
""",
    "super and __init__": """
class Base:
    def __init__(self, x):
        self.x = effect(x)
    def double(self):
        return effect(self.x) * 2
class Derived(Base):
    def __init__(self, x, y):
        super().__init__(x)
        self.y = effect(y)
    def double(self):
        total = super().double()
        return total + self.y
def main():
    d = Derived(3, y=4)
    return d.double(), vars(d)
""",
    "__new__": """
class Single:
    made = 0
    def __new__(cls, *args, **kwargs):
        effect(args)
        self = super().__new__(cls)
        Single.made += 1
        return self
    def __init__(self, a, b=2):
        self.a, self.b = a, effect(b)
class Bare:
    def __new__(cls, what):
        return effect(what)
def main():
    s = Single(1, b=5)
    return s.a, s.b, Single.made, Bare(7)
""",
    "an __init__ that returns something": """
class Wrong:
    def __init__(self):
        effect("init")
        return 5
def main():
    try:
        Wrong()
    except TypeError as e:
        return str(e)
""",
    "callable objects, partials and methods": """
from functools import partial
class Adder:
    def __init__(self, n):
        self.n = n
    def __call__(self, x, *, k=0):
        return self.n + effect(x) + k
    @classmethod
    def make(cls, n):
        return cls(effect(n))
    @staticmethod
    def idle(x):
        return effect(x)
def main():
    a = Adder.make(10)
    bound = a.__call__
    return a(1), a(2, k=3), partial(a, 4)(k=1), bound(5), Adder.idle(6), partial(bound, k=7)(8)
""",
    "properties and attribute hooks": """
class Box:
    def __init__(self):
        self.stored = {}
    @property
    def value(self):
        return effect(self.stored.get("v"))
    @value.setter
    def value(self, v):
        self.stored["v"] = effect(v)
    @value.deleter
    def value(self):
        effect("del")
        self.stored.clear()
    @property
    def method(self):
        effect("method")
        return lambda x: x + 1
class Late:
    def __getattr__(self, name):
        return effect(name)
class Early:
    def __getattribute__(self, name):
        return effect(name)
    def __setattr__(self, name, value):
        effect((name, value))
def main():
    b = Box()
    b.value = 3
    out = [b.value, b.method(1), Late().thing, Early().other]
    Early().x = 4
    del b.value
    return out, b.stored
""",
    "special methods": """
class Thing:
    def __init__(self, v):
        self.v = v
    def __getitem__(self, k):
        effect(("get", k if isinstance(k, int) else str(k)))
        return self.v
    def __setitem__(self, k, v):
        effect(("set", str(k), v))
    def __delitem__(self, k):
        effect(("del", k))
    def __contains__(self, k):
        return effect(k)
    def __bool__(self):
        return effect(self.v) > 1
    def __neg__(self):
        return effect(-self.v)
    def __invert__(self):
        return effect(~self.v)
    def __pos__(self):
        return effect(+self.v)
def main():
    t, u = Thing(1), Thing(2)
    t[0] = u[1]
    t[1:2] = u[2:3]
    del t[3]
    out = [5 in t, 0 not in u, -t, ~u, +t, not t, 1 if u else 2, (t and u) is t, (t or u).v]
    while t:
        pass
    return out
""",
    "operators that defer to the other operand": """
class A:
    def __add__(self, other):
        effect("A+")
        return NotImplemented
    def __iadd__(self, other):
        effect("A+=")
        return NotImplemented
    def __lt__(self, other):
        return effect("A<")
    def __eq__(self, other):
        effect("A==")
        return NotImplemented
    def __pow__(self, other):
        effect("A**")
        return NotImplemented
class B:
    def __radd__(self, other):
        return effect("B+")
    def __mul__(self, other):
        return effect(3)
    def __gt__(self, other):
        effect("B>")
        return NotImplemented
class C(A):
    def __radd__(self, other):
        return effect("C+")
def main():
    a, b, c = A(), B(), C()
    out = [a + b, a + c, b * 2, a < b, a < 1, a == b, a != b, 5 + b]
    a += b
    for operate in (lambda: a + 1, lambda: b < 3, lambda: a ** 2, lambda: A() + A()):
        try:
            out.append(operate())
        except TypeError as e:
            out.append(str(e))
    return out
""",
    "iterators": """
class Count:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        effect("iter")
        return self
    def __next__(self):
        if not self.n:
            raise StopIteration
        self.n -= 1
        return effect(self.n)
class NoIterator:
    def __iter__(self):
        return effect(5)
def main():
    out = []
    for x in Count(3):
        for y in Count(x):
            out.append((x, y))
    out += [z for z in Count(2)]
    try:
        for x in NoIterator():
            pass
    except TypeError as e:
        out.append(str(e))
    return out
""",
    "match": """
class Point:
    __match_args__ = ("x", "y")
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __repr__(self):
        return f"Point({self.x}, {self.y})"
def kind(v):
    match effect(v):
        case [1, *rest]:
            return "list", rest
        case {"k": k, **more}:
            return "map", k, more
        case Point(0, y=yy) if effect(yy):
            return "point", yy
        case str() | int() as s:
            return "plain", s
        case _:
            return "none"
def main():
    return [kind(v) for v in ([1, 2, 3], {"k": 1, "l": 2}, Point(0, 7), Point(0, 0), 4, "s", None)]
""",
    "unpacking": """
def main():
    first, *middle, last = effect([1, 2, 3, 4])
    (a, b), c = effect(((1, 2), 3))
    merged = {**{"x": effect(1)}, "y": effect(2)}
    both = [*effect("ab"), *effect((1, 2))]
    return first, middle, last, a, b, c, merged, both, {*both}
""",
    "assertions, globals and imports": """
total = 0
def main():
    global total
    from math import floor as down
    import os.path
    total += effect(down(2.5))
    try:
        assert effect(0), f"no {effect('message')}"
    except AssertionError as e:
        return str(e), total, os.path.basename("a/b"), __name__
""",
    "locals()": """
def main(a=1):
    b = effect(2)
    before = dict(locals())
    inner = lambda: a
    c = effect(3)
    return before, sorted(locals()), eval("b + c"), inner()
""",
    "argument kinds left unbound": """
def f(a, /, b, *args, c=1, **kw):
    del args, kw, c, a
    effect(b)
    return sorted(locals())
def main():
    return f(1, 2, 3, z=4)
""",
    "a new class": """
def main():
    base = effect(object)
    class Inner(base):
        x = 3
        def get(self):
            return self.x + effect(1)
    return Inner().get()
""",
    "recursion": """
def depth(n):
    if not n:
        return effect("bottom")
    try:
        return [n, depth(n - 1)]
    finally:
        effect(n)
def main():
    return depth(3)
""",
    "a generator inside": """
def numbers():
    for i in range(2):
        yield i * 2
def main():
    out = [effect(2), 1]
    return out, sum(numbers()), list(map(lambda x: x + 1, out)), sorted(out, key=lambda x: -x)
""",
}

# Frames entered by native code or a generator cannot be resumed: programs with such frames, and
# the reasons.
UNRESUMABLE = {
    "a generator inside": ("is a generator or coroutine", "native code lies between"),
    "a new class": ("is the body of a class", "native code lies between"),
    "operators that defer to the other operand": ("native code lies between",),  # object.__ne__
    "match": ("native code lies between",),  # effect() calls repr
}


def extended() -> str:
    """More than 256 names, constants and locals; jumps over more than 256 instructions."""
    count = 300
    assign = "\n".join(f"        v{i} = g{i} + {i}.5" for i in range(count))
    total = " + ".join(f"v{i}" for i in range(count))
    return f"""
for i in range({count}):
    globals()["g%d" % i] = i
def main():
    late = None
    out = []
    for k in range(2):
        try:
            effect(k)
        except ValueError as late:
            out.append(str(late))
            continue
{assign}
        keep = lambda: v{count - 1}
        out.append(effect({total}))
        out.append(keep())
        if effect(k):
            break
    return out
"""
