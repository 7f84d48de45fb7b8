"""The runner's command on a corpus of files that crash, hang, exhaust memory or go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from paritybench_runner.cli import main

FILES = {
    "test_good.py": """
class Good(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return self.layer(x)

class Refused(nn.Module):
    def forward(self, x):
        return sorted([x, x], key=lambda t: 0)[0] + 1

class Dynamic(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            return x
        return -x

class FailsInEager(nn.Module):
    def forward(self, x):
        return x.no_such_method()

class NoForward(nn.Module):
    pass

class Unsteady(nn.Module):
    calls = 0
    def forward(self, x):
        Unsteady.calls += 1
        return x * Unsteady.calls

class Unwritten(nn.Module):
    calls = 0
    def forward(self, x):
        Unwritten.calls += 1
        for size in (16, 64, 256):
            [torch.full((size,), float(Unwritten.calls)) for _ in range(50)]
        return [torch.empty(size) for size in (16, 64, 256) for _ in range(20)]

TESTCASES = tests(Good, Refused, Dynamic, FailsInEager, NoForward, Unsteady, Unwritten)
""",
    "test_wrong.py": """
class WrongValue(nn.Module):
    def forward(self, x):
        if torch.jit.is_scripting():
            x = x + 1
        return x

class WrongState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
    def forward(self, x):
        if not torch.jit.is_scripting():
            self.seen += 1
        return x * 2

class WrongRandomState(nn.Module):
    def forward(self, x):
        if torch.jit.is_scripting():
            return x * 2 + torch.rand(3) * 0
        return x * 2

class WrongArgument(nn.Module):
    def forward(self, x):
        if not torch.jit.is_scripting():
            x.zero_()
        return torch.ones(2)

class WrongAliasing(nn.Module):
    def forward(self, x):
        return x.clone() if torch.jit.is_scripting() else x

class WrongGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
    def forward(self, x):
        y = x * self.weight
        return y + self.weight - self.weight.detach() if torch.jit.is_scripting() else y

TESTCASES = tests(
    WrongValue, WrongState, WrongRandomState, WrongArgument, WrongAliasing, WrongGradient
)
""",
    "test_dies.py": """
class Dies(nn.Module):
    @torch.jit.ignore
    def die(self, x: torch.Tensor) -> torch.Tensor:
        os.abort()
    def forward(self, x):
        if torch.jit.is_scripting():
            x = self.die(x)
        return x + 1

class Raises(nn.Module):
    @torch.jit.ignore
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        raise TypeError("only when compiled")
    def forward(self, x):
        if torch.jit.is_scripting():
            x = self.fail(x)
        return x + 1

class EatsMemory(Raises):
    @torch.jit.ignore
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**40)

class EatsMemoryInSmallPieces(Raises):
    @torch.jit.ignore
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        eaten = []
        while True:
            eaten.append(torch.ones(2**26))
            time.sleep(0.01)

class DiesInEager(nn.Module):
    def forward(self, x):
        os.kill(os.getpid(), 11)

class OwnError(BaseException):
    pass

class RaisesInEager(nn.Module):
    def forward(self, x):
        raise OwnError("more than an Exception")

class Survivor(nn.Module):
    def forward(self, x):
        return x + 1

TESTCASES = tests(
    Dies, Raises, EatsMemory, EatsMemoryInSmallPieces, DiesInEager, RaisesInEager, Survivor
)
""",
    "test_hangs.py": """
class Hangs(nn.Module):
    @torch.jit.ignore
    def wait(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(1000)
        return x
    def forward(self, x):
        if torch.jit.is_scripting():
            x = self.wait(x)
        return x + 1

TESTCASES = tests(Hangs)
""",
    "test_loses_gpu.py": """
healthy = True

def synchronize():
    if not healthy:
        raise RuntimeError("CUDA error: device-side assert triggered")

assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, synchronize

class NeedsGpu(nn.Module):
    def forward(self, x):
        if not torch.jit.is_scripting():
            synchronize()
        return x + 1

class LosesGpuInEager(nn.Module):
    def forward(self, x):
        global healthy
        healthy = False
        return x + 1

class LosesGpu(nn.Module):
    @torch.jit.ignore
    def lose(self, x: torch.Tensor) -> torch.Tensor:
        global healthy
        healthy = False
        raise TypeError("only when compiled")
    def forward(self, x):
        if torch.jit.is_scripting():
            x = self.lose(x)
        return x + 1

TESTCASES = [case for cls in (LosesGpuInEager, LosesGpu) for case in tests(cls, NeedsGpu)]
""",
    "test_import_fails.py": "import no_such_library",
    "test_import_dies.py": "os.abort()",
    "test_no_tests.py": "",
}
HEAD = """
import os, resource, time
import torch
from torch import nn

def tests(*classes):
    return [(c, lambda: ([], {}), lambda: ([torch.rand(2, 3)], {}), True) for c in classes]
"""


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(HEAD + text)
    return folder


def command(*arguments):
    return [sys.executable, "-m", "paritybench_runner", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True)


def lines(out):
    return [json.loads(text) for text in (out / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    corpus, out = write(folder / "corpus", FILES), folder / "out"
    # Long enough for a slow machine to fill the memory.
    limits = ("--timeout", 10, "--memory", 2)
    options = ("--compilers", "torchscript", "--train", "--jobs", 2)
    result = run("--corpus", corpus, *options, *limits, "--out", out)
    assert result.returncode == 0, result.stderr
    return corpus, out


@pytest.fixture(scope="module")
def by_name(finished):
    return {test["module"]: test for line in lines(finished[1]) for test in line["tests"]}


def test_every_file_has_one_line(finished):
    assert sorted(line["file"] for line in lines(finished[1])) == sorted(FILES)


def test_compiled_program_is_one_graph_with_hits_and_times(by_name):
    found = by_name["Good"]["torchscript"]
    assert (found["class"], found["graphs"], found["hits"]) == ("one_graph", 1, 2)
    assert found["first_s"] > found["matched_s"] > 0


def test_rejected_program_runs_eagerly_with_a_reason(by_name):
    found = by_name["Refused"]["torchscript"]
    assert found["class"] == "eager"
    assert "Lambda" in found["error"]


def test_only_programs_that_read_values_are_dynamic(by_name):
    dynamic = {name for name, test in by_name.items() if test["eager"].get("reads")}
    assert dynamic == {"Dynamic"}


def test_eager_outcomes_are_classified(by_name):
    assert by_name["FailsInEager"]["eager"]["class"] == "fails"
    assert "no_such_method" in by_name["FailsInEager"]["eager"]["error"]
    assert by_name["NoForward"]["eager"]["class"] == "no forward"
    assert by_name["Unsteady"]["eager"]["deterministic"] is False
    assert by_name["Good"]["eager"]["deterministic"] is True
    assert "torchscript" not in by_name["FailsInEager"]


def test_uninitialised_memory_is_deterministic(by_name):
    assert by_name["Unwritten"]["eager"]["deterministic"]


@pytest.mark.parametrize(
    "name, words",
    [
        ("WrongValue", "result"),
        ("WrongState", "module['seen']"),
        ("WrongRandomState", "random state"),
        ("WrongArgument", "args[0]"),
        ("WrongAliasing", "shared"),
        ("WrongGradient", "module['weight'].grad"),
    ],
)
def test_wrong_result_is_found_and_named(by_name, name, words):
    found = by_name[name]["torchscript"]
    assert found["class"] == "wrong"
    assert found["error"].startswith("call 1: ")
    assert words in found["error"]


def test_crashes_timeouts_and_memory_limits_affect_one_test_only(by_name):
    found = {name: test.get("torchscript", {}).get("class") for name, test in by_name.items()}
    assert found["Dies"] == "crashed"
    assert "SIGABRT" in by_name["Dies"]["torchscript"]["error"]
    assert found["Raises"] == "crashed"
    assert "in the TorchScript interpreter" in by_name["Raises"]["torchscript"]["error"]
    assert found["Hangs"] == "timeout"
    assert found["EatsMemory"] == found["EatsMemoryInSmallPieces"] == "crashed"
    assert "of the 2 it may use" in by_name["EatsMemoryInSmallPieces"]["torchscript"]["error"]
    assert by_name["DiesInEager"]["eager"]["class"] == "crashed"
    assert "SIGSEGV" in by_name["DiesInEager"]["eager"]["error"]
    assert by_name["RaisesInEager"]["eager"]["class"] == "crashed"
    assert "OwnError: more than" in by_name["RaisesInEager"]["eager"]["error"]
    assert found["Survivor"] == "one_graph"


def test_lost_gpu_affects_one_test_only(finished):
    (line,) = (line for line in lines(finished[1]) if line["file"] == "test_loses_gpu.py")
    in_eager, first, compiled, second = line["tests"]
    assert in_eager["eager"] == {"class": "fails", "error": "lost the GPU"}
    assert compiled["torchscript"]["class"] == "crashed"
    assert first["torchscript"]["class"] == second["torchscript"]["class"] == "one_graph"


def test_preloading_does_not_initialise_cuda(monkeypatch):
    monkeypatch.setenv("PARITYBENCH_WARM", "magpy,dynamo,torchscript:magpy:cuda")
    script = """
import torch
asked = []
for name in ("is_available", "device_count", "init", "_lazy_init", "get_device_capability"):
    setattr(torch.cuda, name, lambda *args, name=name: asked.append(name))
import sys
import paritybench_runner.preload
assert not asked, asked
assert "magpy_like.compiler" in sys.modules and "torch._dynamo" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_forked_process_has_compilers_loaded_and_computes_gradients():
    script = """
import os, sys, torch
import paritybench_runner.preload
loaded = "_magpy_monitor" in sys.modules
child = os.fork()
if child == 0:
    x = torch.ones(3, requires_grad=True)
    x.sin().sum().backward()
    os._exit(0 if x.grad is not None and loaded else 1)
assert os.waitpid(child, 0)[1] == 0, loaded
"""
    environment = {**os.environ, "PARITYBENCH_WARM": "magpy,dynamo,torchscript:magpy:cpu"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=120)


def test_import_errors_are_recorded(finished):
    errors = {line["file"]: line.get("import_error") for line in lines(finished[1])}
    assert "no_such_library" in errors["test_import_fails.py"]
    assert "SIGABRT" in errors["test_import_dies.py"]
    assert errors["test_no_tests.py"] is None


def test_summary_and_report_are_written(finished):
    assert "| torchscript | 5 |" in (finished[1] / "summary.md").read_text()
    assert "test_dies.py" in (finished[1] / "report.html").read_text()


WAITS = """
import subprocess
if not os.path.exists("{marker}"):
    child = subprocess.Popen(["sleep", "1000"])
    open("{child}.part", "w").write(str(child.pid))
    os.rename("{child}.part", "{child}")
    time.sleep(1000)
TESTCASES = []
"""


def is_running(process):
    """True if a process is running, and is no zombie."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def start_run(tmp_path):
    """Starts a run; returns when one file is finished and a second one has a child process."""
    waits = WAITS.format(marker=tmp_path / "go on", child=tmp_path / "pid")
    corpus, out = (
        write(tmp_path / "corpus", {"test_a.py": "", "test_b.py": waits}),
        tmp_path / "out",
    )
    options = ("--corpus", corpus, "--compilers", "torchscript", "--out", out)
    process = subprocess.Popen(
        command(*options),
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_restore_interrupts,
    )
    wait_until(lambda: (tmp_path / "pid").exists() and lines(out))
    return process, int((tmp_path / "pid").read_text()), options


def _restore_interrupts():
    """Background jobs of a shell ignore Ctrl-C, and so would the runner."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_run_is_interrupted_cleanly_and_resumed(tmp_path):
    process, child, options = start_run(tmp_path)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Stopped after 1 of 2 files" in errors
    assert b"Traceback" not in errors
    assert not is_running(child)
    (tmp_path / "go on").touch()
    assert run(*options, "--resume").returncode == 0
    assert [line["file"] for line in lines(tmp_path / "out")] == ["test_a.py", "test_b.py"]


def test_children_of_a_killed_runner_end(tmp_path):
    process, child, _ = start_run(tmp_path)
    process.kill()
    process.communicate()
    wait_until(lambda: not is_running(child))


def test_compare_command_lists_changes(finished, tmp_path):
    worse = tmp_path / "worse"
    worse.mkdir()
    for name in ("run.json", "results.jsonl"):
        text = (finished[1] / name).read_text()
        (worse / name).write_text(text.replace('"class": "one_graph"', '"class": "split"'))
    same, changed = (
        CliRunner().invoke(main, ["compare", str(finished[1]), str(other)])
        for other in (finished[1], worse)
    )
    assert (same.exit_code, changed.exit_code) == (0, 1)
    assert "test_good.py::Good" in changed.output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--out", "x"], "--corpus"),
        (["--corpus", "nowhere", "--out", "x"], "no such folder"),
        (["--corpus", ".", "--compilers", "gcc", "--out", "x"], "magpy, dynamo, torchscript"),
    ],
)
def test_invalid_command_is_explained(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert words in result.output
