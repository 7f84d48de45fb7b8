"""Tests of classes: the bases of the tested class may be replaced between calls."""

import pytest

from tests.programs import check_stateful, load, one

SOURCE = """
import contextlib
class Plain: pass
class First({base}): pass
class Second({base}): pass
class Derived(First): pass
class Leaf(Derived): pass
box = Leaf()
def program(x):
    {body}
"""
BODIES = {
    "isinstance": "return x * 2, isinstance(box, Second)",
    "isinstance of a tuple": "return x * 2, isinstance(box, (Second, int))",
    "issubclass": "return x * 2, issubclass(Leaf, Second)",
    "new class": "return x * 2, isinstance(type('New', (Leaf,), {})(), Second)",
    "match": """match box:
        case Second(): return x * 2
        case _: return x * 3""",
    "except": """try: raise box
    except Second: return x * 2
    except First: return x * 3""",
    "suppress": """
    with contextlib.suppress(Second, First):
        with contextlib.suppress(Second):
            raise box
        return x * 2
    return x * 3""",
    "except*": """
    result = x
    try: raise ExceptionGroup("several", [Leaf(), ValueError()])
    except* Second: result = x * 2
    except* Exception: result = result + 1
    return result""",
}


@pytest.mark.parametrize("name", BODIES)
def test_test_of_a_class_relies_on_its_bases(name):
    raises = "except" in name or name == "suppress"
    make = load(SOURCE.format(base="Exception" if raises else "Plain", body=BODIES[name]))
    names = lambda program: program.__globals__
    change = lambda p: setattr(names(p)["Derived"], "__bases__", (names(p)["Second"],))
    check_stateful(make, one(), changes=[change])
