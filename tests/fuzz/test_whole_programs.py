"""Generated whole programs do in a compiled call what they do in eager mode."""

import random
import subprocess
import sys
import textwrap

import pytest

from tests.fuzz import sweep as sweeps
from tests.fuzz import trials
from tests.fuzz.fragments import Block, Fragment
from tests.fuzz.generation import Call, Function, Program, generate
from tests.fuzz.shrinking import shrink
from tests.fuzz.trials import check

SAMPLES = {"eager": range(40), "magpy": range(24)}
SHARES = 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("backend", SAMPLES)
def test_calls_equal_eager(backend, share):
    for seed in SAMPLES[backend][share::SHARES]:
        verdict = check(generate(seed), backend)
        assert not verdict.failed, f"seed {seed}: {verdict.kind}: {verdict.detail}"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", range(8))
@pytest.mark.parametrize(("backend", "count"), [("eager", 2000), ("magpy", 300)])
def test_many_calls_equal_eager(backend, count, share):
    found = list(sweeps.sweep(backend, range(1000 + share, 1000 + count, 8), jobs=1))
    assert not any(one["failed"] for one in found), sweeps.summary(found)


def program_of(body, *, arguments=None, calls=3, **settings):
    """A program with the given statements, one a line, that returns ``x``."""
    statements = [Fragment("", [line]) for line in textwrap.dedent(body).strip().split("\n")]
    program = Program(0, "float32", settings.pop("backward", "none"))
    main = Function("program", "x", Block(statements), Fragment("vec", ["x"]))
    program.main = main
    arguments = arguments or ["random_values(0, 4)"] * calls
    program.calls = [Call({"x": argument}, "(x,), dict()", **settings) for argument in arguments]
    return program


def test_programs_are_recorded_and_hit():
    """The comparison would be void if every program ran natively."""
    verdict = check(program_of("x = x * 2\nlog.append(table['a'])"), "eager")
    assert (verdict.kind, verdict.hits, verdict.misses) == ("same", 2, 1)


def test_generation_depends_on_the_seed_alone():
    random.seed(5)
    first = generate(11).text()
    assert first == generate(11).text()
    assert first != generate(12).text()


WRONG = {
    "result: value": "x = x + (1 if CALLS.pop() else 2)",
    "globals: value": "table['a'] = CALLS.pop()",
    "output: value": "print(CALLS.pop())",
    "result: strides": "x = torch.zeros(2, 4).t() if CALLS.pop() else torch.zeros(4, 2)",
    "result: dtype": "x = x.double() if CALLS.pop() else x",
    "result: requires_grad": "x = x.clone().requires_grad_(CALLS.pop())",
    "result: another path's object": "x = [x, x if CALLS.pop() else x[:]]",
    "result: shares memory": "x = [x, x[:] if CALLS.pop() else x.clone()]",
    "random: value": "torch.rand(2) if CALLS.pop() else None",
    "error: value": "raise ValueError() if CALLS.pop() else KeyError()",
    "versions: value": "x.detach().add_(0) if CALLS.pop() else None",
    "modes: value": "torch.set_grad_enabled(CALLS.pop())",
}


@pytest.mark.parametrize("kind", WRONG)
def test_differences_are_found(kind, monkeypatch):
    """Each kind of difference, by a program that does something else at its next run."""
    from tests.fuzz import observations

    values = [True, False]
    original = trials.Loaded.load

    def load(loaded):
        module = original(loaded)
        module.CALLS = [values.pop()]
        return module

    monkeypatch.setattr(trials.Loaded, "load", load)
    monkeypatch.setattr(observations, "_state", lambda names: {"table": names["table"]})
    monkeypatch.setattr(trials, "_excuse", lambda *_: None)
    monkeypatch.setattr(trials.magpy, "compile", lambda program, **_: program)
    monkeypatch.setattr(trials, "_count", lambda *_: None)
    monkeypatch.setattr(trials.magpy, "reset", lambda *_: None)
    assert check(program_of(WRONG[kind], calls=1), "eager").kind == kind


