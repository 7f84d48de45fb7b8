"""Lifted flags: bools that vary between calls (MagPy, section 6.2).

There is only one ``True``, so a flag has no identity of its own. The monitor tracks its location:
the locals of active frames that hold it, the instructions that read it from outside, and those that
consume it. Such an instruction converts it to a number of the graph, branches on it, or passes it
to the locals of a function. Anything else specializes the flag: the guard checks its value, as that
of any other argument. Specializing is correct at any time before the record is made, so where the
next consumer is not known a flag is specialized first and tracked again later.
"""

from __future__ import annotations

import inspect
import opcode
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from magpy_like.bytecode.local_uses import local_uses
from magpy_like.monitor.calls.argument_kinds import is_followed
from magpy_like.monitor.calls.python_operators import BINARY
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    EntryValue,
    flag_as_number,
    flag_as_tensor,
    is_number,
)
from magpy_like.native import NULL, frame_locals, frame_set_operand, lookup_in_type
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, ShadowNode
from magpy_like.split_points import BranchNotMergeable, Split
from magpy_like.torch_compat.dispatch import disable_current_modes
from magpy_like.torch_compat.recognized_functions import MODULE_CALLS

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context
    from magpy_like.monitor.instructions.step import Step

    Token = tuple[Callable[..., Any], Any] | None

FlagArguments = Mapping[int | str, ShadowNode]
"""The flags among the arguments of a call, by position or keyword."""
BranchFlag = tuple[ShadowNode, bool] | None
"""The flag that a branch tests, and its value on one of the two paths."""


@dataclass(frozen=True)
class _Frame:
    """An active frame: its locals that hold flags, by slot."""

    code: types.CodeType
    """The program's code."""
    shift: int
    """The difference of offsets in the frame's code and in ``code``."""
    slots: Mapping[int, ShadowNode]


@dataclass(frozen=True)
class _PendingCall:
    """Flags among the arguments of a pending call, specialized until the function is entered."""

    caller: int
    code: types.CodeType
    given: FlagArguments


