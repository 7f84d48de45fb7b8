"""Torch's controls of its compiler: each is honoured as torch documents it, or refused by name."""

import subprocess
import sys
import types
import warnings

import pytest
import torch
import torch._dynamo
from torch import nn

import magpy_like as magpy
from magpy_like.monitor.calls import torch_wrappers
from magpy_like.monitor.symbolic.dynamic_marks import may_have_marks
from magpy_like.native import is_unusual
from magpy_like.split_reasons import SplitReason
from magpy_like.torch_compat.supported_torch import installed
from tests.compare import assert_same
from tests.programs import matrix, tensor


@pytest.fixture(autouse=True)
def _default_stance():
    yield
    torch.compiler.set_stance("default")


def compiled(program, **settings):
    return magpy.compile(program, backend="eager", **settings)


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, magpy.MagpyWarning)]


# --- torch.compiler.disable -----------------------------------------------------------------------

DISABLE = {
    "compiler": torch.compiler.disable,
    "compiler, called": lambda f: torch.compiler.disable()(f),
    "with a reason": lambda f: torch.compiler.disable(f, reason="because"),
    "not recursive": lambda f: torch.compiler.disable(f, recursive=False),
    "dynamo": torch._dynamo.disable,
    "twice": lambda f: torch.compiler.disable(torch.compiler.disable(f)),
    "of a compiled one": lambda f: torch.compiler.disable(compiled(f)),
    "of one compiled by torch": lambda f: torch.compiler.disable(torch.compile(f)),
    "magpy": magpy.disable,
}


