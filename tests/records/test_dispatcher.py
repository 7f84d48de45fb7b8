"""Dispatch of calls to records, misses, and their reports."""

import logging
import threading
import warnings

import pytest
import torch

import magpy_like as magpy
from magpy_like.config import config
from tests.compare import assert_same
from tests.programs import Twins, matrix, tensor


def scale(x, n):
    return x * n


@magpy.disable
def native(x):
    return x + 1


def dispatcher(fast):
    return fast._magpy_dispatcher


def test_each_path_of_a_program_has_a_record():
    fast = magpy.compile(scale, backend="eager", dynamic=False)
    for n in (2, 3, 2, 3, 2):
        assert_same(fast(tensor(1, 2), n), tensor(n, 2 * n))
    assert magpy.cache_info(fast) == magpy.CacheInfo(hits=3, misses=2, records=2, graphs=2)


def test_record_that_matched_last_is_tried_first():
    fast = magpy.compile(scale, backend="eager", dynamic=False)
    fast(tensor(1), 2)
    fast(tensor(1), 3)
    newest, older = dispatcher(fast).records
    fast(tensor(1), 2)
    assert dispatcher(fast).records == (older, newest)


def any_keywords(x, **keywords):
    return x * 2, list(keywords)


class Scaled(torch.nn.Module):
    def forward(self, x, *, a=0, b=0):
        return x * a + b


class Named(torch.nn.Module):
    def forward(self, x, *, a=0, **others):
        return x * a, dict(others)


@pytest.mark.parametrize("target", [any_keywords, Named()], ids=["function", "module"])
def test_order_of_keywords_in_a_dictionary_is_that_of_the_call(target):
    fast = magpy.compile(target, backend="eager")
    x = tensor(1)
    for names in ("abc", "abc", "cba", "abc", "cba"):
        keywords = dict.fromkeys(names, 1)
        assert str(fast(x, **keywords)) == str(target(x, **keywords))
    assert magpy.cache_info(fast)[:3] == (3, 2, 2)


@pytest.mark.parametrize(
    "target", [lambda x, a, b: x * a + b, Scaled(), Named()], ids=["function", "module", "mixed"]
)
def test_keywords_of_parameters_match_in_any_order(target):
    fast = magpy.compile(target, backend="eager")
    fast(tensor(1), a=1, b=2)
    fast(tensor(1), b=2, a=1)
    assert magpy.cache_info(fast)[:3] == (1, 1, 1)


def test_hook_of_a_module_receives_the_keywords_in_the_order_of_the_call():
    module, seen = Scaled(), []
    module.register_forward_pre_hook(lambda m, a, k: seen.append(list(k)), with_kwargs=True)
    fast = magpy.compile(module, backend="eager")
    for names in ("ab", "ab", "ba"):
        fast(tensor(1), **dict.fromkeys(names, 1))
    assert seen == [["a", "b"], ["a", "b"], ["b", "a"]]


def test_program_without_operators_has_a_record_without_a_graph():
    fast = magpy.compile(lambda n: [n, n + 1], backend="eager", dynamic=False)
    assert [fast(1), fast(1), fast(2)] == [[1, 2], [1, 2], [2, 3]]
    assert magpy.cache_info(fast) == (1, 2, 2, 0, 0, 0)


