"""Global variables that are also entries of a dictionary which the program holds."""

import pytest
import torch

from tests.programs import Twins, load, namespace

HEAD = "import torch\ncounter = 0\nlog = []\ndef bump():\n    global counter\n    counter += 1\n"
BODIES = {
    "written as an entry, read by its name": "names['counter'] = 7\nlog.append(counter)",
    "written as an entry, changed by its name": "names['counter'] = 7\nbump()",
    "changed by its name, written as an entry": "bump()\nnames['counter'] = 7\nlog.append(counter)",
    "changed by its name, read as an entry": "bump()\nlog.append(names['counter'])",
    "changed by its name, tested as an entry": "bump()\nlog.append('counter' in names)",
    "changed by its name and as an entry": "bump()\nnames['counter'] += 1\nbump()",
    "deleted as an entry": "del names['counter']\n"
    "names['counter'] = 1 if 'counter' not in names else 2",
    "updated as a whole": "names.update(counter=names['counter'] + 2)\nbump()",
    "changed by its name, all entries read": "bump()\nlog.append(dict(names)['counter'])",
    "of the dictionary that globals returns": "bump()\nglobals()['counter'] = 3\n"
    "log.append(counter)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_global_variable_is_one_location_by_name_and_by_key(body):
    lines = body.replace("\n", "\n    ")
    make = load(f"{HEAD}def program(x, names):\n    {lines}\n    return x * 2\n")
    twins = Twins(make)
    found = []
    for program in (twins.eager, twins.compiled):
        names = (twins.eager if program is twins.eager else twins.target).__globals__
        states = []
        for number in (0, 0, 0, 30, 0):
            names["counter"] += number
            program(torch.ones(2), names)
            states.append((names["counter"], list(names["log"])))
        found.append(states)
    assert found[1] == found[0]


def test_global_variable_read_by_name_and_by_key_is_recorded():
    make = load(f"{HEAD}def program(x, names):\n    return x * counter + names['counter']\n")
    twins = Twins(make)
    for program in (twins.eager, twins.target):
        assert namespace(program)["counter"] == 0
    for hit in (False, True):
        twins.eager(torch.ones(2), twins.eager.__globals__)
        before = twins.compiled._magpy_dispatcher.cache_info().hits
        twins.compiled(torch.ones(2), twins.target.__globals__)
        assert (twins.compiled._magpy_dispatcher.cache_info().hits > before) == hit