@pytest.mark.parametrize("name", DISABLE)
def test_disabled_function_runs_natively_at_every_call(name):
    calls = []

    def counted(x):
        calls.append(1)
        return x + len(calls)

    inner = DISABLE[name](counted)
    fast = compiled(lambda x: inner(x * 2) * 3)
    assert_same([fast(tensor(1)) for _ in range(4)], [tensor(3 * (2 + n)) for n in (1, 2, 3, 4)])
    info = magpy.cache_info(fast)
    assert (info.hits, info.misses, info.graphs) == (3, 1, 2)
    (point,) = magpy.explain(fast, tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION and "counted" in point.detail
    assert "torch.compiler.disable" in point.cause.remedy


class Disabled(nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return x + self.calls


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


@torch.compiler.disable
class DisabledClass(Plain):
    pass


@pytest.mark.parametrize(
    "make",
    [Disabled, DisabledClass, lambda: torch.compiler.disable(Plain())],
    ids=["forward", "class", "module"],
)
def test_disabled_module_runs_natively_at_every_call(make):
    module = make()
    fast = compiled(lambda x: module(x * 2) * 3)
    assert_same([fast(tensor(1)) for _ in range(3)], [tensor(9), tensor(12), tensor(15)])
    assert magpy.cache_info(fast)[:2] == (2, 1) and magpy.cache_info(fast).graphs == 2
    (point,) = magpy.explain(fast, tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION


def test_compiled_module_of_a_disabled_class_runs_natively():
    fast = compiled(DisabledClass())
    assert_same([fast(tensor(1)) for _ in range(3)], [tensor(2), tensor(3), tensor(4)])
    assert magpy.cache_info(fast) == (0, 0, 0, 0, 3, 0)


def test_last_decorator_decides():
    def program(x):
        return x + 1

    fast = compiled(torch.compiler.disable(program))
    fast(tensor(1)), fast(tensor(1))
    assert magpy.cache_info(fast).hits == 1
    slow = torch.compiler.disable(fast)
    assert_same(slow(tensor(1)), tensor(2))
    assert magpy.cache_info(fast)[:2] == (1, 1)

    model = Plain()
    fast = compiled(model)
    slow = torch.compiler.disable(fast)
    assert_same([slow(tensor(1)), slow(tensor(1))], [tensor(2), tensor(3)])
    assert magpy.cache_info(fast)[:2] == (0, 0)


def test_fullgraph_names_a_disabled_function():
    @torch.compiler.disable
    def inner(x):
        return x

    with pytest.raises(magpy.FullGraphError, match="inner.*torch.compiler.disable"):
        compiled(lambda x: inner(x) + 1, fullgraph=True)(tensor(1))


def test_function_that_torch_hides_from_dynamo_is_part_of_the_record():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)

    def step(x):
        optimizer.step()
        return parameter * x

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # torch wraps its optimizers
    parameter.grad = torch.ones(2)
    points = magpy.explain(step, tensor(1, 1)).split_points
    assert not any(point.reason is SplitReason.DISABLED_FUNCTION for point in points)


def test_functions_that_copy_torchs_attributes_are_followed():
    inner = torch.compiler.disable(lambda x: x)

    def outer(x):
        return inner(x) * 2

    outer.__dict__.update(inner.__dict__)
    assert torch_wrappers.role_of(outer) is None
    assert torch_wrappers.role_of(inner) is torch_wrappers.Role.DISABLED


def test_function_of_torch_that_the_program_disables_is_disabled():
    relu = torch.compiler.disable(torch.nn.functional.relu)
    (point,) = magpy.explain(lambda x: relu(x) + 1, tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION


# --- torch.compiler.set_stance --------------------------------------------------------------------


def test_force_eager_runs_natively_without_a_report():
    fast = compiled(lambda x: x * 2)
    fast(tensor(1))

    def calls():
        with torch.compiler.set_stance("force_eager"):
            assert_same([fast(tensor(1)), fast(tensor(1, 2))], [tensor(2), tensor(2, 4)])

    assert warnings_of(calls) == []
    assert magpy.cache_info(fast) == (0, 1, 1, 1, 2, 0)
    fast(tensor(1))
    assert magpy.cache_info(fast).hits == 1

    @torch.compiler.set_stance("force_eager")
    def decorated():
        return fast(tensor(1))

    decorated()
    assert magpy.cache_info(fast)[:2] == (1, 1)


def test_eager_on_recompile_uses_records_and_makes_none():
    fast, never = compiled(lambda x: x * 2), compiled(lambda x: x * 2)
    fast(tensor(1))
    torch.compiler.set_stance("eager_on_recompile")
    assert_same([fast(tensor(1)), fast(tensor(1, 2))], [tensor(2), tensor(2, 4)])
    assert magpy.cache_info(fast) == (1, 1, 1, 1, 1, 0)
    never(tensor(1))
    assert magpy.cache_info(never) == (0, 0, 0, 0, 1, 0)
    torch.compiler.set_stance("default")
    never(tensor(1))
    assert magpy.cache_info(never).misses == 1


def test_fail_on_recompile_raises_with_the_reason_before_the_program_runs():
    seen = []

    def program(x, mode):
        seen.append(mode)
        return x * 2

    fast = compiled(program)
    fast(tensor(1), "a")
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(fast(tensor(1), "a"), tensor(2))
        with pytest.raises(magpy.RecompileError, match="program.*args\\[1\\] == 'a'") as raised:
            fast(tensor(1), "b")
        with pytest.raises(RuntimeError, match="no record yet"):
            compiled(program)(tensor(1), "a")
    assert seen == ["a", "a"] and "args[1]" in raised.value.reasons[0]
    assert_same(fast(tensor(1), "b"), tensor(2))


def test_stance_without_effect_is_refused_by_name():
    for argument in ({"skip_guard_eval_unsafe": True}, {"force_backend": "eager"}):
        fast = compiled(lambda x: x * 2)
        with torch.compiler.set_stance("default", **argument):
            (message,) = warnings_of(lambda: (fast(tensor(1)), fast(tensor(1))))  # noqa: B023
        assert next(iter(argument)) in message and "ignored" in message


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_of_a_first_eager_call_change_nothing(stance):
    fast = compiled(lambda x: x * 2)
    with torch.compiler.set_stance(stance):
        assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(2), tensor(2)])
    assert magpy.cache_info(fast)[:2] == (1, 1)


def test_only_one_stance_makes_calls_ask_further():
    for stance, asks in (("fail_on_recompile", 0), ("force_eager", 1), ("default", 0)):
        torch.compiler.set_stance(stance)
        assert is_unusual() == bool(asks)


def test_stance_set_in_a_program_is_set_in_every_call():
    def program(x):
        torch.compiler.set_stance("eager_on_recompile")
        return x * 2

    fast = compiled(program)
    for _ in range(3):
        assert_same(fast(tensor(1)), tensor(2))
        assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"
        torch.compiler.set_stance("default")
    assert magpy.cache_info(fast).hits == 2


# --- marks on tensors -----------------------------------------------------------------------------


def batch(rows):
    return torch.ones(rows, 3)


@pytest.mark.parametrize(
    "mark",
    [
        lambda x: torch._dynamo.mark_dynamic(x, 0),
        lambda x: torch._dynamo.mark_dynamic(x, [0]),
        lambda x: torch._dynamo.maybe_mark_dynamic(x, 0),
        lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
    ],
    ids=["dynamic", "list", "maybe", "unbacked"],
)
def test_marked_dimension_varies_from_the_first_call_on(mark):
    fast = compiled(lambda x: x.sum(0) * 2)
    first = batch(4)
    mark(first)
    fast(first)
    for rows in (5, 6, 9):
        assert_same(fast(batch(rows)), batch(rows).sum(0) * 2)
    assert magpy.cache_info(fast)[:3] == (3, 1, 1)


def test_marks_inside_containers_count():
    fast = compiled(lambda pair, named: pair[0] + named["x"])
    first, second = batch(4), batch(4)
    torch._dynamo.mark_dynamic(first, 0)
    torch._dynamo.mark_dynamic(second, 0)
    fast((first, 1), {"x": second})
    fast((batch(7), 1), {"x": batch(7)})
    assert magpy.cache_info(fast)[:3] == (1, 1, 1)


def test_containers_in_themselves_are_searched_for_marks():
    """A first call does not look for marks: nothing varies yet."""

    def arguments(n):
        values, named = [batch(n)], {}
        values.append((values, named))
        named["values"] = values
        return values, named

    fast = compiled(lambda values, named: named["values"][0] * 2)
    for n in (4, 4, 5, 6):
        values, named = arguments(n)
        assert torch.equal(fast(values, named), values[0] * 2)
    torch._dynamo.mark_dynamic(marked := batch(7), 0)
    values, named = arguments(4)
    named["marked"] = marked
    assert may_have_marks([values])


@pytest.mark.parametrize("strict", [True, False])
def test_specialized_dimension_raises_unless_the_mark_is_a_wish(strict):
    fast, x = compiled(lambda x: x * 2 if x.shape[0] == 4 else x * 3), batch(4)
    if strict:
        torch._dynamo.mark_dynamic(x, 0)
        with pytest.raises(magpy.DynamicDimensionError, match="dimension 0"):
            fast(x)
    else:
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert_same(fast(x), x * 2)


@pytest.mark.parametrize("dynamic", [None, True])
def test_static_dimension_has_a_record_per_size(dynamic):
    fast = compiled(lambda x: x.sum(0) * 2, dynamic=dynamic)
    for rows in (4, 5, 6, 5):
        x = batch(rows)
        torch._dynamo.mark_static(x, 0)
        assert_same(fast(x), x.sum(0) * 2)
    assert magpy.cache_info(fast)[:3] == (1, 3, 3)


def test_dynamic_mark_precedes_a_static_one():
    fast, x = compiled(lambda x: x.sum(0) * 2), batch(4)
    torch._dynamo.mark_static(x, 0)
    torch._dynamo.mark_dynamic(x, 0)
    fast(x), fast(batch(7))
    assert magpy.cache_info(fast)[:2] == (1, 1)


# --- queries and declarations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (torch.compiler.is_compiling, True),
        (torch._dynamo.is_compiling, True),
        (torch.compiler.is_dynamo_compiling, False),
        (torch.compiler.is_exporting, False),
    ],
    ids=["is_compiling", "_dynamo", "is_dynamo_compiling", "is_exporting"],
)
def test_compiled_region_is_told_that_it_is_compiled(query, answer):
    fast = compiled(lambda x: x * 2 if query() else x * 3)
    for _ in range(3):
        assert_same(fast(tensor(1)), tensor(2 if answer else 3))
    assert magpy.cache_info(fast)[:2] == (2, 1)
    assert not query()


