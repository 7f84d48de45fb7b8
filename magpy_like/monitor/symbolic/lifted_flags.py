"""Lifted flags: bools that vary between calls (MagPy, section 6.2).

A flag has no identity of its own: there is only one object ``True``. The monitor tracks its
location: the locals of active frames that hold it, the instructions that read it from outside, and
those that consume it. A consumer converts the flag to a number of the graph, branches on it, or
passes it to the locals of a function. Any other use specializes the flag: the guard checks its
value, like the value of any other argument. Specializing is correct at any time before the record
is synthesised, so a flag whose next consumer is unknown is specialized first and tracked again
later.
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

from magpy_like.bytecode.instruction_facts import CALLS
from magpy_like.bytecode.instruction_stream import instructions, parts_of
from magpy_like.bytecode.local_uses import local_uses
from magpy_like.bytecode.tested_jumps import tested_jump
from magpy_like.monitor.call_operands import call_operands
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
from magpy_like.native import frame_locals, frame_set_operand, lookup_in_type
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
    flags: FlagArguments


class LiftedFlags:
    """The flags of one recording."""

    def __init__(self, rec: Recording) -> None:
        self._rec = rec
        self._specialized: set[int] = set()
        """Ids of the ShadowNodes of flags whose values are guarded."""
        self._frames: dict[int, _Frame] = {}
        """By the id of the frame."""
        self._forwarders: dict[int, FlagArguments] = {}
        """By the id of the frame, the flags that a module's ``__call__`` will pass to
        ``forward``."""
        self._pending_call: _PendingCall | None = None
        self._isolated_frames: dict[int, _Frame] = {}
        """By the id of its code, the frame in which a branch will run in isolation."""
        self._numbers: dict[int, Computed] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._nodes: dict[int, ShadowNode] = {}
        self._pending_reads: dict[int, dict[int, dict[int, ShadowNode]]] = {}
        """By the id of the frame and the offset of the consuming instruction, flags that were read
        from outside, by their depths on the operand stack."""
        self._constant: dict[int, bool] = {}
        """By the id of its node, the value of a flag that is constant in the running branch."""

    # --- locations of flags ----------------------------------------------------------------------

    def enter_region(self, frame: types.FrameType, flags: FlagArguments, bound: int) -> None:
        """Track the flags among the arguments of the region. The function's ``bound`` arguments
        come before the positions of ``flags``."""
        for node in flags.values():
            self._register(node)
            self._rec.reads.just_read.add(node.node_id)  # read as arguments only
        self._enter_locals(frame, _shifted(flags, bound))

    def _register(self, node: ShadowNode) -> None:
        if node.node_id not in self._nodes:
            self._nodes[node.node_id] = node
            self._numbers[node.node_id] = Computed(flag_as_number, (EntryValue(node),))

    def read(self, context: Context, step: Step, node: ShadowNode, value: bool) -> Token:
        """Handle an instruction that reads a varying, unguarded bool: track it if its consumer is
        known."""
        if node.node_id not in self._constant and self._consumer(context, step) is None:
            self._register(node)
            self.specialize(node)
            return None
        return _finish_reading, (step, node, value)

    def finish_reading(self, context: Context, step: Step, node: ShadowNode) -> Any:
        """Complete a read: return the replacement of its result, or None."""
        self._register(node)
        self._track(node)
        context.watch_numbers()
        if node.node_id in self._constant:
            return self._constant[node.node_id]
        consumer = self._consumer(context, step)
        assert consumer is not None
        offset, depth, slot = consumer
        if slot is None:
            self._pending_reads.setdefault(id(step.frame), {}).setdefault(offset, {})[depth] = node
        else:
            found = self._frames.get(id(step.frame), _Frame(step.code, 0, {}))
            self._frames[id(step.frame)] = replace(found, slots={**found.slots, slot: node})
        return None

    def _consumer(self, context: Context, step: Step) -> tuple[int, int, int | None] | None:
        """The consumer of the value that an instruction reads; None if the value cannot be tracked.

        Returns:
            Offset of the consumer, depth of the value on its operand stack, and slot of the local
            that it stores to, if any.
        """
        uses = local_uses(step.code)
        found = uses.reads.get(step.offset)
        if found is None:
            return None
        at = instructions(step.code)[found[0]]
        name, argument = parts_of(at.name, at.arg)[0]
        if name != "STORE_FAST":
            return (*found, None)
        if context.isolation.branch_run is not None or argument not in uses.stored_once:
            return None  # the other branch may leave a constant there
        return (*found, argument)

    def enter(self, frame: types.FrameType) -> None:
        """Map the flags of the pending call to the locals of the function that was entered."""
        if not self._nodes:
            return
        self._frames.pop(id(frame), None)
        self._pending_reads.pop(id(frame), None)
        self._specialize(
            self._forwarders.pop(id(frame), {}).values()
        )  # of an earlier frame at this address
        isolated = self._isolated_frames.get(id(frame.f_code))
        if isolated is not None:
            self._frames[id(frame)] = isolated
            return
        call, self._pending_call = self._pending_call, None
        caller = frame.f_back
        if call is not None:
            if call.caller == id(caller) and call.code is frame.f_code:
                self._enter_locals(frame, call.flags)
                return
            self._specialize(call.flags.values())
        flags = self._forwarders.pop(id(caller), None)
        if flags is not None and caller is not None:
            before = _bound_before(caller, frame)
            if before is not None:
                self._enter_locals(frame, _shifted(flags, before))
            else:
                self._specialize(flags.values())

    def specialize_pending_call(self) -> None:
        """Specialize the flags of the pending call: its function is not monitored."""
        if self._pending_call is not None:
            self._specialize(self._pending_call.flags.values())
            self._pending_call = None

    def _enter_locals(self, frame: types.FrameType, flags: FlagArguments) -> None:
        """Track ``flags`` in the locals of a function that has just been entered."""
        code = frame.f_code
        if code in _FORWARDERS:
            if not any(key == 0 for key in flags):
                self._forwarders[id(frame)] = _shifted(flags, -1)
            return
        slots, found = frame_locals(frame), {}
        for key, node in flags.items():
            slot = _slot(code, key)
            if slot in local_uses(code).tracked and slots[slot] is node.first.value:
                found[slot] = node
            else:
                self.specialize(node)
        for forwarded in self._forwarders.values():
            self._specialize(forwarded.values())  # the other function was not monitored
        tracked = {slot: n for slot, n in found.items() if n.node_id not in self._specialized}
        for node in {node.node_id: node for node in tracked.values()}.values():
            if node.node_id in self._rec.reads.just_read:
                self._track(node)
            else:
                self.specialize(node)  # the program has also read it elsewhere
        if tracked:
            self._frames[id(frame)] = _Frame(code, 0, tracked)

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
        tested: BranchFlag,
    ) -> None:
        """Prepare the isolated run of a branch.

        Args:
            frame: The branching frame.
            code: The code of the branch: the program's ``own`` code after ``shift`` bytes.
            own: The code of ``frame``.
            shift: The number of bytes that precede it.
            tested: A flag that is constant in the branch.
        """
        self._isolated_frames.pop(id(code), None)
        slots = self.in_frame(frame)
        if tested is not None:
            slots = {slot: node for slot, node in slots.items() if node is not tested[0]}
            self._constant[tested[0].node_id] = tested[1]
        if slots and self._frames[id(frame)].code is own:
            self._isolated_frames[id(code)] = _Frame(own, shift, slots)

    def end_branch(self, code: types.CodeType, tested: BranchFlag) -> None:
        """End the isolated run of a branch."""
        self._isolated_frames.pop(id(code), None)
        if tested is not None:
            del self._constant[tested[0].node_id]

    # --- uses of flags ---------------------------------------------------------------------------

    def specialize(self, node: ShadowNode) -> None:
        """Guard the value of a flag."""
        if node.node_id in self._nodes:
            self._specialized.add(node.node_id)
            self._guard_value(node)
            self._rec.reads.just_read.discard(node.node_id)

    def specialize_all(self) -> None:
        """Guard the values of all flags: they are no longer tracked."""
        for node in self._nodes.values():
            self.specialize(node)

    def _guard_value(self, node: ShadowNode) -> None:
        """Guard a flag's value; `_track` can drop the guard again."""
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
        """Handle an instruction that is about to run.

        Returns:
            The instruction, with numbers in place of flags among its operands.
        """
        found = self._arrived_flags(step)
        frame = self._frames.get(id(step.frame))
        if frame is not None:
            consumers = local_uses(frame.code).consumers.get(step.offset - frame.shift, ())
            found.update(
                {depth: frame.slots[slot] for depth, slot in consumers if slot in frame.slots}
            )
        for node in found.values():
            if Fact.VALUE in node.facts:  # the program has also read it elsewhere
                self.specialize(node)
        found = {d: node for d, node in found.items() if node.node_id not in self._specialized}
        return self._consume(context, step, found) if found else step

    def _arrived_flags(self, step: Step) -> dict[int, ShadowNode]:
        """The operands of an instruction that are flags from earlier external reads."""
        arriving = self._pending_reads.get(id(step.frame))
        if arriving is None:
            return {}
        read = local_uses(step.code).reads.get(step.offset)
        if read is not None:  # the earlier read there has not reached its consumer
            arriving.get(read[0], {}).pop(read[1], None)
        return arriving.pop(step.offset, {})

    def _consume(self, context: Context, step: Step, found: dict[int, ShadowNode]) -> Step:
        name = opcode.opname[step.opcode]
        if name in CALLS:
            return self._pass_to_call(context, step, found)
        if "NONE" in name or (name == "IS_OP" and any(v is None for v in step.stack[-2:])):
            return step  # neither value is None
        if tested_jump(step.code, step.offset) is not None and name != "COMPARE_OP":
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
        count = step.oparg
        operands = call_operands(opcode.opname[step.opcode], count, step.stack)
        function, bound = operands.function, int(operands.is_method)
        if function in (int, float) and count == 1:
            return self._convert_to_numbers(context, step, found, [1])
        code = None
        if type(function) is types.MethodType:
            function, bound = function.__func__, bound + 1
        if is_instance(function, torch.nn.Module):
            function, bound = lookup_in_type(type(function), "__call__"), bound + 1
        if type(function) is types.FunctionType and is_followed(function):
            code = function.__code__
        if opcode.opname[step.opcode] == "CALL_KW":  # the names of the keywords are on top
            found = {depth - 1: node for depth, node in found.items()}
        if code is None or code.co_flags & _LATER or any(depth > count for depth in found):
            self._specialize(found.values())
            return step
        self.specialize_pending_call()
        names = context.keyword_names(step)
        flags: dict[int | str, ShadowNode] = {}
        for depth, node in found.items():
            key = names[-depth] if depth <= len(names) else count - depth + bound
            flags[key] = node
            self._guard_value(node)
        self._pending_call = _PendingCall(id(step.frame), code, flags)
        return step


def _finish_reading(context: Context, read: tuple[Step, ShadowNode, bool], result: Any) -> Any:
    step, node, value = read
    if result is value:
        return context.flags.finish_reading(context, step, node)
    node.facts.add(Fact.VALUE)  # another object computed the result
    return None


_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code flags of functions whose calls do not run them."""
_FORWARDERS = tuple(function.__code__ for function in MODULE_CALLS)
"""Functions of torch that pass all arguments but the first, unchanged, to the first function that
they call: a module's ``forward``, unless there are hooks."""


def _bound_before(caller: types.FrameType, frame: types.FrameType) -> int | None:
    """The number of arguments that a forwarder's callee receives before the forwarded ones; None if
    the forwarder calls it for another purpose."""
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


def _shifted(flags: FlagArguments, by: int) -> FlagArguments:
    return {key + by if is_instance(key, int) else key: node for key, node in flags.items()}


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
