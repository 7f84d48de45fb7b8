"""Lifetimes of objects across splits: an object dies where the program drops its last reference."""

import gc
import os
import weakref

import pytest
import torch

import magpy_like as magpy

LOG = []
NOWHERE = open(os.devnull, "w")  # noqa: SIM115


class Logged:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(("died", self.name))


class Thing:
    pass


def split(note="split"):
    NOWHERE.write("x")
    LOG.append(note)


def _finalized(note):
    thing = Thing()
    weakref.finalize(thing, LOG.append, note)
    return thing


def _holder(value):
    thing = Thing()
    thing.held = value
    return thing


class Box:
    """External objects."""

    def __init__(self, folder):
        self.path = str(folder / "file")
        self.noted, self.notes, self.by_name = (
            Logged("old"),
            [Logged(0), Logged(1)],
            {"a": Logged("a")},
        )
        self.thing = _finalized("finalized")
        self.called_back = Thing()
        self.reference = weakref.ref(self.called_back, lambda _: LOG.append("called back"))
        self.known = Thing()
        self.names = weakref.WeakValueDictionary(known=self.known)


def _generator():
    try:
        yield 1
        yield 2
    finally:
        LOG.append("finally")


PROGRAMS = {
    # --- created before a split, dropped after it ---
    "deleted": "d = Logged(1); split(); del d",
    "replaced, when it is no longer read": "d = Logged(1); split(); d = None",
    "in a list": "d = [Logged(1)]; split(); d.pop()",
    "deep in containers": "d = (1, [{'a': (Logged(1),)}]); split(); d = None",
    "in an attribute": "d = _holder([Logged(1)]); split(); del d",
    "in an attribute of a tensor": "d = x + 1; d.held = Logged(1); split(); del d",
    "in a closure": "d = (lambda noted: lambda: noted)(Logged(1)); split(); del d",
    "in a module": "d = torch.nn.Linear(2, 2); d.held = Logged(1); split(); d = None",
    "by an iterator": "d = iter([Logged(0), Logged(1)]); next(d); split(); d = None",
    "in an exception": "d = ValueError(Logged(1)); split(); d = None",
    "each iteration": "for i in range(3):\n        d = Logged(i); split(i); x = x + 1",
    "by a function": "def f():\n        d = Logged(1); split(); LOG.append('end')\n    f()",
    "by a raising function": (
        "def f():\n        d = Logged(1); split(); raise ValueError\n"
        "    try: f()\n    except ValueError: LOG.append('caught')"
    ),
    "with a finalizer": "d = _finalized('finalized'); split(); del d",
    "with a finalizer, without another split": "d = _finalized('finalized'); del d",
    "a tensor with a finalizer": (
        "d = x + 1; weakref.finalize(d, LOG.append, 'end'); split(); x = d * 2; del d"
    ),
    "a tensor under a weak reference": (
        "d = x + 1; r = weakref.ref(d); split(); x = d * 2; del d; LOG.append(r() is None)"
    ),
    "an object under a weak reference": (
        "d = Thing(); r = weakref.ref(d); split(); del d; LOG.append(r() is None)"
    ),
    "a generator": "d = _generator(); next(d); split(); d = None",
    "a generator of a loop": "for i in _generator():\n        split(i); break",
    "a file": (
        "d = open(box.path, 'w'); d.write('text'); LOG.append(os.path.getsize(box.path)); del d"
        "; LOG.append(os.path.getsize(box.path))"
    ),
    "a file, when it is no longer read": (
        "d = open(box.path, 'w'); d.write('text'); LOG.append(os.path.getsize(box.path)); d = None"
        "; LOG.append(os.path.getsize(box.path))"
    ),
    # --- external objects ---
    "external, from an attribute": "box.noted = None",
    "external, replaced by another": "box.noted = Logged('new')",
    "external, read before": "LOG.append(box.noted.name); box.noted = None",
    "external, by del": "del box.noted",
    "external, popped": "d = box.notes.pop(); LOG.append(d.name); d = None",
    "external, cleared": "box.notes.clear()",
    "external, from a dictionary": "box.by_name.pop('a')",
    "external, still in a local": (
        "d = box.noted; split(); box.noted = None; LOG.append(1); d = None"
    ),
    "external, in a local afterwards": (
        "d = box.noted; box.noted = None; split(); LOG.append(1); d = None"
    ),
    "external, with a finalizer": "box.thing = None",
    "external, with a callback": "box.called_back = None",
    "external, under a weak reference": (
        "LOG.append(box.known is None); box.known = None; LOG.append('known' in box.names)"
    ),
    "external, under a weak reference, after a split": (
        "d = box.names['known']; split(); box.known = None; LOG.append('known' in box.names); "
        "d = None; LOG.append('known' in box.names)"
    ),
}


