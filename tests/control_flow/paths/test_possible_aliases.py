"""Results of branches and loops that may be a tensor of the program: the program reads and changes
its Python object, and not only its data, as in eager mode.

Each form below leaves in ``x`` either the argument ``y`` or another tensor, according to the data.
Each use then reads or changes what belongs to the object: attributes, class, history, form, data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import magpy_like as magpy
from tests.compare import assert_same

Use = Callable[[torch.Tensor, torch.Tensor], Any]


def one_branch(y, others, use):
    x = y
    if y.sum() > 0:
        x = y * 2
    return use(x, y)


def loop_on_data(y, others, use):
    x = y
    while x.sum() > 0:
        x = x * 0.5 - 0.25
    return use(x, y)


def choice_of_two(y, others, use):
    x = y if y.sum() > 0 else others[0]
    return use(x, y)


def search(y, others, use):
    x = y
    for other in others:
        if other.sum() > 0:
            x = other
    return use(x, y)


def loop_with_exit(y, others, use):
    x = y
    for _ in range(4):
        if x.sum() <= 0:
            break
        x = x - 1
    return use(x, y)


FORMS = (one_branch, search, loop_on_data, choice_of_two, loop_with_exit)
IN_SHORT = (one_branch, search)


def _sets(name: str, value: Any) -> Use:
    return lambda x, y: setattr(x, name, value)


def _deletes_attribute(x, y):
    if hasattr(x, "mark"):
        del x.mark


def _sets_in_dictionary(x, y):
    vars(x)["mark"] = 5


def _sets_the_others(x, y):
    y.mark = 4
    return getattr(x, "mark", None)


def _retains(x, y):
    if x.requires_grad:
        x.retain_grad()
    return x.retains_grad


def _hooks(x, y):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 3)
    return x * y


def _writes_without_result(x, y):
    x += 1


def _writes_and_returns(x, y):
    x.mul_(2)
    return x, y.sum()


def _writes_to_the_other(x, y):
    y.mul_(2)
    return x.sum()


def _writes_item(x, y):
    x[0] = 3.0


def _writes_out(x, y):
    torch.add(y, 1, out=x)


def _writes_by_relu(x, y):
    nn.functional.relu(x, inplace=True)


def _writes_to_list(x, y):
    torch._foreach_add_([x], 1)


USES: dict[str, Use] = {
    "requires_grad_": lambda x, y: x.requires_grad_() is None,
    "requires_grad": _sets("requires_grad", True),
    "detach_": lambda x, y: x.detach_() is None,
    "detach_ of the other": lambda x, y: (y.detach_() is None, x.requires_grad),
    "sets an attribute": _sets("mark", 3),
    "sets it in the dictionary": _sets_in_dictionary,
    "sets the other's": _sets_the_others,
    "sets the gradient": _sets("grad", None),
    "sets the data": lambda x, y: setattr(x, "data", torch.zeros(4)),
    "deletes an attribute": _deletes_attribute,
    "reads an attribute": lambda x, y: getattr(x, "mark", None),
    "asks for an attribute": lambda x, y: hasattr(x, "mark"),
    "reads the dictionary": lambda x, y: dict(x.__dict__),
    "reads the state": lambda x, y: x.__getstate__() if hasattr(x, "__getstate__") else None,
    "copies": lambda x, y: copy.copy(x),
    "copies deeply": lambda x, y: copy.deepcopy(x) if x.is_leaf else None,
    "is a leaf": lambda x, y: x.is_leaf,
    "is a view": lambda x, y: (x._is_view(), x._base is None),
    "has a history": lambda x, y: x.grad_fn is None,
    "has a gradient": lambda x, y: x.grad is None,
    "class": lambda x, y: type(x).__name__,
    "class by attribute": lambda x, y: x.__class__.__name__,
    "is a parameter": lambda x, y: isinstance(x, nn.Parameter),
    "is one of several": lambda x, y: isinstance(x, (list, nn.Parameter)),
    "retains": _retains,
    "hooks": _hooks,
    "adds a dimension": lambda x, y: x.unsqueeze_(0) is None,
    "resizes": lambda x, y: x.resize_(3) is None,
    "writes": _writes_without_result,
    "writes and returns": _writes_and_returns,
    "writes to the other": _writes_to_the_other,
    "writes to a view": lambda x, y: x[:2].mul_(2) is None,
    "writes to the data": lambda x, y: x.data.mul_(2) is None,
    "writes an item": _writes_item,
    "writes out": _writes_out,
    "writes by relu": _writes_by_relu,
    "writes to a list": _writes_to_list,
    "returns": lambda x, y: [x, {"y": y}],
}


def plain(sign):
    return sign * torch.ones(4)


def leaf(sign):
    return plain(sign).requires_grad_()


def intermediate(sign):
    return leaf(sign) * 1


def parameter(sign):
    return nn.Parameter(plain(sign))


def view(sign):
    return (sign * torch.ones(2, 4))[0]


def marked(sign):
    found = plain(sign)
    found.mark = 1
    return found


KINDS = (plain, leaf, intermediate, parameter, view, marked)


def _observed(program, use, make, signs) -> Any:
    y, *others = map(make, signs)
    tensors = [y, *others]
    try:
        result = program(y, others, use)
    except Exception as error:
        result = type(error)
    else:
        parts = result if isinstance(result, list | tuple) else [result]
        parts = [p for p in parts if isinstance(p, torch.Tensor) and p.requires_grad]
        if parts:
            sum(part.sum() for part in parts).backward()
    states = [
        (t._version, t.requires_grad, t.is_leaf, t.grad if t.is_leaf else None, dict(vars(t)))
        for t in tensors
    ]
    return tensors, result, states


@pytest.mark.parametrize("make", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    "form",
    [pytest.param(f, id=f.__name__, marks=[pytest.mark.full] * (f not in IN_SHORT)) for f in FORMS],
)
def test_a_result_that_may_be_an_argument_is_used_like_the_argument(form, use, make):
    signs = [(-1, 1, -1), (1, -1, 1), (-1, -1, -1), (1, 1, 1), (-1, 1, -1)]
    for order in (signs, signs[1:]):
        fast = magpy.compile(form, backend="eager")
        for each in order:
            actual = _observed(fast, use, make, each)
            assert_same(actual, _observed(form, use, make, each))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_a_class_test_that_holds_for_all_tensors_keeps_one_graph(backend):
    def program(x):
        y = x if x.sum() > 0 else x * 2
        return y + 1 if isinstance(y, torch.Tensor) and type(y) is torch.Tensor else None

    fast = magpy.compile(program, backend=backend, fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign)
        assert_same(fast(x), program(x))
    assert magpy.cache_info(fast).records == 1


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_attributes_set_before_stay_with_the_tensor_that_is_returned(form):
    def program(y, others):
        for number, tensor in enumerate((marked_y := y * 1, *(marked := [o * 1 for o in others]))):
            tensor.mark = number
        return form(marked_y, marked, lambda x, y: x)

    fast = magpy.compile(program, backend="eager")
    for signs in [(-1, 1, -1), (1, -1, 1), (-1, -1, -1), (1, 1, 1)]:
        y, *others = map(plain, signs)
        assert_same(fast(y, others), program(y, others))


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vars": lambda x: len(vars(x)),
    "dictionary": lambda x: len(x.__dict__),
    "dictionary by default rules": lambda x: len(object.__getattribute__(x, "__dict__")),
    "dictionary by name": lambda x: len(getattr(x, "__dict__")),  # noqa: B009
    "names": lambda x: len(dir(x)),
    "state": lambda x: len(x.__getstate__() or ()),
    "attribute of fake tensors": lambda x: getattr(x, "fake_mode", None) is None,
    "whether it has one": lambda x: hasattr(x, "constant"),
    "class": lambda x: x.__class__ is torch.Tensor,
    "class by name": lambda x: getattr(x, "__class__") is torch.Tensor,  # noqa: B009
    "type": lambda x: type(x) is torch.Tensor,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_tensor_made_in_a_branch_looks_like_any_other(look):
    def program(x):
        if x.sum() > 0:
            made = x.relu()
            x = made + look(made)
        return x

    fast = magpy.compile(program, backend="eager")
    for sign in (-1, 1, -1, 1):
        assert_same(fast(plain(sign)), program(plain(sign)))


class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:, 0]

    @staticmethod
    def backward(ctx, gradient):
        return torch.stack([gradient] * 3, 1)


def without_gradients(x):
    with torch.no_grad():
        return x[:, 0]


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "several": lambda x: x.unbind(1)[1],
    "without gradients": without_gradients,
    "custom": First.apply,
}

WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "to its base": lambda view, base: base.mul_(2),
    "to its base detached": lambda view, base: base.detach().mul_(2),
    "to it detached": lambda view, base: view.detach().mul_(2),
    "to an item of the base": lambda view, base: base.__setitem__((0, 1), 4.0),
    "to a list": lambda view, base: torch._foreach_add_([base.detach()], 1),
    "twice": lambda view, base: (view.detach().mul_(2), base.detach().mul_(2)),
}


def view_by_branch(x, make, write):
    base = x * torch.ones(2, 3)
    view, other = make(base), make(x * torch.full((2, 3), 2.0))
    if x.sum() > 0:
        other = view
    write(other, base)
    return x.sum() + other


def view_by_search(x, make, write):
    base = x * torch.ones(2, 3)
    found = make(x * torch.full((2, 3), 2.0))
    for view in (make(base), make(base)):
        if view.sum() > 0:
            found = view
    write(found, base)
    return x.sum() + found


def view_by_loop(x, make, write):
    base = x * torch.ones(2, 3)
    view, found, left = make(base), make(x * torch.full((2, 3), 2.0)), x.detach()
    while left.sum() > 0:
        found, left = view, left - 1
    write(found, base)
    return x.sum() + found


def _result_or_text(program, sign, *args) -> Any:
    x = torch.full((2, 1), float(sign), requires_grad=True)
    try:
        return program(x, *args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("form", [view_by_branch, view_by_search, view_by_loop])
def test_autograd_refuses_a_view_after_a_write_in_the_words_of_eager_mode(form, view, write):
    for signs in [(1, -1, 1, -1), (-1, 1, -1, 1)]:
        fast = magpy.compile(form, backend="eager")
        for sign in signs:
            actual, expected = (_result_or_text(f, sign, view, write) for f in (fast, form))
            assert_same(actual, expected)
