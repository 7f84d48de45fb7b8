"""Class attributes whose class gets or loses the methods of a descriptor between calls."""

import pytest

from tests.programs import check_stateful, load, one

SOURCE = """
class Plain: pass
class Getter:
    def __get__(self, instance, owner): return 5
class Setter:
    def __set__(self, instance, value): log.append(value)
class Meta(type): pass
class A(metaclass=Meta):
    v = {kind}()
class B(A):
    def read(self): return super().v
o = B()
log = []
{setup}
def program(x):
    {body}
def change():
    {change}
"""
GET = "lambda self, instance, owner: 7"
SET = "lambda self, instance, value: log.append(value)"
READ = "return x * o.v"
TYPE = "return x * 2, type(o.v).__name__"
CASES = {
    "set added": ("Getter", "o.v = 3", READ, f"Getter.__set__ = {SET}"),
    "delete added": ("Getter", "o.v = 3", READ, "Getter.__delete__ = lambda self, instance: None"),
    "set removed": ("Getter", "o.v = 3; Getter.__set__ = None", READ, "del Getter.__set__"),
    "get added": ("Plain", "", TYPE, f"Plain.__get__ = {GET}"),
    "get added to a setter": ("Setter", "o.__dict__['v'] = 3", READ, f"Setter.__get__ = {GET}"),
    "entry beside a setter": ("Setter", "o.__dict__['v'] = 3", READ, "o.__dict__['v'] = 4"),
    "get replaced": ("Getter", "", READ, f"Getter.__get__ = {GET}"),
    "get added, read in the class": ("Plain", "", "return x * 2, type(A.v).__name__",
                                     f"Plain.__get__ = {GET}"),
    "get added, read by super": ("Plain", "", "return x * 2, type(o.read()).__name__",
                                 f"Plain.__get__ = {GET}"),
    "set added in a metaclass": ("Plain", "Meta.w = Getter(); A.w = 3", "return x * A.w",
                                 f"Getter.__set__ = {SET}"),
    "set added, at a store": ("Getter", "", "o.v = 7; return x * 2", f"Getter.__set__ = {SET}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attribute_relies_on_the_descriptor_methods_of_its_class(name):
    kind, setup, body, change = CASES[name]
    make = load(SOURCE.format(kind=kind, setup=setup, body=body, change=change))
    check_stateful(make, one(), changes=[lambda program: program.__globals__["change"]()])