def _observed(program, folder, calls=4):
    observed = []
    for i in range(calls):
        box = Box(folder)
        LOG.clear()
        result = program(torch.full((2,), float(i)), box)
        LOG.append("end")
        observed.append(([*LOG], result.tolist()))
        del box
    return observed


@pytest.mark.parametrize("name", PROGRAMS)
def test_object_dies_where_the_program_drops_it(name, tmp_path):
    found = {}
    body = PROGRAMS[name]
    exec(
        f"def program(x, box):\n    {body}\n    LOG.append('gone'); return x * 2", globals(), found
    )
    program = found["program"]
    gc.collect()
    gc.disable()
    try:
        expected = _observed(program, tmp_path)
        assert _observed(magpy.compile(program, backend="eager"), tmp_path) == expected
    finally:
        gc.enable()


def test_with_blocks_and_closed_files_are_recorded_around_a_split(tmp_path):
    """Objects that a ``with`` block closes, and generators without cleanup, have no observable
    end."""

    def program(x, path):
        for step in (i for i in range(2)):
            with open(path, "a") as file:
                file.write(f"{step}")
            x = x + step
        return x

    path = str(tmp_path / "file")
    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        assert torch.equal(fast(torch.full((2,), float(i)), path), torch.full((2,), i + 1.0))
    assert open(path).read() == "01" * 3
    assert magpy.cache_info(fast).hits == 2


def test_program_that_raises_after_a_split_runs_once():
    """A program that calls ``is_compiling`` might raise because of it; but this one has had
    effects."""
    done = []

    def program(x):
        if torch.compiler.is_compiling():
            x = x + 1
        thing = Thing()
        weakref.finalize(thing, done.append, len(done))
        raise ValueError("as it is")

    fast = magpy.compile(program, backend="eager")
    for calls in range(1, 4):
        with pytest.raises(ValueError, match="as it is"):
            fast(torch.ones(2))
        assert len(done) == calls


def test_modules_tracked_by_dynamo_are_recorded_around_a_split():
    """Once Dynamo has compiled anything, it keeps weak references to all new modules."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    layers = [torch.nn.ReLU()]

    @magpy.disable
    def first_layer():
        return layers[0]

    def program(x):
        return first_layer()(x - 2)

    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        assert torch.equal(fast(torch.full((2,), 2.0 + i)), torch.full((2,), float(i)))
    assert magpy.cache_info(fast).hits == 2


def test_weak_table_of_torch_that_an_operator_changes_is_no_part_of_the_program():
    """Fake tensors leave such tables behind, keyed by storages."""
    table = torch.utils.weak.WeakIdKeyDictionary()
    held = torch.ones(3)

    def program(x):
        y = held * x
        held.data = y.detach()
        return y

    fast = magpy.compile(program, backend="eager")
    for call in range(3):
        table[held.untyped_storage()] = call
        assert torch.equal(fast(torch.full((3,), 2.0)), torch.full((3,), 2.0 ** (call + 1)))
        assert not table
    assert not magpy.api._dispatcher(fast).split_points


def test_object_in_the_closure_of_an_external_function_survives_every_split():
    noted = Logged("closed over")

    def program(x):
        y = x * len(noted.name)
        for note in ("first", "second", "third"):
            split(note)
        return y

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        fast(torch.ones(1))
    assert magpy.cache_info(fast).hits == 2
