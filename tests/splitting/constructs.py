"""Python's constructs, each around a split.

A construct is text with ``{b}``, the indented statements inside it, which read and change ``x``;
``{n}`` makes names of nested constructs distinct. The text before ``---`` belongs to the module
level.
"""

import textwrap

CONSTRUCTS = {
    "if": "if x.shape[0] > 1:\n    {b}",
    "match": "match x.shape[0]:\n    case 1:\n        pass\n    case _:\n        {b}",
    # Loops.
    "for": "for i{n} in range(2):\n    {b}",
    "for else": "for i{n} in range(2):\n    x = x + 1\nelse:\n    {b}",
    "while": "c{n} = 0\nwhile c{n} < 2:\n    c{n} += 1\n    {b}",
    "break": "for i{n} in range(3):\n    {b}\n    if i{n}:\n        break",
    "over a list": "for i{n} in [1.0, 2.0]:\n    {b}\n    x = x * i{n}",
    "over enumerate": "for i{n}, j{n} in enumerate([1, 2]):\n    {b}\n    x = x + j{n}",
    "over zip": "for i{n}, j{n} in zip([1, 2], (3, 4)):\n    {b}\n    x = x + j{n}",
    "over items": "for i{n}, j{n} in {{'a': 1, 'b': 2}}.items():\n    {b}\n    x = x + j{n}",
    "over rows": "for r{n} in torch.ones(2, 2):\n    {b}\n    x = x + r{n}",
    "over a generator": (
        "def numbers{n}():\n    yield 1\n    yield 2\n---\n"
        "for i{n} in numbers{n}():\n    {b}\n    x = x + i{n}"
    ),
    "over an iterator in Python": (
        "class Counter{n}:\n    def __init__(self):\n        self.n = 0\n"
        "    def __iter__(self):\n        return self\n    def __next__(self):\n"
        "        self.n += 1\n        if self.n > 2:\n            raise StopIteration\n"
        "        x = torch.ones(2)\n        {b}\n        return x\n---\n"
        "for y{n} in Counter{n}():\n    x = x + y{n}"
    ),
    # Context managers.
    "with": "with Quiet('{n}'):\n    {b}",
    "two withs": "with Quiet('{n}') as q{n}, noted('{n}'):\n    {b}",
    "with a generator": "with noted('{n}'):\n    {b}",
    "with suppress": "with contextlib.suppress(KeyError):\n    {b}",
    "with an exit stack": (
        "with contextlib.ExitStack() as s{n}:\n    s{n}.enter_context(Quiet('a'))\n    {b}"
    ),
    "with a lock": "with lock:\n    {b}",
    "with no_grad": "with torch.no_grad():\n    {b}",
    "with enable_grad": "with torch.enable_grad():\n    {b}",
    "with set_grad_enabled": "with torch.set_grad_enabled(False):\n    {b}",
    "with inference_mode": "with torch.inference_mode():\n    {b}\nx = x.clone()",
    "with autocast": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    {b}\n"
        "    x = (x.reshape(1, -1) @ torch.eye(2)).float()[0]"
    ),
    "with autocast off": "with torch.autocast('cpu', enabled=False):\n    {b}",
    "with a device": "with torch.device('cpu'):\n    {b}",
    "with forked generators": (
        "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed(0)\n    {b}"
    ),
    "in __enter__": (
        "class Enters{n}:\n    def __enter__(self):\n        x = torch.ones(2)\n        {b}\n"
        "        return x\n    def __exit__(self, *a):\n        return False\n---\n"
        "with Enters{n}() as y{n}:\n    x = x + y{n}"
    ),
    "in __exit__": (
        "class Exits{n}:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *a):\n        x = torch.ones(2)\n        {b}\n---\n"
        "with Exits{n}():\n    x = x + 1"
    ),
    "in __exit__ with an exception": (
        "class Catches{n}:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, kind, error, trace):\n        x = torch.ones(2)\n        {b}\n"
        "        effect((kind.__name__, str(error)))\n        return True\n---\n"
        "with Catches{n}():\n    raise ValueError('own')"
    ),
    # Exceptions.
    "try": "try:\n    {b}\nexcept ValueError:\n    x = x - 1",
    "else": "try:\n    x = x + 1\nexcept ValueError:\n    pass\nelse:\n    {b}",
    "except": "try:\n    raise ValueError('own')\nexcept ValueError:\n    {b}",
    "except as": (
        "try:\n    raise ValueError('own')\nexcept ValueError as e{n}:\n    {b}\n"
        "    effect(str(e{n}))"
    ),
    "handler of a dynamic function's exception": (
        "try:\n    refuse({n})\nexcept ValueError as e{n}:\n    {b}\n    effect(str(e{n}))"
    ),
    "handler of a native function's exception": (
        "try:\n    {{}}['k']\nexcept KeyError as e{n}:\n    {b}\n    x = x + len(e{n}.args)"
    ),
    "handler of a callee's exception": (
        "def fails{n}(x):\n    with Quiet('{n}'):\n        refuse(x.shape[0])\n"
        "    raise KeyError('key')\n---\n"
        "try:\n    fails{n}(x)\nexcept KeyError:\n    {b}"
    ),
    "except a group": (
        "try:\n    raise ExceptionGroup('g', [ValueError('own')])\nexcept* ValueError:\n    {b}"
    ),
    "raise another": (
        "try:\n    try:\n        refuse({n})\n    except ValueError as e{n}:\n        {b}\n"
        "        raise KeyError('new') from e{n}\nexcept KeyError as e{n}:\n"
        "    effect((str(e{n}), str(e{n}.__cause__)))\n    x = x + 1"
    ),
    "raise again": (
        "try:\n    try:\n        refuse({n})\n    except ValueError:\n        {b}\n"
        "        raise\nexcept ValueError as e{n}:\n    effect(str(e{n}))\n    x = x + 1"
    ),
    "finally": "try:\n    x = x + 1\nfinally:\n    {b}",
    "finally, raising": (
        "try:\n    try:\n        raise ValueError('own')\n    finally:\n        {b}\n"
        "except ValueError:\n    x = x + 1"
    ),
    "finally, after a dynamic function's exception": (
        "try:\n    try:\n        refuse(1)\n    finally:\n        {b}\n"
        "except ValueError:\n    x = x + 1"
    ),
    # Calls.
    "callee": "def f{n}(x):\n    {b}\n    return x\n---\nx = f{n}(x) + 1",
    "callee with keywords": "def f{n}(y, *, x):\n    {b}\n    return x\n---\nx = x - f{n}(1, x=x)",
    "callee with a tuple": (
        "def f{n}(*args, **kw):\n    x = args[0]\n    {b}\n    return x\n---\n"
        "x = f{n}(*(x,), **{{'k': 1}})"
    ),
    "partial": "def f{n}(k, x):\n    {b}\n    return x\n---\nx = functools.partial(f{n}, 1)(x)",
    "wrapped": "@wrapped\ndef f{n}(x):\n    {b}\n    return x\n---\nx = f{n}(x)",
    "no_grad, wrapped": "@torch.no_grad()\ndef f{n}(x):\n    {b}\n    return x\n---\nx = f{n}(x)",
    "autocast, wrapped": (
        "@torch.autocast('cpu')\ndef f{n}(x):\n    {b}\n    return x\n---\nx = f{n}(x)"
    ),
    "closure": (
        "k{n} = 1\ndef f{n}():\n    nonlocal x, k{n}\n    k{n} += 1\n    {b}\n    return x\n"
        "x = f{n}() * k{n}"
    ),
    "recursion": (
        "def f{n}(x, d):\n    if d:\n        return f{n}(x + 1, d - 1)\n    {b}\n"
        "    return x\n---\nx = f{n}(x, 2)"
    ),
    "list comprehension": (
        "def f{n}(x):\n    {b}\n    return x\n---\nx = sum([f{n}(x) for j in range(2)])"
    ),
    "comprehension in a comprehension": (
        "def f{n}(x):\n    {b}\n    return x\n---\n"
        "x = [[f{n}(x) for j in range(2)] for k in range(2)][1][1]"
    ),
    "dict comprehension": (
        "def f{n}(x):\n    {b}\n    return x\n---\nx = {{j: f{n}(x) for j in range(2)}}[1]"
    ),
    "f-string": "def f{n}(x):\n    {b}\n    return 1\n---\ns{n} = f'a{{f{n}(x)}}b'",
    "comparison": "def f{n}(x):\n    {b}\n    return 1\n---\nb{n} = 0 < f{n}(x) < 3",
    "assignment to an item": (
        "def f{n}(x):\n    {b}\n    return x\n---\nd{n} = [0, 0]\nd{n}[1] = f{n}(x)\nx = d{n}[1]"
    ),
    # Methods.
    "method": (
        "class C{n}:\n    def m(self, x):\n        {b}\n        return x\n---\nx = C{n}().m(x)"
    ),
    "classmethod": (
        "class C{n}:\n    @classmethod\n    def m(cls, x):\n        {b}\n        return x\n---\n"
        "x = C{n}.m(x)"
    ),
    "super": (
        "class A{n}:\n    def m(self, x):\n        {b}\n        return x\n"
        "class B{n}(A{n}):\n    def m(self, x):\n        return super().m(x) + 1\n---\n"
        "x = B{n}().m(x)"
    ),
    "__init__": (
        "class C{n}:\n    def __init__(self, x):\n        {b}\n        self.x = x\n---\n"
        "x = C{n}(x).x"
    ),
    "dataclass": (
        "@dataclasses.dataclass\nclass C{n}:\n    x: object\n    def __post_init__(self):\n"
        "        x = self.x\n        {b}\n        self.x = x\n---\nx = C{n}(x).x"
    ),
    "__call__": (
        "class C{n}:\n    def __call__(self, x):\n        {b}\n        return x\n---\nx = C{n}()(x)"
    ),
    "__add__": (
        "class C{n}:\n    def __add__(self, x):\n        {b}\n        return x\n---\nx = C{n}() + x"
    ),
    "__getitem__": (
        "class C{n}:\n    def __getitem__(self, x):\n        {b}\n        return x\n---\n"
        "x = C{n}()[x]"
    ),
    "__contains__": (
        "class C{n}:\n    def __contains__(self, x):\n        {b}\n        return True\n---\n"
        "x = x + (x in C{n}())"
    ),
    "__bool__": (
        "class C{n}:\n    def __bool__(self):\n        x = torch.ones(2)\n        {b}\n"
        "        return True\n---\nif C{n}():\n    x = x + 1"
    ),
    "__getattr__": (
        "class C{n}:\n    def __getattr__(self, name):\n        x = torch.ones(2)\n        {b}\n"
        "        return x\n---\nx = x + C{n}().foo"
    ),
    "__setattr__": (
        "class C{n}:\n    def __setattr__(self, name, x):\n        {b}\n"
        "        self.__dict__[name] = x\n---\nc{n} = C{n}()\nc{n}.y = x\nx = c{n}.y"
    ),
    "property": (
        "class C{n}:\n    @property\n    def p(self):\n        x = torch.ones(2)\n"
        "        {b}\n        return x\n---\nx = x + C{n}().p"
    ),
    "module": (
        "class M{n}(torch.nn.Module):\n    def forward(self, x):\n        {b}\n        return x\n"
        "m{n} = torch.nn.Sequential(torch.nn.ReLU(), M{n}())\n---\nx = m{n}(x)"
    ),
    "hook": (
        "def h{n}(m, a, x):\n    {b}\n    return x\nm{n} = torch.nn.ReLU()\n"
        "m{n}.register_forward_hook(h{n})\n---\nx = m{n}(x)"
    ),
    "reduce": "def f{n}(x, k):\n    {b}\n    return x\n---\nx = functools.reduce(f{n}, [1, 2], x)",
}

