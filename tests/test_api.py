"""The public functions, as the README describes them."""

import copy
import doctest
import functools
import inspect
import io
import logging
import math
import os
import pickle
import re
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

import magpy_like as magpy
from magpy_like.split_reasons import SplitReason
from tests.compare import assert_same
from tests.programs import matrix, tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.note = "original"

    def forward(self, x, factor=2.0):
        return self.layer(x) * factor + self.shift

    def double(self_or_type, *args):
        return super().double(*args)

    def extra(self, x):
        return x + self.shift


@magpy.disable
def native(x):
    return x + 1


def compiled_net():
    torch.manual_seed(0)
    return magpy.compile(Net(), backend="eager")


# --- compile -------------------------------------------------------------------------------------


def test_compile_is_a_decorator_with_or_without_arguments():
    @magpy.compile
    def plain(x):
        "The docstring."
        return x + 1

    @magpy.compile(backend="eager", fullgraph=True)
    def configured(x):
        return x + 2

    assert plain.__name__ == "plain" and plain.__doc__ == "The docstring."
    for _ in range(2):
        assert_same(plain(tensor(1)), tensor(2))
        assert_same(configured(tensor(1)), tensor(3))
    assert magpy.cache_info(configured).hits == 1


def test_compile_accepts_bound_methods_and_methods_in_classes():
    class Model:
        def __init__(self):
            self.scale = 2

        @magpy.compile(backend="eager")
        def forward(self, x):
            return x * self.scale

        def other(self, x):
            return x + self.scale

    a, b = Model(), Model()
    b.scale = 5
    for model in (a, b, a, b):
        assert_same(Model.forward(model, tensor(1)), tensor(model.scale))
    fast = magpy.compile(a.other, backend="eager")
    assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(3), tensor(3)])
    a.scale = 7
    assert_same(fast(tensor(1)), tensor(8))


def test_compiled_method_binds_like_a_method():
    class Model:
        @magpy.compile(backend="eager")
        def forward(self, x):
            return x * 2

    assert_same(Model().forward(tensor(1)), tensor(2))


def scaled(x, factor: float = 2.0, *, shift=None):
    return x * factor


class Scales:
    def __call__(self, x, factor: float = 2.0):
        return x * factor

    scale = __call__


@functools.wraps(scaled)
def decorated(*args, **kwargs):
    return scaled(*args, **kwargs)


@pytest.mark.parametrize("read", [inspect.signature, inspect.getfullargspec])
@pytest.mark.parametrize(
    "target", [scaled, decorated, Scales(), Scales().scale, Net().forward, math.gcd]
)
def test_compiled_callables_have_the_signature_of_the_original(target, read):
    assert read(magpy.compile(target)) == read(target)


ANNOTATED = """
from __future__ import annotations
from torch import Tensor

def twice(x: Tensor, k: int = 1) -> Tensor:
    '''
    >>> 1 + 1
    2
    '''
    return x * 2 * k
"""


def test_names_in_annotations_of_compiled_functions_are_those_of_the_original():
    module = types.ModuleType("annotated")
    exec(ANNOTATED, module.__dict__)
    module.twice = fast = magpy.compile(original := module.twice)
    assert inspect.signature(fast, eval_str=True) == inspect.signature(original, eval_str=True)
    assert torch.library.infer_schema(fast, mutates_args=()) == "(Tensor x, SymInt k=1) -> Tensor"
    assert [len(test.examples) for test in doctest.DocTestFinder().find(module)] == [1]


def test_compile_returns_a_target_compiled_with_these_settings_unchanged():
    fast = compiled_net()
    assert magpy.compile(fast, backend="eager") is fast
    function = magpy.compile(len, backend="eager")
    assert magpy.compile(function, backend="eager") is function


def test_compile_rejects_objects_that_are_not_callable():
    with pytest.raises(TypeError, match="model=3"):
        magpy.compile(3)


# --- the compiled module -------------------------------------------------------------------------


