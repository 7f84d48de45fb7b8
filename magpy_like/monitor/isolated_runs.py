"""Running a side of a branch beside the program, with effects that can be undone only.

MagPy (section 6.2.2) runs both sides of a branch on a tensor and takes back what they did. Here a
side runs on fake tensors, which hold no data, so tensors need no taking back; of Python's objects
a side may change those that it has made itself, and nothing else.
"""

from __future__ import annotations

import functools
import opcode
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from magpy_like.annotation import Annotation, RelationKind
from magpy_like.monitor.calls.operator_calls import BINARY, IN_PLACE
from magpy_like.monitor.calls.read_calls import NOT_GIVEN, inputs_of, resolve_relation
from magpy_like.monitor.objects.containers import CONTAINERS, cell_at
from magpy_like.monitor.objects.finalizers import defines_destructor
from magpy_like.monitor.objects.loop_written_locations import SubstitutedLocations, location_of
from magpy_like.monitor.torch_state.default_device import SWITCHES
from magpy_like.native import NULL, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.dispatch import TorchDispatchMode
from magpy_like.torch_compat.fake_tensors import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.symbolic.loop_windows import IndexedReads

    Token = tuple[Callable[..., Any], Any] | None


class TensorEffects(TorchDispatchMode):
    """Lets a side run operators on fake tensors, and write only to memory that it has allocated."""

    def __init__(self, fake: FakeTensorMode, refuse: Callable[[SplitCause], None]) -> None:
        super().__init__()
        self._fake, self._refuse = fake, refuse
        self._own: dict[int, Any] = {}
        self.draws = False
        """Whether the side may draw random numbers: the program goes through it in this run, too,
        and in any other. Without data nothing is drawn here."""
        self.refused: torch.Tensor | None = None
        """What the side would write to, had it not been there before."""

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not self.draws:
            self._stop(f"{func} draws random numbers")
        for tensor in _written(func, args, kwargs):
            if not self.owns(tensor):
                self.refused = tensor if self.refused is None else self.refused
                self._stop(f"{func} changes an external tensor")
        result = func(*args, **kwargs)
        given = {self._storage(t)._cdata for t in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = self._storage(tensor)
            if storage._cdata not in given:
                self._own[storage._cdata] = storage
        return result

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the side has allocated a tensor's memory."""
        return is_instance(tensor, FakeTensor) and tensor.untyped_storage()._cdata in self._own

    def own(self, tensor: torch.Tensor) -> None:
        """The side may write to a tensor without data that stands for another one."""
        storage = tensor.untyped_storage()
        self._own[storage._cdata] = storage

    def _storage(self, tensor: torch.Tensor) -> Any:
        if not is_instance(tensor, FakeTensor):
            tensor = self._fake.from_tensor(tensor)
        return tensor.untyped_storage()

    def _stop(self, detail: str) -> None:
        cause = SplitCause(SplitReason.ISOLATED_EFFECT, detail)
        self._refuse(cause)
        raise Split(*cause)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if is_instance(leaf, torch.Tensor)]


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    undeclared = _WRITES_UNDECLARED.get(func.overloadpacket)
    if undeclared is not None and args[5]:
        yield from _tensors([args[position] for position in undeclared])
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from _tensors(given)


_RUNNING_STATISTICS = (3, 4)
_WRITES_UNDECLARED = {
    torch.ops.aten.native_batch_norm: _RUNNING_STATISTICS,
    torch.ops.aten.cudnn_batch_norm: _RUNNING_STATISTICS,
    torch.ops.aten.miopen_batch_norm: _RUNNING_STATISTICS,
}
"""Operators that change arguments which their schemas do not name, if argument 5, which says
whether they train, is true."""