class LiftedFlags:
    """The flags of one recording."""

    def __init__(self, rec: Recording) -> None:
        self._rec = rec
        self._specialized: set[int] = set()
        """Ids of the ShadowNodes of flags whose values are guarded."""
        self._frames: dict[int, _Frame] = {}
        """By the id of the frame."""
        self._forwarders: dict[int, FlagArguments] = {}
        """By the id of the frame, the flags that a module's ``__call__`` will pass on."""
        self._pending_call: _PendingCall | None = None
        self._isolated_frames: dict[int, _Frame] = {}
        """By the id of their code, frames in which branches will run in isolation."""
        self._numbers: dict[int, Computed] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._known: dict[int, ShadowNode] = {}
        self._pending_reads: dict[int, dict[int, dict[int, ShadowNode]]] = {}
        """By the id of the frame and the offset of the consuming instruction, flags that were read
        from outside, by their depths on the operand stack."""
        self._constant: dict[int, bool] = {}
        """By the ids of their nodes, flags that are constant in the running branch."""

    # --- locations of flags ----------------------------------------------------------------------

    def enter_region(self, frame: types.FrameType, given: FlagArguments, bound: int) -> None:
        """The region is entered with flags among its arguments, whose positions count from 0 after
        the ``bound`` ones of the function."""
        for node in given.values():
            self._register(node)
            self._rec.reads.just_read.add(node.node_id)  # read as arguments only
        self._enter_locals(frame, _shifted(given, bound))

    def _register(self, node: ShadowNode) -> None:
        if node.node_id not in self._known:
            self._known[node.node_id] = node
            self._numbers[node.node_id] = Computed(flag_as_number, (EntryValue(node),))

    def read(self, context: Context, step: Step, node: ShadowNode, value: bool) -> Token:
        """An instruction reads a bool that varies between calls and is not guarded: track it if its
        consumer is known."""
        if node.node_id not in self._constant and self._taker(context, step) is None:
            self._register(node)
            self.specialize(node)
            return None
        return _finish_reading, (step, node, value)

    def finish_reading(self, context: Context, step: Step, node: ShadowNode) -> Any:
        """The read is complete: returns the replacement of its result, or None."""
        self._register(node)
        self._track(node)
        context.watch_numbers()
        if node.node_id in self._constant:
            return self._constant[node.node_id]
        taker = self._taker(context, step)
        assert taker is not None
        offset, depth, slot = taker
        if slot is None:
            self._pending_reads.setdefault(id(step.frame), {}).setdefault(offset, {})[depth] = node
        else:
            found = self._frames.get(id(step.frame), _Frame(step.code, 0, {}))
            self._frames[id(step.frame)] = replace(found, slots={**found.slots, slot: node})
        return None

    def _taker(self, context: Context, step: Step) -> tuple[int, int, int | None] | None:
        """The consumer of a value that an instruction reads, if it can be tracked there.

        Its offset, the value's depth on the operand stack, and the slot of the local it is stored
        to."""
        uses = local_uses(step.code)
        found = uses.reads.get(step.offset)
        if found is None:
            return None
        name, argument = opcode.opname[step.code.co_code[found[0]]], step.code.co_code[found[0] + 1]
        if name != "STORE_FAST":
            return (*found, None)
        if context.isolation.branch_run is not None or argument not in uses.stored_once:
            return None  # the other branch may leave a constant there
        return (*found, argument)

    def enter(self, frame: types.FrameType) -> None:
        """A function has been entered: map the flags of the pending call to its locals."""
        if not self._known:
            return
        self._frames.pop(id(frame), None)
        self._pending_reads.pop(id(frame), None)
        self._specialize(
            self._forwarders.pop(id(frame), {}).values()
        )  # of another frame, long gone
        side = self._isolated_frames.get(id(frame.f_code))
        if side is not None:
            self._frames[id(frame)] = side
            return
        call, self._pending_call = self._pending_call, None
        caller = frame.f_back
        if call is not None:
            if call.caller == id(caller) and call.code is frame.f_code:
                self._enter_locals(frame, call.given)
                return
            self._specialize(call.given.values())
        given = self._forwarders.pop(id(caller), None)
        if given is not None and caller is not None:
            before = _bound_before(caller, frame)
            if before is not None:
                self._enter_locals(frame, _shifted(given, before))
            else:
                self._specialize(given.values())

    def specialize_pending_call(self) -> None:
        """A function that is not monitored has been entered."""
        if self._pending_call is not None:
            self._specialize(self._pending_call.given.values())
            self._pending_call = None

    def _enter_locals(self, frame: types.FrameType, given: FlagArguments) -> None:
        """Flags are arguments of a function that has just been entered."""
        code = frame.f_code
        if code in _FORWARDERS:
            if not any(key == 0 for key in given):
                self._forwarders[id(frame)] = _shifted(given, -1)
            return
        slots, found = frame_locals(frame), {}
        for key, node in given.items():
            slot = _slot(code, key)
            if slot in local_uses(code).tracked and slots[slot] is node.first.value:
                found[slot] = node
            else:
                self.specialize(node)
        for given in self._forwarders.values():
            self._specialize(given.values())  # the other function was not monitored
        open_ones = {slot: n for slot, n in found.items() if n.node_id not in self._specialized}
        for node in {node.node_id: node for node in open_ones.values()}.values():
            if node.node_id in self._rec.reads.just_read:
                self._track(node)
            else:
                self.specialize(node)  # the program has read it otherwise since
        if open_ones:
            self._frames[id(frame)] = _Frame(code, 0, open_ones)

    def in_frame(self, frame: types.FrameType | None) -> Mapping[int, ShadowNode]:
        """The flags in the locals of an active frame, by slot."""
        found = self._frames.get(id(frame))
        if found is None:
            return {}
        return {s: n for s, n in found.slots.items() if n.node_id not in self._specialized}

    def begin_branch(
        self,
        frame: types.FrameType | None,
        code: types.CodeType,
        own: types.CodeType,
        shift: int,
        known: BranchFlag,
    ) -> None:
        """A branch in ``frame`` is about to run in isolation, as ``code``.

        That is the program's ``own`` code preceded by ``shift`` bytes. The flag ``known`` is
        constant there.
        """
        self._isolated_frames.pop(id(code), None)
        slots = self.in_frame(frame)
        if known is not None:
            slots = {slot: node for slot, node in slots.items() if node is not known[0]}
            self._constant[known[0].node_id] = known[1]
        if slots and self._frames[id(frame)].code is own:
            self._isolated_frames[id(code)] = _Frame(own, shift, slots)

    def end_branch(self, code: types.CodeType, known: BranchFlag) -> None:
        """The branch has ended."""
        self._isolated_frames.pop(id(code), None)
        if known is not None:
            del self._constant[known[0].node_id]

    # --- uses of flags ---------------------------------------------------------------------------

    def specialize(self, node: ShadowNode) -> None:
        """Guard the value of a flag."""
        if node.node_id in self._known:
            self._specialized.add(node.node_id)
            self._guard_value(node)
            self._rec.reads.just_read.discard(node.node_id)

    def specialize_all(self) -> None:
        """Guard the values of all flags: they are no longer tracked."""
        for node in self._known.values():
            self.specialize(node)

    def _guard_value(self, node: ShadowNode) -> None:
        """Guard a flag's value for now; the guard can still be dropped."""
        if Fact.VALUE not in node.facts:
            node.facts.add(Fact.VALUE)
            self._rec.reads.just_read.add(node.node_id)
        self._rec.lifted.external.nodes.discard(node.node_id)

    def _track(self, node: ShadowNode) -> None:
        self._rec.reads.just_read.discard(node.node_id)
        node.facts.discard(Fact.VALUE)
        node.facts.add(Fact.TYPE)
        self._rec.lifted.external.nodes.add(node.node_id)

    def condition(self, node: ShadowNode) -> torch.Tensor:
        """The flag as an input tensor of the operator graph."""
        tensor = self._tensors.get(node.node_id)
        if tensor is None:
            with disable_current_modes():  # those of a branch create tensors without data
                tensor = torch.tensor(bool(node.first.value), device="cpu")
            self._tensors[node.node_id] = tensor
        if self._rec.operators.nodes.node_of(tensor) is None:
            self._rec.graph.add_drawn(tensor, Computed(flag_as_tensor, (EntryValue(node),)))
        return tensor

    def on_instruction(self, context: Context, step: Step) -> Step:
        """An instruction is about to run: returns it, with numbers for flags among its operands."""
        found = self._arrived_flags(step)
        frame = self._frames.get(id(step.frame))
        if frame is not None:
            consumers = local_uses(frame.code).consumers.get(step.offset - frame.shift, ())
            found.update(
                {depth: frame.slots[slot] for depth, slot in consumers if slot in frame.slots}
            )
        for node in found.values():
            if Fact.VALUE in node.facts:  # the program has read it otherwise since
                self.specialize(node)
        found = {d: node for d, node in found.items() if node.node_id not in self._specialized}
        return self._consume(context, step, found) if found else step

    def _arrived_flags(self, step: Step) -> dict[int, ShadowNode]:
        """The operands of an instruction that are flags read from outside before."""
        coming = self._pending_reads.get(id(step.frame))
        if coming is None:
            return {}
        read = local_uses(step.code).reads.get(step.offset)
        if read is not None:  # the earlier read there has not reached its consumer
            coming.get(read[0], {}).pop(read[1], None)
        return coming.pop(step.offset, {})

    def _consume(self, context: Context, step: Step, found: dict[int, ShadowNode]) -> Step:
        name = opcode.opname[step.opcode]
        if name == "CALL":
            return self._pass_to_call(context, step, found)
        if "NONE" in name or (name == "IS_OP" and any(v is None for v in step.stack[-2:])):
            return step  # neither value is None
        if name.startswith("POP_JUMP"):
            try:
                if context.branching is None:
                    raise BranchNotMergeable("branches do not become operators in this run")
                context.branching.at_flag_branch(context, step, found[1])
                return step
            except Split:
                pass
        elif name == "BINARY_OP" and len(found) == 1:
            (depth,) = found
            if _is_arithmetic(BINARY[step.oparg], step.stack[depth - 3]):
                return self._convert_to_numbers(context, step, found, [depth])
        self._specialize(found.values())
        return step

    def _specialize(self, nodes: Iterable[ShadowNode]) -> None:
        for node in nodes:
            self.specialize(node)

    def _convert_to_numbers(
        self, context: Context, step: Step, found: dict[int, ShadowNode], depths: list[int]
    ) -> Step:
        """Replace the flags at these depths by numbers."""
        stack = list(step.stack)
        for depth in depths:
            number = context.lift(int(stack[-depth]), self._numbers[found[depth].node_id])
            frame_set_operand(step.frame, depth, number)
            stack[-depth] = number
        return replace(step, stack=tuple(stack))

    def _pass_to_call(self, context: Context, step: Step, found: dict[int, ShadowNode]) -> Step:
        count, stack = step.oparg, step.stack
        function, bound = stack[-count - 1], 0
        if stack[-count - 2] is not NULL:
            function, bound = stack[-count - 2], 1
        if function in (int, float) and count == 1:
            return self._convert_to_numbers(context, step, found, [1])
        code = None
        if type(function) is types.MethodType:
            function, bound = function.__func__, bound + 1
        if is_instance(function, torch.nn.Module):
            function, bound = lookup_in_type(type(function), "__call__"), bound + 1
        if type(function) is types.FunctionType and is_followed(function):
            code = function.__code__
        if code is None or code.co_flags & _LATER or any(depth > count for depth in found):
            self._specialize(found.values())
            return step
        self.specialize_pending_call()
        names = context.keyword_names(step)
        given: dict[int | str, ShadowNode] = {}
        for depth, node in found.items():
            key = names[-depth] if depth <= len(names) else count - depth + bound
            given[key] = node
            self._guard_value(node)
        self._pending_call = _PendingCall(id(step.frame), code, given)
        return step


