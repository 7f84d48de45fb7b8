"""Lifted numbers may differ at the next call; the mock computes them again (section 6.2).

A lifted number is told from its equals by identity: when the program reads it, the monitor puts a
new ``int`` or ``float`` object of the same value on the operand stack, one that no cache of small
numbers shares. Wherever Python moves that object, the monitor knows it again. Arithmetic on it is
recorded as an expression; anything else that looks at its value makes the value a guard, or splits
the program where no guard can know it.
"""

from __future__ import annotations

import gc
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import fx

from magpy_like.monitor.object_replacement import FoundNumbers
from magpy_like.monitor.objects.containers import CONTAINERS, DICT_VIEWS, elements
from magpy_like.monitor.objects.iterators import is_native_iterator
from magpy_like.monitor.recording import Recording
from magpy_like.monitor.symbolic.expressions import (
    Computed,
    DrawnValue,
    EntryValue,
    Expression,
    GraphNumber,
    Untranslatable,
    depends_on_tensor,
    distinct_copy,
    is_array_number,
    is_computable_at_entry,
    is_computable_before_graph,
    is_drawn,
    is_liftable,
    is_number,
    needs_python_list,
    sum_of,
)
from magpy_like.monitor.symbolic.lower_bounds import LowerBounds
from magpy_like.monitor.symbolic.raising_arithmetic import may_raise
from magpy_like.monitor.symbolic.repeatable_calls import LIFTED, LiftedCall
from magpy_like.monitor.symbolic.symbolic_twin import has_dynamic_form
from magpy_like.monitor.torch_state.random_draws import RepeatedCall
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph import Fact, ShadowNode
from magpy_like.refgraph.plain_values import bind, is_plain, proxied_mapping
from magpy_like.split_points import LoopNotMergeable, SourcePosition, Split, UnguardableRead
from magpy_like.split_reasons import SplitReason

NUMBERS = (int, float)