def test_programs_that_eager_does_not_reproduce_are_excluded():
    verdict = check(program_of("import time\ntable['a'] = time.perf_counter_ns()"), "eager")
    assert verdict.kind == "nondeterministic"
    assert not verdict.failed


def test_versions_are_those_of_eager_mode_in_parts_too():
    writes = "x.add_(1)\nx.mul_(2)"
    assert check(program_of(writes), "magpy").kind == "same"
    branch = "y = x * 2 if x.sum() > 0 else x * 3\nx.add_(y)"
    assert check(program_of(f"{branch}\n{writes}"), "magpy").kind == "same"


def test_writes_to_what_is_read_are_excluded():
    argument = "random_values(1, 3, 4).t()"
    verdict = check(program_of("x.mul_(x[0])", arguments=[argument] * 3), "magpy")
    assert verdict.kind == "overlapping write"
    assert not verdict.failed
    assert check(program_of("x.mul_(x + 1)", arguments=[argument] * 3), "magpy").kind == "same"


def test_views_without_gradients_and_empty_cells_are_compared():
    """Reading a view's node raises if its base was written to otherwise."""
    body = """
        rows = x.unbind(0)
        with torch.no_grad(): x.mul_(2)
        def later(): return missing
        result = [rows, later]
        if False: missing = 1
        x = result
    """
    verdict = check(
        program_of(body, arguments=["leaf(1, 3, 4) * 1"] * 3, backward="first"), "eager"
    )
    assert verdict.kind == "same", verdict.detail


def test_programs_that_depend_on_reads_of_autograd_state_are_excluded():
    """The history of a view whose base was written to is updated when something reads it."""
    body = """
        view = x.view(-1)
        version = x._version
        x.mul_(net.norm.weight.mean())
        with torch.no_grad(): log.append(view[:])
        view.requires_grad_(False)
    """
    verdict = check(program_of(body, arguments=["random_values(0, 4)[1:]"] * 2), "eager")
    assert verdict.kind == "read autograd state"
    assert not verdict.failed


@pytest.mark.parametrize(("body", "eager_refuses"), [("x = x.sin()", True), ("x = x + 1", False)])
def test_tensors_are_written_to_before_the_backward_pass(body, eager_refuses):
    from tests.fuzz.observations import observe
    from tests.fuzz.trials import Loaded

    program = program_of(
        body, arguments=["leaf(1, 4) * 1"], backward="first", write="tensors[-1].add_(1)"
    )
    loaded = Loaded(program.text())
    try:
        module = loaded.load()
        found = observe(module, module.program, 0, exact=False)
    finally:
        loaded.remove()
    assert found["backward"] == ((RuntimeError, True) if eager_refuses else None)
    assert check(program, "magpy").kind == "same"


def test_only_refusals_for_overwritten_tensors_may_be_missing():
    from tests.fuzz.observations import saves_less

    refused = {"backward": (RuntimeError, True)}
    assert saves_less({"backward": None}, refused)
    assert not saves_less({"backward": None}, {"backward": (RuntimeError, False)})
    assert not saves_less({"backward": (RuntimeError, False)}, refused)


def test_shrinking_keeps_what_fails():
    program = generate(3)
    wrong = Fragment("", ["log.append('wrong')"])
    program.main.body.statements.insert(2, wrong)
    smaller = shrink(program, lambda p: "log.append('wrong')" in p.text())
    assert [s.text() for s in smaller.main.body.statements] == ["log.append('wrong')"]
    assert len(smaller.calls) == 1
    assert not smaller.functions