def _finish_reading(context: Context, read: tuple[Step, ShadowNode, bool], result: Any) -> Any:
    step, node, value = read
    if result is value:
        return context.flags.finish_reading(context, step, node)
    node.facts.add(Fact.VALUE)  # something else has computed the result
    return None


_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code flags of functions whose calls do not run them."""
_FORWARDERS = tuple(function.__code__ for function in MODULE_CALLS)
"""Functions of torch that pass all arguments but the first, unchanged, to the first function that
they call: a module's ``forward``, unless there are hooks."""


def _bound_before(caller: types.FrameType, frame: types.FrameType) -> int | None:
    """The number of arguments that a function called by one of those receives before the caller's;
    None if it is called for another purpose."""
    if caller.f_code is _FORWARDERS[0]:
        return 1 if frame.f_code is _FORWARDERS[1] else None
    function = _local(caller, "forward_call")
    if type(function) is types.MethodType:
        same = getattr(function.__func__, "__code__", None) is frame.f_code
        return 1 if same else None
    same = type(function) is types.FunctionType and function.__code__ is frame.f_code
    return 0 if same else None


def _local(frame: types.FrameType, name: str) -> Any:
    code = frame.f_code
    cells = [cell for cell in code.co_cellvars if cell not in code.co_varnames]
    value = frame_locals(frame)[[*code.co_varnames, *cells].index(name)]
    return value.cell_contents if is_instance(value, types.CellType) else value


def _shifted(given: FlagArguments, by: int) -> FlagArguments:
    return {key + by if is_instance(key, int) else key: node for key, node in given.items()}


def _slot(code: types.CodeType, key: int | str) -> int:
    """The slot of an argument; -1 for one in ``*args`` or ``**kwargs``."""
    if code.co_flags & _LATER:
        return -1
    if is_instance(key, int):
        return key if key < code.co_argcount else -1
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = names.index(key) if key in names else -1
    return found if found >= code.co_posonlyargcount else -1


def _is_arithmetic(operation: Any, other: Any) -> bool:
    """True if a flag may be replaced by 0 or 1: with a bool the result may be a bool."""
    if is_instance(other, torch.Tensor):
        return operation in _WITH_TENSORS and other.dtype is not torch.bool
    return is_number(other) and operation in _WITH_NUMBERS


_WITH_TENSORS = {operator.add, operator.mul, operator.truediv, operator.iadd, operator.imul}
"""Torch raises an error for the subtraction of a bool."""
_WITH_NUMBERS = {*_WITH_TENSORS, operator.sub, operator.isub, operator.floordiv, operator.pow}
