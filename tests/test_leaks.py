"""Leaks of memory and objects by calls, resets, explanations, models and exceptions."""

import gc
import itertools
import linecache
import subprocess
import sys
import weakref

import pytest
import torch

import magpy_like as magpy
from magpy_like.splitting import continuation_code, dynamic_instruction, tracebacks
from magpy_like.torch_compat.tracing.graph_sources import GRAPH_SOURCES
from tests.memory import count_objects, leaked_bytes
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("reset_magpy")


class Tracked(torch.Tensor):
    """A subclass of tensors that can be counted separately among Python objects."""


class Logged(torch.nn.Module):
    """Module state, a container and a closure: each kind of object that a mock builds."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.last = None

    def forward(self, x):
        y = torch.relu(self.linear(x))
        self.last = y
        return {"y": y, "later": lambda z: z + y}


def repeat(action, times):
    for _ in range(times):
        action()


def check_no_leak(action, times):
    """After three repetitions that may fill caches, `times` further ones add nothing."""
    repeat(action, 3)
    before = count_objects()
    assert leaked_bytes(lambda: repeat(action, times)) == 0
    assert count_objects() <= before


def test_1000_hits_leak_nothing():
    model = Logged()
    fast = magpy.compile(model, backend="eager")

    def call():
        fast(torch.ones(2, 4))
        model.last = None

    check_no_leak(call, 1000)
    assert magpy.cache_info(fast).hits > 1000


def test_1000_calls_of_varying_sizes_leak_nothing():
    fast = magpy.compile(Logged(), backend="eager")
    sizes = [1 + i % 40 for i in range(1000)]
    for size in sizes[:40]:
        fast(torch.ones(size, 4))
    fast(torch.ones(1, 4))
    before = count_objects()
    for size in sizes:
        fast(torch.ones(size, 4))
    fast(torch.ones(1, 4))
    assert count_objects() <= before


def test_100_resets_leak_nothing():
    model = Logged()

    def capture_anew():
        fast = magpy.compile(model, backend="eager")
        fast(torch.ones(2, 4))
        fast(torch.ones(2, 4))
        model.last = None
        magpy.reset()

    check_no_leak(capture_anew, 100)


def test_100_explanations_leak_nothing():
    model = Logged()

    def explain():
        magpy.explain(model, torch.ones(2, 4))
        model.last = None

    check_no_leak(explain, 100)


@pytest.mark.parametrize("name", ["ResNet-18", "BERT", "BlockDrop"])
def test_deleted_model_is_collected(name):
    entry = ZOO[name]
    model = entry.make(seed=0)
    fast = magpy.compile(model, backend="eager")
    for seed in range(2):
        args, kwargs = entry.inputs(model, seed, batch=2)
        fast(*args, **kwargs)
    alive = [weakref.ref(thing) for thing in (model, *model.parameters(), *model.buffers())]
    del model, fast, args, kwargs
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == []


def test_inputs_results_and_intermediates_are_freed():
    dead = []

    def program(x):
        y = (x + 1).as_subclass(Tracked)
        dead.append(weakref.ref(y))
        return y * 2

    plain = lambda x: (x + 1) * 2
    fast = magpy.compile(plain, backend="eager")
    for _ in range(3):
        x = torch.ones(2)
        out = fast(x)
        refs = weakref.ref(x), weakref.ref(out)
        del x, out
        assert [ref() for ref in refs] == [None, None]

    watched = magpy.compile(program, backend="eager")
    watched(torch.ones(2))
    assert [ref() for ref in dead] == [None]


def test_exception_in_a_monitored_run_keeps_no_frame_alive():
    class Marker:
        pass

    alive = []

    def program(x):
        marker = Marker()
        alive.append(weakref.ref(marker))
        y = x + 1
        raise ValueError(y.shape)

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        with pytest.raises(ValueError):
            fast(torch.ones(2))
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == []


# --- distinct programs ----------------------------------------------------------------------------

PROGRAMS = {
    "effects": "def f(x, d={}):\n    d['n'] = d.get('n', 0) + 1\n    return x * 2, lambda: x",
    "a split": "def f(x):\n    y = x * 2\n    repr(y)\n    return y + 1",
    "a branch": "def f(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x + 1",
    "varying sizes": "def f(x):\n    return x * x.shape[0]",
    "a backward pass": "def f(x):\n    x.requires_grad_().sum().backward()\n    return x.grad",
    "a disabled function": "@magpy.disable\ndef g(x):\n    return x\ndef f(x):\n    return g(x)",
}


def run_new_program(source, backend):
    names = {"magpy": magpy}
    exec(compile(source, "<program>", "exec"), names)
    fast = magpy.compile(names["f"], backend=backend)
    for size in (3, 3, 4, 5):
        fast(torch.ones(size))


def empty_bounded_caches():
    continuation_code._recent.clear()
    dynamic_instruction._calling.cache_clear()
    tracebacks._never_run.cache_clear()


def growth(name, backend):
    """Objects, sources and torch's sources of graphs that five more programs leave."""

    def count_everything():
        empty_bounded_caches()
        gc.collect()
        sources = [file for file in linecache.cache if file.startswith("<")]
        return len(gc.get_objects()), len(sources), len(GRAPH_SOURCES)

    counts = []
    for _ in range(4):
        repeat(lambda: run_new_program(PROGRAMS[name], backend), 5)
        counts.append(count_everything())
    growths = [[b - a for a, b in zip(*pair)] for pair in itertools.pairwise(counts)]
    # Torch's tables keep the last environment of symbols: a leak grows every time.
    return list(map(min, zip(*growths)))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_deleted_programs_leave_nothing(name, backend):
    # In a process of its own: what other tests leave behind would count.
    code = f"from tests.test_leaks import growth; print(*growth({name!r}, {backend!r}))"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    objects, sources, graph_sources = map(int, ended.stdout.split()[-3:])
    assert objects < 5
    assert sources == graph_sources == 0
