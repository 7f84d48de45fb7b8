"""Isolated runs: a branch, loop body or checkpointed function without external effects.

MagPy (section 6.2.2) runs both branches on a tensor's value and rolls their effects back. Here a
branch runs on fake tensors, which hold no data, so tensors need no roll-back. It may
change only those Python objects that it created.
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
from magpy_like.bytecode.instruction_facts import CALLS
from magpy_like.monitor.call_operands import call_operands, spread_callee_depth
from magpy_like.monitor.calls.python_operators import BINARY, IN_PLACE
from magpy_like.monitor.calls.read_calls import NOT_GIVEN, inputs_of, resolve_relation
from magpy_like.monitor.monitor_suspension import Suspension
from magpy_like.monitor.objects.containers import CONTAINERS, cell_at
from magpy_like.monitor.objects.finalizers import defines_destructor
from magpy_like.monitor.objects.loop_written_locations import SubstitutedLocations, location_of
from magpy_like.monitor.symbolic.expressions import is_liftable
from magpy_like.monitor.torch_state.default_device import SWITCHES
from magpy_like.native import lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE, is_plain
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitCause, SplitReason
from magpy_like.torch_compat import pytree
from magpy_like.torch_compat.autograd import set_grad_enabled
from magpy_like.torch_compat.dispatch import TorchDispatchMode
from magpy_like.torch_compat.tracing.fake_tensors import FAKE_ATTRIBUTES, FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step
    from magpy_like.monitor.symbolic.lists.loop_windows import IndexedReads

    Token = tuple[Callable[..., Any], Any] | None


class TensorEffects(TorchDispatchMode):
    """Runs operators on fake tensors; they may write only to memory allocated in the isolated
    run."""

    def __init__(
        self, fake: FakeTensorMode, refuse: Callable[[SplitCause], None], suspension: Suspension
    ) -> None:
        super().__init__()
        self._fake, self._refuse, self._suspension = fake, refuse, suspension
        self._own: dict[int, Any] = {}
        self.draws = False
        """Whether operators may draw random numbers: the program takes this path in every call. On
        fake tensors nothing is drawn."""
        self.refused: torch.Tensor | None = None
        """The first external tensor that the run would have written to."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no function of torch around `__torch_dispatch__`, which would be followed

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Autograd asks the results of a custom function for their devices. An exception of the
        # monitor would end the process there: native code does not expect any.
        with self._suspension:
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not self.draws:
            self._stop(f"{func} draws random numbers")
        for tensor in _written(func, args, kwargs):
            if not self.owns(tensor):
                self.refused = tensor if self.refused is None else self.refused
                self._stop(f"{func} changes an external tensor")
        result = func(*args, **kwargs)
        inputs = {self._storage(t)._cdata for t in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = self._storage(tensor)
            if storage._cdata not in inputs:
                self._own[storage._cdata] = storage
        return result

    def owns(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's memory was allocated in the run."""
        return is_instance(tensor, FakeTensor) and tensor.untyped_storage()._cdata in self._own

    def own(self, tensor: torch.Tensor) -> None:
        """Allow writes to a fake tensor that represents another one."""
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
            written = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from _tensors(written)


_RUNNING_STATISTICS = (3, 4)
_WRITES_UNDECLARED = {
    torch.ops.aten.native_batch_norm: _RUNNING_STATISTICS,
    torch.ops.aten.cudnn_batch_norm: _RUNNING_STATISTICS,
    torch.ops.aten.miopen_batch_norm: _RUNNING_STATISTICS,
}
"""Operators with undeclared writes: the positions of arguments that they change if argument 5
(training) is true."""


class IsolatedRun:
    """A run of a part of the program that may change only objects that it created. Its rules run
    before the monitor's rules."""

    code: types.CodeType | None = None
    """The continuation's code, which restores the branching frame; its cells are the program's."""
    on_fake_tensors = False
    """Whether the run uses fake tensors, as branches and loop bodies do; a checkpointed function
    runs on the program's tensors."""

    def __init__(self) -> None:
        self.gradients_differ = False
        """Whether ``requires_grad`` of tensors differs between iterations of a loop, or between
        runs of a checkpointed function."""
        self.advanced: set[int] = set()
        """Ids of iterators that were advanced."""
        self.substituted: SubstitutedLocations | None = None
        """Locations of external objects that the run may write to; None if there are none."""
        self.copies: set[int] = set()
        """Ids of containers that represent loop-carried ones."""
        self._own: dict[int, Any] = {}

    def is_restored_by(self, step: Step) -> bool:
        """True for an instruction of the continuation's prefix, which restores the frame."""
        return False

    def owns_tensor(self, tensor: torch.Tensor) -> bool:
        return False

    def own(self, value: Any) -> None:
        """Note that the run created ``value``, and that nothing outside refers to it."""
        self._own[id(value)] = value

    def owns(self, value: Any) -> bool:
        return id(value) in self._own

    def require_own(self, value: Any, action: str) -> None:
        if not self.owns(value):
            if self.substituted is not None and self.substituted.allow_growth(value):
                self.own(value)
                return
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"{action} an external {type(value).__qualname__}"
            )

    def store(self, owner: Any, kind: RelationKind, key: Any, effect: str) -> None:
        """Check a write to a location.

        Raises:
            Split: the run must not write there; ``effect`` is the reason.
        """
        if self.owns(owner):
            return
        location = location_of(owner, kind, key)
        if location is None or self.substituted is None:
            raise Split(SplitReason.ISOLATED_EFFECT, effect)
        self.substituted.allow(location)

    def consume(self, value: Any) -> None:
        """Check the advance of ``value``, if it is an iterator.

        Raises:
            Split: the iterator is external.
        """
        if is_iterator(value):
            self.require_own(value, "advances")
            self.advanced.add(id(value))

    def own_if_new(self, value: Any, calls: Any) -> None:
        """Note ``value`` if it is new: its ``__init__`` begins in a call of the class ``calls``."""
        is_new = calls is type(value) and lookup_in_type(calls, "__new__") is object.__new__
        if is_new and lookup_in_type(type(calls), "__call__") is _TYPE_CALL:
            self.own(value)

    # --- rules -----------------------------------------------------------------------------------

    def check(self, context: Context, step: Step) -> None:
        """Check an instruction that is about to run.

        Raises:
            Split: it changes an external object.
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
        """Check an annotated operation that is about to run.

        Raises:
            Split: it has an effect beyond its result, or its result differs for fake tensors.
        """
        name = getattr(operation, "__qualname__", str(operation))
        switches = annotation.global_state or operation in SWITCHES
        switches &= operation is not set_grad_enabled  # checked at the end of the run
        if switches or annotation.random or annotation.replay:
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}, which has an effect outside", name
            )
        if self.on_fake_tensors and operation is torch.is_autocast_cache_enabled:
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}: autocast keeps no casts here", name
            )
        if is_instance(operation, functools._lru_cache_wrapper):
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"calls {name}, which caches its results", name
            )
        searches = is_instance(args[0], CONTAINERS) if args else False
        searches = searches and operation.__name__ in _COMPARES_IDENTITY
        if searches and any(map(_holds_fake, args[1:])):
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
        if operation in _READS_BY_NAME and len(args) > 1 and is_instance(args[0], torch.Tensor):
            if type(args[1]) is str:
                self.check_attribute(args[1])
        inputs = inputs_of(args, kwargs)
        written = None
        if relation is not None and relation.access == "write":
            written = relation.of
        for position, value in inputs:
            if is_plain(value):
                continue
            if is_instance(value, torch.Tensor):
                self._check_tensor_argument(operation, name, value, position == written)
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

    def _check_tensor_argument(
        self, operation: Any, name: str, tensor: torch.Tensor, is_written: bool
    ) -> None:
        """Check a tensor argument of an operation.

        Raises:
            Split: the operation distinguishes a fake tensor or changes its Python object.
        """
        distinguishes = self.on_fake_tensors and (
            operation in _DISTINGUISHES_FAKE or name.endswith(_READS_STATE)
        )
        if distinguishes or (is_written and operation not in _ITEM_SETTERS):
            raise Split(
                SplitReason.ISOLATED_EFFECT,
                f"calls {name}, which inspects or changes the Python object of a tensor",
                name,
            )
        if operation in _CHANGES_OBJECTS and not self.owns_tensor(tensor):
            raise Split(
                SplitReason.ISOLATED_EFFECT,
                f"calls {name}, which changes an external tensor",
                name,
            )

    def check_attribute(self, name: str) -> None:
        """Check a read of a tensor's attribute.

        Raises:
            Split: the attribute differs between runs.
        """
        if self.on_fake_tensors and name in FAKE_ATTRIBUTES:
            raise Split(
                SplitReason.ISOLATED_EFFECT, f"reads {name}, which tells tensors of a branch apart"
            )
        if self.gradients_differ and name in _GRADIENT_ATTRIBUTES:
            raise Split(
                SplitReason.ISOLATED_EFFECT,
                f"reads {name}, which differs between runs of a checkpointed function",
            )

    def finish(self, context: Context, token: Token, stack: tuple[Any, ...]) -> Any:
        """Handle the result of an instruction, on the top of ``stack``."""
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
    """The isolated run of a branch or loop body."""

    on_fake_tensors = True

    def __init__(
        self,
        code: types.CodeType,
        begin: int,
        fake: FakeTensorMode,
        abandon: Callable[[], None],
        suspension: Suspension,
    ) -> None:
        """``begin`` is the offset at which ``code`` has restored the branching frame."""
        super().__init__()
        self.code, self._begin = code, begin
        self.refused: SplitCause | None = None
        """The reason why the branch cannot be part of a record, if any."""
        self.reads: IndexedReads | None = None
        """Reads by the loop index, if this run is an iteration or part of one."""
        self.head = -2
        """The offset of the head at which the run may end; -2 if it has none."""
        self.tested_at_head: Any = None
        """The tensor whose truth decides there, if an instruction before tests it."""
        self._abandon = abandon
        self.tensors = TensorEffects(fake, self.refuse, suspension)

    def refuse(self, cause: SplitCause) -> None:
        """Unwind the run: the branch cannot be part of a record."""
        self.refused = self.refused or cause
        self._abandon()

    def is_restored_by(self, step: Step) -> bool:
        return step.code is self.code and step.offset < self._begin

    def owns_tensor(self, tensor: torch.Tensor) -> bool:
        return self.tensors.owns(tensor)


def finish_isolated(
    context: Context, payload: tuple[IsolatedRun, Token], stack: tuple[Any, ...]
) -> Any:
    isolated, token = payload
    return isolated.finish(context, token, stack)


_TYPE_CALL = lookup_in_type(type, "__call__")
_DISTINGUISHES_FAKE = (type, id, vars, dir)
_READS_STATE = ("__reduce__", "__reduce_ex__", "__getstate__")
_READS_BY_NAME = (getattr, hasattr, object.__getattribute__)
_CHANGES_OBJECTS = (torch.Tensor.requires_grad_, torch.Tensor.detach_, torch.detach_)
"""Operations that change a tensor without an operator that `TensorEffects` sees."""
_ITEM_SETTERS = (operator.setitem,)
"""Functions that are operators for tensors, which `TensorEffects` sees, and change containers."""
_COMPARES_IDENTITY = frozenset({"index", "count", "remove", "__contains__", "__eq__", "__ne__"})
"""Methods of containers that compare tensors by identity."""
_GRADIENT_ATTRIBUTES = frozenset(
    {"requires_grad", "is_leaf", "grad_fn", "_grad_fn", "grad", "retains_grad"}
)

_ITERATES = {"UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "SET_UPDATE"}


def _holds_fake(value: Any) -> bool:
    return any(is_instance(leaf, FakeTensor) for leaf in pytree.tree_leaves(value))


def is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def _changes(position: int) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(isolated: IsolatedRun, context: Context, step: Step) -> None:
        target = step.stack[position]
        if is_instance(target, torch.Tensor) and opcode.opname[step.opcode] in _TENSOR_OPERATORS:
            return  # an operator, which `TensorEffects` sees
        isolated.require_own(target, "changes")

    return rule


def _stores_attribute(isolated: IsolatedRun, context: Context, step: Step) -> None:
    target = step.stack[-1]
    found = lookup_in_type(type(target), step.name)
    setter = found.fset if is_instance(found, property) else None
    for method in (setter, lookup_in_type(type(target), "__setattr__")):
        if is_instance(method, types.FunctionType):
            return  # followed
    effect = f"changes an external {type(target).__qualname__}"
    isolated.store(target, RelationKind.ATTRIBUTE, step.name, effect)


def _stores_item(isolated: IsolatedRun, context: Context, step: Step) -> None:
    target, key = step.stack[-2:]
    if is_instance(target, torch.Tensor):
        return  # an operator, which `TensorEffects` sees
    effect = f"changes an external {type(target).__qualname__}"
    isolated.store(target, RelationKind.KEY, key, effect)


def _stores_global(isolated: IsolatedRun, context: Context, step: Step) -> None:
    effect = "changes a global variable"
    isolated.store(step.frame.f_globals, RelationKind.GLOBAL, step.name, effect)


_TENSOR_OPERATORS = {"STORE_SLICE"}


def _adds(below: int) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(isolated: IsolatedRun, context: Context, step: Step) -> None:
        isolated.require_own(step.stack[-step.oparg - below], "changes")
        if opcode.opname[step.opcode] in _ITERATES:
            isolated.consume(step.stack[-1])

    return rule


def _operates(isolated: IsolatedRun, context: Context, step: Step) -> None:
    if BINARY[step.oparg].__name__ not in IN_PLACE:
        return
    left = step.stack[-2]
    if not is_plain(left) and not is_instance(left, torch.Tensor | tuple | frozenset):
        if not type(left).__flags__ & HEAP_TYPE or is_instance(left, list | set | dict | deque):
            isolated.require_own(left, "changes")
    isolated.consume(step.stack[-1])


def _writes_cell(isolated: IsolatedRun, context: Context, step: Step) -> None:
    cell = cell_at(step.frame, step.oparg)
    if cell is None or isolated.owns(cell):
        return
    code = step.code
    created_by_frame = step.oparg < code.co_nlocals + len({*code.co_cellvars} - {*code.co_varnames})
    if created_by_frame and code is not isolated.code:
        isolated.own(cell)
    elif opcode.opname[step.opcode] == "STORE_DEREF":
        isolated.store(cell, RelationKind.CELL, None, "changes a closure variable")
    else:
        raise Split(SplitReason.ISOLATED_EFFECT, "deletes a closure variable")


def _calls(isolated: IsolatedRun, context: Context, step: Step) -> None:
    """A call: the destruction of an instance of a class with a finalizer would go unreported."""
    name = opcode.opname[step.opcode]
    if name in CALLS:
        called = call_operands(name, step.oparg, step.stack).function
    else:
        called = step.stack[-spread_callee_depth(step.oparg)]
    if is_instance(called, type) and defines_destructor(called):
        raise Split(
            SplitReason.FINALIZER, f"creates a {called.__qualname__}, which has a finalizer"
        )


def _tests_identity(isolated: IsolatedRun, context: Context, step: Step) -> None:
    carried = [id(operand) in isolated.copies for operand in step.stack[-2:]]
    if any(carried) and not any(map(is_plain, step.stack[-2:])):
        raise Split(SplitReason.OBJECT_IDENTITY, "tests the identity of a loop-carried container")
    if all(map(is_liftable, step.stack[-2:])) and context.lifted.any_lifted(step.stack[-2:]):
        raise Split(SplitReason.OBJECT_IDENTITY, "tests the identity of a number that varies")


def _consumes(isolated: IsolatedRun, context: Context, step: Step) -> None:
    isolated.consume(step.stack[-1])


def _never(effect: str) -> Callable[[IsolatedRun, Context, Step], None]:
    def rule(isolated: IsolatedRun, context: Context, step: Step) -> None:
        raise Split(SplitReason.ISOLATED_EFFECT, effect)

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
        "CALL_KW": _calls,
        "CALL_FUNCTION_EX": _calls,
        "IS_OP": _tests_identity,
        "SEND": _never("sends values to a generator"),
    }
    return {opcode.opmap[name]: rule for name, rule in table.items() if name in opcode.opmap}


_RULES = _rules()

MAY_CREATE = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name.startswith(("BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_CONST_KEY_MAP"))
    or name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR",
                "GET_ITER", "MAKE_FUNCTION")
)  # fmt: skip
"""Instructions whose result may be a new object."""


def isolated_filter(ordinary: bytes, when: Mapping[str, int]) -> bytes:
    """The monitor's filter of instructions, extended by those with rules for isolated runs."""
    changed = bytearray(ordinary)
    # Instructions on plain operands stay unreported.
    by_operands = (when["test"], when["pair"], when["objects"])
    for number in {*_RULES, *MAY_CREATE}:
        if changed[number] not in by_operands:
            changed[number] = when["always"]
    return bytes(changed)