class LiftedNumbers:
    """The lifted numbers of a run, by the identity of their objects."""

    def __init__(
        self,
        rec: Recording,
        speculation_position: Callable[[], SourcePosition | None],
        found: FoundNumbers,
    ) -> None:
        """``speculation_position`` gives where the program stands; None when values must not be
        speculated on there. ``found`` is told what stands outside for the program's numbers."""
        self.rec = rec
        self.found = found
        self._speculation_position = speculation_position
        self.beside = False
        """Whether the numbers are those of a run beside the program, which never speculates."""
        self.speculated: list[tuple[Expression, Any, SourcePosition]] = []
        """Expressions that the mock computes and that must give these values, or else it has no
        effect and the program runs as it is written; and where the program looks at them."""
        self.nodes: set[int] = set()
        """Ids of the nodes whose numbers are lifted at every read."""
        self._known: dict[int, tuple[Any, Expression]] = {}
        self._twins: dict[int, Any] = {}
        """Symbolic numbers beside the lifted ones, where there are."""
        self._read: dict[int, EntryValue] = {}
        self.values: dict[Expression, Any] = {}
        """What the lifted numbers were in this run."""
        self.lower_bounds = LowerBounds()
        self.conditions: list[tuple[Expression, Any]] = []
        """Expressions that must give these values, for the program looked at them."""
        self.may_raise: list[Computed] = []
        """Arithmetic that raises for some numbers, in the program's order: the mock does it before
        all effects."""
        self.in_python: dict[fx.Node, Computed] = {}
        """How Python computes what nodes of the graph do with numbers of the graph."""
        self.draws: list[RepeatedCall] = []
        """The calls that the mock repeats before the operator graph."""

    def __bool__(self) -> bool:
        return bool(self._known) or bool(self.draws)

    def expression(self, value: Any) -> Expression | None:
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    def parts(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """The expressions of lifted numbers, and other values as they are."""
        return tuple(self.expression(value) or value for value in values)

    def is_read_of(self, value: Any, node: ShadowNode) -> bool:
        """Whether a value is the object of the lifted number at a place outside."""
        expression = self.expression(value)
        return is_instance(expression, EntryValue) and expression.node is node

    def twin(self, value: Any) -> Any:
        """The symbolic number beside a lifted one, or None."""
        return self._twins.get(id(value))

    def lift(self, value: Any, expression: Expression, twin: Any = None) -> Any:
        """A new object for a number, known by ``expression`` from here on."""
        number = distinct_copy(value)
        self._know(number, expression, twin)
        return number

    def _know(self, number: Any, expression: Expression, twin: Any) -> None:
        self._known[id(number)] = (number, expression)
        self.values.setdefault(expression, number)
        if twin is not None:
            self._twins[id(number)] = twin
        else:
            self._twins.pop(id(number), None)

    def read(self, node: ShadowNode, value: Any) -> Any:
        """Lift the number at a place outside; the guard asks for its type only."""
        number = self.lift(value, *self._source(node, value))
        self.found.note(number, value)
        return number

    def as_found(self, value: Any) -> Any:
        """The object that stands outside for a number, or any other value itself."""
        return self.found.original(value) if self.expression(value) else value

    def adopt(self, value: Any, node: ShadowNode) -> None:
        """Know an argument whose object is no other's already."""
        self._know(value, *self._source(node, value))

    def _source(self, node: ShadowNode, value: Any) -> tuple[EntryValue, Any]:
        """The expression and twin of the number at a node, which need not be what it is."""
        if node.node_id not in self.nodes:
            self.nodes.add(node.node_id)
            node.facts.discard(Fact.VALUE)
            node.facts.add(Fact.TYPE)
        read = self._read.get(node.node_id)
        if read is None:
            read = self._read[node.node_id] = EntryValue(node)
            if self.rec.twin is not None and type(value) is int:
                self.rec.twin.add_number(read, value, size=False)
        return read, self.rec.twin.numbers.get(read) if self.rec.twin is not None else None

    def draw(self, drawing: RepeatedCall) -> DrawnValue:
        """The result of a call that the mock is to repeat."""
        self.draws.append(drawing)
        return DrawnValue(len(self.draws) - 1)

    def adopt_array(self, value: Any, node: ShadowNode) -> None:
        """Know an array from outside: the mock computes again what is computed from it, before the
        operator graph runs. So no operator may change it, by a tensor that shares its memory."""
        self._known[id(value)] = (value, EntryValue(node))
        self.rec.operators.shared_arrays.append((value, value.copy()))

    def adopt_drawn(self, value: Any, drawn: DrawnValue) -> None:
        """Know a drawn object that is no number, such as an array."""
        self._known[id(value)] = (value, drawn)

    def is_drawn(self, value: Any) -> bool:
        """Whether a value is made of random numbers that the mock draws again."""
        return is_drawn(self.expression(value))

    def is_known_before_graph(self, value: Any) -> bool:
        """Whether the mock can have a value before the operator graph runs."""
        expression = self.expression(value)
        return is_plain(value) if expression is None else is_computable_before_graph(expression)

    def is_known_at_entry(self, values: tuple[Any, ...]) -> bool:
        """Whether a guard can compute all numbers among these values and in containers there."""
        return all(
            is_computable_at_entry(self.expression(number)) for number in _numbers_in(values)
        )

    def compute(self, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> Any:
        if operation in _CHOOSES and len(set(map(type, operands))) > 1:
            return self._choose(operation, operands)
        if operation in _POWERS:
            self._hold_type_of_power(*operands)
        divides = operation in _DIVISIONS and is_number(operands[0])
        divisor = self.expression(operands[1]) if divides else None
        if divisor is not None and is_computable_at_entry(divisor):
            self.ask(operator.ne, (operands[1], 0))  # the program may catch what that raises
        twin = self._compute_twin(operation, operands, value)
        if twin is not None and not is_instance(twin, torch.SymInt | torch.SymFloat):
            return None  # it is the same whatever the operands are
        parts = self.parts(operands)
        computed = self._note_raising(operation, operands, parts)
        in_graph = is_number(value) and any(is_instance(part, GraphNumber) for part in parts)
        if in_graph and not any(map(needs_python_list, parts)):
            node = self.rec.operators.add_arithmetic(operation, operands, value)
            self.in_python[node] = computed
            found = GraphNumber(node)
            least = [self.lower_bounds.bound(part) for part in parts]
            if operation in (operator.add, operator.iadd) and None not in least:
                self.lower_bounds.note(found, sum(least))
            return self.lift(value, found, twin)
        return self.lift(value, computed, twin)

    def compute_parts(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], values: Any
    ) -> Any:
        """``operation`` has made several numbers, of one type each: gives them, lifted."""
        parts = self.parts(operands)
        whole = self._note_raising(operation, operands, parts)
        return type(values)(
            [
                self.lift(value, Computed(operator.getitem, (whole, i)))
                for i, value in enumerate(values)
            ]
        )

    def item_at(self, node: ShadowNode, key: Any, value: Any) -> Any:
        """The number at a lifted key of a list from outside, which has what it had at entry."""
        take = LiftedCall(operator.getitem, (LIFTED, LIFTED), {}, type(value))
        parts = (EntryValue(node), self.expression(key))
        return self.lift(value, self._note_raising(take, (node.variable, key), parts))

    def made(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], parts: tuple[Any, ...]
    ) -> Computed:
        """What ``operation`` makes of ``operands``, of which some are known by the expressions that
        stand for them in ``parts``."""
        known = (p if is_instance(p, Expression) else self.expression(p) or p for p in parts)
        return self._note_raising(operation, operands, tuple(known))

    def _note_raising(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], parts: tuple[Any, ...]
    ) -> Computed:
        """Let the mock find out whether ``operation`` raises: gives it as Python computes it.

        Raises:
            Split: only a side of a branch, or a round of a loop, knows what it is given.
        """
        computed = Computed(operation, tuple(map(self._as_python_computes, parts)))
        if may_raise(operation, operands, parts, self.lower_bounds.bound):
            if self.beside and not is_computable_before_graph(computed):
                raise Split(
                    SplitReason.ISOLATED_EFFECT,
                    f"calls {operation.__name__}, which may raise for other values of a tensor",
                )
            self.may_raise.append(computed)
        return computed

    def _as_python_computes(self, part: Any) -> Any:
        """A number that the graph computes of others, as the program does: a compiled graph divides
        by zero without an exception."""
        return self.in_python.get(part.node, part) if is_instance(part, GraphNumber) else part

    def _choose(self, operation: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """One of several numbers of different types: which one it is must not differ."""
        goes_before = operator.gt if operation is max else operator.lt
        chosen = operands[0]
        for operand in operands[1:]:
            self.ask(goes_before, (operand, chosen))
            chosen = operand if goes_before(operand, chosen) else chosen

    def _hold_type_of_power(self, base: Any, exponent: Any, *_: Any) -> None:
        """By their signs, powers of integers may be fractions, and others complex numbers."""
        if type(base) is type(exponent) is int:
            if self.expression(exponent) is not None:
                self.ask(operator.ge, (exponent, 0))
        elif self.expression(exponent) is not None or exponent != int(exponent):
            self.ask(operator.ge, (base, 0))

    def _compute_twin(
        self, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any
    ) -> Any:
        """The operation on symbolic numbers, when all lifted operands have one."""
        twins = self.twins_of(operands)
        symbolic = operation if operation in ARITHMETIC else _SYMBOLIC.get(operation)
        if twins is None or symbolic is None:
            return None
        try:
            twin = symbolic(*twins)
        except Exception:  # of torch or of SymPy: whatever has no symbolic form is fixed
            return None
        return twin if type(value) is int or is_instance(twin, torch.SymFloat) else None

    def twins_of(self, value: Any) -> Any:
        """``value`` with symbolic numbers for the lifted ones in it; None when one has none."""
        try:
            return self._with_twins(value)
        except LookupError:
            return None

    def _with_twins(self, value: Any) -> Any:
        kind = type(value)
        if id(value) in self._known:
            return self._twins[id(value)]
        if kind is tuple or kind is torch.Size:
            return tuple(self._with_twins(item) for item in value)
        if kind is list:
            return [self._with_twins(item) for item in value]
        if not is_plain(value):
            raise LookupError
        return int(value) if kind is bool else value  # SymPy's truths are no numbers

    def item(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """A tensor's value became a number: it stays one of the graph, unless it is known what
        the tensor was made of."""
        known = self.rec.operators.symbolic_value(args[0])
        if is_instance(known, torch.SymInt) and type(value) is int:
            return self.pair(value, known)
        counted = None if self.beside else self.rec.counters.value(self.rec, args[0])
        if counted is not None and type(value) is float:
            return self.lift(value, counted)
        node, twin = self.rec.item(operation, args, value)
        if type(value) is int and args[0].dtype.is_floating_point:
            read = (GraphNumber(node.args[0]),)
            self.in_python[node] = self._note_raising(int, (float(value),), read)
        return self.lift(value, GraphNumber(node), twin)

    def pair(self, value: Any, twin: Any) -> Any:
        """``value`` with lifted numbers where ``twin`` is symbolic: what looking at a tensor gave.

        Raises:
            Split: data decides it, and Python looks at it.
        """
        if not is_number(value):
            if is_instance(value, tuple | list) and len(twin) == len(value):
                items = [self.pair(a, b) for a, b in zip(value, twin, strict=True)]
                return type(value)(items)
            if is_instance(twin, torch.SymBool):
                self.hold(twin)
            return value
        if not is_instance(twin, torch.SymInt | torch.SymFloat):
            return value
        assert self.rec.twin is not None
        try:
            expression = self.rec.twin.expression(twin)
        except Untranslatable:
            self.hold(twin == value)
            return value
        if not is_instance(expression, Expression):
            return value
        return self.lift(value, expression, twin)

    def items(self, operation: Any, tensor: torch.Tensor, values: Any) -> Any:
        """A tensor's values became lists of numbers, each of which stays one of the graph."""
        numbers = self.rec.items(operation, tensor)

        def lifted(value: Any) -> Any:
            if type(value) is list:
                return [lifted(item) for item in value]
            return self.lift(value, GraphNumber(numbers(value)))

        return lifted(values)

    def metadata(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """``operation`` has looked at a tensor's sizes, or at what follows from them.

        Raises:
            Split: data decides it, and no number of the graph can stand for it.
        """
        tensor, *rest = args
        if self.rec.operators.has_data_dependent_shape(tensor):
            return self._data_shape(operation, tensor, rest, value)
        twin = self.rec.twin_of(tensor)
        assert self.rec.twin is not None
        if twin is None or not has_dynamic_form(twin):
            return None
        try:
            if operation in _LENGTH:
                seen = twin.shape[0]
            elif is_instance(operation, types.GetSetDescriptorType):
                seen = bind(operation, twin)
            else:
                seen = operation(twin, *rest)
        except Exception:  # what a fake tensor cannot tell, it says in many ways
            self.fix_sizes(tensor)
            return None
        return self.pair(value, seen)

    def _data_shape(
        self, operation: Callable[..., Any], tensor: torch.Tensor, rest: list[Any], value: Any
    ) -> Any:
        name = getattr(operation, "__name__", "")
        node = self.rec.operators.node_of(tensor)
        assert node is not None
        if name in ("shape", "size") and is_instance(value, torch.Size):
            sizes = (self.rec.operators.add_size(node, dim) for dim in range(len(value)))
            return torch.Size(
                self.lift(n, GraphNumber(size)) for n, size in zip(value, sizes, strict=True)
            )
        if operation in _LENGTH:
            return self.lift(value, GraphNumber(self.rec.operators.add_size(node, 0)))
        if name in ("numel", "nelement") and tensor.dim() and not rest:
            return self._data_numel(node, tensor)
        if name == "size" and len(rest) == 1 and type(rest[0]) is int:
            return self.lift(value, GraphNumber(self.rec.operators.add_size(node, rest[0])))
        self._speculate_on_sizes(tensor)
        return None

    def _data_numel(self, node: fx.Node, tensor: torch.Tensor) -> Any:
        sizes = [self.rec.operators.add_size(node, dim) for dim in range(tensor.dim())]
        lifted = [self.lift(n, GraphNumber(s)) for n, s in zip(tensor.shape, sizes, strict=True)]
        count = lifted[0]
        for size in lifted[1:]:
            count = self.compute(operator.mul, (count, size), count * size)
        return count

    def fix_sizes(self, tensor: torch.Tensor) -> None:
        """Native code looks at the sizes of a tensor in a way that is not recorded.

        What a running operator has made of the tensors that it was given tells of theirs.

        Raises:
            Split: they depend on data.
        """
        if self.rec.inside and self.rec.is_made_inside(tensor):
            for given in self.rec.given.values():
                self._fix_sizes(given)
        else:
            self._fix_sizes(tensor)

    def _fix_sizes(self, tensor: torch.Tensor) -> None:
        twin = self.rec.twin_of(tensor)
        if self.rec.operators.has_data_dependent_shape(tensor):
            self._speculate_on_sizes(tensor)
        elif twin is not None and self.rec.twin is not None and not self.rec.twin.specialize(twin):
            raise UnguardableRead(*_DATA_SIZE)

    def _speculate_on_sizes(self, tensor: torch.Tensor) -> None:
        try:
            place = self.may_speculate(*_DATA_SIZE)
        except Split as split:
            raise UnguardableRead(*split.cause) from None
        operators = self.rec.operators
        node = operators.node_of(tensor)
        assert node is not None
        for dim, size in enumerate(tensor.shape):
            self.speculated.append((GraphNumber(operators.add_size(node, dim)), size, place))
        operators.set_static_shape(node)

    def fold(self, operation: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """``operation`` has made one number of a container's."""
        twins = self.twins_of(args)
        numbers = args[0] if type(args[0]) in (list, tuple) else ()
        differ = operation in _CHOOSES and len(set(map(type, numbers))) > 1
        if twins is not None and type(value) is int and not differ:
            return self.pair(value, FOLDS[operation](*twins))
        if len(numbers) > 1 and all(map(is_number, numbers)) and operation in _OF_SEVERAL:
            return self.compute(_OF_SEVERAL[operation], tuple(numbers), value)
        self.specialize(args)
        return None

    def folds(self, operation: Any, args: tuple[Any, ...]) -> bool:
        """Whether ``fold`` knows what ``operation`` makes of numbers in a container."""
        if operation not in FOLDS or len(args) != 1 or not is_instance(args[0], list | tuple):
            return False
        return operation in _OF_SEVERAL or self.twins_of(args) is not None

    def is_lifted(self, value: Any) -> bool:
        return id(value) in self._known

    def any(self, values: tuple[Any, ...]) -> bool:
        return any(id(value) in self._known for value in values)

    def any_in(self, value: Any) -> bool:
        """Whether there is a lifted number in nested containers."""
        return any(id(number) in self._known for number in _numbers_in(value))

    def specialize(self, values: Any) -> None:
        """The program looks at these values in a way that is not recorded: they must not differ.

        Raises:
            Split: a value is only known when the region runs.
        """
        for value in _numbers_in(values):
            expression = self.expression(value)
            if expression is None:
                continue
            if not is_computable_at_entry(expression) or depends_on_tensor(expression):
                self.speculate(expression, value)
                continue
            twin = self.twin(value)
            if is_instance(twin, torch.SymInt):
                self.hold(twin == value)
            elif not any(known is expression for known, _ in self.conditions):
                self.conditions.append((expression, value))

    def hold(self, condition: Any) -> bool:
        """The program goes on as it does because of a symbolic condition.

        Raises:
            Split: data decides it.
        """
        try:
            truth = bool(condition)
        except Exception:  # of torch or of SymPy, which solves for it
            raise Split(
                SplitReason.DATA_DEPENDENT_SIZE,
                "a size that depends on a tensor's data decides control flow",
            ) from None
        if self.rec.twin is not None:
            self.rec.twin.note_location()
        return truth

    def ask(self, operation: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """The program goes on by the truth of ``operation(*operands)``, of plain values.

        Raises:
            Split: an operand is only known when the region runs, and cannot be speculated on.
        """
        parts = self.parts(operands)
        twins = self.twins_of(operands)
        numbers = all(is_liftable(operand) for operand in operands)
        if self.lower_bounds.is_decided(operation, parts):
            return
        if numbers and not all(map(is_computable_at_entry, parts)):
            self.speculate(Computed(operation, parts), operation(*operands))
        elif not all(is_computable_at_entry(self.expression(n)) for n in _numbers_in(operands)):
            self.specialize(operands)
        elif twins is not None and not any(is_instance(twin, _FLOATS) for twin in twins):
            self.hold(operation(*twins))
        elif numbers:
            self.conditions.append((Computed(operation, parts), operation(*operands)))
        else:
            self.specialize(operands)

    def steers(self, operation: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the answer may differ from round to round of a loop, as an operand does.

        Raises:
            Split: only that of the first round does, which may go its own way.
        """
        parts = self.parts(operands)
        if not any(is_instance(part, GraphNumber) for part in parts):
            return False
        if not all(map(is_number, operands)) or self.lower_bounds.is_decided(operation, parts):
            return False
        if self.lower_bounds.is_decided_after_first(operation, parts):
            raise LoopNotMergeable("an iteration tests whether it is the first one")
        return True

    def rely_on(
        self,
        operation: Callable[..., Any],
        operands: tuple[Any, ...],
        value: Any,
        parts: tuple[Any, ...] | None = None,
    ) -> None:
        """The program goes on by what ``operation`` has made of plain values.

        Raises:
            Split: an operand is only known when the region runs, and cannot be speculated on.
        """
        if parts is None:
            parts = self.parts(operands)
        if all(map(is_computable_at_entry, parts)):
            self.conditions.append((Computed(operation, parts), value))
        else:
            self.speculate(Computed(operation, parts), value)

    def may_speculate(self, reason: SplitReason, detail: str) -> SourcePosition:
        """Ask whether the mock could still undo everything when a value is misspeculated.

        Returns the place at which the program looks at the value.

        Raises:
            Split: it could not, or the program is to split there, for the reason.
        """
        place = None if self.beside or self.rec.inside else self._speculation_position()
        if place is None or not self.can_undo():
            raise Split(reason, detail)
        return place

    def can_undo(self) -> bool:
        """Whether a mock can put back all that was done before its effects."""
        return self.can_rewind() and not self.rec.changed_inputs()

    def can_rewind(self) -> bool:
        """The same, once the tensors that operators have changed hold what they did."""
        rewindable = all(drawing.can_roll_back for drawing in self.draws)
        return rewindable and not self.rec.operators.sets_modes

    def speculate(self, expression: Expression, value: Any) -> None:
        """The program looks at a value that is only known when its operators have run.

        Raises:
            Split: it cannot be speculated on.
        """
        drawn = is_drawn(expression)
        if not drawn:
            detail = "a tensor's value, read as a number, decides control flow"
            place = self.may_speculate(SplitReason.TENSOR_VALUE_READ, detail)
        elif self.rec.operators.shared_arrays:
            detail = "an element of a NumPy array decides control flow"
            place = self.may_speculate(SplitReason.NUMPY_ARRAY, detail)
        else:
            detail = "a random number decides control flow"
            place = self.may_speculate(SplitReason.RANDOM_VALUE_DECIDES, detail)
        if not any(known is expression for known, *_ in self.speculated):
            self.speculated.append((expression, value, place))


_DIVISIONS = {
    operator.truediv, operator.floordiv, operator.mod,
    operator.itruediv, operator.ifloordiv, operator.imod,
}  # fmt: skip
_DATA_SIZE = (SplitReason.DATA_DEPENDENT_SIZE, "reads a size that depends on a tensor's data")

_LENGTH = {len, torch.Tensor.__len__}

_FLOATS = (float, torch.SymFloat)
"""Python compares these; symbolic arithmetic might round in another way."""


def _numbers_in(value: Any) -> Iterator[Any]:
    """The numbers in nested containers, and text, which may be made of lifted numbers."""
    pending, seen = [value], set[int]()
    while pending:
        value = pending.pop()
        if type(value) in NUMBERS or type(value) is str or is_array_number(value):
            yield value
        elif id(value) not in seen and (parts := _parts(value)):
            seen.add(id(value))
            pending += reversed(parts)


def _parts(value: Any) -> list[Any]:
    """What an object holds that native code may look at when it is given it."""
    if is_instance(value, CONTAINERS):
        return elements(value)
    if is_instance(value, slice):
        return [value.start, value.stop, value.step]
    if is_instance(value, BaseException):
        return [*value.args]
    if is_instance(value, types.SimpleNamespace):
        return [*value.__dict__.values()]
    if is_instance(value, types.MappingProxyType):
        return [proxied_mapping(value)]
    if is_native_iterator(value) and not is_instance(value, types.GeneratorType):
        return gc.get_referents(value)  # whatever it takes its elements from
    view: Any = value
    return list(view) if is_instance(value, DICT_VIEWS) else []


ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor,
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.ilshift, operator.irshift, operator.iand, operator.ior,
    operator.ixor, operator.neg, operator.pos, operator.invert,
}  # fmt: skip

_CHOOSES = (max, min)
_POWERS = (operator.pow, operator.ipow, pow)


def _symbolic_max(*numbers: Any) -> Any:
    return reduce(torch.sym_max, numbers)


def _symbolic_min(*numbers: Any) -> Any:
    return reduce(torch.sym_min, numbers)


_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    max: _symbolic_max,
    min: _symbolic_min,
    int: torch.sym_int,
    float: torch.sym_float,
    abs: abs,
    math.ceil: math.ceil,
    math.floor: math.floor,
}
"""Functions of numbers that have a symbolic form; others would ask for the value."""

FOLDS: dict[Any, Callable[..., Any]] = {
    math.prod: math.prod,
    torch.Size.numel: math.prod,
    max: lambda numbers: reduce(torch.sym_max, numbers),
    min: lambda numbers: reduce(torch.sym_min, numbers),
    sum: sum,
}
"""Functions of one container of numbers, and the same of symbolic ones."""


_OF_SEVERAL: dict[Any, Callable[..., Any]] = {sum: sum_of, max: max, min: min}
"""Functions of one container, and the same of its elements."""
