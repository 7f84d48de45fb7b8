"""An object dies where the program lets it go, whatever a record or an open frame would hold."""

import gc
import os
import weakref

import pytest
import torch

import magpy_like as magpy

LOG = []
NOWHERE = open(os.devnull, "w")  # noqa: SIM115


class Noted:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        LOG.append(("died", self.name))


class Thing:
    pass


def cut(note="cut"):
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
    """What is there before the program runs."""

    def __init__(self, folder):
        self.path = str(folder / "file")
        self.noted, self.notes, self.by_name = Noted("old"), [Noted(0), Noted(1)], {"a": Noted("a")}
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
    # --- made before a split, let go of behind it ---
    "deleted": "d = Noted(1); cut(); del d",
    "replaced, when it is read no more": "d = Noted(1); cut(); d = None",
    "in a list": "d = [Noted(1)]; cut(); d.pop()",
    "deep in containers": "d = (1, [{'a': (Noted(1),)}]); cut(); d = None",
    "in an attribute": "d = _holder([Noted(1)]); cut(); del d",
    "in an attribute of a tensor": "d = x + 1; d.held = Noted(1); cut(); del d",
    "in a closure": "d = (lambda noted: lambda: noted)(Noted(1)); cut(); del d",
    "in a module": "d = torch.nn.Linear(2, 2); d.held = Noted(1); cut(); d = None",
    "by an iterator": "d = iter([Noted(0), Noted(1)]); next(d); cut(); d = None",
    "in an exception": "d = ValueError(Noted(1)); cut(); d = None",
    "each round": "for i in range(3):\n        d = Noted(i); cut(i); x = x + 1",
    "by a function": "def f():\n        d = Noted(1); cut(); LOG.append('end')\n    f()",
    "by a raising function": (
        "def f():\n        d = Noted(1); cut(); raise ValueError\n"
        "    try: f()\n    except ValueError: LOG.append('caught')"
    ),
    "with a finalizer": "d = _finalized('finalized'); cut(); del d",
    "with a finalizer, without another split": "d = _finalized('finalized'); del d",
    "a tensor with a finalizer": (
        "d = x + 1; weakref.finalize(d, LOG.append, 'end'); cut(); x = d * 2; del d"
    ),
    "a tensor that is asked for": (
        "d = x + 1; r = weakref.ref(d); cut(); x = d * 2; del d; LOG.append(r() is None)"
    ),
    "an object that is asked for": (
        "d = Thing(); r = weakref.ref(d); cut(); del d; LOG.append(r() is None)"
    ),
    "a generator": "d = _generator(); next(d); cut(); d = None",
    "a generator of a loop": "for i in _generator():\n        cut(i); break",
    "a file": (
        "d = open(box.path, 'w'); d.write('text'); LOG.append(os.path.getsize(box.path)); del d"
        "; LOG.append(os.path.getsize(box.path))"
    ),
    "a file, when it is read no more": (
        "d = open(box.path, 'w'); d.write('text'); LOG.append(os.path.getsize(box.path)); d = None"
        "; LOG.append(os.path.getsize(box.path))"
    ),
    # --- there before ---
    "old, from an attribute": "box.noted = None",
    "old, replaced by another": "box.noted = Noted('new')",
    "old, read before": "LOG.append(box.noted.name); box.noted = None",
    "old, by del": "del box.noted",
    "old, popped": "d = box.notes.pop(); LOG.append(d.name); d = None",
    "old, cleared": "box.notes.clear()",
    "old, from a dictionary": "box.by_name.pop('a')",
    "old, still in a local": "d = box.noted; cut(); box.noted = None; LOG.append(1); d = None",
    "old, in a local since": "d = box.noted; box.noted = None; cut(); LOG.append(1); d = None",
    "old, with a finalizer": "box.thing = None",
    "old, with a callback": "box.called_back = None",
    "old, asked for by a reference": (
        "LOG.append(box.known is None); box.known = None; LOG.append('known' in box.names)"
    ),
    "old, asked for behind a split": (
        "d = box.names['known']; cut(); box.known = None; LOG.append('known' in box.names); "
        "d = None; LOG.append('known' in box.names)"
    ),
}


def _told(program, folder, calls=4):
    told = []
    for i in range(calls):
        box = Box(folder)
        LOG.clear()
        result = program(torch.full((2,), float(i)), box)
        LOG.append("end")
        told.append(([*LOG], result.tolist()))
        del box
    return told


@pytest.mark.parametrize("name", PROGRAMS)
def test_object_dies_where_the_program_lets_it_go(name, tmp_path):
    found = {}
    body = PROGRAMS[name]
    exec(
        f"def program(x, box):\n    {body}\n    LOG.append('gone'); return x * 2", globals(), found
    )
    program = found["program"]
    gc.collect()
    gc.disable()
    try:
        expected = _told(program, tmp_path)
        assert _told(magpy.compile(program, backend="eager"), tmp_path) == expected
    finally:
        gc.enable()


def test_with_blocks_and_closed_files_are_recorded_around_a_split(tmp_path):
    """What a ``with`` ends, and generators without cleanup, die without a trace."""

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


def test_program_that_raises_behind_a_split_runs_once():
    """It has heard that it is compiled, and might raise for that alone; but it has had effects."""
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


def test_modules_that_dynamo_has_seen_are_recorded_around_a_split():
    """Once it has compiled anything it keeps weak references to all modules that are made."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    layers = [torch.nn.ReLU()]

    @magpy.disable
    def given():
        return layers[0]

    def program(x):
        return given()(x - 2)

    fast = magpy.compile(program, backend="eager")
    for i in range(3):
        assert torch.equal(fast(torch.full((2,), 2.0 + i)), torch.full((2,), float(i)))
    assert magpy.cache_info(fast).hits == 2


def test_object_that_a_table_of_torch_forgets_amid_an_operator_is_no_part_of_the_program():
    """Fake tensors leave such tables behind, by the storages that they stand for."""
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


def test_object_that_a_function_from_outside_closes_over_is_held_behind_every_split():
    noted = Noted("closed over")

    def program(x):
        y = x * len(noted.name)
        for note in ("first", "second", "third"):
            cut(note)
        return y

    fast = magpy.compile(program, backend="eager")
    for _ in range(3):
        fast(torch.ones(1))
    assert magpy.cache_info(fast).hits == 2