class IsolatedRun:
    """A part of the program that may change those objects alone that it has made itself. Its rules
    come before those of the monitor."""

    code: types.CodeType | None = None
    """What restores the branching frame of a side, whose cells are the program's own."""
    beside = False
    """Whether it runs beside the program, on fake tensors."""

    def __init__(self) -> None:
        self.gradients_differ = False
        """Whether tensors take part in gradients only at times: in some rounds of a loop, or when
        a function runs again."""
        self.advanced: set[int] = set()
        """The ids of iterators that have moved."""
        self.substituted: SubstitutedLocations | None = None
        """Where it may put something into other objects; None for nowhere."""
        self.copies: set[int] = set()
        """The ids of containers that stand for any that rounds of a loop hand on."""
        self._own: dict[int, Any] = {}

    def is_restored_by(self, step: Step) -> bool:
        """Whether an instruction is none of the program's, but brings the state about."""
        return False

    def owns_tensor(self, tensor: torch.Tensor) -> bool:
        return False

    def own(self, value: Any) -> None:
        """It has made ``value``, and nobody else has it."""
        self._own[id(value)] = value

    def owns(self, value: Any) -> bool:
        return id(value) in self._own

    def require_own(self, value: Any, what: str) -> None:
        if not self.owns(value):
            if self.substituted is not None and self.substituted.allow_growth(value):
                self.own(value)
                return
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"{what} an external {type(value).__qualname__}"
            )

    def store(self, owner: Any, kind: RelationKind, key: Any, what: str) -> None:
        """It is about to put something in the place of what is there.

        Raises:
            Split: it must not.
        """
        if self.owns(owner):
            return
        place = location_of(owner, kind, key)
        if place is None or self.substituted is None:
            raise Split(SplitReason.ISOLATED_EFFECT, what)
        self.substituted.allow(place)

    def consume(self, value: Any) -> None:
        """Something takes the next elements of ``value``, should it be an iterator."""
        if is_iterator(value):
            self.require_own(value, "advances")
            self.advanced.add(id(value))

    def own_if_new(self, value: Any, calls: Any) -> None:
        """The ``__init__`` of ``value`` begins, in a call of ``calls``: what this has just made is
        its own."""
        is_new = calls is type(value) and lookup_in_type(calls, "__new__") is object.__new__
        if is_new and lookup_in_type(type(calls), "__call__") is _TYPE_CALL:
            self.own(value)

    # --- rules -----------------------------------------------------------------------------------

    def check(self, context: Context, step: Step) -> None:
        """An instruction is about to run.

        Raises:
            Split: it would change something that was there before.
        """
        rule = _RULES.get(step.opcode)
        if rule is not None:
            rule(self, context, step)

    def check_call(
        self,
        annotation: Annotation,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """An annotated operation is about to run.

        Raises:
            Split: it has an effect beyond its result, or would tell fake tensors from real ones.
        """
        name = getattr(operation, "__qualname__", str(operation))
        switches = annotation.global_state or operation in SWITCHES
        switches &= operation is not set_grad_enabled  # looked at in the end
        if switches or annotation.random or annotation.replay:
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}, which has an effect outside", name
            )
        if is_instance(operation, functools._lru_cache_wrapper):
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}, which caches its results", name
            )
        looks_for = is_instance(args[0], CONTAINERS) if args else False
        if looks_for and operation.__name__ in _TELLS_WHICH and any(map(_holds_fake, args[1:])):
            raise Split(
                SplitReason.OBJECT_IDENTITY,
                f"calls {name}, which compares tensors by identity",
                name,
            )
        relation = annotation.output.relation
        if relation is not None and relation.kind is RelationKind.CONSTANT:
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}, which caches its results", name
            )
        inputs = inputs_of(args, kwargs)
        written = None
        if relation is not None and relation.access == "write":
            written = relation.of
        for position, value in inputs:
            if is_plain(value):
                continue
            if is_instance(value, torch.Tensor):
                if (self.beside and operation in _TELLS_FAKE) or (
                    position == written and operation not in _PUTS
                ):
                    raise Split(
                        SplitReason.ISOLATED_EFFECT,
                        f"calls {name}, which inspects or changes the Python object of a tensor",
                        name,
                    )
                if operation in _CHANGES_OBJECTS and not self.owns_tensor(value):
                    raise Split(
                        SplitReason.ISOLATED_EFFECT,
                        f"calls {name}, which changes an external tensor",
                        name,
                    )
                continue
            if position == written and relation is not None:
                _, key, stored = resolve_relation(relation, args, kwargs)
                if stored is not NOT_GIVEN and key is not NOT_GIVEN:
                    kind = relation.kind
                    kind = RelationKind.KEY if kind is RelationKind.ITEM else kind
                    self.store(value, kind, key, f"changes an external {type(value).__qualname__}")
                    continue
            if position == written or annotation.input(position).in_place:
                self.require_own(value, "changes")
            self.consume(value)

    def check_attribute(self, name: str) -> None:
        """An attribute of a tensor is about to be read.

        Raises:
            Split: it is not the same at all times.
        """
        if self.gradients_differ and name in _ABOUT_GRADIENTS:
            raise Split(
                SplitReason.ISOLATED_EFFECT,
                f"reads {name}, which differs between runs of a checkpointed function",
            )

    def finish(self, context: Context, token: Token, stack: tuple[Any, ...]) -> Any:
        """An instruction has given the top of ``stack``."""
        replacement = None
        if token is not None:
            finish, payload = token
            replacement = finish(context, payload, stack[-1])
        # One reference each from the frame, from ``stack`` and from the argument.
        if replacement is None and sys.getrefcount(stack[-1]) == 3:
            value = stack[-1]
            if not is_plain(value) and not is_instance(value, np.ndarray | torch.Tensor):
                self.own(value)
        return replacement


