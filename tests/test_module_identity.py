"""A compiled module is the module: every method of ``nn.Module``, overridden and not, on the
original against the compiled one."""

import copy
import inspect

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.programs import matrix


class Net(nn.Module):
    """Has state of every kind, and a module of each kind of state below."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("shift", torch.ones(3))
        self.note = "original"

    def forward(self, x, factor=2.0):
        return self.norm(self.layer(x)) * self.scale * factor + self.shift

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]

    def extra_repr(self):
        return self.note


EXCLUDED = {
    "__new__", "__init_subclass__", "__subclasshook__",  # of the class
    "__class__", "__dict__", "__weakref__",  # no methods
    "__hash__", "__sizeof__",  # of another object in memory
    "__reduce__", "__reduce_ex__",  # a pickle is compiled anew: see tests/test_api.py
    "__annotations__", "__doc__", "__module__",
}  # fmt: skip
METHODS = sorted(
    name for name in dir(nn.Module) if callable(getattr(nn.Module, name)) and name not in EXCLUDED
)


def hook(*args):
    return None


def fresh_state(module):
    return {**vars(module), "note": "of another"}


def state_dict_of(module):
    state = nn.Module.state_dict(module)
    return {name: v + 1 if isinstance(v, torch.Tensor) else v for name, v in state.items()}


ARGUMENTS = {
    "__call__": lambda module: (matrix(),),
    "__delattr__": lambda module: ("scale",),
    "__eq__": lambda module: (module,),
    "__format__": lambda module: ("",),
    "__ge__": lambda module: (module,),
    "__getattr__": lambda module: ("layer",),
    "__getattribute__": lambda module: ("note",),
    "__gt__": lambda module: (module,),
    "__le__": lambda module: (module,),
    "__lt__": lambda module: (module,),
    "__ne__": lambda module: (module,),
    "__setattr__": lambda module: ("fresh", nn.Parameter(torch.ones(2))),
    "__setstate__": lambda module: (fresh_state(module),),
    "_apply": lambda module: (torch.Tensor.double,),
    "_call_impl": lambda module: (matrix(),),
    "_load_from_state_dict": lambda module: (state_dict_of(module), "", {}, True, [], [], []),
    "_maybe_warn_non_full_backward_hook": lambda module: ((matrix(),), matrix(), None),
    "_named_members": lambda module: (lambda m: m._buffers.items(),),
    "_register_load_state_dict_pre_hook": lambda module: (hook,),
    "_register_state_dict_hook": lambda module: (hook,),
    "_save_to_state_dict": lambda module: ({}, "", False),
    "_slow_forward": lambda module: (matrix(),),
    "_wrapped_call_impl": lambda module: (matrix(),),
    "add_module": lambda module: ("fresh", nn.Linear(2, 2)),
    "apply": lambda module: (lambda m: m.register_buffer("seen", torch.ones(1)),),
    "forward": lambda module: (matrix(),),
    "get_buffer": lambda module: ("norm.running_mean",),
    "get_parameter": lambda module: ("layer.weight",),
    "get_submodule": lambda module: ("layer",),
    "load_state_dict": lambda module: (state_dict_of(module),),
    "register_backward_hook": lambda module: (hook,),
    "register_buffer": lambda module: ("fresh", torch.ones(2)),
    "register_forward_hook": lambda module: (hook,),
    "register_forward_pre_hook": lambda module: (hook,),
    "register_full_backward_hook": lambda module: (hook,),
    "register_full_backward_pre_hook": lambda module: (hook,),
    "register_load_state_dict_post_hook": lambda module: (hook,),
    "register_load_state_dict_pre_hook": lambda module: (hook,),
    "register_module": lambda module: ("fresh", nn.Linear(2, 2)),
    "register_parameter": lambda module: ("fresh", nn.Parameter(torch.ones(2))),
    "register_state_dict_post_hook": lambda module: (hook,),
    "register_state_dict_pre_hook": lambda module: (hook,),
    "set_extra_state": lambda module: ({"note": "of another"},),
    "set_submodule": lambda module: ("layer", nn.Linear(2, 2)),
    "to": lambda module: (torch.float64,),
    "to_empty": lambda module: (),
    "train": lambda module: (False,),
    "type": lambda module: (torch.float64,),
}
KEYWORDS = {"to_empty": {"device": "cpu"}}
WITHOUT_VALUES = {"to_empty"}
"""Methods that leave memory as it was found."""

CALLED = []
"""The overridden methods that have run: name, and the state of ``self``."""


def _spy(name):
    def method(self, *args, **kwargs):
        CALLED.append((name, object.__getattribute__(self, "__dict__")))
        return getattr(super(Spied, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


SPIED = [
    name
    for name in METHODS
    if name not in (
        "__getattribute__",  # which a compiled module calls itself: see below
        "__eq__",  # without which nothing is hashed
        "__init__",  # which runs before there is a compiled module
    )
]  # fmt: skip
Spied = type("Spied", (Net,), {name: _spy(name) for name in SPIED})


def snapshot(module, values):
    """All that a module's state consists of, module by module."""
    found = {}
    for path, part in nn.Module.named_modules(module):
        for name, value in vars(part).items():
            found[path, name] = plain(value, module, values)
    return found