def test_sweep_survives_a_crash(monkeypatch):
    def start(worker):
        return native(worker) if worker._backend == sweeps.NATIVELY else _start_crashing(worker)

    native = sweeps.Worker._start
    monkeypatch.setattr(sweeps.Worker, "_start", start)
    found = list(sweeps.sweep("eager", [1, 2], jobs=1))
    assert [one["kind"] for one in found] == ["crash (exit status 3)"] * 2
    assert "failed: 2" in sweeps.summary(found)


def test_crash_of_eager_mode_is_no_failure(monkeypatch):
    monkeypatch.setattr(sweeps.Worker, "_start", _start_crashing)
    found = list(sweeps.sweep("eager", [1], jobs=1))
    assert [(one["kind"], one["failed"]) for one in found] == [("eager mode crashes", False)]


def test_sweep_ends_a_program_that_hangs(monkeypatch):
    monkeypatch.setattr(sweeps.Worker, "_start", _start_hanging)
    monkeypatch.setitem(sweeps.SECONDS, "eager", 0.3)
    assert [one["kind"] for one in sweeps.sweep("eager", [1], jobs=1)] == ["hang"]


def _start_hanging(worker):
    return _start_crashing(worker, "while True: pass")


def _start_crashing(worker, text="import sys; sys.stdin.readline(); sys.exit(3)"):
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_journal_resumes_until_the_sources_change(tmp_path, monkeypatch):
    path = tmp_path / "findings.jsonl"
    sweeps.Journal(path, "eager").add({"seed": 3, "kind": "same", "failed": False})
    assert list(sweeps.Journal(path, "eager").known) == [3]
    assert not sweeps.Journal(path, "magpy").known
    monkeypatch.setattr(sweeps, "sources_digest", lambda: "other")
    assert not sweeps.Journal(path, "eager").known


def test_changes_of_state_are_the_same_in_all_copies():
    program = program_of("log.append(fails(4))", calls=2)
    program.calls[1].change = "fails = lambda count: count + 1"
    assert check(program, "eager").kind == "same"


def test_view_that_a_compiled_graph_returns_as_none_may_be_detached():
    body = "v = x.sin()[:]\nlog.append(str(v))\nv.detach_()"
    kinds = [check(program_of(body), backend).kind for backend in ("eager", "magpy")]
    assert kinds == ["same", "detached view"]


def test_view_that_a_compiled_graph_returns_as_none_may_be_written_to():
    body = "v = list((x * 2).unbind(0))[-1]\nlog.append(str(v))\nv.copy_(table['w'])"
    program = program_of(body, arguments=["random_values(0, 4, 4)"] * 2)
    program.calls[0].change = "table['w'] = leaf(5, 4)"
    kinds = [check(program, backend).kind for backend in ("eager", "magpy")]
    assert kinds == ["same", "written view"]


def test_writes_of_a_loop_may_be_counted_once():
    body = "x = x * 2\nfor n in range(x.shape[0] % 4):\n    x.add_(1)\nreturn [x]"
    program = program_of(body, arguments=["random_values(0, 4)"] + ["random_values(0, 3)"] * 2)
    assert check(program, "eager").kind == "loop counted once"


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("x = (x.float() * 3).sum().double() ** 2", "float64"),
        ("y = x * 2**50\nlog.append(bool((y != y.round()).any()))", "float32"),
    ],
)
def test_values_that_rounding_decides_are_excluded(body, dtype):
    """A computation in float32 amid float64, and a comparison that the last bit decides."""
    program = program_of(body)
    program.dtype = dtype
    assert trials._is_ill_conditioned(program, 0)
    assert not trials._is_ill_conditioned(program_of("x = x * 2"), 0)


def test_saved_tensors_of_merged_branches_may_be_detached():
    body = "y = x.tanh()\nif y.sum() > 9: x = x * 1\ny = y * x\nx.detach_()\nx = y"
    arguments = ["leaf(0, 4) * 1"]
    program = program_of(body, arguments=arguments, backward="first")
    kinds = [check(program, backend).kind for backend in ("eager", "magpy")]
    assert kinds == ["detached saved tensor", "same"]