def test_compiled_module_is_a_module_with_the_state_of_the_original():
    fast = compiled_net()
    original = fast._orig_mod
    assert isinstance(fast, nn.Module)
    assert fast.state_dict().keys() == original.state_dict().keys()
    assert [id(p) for p in fast.parameters()] == [id(p) for p in original.parameters()]
    assert dict(fast.named_modules()).keys() >= {"layer"}
    assert fast.note == "original" and fast.extra(tensor(1, 2, 3)).shape == (3,)
    fast.note = "changed"
    fast.fresh = nn.Linear(2, 2)
    assert original.note == "changed" and "fresh" in original._modules
    del fast.fresh
    assert not hasattr(original, "fresh")
    assert repr(fast) == repr(original) and "layer" in dir(fast)


def test_train_eval_to_and_freeze_pass_through():
    fast = compiled_net()
    assert fast.eval() is fast or fast.eval() is fast._orig_mod
    assert not fast.training and not fast._orig_mod.layer.training
    fast.train()
    assert fast._orig_mod.layer.training
    fast.to(torch.float64)
    assert fast._orig_mod.layer.weight.dtype == torch.float64
    fast.requires_grad_(False)
    assert not any(p.requires_grad for p in fast._orig_mod.parameters())
    assert_same(fast(matrix().double()), fast._orig_mod(matrix().double()))


def test_state_dict_loads():
    fast, other = compiled_net(), Net()
    fast(matrix())
    result = fast.load_state_dict(other.state_dict())
    assert not result.missing_keys
    assert_same(fast(matrix()), other(matrix()))


def test_forward_takes_keyword_and_default_arguments():
    fast = compiled_net()
    original = fast._orig_mod
    assert_same(fast(matrix(), factor=3.0), original(matrix(), factor=3.0))
    assert_same(fast(matrix(), 3.0), original(matrix(), 3.0))
    assert_same(fast(matrix()), original(matrix()))
    assert_same(fast(x=matrix()), original(x=matrix()))


def test_deepcopy_is_independent_and_compiled():
    fast = compiled_net()
    fast(matrix())
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        twin.layer.weight.zero_()
    assert not torch.equal(twin(matrix()), fast(matrix()))
    assert_same(twin(matrix()), twin._orig_mod(matrix()))
    assert magpy.cache_info(twin).hits == 1


def test_pickle_keeps_state_and_settings():
    fast = compiled_net()
    fast(matrix())
    twin = pickle.loads(pickle.dumps(fast))
    assert_same(twin(matrix()), fast._orig_mod(matrix()))
    assert twin._magpy.backend == "eager"
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer, weights_only=False)(matrix()), fast(matrix()))


def test_compiled_modules_may_be_inside_modules():
    model = nn.Sequential(nn.Linear(3, 3), magpy.compile(nn.ReLU(), backend="eager"))
    fast = magpy.compile(model, backend="eager")
    for _ in range(3):
        assert_same(fast(matrix()), model(matrix()))
    assert len(list(model.parameters())) == 2


def test_sequence_access_passes_through():
    fast = magpy.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="eager")
    assert len(fast) == 2 and isinstance(fast[1], nn.ReLU) and len(list(fast)) == 2 and bool(fast)


def test_hooks_on_the_compiled_module_run():
    fast = compiled_net()
    fast(matrix())
    fast.register_forward_hook(lambda module, args, out: out * 0)
    for _ in range(2):
        assert_same(fast(matrix()), fast._orig_mod(matrix()))
        assert fast(matrix()).abs().sum() == 0


def test_compiled_module_trains_with_an_optimizer():
    def train(model):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for i in range(4):
            optimizer.zero_grad()
            loss = model(matrix() + i).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, dict(model.state_dict())

    torch.manual_seed(0)
    eager = train(Net())
    fast = compiled_net()
    assert_same(train(fast), eager)
    assert magpy.cache_info(fast).hits == 3


# --- explain -------------------------------------------------------------------------------------


