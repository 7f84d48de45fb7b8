"""Programs with calls of functions, methods and classes of every kind."""

import functools
import itertools
import operator

import torch
import torch.nn.functional as F
from torch import nn


def scaled(x, *, factor=1.0, offset=0.0):
    return x * factor + offset


def residual(function):
    @functools.wraps(function)
    def wrapped(self, x, *args, **kwargs):
        return x + function(self, x, *args, **kwargs)

    return wrapped


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @residual
    def forward(self, x):
        return self.linear(x)


class Partials(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = functools.partial(F.layer_norm, normalized_shape=(4,))
        self.scale = functools.partial(scaled, factor=2.0)

    def forward(self, x):
        return self.scale(self.norm(x), offset=1.0)


class MapWithLambda(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(4, 12)

    def forward(self, x):
        heads = self.heads
        q, k, v = map(
            lambda t: t.reshape(t.shape[0], t.shape[1], heads, -1).transpose(1, 2),
            self.to_qkv(x).chunk(3, dim=-1),
        )
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


class Generators(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def steps(self, x):
        for layer in self.layers:
            x = layer(x)
            yield x

    def forward(self, x):
        total = sum(step.mean() for step in self.steps(x))
        return total + max(len(step) for step in self.steps(x))


class Closures(nn.Module):
    def forward(self, x):
        total = 0

        def add(amount):
            nonlocal total
            total += amount
            return x + total

        return add(1) * add(2), total


class ReturnsFunction(nn.Module):
    def forward(self, x):
        scale = x.mean()

        def rescale(y):
            return y * scale

        return rescale(x)


class Recursion(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.depth = depth

    def down(self, x, depth):
        if depth == 0:
            return x
        return self.down(self.linear(x).relu(), depth - 1)

    def forward(self, x):
        return self.down(x, self.depth)


class VariadicArguments(nn.Module):
    def combine(self, first, *rest, weight=1.0, **named):
        for tensor in rest:
            first = first + tensor * weight
        for name in sorted(named):
            first = first * named[name]
        return first

    def forward(self, *inputs, **options):
        return self.combine(*inputs, **options, gain=2.0)


class SuperCalls(nn.Linear):
    def forward(self, x):
        return super().forward(x) + super(SuperCalls, self).extra_repr().count("=")


class StaticAndClassMethods(nn.Module):
    gain = 3.0

    @staticmethod
    def halve(x):
        return x / 2

    @classmethod
    def amplify(cls, x):
        return x * cls.gain

    @property
    def shift(self):
        return self.gain - 1

    def forward(self, x):
        return self.amplify(self.halve(x)) + self.shift


class OperatorModule(nn.Module):
    def forward(self, x, y):
        chosen = operator.itemgetter(1, 0)((x, y))
        shape = operator.attrgetter("shape")(x)
        return functools.reduce(operator.add, chosen), operator.mul(*shape)


class Itertools(nn.Module):
    def forward(self, x):
        rows = x.unbind(0)
        pairs = [a * b for a, b in itertools.combinations(rows, 2)]
        ends = [a - b for a, b in zip(rows, itertools.islice(rows, 1, None))]
        return torch.stack(list(itertools.chain(pairs, ends)))


class CachedHelper(nn.Module):
    @functools.lru_cache(maxsize=None)
    def grid(self, height, width):
        return torch.arange(height * width, dtype=torch.float32).reshape(height, width)

    def forward(self, x):
        return x + self.grid(*x.shape[-2:])


class FunctionTable(nn.Module):
    activations = {"relu": F.relu, "square": lambda x: x**2, "gelu": nn.GELU()}

    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        for name in self.names:
            x = self.activations[name](x)
        return x


class TakesModule(nn.Module):
    """A residual connection around a module."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x))


class MakesObjects(nn.Module):
    class Accumulator:
        __slots__ = ("total", "count")

        def __init__(self):
            self.total, self.count = 0.0, 0

        def add(self, value):
            self.total = self.total + value
            self.count += 1
            return self

    def forward(self, x):
        accumulator = self.Accumulator()
        for row in x:
            accumulator.add(row)
        return accumulator.total / accumulator.count, accumulator


TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (Decorated, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (Partials, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (MapWithLambda, lambda: ([2], {}), lambda: ([torch.rand(2, 3, 4)], {}), False),
    (Generators, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (Closures, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ReturnsFunction, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (Recursion, lambda: ([3], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        VariadicArguments,
        lambda: ([], {}),
        lambda: ([torch.rand(2), torch.rand(2), torch.rand(2)], {"weight": 0.5, "bias": 3.0}),
        False,
    ),
    (SuperCalls, lambda: ([4, 3], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (StaticAndClassMethods, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        OperatorModule,
        lambda: ([], {}),
        lambda: ([torch.rand(2, 4), torch.rand(2, 4)], {}),
        False,
    ),
    (Itertools, lambda: ([], {}), lambda: ([torch.rand(3, 4)], {}), False),
    (CachedHelper, lambda: ([], {}), lambda: ([torch.rand(2, 3, 4)], {}), False),
    (
        FunctionTable,
        lambda: ([["relu", "square", "gelu"]], {}),
        lambda: ([torch.rand(4)], {}),
        False,
    ),
    (TakesModule, lambda: ([], {}), lambda: ([torch.rand(2, 4), nn.Linear(4, 4)], {}), False),
    (MakesObjects, lambda: ([], {}), lambda: ([torch.rand(3, 4)], {}), False),
]