class BranchRun(IsolatedRun):
    """The run of one side."""

    beside = True

    def __init__(
        self,
        code: types.CodeType,
        begin: int,
        fake: FakeTensorMode,
        abandon: Callable[[], None],
    ) -> None:
        """``begin`` is the offset at which ``code`` has restored the branching frame."""
        super().__init__()
        self.code, self._begin = code, begin
        self.refused: SplitCause | None = None
        """Why the side cannot be part of a record."""
        self.reads: IndexedReads | None = None
        """What the round of a loop reads by its index that this is, or that it is part of."""
        self._abandon = abandon
        self.tensors = TensorEffects(fake, self.refuse)

    def refuse(self, cause: SplitCause) -> None:
        self.refused = self.refused or cause
        self._abandon()

    def is_restored_by(self, step: Step) -> bool:
        return step.code is self.code and step.offset < self._begin

    def owns_tensor(self, tensor: torch.Tensor) -> bool:
        return self.tensors.owns(tensor)


def finish_isolated(
    context: Context, payload: tuple[IsolatedRun, Token], stack: tuple[Any, ...]
) -> Any:
    side, token = payload
    return side.finish(context, token, stack)


_TYPE_CALL = lookup_in_type(type, "__call__")
_TELLS_FAKE = (type, id)
_CHANGES_OBJECTS = (torch.Tensor.requires_grad_,)
"""What changes a tensor without an operator that `TensorEffects` would see."""
_PUTS = (operator.setitem,)
"""What is an operator on tensors, which `TensorEffects` sees, and else changes containers."""
_TELLS_WHICH = frozenset({"index", "count", "remove", "__contains__", "__eq__", "__ne__"})
"""Methods of containers that look for a tensor by what object it is."""
_ABOUT_GRADIENTS = frozenset(
    {"requires_grad", "is_leaf", "grad_fn", "_grad_fn", "grad", "retains_grad"}
)