def plain(value, module, values=True):
    """A value without identities, by which results and states are compared."""
    if isinstance(value, torch.Tensor):
        content = value.detach().tolist() if values else None
        grad = None if value.grad is None or not values else value.grad.tolist()
        return (
            type(value).__name__,
            str(value.dtype),
            value.shape,
            value.requires_grad,
            content,
            grad,
        )
    if isinstance(value, nn.Module):
        return "self" if vars(value) is vars(module) else nn.Module.__repr__(value)
    if isinstance(value, dict):
        return type(value).__name__, [
            (k if isinstance(k, str) else 0, plain(v, module, values)) for k, v in value.items()
        ]
    if isinstance(value, list | tuple) or inspect.isgenerator(value):
        return [plain(item, module, values) for item in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    return type(value).__name__


def outcome(called, module, name):
    values = name not in WITHOUT_VALUES
    torch.manual_seed(1)
    try:
        arguments = ARGUMENTS.get(name, lambda _: ())(called)
        CALLED.clear()
        result = plain(getattr(called, name)(*arguments, **KEYWORDS.get(name, {})), module, values)
    except Exception as error:
        result = type(error), str(error)
    log = [(of, state is vars(module)) for of, state in CALLED]
    return result, log, snapshot(module, values)


def pair(cls):
    torch.manual_seed(0)
    original = cls()
    twin = copy.deepcopy(original)
    for module in (original, twin):
        for parameter in nn.Module.parameters(module):
            parameter.grad = torch.ones_like(parameter)
    return original, twin, magpy.compile(twin, backend="eager")


@pytest.mark.parametrize("cls", [Net, Spied])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_module_does_on_the_compiled_one_what_it_does_on_the_original(name, cls):
    original, twin, fast = pair(cls)
    expected = outcome(original, original, name)
    assert outcome(fast, twin, name) == expected
    if cls is Spied and name in SPIED:
        assert (name, True) in expected[1]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_returns_the_module_returns_the_compiled_one(name):
    original, _, fast = pair(Net)
    arguments = ARGUMENTS.get(name, lambda _: ())
    try:
        returned = getattr(original, name)(*arguments(original), **KEYWORDS.get(name, {}))
    except Exception:
        return
    if returned is original:
        assert getattr(fast, name)(*arguments(fast), **KEYWORDS.get(name, {})) is fast


def test_every_method_with_parameters_has_arguments_here():
    for name in METHODS:
        try:
            parameters = inspect.signature(getattr(nn.Module, name)).parameters.values()
        except ValueError:
            continue
        required = [p for p in parameters if p.default is p.empty and p.kind <= p.KEYWORD_ONLY]
        required = [p for p in required if p.kind is not p.VAR_POSITIONAL and p.name != "self"]
        assert not required or name in ARGUMENTS or name in KEYWORDS or name in ("__init__",), name