def test_explain_reports_a_program_without_splits():
    log = []

    def program(x, n):
        log.append(n)
        return torch.relu(x) * n

    report = magpy.explain(program, tensor(1, -2), 3)
    assert report.graph_count == len(report.graphs) == 1
    assert isinstance(report.graphs[0], torch.fx.GraphModule)
    assert report.split_points == []
    assert any("args[1] == 3" in guard for guard in report.guards)
    assert any("float32[2]" in guard for guard in report.guards)
    assert any("append" in effect for effect in report.side_effects)
    assert "def guard(" in report.source and "def mock(" in report.source
    text = str(report)
    assert "2 operators" in text and "split points: none" in text
    assert log == [3], "the program has run once"


def speculates_before_a_mode_is_switched(x, path, seen, opaque):
    with open(path, "a") as log:
        log.write(f"{len(seen)}\n")
    seen.append(len(seen))
    print("ran")
    first = (x * 2).tolist()[0] if x.sum() * 2 > 0 else 3
    with torch.autograd.grad_mode.set_multithreading_enabled(False):
        x = x + 1
    opaque()
    return x, first


def writes_to_a_branch_result_by_a_torch_op(x, path, seen, opaque):
    y = x if x.sum() > 0 else x * 2
    torch.ops.aten.add_.Tensor(y[:1], 1)
    seen.append(len(seen))
    with open(path, "a") as log:
        log.write(f"{len(seen)}\n")
    print("ran")
    return y, x * 1


@pytest.mark.parametrize(
    "program", [speculates_before_a_mode_is_switched, writes_to_a_branch_result_by_a_torch_op]
)
def test_explain_runs_a_program_once_whose_later_recordings_skip_fast_paths(
    program, tmp_path, capsys
):
    opaque = magpy.disable(lambda: None)
    path, seen, x = tmp_path / "log", [], tensor(1, 2)
    native_path, native_seen, native_x = tmp_path / "native", [], tensor(1, 2)
    program(native_x, native_path, native_seen, opaque)
    native_text = capsys.readouterr().out
    report = magpy.explain(program, x, path, seen, opaque)
    assert path.read_text() == native_path.read_text(), "the file is written once"
    assert seen == native_seen and torch.equal(x, native_x)
    assert capsys.readouterr().out == native_text == "ran\n"
    assert report.learnt and "later recordings skip" in str(report)

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):  # one may learn that it must not merge the branch, the next how it splits
        fast(tensor(1, 2), path, [], opaque)
    again = magpy.explain(fast, tensor(1, 2), path, [], opaque)
    assert again.learnt == [] and again.graph_count > report.graph_count


def test_fullgraph_rejects_a_program_that_cannot_speculate_in_its_first_call():
    def program(x):
        if (x * 2).tolist()[0] > 1:
            x = x + 1
        with torch.autograd.grad_mode.set_multithreading_enabled(False):
            return x + 1

    (point,) = magpy.explain(program, tensor(1, 2)).split_points
    assert point.function.endswith("program")
    assert point.lineno == program.__code__.co_firstlineno + 1
    fast = magpy.compile(program, backend="eager", fullgraph=True)
    with pytest.raises(magpy.FullGraphError) as raised:
        fast(tensor(1, 2))
    assert raised.value.lineno == point.lineno


def test_explain_reports_the_split_point():
    def program(x):
        y = x + 1
        return y * len(repr(y))

    report = magpy.explain(program, tensor(1, 2))
    (point,) = report.split_points
    assert point.function.endswith("program")
    assert point.filename == __file__
    assert point.lineno == program.__code__.co_firstlineno + 2
    assert point.reason is SplitReason.TENSOR_VALUE_READ
    assert str(point) == f"{point.where}: {point.detail}" and "value" in point.detail
    assert f"{point.filename}:{point.lineno}" in str(report)