OF_TORCH = """
import torch

@torch._disable_dynamo
def hidden(x):
    return _answer(x)

def _answer(x):
    return x * 2 if torch.compiler.is_compiling() else x * 3
"""
"""Code of torch's that asks the question behind a function which torch hides from its compiler."""


def test_code_that_torch_hides_from_compilers_is_told_that_it_is_not_compiled(monkeypatch):
    module = types.ModuleType("torch.of_a_test")
    exec(OF_TORCH, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch, "of_a_test", module, raising=False)

    def program(x):
        return module.hidden(x), torch.compiler.is_compiling()

    fast = compiled(program)
    for _ in range(3):
        assert_same(fast(tensor(1)), (tensor(3), True))
    within = compiled(lambda x: module._answer(x))
    hidden_caller = torch._disable_dynamo(lambda x: within(x))
    for _ in range(3):
        assert_same(hidden_caller(tensor(1)), tensor(2))


@pytest.mark.parametrize("backend", ["eager", "magpy"])
def test_encoder_with_padding_has_the_results_of_eager_mode(backend):
    """Compiled, torch's code for it does without the nested tensors of eager mode, whose padding
    becomes zero."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    fast = magpy.compile(encoder, backend=backend)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for size in (3, 3, 4, 4, 5, 5):
            lengths = torch.tensor([size, size - 1])
            mask = torch.arange(size) >= lengths[:, None]
            x = torch.randn(2, size, 8)
            assert_same(fast(x, src_key_padding_mask=mask), encoder(x, src_key_padding_mask=mask))
        assert magpy.cache_info(fast).hits == 3 and not magpy.cache_info(fast).native
        unaligned = mask.flip(1)
        assert_same(
            fast(x, src_key_padding_mask=unaligned), encoder(x, src_key_padding_mask=unaligned)
        )


@torch.compiler.allow_in_graph
def allowed(x):
    return x.sin()


@torch.compiler.assume_constant_result
def constant(state):
    state["calls"] += 1
    return state["calls"]


def test_declarations_about_functions_are_not_needed_and_never_change_a_result():
    fast = compiled(lambda x: allowed(x) + 1, fullgraph=True)
    for _ in range(2):
        assert_same(fast(tensor(1)), tensor(1).sin() + 1)
    fast, state = compiled(lambda x, state: x * constant(state)), {"calls": 0}
    results = [fast(tensor(1), state) for _ in range(4)]
    assert_same(results, [tensor(n) for n in (1, 2, 3, 4)])


def test_suppressed_errors_are_what_a_failing_backend_has_anyway():
    def failing(graph, inputs):
        raise RuntimeError("no")

    for suppress in (False, True):
        fast = magpy.compile(lambda x: x * 2, backend=failing)
        with torch._dynamo.config.patch(suppress_errors=suppress):
            assert len(warnings_of(lambda: (fast(tensor(1)), fast(tensor(1))))) == 1  # noqa: B023


# --- controls called in a program -----------------------------------------------------------------


def test_graph_break_is_a_split():
    def program(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    fast = compiled(program)
    for _ in range(3):
        assert_same(fast(tensor(1)), tensor(3))
    assert magpy.cache_info(fast)[:2] == (2, 1) and magpy.cache_info(fast).graphs == 2
    (point,) = magpy.explain(program, tensor(1)).split_points
    assert point.reason is SplitReason.GRAPH_BREAK
    with pytest.raises(magpy.FullGraphError, match="graph_break"):
        compiled(program, fullgraph=True)(tensor(1))


def test_control_called_in_a_program_takes_effect_in_every_call():
    def program(x):
        y = x * 2
        torch._dynamo.mark_dynamic(y, 0)
        return y

    fast = compiled(program)
    for _ in range(3):
        assert fast(tensor(1))._dynamo_dynamic_indices == {0}
    assert magpy.cache_info(fast).hits == 2
    (point,) = magpy.explain(program, tensor(1)).split_points
    assert point.reason is SplitReason.TORCH_CONTROL and "mark_dynamic" in point.cause.remedy


def test_every_listed_control_exists():
    places = (torch.compiler, torch._dynamo, torch._dynamo.decorators)
    missing = {n for n in torch_wrappers.CONTROLS if not any(hasattr(p, n) for p in places)}
    assert missing <= ({"set_default_backend"} if installed() < (2, 13) else set())


@pytest.mark.parametrize("reset", [torch.compiler.reset, torch._dynamo.reset])
def test_torchs_reset_discards_records(reset):
    fast = compiled(lambda x: x * 2)
    for _ in range(2):
        fast(tensor(1)), fast(tensor(1))
        assert magpy.cache_info(fast)[:3] == (1, 1, 1)
        reset()
        assert magpy.cache_info(fast)[:3] == (0, 0, 0)


# --- beside torch.compile -------------------------------------------------------------------------


def twice(x):
    return x * 2


@pytest.mark.parametrize("make", [lambda: twice, lambda: nn.Linear(3, 3)], ids=["def", "module"])
def test_callee_compiled_by_torch_is_part_of_the_record(make):
    inner = make()
    theirs = torch.compile(inner, backend="eager")
    fast, x = compiled(lambda x: theirs(x) + 1, fullgraph=True), matrix()
    (message,) = warnings_of(lambda: [assert_same(fast(x), inner(x) + 1) for _ in range(3)])
    assert "torch.compile has compiled" in message and __file__ in message
    assert magpy.cache_info(fast)[:2] == (2, 1)


def test_hook_on_torchs_compiled_module_is_noticed():
    theirs = torch.compile(nn.Linear(3, 3), backend="eager")
    fast, x = compiled(lambda x: theirs(x) + 1), matrix()
    fast(x), fast(x)
    theirs.register_forward_hook(lambda module, args, out: out * 0)
    for _ in range(3):
        assert_same(fast(x).detach(), torch.ones(x.shape[0], 3))


@pytest.mark.parametrize("make", [lambda: twice, lambda: nn.Linear(3, 3)], ids=["def", "module"])
def test_compiling_what_torch_has_compiled_compiles_the_original(make):
    inner, x = make(), matrix()
    fast = compiled(torch.compile(inner, backend="eager"), fullgraph=True)
    for _ in range(3):
        assert_same(fast(x), inner(x))
    assert magpy.cache_info(fast)[:2] == (2, 1)


def test_function_called_by_torchs_compiled_code_says_so_once():
    fast = compiled(twice)
    theirs = torch.compile(lambda x: fast(x + 1) * 3, backend="eager")
    (message,) = warnings_of(
        lambda: [assert_same(theirs(tensor(1, k)), tensor(12, 6 * (k + 1))) for k in range(3)]
    )
    assert "twice" in message and "torch.compile breaks its graph" in message
    assert __file__ in message
    assert magpy.cache_info(fast).hits == 2


def test_torch_compiles_the_original_of_a_compiled_function():
    fast = compiled(twice)
    assert_same(torch.compile(fast, backend="eager")(tensor(1)), tensor(2))
    assert magpy.cache_info(fast)[:2] == (0, 0)


IMPORTS = """
import sys, types, torch
package = sys.modules["magpy_like"] = types.ModuleType("magpy_like")  # whose import needs Dynamo
package.__path__ = {path}
from magpy_like.torch_compat import frame_evaluation
assert frame_evaluation.current_stance() == "default"
assert frame_evaluation.known_backends() is None
assert "torch._dynamo" not in sys.modules
"""


def test_stance_is_read_without_importing_dynamo():
    code = IMPORTS.format(path=magpy.__path__)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
