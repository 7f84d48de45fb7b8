"""Classes, functions and state at the head of every generated program."""

IMPORTS = """
import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import random

import numpy as np
import torch
from torch import nn

D = torch.{dtype}
NOISE = 0  # relative, of random values
BITS = getattr(torch, "int" + str(8 * D.itemsize))
"""

STATE = """
log = []
leaves = []  # tensors whose gradients are compared
counter = 0
table = {"a": 1, "b": 2}
settings = {"scale": 2, "mode": "plain", "factors": [1, 2]}
state = torch.zeros(3, dtype=D)
cache = {}
history = collections.deque(maxlen=3)
seen = set()
"""

CLASSES = """
class Trouble(ValueError):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code

Pair = collections.namedtuple("Pair", "left right")

class Items(list):
    count = 0
    mark = ...

class Entries(dict):
    count = 0

items = Items([3, 1, 2])
entries = Entries(a=1, b=2)

@functools.lru_cache(maxsize=3)
def plan(n):
    return n * 2 % 7, [n, n // 2], "plan"

@dataclasses.dataclass
class Item:
    value: object
    count: int = 0
    tags: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.first = self.count

    @property
    def double(self):
        return self.count * 2

class Limited:
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.get(self.name, 1)
    def __set__(self, instance, value):
        log.append(("limit", value))
        instance.__dict__[self.name] = min(value, 5)

class Base:
    kind = 1
    limit = Limited()
    def __init__(self, tensor, count=0):
        self.tensor = tensor
        self.count = count
        self.children = []
    def step(self, x):
        return x * (self.count + 1)
    def __call__(self, x, by=1):
        return self.step(x) + by
    @property
    def total(self):
        return self.count + len(self.children)
    @total.setter
    def total(self, value):
        self.count = value - len(self.children)
    @classmethod
    def kinds(cls):
        return cls.kind + 1
    @staticmethod
    def twice(x):
        return x * 2

class Node(Base):
    kind = 2
    def step(self, x):
        self.count += 1
        return super().step(x) + self.kind
    def __getattr__(self, name):
        if name.startswith("extra_"):
            return len(name)
        raise AttributeError(name)
    def __len__(self):
        return len(self.children)
    def __bool__(self):
        return True
    def __getitem__(self, k):
        return self.children[k]
    def __iter__(self):
        return iter(self.children)
    def __contains__(self, child):
        return child in self.children
    def __eq__(self, other):
        return isinstance(other, Base) and self.count == other.count
    __hash__ = None

class Loud(Node):
    __slots__ = ("mark",)
    def __setattr__(self, name, value):
        log.append(name)
        super().__setattr__(name, value)
    def step(self, x):
        return Base.step(self, x) - self.limit

class Scope:
    def __init__(self, name, hides=()):
        self.name, self.hides = name, hides
    def __enter__(self):
        log.append(("enter", self.name))
        return self
    def __exit__(self, kind, error, trace):
        log.append(("exit", self.name, kind.__name__ if kind else None))
        return kind is not None and issubclass(kind, self.hides)

@contextlib.contextmanager
def marked(name):
    log.append(("begin", name))
    try:
        yield len(log)
    finally:
        log.append(("end", name))

def numbers(count):
    for k in range(count):
        log.append(k)
        yield k * 2 - 1

def pieces(x, count):
    for k in range(count):
        x = x * 0.5 + k
        yield x

def delegating(x, count):
    yield x
    last = yield from pieces(x, count)
    return last

def counted(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        global counter
        counter += 1
        return function(*args, **kwargs)
    return inner

@counted
def bump(value, by=1, *more, scale=1, **options):
    return value * scale + by + len(more) + sum(options.values())

def fails(count):
    if count > 2:
        raise Trouble(f"count {count}", count)
    return count

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=D)
        self.norm = nn.BatchNorm1d(3, dtype=D)
        self.register_buffer("steps", torch.zeros(1, dtype=D))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        self.steps += 1
        return self.norm(self.linear(x)).relu()

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=D))
        self.register_buffer("total", torch.zeros(3, dtype=D))
        self.register_buffer("seen", torch.tensor(0), persistent=False)
    def forward(self, x, *, bias=None):
        with torch.no_grad():
            self.total.mul_(0.5).add_(x.mean(0))
            self.seen.add_(1)
        x = x * self.weight
        return x if bias is None else x + bias

class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.factor, None

class Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return x * 0.5, positive, y + x
    @staticmethod
    def backward(ctx, left, _, right):
        return left + right, right * 2

def weighted(backward):
    @functools.wraps(backward)
    def inner(ctx, gradient):
        log.append("weighted")
        return backward(ctx, gradient) * settings["scale"]
    return inner

class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    @weighted
    def backward(ctx, gradient):
        return gradient + 1

class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, node):
        ctx.scale, ctx.seen, ctx.count = settings["scale"], [], node.count
        return x * ctx.count
    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.append(1)
        return gradient * ctx.scale * len(ctx.seen) + ctx.count, None

class Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        ctx.other = y
        return x + y
    @staticmethod
    def backward(ctx, gradient):
        copy = gradient.clone()
        copy[ctx.saved_tensors[0] > 0] = 0
        factor = 2 if gradient.is_contiguous() else 3
        return gradient.contiguous() * factor, copy * ctx.other

class Grown(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3
"""

MAKERS = """
def random_values(seed, *size):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).to(D) * (1 + NOISE)

def leaf(seed, *size):
    found = random_values(seed, *size).requires_grad_(True)
    leaves.append(found)
    return found

def make_net(seed, cls=Net):
    generator = torch.Generator().manual_seed(seed)
    net = cls()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    leaves.extend(net.parameters())
    return net
"""