def test_explain_lists_segments_and_remedies_of_splits():
    @magpy.disable
    def split(value):
        pass

    def program(x):
        y = x + 1
        split("one")
        y = y * 2 - 1
        for n in range(3):
            split(n)
        return y.relu()

    report = magpy.explain(program, tensor(1, -2))
    line = program.__code__.co_firstlineno
    assert [s.ends_at and s.ends_at.lineno - line for s in report.segments][:3] == [2, 5, 5]
    assert report.segments[-1].ends_at is None
    assert report.graph_count == 3
    assert [point.lineno - line for point in report.split_points] == [2, 5]
    text = str(report)
    assert f"segment 1: {program.__qualname__}, from line {line + 2} on: graph of 2 op" in text
    assert text.count("call of a disabled function:") == 1
    assert text.count("to remove it: take magpy_like.disable off") == 1


def test_explain_leaves_records_of_a_compiled_target_unchanged():
    fast = compiled_net()
    fast(matrix())
    before = magpy.cache_info(fast)
    assert magpy.explain(fast, matrix()).graph_count == 1
    assert magpy.cache_info(fast) == before
    function = magpy.compile(lambda x: x + 1, backend="eager")
    assert magpy.explain(function, tensor(1)).graph_count == 1


# --- other functions ------------------------------------------------------------------------------


def test_fullgraph_error_names_function_location_and_reason():
    def inner(x):
        return native(x.sum())

    def program(x):
        return x * inner(x)

    fast = magpy.compile(program, fullgraph=True, backend="eager")
    with pytest.raises(magpy.FullGraphError) as caught:
        fast(tensor(1, 2))
    text = str(caught.value)
    assert "inner" in text and f"{__file__}:{inner.__code__.co_firstlineno + 1}" in text
    assert "native" in text and "disabled" in text
    assert caught.value.reason is SplitReason.DISABLED_FUNCTION
    assert caught.value.detail in text
    assert isinstance(caught.value, magpy.MagpyError)


def test_fullgraph_accepts_a_program_without_splits():
    fast = magpy.compile(lambda x: x * 2, fullgraph=True, backend="eager")
    assert_same([fast(tensor(1)), fast(tensor(1))], [tensor(2), tensor(2)])


def test_cache_info_rejects_uncompiled_targets():
    with pytest.raises(magpy.MagpyError, match="compile"):
        magpy.cache_info(len)


def test_reset_drops_records_of_one_or_all_targets():
    one, two = (magpy.compile(lambda x: x + 1, backend="eager") for _ in range(2))
    for fast in (one, two):
        fast(tensor(1))
        fast(tensor(1))
    magpy.reset(one)
    assert magpy.cache_info(one)[:4] == (0, 0, 0, 0) and magpy.cache_info(two)[:4] == (1, 1, 1, 1)
    magpy.reset()
    assert magpy.cache_info(two)[:4] == (0, 0, 0, 0)
    assert_same(two(tensor(1)), tensor(2))
    assert magpy.cache_info(two)[:4] == (0, 1, 1, 1)


def test_disabled_function_runs_natively_at_every_call():
    calls = []

    @magpy.disable
    def counted(x):
        "Counts."
        calls.append(1)
        return x + len(calls)

    fast = magpy.compile(lambda x: counted(x * 2), backend="eager")
    results = [fast(tensor(1)) for _ in range(3)]
    assert_same(results, [tensor(3), tensor(4), tensor(5)])
    assert counted.__name__ == "counted" and counted.__doc__ == "Counts."
    (point,) = magpy.explain(lambda x: counted(x), tensor(1)).split_points
    assert point.reason is SplitReason.DISABLED_FUNCTION and "counted" in point.detail


def test_mark_dynamic_accepts_dimensions_that_exist():
    x = matrix(2, 3)
    magpy.mark_dynamic(x, 0)
    magpy.mark_dynamic(x, -1)
    with pytest.raises(IndexError, match="2 dimensions"):
        magpy.mark_dynamic(x, 2)
    assert_same(magpy.compile(lambda t: t * 2, backend="eager")(x), x * 2)


