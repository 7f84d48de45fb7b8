"""Unusual access paths: replaced attribute dictionaries, views, proxies, native code, locks."""

import collections
import functools
import itertools
import operator
import threading
import weakref

import torch

from tests.hostile.cases import State, case
from tests.programs import matrix, tensor


@case(lambda p: setattr(p.s, "__dict__", {"a": 5.0, "b": 1.0}), lambda p: p.s.__dict__.clear())
def attribute_dictionary_replaced():
    class Plain:
        a = 3.0

    s = Plain()
    s.a, s.b = 2.0, 1.0

    def f(x):
        return x * s.a, vars(s).get("b"), s.__dict__.get("c", 4), hasattr(s, "b")

    f.s = s
    return f


def _same_row(b):
    return b[0], b[0:1].view(3), b


@case(
    inputs=[
        lambda: _same_row(matrix()),
        lambda: (matrix()[0], matrix()[1], matrix()),
        lambda: (lambda b: (b[0], b[1], b))(matrix()),
        lambda: (lambda b: (b[0], b[0], b))(matrix()),
    ]
    * 2
)
def views_and_base():
    def f(a, b, c):
        c.add_(1)
        d = a * 2
        a.zero_()
        b.mul_(3)
        c[1] = 7
        return d, a, b, c, a._base is c, a._base is b._base, b._is_view(), c.sum()

    return f


@case(
    inputs=[
        lambda: (lambda kept: (kept, kept))([tensor(1.0, 2.0)]),
        lambda: ([tensor(1.0, 2.0)], [tensor(1.0, 2.0)]),
        lambda: (lambda t: ([t], [t]))(tensor(1.0, 2.0)),
    ]
    * 2
)
def shared_list():
    def f(a, b):
        a.append(b[0] * 2)
        b.append(a[-1] + 1)
        return len(a), len(b), a[-1] + b[-1]

    return f


@case(lambda p: setattr(p.s, "v", 9.0))
def weak_proxy():
    class Held:
        v = 3.0

        def __len__(self):
            return int(self.v)

    s = Held()
    p = weakref.proxy(s)

    def f(x):
        p.v = p.v + 1
        return x * p.v, len(p), hasattr(p, "w"), p == 3

    f.s = s
    return f


@case()
def native_callables():
    log, table, members = [], {"a": 1, "b": 2}, set()

    def f(x):
        list(map(log.append, [1, 2]))
        list(map(members.add, "ab"))
        del log[:-3]
        reverse = functools.cmp_to_key(operator.sub)
        return (
            x * len(log),
            list(map(table.get, "abc")),
            functools.reduce(table.get, ["a"], "q"),
            list(itertools.starmap(table.get, [("z", 3)])),
            max("ab", key=table.get),
            sorted([3, 1, 2], key=reverse),
            reverse(2) < reverse(1),
            list(itertools.accumulate([x, x * 2, x], torch.mul, initial=x)),
            sorted({"b": x, "a": x}),
        )

    f.s = (log, table, members)
    return f


Row = collections.namedtuple("Row", "a b", defaults=[5])


@case(
    inputs=[
        lambda: (tensor(1.0, 2.0), Row(2)),
        lambda: (tensor(1.0, 2.0), Row(2, 6)),
        lambda: (tensor(1.0, 2.0), Row(tensor(1.0), 3)),
    ]
    * 2
)
def named_tuple_from_outside():
    def f(x, row):
        a, b = row
        r = x * a + b
        return r, row._replace(b=r), row._asdict(), row._make([r, r])

    return f


@case()
def locks():
    class Remembers:
        @functools.cached_property
        def kept(self):
            return 3.0

    shared, s = threading.RLock(), State(n=0)

    def f(x):
        own = threading.Lock()
        with own:
            y = x * Remembers().kept
        with shared:
            s.n = s.n + 1
        return y, own.locked(), shared.acquire(blocking=False), shared.release()

    f.s = s
    return f


@case()
def queues_with_maximum_length():
    def f(x):
        items = collections.deque([x, x + 1, x + 2], maxlen=2)
        return sum(items), items.maxlen, items.copy().maxlen, len(items)

    return f


@case(lambda p: setattr(p.s, "most", 3), lambda p: setattr(p.s, "most", None))
def queue_with_changed_maximum_length():
    s = State(most=2)

    def f(x):
        items = collections.deque([1, 2, 3], maxlen=s.most)
        return x * len(items), items.maxlen

    f.s = s
    return f