_ITERATES = {"UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "SET_UPDATE"}


def _holds_fake(value: Any) -> bool:
    return any(is_instance(leaf, FakeTensor) for leaf in pytree.tree_leaves(value))


def is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def _changes(place: int) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(side: IsolatedRun, context: Context, step: Step) -> None:
        target = step.stack[place]
        if is_instance(target, torch.Tensor) and opcode.opname[step.opcode] in _ON_TENSORS:
            return  # an operator, which `TensorEffects` sees
        side.require_own(target, "changes")

    return rule


def _stores_attribute(side: IsolatedRun, context: Context, step: Step) -> None:
    target = step.stack[-1]
    found = lookup_in_type(type(target), step.name)
    setter = found.fset if is_instance(found, property) else None
    for way in (setter, lookup_in_type(type(target), "__setattr__")):
        if is_instance(way, types.FunctionType):
            return  # followed
    what = f"changes an external {type(target).__qualname__}"
    side.store(target, RelationKind.ATTRIBUTE, step.name, what)


def _stores_item(side: IsolatedRun, context: Context, step: Step) -> None:
    target, key = step.stack[-2:]
    if is_instance(target, torch.Tensor):
        return  # an operator, which `TensorEffects` sees
    what = f"changes an external {type(target).__qualname__}"
    side.store(target, RelationKind.KEY, key, what)


def _stores_global(side: IsolatedRun, context: Context, step: Step) -> None:
    what = "changes a global variable"
    side.store(step.frame.f_globals, RelationKind.GLOBAL, step.name, what)


_ON_TENSORS = {"STORE_SLICE"}


def _adds(below: int) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(side: IsolatedRun, context: Context, step: Step) -> None:
        side.require_own(step.stack[-step.oparg - below], "changes")
        if opcode.opname[step.opcode] in _ITERATES:
            side.consume(step.stack[-1])

    return rule


def _operates(side: IsolatedRun, context: Context, step: Step) -> None:
    if BINARY[step.oparg].__name__ not in IN_PLACE:
        return
    left = step.stack[-2]
    if not is_plain(left) and not is_instance(left, torch.Tensor | tuple | frozenset):
        if not type(left).__flags__ & HEAP_TYPE or is_instance(left, list | set | dict | deque):
            side.require_own(left, "changes")
    side.consume(step.stack[-1])


def _writes_cell(side: IsolatedRun, context: Context, step: Step) -> None:
    cell = cell_at(step.frame, step.oparg)
    if cell is None or side.owns(cell):
        return
    code = step.code
    made_by_frame = step.oparg < code.co_nlocals + len({*code.co_cellvars} - {*code.co_varnames})
    if made_by_frame and code is not side.code:
        side.own(cell)
    elif opcode.opname[step.opcode] == "STORE_DEREF":
        side.store(cell, RelationKind.CELL, None, "changes a closure variable")
    else:
        raise Split(SplitReason.ISOLATED_EFFECT, "deletes a closure variable")


def _calls(side: IsolatedRun, context: Context, step: Step) -> None:
    """What a class makes here goes unannounced, later on."""
    if opcode.opname[step.opcode] == "CALL":
        first = len(step.stack) - step.oparg - 2
        called = step.stack[first + 1] if step.stack[first] is NULL else step.stack[first]
    else:
        called = step.stack[-3 if step.oparg & 1 else -2]
    if is_instance(called, type) and defines_destructor(called):
        raise Split(
            SplitReason.FINALIZER, f"creates a {called.__qualname__}, which has a finalizer"
        )


def _asks_which(side: IsolatedRun, context: Context, step: Step) -> None:
    given = [id(operand) in side.copies for operand in step.stack[-2:]]
    if any(given) and not any(map(is_plain, step.stack[-2:])):
        raise Split(SplitReason.OBJECT_IDENTITY, "tests the identity of a loop-carried container")


def _consumes(side: IsolatedRun, context: Context, step: Step) -> None:
    side.consume(step.stack[-1])


def _never(what: str) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(side: IsolatedRun, context: Context, step: Step) -> None:
        raise Split(SplitReason.ISOLATED_EFFECT, what)

    return rule


def _rules() -> dict[int, Callable[[IsolatedRun, Context, Step], None]]:
    table = {
        "STORE_ATTR": _stores_attribute,
        "DELETE_ATTR": _changes(-1),
        "STORE_SUBSCR": _stores_item,
        "DELETE_SUBSCR": _changes(-2),
        "STORE_SLICE": _changes(-3),
        "LIST_APPEND": _adds(1),
        "SET_ADD": _adds(1),
        "MAP_ADD": _adds(2),
        "LIST_EXTEND": _adds(1),
        "SET_UPDATE": _adds(1),
        "DICT_UPDATE": _adds(1),
        "DICT_MERGE": _adds(1),
        "BINARY_OP": _operates,
        "STORE_DEREF": _writes_cell,
        "DELETE_DEREF": _writes_cell,
        "FOR_ITER": _consumes,
        "UNPACK_SEQUENCE": _consumes,
        "UNPACK_EX": _consumes,
        "STORE_GLOBAL": _stores_global,
        "DELETE_GLOBAL": _never("changes a global variable"),
        "LOAD_BUILD_CLASS": _never("creates a class"),
        "CALL": _calls,
        "CALL_FUNCTION_EX": _calls,
        "IS_OP": _asks_which,
        "SEND": _never("sends values to a generator"),
    }
    return {opcode.opmap[name]: rule for name, rule in table.items() if name in opcode.opmap}


_RULES = _rules()

MAY_CREATE = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name.startswith(("BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_CONST_KEY_MAP"))
    or name in ("CALL", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR",
                "GET_ITER", "MAKE_FUNCTION")
)  # fmt: skip
"""Instructions whose result may be an object that is the side's own."""


def isolated_filter(ordinary: bytes, when: Mapping[str, int]) -> bytes:
    """The monitor's filter of instructions, with those that a side has rules for."""
    changed = bytearray(ordinary)
    # Plain operands are nothing to a side either.
    by_operands = (when["test"], when["pair"], when["objects"])
    for number in {*_RULES, *MAY_CREATE}:
        if changed[number] not in by_operands:
            changed[number] = when["always"]
    return bytes(changed)