def test_limit_of_records_warns_once_and_runs_eagerly():
    def scale(x, name):
        return x * len(name)

    fast = magpy.compile(scale, backend="eager")
    x = tensor(1, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(config.record_limit + 4):
            assert_same(fast(x, "a" * n), scale(x, "a" * n))
    messages = [w for w in caught if "magpy_like" in str(w.message)]
    assert len(messages) == 1
    text = str(messages[0].message)
    assert "scale" in text and "eagerly" in text and "args[1]" in text
    info = magpy.cache_info(fast)
    assert info.records == config.record_limit and info.hits == 0
    assert_same(fast(x, "aaa"), scale(x, "aaa"))
    assert magpy.cache_info(fast).hits == 1, "existing records still serve"


MISSES = {
    "a value": (lambda: (tensor(1), 2), lambda: (tensor(1), 3), "args[1] == 2"),
    "a type": (lambda: (tensor(1), 2), lambda: (tensor(1), 2.0), "args[1] == 2"),
    "a shape": (lambda: (tensor(1), 2), lambda: (tensor(1, 2), 2), "args[0]: float32[1]"),
    "a dtype": (lambda: (tensor(1), 2), lambda: (tensor(1).double(), 2), "args[0]: float32[1]"),
    "a count": (lambda: (tensor(1), 2), lambda: (tensor(1),), "2 positional arguments"),
}


@pytest.mark.parametrize("name", MISSES)
def test_miss_has_a_readable_reason(name):
    recorded, called, reason = MISSES[name]
    fast = magpy.compile(lambda x, n=2: x * n, backend="eager")
    fast(*recorded())
    (why,) = dispatcher(fast).why_missed(called(), {})
    assert reason in why and why.startswith("not ")


def test_limit_reached_by_several_threads_warns_once():
    fast = magpy.compile(lambda x, s: x + len(s), backend="eager")
    start = threading.Barrier(4)

    def work(i):
        start.wait()
        for j in range(12):
            kind = type(f"K{i}{j}", (list,), {})
            assert_same(fast(torch.ones(1), kind([1])), torch.ones(1) + 1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum("eagerly" in str(w.message) for w in caught) == 1


def test_miss_on_a_modules_state_has_a_reason():
    model = torch.nn.Dropout(0.5)
    fast = magpy.compile(model, backend="eager")
    fast(matrix())
    model.eval()
    (why,) = fast._magpy.why_missed((matrix(),), {})
    assert "training" in why and "False" in why


def test_miss_on_torchs_modes_has_a_reason():
    fast = magpy.compile(scale, backend="eager")
    fast(tensor(1), 2)
    with torch.no_grad():
        (why,) = dispatcher(fast).why_missed((tensor(1), 2), {})
    assert "grad" in why


def test_program_that_splits_runs_in_segments():
    def calls(x):
        y = native(x * 2)
        return y * y

    fast = magpy.compile(calls, backend="eager")
    for i in range(6):
        assert_same(fast(tensor(i, 2)), calls(tensor(i, 2)))
    info = magpy.cache_info(fast)
    assert info.hits == 5
    assert info.graphs >= 2, "one before the split, one after it"


def test_split_that_cannot_be_resumed_ends_recording():
    def halves(x):
        while x.sum() > 1:
            yield x
            x = x / 2

    def reads(x):
        return list(halves(x))

    fast = magpy.compile(reads, backend="eager")
    for i in range(6):
        assert_same(fast(tensor(i, 2)), reads(tensor(i, 2)))
    assert magpy.cache_info(fast) == (0, 3, 0, 0, 3, 0), "a generator's frame belongs to its object"


def test_backend_receives_graph_and_example_inputs_and_its_result_is_used():
    seen = []

    def backend(graph, inputs):
        seen.append((graph, [tuple(t.shape) for t in inputs]))
        return lambda *args: tuple(out + 100 for out in graph(*args))

    fast = magpy.compile(lambda x, y: x * 2 + y, backend=backend)
    assert_same(fast(tensor(1), tensor(2)), tensor(4))
    assert_same(fast(tensor(1), tensor(2)), tensor(104))
    ((graph, shapes),) = seen
    assert isinstance(graph, torch.fx.GraphModule) and shapes == [(1,), (1,)]


def test_mode_and_options_reach_a_backend_that_takes_them():
    seen = {}

    def backend(graph, inputs, *, mode=None, options=None):
        seen.update(mode=mode, options=options)
        return graph

    fast = magpy.compile(scale, backend=backend, mode="fast", options={"a": 1})
    fast(tensor(1), 2)
    assert seen == {"mode": "fast", "options": {"a": 1}}


def test_backend_that_fails_is_reported_and_the_program_runs():
    def backend(graph, inputs):
        raise RuntimeError("cannot compile this")

    fast = magpy.compile(scale, backend=backend)
    with pytest.warns(UserWarning, match="cannot compile this"):
        fast(tensor(1), 2)
    assert_same(fast(tensor(1), 2), tensor(2))


def test_backend_that_fails_is_an_error_under_fullgraph():
    def backend(graph, inputs):
        raise RuntimeError("cannot compile this")

    fast = magpy.compile(scale, backend=backend, fullgraph=True)
    with pytest.raises(magpy.FullGraphError, match="cannot compile this"):
        fast(tensor(1), 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_named_backends_give_eagers_results(backend):
    twins = Twins(lambda: torch.nn.functional.gelu, backend=backend)
    for _ in range(3):
        twins.call(lambda: (matrix(grad=True),), backward=True)


def test_unknown_backend_is_named_with_those_that_exist():
    with pytest.raises(ValueError, match="no_such_backend.*eager"):
        magpy.compile(scale, backend="no_such_backend")
    with pytest.raises(TypeError, match="backend=3"):
        magpy.compile(scale, backend=3)


def test_guard_that_cannot_read_an_object_misses():
    class Hostile:
        def __len__(self):
            raise RuntimeError("do not look")

        def __getattr__(self, name):
            raise RuntimeError("do not look")

    def first(items, x):
        return x * 2 if isinstance(items, Hostile) else x * items[0]

    fast = magpy.compile(first, backend="eager")
    for items in ([2], Hostile(), [2], None, [3]):
        if items is None:
            with pytest.raises(TypeError):
                fast(items, tensor(1))
        else:
            assert_same(fast(items, tensor(1)), first(items, tensor(1)))


def test_new_record_and_miss_are_logged(caplog):
    logging.getLogger("magpy_like.records").setLevel(logging.INFO)
    caplog.set_level(logging.INFO, logger="magpy_like.records")
    fast = magpy.compile(scale, backend="eager")
    fast(tensor(1), 2)
    fast(tensor(1), 3)
    text = caplog.text
    assert "new record" in text and "does not match" in text and "args[1] == 2" in text


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magpy"])
def test_result_that_is_a_new_leaf_stays_a_leaf(backend):
    def made(x):
        kept = torch.zeros(3)
        kept.requires_grad_()
        return torch.ones(2, requires_grad=True), (x * 2).detach().requires_grad_(), kept, kept + 1

    fast = magpy.compile(made, backend=backend)
    for _ in range(3):
        for mine, theirs in zip(fast(tensor(1)), made(tensor(1)), strict=True):
            assert_same(mine, theirs)
            assert mine.is_leaf is theirs.is_leaf


# --- programs that raise because ``is_compiling`` is true -----------------------------------------


def refuses_compilation(x):
    noise = torch.rand(2)
    if torch.compiler.is_compiling():
        raise ValueError("not in here")
    return x * 2 + noise


def test_program_that_raises_only_if_is_compiling_is_true_runs_natively():
    fast = magpy.compile(refuses_compilation, backend="eager")
    for _ in range(4):
        torch.manual_seed(3)
        expected = refuses_compilation(torch.ones(2))
        after = torch.get_rng_state()
        torch.manual_seed(3)
        assert torch.equal(fast(torch.ones(2)), expected)
        assert torch.equal(torch.get_rng_state(), after)
    assert magpy.cache_info(fast).hits >= 2, "later recordings answer False"


def test_effects_before_the_exception_happen_once():
    log = []

    def program(x):
        log.append(len(log))
        return refuses_compilation(x)

    fast = magpy.compile(program, backend="eager")
    with pytest.raises(ValueError, match="not in here"):
        fast(torch.ones(2))
    assert log == [0]
    torch.manual_seed(3)
    expected = refuses_compilation(torch.ones(2))
    torch.manual_seed(3)
    assert torch.equal(fast(torch.ones(2)), expected), "later recordings answer False"
    assert log == [0, 1]


def test_program_that_raises_in_any_case_still_sees_is_compiling_true():
    answers = []

    def program(x, limit):
        compiling = torch.compiler.is_compiling()
        if x.shape[0] > limit:
            raise ValueError("too long")
        answers.append(compiling)
        return x + 1

    fast = magpy.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="too long"):
            fast(torch.ones(2), 1)
    assert torch.equal(fast(torch.ones(2), 5), torch.full((2,), 2.0))
    assert answers == [True]
