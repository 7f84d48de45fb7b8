"""Attributes of modules: Python's rules for ``__getattr__`` and the class of a module."""

import pytest

from tests.programs import check_stateful, load, one

SOURCE = """
import types
m = types.ModuleType("m")
log = []
class M(types.ModuleType):
    v = property(lambda self: 9, lambda self, value: log.append(value))
class Base(types.ModuleType): pass
class Lazy(Base):
    def __getattr__(self, name): return 3
{setup}
def program(x):
    {body}
def change():
    {change}
"""
CASES = {
    "getattr replaced": ("m.__getattr__ = lambda name: 5", "return x * m.v",
                         "m.__getattr__ = lambda name: 2"),
    "getattr added": ("", "return x * getattr(m, 'v', 3)", "m.__getattr__ = lambda name: 2"),
    "getattr removed": ("m.__getattr__ = lambda name: 5", "return x * getattr(m, 'v', 3)",
                        "del m.__getattr__"),
    "getattr of a class": ("m.__class__ = Lazy", "return x * m.v",
                           "Lazy.__getattr__ = lambda self, name: 4"),
    "getattr before that of a class": ("m.__class__ = Lazy", "return x * m.v",
                                       "m.__getattr__ = lambda name: 4"),
    "property added to a class": ("m.__class__ = Base; m.v = 1", "return x * m.v",
                                  "Base.v = property(lambda self: 8)"),
    "class": ("m.v = 2", "return x * m.v", "m.__class__ = M"),
    "class, at a store": ("m.v = 2", "m.v = 7; return x * 2", "m.__class__ = M"),
    "dictionary": ("m.v = 2", "return x * m.__dict__['v']", "m.v = 3"),
    "attribute added": ("m.__getattr__ = lambda name: 5", "return x * m.v", "m.v = 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_read_of_a_module_follows_its_getattr_and_its_class(name):
    setup, body, change = CASES[name]
    make = load(SOURCE.format(setup=setup, body=body, change=change))
    check_stateful(make, one(), changes=[lambda program: program.__globals__["change"]()])