NATIVE = {
    "generator": "def g{n}(x):\n    {b}\n    yield x\n---\nfor x in g{n}(x):\n    pass",
    "generator expression": (
        "def f{n}(x):\n    {b}\n    return x\n---\nx = sum(f{n}(x) for j in range(2))"
    ),
    "map": "def f{n}(x):\n    {b}\n    return x\n---\nx = list(map(f{n}, [x]))[0]",
    "key of sorted": (
        "def f{n}(k):\n    x = torch.ones(2)\n    {b}\n    return k\n---\n"
        "x = x * sorted([2, 1], key=f{n})[0]"
    ),
    "len": (
        "class C{n}:\n    def __len__(self):\n        x = torch.ones(2)\n        {b}\n"
        "        return 2\n---\nx = x * len(C{n}())"
    ),
}
"""Constructs with an active generator at the split, or native code that calls a Python function."""

_MODULE = """
import contextlib, dataclasses, functools, threading, torch
lock = threading.RLock()
class Quiet:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        return self
    def __exit__(self, kind, value, trace):
        return kind is ValueError
@contextlib.contextmanager
def noted(name):
    try:
        yield name
    finally:
        name = None
def wrapped(f):
    @functools.wraps(f)
    def wrapper(*args, **kw):
        return f(*args, **kw)
    return wrapper
"""
SPLITTING = "x = x + 1\neffect(x.shape[0])\nx = x * 2"


def program(*names: str, splitting: str = SPLITTING) -> str:
    """The text of a module whose ``program(x)`` splits inside these constructs, outermost first."""
    level, body = _MODULE, splitting
    for n, name in enumerate(reversed(names), 1):
        before, _, inside = (CONSTRUCTS | NATIVE)[name].rpartition("---\n")
        parts = []
        for part in (before, inside):
            lines = []
            for line in part.format(n=n, b="{b}").splitlines():
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(textwrap.indent(body, indent) if line.strip() == "{b}" else line)
            parts.append("\n".join(lines))
        level += parts[0] + "\n"
        body = parts[1]
    return f"{level}def program(x):\n{textwrap.indent(body, '    ')}\n    return x\n"