def test_annotate_declares_a_native_function():
    import _bisect

    def program(x, n):
        return x * _bisect.bisect_right([1, 2, 3], n)

    magpy.annotate(_bisect.bisect_right, pure_closure=True)
    fast = magpy.compile(program, backend="eager")
    for n in (1, 1, 2):
        assert_same(fast(tensor(1), n), program(tensor(1), n))
    assert magpy.cache_info(fast).hits == 1


def test_errors_have_one_base_class():
    assert issubclass(magpy.FullGraphError, magpy.MagpyError)
    assert issubclass(magpy.AnnotationError, magpy.MagpyError)


LOGGED = """
import torch, magpy_like as magpy
def program(x, n):
    return x * n
fast = magpy.compile(program, backend="eager")
fast(torch.ones(2), 2); fast(torch.ones(2), 3)
def splits(x):
    return repr(x)
magpy.compile(splits, backend="eager")(torch.ones(1))
"""


def test_magpy_logs_variable_enables_topics():
    environment = {**os.environ, "MAGPY_LOGS": "guards,graph,records,splits,monitor"}
    done = subprocess.run(
        [sys.executable, "-c", LOGGED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    text = done.stderr + done.stdout
    assert "args[1] == 2" in text  # guards
    assert "operator graph" in text and "new record" in text and "does not match" in text
    assert "split at" in text and "in splits" in text
    assert re.search(r"\[monitor\] program: [1-9]\d* instructions, [1-9]\d* of interest", text)


def test_loggers_follow_the_logging_module(caplog):
    caplog.set_level(logging.INFO, logger="magpy_like")
    magpy.compile(lambda x: repr(x), backend="eager")(tensor(1))
    assert any("split at" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("program", "reason", "remedy"),
    [
        (lambda x: print(x.sum().item()), "IO", "move it out"),
        (lambda x: f"{x}", "TENSOR_VALUE_READ", "keep it a tensor"),
        (lambda x: x * functools.cache(lambda: 2)(), "CACHED_FUNCTION", "create and clear"),
        (lambda x: x.numpy().sum(), "NUMPY_MEMORY", "compute with torch"),
    ],
)
def test_explain_reports_location_reason_and_remedy_of_a_split(program, reason, remedy):
    report = magpy.explain(program, tensor(1, 2))
    (point, *_) = report.split_points
    code = program.__code__
    assert (point.filename, point.lineno) == (__file__, code.co_firstlineno)
    assert point.reason.name == reason
    assert f"to remove it: {remedy}" in str(report)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_argument_is_a_reason_to_run_natively(layout):
    def program(x):
        return x.sin()

    x = torch.nested.nested_tensor([tensor(1, 2), tensor(3)], layout=layout)
    (point, *_) = magpy.explain(program, x).split_points
    assert point.reason.name == "NESTED_TENSOR"
    fast = magpy.compile(program, backend="eager")
    with pytest.warns(magpy.MagpyWarning, match="reads a nested tensor"):
        results = [fast(x) for _ in range(3)]
    expected = [part.tolist() for part in program(x).unbind()]
    assert all([part.tolist() for part in result.unbind()] == expected for result in results)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore::magpy_like.MagpyWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_argument_may_follow_a_dense_one_of_equal_rank(layout):
    def program(x):
        return x * 2

    nested = torch.nested.nested_tensor([tensor(1, 2), tensor(3)], layout=layout)
    fast = magpy.compile(program, backend="eager")
    for x in (torch.ones(2, 2), nested, torch.ones(3, 2), nested):
        for found, expected in zip(fast(x).unbind(), program(x).unbind(), strict=True):
            torch.testing.assert_close(found, expected)


def test_uses_of_autograd_nodes_have_one_split_reason():
    """Autograd nodes have one class per operator."""

    def program(x):
        x.sum().backward()
        node = x.exp().grad_fn.next_functions[0][0]
        return node.variable

    report = magpy.explain(program, tensor(1, 2).requires_grad_())
    assert {point.reason for point in report.split_points} == {SplitReason.AUTOGRAD_GRAPH}
